#!/usr/bin/env bash
# Builds and runs programs outside of Cleave against an installed copy: by pkg-config and by CMake's find_package, as C11
# and as C++17, with the header alone in other standards, and after the installation was moved.
#
#   tests/outside/run.sh <build folder> <programs: cut, cut run>
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
programs=("${@:2}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

quiet() { # quiet <command>...: its output only if it fails
	"$@" >"$work/log" 2>&1 || { cat "$work/log"; return 1; }
}

check() { # check <what> <command>...
	if "${@:2}"; then
		echo "ok      $1"
	else
		echo "FAILED  $1"
		failed=1
	fi
}

prints() { # prints <file with what is expected> <program>
	"$2" >"$work/log" 2>&1 || { cat "$work/log"; return 1; }
	diff "$1" "$work/log"
}

run_all() { # run_all <folder> <when>
	local p
	for p in "${programs[@]}"; do
		check "$p as C11, $2" prints "$here/$p.expected" "$1/${p}_c"
		check "$p as C++17, $2" prints "$here/$p.expected" "$1/${p}_cpp"
	done
}

by_pkg_config() { # by_pkg_config <prefix> <folder>
	local pc
	pc=$(dirname "$(find "$1" -name cleave-core.pc)")
	mkdir "$2"
	PKG_CONFIG_PATH=$pc quiet make -C "$2" -f "$here/Makefile" PROGRAMS="${programs[*]}"
}

find_package() { # find_package <prefix> <folder> <version> <components>
	cmake -S "$here" -B "$2" "-DCMAKE_PREFIX_PATH=$1" "-DOUTSIDE_VERSION=$3" "-DOUTSIDE_COMPONENTS=$4"
}

refuses() { # refuses <version> <components> <words of the message>
	! find_package "$prefix" "$(mktemp -d -p "$work")" "$1" "$2" >"$work/log" 2>&1 && grep -q "$3" "$work/log"
}

by_cmake() { # by_cmake <prefix> <folder>
	local components=core
	[[ " ${programs[*]} " != *" run "* ]] || components="core;cleave"
	quiet find_package "$1" "$2" "$version" "$components" && quiet cmake --build "$2"
}

both_ways() { # both_ways <prefix> <folder> <when>
	if command -v pkg-config >/dev/null; then
		check "builds by pkg-config$3" by_pkg_config "$1" "$2/pkg-config"
		run_all "$2/pkg-config" "by pkg-config$3"
	else
		echo "off     by pkg-config$3: there is none here"
	fi
	check "builds by find_package$3" by_cmake "$1" "$2/cmake"
	run_all "$2/cmake" "by find_package$3"
}

header_alone() { # header_alone <compiler> <language> <standard>
	local more=()
	[ "$2" = c++ ] || more=(-Wc++-compat -Wstrict-prototypes)
	echo '#include <cleave.h>' >"$work/header.c"
	mkdir -p "$work/shown" # without the pragma that keeps warnings about the header back in C++
	grep -v 'pragma GCC system_header' "$prefix/include/cleave.h" >"$work/shown/cleave.h"
	quiet "$1" -x "$2" "-std=$3" -Wall -Wextra -Wpedantic -Wundef -Wshadow -Werror "${more[@]}" -fsyntax-only \
		"-I$work/shown" "$work/header.c"
}

prefix=$work/first
check "installs" quiet cmake --install "$build" --prefix "$prefix"
! command -v python3 >/dev/null || check "no library is looked for in the build folder" quiet \
	python3 "$here/../elf/run.py" "$prefix" --installed
version=$(sed -n 's/^#define CLV_VERSION "\([0-9]*\.[0-9]*\).*/\1/p' "$prefix/include/cleave.h")
mkdir "$work/before" "$work/after"
both_ways "$prefix" "$work/before" ""
edge_example() {
	quiet cmake -S "$here/../../examples/edge" -B "$work/edge" "-DCMAKE_PREFIX_PATH=$prefix" &&
		quiet cmake --build "$work/edge" && ! ldd "$work/edge/prefix" | grep -q torch
}
check "the example for devices builds, and needs no torch" edge_example
edge_runs() { # a grey image through the prefix; what it writes is what the suffix takes
	{ printf 'P6 8 8 255\n' && printf '%192s' '' | tr ' ' '\200'; } >"$work/image.ppm"
	quiet "$work/edge/prefix" "$here/prefix.clv" "$work/image.ppm" "$work/boundary.safetensors" &&
		quiet "$prefix/bin/cleave" run "$here/suffix.clv" --engine native --boundary "$work/boundary.safetensors" &&
		! "$work/edge/prefix" "$here/prefix.clv" "$here/run.sh" "$work/none" 2>/dev/null
}
check "the example for devices runs a prefix" edge_runs
client_example() {
	quiet cmake -S "$here/../../examples/remote" -B "$work/remote" "-DCMAKE_PREFIX_PATH=$prefix" &&
		quiet cmake --build "$work/remote" && ! ldd "$work/remote/remote" | grep -q torch
}
check "the example of a client builds, and needs no torch" client_example
client_keeps() { # nobody listens at port 9: the boundary waits
	printf '\x93NUMPY\x01\x00v\x00%-117s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 8, 8), }" >"$work/x.npy"
	printf '%768s' '' | tr ' ' '\0' >>"$work/x.npy"
	"$work/remote/remote" "$here/prefix.clv" "$work/x.npy" http://127.0.0.1:9/suffix "$work/waits" >"$work/log" 2>&1
	[ $? = 3 ] && [ -s "$work/waits" ]
}
check "the example of a client keeps what it cannot send" client_keeps
client_sends() { # what waits, and then its own
	timeout 60 "$prefix/bin/cleave" serve --port 0 --engine native --no-sandbox "$here/suffix.clv" 2>"$work/server" &
	local server=$! port="" code=1
	for _ in $(seq 200); do
		port=$(sed -n 's/^serving at http:.*:\([0-9]*\)$/\1/p' "$work/server")
		[ -z "$port" ] || break
		sleep 0.05
	done
	if quiet "$work/remote/remote" "$here/prefix.clv" "$work/x.npy" "http://127.0.0.1:$port/suffix" "$work/waits"; then
		[ "$(grep -c '^sent' "$work/log")" = 2 ] && [ ! -e "$work/waits" ] && code=0
	fi
	kill $server
	wait $server || true
	return $code
}
if "$prefix/bin/cleave" serve --help >/dev/null 2>&1; then
	check "the example of a client sends to a server" client_sends
fi
check "find_package refuses another version" refuses 99.1 core 'not considered .*compatible\|requested version'
check "find_package refuses a component that is not there" refuses "$version" nothing 'no component nothing'

for standard in c99 c11 c17; do
	for cc in gcc clang; do
		! command -v $cc >/dev/null || check "the header alone, $cc -std=$standard" header_alone $cc c $standard
	done
done
for standard in c++11 c++17 c++20; do
	for cc in g++ clang++; do
		! command -v $cc >/dev/null || check "the header alone, $cc -std=$standard" header_alone $cc c++ $standard
	done
done

mkdir "$work/moved"
mv "$prefix" "$work/moved/second"
prefix=$work/moved/second
export LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(dirname "$(find "$prefix" -name libcleave-core.so)")
run_all "$work/before/cmake" "built before the move"
unset LD_LIBRARY_PATH
both_ways "$prefix" "$work/after" ", after a move"
check "the command line runs, after a move" quiet "$prefix/bin/cleave" --version
exit $failed
