# `make run` and `make test` set up everything they need by themselves; `make help` lists the rest.
.DEFAULT_GOAL := help
.PHONY: help setup run test faults test-fast check bench claims soak fuzz audit sbom docs format clean
MAKEFLAGS += --no-print-directory

ARGS ?=
SEED ?= 1
DURATION ?= 1h
BIN := .venv/bin
# A name on PATH may be a shim without a Python behind it, so each is asked.
NEW_ENOUGH := import sys; print(sys.executable); sys.exit(sys.version_info < (3, 11))

help: ## Say what there is
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Options of the main job: make run ARGS='--scenario surge'; all of them: make run ARGS=--help"

setup: ## Set up .venv (the other targets do it too)
	@set -e; python=$(BIN)/python; if ! $$python -c '' 2>/dev/null; then \
	  python=; for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	    python=$$($$p -c '$(NEW_ENOUGH)' 2>/dev/null) && break || python=; done; fi; \
	  if [ -z "$$python" ]; then echo "harmony: no Python 3.11 or newer on PATH; install one and run make again" >&2; exit 1; fi; \
	  "$$python" infra/bootstrap.py

run: setup ## The main job: Kafka, a simulated fleet, forecasts, decisions; a day in some minutes, then a report
	@exec $(BIN)/harmony run $(ARGS)

test: setup ## The whole test suite, with real Kafkas, two tests at a time; a quarter of an hour on two cores
	@sh tests/install_tools.sh .cache/tools
	@exec $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

faults: setup ## Every kill, zombie and broker failure, with a table at the end (SEED=1); half an hour
	@HARMONY_TEST_SEED=$(SEED) exec $(BIN)/python -m pytest tests/faults tests/integration tests/infra/test_bench_commands.py -m "faults or (slow and not kafka)" -p no:randomly -n 2 --dist worksteal -v $(ARGS)

test-fast: setup ## The tests that need neither Kafka nor much time
	@sh tests/install_tools.sh .cache/tools
	@exec $(BIN)/python -m pytest -m "not kafka and not slow" $(ARGS)

check: setup ## Lint, format, types, import directions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: setup ## Measure it beside its rivals, write tests/bench/results and docs/lab/performance.md (a quiet machine, an hour)
	@run() { echo "== $$*"; name=$$1; shift; $(BIN)/harmony bench "$$@" --json tests/bench/results/$$name.json; }; \
	run ingest ingest && run plan plan && run inference inference && run scale scale && \
	run workers workers && run workers-1000 workers --workloads 1000 && \
	run latency latency --workloads 100,300,1000 && \
	run latency-10000 latency --workloads 10000 --slots 4 && \
	run latency-50000 latency --workloads 100,1000 --samples-per-s 50000 && \
	run latency-network latency --workloads 100 --weights model/weights && \
	run recovery recovery --workloads 100,1000 && run recovery-10000 recovery --workloads 10000 && \
	$(BIN)/python -m tests.claims.pages

claims: setup ## Measure what is claimed: figure, bar, pass or open (ALL=1: hours too; ALL=1 RECORD=1: store them); ten minutes
	@exec $(BIN)/python -m tests.claims $(if $(ALL),--all) $(if $(RECORD),--record) $(ARGS)

soak: setup ## A worker under steady telemetry: memory, lag, open files (DURATION=1h)
	@exec $(BIN)/python -m tests.faults.soak --duration $(DURATION) --seed $(SEED)

fuzz: setup ## A million inputs through the decoder and a million through all other readers of bytes (SEED=1; ARGS='--only telemetry --each'); some minutes
	@exec $(BIN)/python -m tests.fuzz.run --seed $(SEED) $(ARGS)

audit: setup ## Ask whether a locked dependency is known to be vulnerable (needs the network)
	@exec $(BIN)/python -m infra.supply_chain audit

sbom: setup ## Write what HARMONY consists of to dist/harmony.cdx.json (CycloneDX)
	@exec $(BIN)/python -m infra.supply_chain bill

docs: setup ## The documentation as a site, into out/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "out/site/index.html"

format: setup ## Put the code into the common format
	@$(BIN)/ruff check --fix --exit-zero .
	@$(BIN)/ruff format .

clean: ## Remove caches and outputs (not .venv)
	@rm -rf .cache .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist out
	@find . -name __pycache__ -type d -not -path './.venv/*' -not -path './.uv/*' -prune -exec rm -rf {} +
