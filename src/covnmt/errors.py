"""What went wrong, in words for the person who can mend it."""


class UserError(Exception):
    """Bad input: the command line prints the message and exits with code 2, without a traceback.

    The message says what was wrong, where (file and line where there is one), and what to do.
    """
