# Two commands are enough on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= demo

# One thread per process: the tests and the demo run one process per core.
export OMP_NUM_THREADS := 1

.PHONY: demo test fuzz bench setup lint clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   train a network three ways and an ensemble, compare them, write $(OUT)/index.html"
	@echo "make test   lint, types and the whole test suite"
	@echo "make fuzz   every case of the fuzz tests, of which make test runs a tenth"
	@echo "make bench  measure speed and memory (half an hour on a quiet machine), fill in docs/speed.md"
	@echo "make setup  only create .venv and install"

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "mipl needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/mipl demo --out $(OUT)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pre-commit validate-config

test: lint
	$(BIN)/python -m pytest -n 2 --durations=10

fuzz: setup
	MIPL_FUZZ=full $(BIN)/python -m pytest -n 2 tests/fuzz

# Each side of a comparison has its own number of threads; BENCH="--only loading --raw DIR" and so on.
bench: setup
	env -u OMP_NUM_THREADS $(BIN)/python benchmarks/bench.py $(BENCH)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis demo
