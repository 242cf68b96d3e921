# Everything starts here. Needs Python 3.11 or newer and make; the rest is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Arguments for the tool behind a target: make test ARGS="-k lookup", make demo ARGS="--full"
ARGS ?=

.PHONY: help setup demo test lint format types proto proto-check docs bench bench-quick
help:
	@echo "make demo         what cache-aware routing gains, on simulated engines"
	@echo "make test         run every test"
	@echo "make setup        create $(VENV) with the pinned versions of constraints.txt"
	@echo "make lint         ruff check, ruff format --check, mypy"
	@echo "make format       let ruff mend what it can"
	@echo "make proto        regenerate the gRPC stubs from proto/"
	@echo "make docs         rewrite the README's tables from the code"
	@echo "make bench        measure the index and the server, in minutes; writes out/bench"
	@echo "make bench-quick  the same with few sizes, in less than one"

setup: $(READY)

# --no-build-isolation: the build tool comes from constraints.txt too, so nothing unpinned is fetched.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "no venv module: install your system's python3-venv package" >&2; rm -rf $(VENV); exit 1; }
	@echo "installing into $(VENV), which takes about a minute"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/inference-cache demo $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

lint: $(READY) types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(READY)
	$(BIN)/python scripts/generate_proto.py

proto-check: $(READY)
	$(BIN)/python scripts/generate_proto.py --check

docs: $(READY)
	$(BIN)/python scripts/generate_docs.py

bench: $(READY)
	$(BIN)/python -m loadtest.bench $(ARGS)

bench-quick: $(READY)
	$(BIN)/python -m loadtest.bench --quick $(ARGS)
