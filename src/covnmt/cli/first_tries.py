"""What people try first: `covnmt help`, `covnmt version`, and options that other programs have."""

from collections.abc import Sequence

from covnmt.base.errors import UserError

LANGUAGES = "a model has its languages: choose one with --model (`covnmt models` lists the bundled)"
FILE = "name the file, or write the text in quotes, without an option"
KEY = "settings are KEY=VALUE: covnmt train train.updates=1000 (`covnmt recipe keys` lists all)"
INSTEAD = {
    **dict.fromkeys(
        ("--lang", "--language", "--from", "--to", "--src-lang", "--tgt-lang"), LANGUAGES
    ),
    **dict.fromkeys(("--input", "-i", "--file", "--text", "--src"), FILE),
    **dict.fromkeys(("--epochs", "--updates", "--steps", "--lr", "--hidden", "--dropout"), KEY),
    "--config": "name a recipe as first argument of train; serve has --settings",
}


def take_first_tries(arguments: Sequence[str]) -> list[str]:
    """Translate `help` and `version` to options, and say what replaces an unknown option."""
    match arguments:
        case ["help", *command]:
            return [*command, "--help"]
        case ["version"]:
            return ["--version"]
    for argument in arguments:
        option = argument.partition("=")[0]
        if option in INSTEAD:
            raise UserError(f"there is no option {option}: {INSTEAD[option]}")
    return list(arguments)
