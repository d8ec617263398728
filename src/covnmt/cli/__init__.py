"""The command line: one file per group of commands."""

from covnmt.cli.app import main

__all__ = ["main"]
