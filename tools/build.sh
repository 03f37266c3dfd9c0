#!/usr/bin/env bash
# Builds into build/ and installs the package into .venv, or with NO_INSTALL=1 into build/python. With the argument `test`, also
# builds tests, examples and benchmarks.
source "$(dirname "$0")/common.sh"

if [ -n "$NO_INSTALL" ]; then
	scripts=bin
else
	package_dir=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
	scripts=$venv/bin
fi
configure "$build" "-DCLEAVE_SCRIPTS_DIR=$scripts"
if [ "${1:-}" = test ]; then
	cmake "$build" >>"$build/configure.log" # what set-up installed since then is found now
	cmake --build "$build" -j "$JOBS"
else
	cmake --build "$build" -j "$JOBS" --target product
fi
cmake --install "$build" --component python --prefix "$package_dir" >"$build/install.log"

# Files of the package that the sources no longer have.
find "$package_dir/cleave" -type f ! -path '*/__pycache__/*' | sort |
	comm -23 - <(sort "$build/install_manifest_python.txt") | xargs -r -d '\n' rm -f
