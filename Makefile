# Every target does its own set-up; the second time that costs nothing. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
.DEFAULT_GOAL := help

.PHONY: help run test lint check conformance conformance-judges bench bench-peers soak profile docs pictures format clean

help:           ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

$(VENV)/.run: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once) …"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Holdfast needs Python 3.11 or newer; set PYTHON=…")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --editable '.[postgres,redis]' 2>&1 | grep -v '^WARNING: Location' || true
	@$(BIN)/python -c 'import holdfast'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "adding the development tools (once) …"
	@$(BIN)/pip install --quiet --editable '.[dev]' 2>&1 | grep -v '^WARNING: Location' || true
	@$(BIN)/python -c 'import pytest, hypothesis'
	@touch $@

run: $(VENV)/.run   ## a gateway in front of three servers (ARGS=--check: kill one, see the session hold)
	@$(BIN)/holdfast demo $(ARGS)

# Bytecode is kept even where the environment says otherwise: the tests start hundreds of interpreters.
test: $(VENV)/.dev  ## the test suite (ARGS= goes to pytest; --hypothesis-profile=thorough for more examples)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(VENV)/.dev  ## format check, lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/basedpyright --level error
	@$(BIN)/lint-imports --no-cache

check: lint test    ## lint and test, what CI runs

conformance: $(VENV)/.dev  ## the official suite on client and gateway in both eras, and other projects' programs (TYPESCRIPT=path SUITE=path)
	@TYPESCRIPT=$(TYPESCRIPT) SUITE=$(SUITE) $(BIN)/python conformance/run.py $(ARGS)

conformance-judges: $(VENV)/.dev  ## other projects' suites over our links and our gateway (SDK=path FASTMCP=path PYDANTIC=path AGENTS=path TYPESCRIPT=path WAY=gateway)
	@$(BIN)/python -m conformance.judges.run $(if $(SDK),--sdk $(SDK)) $(if $(FASTMCP),--fastmcp $(FASTMCP)) $(if $(PYDANTIC),--pydantic $(PYDANTIC)) $(if $(AGENTS),--agents $(AGENTS)) $(if $(TYPESCRIPT),--typescript $(TYPESCRIPT)) $(if $(WAY),--way $(WAY))

bench-peers: $(VENV)/.dev  ## our gateway beside its peers, each in an environment of its own (minutes)
	@$(BIN)/python -m benchmarks.peers $(ARGS)

soak: $(VENV)/.dev  ## mixed clients, dying backends, a dying gateway (MINUTES=30)
	@MINUTES=$(or $(MINUTES),30) $(BIN)/python -m benchmarks.soak

profile: $(VENV)/.dev  ## where the microseconds of a call through the gateway go
	@$(BIN)/python -m benchmarks.profile_gateway

docs: $(VENV)/.dev  ## write the tables of the code into the docs
	@$(BIN)/python docs/tables.py

pictures: $(VENV)/.dev  ## draw the pictures of the README (ARGS=--recording: record the demo's check, too)
	@$(BIN)/python docs/pictures.py $(ARGS)

bench: $(VENV)/.dev ## benchmarks; rewrites the tables in docs/benchmarks.md
	@$(BIN)/python -m benchmarks $(ARGS)

format: $(VENV)/.dev ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

clean:              ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
