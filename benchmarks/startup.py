"""How long do commands take to start: wall time, CPU time and memory.

    python benchmarks/startup.py

Every command runs `--repeats` times, in turns, so that other work on the machine affects all alike.
CPU time hardly depends on other work. `libraries` only imports what one line of a translation
needs from other packages: no command can take less.
"""

import os
import subprocess
import sys
import time

from harness import argument_parser, argument_values, save, summary

MODEL = "ja-en"
LINE = "この寺は京都市の北にある。\n"
COMMANDS = {
    "python": ["-c", "pass"],
    "libraries": ["-c", "import numpy, onnxruntime, pydantic, rich, sentencepiece, typer"],
    "--help": ["-m", "covnmt", "--help"],
    "translate": ["-m", "covnmt", "translate", "--model", MODEL],
}


def run(arguments: list[str]) -> dict[str, float]:
    """Run Python once; return its seconds, CPU seconds and largest memory in MiB."""
    began = time.monotonic()
    pipe = subprocess.PIPE
    # an installed package has compiled files
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
    assert process.stdin
    assert process.stdout
    process.stdin.write(LINE.encode())
    process.stdin.close()
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{arguments}: exit status {os.waitstatus_to_exitcode(status)}")
    return {
        "seconds": time.monotonic() - began,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "mebibytes": usage.ru_maxrss / 1024,
    }


def main() -> None:
    """Measure all commands and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=20, help="runs of every command")
    arguments = parser.parse_args()
    for command in COMMANDS.values():
        run(command)  # files come from memory from now on
    runs = [
        {name: run(command) for name, command in COMMANDS.items()} for _ in range(arguments.repeats)
    ]
    rows = {
        name: {key: summary([row[name][key] for row in runs]) for key in runs[0][name]}
        for name in COMMANDS
    }
    for name, row in rows.items():
        medians = {key: round(values["median"], 3) for key, values in row.items()}
        print(f"{name:10}", medians)
    save("startup", {"settings": argument_values(arguments), "commands": rows}, arguments)


if __name__ == "__main__":
    main()
