# make help lists the targets. Everything is installed into .venv; nothing outside it is touched.

PYTHON ?= python3
MODEL ?= smollm2
AGENT ?= hermes
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.anchorline-setup
# Forwarded to the set-up script; see its head for what each does.
export SKIP_LLAMA LLAMA_WHEEL_INDEX

.DEFAULT_GOAL := help
.PHONY: help setup serve demo agents lint types imports tests test test-long bench bench-replay bench-peers bench-warm-turn bench-decode bench-constrained bench-arena bench-chain bench-long bench-seal bench-disk bench-restart bench-rewrites clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12       the interpreter that .venv is made with (3.11 or newer)"
	@echo "  MODEL=PATH ARGS='...'   the model and the options of serve; ARGS also reach demo and the benchmarks"
	@echo "  CMAKE_ARGS='...'        build llama.cpp with these CMake options, e.g. -DGGML_CUDA=on"
	@echo "  LLAMA_WHEEL_INDEX=URL   take a prebuilt llama-cpp-python wheel from this index instead of compiling"
	@echo "  SKIP_LLAMA=1            use the llama-cpp-python that is already installed in .venv"

# Runs on any Python, so that a too old one is told apart from a broken one.
CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed and \
$(PYTHON) is %d.%d; name another with: make setup PYTHON=python3.12" % sys.version_info[:2])'

SET_UP = $(CHECK_PYTHON) && $(PYTHON) scripts/setup_venv.py && touch $(STAMP)

# The script looks at what is there already, so running it again is quick and changes nothing.
setup: ## Create .venv and install everything (compiles llama.cpp once, about 4 minutes on 2 cores).
	@$(SET_UP)

$(STAMP): pyproject.toml scripts/setup_venv.py
	@$(SET_UP)

serve: $(STAMP) ## Serve MODEL on http://127.0.0.1:8080.
	@exec $(BIN)/anchorline serve "$(MODEL)" $(ARGS)

demo: $(STAMP) ## Run a short agent session and show what each call prefilled.
	@$(BIN)/anchorline demo $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

tests: $(STAMP)
	$(BIN)/pytest -m "not slow"

test: lint types imports tests ## Lint, types, import contracts and all tests.

test-long: $(STAMP) ## The tests that take more than a minute.
	$(BIN)/pytest -m slow

agents: $(STAMP) ## Run a real agent against a server that follows a script (AGENT=hermes; docs/agents.md names all).
	@$(BIN)/python scripts/agents/run.py $(AGENT) $(ARGS)

bench: $(STAMP) ## The standing workloads beside other servers; writes BENCHMARKS.md (docs/benchmarks.md).
	@$(BIN)/anchorline bench --markdown BENCHMARKS.md $(ARGS)

bench-replay: $(STAMP) ## Replay agent traces (ARGS="TRACE... [--mix] ...") and compare prefilled tokens with the oracle.
	@$(BIN)/anchorline replay $(ARGS)

bench-peers: $(STAMP) ## The same replay with llama-server beside it (first: .venv/bin/pip install xllamacpp).
	@$(BIN)/anchorline replay --peer llama-server $(ARGS)

bench-warm-turn: $(STAMP) ## TTFT of a warm turn against prefilling only its delta.
	@OMP_WAIT_POLICY=passive $(BIN)/python -m anchorline.bench.warm_turn $(ARGS)

bench-rewrites: $(STAMP) ## Tokens prefilled of sessions whose head changes, with each rewrite and without.
	@OMP_WAIT_POLICY=passive $(BIN)/python benchmarks/rewrites.py $(ARGS)

bench-decode: $(STAMP) ## The engine's time per token against a bare llama_decode loop.
	@OMP_WAIT_POLICY=passive $(BIN)/python benchmarks/decode_step.py $(ARGS)

bench-constrained: $(STAMP) ## Time per token within a JSON schema against time per token without.
	@OMP_WAIT_POLICY=passive $(BIN)/python benchmarks/constrained.py $(ARGS)

bench-long: $(STAMP) ## Six conversations of 100K tokens in the RAM of two and a half, under a hard limit.
	@$(BIN)/python -m anchorline.bench.long_sessions $(ARGS)

bench-arena: $(STAMP) ## Export speed into a warm and into a fresh arena.
	@OMP_WAIT_POLICY=passive $(BIN)/python benchmarks/arena.py $(ARGS)

bench-chain: $(STAMP) ## Restoring a 128K-token chain of 60 turns, merged and not, against copying its bytes.
	@OMP_WAIT_POLICY=passive $(BIN)/python benchmarks/chain.py $(ARGS)

bench-seal: $(STAMP) ## TTFT behind tools of 0, 0.5 and 5 s with turns sealed meanwhile and without.
	@OMP_WAIT_POLICY=passive $(BIN)/python benchmarks/sealing.py $(ARGS)

bench-disk: $(STAMP) ## The disk tier by itself: index of 10,000 records, and one large record written and read.
	@$(BIN)/python benchmarks/disk.py $(ARGS)

bench-restart: $(STAMP) ## TTFT of the first turn after a kill and a restart, against a resident turn and a cold one.
	@OMP_WAIT_POLICY=passive $(BIN)/python benchmarks/restart.py $(ARGS)

clean: ## Remove caches and build products (not .venv).
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
