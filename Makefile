# Development commands; `make` alone lists them. CI runs .ci/run, which does all of them.

VENV ?= .venv
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin

# Of the container. A value of `.env`, which git ignores, wins over the example's, and one after the target over both.
include .env.example
-include .env
# What a container needs to see the GPUs.
DEVICES_cuda := --gpus all
DEVICES_rocm := --device=/dev/kfd --device=/dev/dri --group-add video --group-add render
DEVICES = $(or $(DEVICES_$(ACCELERATOR)),$(error ACCELERATOR=$(ACCELERATOR) is not valid: use cuda or rocm))

# Without bytecode every import of diffusers compiles it again.
export PYTHONDONTWRITEBYTECODE =
export TORCH

# Tools that look at the environment are installed beside it, so that they do not change it.
VENV_OF_TOOLS := mkdir -p build && python3 -m venv build/tools && build/tools/bin/python -m pip install --quiet

.DEFAULT_GOAL := help
.PHONY: help setup hooks format check test docs planner proofs gpu_proofs pins bom audit clean
.PHONY: build_docker launch_docker build_and_launch_docker exec_docker download_assets run_tests

help:  ## List these commands
	@awk -F ':.*## ' '/^[a-z_]+:.*## /{printf "  make %-24s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Make the environment in .venv (another torch: make setup TORCH=torch==2.15.0)
	.ci/setup $(VENV)

hooks: | $(BIN)/python  ## Check format, lint, types and fast tests before each git commit
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

gpu_proofs: | $(BIN)/python  ## On a machine with a GPU: prove what needs one (a dry run: make gpu_proofs DRY_RUN=1)
	$(BIN)/python -m tools.gpu_proofs $(if $(DRY_RUN),--dry-run)

docs: | $(BIN)/python  ## Build the documentation into site/; a broken link is an error
	$(BIN)/zensical build --strict --clean

planner: docs  ## Add the page that plans in a browser to site/ (downloads Pyodide; computes 100 answers, some minutes)
	$(BIN)/python -m tools.browser_planner site

pins: | $(BIN)/python  ## Write the versions installed in .venv to constraints/dev.txt
	.ci/pins $(VENV)

run_tests: test  ## The same as `make test`; SKIP_GPU_TESTS=1 leaves out what needs a GPU

download_assets:  ## Download the benchmark's models and data (about 300 GB; a dry run: foretune fetch --benchmark --dry-run)
	$(if $(wildcard $(BIN)/foretune),$(BIN)/foretune,foretune) fetch --benchmark

build_docker:  ## Build the container image (AMD GPUs: ACCELERATOR=rocm)
	docker build --build-arg ACCELERATOR=$(ACCELERATOR) --tag $(IMAGE_NAME) .

launch_docker:  ## Start the container in the background
	docker run --detach --rm --init --user $$(id -u):$$(id -g) $(DEVICES) --shm-size 16g --volume "$(VOLUME_MOUNT)" \
		--name $(CONTAINER_NAME) $(IMAGE_NAME) sleep infinity

build_and_launch_docker: build_docker launch_docker  ## Build the image and start the container

exec_docker:  ## Open a shell in the running container
	docker exec --interactive --tty $(CONTAINER_NAME) bash

bom: | $(BIN)/python  ## Write a software bill of materials of .venv to build/foretune.cdx.json
	$(VENV_OF_TOOLS) cyclonedx-bom
	build/tools/bin/cyclonedx-py environment --output-reproducible --output-file build/foretune.cdx.json $(BIN)/python

audit: | $(BIN)/python  ## Compare the versions in .venv with known vulnerabilities; needs a network
	$(VENV_OF_TOOLS) pip-audit
	@.ci/audit build/tools/bin/pip-audit $(BIN)/python

clean:  ## Remove what tools have cached and built; .venv stays
	rm -rf .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist site
	find src tests -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@echo "There is no environment in $(VENV). Run: make setup" >&2
	@exit 2
