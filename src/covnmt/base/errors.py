"""What went wrong, in words for the person who can mend it."""


class UserError(Exception):
    """Bad input: the command line prints the message and exits with code 2, without a traceback.

    The message says what was wrong, where (file and line where there is one), and what to do.
    """


def install_command(extra: str) -> str:
    """How to get what an extra brings; covnmt itself is in no package registry."""
    return f"pip install -c constraints.txt '.[{extra}]' in the clone"
