# Two commands do all the set-up: `make demo` and `make test`. Torch is installed first and exactly
# (constraints.txt). `make demo` installs what README's commands need.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
# The tests run on two cores, a file at a time.
PARALLEL ?= --numprocesses 2 --dist loadfile

.PHONY: demo hospitals test default-tests test-all check browser bench bench-figures reproduce \
  figures settings reference docs clean

demo: .venv/installed
	$(BIN)/proxyfl run experiments/examples/demo.toml
	@echo 'The command `proxyfl` is in $(BIN): type `source $(BIN)/activate` once to have it found.'

# Four real hospitals; their data are in the package.
hospitals: .venv/installed
	$(BIN)/proxyfl run experiments/examples/hospitals.toml --splits 5

# The types are checked on one core while the browser is fetched and the first tests run.
test: .venv/tests-installed
	$(MAKE) --jobs 2 check default-tests

default-tests: .venv/tests-installed browser
	@mkdir -p build; date +%s >build/test-began
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL)
	@awk -v now=$$(date +%s) '{ printf "%.2f\n", (now - $$1) / 60 }' build/test-began >build/test-minutes

test-all: .venv/tests-installed check browser
	$(BIN)/python -m pytest $(PARALLEL)

check: .venv/tests-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The report is tested in a real browser.
browser:
	@command -v chromium >/dev/null || { apt-get update -q && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium >/dev/null; } || \
	  echo "Install Chromium (Debian: apt-get install chromium) for the browser tests."

# Everything against its goal, in about ten minutes; writes build/bench.json.
bench: .venv/tests-installed
	$(BIN)/python -m benchmarks.bench

# The figures of the last `make bench` into README and docs.
bench-figures: .venv/tests-installed
	$(BIN)/python -m benchmarks.figures

# One experiment of the paper: make reproduce EXPERIMENT=mnist, or, on the embedded digits, with
# QUICK=1. The same line again continues it. Real data: PROXYFL_DATA=DIR, or fetched.
reproduce: .venv/tests-installed
	@test -n "$(EXPERIMENT)" || { $(BIN)/python -m reproduction --help; exit 2; }
	$(BIN)/python -m reproduction run $(EXPERIMENT) $(if $(QUICK),--quick)

# From the recorded results: no training.
figures: .venv/tests-installed
	$(BIN)/python -m reproduction figures
	$(BIN)/python -m reproduction page

# docs/reference/settings.md, from the settings' own documentation.
settings: .venv/installed
	$(BIN)/python docs/settings.py

# The site, in build/site: it opens from the disk, search included, and needs no network.
docs: .venv/docs-installed settings
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo 'Open build/site/index.html.'

# build/reference.md, from the docstrings of the public names.
reference: .venv/installed
	$(BIN)/python docs/reference.py

PIP = $(BIN)/pip install --disable-pip-version-check -c constraints.txt

.venv/torch: constraints.txt
	@echo '[1/2] PyTorch, the largest download'
	$(PYTHON) -m venv .venv
	$(PIP) torch
	@touch $@

.venv/installed: .venv/torch pyproject.toml
	@echo '[2/2] ProxyFL and what README needs'
	$(PIP) -e '.[images,tables,report,node]'
	@touch $@

.venv/tests-installed: .venv/installed
	@echo 'What the tests need'
	$(PIP) -e '.[test]'
	@touch $@

.venv/docs-installed: .venv/installed
	@echo 'What the documentation needs'
	$(PIP) -e '.[docs]'
	@touch $@

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis
