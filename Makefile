# Cleave. `make demo` and `make test` do all set-up by themselves; `make help` lists the rest.
#
#   NO_INSTALL=1   install nothing: use PYTHON as it is (torch 2.11 or newer), put the package under build/python
#   PYTHON=...     the Python to use (default python3)
#   JOBS=...       compiler processes (default: one per core)

PYTHON ?= python3
NO_INSTALL ?=
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
export PYTHON NO_INSTALL JOBS FUZZ_SECONDS

ifeq ($(NO_INSTALL),)
RUN := $(CURDIR)/.venv/bin/python
else
RUN := env PYTHONPATH=$(CURDIR)/build/python $(PYTHON)
endif

.PHONY: all setup setup-test build build-test demo edge test test-fast test-full coverage asan ubsan tsan fuzz bench bench-full bench-gpu bench-report docs wheel abi format clean help

all: build ## set up, build, install into .venv (the default)

setup: ## install what the build needs: Debian packages, .venv, torch (once)
	@tools/setup.sh

build: setup
	@tools/build.sh

setup-test: ## also install what tests and checks need: tools, real models, a browser
	@tools/setup.sh test

build-test: setup-test
	@tools/build.sh test

demo: build ## capture a network, cut it, run both parts, compare with PyTorch, run one without it
	@tools/edge.sh
	@$(RUN) -m cleave.demo --edge build/cleave-edge

edge: setup ## build/cleave-edge, a static program with the native engine for devices (ARCH=aarch64: for 64-bit ARM)
	@tools/edge.sh $(ARCH)

test: build-test ## all checks: C tests (plain and sanitized), golden files, Python tests, real models, lint, types, docs
	@tools/test.sh all

test-fast: build-test ## the inner loop: C tests and quick Python tests
	@tools/test.sh fast

test-full: build-test ## `test` plus the slow matrices
	@tools/test.sh full

asan: setup-test ## all C tests, including those with libtorch, under AddressSanitizer
	@tools/test.sh sanitize address

ubsan: setup-test ## the same under UndefinedBehaviorSanitizer
	@tools/test.sh sanitize undefined

tsan: build-test ## the server under attack and load, under ThreadSanitizer
	@tools/test.sh serve-threads

fuzz: setup-test ## run each fuzz target for FUZZ_SECONDS (60), from its corpus; needs clang
	@tools/fuzz.sh

coverage: setup-test ## line and branch coverage of src/: build/coverage/html/index.html
	@tools/coverage.sh

bench: build-test ## a sample of the CPU benchmarks, about 15 minutes on two cores
	@tools/bench.sh sample

bench-full: build-test ## all CPU benchmarks, about three hours; resumes if interrupted
	@tools/bench.sh full

bench-gpu: build-test ## the benchmarks that need a GPU
	@tools/bench.sh gpu

bench-report: build-test ## write the results to bench/results, docs/benchmarks.md and README.md
	@tools/bench.sh report

docs: build-test ## build the site, which opens offline: build/docs/html/index.html
	@tools/docs.sh

wheel: setup-test ## build a wheel in dist/ and try it in an empty environment
	@tools/wheel.sh

abi: build-test ## update the lists of exports after an intended change; review the diff
	@$(PYTHON) tests/abi/run.py build --update

format: setup-test ## format C, C++ and Python sources
	@tools/test.sh format

clean: ## remove the build; .venv stays
	rm -rf build

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
