#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each for FUZZ_SECONDS. For fuzz_<what>.c and torch_<what>.c the seeds are in
# fuzz/corpus/<what>/ and the words, if any, in fuzz/<what>.dict. New inputs go to build/fuzz/corpus/<what>/, crashes
# to build/fuzz/.
source "$(dirname "$0")/common.sh"

can_fuzz() {
	echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n ? 0 : 0; }' |
		clang -fsanitize=fuzzer,address,undefined -x c - -o /dev/null 2>/dev/null
}
if ! can_fuzz; then
	[ -z "$NO_INSTALL" ] || die "fuzzing needs clang and its runtime libraries, and NO_INSTALL=1 installs nothing"
	apt_install clang
	can_fuzz || apt_install "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
fi

dir=$build/fuzz
configure "$dir" -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCLEAVE_FUZZ=ON -DCLEAVE_TESTS=OFF -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS=-O1 -DCMAKE_CXX_FLAGS=-O1
cmake --build "$dir" -j "$JOBS"

cd "$dir"
for target in fuzz/fuzz_* fuzz/torch_*; do
	name=${target#fuzz/*_}
	seeds=$root/fuzz/corpus/$name
	dict=$root/fuzz/$name.dict
	mkdir -p "corpus/$name"
	args=(-max_total_time="${FUZZ_SECONDS:=60}" -timeout=10 -print_final_stats=1)
	[ ! -e "$dict" ] || args+=(-dict="$dict")
	say "== $name, $FUZZ_SECONDS s"
	"$target" "${args[@]}" "corpus/$name" "$seeds"
done
say "no crash found"
