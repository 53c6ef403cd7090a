#!/bin/bash
# same_result.sh [NAME ...]: trains a small model on two ranks of this host
# under each launcher that is installed, or under those named, and expects the
# same losses, gradient norms and weights from all of them:
#   launch          //tools:launch
#   nproc           train --nproc
#   torchrun        with the store of its agent
#   torchrun-own    with a store of our own
#   mpirun          Open MPI
#   srun            Slurm, on a cluster of this one node (slurm_node.sh)
# Prints a line for each and, last, "N passed, N failed, N skipped"; the exit
# status is 0 only if none failed. TORCHRUN names another torchrun than that in
# PATH. Debian's packages: openmpi-bin, slurm-wlm.
set -uo pipefail
cd "$(dirname "$0")/../.."
bazel build //tools:launch //tools:prepare //tools:train || exit 1
train=$PWD/bazel-bin/tools/train/train
launch=$PWD/bazel-bin/tools/launch/launch
prepare=$PWD/bazel-bin/tools/prepare/prepare
torchrun=${TORCHRUN:-torchrun}

work=$(mktemp -d)
trap 'tests/launchers/slurm_node.sh stop "$work/slurm" >/dev/null 2>&1; rm -rf "$work"' EXIT
"$prepare" --input="$PWD/README.md" --output="$work/data" >/dev/null || exit 1
cat >"$work/config.textproto" <<'END'
model { gpt2 { vocab_size: 256 n_positions: 32 n_embd: 36 n_layer: 2 n_head: 4 } }
data { batch_size: 6 sequence_length: 16 micro_batch_size: 1 }
run { steps: 12 seed: 3 threads: 1 log_every: 100 }
END

# started NAME: runs `train` under the launcher; the run is in $work/NAME.
started() {
  local arguments=("--config=$work/config.textproto" "--run_dir=$work/$1"
    "data.path=$work/data")
  case $1 in
    nproc) "$train" --nproc=2 "${arguments[@]}" ;;
    launch)
      "$launch" --nproc=2 "--log_dir=$work/$1/logs" -- "$train" "${arguments[@]}"
      ;;
    torchrun)
      "$torchrun" --no-python --standalone --nproc-per-node=2 \
        "$train" "${arguments[@]}"
      ;;
    torchrun-own)
      TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
        "$torchrun" --no-python --standalone --nproc-per-node=2 \
        "$train" "${arguments[@]}"
      ;;
    mpirun)
      local options=(-n 2 --oversubscribe)
      [ "$(id -u)" != 0 ] || options+=(--allow-run-as-root)
      mpirun "${options[@]}" "$train" "${arguments[@]}"
      ;;
    srun)
      tests/launchers/slurm_node.sh start "$work/slurm" &&
        SLURM_CONF=$work/slurm/slurm.conf srun -n 2 "$train" "${arguments[@]}"
      ;;
  esac
}

# Why a launcher cannot be tried here; nothing when it can.
missing() {
  case $1 in
    torchrun*) command -v "$torchrun" >/dev/null || echo "no torchrun" ;;
    mpirun) command -v mpirun >/dev/null || echo "no mpirun (openmpi-bin)" ;;
    srun)
      if ! command -v srun >/dev/null || ! command -v slurmctld >/dev/null; then
        echo "no Slurm (slurm-wlm)"
      elif [ "$(id -u)" != 0 ]; then
        echo "Slurm's daemons need root"
      fi
      ;;
  esac
}

# What a run has computed: its metrics without times, and its weights.
result() {
  sed 's/, "tokens_per_second".*//' "$work/$1/metrics.jsonl" &&
    (cd "$work/$1/checkpoints/step_0000012" && cat shard-*) | sha256sum
}

passed=0 failed=0 skipped=0
names=("$@")
[ $# != 0 ] || names=(nproc launch torchrun torchrun-own mpirun srun)
started nproc >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
expected=$(result nproc) || exit 1
for name in "${names[@]}"; do
  why=$(missing "$name")
  if [ -n "$why" ]; then
    echo "skipped $name: $why"
    skipped=$((skipped + 1))
    continue
  fi
  rm -rf "${work:?}/$name"
  if ! timeout 300 bash -c "$(declare -f started); $(declare -p work train launch torchrun); started $name" \
      >"$work/log" 2>&1; then
    tail -n 30 "$work/log"
    echo "FAILED $name: it ended badly"
    failed=$((failed + 1))
  elif [ "$(result "$name")" != "$expected" ]; then
    diff <(result "$name") <(echo "$expected")
    echo "FAILED $name: the result differs from that of train --nproc"
    failed=$((failed + 1))
  else
    echo "passed $name"
    passed=$((passed + 1))
  fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
