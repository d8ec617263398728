"""Tables that render for the terminal (rich), as Markdown, and in HTML templates."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import rich.table
from rich import box
from rich.text import Text

Row = Sequence[str]


class Bold(str):
    """The text of a cell in bold."""

    __slots__ = ()


@dataclass(frozen=True)
class TableColumn:
    """A column: its heading, which may have several lines, and how its cells look."""

    heading: str
    numeric: bool = False  # aligned right
    dim: bool = False


@dataclass(frozen=True)
class Table:
    """Rows in sections, which a line separates."""

    columns: Sequence[TableColumn]
    sections: Sequence[Sequence[Row]]
    caption: str = ""
    title: str | None = None

    def __rich__(self) -> rich.table.Table:
        table = rich.table.Table(
            title=None if self.title is None else Text(self.title),
            caption=Text(self.caption),
            box=box.SIMPLE_HEAD,
            show_edge=False,
            title_justify="left",
            caption_justify="left",
            collapse_padding=True,
            pad_edge=False,
        )
        for column in self.columns:
            table.add_column(
                Text(column.heading),
                justify="right" if column.numeric else "left",
                style="dim" if column.dim else "",
                overflow="fold" if column.dim else "ellipsis",
            )
        for rows in self.sections:
            for row in rows:
                table.add_row(
                    *(Text.styled(cell, "bold" if isinstance(cell, Bold) else "") for cell in row)
                )
            table.add_section()
        return table


def markdown_table(head: Row, rows: Iterable[Row], numeric: Sequence[bool] | None = None) -> str:
    """Format a Markdown table; `numeric` columns are aligned right."""
    rule = ["---:" if right else "---" for right in numeric or [False] * len(head)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def page_section(title: str, *paragraphs: str) -> str:
    """Join a heading and paragraphs; empty ones are left out."""
    return "\n\n".join([f"## {title}", *filter(None, paragraphs)])
