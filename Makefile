# Coppice: what a person types. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Everything that is slow to make is kept outside the checkout, so that a fresh clone is quick.
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/coppice
export CARGO_TARGET_DIR ?= $(CACHE)/target
export COPPICE_CONTROLPLANE ?= $(CACHE)/bin/controlplane
BIN := $(CARGO_TARGET_DIR)/debug
KUBE_VERSION := v1.37.2
ARGS ?=

GO_LDFLAGS := -s -w -X k8s.io/component-base/version.gitVersion=$(KUBE_VERSION) \
  -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37

.PHONY: help
help: ## Show this list
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: build controlplane ## Watch a disaggregated model follow a production trace on a real control plane (under 10 minutes)
	$(BIN)/coppice-testbed demo $(ARGS)

.PHONY: test
test: toolchain go-toolchain ## Everything that CI runs
	./.ci/test

.PHONY: test-plain
test-plain: toolchain ## The part of `make test` that needs no control plane
	./.ci/test plain

.PHONY: test-cluster
test-cluster: toolchain go-toolchain ## The part of `make test` that starts real control planes
	./.ci/test cluster

.PHONY: up
up: build controlplane ## Start the control plane, a fleet of stand-in nodes and Coppice; keep them for kubectl
	$(BIN)/coppice-testbed up --with-coppice --nodes=32 --startup=5s $(ARGS)

.PHONY: steady
steady: build controlplane ## Start everything with the samples, and count what Coppice writes in five quiet minutes: nothing
	$(BIN)/coppice-testbed steady $(ARGS)

.PHONY: down
down: ## Stop what `make up` started
	$(BIN)/coppice-testbed down $(ARGS)

RELEASE := $(CARGO_TARGET_DIR)/release
FIGURES := target/bench

.PHONY: bench
bench: bench-reader bench-decide bench-engine bench-placement bench-sim bench-driver bench-operator ## Measure everything; figures in target/bench/*.json
	@echo; echo "all figures (median, mark, runs):"; $(RELEASE)/coppice-testbed bench show $$(ls $(FIGURES)/*.json | grep -v /scaling.json)

# The programs that benchmarks are run with, and the benchmarks. Always the whole workspace, and programs never alone: another
# selection would resolve other features and build the dependencies again.
BENCH := cargo bench --workspace
.PHONY: release
release: toolchain
	cargo build --release --workspace --bin coppice-testbed --bin coppice-loadtest --bench reading
	$(BENCH) --no-run --bench reading --bench decide --bench steps --bench placement --bench simulate --bench scale
	@mkdir -p $(FIGURES)

.PHONY: bench-reader
bench-reader: release ## Bytes per second of the exposition reader
	$(BENCH) --bench reading | tee $(FIGURES)/reader.txt | $(RELEASE)/coppice-testbed bench divan --prefix "reader: " --output $(FIGURES)/reader.json

.PHONY: bench-decide
bench-decide: release ## Time of the scaler's decision
	$(BENCH) --bench decide | tee $(FIGURES)/decide.txt | $(RELEASE)/coppice-testbed bench divan --prefix "decide: " --output $(FIGURES)/decide.json

.PHONY: bench-engine
bench-engine: release ## Steps per second of the engine model
	$(BENCH) --bench steps | tee $(FIGURES)/engine.txt | $(RELEASE)/coppice-testbed bench divan --prefix "engine: " --output $(FIGURES)/engine.json

.PHONY: bench-placement
bench-placement: release ## Time to place gangs on 1,000 nodes
	$(BENCH) --bench placement | tee $(FIGURES)/placement.txt | $(RELEASE)/coppice-testbed bench divan --prefix "placement: " --output $(FIGURES)/placement.json

.PHONY: bench-sim
bench-sim: release ## Simulated requests per second on one core
	$(BENCH) --bench simulate | tee $(FIGURES)/simulation.txt | $(RELEASE)/coppice-testbed bench divan --prefix "simulation: " --output $(FIGURES)/simulation.json

.PHONY: bench-driver
bench-driver: release ## The load driver's highest valid rate, against a server whose latencies are known
	$(RELEASE)/coppice-loadtest drive --find-max --bench-file $(FIGURES)/driver.json

.PHONY: bench-operator
bench-operator: release controlplane ## 500 × 2 pods made, shrunk, grown, removed, on native and on gated
	for backend in native gated; do \
		$(BENCH) --bench scale -- --backend $$backend --out "$(CURDIR)/$(FIGURES)/operator-$$backend.json" $(ARGS); \
	done

.PHONY: bench-scaling
bench-scaling: release ## Scaling policies simulated in every built-in scenario, two seeds; ARGS="--builtin all --seeds 10" for the long form
	time $(RELEASE)/coppice-loadtest simulate --output $(FIGURES)/scaling.jsonl --summary $(FIGURES)/scaling.json --html $(FIGURES)/scaling.html \
	  $(or $(ARGS),--builtin all --seeds 2)

.PHONY: build
build: toolchain ## Build every program
	@# With one test, so that features are resolved as for all tests, and `make test` finds the dependencies built.
	cargo build --workspace --bins --test structure

.PHONY: controlplane
controlplane: $(COPPICE_CONTROLPLANE) ## Build etcd, kube-apiserver, controller-manager, scheduler and kubectl as one program (9 minutes the first time)

# The stamp names the inputs: an unchanged module is not linked again in another clone.
CONTROLPLANE_INPUTS := $(wildcard testbed/controlplane/*.go testbed/controlplane/go.*)
CONTROLPLANE_STAMP := $(shell cat $(CONTROLPLANE_INPUTS) | sha256sum | cut -c1-16)
$(COPPICE_CONTROLPLANE): $(COPPICE_CONTROLPLANE)-$(CONTROLPLANE_STAMP)
	@ln -sfn "$<" "$@"; touch -h "$@"

$(COPPICE_CONTROLPLANE)-$(CONTROLPLANE_STAMP): | go-toolchain
	@mkdir -p $(@D)
	@echo "building Kubernetes $(KUBE_VERSION) and etcd from their Go modules (once; several minutes)"
	cd testbed/controlplane && go build -trimpath -ldflags "$(GO_LDFLAGS)" -o "$@.tmp" . && mv "$@.tmp" "$@"

.PHONY: fmt
fmt: toolchain ## Format the code
	cargo fmt --all

.PHONY: lint
lint: toolchain ## Formatting, clippy and dependency rules
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	@if command -v cargo-deny >/dev/null; then cargo deny --offline check bans licenses sources 2>/dev/null || cargo deny check bans licenses sources; \
	else echo "cargo-deny is not installed (cargo install --locked cargo-deny): dependency rules are left to the structure test"; fi

.PHONY: clean
clean: ## Remove build results (also the caches outside the checkout)
	cargo clean
	rm -rf $(CACHE)/bin

.PHONY: toolchain go-toolchain
toolchain:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust with  curl --proto '=https' -sSf https://sh.rustup.rs | sh"; exit 1; }
	@command -v cc >/dev/null || { echo "a C compiler is missing: install one, for example with  apt-get install build-essential"; exit 1; }
	@cargo --version >/dev/null 2>&1 || { echo "the toolchain of rust-toolchain.toml is missing: install it with  rustup toolchain install $$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml) --profile minimal -c rustfmt -c clippy"; exit 1; }
go-toolchain:
	@command -v go >/dev/null || { echo "go is missing: install Go 1.26 or newer, for example from https://go.dev/dl"; exit 1; }
