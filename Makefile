# The whole interface of the project; `make help` lists it.
SHELL := /bin/sh
.DEFAULT_GOAL := help

export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv

PYTHON ?= python3
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
ARGS ?=
WORKERS ?= 2

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.uv/bin/uv:
	$(PYTHON) -m venv .uv
	.uv/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9'

.venv/.locked: uv.lock pyproject.toml | $(filter .uv/bin/uv,$(UV))
	$(UV) sync --locked --quiet
	@touch $@

setup: .venv/.locked ## virtual environment with the locked dependencies

up: setup ## set up, then run the Vessel: make up ARGS='--bind 127.0.0.1:8123 --data /some/dir'
	exec .venv/bin/lychd up $(ARGS)

test: setup ## set up, then run every test
	.venv/bin/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

lint: setup ## style, types, import direction, migrations, system checks: what CI runs
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/basedpyright
	.venv/bin/lint-imports
	.venv/bin/python -m tests.support.manage makemigrations --check --dry-run
	.venv/bin/python -m tests.support.manage check

format: setup ## format the code
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

contracts: setup ## contracts of the specification that no test is marked with
	.venv/bin/python -m tests.support.contracts

crash: setup ## the crash sweep: a Vessel killed at each of its SQL statements (docs/crash-sweep.md); ARGS='--every 10'
	.venv/bin/python -m tests.crash $(ARGS)

bench: setup ## the benchmarks: a table of figures and ratios, JSON in bench/results
	.venv/bin/python -m bench $(ARGS)

.PHONY: help setup up test lint format contracts crash bench
