#!/bin/bash
# coverage.sh [TEST_TARGET ...]: lines of kernels/cuda and of every cuda.{cc,cu}
# of a family that the tests run on the CUDA double, by gcov. Prints each file
# and the total; exit status 1 when that is below 90 %. By default the tests of
# kernels, communicators and backend, and the trainings on the double.
#
# Compiles only those files anew, outside of the sandbox and the compile cache,
# which would both lose what gcov needs.
set -euo pipefail
cd "$(dirname "$0")/../.."
targets=("$@")
[ $# != 0 ] || targets=(
  //kernels/attention:attention_test //kernels/cuda:all //kernels/embedding:embedding_test
  //kernels/layout:layout_test //kernels/loss:loss_test //kernels/matmul:matmul_test
  //kernels/norm:norm_test //kernels/optimizer:optimizer_test
  //kernels/pointwise:pointwise_test //kernels/random:dropout_test
  //kernels/collective:nccl_test //tests/parity:cuda_double_test
  //tests/parity:kernel_fixtures_test //tests/programs:cuda_train_test
)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
files='kernels/cuda/.*,kernels/collective/nccl.*,kernels/[a-z]*/cuda.*'

bazel test --keep_going --disk_cache= --spawn_strategy=local \
  "--per_file_copt=$files@--coverage,-fprofile-update=atomic,-fprofile-abs-path" \
  --linkopt=--coverage --cache_test_results=no --test_env=GCOV_PREFIX="$folder/data" \
  "${targets[@]}"

# Counters lie by the path of the object that they belong to; so do the notes.
root=$(bazel info execution_root 2>/dev/null)
find "$folder/data" -name '*.gcda' | while read -r data; do
  object=${data#"$folder"/data}
  notes=$root/${object##*/execroot/shardgraph/}
  notes=${notes%.gcda}.gcno
  [ -e "$notes" ] || continue
  cp "$notes" "${data%.gcda}.gcno"
  (cd "$folder" && gcov -t "$data" 2>/dev/null) || true
done |
  awk -F: '
    # "        -:    0:Source:kernels/norm/cuda.cu", then "count:line:text".
    $3 == "Source" {
      source = $4
      sub(/^.*\/(execroot\/shardgraph|shardgraph)\//, "", source)
      wanted = source ~ /^(kernels\/cuda\/|kernels\/collective\/nccl|kernels\/[a-z]+\/cuda)/ && source !~ /_test|on_double/
      next
    }
    wanted && $2 + 0 > 0 {
      count = $1
      gsub(/[ *]/, "", count)
      if (count == "-") next
      key = source ":" ($2 + 0)
      if (!(key in lines)) { lines[key] = 0; of[source]++ }
      if (count ~ /^[0-9]/ && !lines[key]) { lines[key] = 1; run[source]++ }
    }
    END {
      for (source in of) {
        printf "%6.1f %% of %4d lines  %s\n", 100 * run[source] / of[source], of[source], source
        total += of[source]; done += run[source]
      }
      printf "%6.1f %% of %4d lines  in all\n", total ? 100 * done / total : 0, total
      exit !(total && done >= 0.9 * total)
    }' | sort -k6
exit "${PIPESTATUS[1]}"
