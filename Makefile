# Everything works from a fresh clone with Python 3.11 or newer and make.
.DEFAULT_GOAL := help
BIN := .venv/bin
# The files of tests are shared out among processes; the tests of one file stay together.
TOGETHER := --numprocesses auto --maxprocesses 4 --dist loadfile

.PHONY: help setup run test check format lint types bench docs requirements clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: ## make the virtual environment
	@scripts/setup.sh

run: setup ## see Ferrule work
	@$(BIN)/python examples/tour.py
	@$(BIN)/python examples/questions.py

test: ## run all tests
	@scripts/setup.sh --with-services
	@$(BIN)/python -m pytest $(TOGETHER)

check: ## format, lint, types, tests
	@scripts/setup.sh --with-services
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest $(TOGETHER)

format: setup ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: setup ## write the pages that are made from the code
	@$(BIN)/python scripts/cli_page.py
	@$(BIN)/python scripts/tools_page.py

bench: setup ## measure Ferrule beside its peers (installs them in environments of their own)
	@$(BIN)/python benchmarks/run.py $(ARGS)

requirements: setup ## pin the newest versions of everything
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --all-extras --group dev pyproject.toml -o requirements.txt

clean: ## remove what can be made again
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist bench-venvs bench-results .servers
