#!/usr/bin/env bash
# The checks. tools/test.sh all | fast | full | sanitize <sanitizers> | serve-threads | format
#
# Every step runs, even after a failure; the last line says whether all passed. A step whose tool is missing (possible only with
# NO_INSTALL=1) is skipped and reported.
source "$(dirname "$0")/common.sh"

failed=()
rm -f "$build/pytest.log"
step() { # step <title> <command>...
	say "== $1"
	"${@:2}" || failed+=("$1")
}
skipped=()
skip() {
	say "== $1: off, no $2 here"
	skipped+=("$1 (no $2)")
}

run_ctest() { ctest --test-dir "$1" --output-on-failure -j "$JOBS" "${@:2}"; }

sanitized() { # sanitized <sanitizers> <folder> <cmake arguments>...
	configure "$2" "-DCLEAVE_SANITIZE=$1" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS=-O1 -DCMAKE_CXX_FLAGS=-O1 "${@:3}"
	cmake --build "$2" -j "$JOBS" && run_ctest "$2"
}

# `cleave serve` under sanitizers, attacked and under load. A report of a sanitizer is an exit status of the server, which its
# tests look at.
serve_sanitized() { # serve_sanitized <sanitizers> <folder> <pytest arguments>...
	configure "$2" "-DCLEAVE_SANITIZE=$1" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS=-O1 -DCMAKE_CXX_FLAGS=-O1 -DCLEAVE_TORCH=OFF
	cmake --build "$2" -j "$JOBS" --target cleave-cli || return 1
	CLEAVE_SANITIZED=$1 CLEAVE_COMMAND=$2/cleave OMP_NUM_THREADS=1 "$python" -m pytest -q "${@:3}"
}
serve_load=(tests/python/test_serve_{hostile,limits,kills,production}.py)

# The native engine as 64-bit ARM code, under qemu, with a twentieth of the random trials; `full` makes them all. A sandbox cannot
# start there (qemu has no seccomp), and a process with threads cannot fork.
arm_tests() { # arm_tests <share of random trials>
	configure "$build/aarch64" -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DCLEAVE_TORCH=OFF
	cmake --build "$build/aarch64" -j "$JOBS" --target native-tests replay_native &&
		CLEAVE_TESTS_SHARE=$1 run_ctest "$build/aarch64" --timeout 1200 \
			-R '^(test_native|test_tensor$|test_payload$|replay_native$)' -E '^test_native_(sandbox|team)$'
}
arm_step() { # arm_step all | full
	local t share=20
	[ "$1" = all ] || share=1
	for t in aarch64-linux-gnu-gcc qemu-aarch64; do
		have $t || { skip "Native engine as 64-bit ARM code" $t; return; }
	done
	step "Native engine as 64-bit ARM code, under qemu" arm_tests "$share"
}

# One thread of torch per worker: more only get in each other's way.
run_pytest() {
	local args=(-q)
	if has_module xdist; then args+=(-n "$((JOBS < 4 ? JOBS : 4))" --dist worksteal); fi
	if has_module pytest_timeout; then args+=(--timeout 600); fi
	OMP_NUM_THREADS=1 "$python" -m pytest "${args[@]}" -rs "$@" | tee "$build/pytest.log"
}
# "119 tests: needs a GPU", a line for each reason, from the summary of pytest.
skipped_tests() {
	[ -e "$build/pytest.log" ] || return 0
	awk '/^SKIPPED \[[0-9]+\]/ {
		n = substr($2, 2) + 0
		sub(/^SKIPPED \[[0-9]+\] [^ ]+: /, "")
		sum[$0] += n
	}
	END { for (why in sum) printf "%d %s: %s\n", sum[why], sum[why] == 1 ? "test" : "tests", why }' "$build/pytest.log" | sort -rn
}
pytest_step() { # pytest_step <title> <pytest arguments>...
	if has_module pytest; then step "$1" run_pytest "${@:2}"; else skip "$1" pytest; fi
}

# Formatting differs from version to version of clang-format; only the pinned one counts.
clang_format() { # clang_format <title> <function> <arguments>...
	local program
	program=$(tool clang-format)
	if [ -n "$program" ] && "$program" --version | grep -q 'version 14\.'; then
		step "$1" "$2" "$program" "${@:3}"
	else
		skip "$1" "clang-format 14"
	fi
}
c_format() { c_files | xargs -r "$@"; }
c_format_check() { # clang-format names every character; the files are enough
	local bad
	bad=$(c_format "$@" --dry-run -Werror 2>&1 | sed -n 's/^\([^: ]*\):[0-9]*:[0-9]*: error.*/  \1/p' | sort -u)
	[ -z "$bad" ] || { say "not formatted (make format does it):"; say "$bad"; return 1; }
}

tool_step() { # tool_step <title> <program> <arguments>...
	local program
	program=$(tool "$2")
	if [ -n "$program" ]; then step "$1" "$program" "${@:3}"; else skip "$1" "$2"; fi
}

# The report in a real browser.
browser_tests() { CLEAVE=$build/cleave CLEAVE_PAGE=$build/tests/page node --test tests/browser/report.test.mjs; }
browser_step() {
	local t
	for t in node chromium; do
		have $t || { skip "Report in a browser" $t; return; }
	done
	if [ -d tests/browser/node_modules/playwright-core ]; then
		step "Report in a browser" browser_tests
	else
		skip "Report in a browser" playwright-core
	fi
}

# The site builds without a warning, and its links lead somewhere.
docs_step() {
	if ! have doxygen; then skip "site of the documentation" doxygen
	elif ! has_module sphinx; then skip "site of the documentation" sphinx
	else step "site of the documentation" tools/docs.sh; fi
}

quality() {
	tool_step "ruff check" ruff check --output-format concise .
	tool_step "ruff format" ruff format --check --output-format concise .
	if has_module mypy; then step "mypy --strict" "$python" -m mypy; else skip "mypy --strict" mypy; fi
	clang_format "clang-format" c_format_check
	docs_step
}

case ${1:-all} in
all | full)
	step "The static program for devices" tools/edge.sh
	step "C tests and golden plans" run_ctest "$build"
	step "C tests and golden plans, address and undefined-behaviour sanitizers" \
		sanitized address,undefined "$build/sanitize" -DCLEAVE_TORCH=OFF
	if ! has_module pytest; then
		skip "The server under sanitizers" pytest
	elif [ "$1" = all ]; then
		step "The server under attack, address and undefined-behaviour sanitizers" \
			serve_sanitized address,undefined "$build/sanitize" -m "not slow" "${serve_load[@]:0:3}"
	else
		step "The server under attack and load, address and undefined-behaviour sanitizers" \
			serve_sanitized address,undefined "$build/sanitize" "${serve_load[@]}"
		step "The server under attack and load, thread sanitizer" \
			serve_sanitized thread "$build/thread" "${serve_load[@]}"
	fi
	arm_step "$1"
	browser_step
	quality
	if [ "$1" = all ]; then
		pytest_step "Python tests and real models" -m "not slow"
	else
		pytest_step "Python tests, real models, large matrices"
	fi
	;;
fast) # without what builds and installs a project of its own
	step "C tests and golden plans, the quick ones" run_ctest "$build" -E '^outside$'
	pytest_step "Python tests, the quick ones" -m "not integration and not slow" tests/python
	;;
sanitize)
	step "C tests and golden plans, sanitizer: $2" sanitized "$2" "$build/$2"
	;;
serve-threads)
	step "The server under attack and load, thread sanitizer" \
		serve_sanitized thread "$build/thread" -m "not slow" "${serve_load[@]}"
	;;
format)
	tool_step "ruff check --fix" ruff check --quiet --fix .
	tool_step "ruff format" ruff format --quiet .
	clang_format "clang-format" c_format -i
	;;
*) die "tools/test.sh: no such set of checks: $1" ;;
esac

if [ ${#failed[@]} -gt 0 ]; then
	say "FAILED:"
	printf '  %s\n' "${failed[@]}"
	exit 1
fi
if [ "${1:-all}" != format ]; then
	mapfile -t -O "${#skipped[@]}" skipped < <(skipped_tests)
	text="nothing was skipped"
	[ ${#skipped[@]} = 0 ] || text="skipped $(printf '%s; ' "${skipped[@]}")"
	say "all checks passed; ${text%; }"
fi
