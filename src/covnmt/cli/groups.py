"""How `covnmt --help` groups the commands, and the examples at the end of each command's help."""

from typing import Any

from typer.core import TyperGroup

GROUPS = {
    "Translate": ("translate", "serve", "models"),
    "Inspect": ("check", "align", "plot", "info", "verify", "doctor"),
    "Train": (
        "corpus",
        "prepare",
        "train",
        "tune",
        "average",
        "export",
        "calibrate",
        "push",
        "recipe",
    ),
    "Evaluate": ("evaluate", "compare", "score", "report", "rate"),
    "Research": ("reproduce", "demo", "synthetic", "smt", "words"),
}
EXAMPLES = {
    "align": (
        "covnmt align source.ja translation.en -m ja-en",
        "covnmt align test.de test.en -m runs/mine -o test.links --matrices test.npz",
    ),
    "average": ("covnmt average runs/mine runs/mine-mean --last 5",),
    "calibrate": (
        "covnmt calibrate runs/mine --dev dev.de dev.en --train train.de --train train.en",
    ),
    "check": (
        "covnmt check source.ja translation.en -m ja-en",
        "covnmt check source.ja translation.en -m ja-en --words --report page.html --exit-code",
    ),
    "compare": (
        "covnmt compare baseline=base.jsonl coverage=gru10.jsonl --reference test.en",
        "covnmt compare baseline=base.txt coverage=gru10.txt -r test.en --source test.de",
    ),
    "corpus get": ("covnmt corpus get kftt corpora/kftt",),
    "demo": ("covnmt demo demo",),
    "evaluate": (
        "covnmt evaluate test.out --reference test.en",
        "covnmt evaluate test.jsonl -r test.en -s test.de --gold test.align --json scores.json",
    ),
    "export": ("covnmt export runs/mine --int8",),
    "info": ("covnmt info runs/mine", "covnmt info paper/gru10"),
    "plot heat-maps": (
        "covnmt plot heat-maps attention.png baseline=base.jsonl gru10=gru10.jsonl",
    ),
    "plot training": ("covnmt plot training curves.svg runs/baseline runs/gru10",),
    "prepare": (
        "covnmt prepare data/mine --train train.de train.en --dev dev.de dev.en "
        "--source-language de --target-language en",
        "covnmt prepare data/zh --train train.zh train.en --dev dev.zh dev.en "
        "--source-tokenizer sentencepiece --target-tokenizer sentencepiece "
        "--source-language zh --target-language en",
    ),
    "push": ("covnmt push runs/mine-int8 someone/de-en --license mit",),
    "rate make": ("covnmt rate make sheets base=base.txt gru10=gru10.txt -s test.de",),
    "recipe show": ("covnmt recipe show modern/gru10 model.hidden=512 > my.toml",),
    "report": ("covnmt report report baseline=base.jsonl gru10=gru10.jsonl -r test.en -s test.de",),
    "reproduce": (
        "covnmt reproduce embedded --work work --results results",
        "covnmt reproduce kftt --data corpora/kftt --work work --results results --list",
    ),
    "score": (
        "covnmt score source.ja translation.en -m ja-en",
        "covnmt score source.ja translation.en -m ja-en --per-token",
    ),
    "serve": (
        "covnmt serve -m ja-en -m zh-en",
        "covnmt serve -m laws:zh-en=runs/mine --host 0.0.0.0 --api-key-file key.txt",
    ),
    "synthetic": ("covnmt synthetic text",),
    "train": (
        "covnmt train modern/gru10 data.directory=data/mine --run runs/mine",
        "covnmt train modern/gru10 data.directory=data/mine model.hidden=512 train.updates=20_000",
    ),
    "translate": (
        "covnmt translate source.ja -m ja-en -o translation.en",
        "echo 申请人应于三十日内补正。 | covnmt translate -m zh-en",
    ),
    "tune": ("covnmt tune dev.de dev.en -m runs/mine --write",),
}


class GroupedCommands(TyperGroup):
    """Lists the commands by group, in the order of GROUPS."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        commands: Any = self.commands
        for group, names in GROUPS.items():
            for name in names:
                if name in commands:
                    commands[name].rich_help_panel = group
        for name, examples in EXAMPLES.items():
            command: Any = self
            for word in name.split():
                command = command.commands[word]
            command.epilog = "\n\n".join(["Examples:", *examples])

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        grouped = [name for names in GROUPS.values() for name in names]
        return sorted(self.commands, key=[*grouped, *self.commands].index)
