# Two commands: `make demo` and `make test`. Each sets up .venv first, once; the demo needs less.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo

.PHONY: demo test test-fast check docs setup clean

demo: $(DEMO_STAMP)
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
	PYTHON='$(PYTHON)' scripts/setup $(VENV) dev,gpu,serve,cluster,smt,train
	touch $(STAMP) $(DEMO_STAMP)

$(DEMO_STAMP): pyproject.toml constraints.txt scripts/setup
	PYTHON='$(PYTHON)' scripts/setup $(VENV) train
	touch $(DEMO_STAMP)

clean:
	rm -rf $(VENV) demo .mypy_cache .pytest_cache .ruff_cache
