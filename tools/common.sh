# Sourced by the other scripts: paths, the Python to use, and shared functions.
#
#   PYTHON       the machine's Python, from which .venv is made (default python3)
#   NO_INSTALL   if set, nothing is installed; PYTHON is used as it is and the package goes to build/python
#   JOBS         compiler processes

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

: "${PYTHON:=python3}" "${NO_INSTALL:=}" "${JOBS:=$(nproc)}"
venv=$root/.venv
build=$root/build

if [ -n "$NO_INSTALL" ]; then
	python=$(command -v "$PYTHON" || true)
	package_dir=$build/python
	export PYTHONPATH=$package_dir${PYTHONPATH:+:$PYTHONPATH}
else
	python=$venv/bin/python
fi

say() { printf '%s\n' "$*"; }
die() {
	printf 'cleave: %s\n' "$*" >&2
	exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
has_module() { "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }

# tool <name>: the path of a program, from .venv or else from the machine; empty if neither has it.
tool() {
	if [ -z "$NO_INSTALL" ] && [ -x "$venv/bin/$1" ]; then
		say "$venv/bin/$1"
	else
		command -v "$1" || true
	fi
}

# Our C and C++ files.
c_files() { find include src python tests examples fuzz bench -name '*.[ch]' -o -name '*.[ch]pp' | sort; }

# apt_install <package>...: installs the missing ones; needs root only if there are any.
apt_install() {
	local missing=() p sudo= help
	for p in "$@"; do
		dpkg -s "$p" 2>/dev/null | grep -q '^Status: .* installed$' || missing+=("$p")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	help="Debian packages are missing; run this as root, then try again:
    apt-get update && apt-get install -y ${missing[*]}"
	if [ "$(id -u)" -ne 0 ]; then
		have sudo || die "$help"
		sudo=sudo
	fi
	have apt-get || die "please install: ${missing[*]}"
	say "Installing Debian packages: ${missing[*]}"
	$sudo apt-get update -qq || say "(the package lists could not be refreshed; going on with those at hand)"
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" ||
		die "$help"
}

# configure <folder> <cmake arguments>...: runs cmake once, and again if the arguments change.
configure() {
	local dir=$1 wanted log
	shift
	if have ninja; then set -- -G Ninja "$@"; fi
	set -- "-DPython_EXECUTABLE=$python" "$@"
	wanted="$root $*"
	if [ -e "$dir/build.ninja" ] || [ -e "$dir/Makefile" ]; then
		[ "$(cat "$dir/.configured" 2>/dev/null)" != "$wanted" ] || return 0
	fi
	mkdir -p "$dir"
	rm -rf "$dir/CMakeCache.txt" "$dir/CMakeFiles" "$dir/.configured"
	log=$dir/configure.log
	cmake -S . -B "$dir" "$@" >"$log" 2>&1 || {
		cat "$log" >&2
		die "cmake could not configure $dir"
	}
	grep -E '^-- (torch|Sanitizers|.*: building|.* are off)' "$log" || true
	printf '%s' "$wanted" >"$dir/.configured"
}
