#!/bin/bash
# The bundle for machines with a GPU: small enough, and its programs start in a
# bare environment, to say that there is no GPU.
set -uo pipefail
fail() {
  echo "bundle_test: $*" >&2
  exit 1
}
SHARDGRAPH_BINARIES=$PWD tools/gpu_check.sh --bundle="$TEST_TMPDIR/bundle.tar.gz" ||
  fail "no bundle"
tar -C "$TEST_TMPDIR" -xzf "$TEST_TMPDIR/bundle.tar.gz" || fail "cannot unpack it"
cd "$TEST_TMPDIR/shardgraph_gpu_check" || fail "it holds no folder"

# expect STATUS TEXT COMMAND...
expect() {
  local status=$1 text=$2 output
  shift 2
  output=$(env -i PATH=/usr/bin:/bin "$@" 2>&1)
  [ $? = "$status" ] || fail "$* did not end with $status: $output"
  [[ $output == *"$text"* ]] || fail "$* does not say '$text': $output"
}
# The machine that runs this test may have one.
if env -i PATH=/usr/bin:/bin bin/bench --device=cuda --benchmark_filter=NONE; then
  echo "bundle_test: there is a GPU"
  exit 0
fi
for program in bin/*; do
  [ -d "$program" ] || ! ldd "$program" | grep -q 'not found\|libcudart\|libnccl\|libcublas\|libcudnn' ||
    fail "$program needs what is not in the bundle: $(ldd "$program")"
done
expect 1 "no GPU" ./gpu_check.sh
expect 1 "no GPU" bin/train --config=quickstart --device=cuda data.path=none
expect 1 "no GPU" bin/gpu_test
expect 1 "no GPU" bin/bench --device=cuda
expect 2 "checkpoint" bin/generate --checkpoint=none --prompt=a --device=cuda
expect 0 "CUDA" bin/doctor
