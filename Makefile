# Each target does its own set-up under .setup/ and target/, says what it fetches, and can be interrupted and repeated.
.DEFAULT_GOAL := help
.PHONY: help setup build demo demo-full resume test lint bench-engine

CARGO ?= cargo
TRAINYARD := target/release/trainyard
SEED ?= 1
ARGS ?=

help:
	@echo "make demo       train the example agent on the weather tools (at most 20 minutes on 2 cores after set-up)"
	@echo "make test       set up and run every test"
	@echo "make demo-full  the long run of the demo (at most 60 minutes)"
	@echo "make resume     go on with the newest interrupted run"
	@echo "make build      target/release/trainyard"
	@echo "make lint       formatting, clippy, and the build without libtorch"
	@echo "make bench-engine  tokens per second of the embedded engine"

setup:
	@scripts/setup.sh tools libtorch agent model

build:
	@scripts/setup.sh tools libtorch
	@echo "  build: cargo build --release (about 10 minutes on 2 cores the first time)" >&2
	$(CARGO) build --release --locked -p cli -p mcp-envs

demo: setup build
	$(TRAINYARD) train -c examples/nws/trainyard.toml --seed $(SEED) $(ARGS)

demo-full: setup build
	$(TRAINYARD) train -c examples/nws/trainyard-full.toml --seed $(SEED) $(ARGS)

resume: setup build
	$(TRAINYARD) train --resume $(ARGS)

test: setup
	@echo "  test: cargo test --release --workspace (builds everything; about 15 minutes on 2 cores the first time)" >&2
	$(CARGO) build --release --locked -p cli -p mcp-envs
	$(CARGO) test --release --locked --workspace --no-fail-fast

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
	$(CARGO) check --release --locked -p cli --no-default-features

bench-engine: setup
	$(CARGO) bench --locked -p inference --bench engine -- --model .setup/models/smollm2-135m-instruct-q4_1.gguf
