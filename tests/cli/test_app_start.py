"""Ctrl-C while the command line is still importing its modules."""

import subprocess
import sys

import pytest

# A finder that is asked for typer, and does something then.
INTERRUPTED = """
import sys
class Finder:
    def find_spec(self, name, *rest):
        if name == "typer":
            {action}
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["translate", "--model", "ja-en"]  # waits for a line
from covnmt.cli import main
main()
"""


@pytest.mark.parametrize(
    "action",
    [
        "import signal; signal.raise_signal(signal.SIGINT)",
        "import signal; signal.raise_signal(signal.SIGTERM)",
        "raise KeyboardInterrupt",
    ],
)
def test_ctrl_c_during_imports_exits_with_130_and_no_traceback(action: str) -> None:
    code = INTERRUPTED.format(action=action)
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.wait(300) == 130
        assert process.stderr
        assert process.stderr.read() == ""


def test_a_module_that_is_missing_is_still_an_error() -> None:
    code = INTERRUPTED.format(action="raise ImportError('no typer')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no typer" in done.stderr


# What starting does without; most take a tenth of a second or more, together several.
SLOW_TO_IMPORT = {
    "covnmt.inference.omissions", "fastapi", "jinja2", "markdown_it", "matplotlib", "opencc", "ray",
    "rjieba", "sacrebleu", "sacremoses", "scipy", "torch",
}  # fmt: skip
TRANSLATE = """
import sys
sys.argv[1:] = ["translate", "--model", "ja-en"]
from covnmt.cli import main
main()
"""


def test_translating_a_line_imports_only_what_it_needs() -> None:
    at_exit = "atexit.register(lambda: print(*sys.modules, gc.isenabled()))"
    code = f"import atexit, gc, sys\n{at_exit}\n{TRANSLATE}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input="北".encode(), capture_output=True, check=True)
    imported = set(done.stdout.decode().split())
    assert "onnxruntime" in imported
    assert "True" in imported  # garbage is collected again
    assert imported & SLOW_TO_IMPORT == set()
