# Everything runs in .venv, which .ci/setup.sh makes and which is left alone while pyproject.toml and constraints.txt stay
# as they are. Paths are relative, so that a clone may lie in a path with spaces.

.DEFAULT_GOAL := help
.PHONY: help demo test test-long lint types bench chaos docs clean clean-demo

SHELL := /bin/sh
PORT ?= 8080
TESTS ?= tests
SEED ?= 1
ROUNDS ?= 10
export PYTHON

# Variables of the caller's shell that would steer Python from outside.
RUN := env -u PYTHONPATH -u PYTHONHOME -u PYTHONDONTWRITEBYTECODE -u VIRTUAL_ENV
TYPED := airflow_raytpu bench

help:
	@echo "make demo        train, infer and serve on a simulated TPU slice under a real Airflow (PORT=$(PORT))"
	@echo "make test        the whole test suite (TESTS=tests/unit for a part)"
	@echo "make test-long   what is left out of it: Airflow's own processes killed one by one, backfills, a real PostgreSQL"
	@echo "make lint        ruff, mypy, import contracts"
	@echo "make docs        the documentation, as site/"
	@echo "make bench       measure; writes bench/results/summary.json"
	@echo "make chaos       real work under faults at drawn moments (SEED=$(SEED) ROUNDS=$(ROUNDS), ONLY=7 for one round)"
	@echo "make clean-demo  end and remove what a demo left"
	@echo "make clean       clean-demo, and remove .venv and caches"
	@echo "PYTHON=...       the Python to use (3.11 to 3.13)"

demo:
	@sh .ci/setup.sh
	@exec $(RUN) .venv/bin/airflow-raytpu demo --port $(PORT) $(if $(EXIT),--exit)

test:
	@sh .ci/setup.sh test
	@exec $(RUN) .venv/bin/python .ci/tests.py $(TESTS)

test-long:
	@sh .ci/setup.sh test
	@exec $(RUN) .venv/bin/python -m pytest -m long $(TESTS)

lint:
	@sh .ci/setup.sh test lint
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports --config setup.cfg
	@$(MAKE) --no-print-directory types

types:
	.venv/bin/mypy $(TYPED)

docs:
	@sh .ci/setup.sh docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

bench:
	@sh .ci/setup.sh test
	@if [ -f bench/__main__.py ]; then exec $(RUN) .venv/bin/python -m bench; else echo "No benchmark is written yet."; fi

chaos:
	@sh .ci/setup.sh test
	@exec $(RUN) .venv/bin/python -m tests.chaos --seed $(SEED) --rounds $(ROUNDS) $(foreach round,$(ONLY),--only $(round))

clean-demo:
	@if [ -x .venv/bin/airflow-raytpu ]; then exec $(RUN) .venv/bin/airflow-raytpu demo --clean; else rm -rf .demo; fi

clean: clean-demo
	rm -rf .venv site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
