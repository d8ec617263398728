"""Errors whose message says what to do."""


class UserError(Exception):
    """Bad input: the command line prints the message and exits with code 2, without a traceback.

    The message says what was wrong, where (file and line where there is one), and what to do.
    """


def install_command(extra: str) -> str:
    """Return the command that installs an extra; covnmt is installed from its checkout."""
    return f"pip install -c constraints.txt '.[{extra}]' in a checkout of the covnmt repository"
