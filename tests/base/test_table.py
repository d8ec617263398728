"""Tables say the same in the terminal and as Markdown."""

from rich.console import Console

from covnmt.base.table import Bold, Table, TableColumn, markdown_table

TABLE = Table(
    [TableColumn("system"), TableColumn("BLEU ↑\n(paper)", numeric=True)],
    [[("[red]base[/red]", "12.00"), ("gru10", Bold("13.00"))], [("other", "9.00")]],
    caption="[b]all[/b]",
)


def test_table_in_the_terminal_shows_text_as_it_is() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(TABLE)
    lines = [line.split() for line in capture.get().splitlines()]
    assert ["[red]base[/red]", "12.00"] in lines
    assert ["gru10", "13.00"] in lines
    assert ["[b]all[/b]"] in lines


def test_markdown_columns_are_left_unless_numeric() -> None:
    assert markdown_table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
