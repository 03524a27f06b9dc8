# Two commands do all the set-up: `make demo` and `make test`. Torch is installed first and exactly (constraints.txt).
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-all check bench clean

demo: .venv/installed
	$(BIN)/proxyfl run

test: .venv/tests-installed check
	$(BIN)/python -m pytest -m "not slow"

test-all: .venv/tests-installed check
	$(BIN)/python -m pytest

check: .venv/tests-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/tests-installed
	$(BIN)/python benchmarks/bench.py

.venv/torch: constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt torch
	touch $@

.venv/installed: .venv/torch pyproject.toml
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

.venv/tests-installed: .venv/installed
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis
