#!/bin/bash
# quickstart.sh [field.path=value ...]: from a fresh machine to a small trained model. Installs what is missing, builds,
# prepares a real text (the WordNet dictionary of Debian's package dict-wn), trains the preset `quickstart` on two sharded
# ranks, and lets the model write. Arguments override fields of the config, for example run.steps=1000.
set -euo pipefail
cd "$(dirname "$0")/.."

text=/usr/share/dictd/wn.dict.dz
data=data/wordnet
run=runs/quickstart-$(date +%Y%m%d-%H%M%S)

tools/setup.sh
if [ ! -f "$text" ]; then
  echo "quickstart: $text is missing; install Debian's package dict-wn" >&2
  exit 1
fi
echo "== build"
bazel build //tools:prepare //tools:train //tools:generate //tools:plan

echo "== prepare $data"
mkdir -p "$data"
zcat "$text" > "$data/wordnet.txt"
bazel run //tools:prepare -- --input="$data/wordnet.txt" --output="$data"

# The preset's steps are for AMX. Without it a step takes longer: fewer of them, so that it stays a matter of minutes.
target=$(bazel run //tools:plan -- --config=quickstart --world_size=2 --format=json | python3 -c '
import json, sys
print(json.load(sys.stdin)["target"])')
case $target in
  cpu_amx) steps=() ;;
  cpu_avx512_bf16) steps=(run.steps=1800) ;;
  cpu_avx512) steps=(run.steps=1200) ;;
  *) steps=(run.steps=600) ;;
esac
if [ ${#steps[@]} != 0 ]; then
  echo "== this processor has no AMX: training ${steps[0]#run.steps=} steps only"
fi
echo "== train"
bazel run //tools:train -- --config=quickstart --nproc=2 --run_dir="$run" data.path="$data" "${steps[@]}" "$@"
bazel run //tools:plan -- --config=quickstart --world_size=2 --format=svg > "$run/plan.svg"

echo "== sample"
bazel run //tools:generate -- --checkpoint="$run" --prompt="computer" --max_tokens=200
bazel run //tools:generate -- --checkpoint="$run" --prompt=$'\nc' --num_samples=50 --temperature=0.8 \
  > "$run/samples.txt"

echo
echo "== how good it is"
python3 tools/quickstart_report.py --data="$data" --run="$run" --samples="$run/samples.txt"

echo
echo "== where everything is: $run"
echo "   config.textproto   the config, with every default written out"
echo "   plan.txt plan.svg  the step plan, as text and as a picture"
echo "   metrics.jsonl      losses and speed; events.out.tfevents.* the same for: tensorboard --logdir=$run"
echo "   trace.json         when each node of some steps ran; open it in Perfetto or chrome://tracing"
echo "   samples.txt        50 samples: words that begin with c"
echo "   checkpoints/       weights and optimizer state; logs/ what each rank said"
echo "   go on with: bazel run //tools:train -- --config=$run/config.textproto --run_dir=$run --nproc=2 run.steps=3000 schedule.decay_steps=3000"
