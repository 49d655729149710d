# make venv    .venv, ready to use           make demo    the main job, end to end, in under 4 minutes
# make test    everything that CI runs       make bench   the figures, into benchmarks/RESULTS.md
# make quick   the part of it to run again and again while you work: lint, types, cores and roles, in 90 s
# make installs    the wheel from the package index, in an empty environment of each Python on this machine
# make docs    the site with the API reference, in build/site
# make picture the picture of a demo's report, docs/images/demo.png
# make soak    MINUTES=60 of simulated deployments under faults; the report is soak/soak.html
# make sweep   FACTOR=20 times as many random histories of the protocols as `make test` makes, and the deep tests

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
SOURCES := $(shell find client actors placement storage pipelines chaos -name '*.py' 2>/dev/null | LC_ALL=C sort)

.PHONY: venv test suite quick cores lint types docs installs demo picture bench soak sweep clean

venv: .venv/linked

.venv/installed: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] == (3, 11) else "ebla needs Python 3.11; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@touch $@

# The strict editable install links every module, so that Python and the type checker see the same package tree. It is
# made again when a module comes or goes.
.venv/sources: FORCE
	@mkdir -p .venv; echo '$(SOURCES)' | cmp -s - $@ || echo '$(SOURCES)' > $@

.venv/linked: .venv/installed .venv/sources pyproject.toml
	@rm -rf build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--config-settings editable_mode=strict -e .
	@touch $@

# Tests start some hundred processes, which share compiled modules.
unexport PYTHONDONTWRITEBYTECODE

# For two cores: one process has the Ray clusters, and mostly waits; two compute, with a lower priority. Types are checked meanwhile.
test: lint
	@$(MAKE) --no-print-directory -j 2 types suite
suite: venv
	$(BIN)/python -m pytest -q -n 3 --dist loadscope

# Without random troubles and known mistakes.
QUICK := tests/test_tidy.py tests/test_rooms.py tests/test_glossary.py tests/stream tests/raft tests/pacifica tests/tablet tests/master tests/journal tests/coordination
LATER := $(foreach kind,random sweeps mutants mistakes,--ignore-glob '*$(kind)*')
quick: lint
	@$(MAKE) --no-print-directory -j 2 types cores
cores: venv
	$(BIN)/python -m pytest -q -n 2 --dist loadscope $(LATER) $(QUICK)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/mypy -p ebla

installs: venv
	$(BIN)/python -m pytest -q -m installs tests/test_installs.py

# A broken link, or a name of the reference that does not exist, ends the build.
docs: venv
	@rm -rf build/docs build/site; mkdir -p build/docs/docs build/docs/benchmarks
	@cp README.md CONTRIBUTING.md build/docs; cp -r docs/. build/docs/docs; cp benchmarks/RESULTS.md build/docs/benchmarks
	$(BIN)/zensical build --strict

REPLICATION ?= raft

demo: venv
	@$(BIN)/ebla demo --replication $(REPLICATION)

# The README's picture of the demo's report. It needs Chromium.
picture: venv
	@mkdir -p build
	$(BIN)/ebla demo --json > build/demo.json
	$(BIN)/python docs/images/demo.py build/demo.json docs/images/demo.png

bench: venv
	$(BIN)/python -m benchmarks

MINUTES ?= 60
soak: venv
	$(BIN)/ebla chaos simulate --minutes $(MINUTES) --keep soak

# Tests that count their random histories by tests/sweeps.py, then those that are marked `deep`.
FACTOR ?= 20
SWEEPS := $(shell grep -lr --include='test_*.py' 'from tests.sweeps import' tests | LC_ALL=C sort)
sweep: venv
	EBLA_SWEEP=$(FACTOR) $(BIN)/python -m pytest -q -n 2 --dist loadscope --timeout 7200 $(SWEEPS)
	$(BIN)/python -m pytest -q -n 2 --dist loadscope -m deep

clean:
	rm -rf .venv build soak *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

FORCE:
