#!/bin/bash
# Every function of CUDA, NCCL, cuBLASLt and cuDNN that our host code calls is
# one that the double has, or that stands in the list of cuDNN's:
#   calls_test.sh LIST DOUBLE ARCHIVE...
# What the double does not have is a call that no test has made.
set -euo pipefail
list=$1 double=$2
shift 2
names='^(cuda[A-Z]|cu[A-Z]|cublas|cudnn|nccl|nvtx)'
known=$({ grep -v '^#' "$list"; nm --defined-only "$double" 2>/dev/null |
  awk 'NF == 3 && $2 ~ /[TW]/ {print $3}'; } | sort -u)
called=0 failed=0
for archive in "$@"; do
  for name in $(nm --undefined-only "$archive" 2>/dev/null |
      awk '$1 == "U" {print $2}' | grep -E "$names" | sort -u); do
    called=$((called + 1))
    grep -qx "$name" <<<"$known" && continue
    echo "$archive calls $name, which the double does not have"
    failed=1
  done
done
# An archive without calls would prove nothing.
[ "$called" -ge 40 ] || { echo "only $called calls found"; exit 1; }
echo "$called calls"
exit $failed
