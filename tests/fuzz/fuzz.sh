#!/bin/bash
# fuzz.sh NAME|all SECONDS [LIBFUZZER_FLAG ...]: fuzzes a harness of this folder
# (safetensors, manifest, store, config, ...) for so many seconds with libFuzzer
# and AddressSanitizer, from its corpus and what earlier runs have found. With
# `all`, each in turn. Needs clang with libFuzzer. Prints a line for each and,
# last, "N passed, N failed"; the exit status is 0 only if nothing was found.
# An input that breaks something is kept and named.
set -uo pipefail
cd "$(dirname "$0")/../.."
if [ $# -lt 2 ]; then
  echo "usage: tests/fuzz/fuzz.sh NAME|all SECONDS [LIBFUZZER_FLAG ...]" >&2
  exit 2
fi
name=$1 seconds=$2
shift 2

mapfile -t known < <(sed -n 's/^    name = "\(.*\)_fuzz",$/\1/p' tests/fuzz/BUILD.bazel)
if [ "$name" = all ]; then
  names=("${known[@]}")
elif [[ " ${known[*]} " == *" $name "* ]]; then
  names=("$name")
else
  echo "fuzz: there is no '$name'; known are: ${known[*]}" >&2
  exit 2
fi
targets=()
for n in "${names[@]}"; do targets+=("//tests/fuzz:${n}_fuzz_fuzzer"); done
bazel build --config=fuzz "${targets[@]}" || exit 1
bin=$(bazel info --config=fuzz bazel-bin)/tests/fuzz

found=${SHARDGRAPH_FUZZ_DIR:-$HOME/.cache/shardgraph-fuzz}
passed=0 failed=0
for n in "${names[@]}"; do
  mkdir -p "$found/$n"
  if "$bin/${n}_fuzz_fuzzer" -max_total_time="$seconds" -timeout=10 \
      -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$found/$n-" \
      "$@" "$found/$n" "tests/fuzz/corpus/$n" >"$found/$n.log" 2>&1; then
    echo "passed $n: $(sed -n 's/^stat::number_of_executed_units: *//p' "$found/$n.log") executions"
    passed=$((passed + 1))
  else
    tail -n 40 "$found/$n.log"
    echo "FAILED $n: see $found/$n.log and $found/$n-*"
    failed=$((failed + 1))
  fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
