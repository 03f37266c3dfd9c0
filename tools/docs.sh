#!/usr/bin/env bash
# The pages of cleave.h: build/docs/html/index.html. A warning of doxygen is a failure.
source "$(dirname "$0")/common.sh"

have doxygen || die "there is no doxygen here; on Debian: apt-get install doxygen"
mkdir -p build/docs
CLEAVE_VERSION=$(sed -n 's/^#define CLV_VERSION "\(.*\)".*/\1/p' include/cleave.h)
export CLEAVE_VERSION
doxygen docs/Doxyfile
