# Everything a developer runs. Each virtual environment is built on first use, and again when
# pyproject.toml or this file has changed.

# The first Python that is new enough; `make PYTHON=/path/to/python test` takes another.
ifndef PYTHON
PYTHON := $(firstword $(foreach p,python3.11 python3 python,$(shell \
	$(p) -c "import sys; sys.version_info >= (3, 11) and print('$(p)')" 2>/dev/null)))
endif

# Named exactly: a range could pull another build of torch, several gigabytes large.
TORCH ?= torch==2.13.0
JAX ?= jax==0.10.2
WORKERS ?= 2

DEMO := .venv-demo
TEST := .venv-test
BIN := $(TEST)/bin
PIP_INSTALL := -m pip --disable-pip-version-check install -qq
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all lint format bench corpus levels gpu clean python

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) \
		| while IFS='|' read -r name text; do printf '  make %-9s %s\n' "$$name" "$$text"; done

demo: $(DEMO)/.stamp  ## the main job on a real photograph, with NumPy as the only framework
	@$(DEMO)/bin/python examples/inpaint.py

test: $(TEST)/.stamp lint  ## format, lint, types, import contracts, tests
	$(PYTEST) -m "not slow"

test-all: $(TEST)/.stamp lint  ## the same with the slow tests
	$(PYTEST)

lint: $(TEST)/.stamp
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	@$(BIN)/lint-imports > $(TEST)/lint-imports.log || { cat $(TEST)/lint-imports.log; exit 1; }
	@tail -n 1 $(TEST)/lint-imports.log

format: $(TEST)/.stamp  ## rewrite the sources as the formatter and the linter want them
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format .

bench: $(TEST)/.stamp  ## the benchmarks; each prints ratios measured in one run
	@test -n "$(wildcard benchmarks/*.py)" || { echo "make bench: there is no benchmark in benchmarks/" >&2; exit 1; }
	@set -e; for bench in $(sort $(wildcard benchmarks/[a-z]*.py)); do $(BIN)/python $$bench; done

corpus: $(TEST)/.stamp  ## faults that the checker finds, and its false alarms; SAMPLE=20 takes 20 of each set
	$(BIN)/python benchmarks/checker/run.py $(if $(SAMPLE),--sample $(SAMPLE))

levels: $(TEST)/.stamp  ## how long the checker's quick and default level take for each example
	$(BIN)/python benchmarks/checker/levels.py

gpu: python  ## GPU tests and benchmarks in the environment of $(PYTHON); skipped where there is no GPU
	@PYTHONPATH=src $(PYTHON) benchmarks/gpu.py

clean:  ## remove the virtual environments, caches and what the examples left
	rm -rf $(DEMO) $(TEST) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(DEMO)/.stamp: pyproject.toml Makefile | python
	rm -rf $(DEMO)
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python $(PIP_INSTALL) --editable '.[examples]'
	@touch $@

$(TEST)/.stamp: pyproject.toml Makefile | python
	rm -rf $(TEST)
	$(PYTHON) -m venv $(TEST)
	$(BIN)/python $(PIP_INSTALL) $(TORCH) $(JAX) --editable '.[dev,torch,jax,triton]'
	@touch $@

python:
	@test -n "$(PYTHON)" || { echo "Opwright needs Python 3.11 or newer, and neither python3.11 nor python3 nor" \
		"python is one. Install it, or name it: make PYTHON=/path/to/python ..." >&2; exit 1; }
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "Opwright needs Python 3.11 or" \
		"newer; $(PYTHON) is not one, or cannot be run. Name another: make PYTHON=/path/to/python ..." >&2; exit 1; }
