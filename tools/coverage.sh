#!/usr/bin/env bash
# Line and branch coverage of src/ by the C and Python tests, from a separate build with counters: as text, and as pages in
# build/coverage/html. `tools/coverage.sh core` leaves out the Python tests and everything that needs libtorch.
source "$(dirname "$0")/common.sh"

dir=$build/coverage
[ -n "$NO_INSTALL" ] || "$python" -m pip install -qq --disable-pip-version-check -c constraints.txt gcovr
has_module gcovr || die "coverage needs gcovr (pip install gcovr)"

how=(-DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS=--coverage -O0" "-DCMAKE_CXX_FLAGS=--coverage -O0" -DCLEAVE_SCRIPTS_DIR=bin)
[ "${1:-all}" = all ] || how+=(-DCLEAVE_TORCH=OFF)
configure "$dir" "${how[@]}"
cmake --build "$dir" -j "$JOBS"
find "$dir" -name "*.gcda" -delete; rm -rf "$dir"/CMakeFiles/*/CompilerId* # which no test runs
ctest --test-dir "$dir" -j "$JOBS" -E '^(abi|elf|outside)$' || say "some tests failed: the figures are those of what ran"
if [ "${1:-all}" = all ]; then
	cmake --install "$dir" --component python --prefix "$dir/python" >/dev/null
	OMP_NUM_THREADS=1 PYTHONPATH=$dir/python "$python" -m pytest -q -n "$JOBS" --dist worksteal -m "not slow" tests/python ||
		say "some tests failed: the figures are those of what ran"
fi
mkdir -p "$dir/html"
"$python" -m gcovr --root "$root" --object-directory "$dir" --filter 'src/' --exclude-unreachable-branches --exclude-throw-branches \
	--gcov-ignore-parse-errors=all -j "$JOBS" --html-nested "$dir/html/index.html" --json-summary "$dir/summary.json" --txt-summary
"$python" - "$dir/summary.json" <<'EOF'
import collections, json, sys

sums = collections.defaultdict(lambda: [0, 0, 0, 0])
for f in json.load(open(sys.argv[1]))["files"]:
    folder = "/".join(f["filename"].split("/")[:2]) if f["filename"].count("/") > 1 else "src"
    for i, key in enumerate(("line_covered", "line_total", "branch_covered", "branch_total")):
        sums[folder][i] += f[key]
print(f"{'':14} {'lines':>8} {'branches':>9}")
for folder, (lines, all_lines, branches, all_branches) in sorted(sums.items()):
    print(f"{folder:14} {100 * lines / max(all_lines, 1):7.1f}% {100 * branches / max(all_branches, 1):8.1f}%  of {all_lines} lines")
EOF
say "pages: $dir/html/index.html"
