#!/usr/bin/env bash
# Builds the static program for devices: build/cleave-edge, or with the argument `aarch64` build/cleave-edge-aarch64.
source "$(dirname "$0")/common.sh"

case ${1:-} in
"") configure "$build/edge" -DCLEAVE_EDGE=ON; from=$build/edge to=$build/cleave-edge ;;
aarch64)
	have aarch64-linux-gnu-gcc || die "no aarch64-linux-gnu-gcc; on Debian: apt-get install gcc-aarch64-linux-gnu, and libjansson-dev:arm64, libzstd-dev:arm64"
	configure "$build/edge-aarch64" -DCLEAVE_EDGE=ON -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake
	from=$build/edge-aarch64 to=$build/cleave-edge-aarch64
	;;
*) die "edge.sh: no such processor: $1 (aarch64, or none for this machine's)" ;;
esac
cmake --build "$from" -j "$JOBS" --target cleave-edge
cp "$from/cleave-edge" "$to"
say "$to: $(stat -c %s "$to") bytes"
