# Every target makes its own environment: Python 3.11+ and PyPI are all it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo quick test test-all test-long spark-versions spark-version-today this-python bounds bounds-all soak histories kills large lint clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    the main job: a star schema loaded from a stream, checked and timed against Spark's own join"
	@echo "make quick   tests of seconds, without a JVM or servers: under two minutes"
	@echo "make test    everything that a change could break"
	@echo "make test-all  also whole programs, kills at random and more cases (test-long)"
	@echo "make spark-versions  joins, parking, sinks, kills and Connect on each older PySpark: RECORD=1 keeps the result"
	@echo "make this-python  the same on the installed PySpark, and make quick: for another Python, PYTHON= and VENV="
	@echo "make bounds  kernels that check bounds: structures, each join, some model and fuzz; bounds-all takes longer"
	@echo "make soak    model and fuzz for hours: STEPS, TUPLES, SEED"
	@echo "make histories  HISTORIES of Delta and Iceberg tables at random, followed and compared: SEED, SECONDS"
	@echo "make kills   KILLS on a cluster, and of a driver whose relation changes as a stream: SEED"
	@echo "make large   ten million rows in one micro-batch, into each sink: ROWS"
	@echo "make lint    ruff, mypy --strict, import layers"
	@echo "make clean   remove the environment and everything that was made"

demo: $(STAMP)
	$(BIN)/semistream demo

quick: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not long and not spark and not server" tests lab/tests

# Tests that take the fixture "spark" share one session, so loadgroup keeps them in one of the two processes.
# BEFORE: skip tests that would start later, in seconds since 1970.
LIMITS = $(if $(SHARE),--share $(SHARE)) $(if $(BEFORE),--before $(BEFORE))
test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not long" --durations 30 --durations-min 5 $(LIMITS)

test-all: test test-long

# SHARE=1/3 runs a third of them, chosen by name.
test-long: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m long --durations 30 --durations-min 5 $(LIMITS)

# Environments in build/, downloaded once. UNTIL: start no version after so many seconds.
UNTIL ?= 36000
spark-versions: $(STAMP)
	$(BIN)/python tests/spark/version_runs.py --until $(UNTIL) $(if $(RECORD),--record)

# One of them each day, with every second test; left out if it cannot be downloaded, or takes too long.
spark-version-today: $(STAMP)
	$(BIN)/python tests/spark/version_runs.py --today --seconds 210

# For another Python: make this-python PYTHON=python3.13 VENV=build/python-3.13
this-python: $(STAMP)
	$(BIN)/python tests/spark/version_runs.py --installed $(if $(RECORD),--record)

# Kernels that check bounds are compiled apart: Numba's cache does not know which of both it holds.
CHECKED := NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/build/kernels-with-bounds $(BIN)/python
bounds: $(STAMP)
	$(CHECKED) -m pytest -q -n 2 -m "not slow" tests/core/test_compiled.py tests/structures lab/tests/conformance
	$(CHECKED) tests/model/soak.py --steps 1000000 --seconds 20 --seed 3
	$(CHECKED) tests/differential/soak.py --seconds 20 --seed 3

bounds-all: $(STAMP)
	$(CHECKED) -m pytest -q -n 2 tests/core/test_compiled.py tests/structures tests/joins lab/tests/conformance \
		tests/relation tests/model tests/differential

STEPS ?= 1000000
TUPLES ?= 10000000
SEED ?= 1
soak: $(STAMP)
	$(BIN)/python tests/model/soak.py --steps $(STEPS) --seed $(SEED)
	$(BIN)/python tests/differential/soak.py --tuples $(TUPLES) --seed $(SEED)

# SECONDS: start no history after this time.
HISTORIES ?= 1000
histories: $(STAMP)
	$(BIN)/python tests/relation/followed/histories_soak.py --histories $(HISTORIES) --seed $(SEED) $(if $(SECONDS),--seconds $(SECONDS))

KILLS ?= 20
kills: $(STAMP)
	SEMISTREAM_KILLS=$(KILLS) SEMISTREAM_SEED=$(SEED) $(BIN)/python -m pytest -q -s tests/spark/test_cluster.py
	$(BIN)/python tests/spark/relations/kills_soak.py --kills $(KILLS) --seed $(SEED)

ROWS ?= 10000000
large: $(STAMP)
	SEMISTREAM_ROWS=$(ROWS) $(BIN)/python -m pytest -q -s tests/spark/sinks/large_batches.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist artifacts spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info lab/build lab/src/*.egg-info
	find src tests lab -name __pycache__ -type d -prune -exec rm -rf {} +

# Reinstalled only when what is to be installed changed.
$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "semistream needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; choose another with make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]' -e './lab[all]'
	touch $@
