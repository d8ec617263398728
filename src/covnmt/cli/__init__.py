"""The command line: one file per group of commands."""


def main() -> None:
    """Run `covnmt`; Ctrl-C while its modules are imported exits with code 130, as it does later."""
    try:
        from covnmt.cli.app import main as run_command
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except ImportError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # from a module written in C
            raise SystemExit(130) from None
        raise
    run_command()
