# Two commands: `make demo` and `make test`. Each sets up .venv first, once.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

.PHONY: demo test test-fast check docs setup clean

demo: $(STAMP)
	$(VENV)/bin/covnmt demo demo

test: $(STAMP)
	scripts/check
	scripts/test

test-fast: $(STAMP)
	scripts/test -m "not slow"

check: $(STAMP)
	scripts/check

docs: $(STAMP)
	scripts/docs

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt scripts/setup
	PYTHON='$(PYTHON)' scripts/setup $(VENV)

clean:
	rm -rf $(VENV) demo .mypy_cache .pytest_cache .ruff_cache
