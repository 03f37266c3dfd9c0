#!/usr/bin/env bash
# The site: build/docs/html/index.html, which opens without a server. The pages in docs/, the Python API from docstrings, the C
# API by doxygen (in c/), and search. A warning is a failure, and so is a link that leads nowhere.
source "$(dirname "$0")/common.sh"

have doxygen || die "there is no doxygen here; on Debian: apt-get install doxygen"
has_module sphinx || die "there is no Sphinx here; pip install -c constraints.txt -r requirements-dev.txt"
site=build/docs/html
mkdir -p build/docs
CLEAVE_VERSION=$(sed -n 's/^#define CLV_VERSION "\(.*\)".*/\1/p' include/cleave.h)
export CLEAVE_VERSION
rm -rf "$site" build/docs/xml
mkdir -p "$site"
doxygen docs/Doxyfile
"$python" -m sphinx -q -W --keep-going -j auto -d build/docs/cache -c docs . "$site"
cp "$site/README.html" "$site/index.html"
"$python" tools/links.py "$site"
