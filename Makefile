# make demo       the reference comparison, in a virtual environment of its own
# make test       format, lint, types, imports, tests (what CI runs)
# make test-long  the tests that take minutes, too
# make bench      benchmarks (with SimGrid beside them where its Python package is installed)
# make bench-plot PNG=growth.png   how the cost of the event engine grows
# make fuzz SECONDS=60 SEEDS=DIR   damaged and made-up files against every importer, so long each
# make fit-kernels TABLES=DIR   fit the kernel profiles of the catalog again
# Another interpreter: make PYTHON=python3.12 demo

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2

PY := $(VENV)/bin/python
MADE := $(VENV)/.made
DEV := $(VENV)/.made-dev
PIP := $(PY) -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-long bench bench-plot fuzz fit-kernels lint format types imports clean

help:
	@sed -n -e '/^$$/q' -e 's/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

# A new pyproject.toml makes a new environment: nothing stale stays in it.
$(MADE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "pcie-sim needs Python 3.11 or newer, and $(PYTHON) is not that. Try: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) -e .
	@touch $@

$(DEV): $(MADE)
	$(PIP) -e '.[dev]'
	@touch $@

demo: $(MADE)
	$(PY) -m pcie_sim demo

test: lint types imports
	$(PY) -m pytest -q -n $(JOBS) -m "not long and not bench"

test-long: lint types imports
	PCIE_SIM_LONG=1 $(PY) -m pytest -q -n $(JOBS) -m "not bench"

# One process: workers side by side would disturb the clock.
bench: $(DEV)
	$(PY) -m pytest -q -p no:xdist -m bench tests/bench

bench-plot: $(DEV)
	$(PY) tests/bench/plot_growth.py "$(or $(PNG),growth.png)"

fuzz: $(DEV)
	$(PY) tests/fuzz/importers.py --seconds $(or $(SECONDS),60) $(if $(SEEDS),--seeds "$(SEEDS)")

fit-kernels: $(DEV)
	@test -n "$(TABLES)" || { echo "say where the kernel tables are: make fit-kernels TABLES=DIR" >&2; exit 1; }
	$(PY) -m pcie_sim.calibration.kernels "$(TABLES)" --write

lint: $(DEV)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .

format: $(DEV)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

types: $(DEV)
	$(PY) -m mypy

imports: $(DEV)
	$(VENV)/bin/lint-imports --no-logo

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .benchmarks demo.png fuzz-crash-*.txt
	find pcie_sim tests -name __pycache__ -type d -prune -exec rm -rf {} +
