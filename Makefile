# Every target does its own set-up. A fresh clone on Debian 12 or later needs nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
unexport PYTHONDONTWRITEBYTECODE # the tests start some hundred processes: each would compile all modules anew, 0.4 s

BIN := .venv/bin
STAMP := .venv/.shadowrelay-setup
LOCK := env -u PIP_FIND_LINKS $(BIN)/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe \
	--no-emit-find-links --no-emit-index-url --no-emit-trusted-host

.PHONY: help setup demo test test-all test-lab test-distributions lint types check simulate bench package pictures lock format clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(STAMP): requirements/dev.txt requirements/setup.sh pyproject.toml
	@./requirements/setup.sh

setup: $(STAMP) ## .venv with the locked dependencies; Debian packages by apt-get when root
	@./requirements/setup.sh

demo: ## three nodes, real mail, a destroyed server, the balance; about a minute
	@./requirements/setup.sh demo
	@$(BIN)/shadowrelay demo

test: setup lint types ## what every change must pass: lint, types, and the tests that take seconds; many of those wait, so five at once
	@$(BIN)/python -m pytest -n 5 --dist loadscope --no-loadscope-reorder

test-all: setup lint types ## everything, the long crash, ownership and interop runs too
	@./requirements/setup.sh interop
	@$(BIN)/python -m pytest -m ""

test-lab: setup ## with Docker: the lab in containers, 300 messages, a node killed and wiped while they flow; minutes
	@trap '$(BIN)/shadowrelay lab down >/dev/null' EXIT; SHADOWRELAY_LAB=1 $(BIN)/python -m pytest -m "" -s tests/lab/test_in_containers.py

RELEASES ?=
test-distributions: setup ## with Docker: Debian releases from nothing, as root and as others; RELEASES="bookworm trixie"; an hour or two
	@$(BIN)/python -m tests.distributions.cluster
	@$(BIN)/python -m tests.distributions.run --write $(RELEASES:%=--release %)

lint: setup ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## mypy --strict
	@$(BIN)/mypy --strict shadowrelay

check: setup ## the configurations in configs/ are valid; for any user, so their directories are not tried
	@export SHADOWRELAY_SERVER__DATA_DIRECTORY="$$PWD/tmp/check" SHADOWRELAY_ADMIN__TOKEN_FILE="$$PWD/tmp/check/token"; \
	for file in configs/*.toml; do $(BIN)/shadowrelay check --config "$$file"; done

SEEDS ?= 1-100
simulate: setup ## whole nodes in virtual time, SEEDS=1-2000 NODES=3-4 MESSAGES=200, two worlds at once; progress, and what they were
	@$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) $(if $(NODES),--nodes $(NODES)) $(if $(MESSAGES),--messages $(MESSAGES)) $(if $(MACHINES),--machines) --jobs 2

bench: setup ## messages per second against Debian's Postfix, in one run
	@./requirements/setup.sh interop
	@$(BIN)/python benchmarks/relay.py

package: setup ## a wheel, and a package for the Debian that this is, in dist/
	@./packaging/build.sh

pictures: setup ## the pictures of console and report in docs/pictures, by Debian's chromium
	@$(BIN)/python -m tests.console.pictures

format: setup ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: setup ## make the locked requirements anew from pyproject.toml
	@$(LOCK) --output-file requirements/base.txt pyproject.toml
	@$(LOCK) --only-build-deps --build-deps-for wheel --constraint requirements/base.txt --output-file requirements/build.txt pyproject.toml
	@$(LOCK) --extra spark --constraint requirements/base.txt --output-file requirements/spark.txt pyproject.toml
	@$(LOCK) --extra dev --extra spark --constraint requirements/spark.txt --output-file requirements/dev.txt pyproject.toml

clean: ## remove what the targets made
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .demo build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
