#!/bin/bash
# mutations.sh [NAME ...]: breaks a copy of the tree in one place after another
# and expects the tests to notice each time. With names, only those mutations.
# Exits 0 when every mutation is caught, 1 otherwise.
#
# The copy and what is built of it stay beside this tree's build output, so that
# a second run builds little.
set -uo pipefail
cd "$(dirname "$0")/.."

# name | file | sed expression | the test that must fail: of those that do the
# quickest, with --test_filter where few of its cases are needed
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
keep_loss_scale     | fsdp/train/optimizer_nodes.cc | s/if (config.precision().compute() != FP16) return;/return;/ | //tests/parity:precision_parity_test --test_filter=LossScale*
scale_not_taken_out | kernels/optimizer/cpu.cc   | s#: \*nominal_tokens / \*token_count / \*loss_scale;#: *nominal_tokens / *token_count;# | //kernels/optimizer:optimizer_test
backoff_keeps_count | kernels/optimizer/cpu.cc   | /\*loss_scale \* backoff/,/else if/s/\*counter = 0;// | //kernels/optimizer:optimizer_test
advance_when_skipped | kernels/optimizer/cpu.cc  | /PrepareAdvanceState/,/^}/s/if (\*found_inf != 0) return;// | //kernels/optimizer:optimizer_test
forget_stop         | kernels/optimizer/cpu.cc   | s/(bad .. \*stop != 0)/bad/ | //kernels/optimizer:optimizer_test
skip_in_place_of_stop | fsdp/train/optimizer_nodes.cc | s/NonFinite policy = NonFinite::kStop;/NonFinite policy = NonFinite::kSkip;/ | //tests/parity:precision_parity_test --test_filter=NonFinite*
ignore_policy       | fsdp/train/optimizer_nodes.cc | s/policy = NonFinite::kSkip;/policy = NonFinite::kIgnore;/ | //tests/parity:precision_parity_test --test_filter=NonFinite*
decouple_adam       | fsdp/train/optimizer_nodes.cc | s/== OptimizerSpec::ADAM) attributes.SetInt("l2", 1)/== OptimizerSpec::ADAM) attributes.SetInt("l2", 0)/ | //tests/parity:precision_parity_test --test_filter=Optimizers.Differ
lion_mixes_betas    | kernels/optimizer/optimizer_run.cc | s/old \* s.beta1 + s.one_minus_beta1/old * s.beta2 + s.one_minus_beta2/ | //kernels/optimizer:optimizer_test
same_chance_twice   | kernels/optimizer/optimizer_run.cc | s/number = index == 0 ?/number = index >= 0 ?/ | //kernels/optimizer:optimizer_test
chance_by_shard     | kernels/optimizer/cpu.cc   | s/run.element = static_cast<uint64_t>(context.rank \* run.n);/run.element = 0;/ | //kernels/optimizer:optimizer_test
smooth_target_only  | kernels/loss/cpu.cc        | s/-share \* scale);/0 * share * scale);/ | //kernels/loss:loss_test
half_of_z_loss      | kernels/loss/cpu.cc        | s/static_cast<float>(2 \* z_loss_)/static_cast<float>(z_loss_)/ | //kernels/loss:loss_test
drop_adapter_scale  | graph/model/layers_linear.cc | s/if (lora_.scale != 1)/if (lora_.scale < 0)/ | //tests/parity:training_fixture_test --test_filter=LoraFixtureTest*
keep_others_piece   | kernels/layout/cpu.cc      | s/context.rank \* bytes/0 * bytes/ | //kernels/layout:layout_test
forget_kept_pieces  | fsdp/train/parameter_gather.cc | s/^  recipes_.emplace(/  if (kept_by_ < 0) recipes_.emplace(/ | //tests/plan:golden_plans_test
train_below_adapters | fsdp/shard/parameter_groups.cc | s/if (!parameter->adapter) result/if (parameter == nullptr) result/ | //tests/parity:memory_test --test_filter=*WhatIsNotTrained*
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

mapfile -t all_tests < <(printf '%s\n' "${tests[@]%% *}" | sort -u)
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
    read -ra words <<<"${tests[i]}"
    run_tests "${words[@]}"
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
