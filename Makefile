# Cleave. `make demo` and `make test` do all set-up by themselves; `make help` lists the rest.
#
#   NO_INSTALL=1   install nothing: use PYTHON as it is (torch 2.11 or newer), put the package under build/python
#   PYTHON=...     the Python to use (default python3)
#   JOBS=...       compilers at a time (default: as many as there are cores)

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

.PHONY: all setup setup-test build build-test demo test test-fast test-full coverage asan ubsan fuzz bench bench-full bench-gpu bench-report docs wheel abi format clean help

all: build ## set-up, build, install into .venv (the default)

setup: ## what the build needs: Debian packages, .venv, torch; does nothing the second time
	@tools/setup.sh

build: setup
	@tools/build.sh

setup-test: ## and what tests and checks need: tools, real models, a browser
	@tools/setup.sh test

build-test: setup-test
	@tools/build.sh test

demo: build ## capture a network, cut it, run both parts from C, compare with PyTorch
	@$(RUN) -m cleave.demo

test: build-test ## all checks: C tests (also under sanitizers), golden plans, Python tests, real models, lint, types, format
	@tools/test.sh all

test-fast: build-test ## the inner loop: C tests and the quick Python tests
	@tools/test.sh fast

test-full: build-test ## `test` and the large matrices
	@tools/test.sh full

asan: setup-test ## C tests, those with libtorch too, under the address sanitizer
	@tools/test.sh sanitize address

ubsan: setup-test ## the same under the undefined-behaviour sanitizer
	@tools/test.sh sanitize undefined

fuzz: setup-test ## each fuzz target for FUZZ_SECONDS (60), starting from its corpus; needs clang
	@tools/fuzz.sh

coverage: setup-test ## lines and branches of src/ that the tests run: build/coverage/html/index.html
	@tools/coverage.sh

bench: build-test ## a sample of the benchmarks on the CPU, about a quarter of an hour on two cores
	@tools/bench.sh sample

bench-full: build-test ## every benchmark on the CPU, hours; goes on where it ended
	@tools/bench.sh full

bench-gpu: build-test ## the benchmarks that need a GPU
	@tools/bench.sh gpu

bench-report: build-test ## results of bench-full and bench-gpu into bench/results, docs/benchmarks.md and README.md
	@tools/bench.sh report

docs: build-test ## the site: pages, Python API, C API, examples, search: build/docs/html/index.html
	@tools/docs.sh

wheel: setup-test ## a wheel in dist/, tried in an environment of its own
	@tools/wheel.sh

abi: build-test ## rewrite the lists of what the libraries export, after a change that is meant; look at the difference
	@$(PYTHON) tests/abi/run.py build --update

format: setup-test ## rewrite C, C++ and Python sources in the project's format
	@tools/test.sh format

clean: ## remove what was built; .venv stays
	rm -rf build

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
