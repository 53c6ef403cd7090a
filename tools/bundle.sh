#!/bin/bash
# bundle.sh OUTPUT_FOLDER BINARY...: copies binaries built with --config=portable
# together with the shared libraries they need (oneDNN, Gloo) into
# OUTPUT_FOLDER/lib, so that they run on another machine with glibc 2.34 or
# newer. glibc, libstdc++ and CUDA come from that machine.
set -euo pipefail
if [ $# -lt 2 ]; then
  sed -n '2,5s/^# //p' "$0" >&2
  exit 2
fi
output=$1
shift
mkdir -p "$output/lib"
for binary; do
  install -m 755 "$(readlink -f "$binary")" "$output/$(basename "$binary")"
  ldd "$binary" | awk '$3 ~ /^\// {print $1, $3}' | while read -r name path; do
    case $name in
      libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libstdc++.so* | libgcc_s.so*) continue ;;
      libcuda*.so* | libcublas*.so* | libcudnn*.so* | libnccl.so*) continue ;;
    esac
    install -m 644 "$(readlink -f "$path")" "$output/lib/$name"
  done
done
