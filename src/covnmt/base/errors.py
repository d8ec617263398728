"""Errors whose message says what to do."""

from pathlib import Path

CHECKOUT = Path(__file__).parents[3]


class UserError(Exception):
    """Bad input: the command line prints the message and exits with code 2, without a traceback.

    The message says what was wrong, where (file and line where there is one), and what to do.
    """


def install_command(extra: str) -> str:
    """Return the command that installs an extra, in a checkout or beside an installed package."""
    if (CHECKOUT / "constraints.txt").exists():
        return f"pip install -c constraints.txt '.[{extra}]' in {CHECKOUT}"
    return f"pip install 'covnmt[{extra}]'"
