# One environment, .venv, for every target. A stamp file records each installed lock, so a second
# call does nothing until the lock or pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check
TORCH := torch==2.13.0
# One file, one worker: fixtures are made once. There is a worker more than cores (tests/conftest.py).
PYTEST := $(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder
LOCKING := .lock
# Tests start dozens of processes, each of which would else compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE
FREEZE := freeze --all --exclude pip --exclude-editable | sed -e 's/+[a-z0-9.]*$$//' \
	-e "/^pytrec_eval/s/$$/ ; platform_machine != 'aarch64'/"

.DEFAULT_GOAL := help
.PHONY: help setup setup-development quickstart test test-fast test-nightly torture check lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/run.installed ## make .venv with the isthmus command in it

setup-development: .venv/test.installed ## the same, with everything the tests and checks need

quickstart: .venv/run.installed ## an encoder adapted to documentation strings, before and after, one to five minutes on 2 cores
	$(BIN)/isthmus quickstart

test: .venv/test.installed ## run the tests, as CI does, six minutes on 2 idle cores; some of them: make test TESTS=tests/golden
	$(PYTEST) $(TESTS)

test-fast: .venv/test.installed ## unit, golden and architecture, for the inner loop: three minutes
	$(PYTEST) --ignore=tests/end_to_end --ignore=tests/parity --ignore=tests/property

test-nightly: .venv/test.installed ## the slow and rare: two ranks, compilers, browser, cluster, a draw of torture, more random examples, bugs put into the code
	$(PYTEST) -m nightly
	$(PYTEST) -m 'not nightly' --hypothesis-profile nightly tests/property
	$(BIN)/python -m tests.breakages

torture: .venv/test.installed ## do the worst to everything for hours, resumable; some of it: make torture KINDS="kills fuzz"
	$(BIN)/python -m tests.torture $(KINDS)

check: .venv/test.installed ## lint, formatting, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The test lock is resolved first and constrains the run lock: a package in both has one version,
# and both fit into one .venv. torch comes first, so that nothing else chooses its build; the pin
# drops the build's suffix (+cpu), because only the machine that installs knows which it needs. Two
# packages have no wheel for ARM, and say so; a lock is installed without resolving it again.
lock: ## resolve the dependencies anew and write requirements/*.lock
	rm -rf $(LOCKING) && mkdir $(LOCKING)
	$(PYTHON) -m venv $(LOCKING)/test && $(PYTHON) -m venv $(LOCKING)/run
	$(LOCKING)/test/bin/pip install --quiet --quiet --upgrade pip
	$(LOCKING)/test/bin/pip install --quiet --quiet $(TORCH)
	$(LOCKING)/test/bin/pip install --quiet --quiet --editable '.[minilm,ann,cluster,hf,irds,milvus,onnx,report,st]' --group dev
	$(LOCKING)/test/bin/pip $(FREEZE) > $(LOCKING)/test.lock
	$(LOCKING)/run/bin/pip install --quiet --quiet --upgrade pip
	$(LOCKING)/run/bin/pip install --quiet --quiet $(TORCH)
	$(LOCKING)/run/bin/pip install --quiet --quiet --constraint $(LOCKING)/test.lock --editable '.[minilm,serve]' hatchling editables
	$(LOCKING)/run/bin/pip $(FREEZE) > $(LOCKING)/run.lock
	mv $(LOCKING)/test.lock $(LOCKING)/run.lock requirements/
	rm -rf $(LOCKING)

clean: ## remove the environment and the caches; runs/ stays
	rm -rf .venv $(LOCKING) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "isthmus needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv .venv

# An interrupted pip leaves packages without metadata, at which its next run fails: start anew then.
.venv/%.installed: requirements/%.lock pyproject.toml | .venv/bin/python
	@if [ -e .venv/installing ]; then $(PYTHON) -m venv --clear .venv; fi
	@touch .venv/installing
	@echo "Installing $$(grep -c == $<) pinned packages into .venv (once, some minutes) ..."
	@$(PIP) --no-deps --requirement $<
	@$(PIP) --no-deps --no-build-isolation --editable .
	@rm .venv/installing
	@touch $@
