# Every target sets up .venv by itself, and again only after pyproject.toml or constraints.txt changed.

PYTHON ?= python3
BIN := .venv/bin
# Python compiles what is used when it is first used; compiling all that is installed would nearly double the wait.
INSTALL := $(BIN)/python -m pip install --no-compile --constraint constraints.txt --editable

# Two training ranks share this machine: more threads each would make them fight for its cores.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test check bench docs clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/installed ## Train on two ranks, analyse the run, advise, measure the advice, write the report
	$(BIN)/ddp-advisor demo

test: .venv/installed-dev ## Run every test, two at a time
	$(BIN)/python -m pytest -n 2 --max-worker-restart 0

check: .venv/installed-dev ## Lint, format, types, import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/installed-dev ## Run the benchmarks and write benchmarks/results/
	$(BIN)/python -m benchmarks

docs: .venv/installed-dev ## Write docs/commands.md and docs/schema/ from the code
	mkdir -p docs/schema
	for name in report manifest prediction config estimate probe diagnosis; do $(BIN)/ddp-advisor schema $$name > docs/schema/$$name.json || exit; done
	$(BIN)/python -m typer advisor.cli utils docs --name ddp-advisor --output docs/commands.md

clean: ## Remove .venv and every cache; runs/ stays
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written last and an install starts from nothing, so an interrupted or outdated one leaves no trace.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	$(INSTALL) '.[all]'
	touch $@

.venv/installed-dev: .venv/installed
	rm $<
	$(INSTALL) '.[all,dev]'
	touch $< $@
