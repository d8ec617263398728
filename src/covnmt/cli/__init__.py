"""The command line: one file per group of commands."""

import gc
import os


def main() -> None:
    """Run `covnmt`. Ctrl-C exits with code 130 from here on, also while modules are imported."""
    try:
        from covnmt.base.signals import stop_on_signals

        stop_on_signals()
        # threads of NumPy's OpenBLAS would spin for 30 ms before they sleep, after its import too
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
        gc.disable()  # modules leave hardly any garbage, and stay
        from covnmt.cli.app import main as run_command

        gc.freeze()
        gc.enable()
        run_command()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
