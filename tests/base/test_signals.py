"""Signals where Python would lose the exception that they raise."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from covnmt.base.signals import defer_signals

BEGIN = """
import signal, sys, time
from covnmt.base.signals import stop_on_signals
stop_on_signals()
"""
WAIT = """
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("stopped")
"""
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def run(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + code + WAIT],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=directory,
    )


@SIGNALS
def test_signal_during_an_import_stops_when_the_import_ends(number: int, tmp_path: Path) -> None:
    """Even where the importer catches what the signal would raise there."""
    (tmp_path / "interrupted.py").write_text(
        f"import signal\nsignal.raise_signal({int(number)})\nimported = True\n", "utf-8"
    )
    code = """
try:
    from interrupted import imported
except BaseException:
    imported = False
print(imported)
"""
    done = run(code, tmp_path)
    assert (done.stdout, done.stderr) == ("True\nstopped\n", "")


@SIGNALS
def test_signal_while_pydantic_builds_a_model_stops_afterwards(number: int, tmp_path: Path) -> None:
    """Its core would turn the exception into a SchemaError."""
    code = f"""
from pydantic import BaseModel
class Number(int):
    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        signal.raise_signal({int(number)})
        return handler(int)
class Model(BaseModel):
    number: Number
print(Model(number=1).number)
"""
    done = run(code, tmp_path)
    assert (done.stdout, done.stderr) == ("1\nstopped\n", "")


@SIGNALS
def test_signal_in_a_finalizer_is_not_lost(number: int, tmp_path: Path) -> None:
    code = f"""
class Finalized:
    def __del__(self):
        signal.raise_signal({int(number)})
        print("never printed")
Finalized()
"""
    done = run(code, tmp_path)
    assert (done.stdout, done.stderr) == ("stopped\n", "")


def test_other_errors_in_finalizers_are_reported_as_before(tmp_path: Path) -> None:
    code = """
class Finalized:
    def __del__(self):
        raise ValueError("in a finalizer")
Finalized()
signal.raise_signal(signal.SIGINT)
"""
    done = run(
        "try:" + code.replace("\n", "\n    ") + "\nexcept KeyboardInterrupt: sys.exit()\n", tmp_path
    )
    assert "ValueError: in a finalizer" in done.stderr


def test_ignored_sigint_stays_ignored(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + BEGIN
    code += "signal.raise_signal(signal.SIGINT); print('runs on')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.stdout, done.returncode) == ("runs on\n", 0)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("told", ["this thread", "another"])
def test_defer_signals_delivers_them_at_the_end_of_the_block(told: str, fails: bool) -> None:
    reached: list[str] = []
    with ThreadPoolExecutor(1) as another:
        another.submit(int).result()  # a thread begun within the block would hold signals back too

        def start() -> None:
            with defer_signals():
                if told == "another":
                    another.submit(signal.raise_signal, signal.SIGINT).result()
                else:
                    signal.raise_signal(signal.SIGINT)
                reached.append("the end of the block")
                if fails:
                    raise OSError
            reached.append("what follows")

        with pytest.raises(KeyboardInterrupt):
            start()
    assert reached == ["the end of the block"]
