#!/usr/bin/env bash
# The benchmarks. tools/bench.sh sample | full | gpu | report
#
# Results go to build/bench-results; `report` copies those of full and gpu to bench/results and writes docs/benchmarks.md and the
# README's part. An interrupted run of full or gpu resumes where it stopped.
source "$(dirname "$0")/common.sh"

results=$build/bench-results

# Peers are measured only, so they come with the first benchmark and not with set-up.
install_peers() {
	local stamp
	[ -z "$NO_INSTALL" ] || return 0
	stamp=$venv/.bench-$(cat constraints.txt requirements-bench*.txt | sha256sum | cut -c1-16)
	[ ! -e "$stamp" ] || return 0
	say "Installing what Cleave is measured against"
	if "$python" -m pip install -qq --disable-pip-version-check -c constraints.txt -r requirements-bench.txt &&
		"$python" -m pip install -qq --disable-pip-version-check -c constraints.txt --no-deps -r requirements-bench-nodeps.txt; then
		rm -f "$venv"/.bench-*
		touch "$stamp"
	else
		say "(not all of it could be installed; what is missing is left out of the tables, with the reason)"
	fi
}

c_programs() {
	local b
	cmake --build "$build" -j "$JOBS" --target bench
	for b in bench/*.c; do
		[ "$b" != bench/serve_load.c ] || continue
		say "== $b"
		"$build/bench/$(basename "$b" .c)"
	done
}

python_programs() {
	local b
	for b in artifact partition replay split trace; do
		say "== bench/$b.py"
		"$python" "bench/$b.py"
	done
}

suite() { "$python" bench/suite.py "$@"; }

case ${1:-sample} in
sample)
	install_peers
	c_programs
	"$python" bench/growth.py --most-nodes 10000 --megabytes 1 64 --json "$results/sample-growth.json"
	suite --sample --rounds 15 --json "$results/sample.json"
	"$python" bench/report.py "$results/sample.json" "$results/sample-growth.json" --page "$results/sample.md"
	;;
full)
	install_peers
	c_programs
	python_programs
	"$python" bench/growth.py --megabytes 1 16 256 1024 --json "$results/growth.json"
	suite --resume --json "$results/cpu.json"
	"$python" bench/native.py --json "$results/native"
	"$python" bench/link.py --json "$results/link/link.json"
	"$python" bench/serve.py --json "$results/serve/serve.json"
	"$python" bench/report.py "$results/cpu.json" "$results/growth.json" --page "$results/cpu.md"
	;;
gpu)
	install_peers
	"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || die "make bench-gpu needs a GPU that torch can use"
	suite --device cuda --models torchvision-resnet50 torchvision-mobilenet_v3_large transformers-gpt2 transformers-bert \
		llama-like --batches 1 4 8 32 --kinds whole split suffix training --budget 300 --resume --json "$results/gpu.json"
	"$python" bench/report.py "$results/gpu.json" --page "$results/gpu.md"
	;;
report)
	mkdir -p bench/results
	for f in cpu growth gpu; do
		[ ! -e "$results/$f.json" ] || cp "$results/$f.json" bench/results/
	done
	if [ -d "$results/native" ]; then
		mkdir -p bench/results/native
		cp "$results"/native/*.json bench/results/native/
	fi
	for f in link serve; do
		[ -e "$results/$f/$f.json" ] || continue
		mkdir -p "bench/results/$f"
		cp "$results/$f/$f.json" "bench/results/$f/"
	done
	ls bench/results/*.json >/dev/null 2>&1 || die "there are no results yet: make bench-full, make bench-gpu"
	"$python" bench/report.py bench/results/*.json --native bench/results/native \
		--link bench/results/link --serve bench/results/serve --page docs/benchmarks.md --readme README.md
	;;
*) die "tools/bench.sh: no such benchmark: $1" ;;
esac
