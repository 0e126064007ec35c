# Everything here sets itself up: python3 (3.11 or later), make and apt are all it takes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: demo test test-frameworks format lint types imports pytest explore browser docs clean

demo: $(VENV)/.installed
	$(BIN)/meshplan plan llama-3.1-70b --cluster 64xH100 --seq-len 8192 --global-batch 1024
	@echo; echo 'see it move: $(BIN)/meshplan serve'

test: format lint types imports pytest

format: $(VENV)/.ready
	$(BIN)/ruff format --check src tests tools

lint: $(VENV)/.ready
	$(BIN)/ruff check src tests tools

types: $(VENV)/.ready
	$(BIN)/mypy

imports: $(VENV)/.ready
	$(BIN)/lint-imports

pytest: $(VENV)/.ready browser
	$(BIN)/pytest -n $(JOBS)

# New examples for the property tests at each call; `make test` tries the same ones every time.
explore: $(VENV)/.ready
	$(BIN)/pytest -n $(JOBS) --hypothesis-profile=explore $$(grep -rl @given --include='test_*.py' tests)

# The frameworks' own validators judge what we emit and refuse; CPU builds, no GPU needed.
FRAMEWORKS := .venv-frameworks
F_REQUIREMENTS := $(wildcard tools/frameworks/requirements*.txt)

test-frameworks: $(VENV)/.ready $(FRAMEWORKS)/.ready
	MESHPLAN_FRAMEWORKS=$(FRAMEWORKS)/bin/python $(BIN)/pytest -n $(JOBS) -rP tests/frameworks

$(FRAMEWORKS)/.ready: $(F_REQUIREMENTS) | $(VENV)/bin/python
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/pip install --quiet --upgrade 'pip>=25.1'
	$(FRAMEWORKS)/bin/pip install --quiet --requirement tools/frameworks/requirements.txt
	$(FRAMEWORKS)/bin/pip install --quiet --ignore-requires-python --no-deps \
	  --requirement tools/frameworks/requirements-no-deps.txt
	touch $@

# Tests of the web app need a browser and Chinese glyphs; without them they are skipped and say so.
browser:
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || \
	  { apt-get update -qq && apt-get install -y -qq chromium fonts-noto-cjk; } || \
	  echo "no browser could be installed: tests of the web app will be skipped"

docs: $(VENV)/.ready
	$(BIN)/python tools/compute_guide.py
	$(BIN)/python tools/generate_docs.py

# Debian ships python3 without the module that fills a new environment with pip.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "meshplan needs Python 3.11 or later; try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { s=; [ "$$(id -u)" = 0 ] || s=sudo; $$s apt-get update && $$s apt-get install -y python3-venv; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'

# What it takes to run meshplan, and on top of it what it takes to work on it.
$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.ready: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable . --group dev
	touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) $(FRAMEWORKS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
