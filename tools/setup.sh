#!/usr/bin/env bash
# Set-up: Debian packages, .venv, torch, then everything else that tests and real models need; what drives a browser.
# What is done is not done again: .venv/.stamp-<hash of the requirement files> says that .venv holds this very set.
# With NO_INSTALL=1 only looks at what is there.
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

# Debian packages. Programs that are there from elsewhere count; Debian's own Python splits off venv and headers.
packages=()
have cmake || packages+=(cmake)
have ninja || packages+=(ninja-build)
have g++ || packages+=(g++)
have pkg-config || packages+=(pkg-config)
have doxygen || packages+=(doxygen)
[ -e /usr/include/cmocka.h ] || packages+=(libcmocka-dev)
for t in groff mandoc zsh fish; do # they read manual pages and completion scripts in tests
	have $t || packages+=($t)
done
[ -e /usr/include/jansson.h ] || packages+=(libjansson-dev)
[ -e /usr/include/metis.h ] || packages+=(libmetis-dev)
[ -e /usr/include/xxhash.h ] || packages+=(libxxhash-dev)
[ -e /usr/include/openssl/evp.h ] || packages+=(libssl-dev)
[ -e /usr/include/zstd.h ] || packages+=(libzstd-dev)
have chromium || packages+=(chromium)
have node || packages+=(nodejs)
have npm || packages+=(npm)
have dot || packages+=(graphviz)
read -r version prefix < <("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.base_prefix)')
if [ "$prefix" = /usr ]; then
	packages+=("python$version-venv" "python$version-dev")
fi
apt_install "${packages[@]}"

# What the tests of the report drive the browser with; its version and its hash are in package-lock.json.
browser=tests/browser
browser_stamp=$browser/node_modules/.stamp-$(sha256sum <$browser/package-lock.json | cut -c1-16)
if [ ! -e "$browser_stamp" ]; then
	say "Installing playwright-core for the tests in a browser"
	npm ci --prefix $browser --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
	touch "$browser_stamp"
fi

stamp=$venv/.stamp-$(cat constraints.txt requirements-*.txt tools/setup.sh tools/torchvision.sh | sha256sum | cut -c1-16)
[ ! -e "$stamp" ] || exit 0

if [ ! -x "$venv/bin/python" ]; then
	say "Creating .venv with $("$PYTHON" -V)"
	"$PYTHON" -m venv "$venv"
fi
"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip --upgrade >/dev/null ||
	die "there is no pip in .venv and none can be made; install your Python's venv/ensurepip package and remove .venv"

# torch first, and held by the constraints from then on. The model libraries come without their dependencies: several
# would bring a second torch, or a second OpenCV.
install() { "$python" -m pip install -qq --disable-pip-version-check -c constraints.txt "$@"; }
say "Installing torch (this can take some minutes)"
install torch numpy
say "Installing tools for tests and checks"
install -r requirements-dev.txt
say "Installing real models for the integration tests"
install -r requirements-models.txt
install --no-deps -r requirements-models-nodeps.txt
tools/torchvision.sh

rm -f "$venv"/.stamp-*
touch "$stamp"
