#!/bin/bash
# coverage.sh [TEST_TARGET ...]: lines of kernels/cuda, of every cuda*.{cc,cu,h}
# and *.cu of a family and of NCCL's and cuBLASLt's callers that the tests run on
# the CUDA double, by gcov. Prints each file and the total; exit status 1 when
# that is below 90 % or no test has a source. By default the tests of kernels,
# communicators and backend, and the trainings on the double.
#
# Compiles only those files anew, outside of the sandbox, which would lose what
# gcov needs, and under a name of this folder, since a compile cache that others
# fill would lose it too; kernels without the access checker, whose hooks would
# watch the counters. SHARDGRAPH_COVERAGE_FLAGS go to bazel.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
targets=("$@")
[ $# != 0 ] || targets=(
  //kernels/attention:attention_test //kernels/cuda:all //kernels/embedding:embedding_test
  //kernels/layout:layout_test //kernels/loss:loss_test //kernels/matmul:matmul_test
  //kernels/matmul:cuda_gemm_test //kernels/norm:norm_test //kernels/optimizer:optimizer_test
  //kernels/pointwise:pointwise_test //kernels/random:dropout_test
  //kernels/collective:nccl_test //tests/parity:cuda_double_test
  //tests/programs:cuda_train_test
)
# What is counted: not tests, nor what stands in for a GPU on the double.
wanted='^kernels/(cuda/|[a-z]+/cuda[^/]*$|[a-z]+/[^/]*[.]cu$|collective/nccl|matmul/cublaslt)'
unwanted='_test|_on_double|BUILD|testing/|cuda_conformance'
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
files='kernels/cuda/.*,kernels/collective/nccl.*,kernels/matmul/cublaslt.*,kernels/[a-z]*/cuda.*'
status=0

# shellcheck disable=SC2086
bazel test --keep_going --spawn_strategy=local ${SHARDGRAPH_COVERAGE_FLAGS:-} \
  "--per_file_copt=$files,-.*_test[.]cc@--coverage,-fprofile-update=atomic,-fprofile-abs-path,-DSG_COVERAGE=$(pwd | cksum | cut -d' ' -f1)" \
  "--per_file_copt=.*on_double.*cu\\.cc@-fno-sanitize=thread" \
  --linkopt=--coverage --cache_test_results=no --test_env=GCOV_PREFIX="$folder/data" \
  "${targets[@]}" || status=1

# Counters lie by the path of the object that they belong to, in which Bazel
# calls its folder /proc/self/cwd; so do the notes.
root=$(bazel info execution_root 2>/dev/null)
find "$folder/data" -name '*.gcda' | while read -r data; do
  notes=$root/${data#"$folder"/data/proc/self/cwd/}
  notes=${notes%.gcda}.gcno
  [ -e "$notes" ] || continue
  cp "$notes" "${data%.gcda}.gcno"
  gcov -t "$data" 2>/dev/null
done >"$folder/lines"

git ls-files | grep -E "$wanted" | grep -E '[.](cc|cu|h)$' | grep -Ev "$unwanted" >"$folder/files"
# "        -:    0:Source:kernels/norm/cuda.cu", then "count:line:text".
awk -F: '
  NR == FNR { is_wanted[$0] = 1; next }
  $3 == "Source" {
    source = $4
    sub(/^.*\/execroot\/shardgraph\//, "", source)
    next
  }
  (source in is_wanted) && $2 + 0 > 0 {
    count = $1
    gsub(/[ *]/, "", count)
    if (count == "-") next
    key = source ":" ($2 + 0)
    if (!(key in lines)) { lines[key] = 0; of[source]++ }
    if (count ~ /^[0-9]/ && !lines[key]) { lines[key] = 1; run[source]++ }
  }
  END {
    for (source in is_wanted) {
      if (!of[source]) {
        if (source ~ /[.]h$/) continue  # declarations
        printf "%6s %% of %4s lines  %s\n", "-", "?", source
        unknown = 1
      }
      if (!of[source]) continue
      missing = ""
      for (n = 1; n < 2000; ++n)
        if ((source ":" n) in lines && !lines[source ":" n]) missing = missing " " n
      printf "%6.1f %% of %4d lines  %s%s\n", 100 * run[source] / of[source], of[source], source,
        missing == "" ? "" : "; not" missing
      total += of[source]; done += run[source]
    }
    printf "%6.1f %% of %4d lines  in all\n", total ? 100 * done / total : 0, total
    exit !(total && !unknown && done >= 0.9 * total)
  }' "$folder/files" "$folder/lines" >"$folder/table" || status=1
sort -k6 "$folder/table"
exit $status
