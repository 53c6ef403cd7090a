#!/bin/bash
# fuzz.sh NAME|all SECONDS|EXECUTIONSx [LIBFUZZER_FLAG ...]: fuzzes a harness of
# this folder (safetensors, manifest, store, config, ...) for so many seconds
# (60) or executions (10000000x) with libFuzzer and AddressSanitizer, from its
# corpus, its dictionary, and what earlier runs have found. With `all`, each in
# turn. Needs clang with libFuzzer. Prints a line for each and, last,
# "N passed, N failed"; the exit status is 0 only if nothing was found. An input
# that breaks something is kept and named: run the harness with its path, and it
# breaks again, with the whole stack of each allocation.
set -uo pipefail
cd "$(dirname "$0")/../.."
if [ $# -lt 2 ] || ! [[ $2 =~ ^[0-9]+x?$ ]]; then
  echo "usage: tests/fuzz/fuzz.sh NAME|all SECONDS|EXECUTIONSx [LIBFUZZER_FLAG ...]" >&2
  exit 2
fi
name=$1
case $2 in
  *x) limit="-runs=${2%x}" ;;
  *) limit="-max_total_time=$2" ;;
esac
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
# Bytes of an input: enough for everything a format has, several times.
declare -A bytes=([config]=512 [manifest]=768 [safetensors]=384 [store]=256
  [token_file]=160 [tokenizer]=320)
targets=()
for n in "${names[@]}"; do targets+=("//tests/fuzz:${n}_fuzz_fuzzer"); done
bazel build --config=fuzz "${targets[@]}" || exit 1
bin=$(bazel info --config=fuzz bazel-bin)/tests/fuzz

# Short stacks of allocations, and freed memory that stays in the cache: twice
# as many executions in the same time.
export ASAN_OPTIONS=${ASAN_OPTIONS-malloc_context_size=2:quarantine_size_mb=8:thread_local_quarantine_size_kb=64}
found=${SHARDGRAPH_FUZZ_DIR:-$HOME/.cache/shardgraph-fuzz}
passed=0 failed=0
for n in "${names[@]}"; do
  mkdir -p "$found/$n"
  if "$bin/${n}_fuzz_fuzzer" "$limit" -max_len="${bytes[$n]}" \
      -dict="tests/fuzz/dict/$n" -timeout=10 -rss_limit_mb=2048 \
      -print_final_stats=1 -artifact_prefix="$found/$n-" \
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
