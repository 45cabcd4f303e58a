# Everything works from a fresh clone with Python 3.11 or newer and make.
.DEFAULT_GOAL := help
BIN := .venv/bin
# Two processes for each core, up to four, because many tests wait for other processes.
PROCESSES := $(shell python3 -c 'import os; print(min(4, 2 * (os.cpu_count() or 1)))')
# Tests are distributed one by one, but those that share something of their module stay together (tests/support/tiers.py).
PYTEST := $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadgroup --no-loadscope-reorder
TEST := $(PYTEST) -m "not long" --cpu-seconds=.cache/cpu-seconds.json
# Some machines forbid compiled files, and then each of the thousands of processes of the tests compiles everything again.
export PYTHONDONTWRITEBYTECODE :=
# Threads of tests come and go; what each of them frees is used by the others. Blocks of megabytes that a test frees are
# given back to the system, instead of raising the size from which glibc does so.
export MALLOC_ARENA_MAX := 2
export MALLOC_MMAP_THRESHOLD_ := 131072
export MALLOC_TRIM_THRESHOLD_ := 131072

.PHONY: help setup system services all-services run web quick test test-all check format lint types bench bench-long chaos \
	screenshots docs requirements clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: ## create the virtual environment
	@scripts/setup.sh

system:
	@scripts/system_packages.sh

services: setup system ## install what `make test` needs from the system: PostgreSQL, Chromium, bubblewrap

all-services: services ## install what `make test-all` needs besides: MariaDB, public MCP servers, MCP's conformance suite
	@scripts/system_packages.sh --all
	@scripts/public_servers.sh

run: setup ## see Ferrule work
	@$(BIN)/python examples/tour.py
	@$(BIN)/python examples/questions.py

# Without Node, its package goes into the virtual environment.
web: $(if $(shell command -v npm),,setup) ## build the web page of the server (needs Node, or takes it from PyPI)
	@scripts/web.sh

quick: setup ## unit tests: no process, no network, no service (a minute)
	@$(PYTEST) --numprocesses auto -m unit

test: services web ## unit and integration tests: every promise (5 to 10 minutes)
	@$(TEST)

test-all: test all-services ## the same, then what takes long: releases, benchmarks, chaos, conformance, Ray, MySQL, many examples
	@$(PYTEST) -m "long or hypothesis" --hypothesis-profile=many
	@$(BIN)/python scripts/test_budget.py

check: services web lint types ## format, lint, types, `make test`: must pass before a change is merged
	@$(TEST)

format: setup ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: setup ## check format and style
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: setup ## check types
	@$(BIN)/mypy

screenshots: setup web ## photograph every view of the web page into screenshots/, and record a terminal for the README
	@$(BIN)/python -m tests.web.screenshots
	@$(BIN)/python scripts/terminal_recording.py

docs: setup ## write the pages that are generated from the code, and build the manual as a site into site/
	@$(BIN)/python scripts/cli_page.py
	@$(BIN)/python scripts/tools_page.py
	@$(BIN)/python scripts/reference_pages.py
	@$(BIN)/python -m scripts.benchmarks_page
	@$(BIN)/python scripts/licences_page.py
	@$(BIN)/python scripts/site.py

bench: setup web ## measure Ferrule, and other libraries for comparison
	@$(BIN)/python benchmarks/run.py $(if $(ARGS),$(ARGS),--summary docs/benchmarks.json)

bench-long: bench ## the same, and the server under load, a cluster, and batches with killed workers
	@$(BIN)/python -m benchmarks.server_load --calls 300000
	@$(BIN)/python -m benchmarks.cluster
	@$(BIN)/python -m benchmarks.batch_scale --folder bench-results/batch

chaos: setup ## kill processes, fill disks, damage files: check the promises of docs/reliability.md
	@$(BIN)/python chaos/run.py $(ARGS)

requirements: setup ## pin the newest versions of all dependencies
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --all-extras --group dev pyproject.toml -o requirements.txt

clean: ## remove everything that can be created again
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist bench-venvs bench-results .servers web/node_modules src/ferrule/web/static screenshots site .cache
