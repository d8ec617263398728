"""`covnmt translate` in conversation: with a person at a terminal, or with another program."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from covnmt.inference.model import Model

TIMEOUT_SECONDS = 300  # a process that hangs is killed, and its output is then empty


@contextmanager
def translating(*options: object, stdin: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """Run `covnmt translate` in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "covnmt", "translate", *map(str, options)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    watchdog = threading.Timer(TIMEOUT_SECONDS, process.kill)
    watchdog.start()
    try:
        with process:
            yield process
    finally:
        process.kill()
        watchdog.cancel()


def close_input(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Close its input; return its exit code and the rest of its output."""
    out, err = process.communicate()
    return process.returncode, out, err


def write(stream: IO[str] | None, text: str) -> None:
    assert stream
    stream.write(text)
    stream.flush()


def read_lines(process: subprocess.Popen[str], lines: int = 1) -> list[str]:
    assert process.stdout
    return [process.stdout.readline().rstrip("\n") for _ in range(lines)]


OPTIONS = ["", "--json", "--no-split-sentences", "--workers=2", "--nbest=2"]


@pytest.mark.parametrize("option", OPTIONS)
def test_every_line_is_answered_before_the_next(option: str) -> None:
    lines = ["これは寺です。", "", "京都は古い都です。", "彼は歌人です。"]
    wanted = Model.load("ja-en").translate(lines)
    several = option == "--nbest=2"
    with translating("--model", "ja-en", *filter(None, [option])) as process:
        for number, (line, translation) in enumerate(zip(lines, wanted, strict=True)):
            write(process.stdin, f"{line}\n")
            [answer, *_] = read_lines(process, 1 + (several and line != ""))
            if option == "--json":
                assert json.loads(answer)["text"] == translation.text
            elif several:
                assert answer.startswith(f"{number} ||| {translation.text} |||")
            else:
                assert answer == translation.text
        assert close_input(process) == (0, "", "")


def test_a_trained_model_answers_line_by_line(
    tiny_model: Path, lines: list[str], translator: Model
) -> None:
    with translating("--model", tiny_model, "--device", "cpu") as process:
        for line in lines[:3]:
            write(process.stdin, f"{line}\n")
            [wanted] = translator.translate([line])
            assert read_lines(process) == [wanted.text]
        assert close_input(process) == (0, "", "")


def test_several_processes_answer_a_burst_and_then_single_lines() -> None:
    """Finished lines are printed before the input ends."""
    lines = [f"この寺は{1600 + number}年に建てられた。" for number in range(40)]
    wanted = [each.text for each in Model.load("ja-en").translate(lines)]
    with translating("--model", "ja-en", "--workers", 2, "--batch-size", 1) as process:
        write(process.stdin, "".join(f"{line}\n" for line in lines))
        assert read_lines(process, 40) == wanted
        for number in (3, 5):
            write(process.stdin, f"{lines[number]}\n")
            assert read_lines(process) == [wanted[number]]
        assert close_input(process) == (0, "", "")


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_the_command_without_a_message(workers: int) -> None:
    options = ("--model", "ja-en", "--workers", workers, "--batch-size", 1)
    with translating(*options) as process:
        write(process.stdin, "これは寺です。\n" * 40)
        read_lines(process, 40)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert close_input(process)[1:] == ("", "")


def test_ctrl_d_at_a_terminal_ends_a_line_or_the_input() -> None:
    """Within a line Ctrl-D sends what is typed; at its beginning it ends the input."""
    keyboard, terminal = os.openpty()
    with translating("--model", "ja-en", stdin=terminal) as process:
        os.close(terminal)
        os.write(keyboard, "これは寺です。\n".encode())
        assert read_lines(process) == ["This is a temple."]
        os.write(keyboard, "これは寺です。".encode() + b"\x04" + b"\x04")
        assert close_input(process) == (0, "This is a temple.\n", "")
    os.close(keyboard)
