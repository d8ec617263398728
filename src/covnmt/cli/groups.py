"""How `covnmt --help` groups the commands, and the examples at the end of each command's help."""

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

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
    "average": (
        "covnmt average runs/mine -o runs/mine-mean",
        "covnmt average runs/mine -o runs/mine-mean --last 10",
    ),
    "calibrate": (
        "covnmt calibrate -m runs/mine --dev dev.de dev.en --train train.de --train train.en",
        "covnmt calibrate -m runs/mine --dev dev.de dev.en --domain news --pairs 500",
    ),
    "check": (
        "covnmt check source.ja translation.en -m ja-en",
        "covnmt check source.ja translation.en -m ja-en --words --report page.html --exit-code",
        "covnmt check messages.po -m ja-en --annotated checked.po",
    ),
    "compare": (
        "covnmt compare baseline=base.jsonl coverage=gru10.jsonl --reference test.en",
        "covnmt compare baseline=base.txt coverage=gru10.txt -r test.en --source test.de",
    ),
    "corpus get": (
        "covnmt corpus get multi30k -o corpora/multi30k",
        "covnmt corpus get kftt -o corpora/kftt",
    ),
    "corpus list": ("covnmt corpus list", "covnmt corpus list | cut -f 1,2"),
    "demo": ("covnmt demo", "covnmt demo somewhere/else --threads 2"),
    "doctor": ("covnmt doctor", "covnmt doctor --json"),
    "evaluate": (
        "covnmt evaluate test.out test.en",
        "covnmt evaluate test.jsonl -r test.en -s test.de --gold test.align -o scores.json",
    ),
    "export": ("covnmt export runs/mine --int8", "covnmt export -m runs/mine -o exported"),
    "info": ("covnmt info -m runs/mine", "covnmt info paper/gru10"),
    "models": ("covnmt models", "covnmt models | cut -f 1,3"),
    "plot heat-maps": (
        "covnmt plot heat-maps baseline=base.jsonl gru10=gru10.jsonl -o attention.png",
        "covnmt plot heat-maps test.jsonl --sentence 7 -o attention.svg",
    ),
    "plot lengths": (
        "covnmt plot lengths base.txt gru10.txt -r test.en -s test.de -o lengths.png",
        "covnmt plot lengths baseline=base.txt -r test.en -s test.de --tokenize zh -o lengths.svg",
    ),
    "plot training": (
        "covnmt plot training runs/baseline runs/gru10 -o curves.svg",
        "covnmt plot training baseline=runs/one coverage=runs/two -o curves.png",
    ),
    "prepare": (
        "covnmt prepare train.de train.en --dev dev.de dev.en -o data/mine "
        "--source-language de --target-language en",
        "covnmt prepare train.zh train.en --dev dev.zh dev.en -o data/zh "
        "--source-tokenizer sentencepiece --target-tokenizer sentencepiece "
        "--source-language zh --target-language en",
    ),
    "push": (
        "covnmt push someone/de-en -m runs/mine-int8 --license mit",
        "covnmt push someone/de-en -m runs/mine-int8 --private",
    ),
    "rate make": (
        "covnmt rate make base=base.txt gru10=gru10.txt -s test.de -o sheets",
        "covnmt rate make base.txt gru10.txt -s test.de -n 50 --seed 2 -o sheets",
    ),
    "rate score": (
        "covnmt rate score sheets/key.json anna.csv ben.csv",
        "covnmt rate score sheets/key.json anna.csv ben.csv --json",
    ),
    "recipe keys": ("covnmt recipe keys", "covnmt recipe keys | grep dropout"),
    "recipe list": ("covnmt recipe list", "covnmt recipe list | grep small/"),
    "recipe show": (
        "covnmt recipe show modern/gru10 model.hidden=512 > my.toml",
        "covnmt recipe show paper/gru10 --json",
    ),
    "report": (
        "covnmt report baseline=base.jsonl gru10=gru10.jsonl -r test.en -s test.de -o report",
        "covnmt report base.txt gru10.txt -r test.en -s test.de --no-ter -o report",
    ),
    "reproduce": (
        "covnmt reproduce embedded --work work --results results",
        "covnmt reproduce kftt --data corpora/kftt --work work --results results --list",
    ),
    "score": (
        "covnmt score source.ja translation.en -m ja-en",
        "covnmt score source.ja translation.en -m ja-en --per-token",
    ),
    "serve": (
        "covnmt serve -m de-en -m ja-en",
        "covnmt serve -m laws:zh-en=runs/mine --host 0.0.0.0 --api-key-file key.txt",
    ),
    "smt train": (
        "covnmt smt train data/mine -o runs/phrases",
        "covnmt smt train data/mine -o runs/phrases --aligner fast_align -j 2",
    ),
    "smt translate": (
        "covnmt smt translate test.de -m runs/phrases -o test.out",
        "covnmt smt translate test.de -m runs/phrases --json -o test.jsonl -j 2",
    ),
    "smt tune": (
        "covnmt smt tune -m runs/phrases",
        "covnmt smt tune -m runs/phrases --max-sentences 500 -j 2",
    ),
    "synthetic": ("covnmt synthetic -o text", "covnmt synthetic -o text --train 5000 --seed 2"),
    "train": (
        "covnmt train --data data/mine",
        "covnmt train modern/gru10 --data data/mine --run runs/mine model.hidden=512",
    ),
    "translate": (
        'covnmt translate "金閣寺は京都にある。" -m ja-en',
        "covnmt translate source.zh -m zh-en -o translation.en",
    ),
    "tune": (
        "covnmt tune dev.de dev.en -m runs/mine --write",
        "covnmt tune dev.de dev.en -m runs/mine --length-penalty 0.5 --length-penalty 0.7",
    ),
    "verify": ("covnmt verify data/mine", "covnmt verify runs/mine"),
    "words align": (
        "covnmt words align test.de test.en --data data/mine -o test.links",
        "covnmt words align train.de train.en --aligner ibm1 --symmetrize intersection",
    ),
}
VALUES = {int: "number", float: "number", Path: "path"}


def metavar(parameter: Any) -> str | None:
    """Return what help shows as the value of an option or as the name of an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    if parameter.is_flag:
        return ""
    kind = parameter.type_descriptor.annotation
    if get_origin(kind) is Literal:
        return None
    kinds = get_args(kind) if get_origin(kind) in (list, tuple) else (kind,)
    return " ".join(f"<{VALUES.get(kind, 'text')}>" for kind in kinds)


class GroupedCommands(TyperGroup):
    """Lists the commands by group, in the order of GROUPS."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        commands: Any = self.commands
        for group, names in GROUPS.items():
            for name in names:
                if name in commands:
                    commands[name].rich_help_panel = group
        for parameter in self.params:
            parameter.metavar = metavar(parameter)
        for name, examples in EXAMPLES.items():
            command: Any = self
            for word in name.split():
                command = command.commands[word]
            for parameter in command.params:
                parameter.metavar = parameter.metavar or metavar(parameter)
                if parameter.param_type_name == "argument":
                    parameter.display_type_rich = lambda ctx: ""
            command.epilog = "\n\n".join(["Examples:", *examples])

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        grouped = [name for names in GROUPS.values() for name in names]
        return sorted(self.commands, key=[*grouped, *self.commands].index)
