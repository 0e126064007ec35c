# Everything here sets itself up: python3, make and apt are all it takes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test format lint types imports pytest clean

demo: $(VENV)/.ready
	$(BIN)/meshplan plan llama-3.1-70b --cluster 64xH100 --seq-len 8192 --global-batch 1024

test: format lint types imports pytest

format: $(VENV)/.ready
	$(BIN)/ruff format --check src tests tools

lint: $(VENV)/.ready
	$(BIN)/ruff check src tests tools

types: $(VENV)/.ready
	$(BIN)/mypy

imports: $(VENV)/.ready
	$(BIN)/lint-imports

pytest: $(VENV)/.ready
	$(BIN)/pytest -n 2

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable . --group dev
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
