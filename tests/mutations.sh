#!/bin/bash
# mutations.sh [NAME ...]: breaks a copy of the tree in one place after another
# and expects the tests to notice each time. With names, only those mutations.
# Exits 0 when every mutation is caught, 1 otherwise.
#
# The copy and what is built of it stay beside this tree's build output, so that
# a second run builds little.
set -uo pipefail
cd "$(dirname "$0")/.."

# name | file | sed expression | tests of which at least one must fail
mutations=$(cat <<'END'
drop_norm_reduction | fsdp/train/step_builder.cc | s/if (layout_.shards() > 1) {/if (layout_.shards() > 99) {/ | //tests/parity:training_fixture_test
drop_whole_gather   | fsdp/train/step_builder.cc | s/if (whole_) GatherWhole(i);/if (i < 0) GatherWhole(i);/ | //tests/parity:strategy_parity_test
reduce_too_often    | fsdp/train/step_builder.cc | s/if (!last) return;/if (!last \&\& i > 0) return;/ | //tests/parity:strategy_parity_test
drop_loss_reduction | fsdp/train/step_builder.cc | s/if (world_ == 1) return;/if (world_ > 0) return;/ | //tests/parity:training_fixture_test
scale_gradient      | kernels/pointwise/pointwise_run.cc | s/return d \* u \*/return 0.9f * d * u */ | //tests/parity:training_fixture_test
read_pad            | fsdp/shard/flat_parameter.cc | s/push_back({end, end + parameter->numel(), group})/push_back({end, end + parameter->numel() + 1, group})/ | //tests/property:random_models_test
reuse_dropout_seed  | graph/model/layer.cc       | s/HashName(site)/HashName("site")/ | //graph/model:emit_test
reuse_dropout_step  | kernels/random/cpu.cc      | s/MakeRandomKey(seed, name, \*run_step,/MakeRandomKey(seed, name, 0 * *run_step,/ | //kernels/random:dropout_test
omit_edge           | graph/schedule.cc          | s/^  return schedule;/  if (!schedule.edges.empty()) schedule.edges.pop_back();\n  return schedule;/ | //tests/property:random_models_test
skip_accumulation   | kernels/optimizer/cpu.cc   | s/\*micro == 0 ? Pointwise/*micro >= 0 ? Pointwise/ | //tests/parity:training_fixture_test
END
)

root=$PWD
copy=$(bazel info output_base 2>/dev/null)/mutations/tree
mkdir -p "$(dirname "$copy")" && rm -rf "$copy" && mkdir "$copy" || exit 1
git ls-files -z --cached --others --exclude-standard |
  tar --create --null --files-from=- --ignore-failed-read 2>/dev/null |
  tar --extract --directory="$copy" || exit 1
[ ! -f user.bazelrc ] || cp user.bazelrc "$copy"
cd "$copy" || exit 1
trap 'bazel shutdown >/dev/null 2>&1' EXIT

# 0: all tests pass, 3: a test fails; anything else: they do not build.
run_tests() { # TEST...
  bazel test --noshow_progress --test_output=summary --test_summary=none "$@" \
    >"$copy/../log" 2>&1
}

trim() { sed 's/^ *//; s/ *$//' <<<"$1"; }

mapfile -t lines <<<"$mutations"
names=() files=() edits=() tests=()
for line in "${lines[@]}"; do
  IFS='|' read -r name file edit test <<<"$line"
  name=$(trim "$name")
  [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
  names+=("$name") files+=("$(trim "$file")")
  edits+=("$(trim "$edit")") tests+=("$(trim "$test")")
done
if [ ${#names[@]} = 0 ]; then
  echo "mutations: there is no '$*'; known are:$(cut -d'|' -f1 <<<"$mutations" | tr -s ' \n' ' ' | sed 's/^/ /')" >&2
  exit 2
fi

mapfile -t all_tests < <(printf '%s\n' "${tests[@]}" | sort -u)
if ! run_tests "${all_tests[@]}"; then
  tail -n 30 "$copy/../log"
  echo "mutations: the tests fail without any mutation" >&2
  exit 1
fi

missed=0
for i in "${!names[@]}"; do
  sed -i "${edits[i]}" "${files[i]}"
  if cmp -s "${files[i]}" "$root/${files[i]}"; then
    verdict="not applied: ${files[i]} no longer has what the expression replaces"
  else
    run_tests "${tests[i]}"
    case $? in
      0) verdict="MISSED by ${tests[i]}" ;;
      3) verdict=caught ;;
      *)
        tail -n 30 "$copy/../log"
        verdict="does not build"
        ;;
    esac
  fi
  echo "${names[i]}: $verdict"
  [ "$verdict" = caught ] || missed=$((missed + 1))
  cp "$root/${files[i]}" "${files[i]}"
done
echo "mutations: $((${#names[@]} - missed)) of ${#names[@]} caught"
[ $missed = 0 ]
