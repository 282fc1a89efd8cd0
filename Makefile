# Two commands set everything up from nothing: `make demo` and `make test`.
#   make demo    install, fetch the assets, measure the demo suite, build its page
#   make test    install with the test extras, run every check
#   make perf    measure speed against plain PyTorch (JSON)
#   make clean   remove the environment and what runs left behind
# PYTHON=python3.12 make ... chooses another interpreter (3.11 or newer).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$p; break; fi; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --no-input --disable-pip-version-check -c constraints.txt
ASSETS := smollm2-135m probe-texts minilm
DEMO_RESULTS := results/demo
DEMO_SITE := site/demo
WORKERS ?= 2

.PHONY: help demo test perf clean

help:
	@sed -n '2,5s/^#   //p' Makefile

demo: $(VENV)/.installed
	@$(BIN)/latentbench assets pull $(ASSETS)
	@$(BIN)/latentbench run demo --out $(DEMO_RESULTS)
	@$(BIN)/latentbench leaderboard build $(DEMO_RESULTS) --out $(DEMO_SITE)
	@echo "The leaderboard is here: file://$(CURDIR)/$(DEMO_SITE)/index.html"

test: $(VENV)/.installed-test
	@echo "== ruff check" && $(BIN)/ruff check .
	@echo "== ruff format" && $(BIN)/ruff format --check .
	@echo "== mypy" && $(BIN)/mypy
	@echo "== lint-imports" && $(BIN)/lint-imports
	@echo "== assets" && $(BIN)/latentbench assets pull $(ASSETS)
	@echo "== pytest" && $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

perf: $(VENV)/.installed-test
	@$(BIN)/latentbench assets pull $(ASSETS) >&2
	@$(BIN)/python tests/perf/run.py

clean:
	rm -rf $(VENV) $(DEMO_RESULTS) $(DEMO_SITE) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@if [ -z "$(PYTHON)" ] || ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		echo "latentbench needs Python 3.11 or newer; found '$(PYTHON)'. Name one: PYTHON=/path/to/python3.11 make" >&2; \
		exit 1; fi
	@echo "making $(VENV) with $(PYTHON) ..."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing (a few minutes the first time) ..."
	@$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt tests/parity/natives.txt | $(VENV)/bin/python
	@echo "installing with test extras (a few minutes the first time) ..."
	@$(PIP) -e '.[test]'
	@rm -rf $(VENV)/natives && $(PIP) --no-deps --target $(VENV)/natives -r tests/parity/natives.txt
	@touch $@ $(VENV)/.installed
