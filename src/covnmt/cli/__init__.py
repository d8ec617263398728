"""The command line: one file per group of commands."""


def main() -> None:
    """Run `covnmt`. Ctrl-C exits with code 130 from here on, also while modules are imported."""
    try:
        from covnmt.base.signals import stop_on_signals

        stop_on_signals()
        from covnmt.cli.app import main as run_command

        run_command()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
