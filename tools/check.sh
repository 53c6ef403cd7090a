#!/bin/bash
# check.sh [--long] [BAZEL_FLAG ...]: sets this machine up, then runs every test.
# The last line says how many test cases passed, failed and were skipped; the
# exit status is 0 only if none failed. --long adds the tests tagged `exhaustive`, the
# tests of whole runs on the kernels of every kind of processor that this one can stand
# for, all tests under each sanitizer and built by clang, and the mutations that the tests
# must catch.
# BAZEL_FLAGs go to every `bazel test`, for example --config=nocuda.
set -uo pipefail
cd "$(dirname "$0")/.."

long=0
flags=()
for argument; do
  case $argument in
    --long) long=1 ;;
    -*) flags+=("$argument") ;;
    *)
      echo "check: unknown argument '$argument'; allowed: --long and flags for bazel test" >&2
      exit 2
      ;;
  esac
done
[ -t 2 ] || flags+=(--show_progress_rate_limit=15)

events=$(mktemp)
trap 'rm -f "$events"' EXIT
passed=0 failed=0 skipped=0

add() {
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# Prints "passed failed skipped" from Bazel's build events: the test cases of
# every test.xml; a target that does not build, or fails without naming a case,
# counts as one failure; a test that cannot run here (CUDA) as one skipped.
count() {
  awk '
    function field(name, end) {
      if (!match($0, "\"" name "\":\"[^\"]*\"")) return ""
      end = length(name) + 4
      return substr($0, RSTART + end, RLENGTH - end - 1)
    }
    /"targetKind":"[a-z_]*_test rule"/ { is_test[field("label")] = 1 }
    /"targetCompleted".*"completed":\{.*"failureDetail"/ { failed++ }
    /"aborted":\{"reason":"SKIPPED"/ { skipped += is_test[field("label")] }
    /"testResult":\{"testActionOutput"/ {
      bad = 0
      if (match($0, /"test.xml","uri":"file:\/\/[^"]*"/)) {
        xml = substr($0, RSTART + 25, RLENGTH - 26)
        in_case = 0
        while ((getline line < xml) > 0) {
          if (line ~ /<testcase .*status="run"/) {
            in_case = 1
            if (line ~ /result="skipped"/) skipped++; else passed++
          }
          if (in_case && line ~ /<(failure|error)[ >]/) { in_case = 0; passed--; bad++ }
        }
        close(xml)
      }
      if (!bad && field("status") !~ /^(PASSED|FLAKY)$/) bad = 1
      failed += bad
    }
    END { print passed + 0, failed + 0, skipped + 0 }' "$events"
}

# run TITLE BAZEL_ARGUMENT...: one `bazel test`, added to the counts.
run() {
  local title=$1 status counts
  shift
  printf '\n== %s\n' "$title"
  bazel test --keep_going --build_event_json_file="$events" "${flags[@]}" "$@"
  status=$?
  read -r -a counts < <(count)
  if [ $status != 0 ] && [ $status != 4 ] && [ "${counts[1]}" = 0 ]; then
    echo "check: bazel ended with status $status" >&2
    counts[1]=1
  fi
  add "${counts[@]}"
}

# run_script TITLE COMMAND...: a script whose last line is "N passed, N failed"
# or "N passed, N failed, N skipped".
run_script() {
  local title=$1 output status last counts
  shift
  printf '\n== %s\n' "$title"
  output=$("$@" 2>&1)
  status=$?
  printf '%s\n' "$output"
  last=$(tail -n 1 <<<"$output")
  read -r -a counts < <(tr -dc '0-9 ' <<<"$last")
  if [[ $last != *" passed, "*" failed"* ]]; then counts=(0 1 0); fi
  add "${counts[0]}" "${counts[1]}" "${counts[2]:-0}"
  [ $status = 0 ] || [ "${counts[1]}" != 0 ] || add 0 1 0
}

if ! tools/setup.sh; then
  echo "0 passed, 1 failed"
  exit 1
fi

run "every test" //...
if [ $long = 1 ]; then
  run "exhaustive tests" --test_tag_filters=exhaustive //...
  # The tests of kernels above are on all of them.
  targets=$(bazel run "${flags[@]}" //tools:doctor -- --format=json | python3 -c '
import json, sys
cpu = json.load(sys.stdin)["cpu"]
print(*(target for target in cpu["targets"] if target != cpu["target"]))') || add 0 1 0
  for target in $targets; do
    run "whole runs, kernels for $target" --test_env=SHARDGRAPH_CPU_TARGET="$target" \
      //tests/parity:all //tests/property:all //tests/programs:all
  done
  # Address and undefined behaviour go together; threads need a build of their own.
  for configs in "--config=asan --config=ubsan" --config=tsan; do
    # shellcheck disable=SC2086
    run "every test, $configs" $configs --config=nocuda \
      //... //tests/sanitizers:planted_bugs_test
  done
  if [ -x tests/mutations.sh ]; then
    printf '\n== mutations\n'
    if tests/mutations.sh; then add 1 0 0; else add 0 1 0; fi
  fi
  run_script "launchers" tests/launchers/same_result.sh
  if command -v clang >/dev/null; then
    run "every test, --config=clang" --config=clang //...
    run_script "fuzzers" tests/fuzz/fuzz.sh all 60
  else
    printf '\n== clang, fuzzers: skipped, no clang\n'
    add 0 0 2
  fi
fi

closing="$passed passed, $failed failed"
[ $skipped = 0 ] || closing+=", $skipped skipped"
printf '\n%s\n' "$closing"
[ $failed = 0 ]
