# Development commands; `make` alone lists them. CI runs .ci/run, which does all of them.

VENV ?= .venv
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin

# Without bytecode every import of diffusers compiles it again.
export PYTHONDONTWRITEBYTECODE =
export TORCH

# Tools that look at the environment are installed beside it, so that they do not change it.
VENV_OF_TOOLS := mkdir -p build && python3 -m venv build/tools && build/tools/bin/python -m pip install --quiet

.DEFAULT_GOAL := help
.PHONY: help setup hooks format check test docs proofs pins bom audit clean

help:  ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Make the environment in .venv (another torch: make setup TORCH=torch==2.15.0)
	.ci/setup $(VENV)

hooks: | $(BIN)/python  ## Run ruff and mypy before each git commit
	$(BIN)/pre-commit install

format: | $(BIN)/python  ## Rewrite the source to the house format, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: | $(BIN)/python  ## Lint, types and architecture: a minute or two
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/architecture

test: | $(BIN)/python  ## All tests, proofs at a tenth of their size
	$(BIN)/python -m pytest -n auto --dist worksteal --durations 20

proofs: | $(BIN)/python  ## The proofs at their full size
	FORETUNE_PROOFS=full $(BIN)/python -m pytest -n auto --dist worksteal -m proof

docs: | $(BIN)/python  ## Build the documentation into site/; a broken link is an error
	$(BIN)/zensical build --strict --clean

pins: | $(BIN)/python  ## Write the versions installed in .venv to constraints/dev.txt
	.ci/pins $(VENV)

bom: | $(BIN)/python  ## Write a software bill of materials of .venv to build/foretune.cdx.json
	$(VENV_OF_TOOLS) cyclonedx-bom
	build/tools/bin/cyclonedx-py environment --output-reproducible --output-file build/foretune.cdx.json $(BIN)/python

audit: | $(BIN)/python  ## Compare the versions in .venv with known vulnerabilities; needs a network
	$(VENV_OF_TOOLS) pip-audit
	$(BIN)/python -m pip freeze --exclude-editable > build/installed.txt
	build/tools/bin/pip-audit --requirement build/installed.txt --no-deps --disable-pip

clean:  ## Remove what tools have cached and built; .venv stays
	rm -rf .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist site
	find src tests -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@echo "There is no environment in $(VENV). Run: make setup" >&2
	@exit 2
