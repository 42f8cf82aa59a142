# Everything that is done with this project, from a fresh machine on: Python 3.11 with pip and venv,
# make, and a C compiler (without one the build is plain Python, and says so).
#
# Environments, each with only what its targets need, remade when what they hold is out of date:
#
#   .venv        compiled: the wheel of src/, and the tools of `test` and `check`
#   .venv-pure   the same source uncompiled and editable, and the tools of `test`: for quick work,
#                `.venv-pure/bin/pytest tests/unit` sees each change of src/ at once
#   .venv-run    compiled, with what the examples need
#   .venv-bench  compiled, with the libraries that are measured beside ours, and what draws
#   .venv-package  what makes packages
#   .venv-audit  what audit and sbom are made with
#   .venv-docs   what the site is made with
#   .venv-spark-<version>  compiled, with another Spark than .venv and the tools of `test`
#
# All of them have the versions of constraints.txt, but for Spark's in the last.
#
# The wheel is built once for all of them, in build/; C is compiled again only if a hot module
# (setup.py lists them) has changed.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
SOURCES := $(sort $(shell find src -name '*.py' -o -name py.typed -o -path '*/dashboard/files/*' -type f))
QUICK_TESTS := $(wildcard tests/unit tests/property)
CRASH_TESTS := tests/crash
MACHINE_TESTS := tests/property tests/contracts
PYTEST := .venv/bin/python -m pytest -p no:cacheprovider
PURE_PYTEST := .venv-pure/bin/python -m pytest -p no:cacheprovider
CRASH_IMAGES_ALL := 1000000
DIST := dist
TEST_EXTRAS := [test,check,conformance,spark,connect,lake,tables,examples]
RUN_EXTRAS := [server,examples,spark]
SPARK_EXTRAS := [test,spark]
# Sparks beside the one of constraints.txt, and the release of each that is tested.
SPARKS ?= 4.1 4.2
SPARK_4.1 := 4.1.4
SPARK_4.2 := 4.2.1
# Spark wants a Java; where there is none, a wheel brings one.
JAVA := $(shell command -v java)

# The versions that are known to work; `make test CONSTRAINTS=` takes what the bounds allow.
CONSTRAINTS ?= constraints.txt
PIN := $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: audit sbom packages chromium site help setup run run-queues test test-sparks check lint conformance crash crash-spark soak bench bench-spark mutants plot plot-metrics screenshots dashboard-figures format clean FORCE
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@echo "make setup   both development environments, .venv (compiled) and .venv-pure"
	@echo "make run     the main job: flights through a stream and Spark into a lake, killed once, proven"
	@echo "make run-queues  flights through queues with 64 MiB that page, killed twice, proven"
	@echo "make test    everything, compiled; and the unit tests again uncompiled (what CI calls)"
	@echo "make test-sparks  the tests of the Spark source and sink on Spark $(SPARKS)"
	@echo "make check   the quick part of test: format, lint, types, imports, unit and property tests"
	@echo "make conformance  client libraries' own test suites on a live broker (needs PyPI); answers beside RabbitMQ's"
	@echo "make crash   $(CRASH_IMAGES_ALL) crash images, and 20 kills of a live broker under load"
	@echo "make crash-spark  exactly once through Spark, with 21 kills of driver, tasks and broker at random"
	@echo "make mutants  30 changes of src drawn at random: do the tests notice? About an hour"
	@echo "make soak    ten million messages through a queue of 64 MiB: RAM, order, nothing lost"
	@echo "make bench   the figures, beside those of other libraries and of RabbitMQ"
	@echo "make bench-spark  the Spark source beside Parquet, text and per-record Python"
	@echo "make audit   known vulnerabilities of the versions in constraints.txt (needs the network)"
	@echo "make packages  wheel, sdist and Debian package in dist/, each installed and used (needs PyPI, and root)"
	@echo "make sbom    what make run installs, as CycloneDX: build/sbom.cdx.json"
	@echo "make site    the documentation as a site, built strictly: build/site/index.html"
	@echo "make plot    RAM and throughput while ten million messages go in and out: docs/how-it-works/memory.png"
	@echo "make plot-metrics  what /metrics says while a backlog comes and goes: docs/guides/monitoring.png"
	@echo "make screenshots  the pictures of the dashboard: docs/guides/dashboard-*.png"
	@echo "make dashboard-figures  how fast its pages are (ARGS=speed), what open ones leak (ARGS=leaks, an hour)"
	@echo "make format  let ruff write the format and what else it can mend"
	@echo "make clean   remove environments, build and caches"

setup: .venv/ready .venv-pure/ready

run: .venv-run/ready
	@test -f examples/flights_lake.py || { echo "make run: examples/flights_lake.py is missing" >&2; exit 66; }
	.venv-run/bin/python examples/flights_lake.py $(ARGS)

run-queues: .venv-run/ready
	.venv-run/bin/python examples/flights.py $(ARGS)

# All lanes side by side, with one verdict at the end: tests/lanes.py. ARGS=--durations lists the
# slowest tests.
test: .venv-pure/ready chromium
	@.venv-pure/bin/python tests/lanes.py --make "$(MAKE_COMMAND)" $(ARGS)

# tests/browser has its tests of the dashboard done by Chromium, which is no Python package.
chromium:
	@command -v chromium > /dev/null || command -v google-chrome > /dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && apt-get update -q \
			&& DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium; } \
		|| echo "make: no tests in a browser: install chromium (Debian and Ubuntu: apt install chromium)"

# One Spark after the other: docs/reference/spark-versions.md.
test-sparks: $(SPARKS:%=.venv-spark-%/ready)
	@.venv-spark-$(firstword $(SPARKS))/bin/python tests/lanes.py --sparks $(SPARKS) $(ARGS)

crash-spark: .venv/ready
	.venv/bin/python -m tests.crash_spark.campaign $(ARGS)
	PENSTOCK_CLUSTERS=all $(PYTEST) tests/cluster

check: lint
	$(PYTEST) $(QUICK_TESTS) tests/test_house.py

lint: .venv/ready
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy --strict src tests/helpers
	PYTHONPATH=src .venv/bin/lint-imports --no-logo

# Needs the network: what cannot be looked up is no success (tools/audit.py).
audit: .venv-audit/ready
	.venv-audit/bin/python tools/audit.py constraints.txt

# What the broker's own environment holds, as CycloneDX: build/sbom.cdx.json.
sbom: .venv-run/ready .venv-audit/ready
	.venv-audit/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-format JSON --output-file build/sbom.cdx.json .venv-run
	@echo "build/sbom.cdx.json"

# Strict: a link that leads nowhere, or a page without a place, fails.
site: .venv-docs/ready
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/.venv-docs/bin:$$PATH" .venv-docs/bin/mkdocs build
	@echo "build/site/index.html; with search: python3 -m http.server --directory build/site"

# Wheel, sdist and Debian package, and then what a user does with each: tests/packages. As root, and
# with apt's systemd-container and Go it checks the service under systemd and the chart, too.
packages: build/wheel.ready .venv-pure/ready .venv-package/ready
	rm -rf $(DIST)
	mkdir $(DIST)
	cp build/wheels/penstock-*.whl $(DIST)
	.venv-package/bin/python -m build --sdist --outdir $(DIST) .
	$(if $(shell command -v dpkg-deb),PYTHON=.venv-package/bin/python contrib/debian/build $(DIST)/*.whl $(DIST))
	PENSTOCK_DIST=$(abspath $(DIST)) .venv-pure/bin/python -m pytest -p no:cacheprovider tests/packages/check_*.py --timeout=0 $(ARGS)

conformance: .venv/ready
	.venv/bin/python -m tests.conformance.suites $(ARGS)
	.venv/bin/python -m tests.conformance.tls_clients.run
	.venv/bin/python -m tests.conformance.http_clients.run
	.venv/bin/python -m tests.conformance.compared.compare
	.venv/bin/python -m tests.conformance.compared.definitions
	.venv/bin/python -m tests.conformance.compared.http_api

crash: .venv/ready .venv-pure/ready
	PENSTOCK_CRASH_IMAGES=$(CRASH_IMAGES_ALL) $(PYTEST) $(CRASH_TESTS) --timeout=0 -s
	PENSTOCK_CRASH_IMAGES=small HYPOTHESIS_PROFILE=ci $(PURE_PYTEST) $(CRASH_TESTS) $(MACHINE_TESTS) --timeout=0
	HYPOTHESIS_PROFILE=nightly $(PYTEST) tests/robustness/test_budget.py --timeout=0 -s
	PENSTOCK_FUZZ=200 $(PYTEST) tests/robustness/test_fuzz_sessions.py --timeout=0

mutants: .venv/ready
	.venv/bin/python tools/mutate.py $(ARGS)

soak: .venv/ready
	.venv/bin/python -m tests.memory.soak $(ARGS)

bench: .venv-bench/ready
	@test -f bench/run.py || { echo "make bench: bench/run.py is missing" >&2; exit 66; }
	.venv-bench/bin/python bench/run.py $(ARGS)

bench-spark: .venv-run/ready
	.venv-run/bin/python bench/spark_bench.py $(ARGS)

plot: .venv-bench/ready
	.venv-bench/bin/python bench/memory_plot.py $(ARGS)

plot-metrics: .venv-bench/ready
	.venv-bench/bin/python bench/metrics_plot.py $(ARGS)

screenshots: .venv-pure/ready chromium
	.venv-pure/bin/python -m tests.browser.pictures

dashboard-figures: .venv/ready chromium
	.venv/bin/python -m tests.browser.figures $(ARGS)

format: .venv/ready
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

clean:
	rm -rf build $(DIST) .venv .venv-pure .venv-run .venv-bench .venv-audit .venv-docs .venv-package .venv-spark-* src/penstock.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests bench examples -name __pycache__ -prune -exec rm -rf {} +

# --- environments ---

# The list changes when a module comes or goes, which no file's time would show.
build/sources.txt: FORCE
	@mkdir -p build
	@echo "$(SOURCES)" | cmp -s - $@ || echo "$(SOURCES)" > $@

# What earlier builds left of the plain modules goes; what they compiled stays, unless setup.py,
# which lists what is compiled, is another.
build/wheel.ready: build/sources.txt $(SOURCES) pyproject.toml setup.py LICENSE
	@rm -rf build/wheels $(if $(filter setup.py,$?),build/lib.*)
	@find build -path 'build/lib*' -name '*.py' -delete
	@echo "compiling the hot modules: about three minutes (plain Python, if there is no C compiler)"
	$(PYTHON) -m pip wheel -v --no-deps --wheel-dir build/wheels . > build/wheel.log 2>&1 \
		|| { cat build/wheel.log; exit 1; }
	@sed -n 's/^ *\(penstock: installing\)/\1/p' build/wheel.log | sort -u
	@touch $@

# $(call install,ENVIRONMENT,EXTRAS): the version is the same after each change, hence by force.
define install
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --no-deps --force-reinstall build/wheels/penstock-*.whl
	$(1)/bin/python -m pip install --quiet $(PIN) "$$(ls build/wheels/penstock-*.whl)$(2)"
	$(if $(findstring spark,$(2)),$(if $(JAVA),,$(1)/bin/python -m pip install --quiet $(PIN) "$$(ls build/wheels/penstock-*.whl)[java]"))
	$(1)/bin/penstock --version
	@touch $(1)/ready
endef

.venv/ready: build/wheel.ready $(CONSTRAINTS)
	$(call install,.venv,$(TEST_EXTRAS))

.venv-spark-%/ready: PIN = --constraint build/constraints-spark-$*.txt
.venv-spark-%/ready: build/wheel.ready $(CONSTRAINTS)
	$(if $(SPARK_$*),,$(error Makefile: SPARK_$* names no release of Spark $*))
	cat /dev/null $(CONSTRAINTS) | sed '/^pyspark==/d;/^py4j==/d' > build/constraints-spark-$*.txt
	echo "pyspark==$(SPARK_$*)" >> build/constraints-spark-$*.txt
	$(call install,.venv-spark-$*,$(SPARK_EXTRAS))

.venv-run/ready: build/wheel.ready $(CONSTRAINTS)
	$(call install,.venv-run,$(RUN_EXTRAS))

.venv-bench/ready: build/wheel.ready $(CONSTRAINTS)
	$(call install,.venv-bench,[bench])

.venv-audit/ready: pyproject.toml $(CONSTRAINTS)
	test -x .venv-audit/bin/python || $(PYTHON) -m venv .venv-audit
	PENSTOCK_PURE=1 .venv-audit/bin/python -m pip install --quiet $(PIN) '.[audit]'
	@touch $@

.venv-docs/ready: pyproject.toml $(CONSTRAINTS)
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	PENSTOCK_PURE=1 .venv-docs/bin/python -m pip install --quiet $(PIN) '.[docs]'
	@touch $@

.venv-package/ready: pyproject.toml $(CONSTRAINTS)
	test -x .venv-package/bin/python || $(PYTHON) -m venv .venv-package
	PENSTOCK_PURE=1 .venv-package/bin/python -m pip install --quiet $(PIN) '.[package]'
	@touch $@

.venv-pure/ready: pyproject.toml setup.py $(CONSTRAINTS)
	test -x .venv-pure/bin/python || $(PYTHON) -m venv .venv-pure
	PENSTOCK_PURE=1 .venv-pure/bin/python -m pip install --quiet $(PIN) -e '.[test]'
	.venv-pure/bin/penstock --version
	@touch $@
