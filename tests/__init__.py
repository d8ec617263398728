"""Tests of covnmt, which find the same surroundings on every machine."""

import os

# A terminal, or a service that runs tests, may have set what rich and typer go by.
for _name in ("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TERMINAL_WIDTH"):
    os.environ.pop(_name, None)
os.environ |= {"TERM": "xterm", "COLUMNS": "80", "TTY_COMPATIBLE": "", "TTY_INTERACTIVE": ""}

# Servers of the tests are on this machine, whatever stands between it and others.
os.environ["no_proxy"] = "127.0.0.1,localhost"
