#!/bin/bash
# gpu_check.sh [--out=FILE] [--minutes=N] [--python=PYTHON]
# gpu_check.sh --bundle=FILE
#
# Checks Shardgraph on the NVIDIA GPU of this machine and writes one JSON report
# (gpu_report.json): the environment (doctor), kernel conformance, training
# beside the CPU, two ranks on one GPU over NCCL, benchmarks and, where PyTorch
# is, the same model with its FSDP2. Takes at most N minutes (10). Exit status: 0
# all passed, 1 not, or no GPU.
#
# --bundle=FILE packs all that it takes into FILE (.tar.gz, below 60 MB): unpack
# it on a machine with a GPU and run ./gpu_check.sh there. It needs no network,
# Bazel or compiler; CUDA's libraries are found in the usual places and in
# Python's wheels (nvidia/*/lib). SHARDGRAPH_BINARIES names a folder with the
# programs, which are then not built.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
programs=(tools/train/train tools/generate/generate tools/bench/bench
  tools/doctor/doctor tests/gpu/gpu_test)

out=gpu_report.json minutes=10 bundle='' python=python3
for argument; do
  case $argument in
    --out=*) out=${argument#*=} ;;
    --minutes=*) minutes=${argument#*=} ;;
    --python=*) python=${argument#*=} ;;
    --bundle=*) bundle=${argument#*=} ;;
    *)
      echo "gpu_check: unknown argument '$argument'; allowed: --out=FILE, --minutes=N, --python=PYTHON, --bundle=FILE" >&2
      exit 2
      ;;
  esac
done
case $minutes in
  '' | *[!0-9]* | 0)
    echo "gpu_check: --minutes is '$minutes'; it takes a number from 1" >&2
    exit 2
    ;;
esac

# Where the programs are: beside this script, or in the build.
root=$here
[ -e "$here/proto/configs" ] || root=$(cd "$here/.." && pwd)
bin=$root/bin
if [ ! -x "$bin/train" ]; then
  cd "$root" || exit 1
  source=${SHARDGRAPH_BINARIES:-}
  if [ -z "$source" ]; then
    bazel build --show_result=0 "${programs[@]/#///}" || exit 1
    source=bazel-bin
  fi
  bin=$(mktemp -d)
  trap 'rm -rf "$bin"' EXIT
  for program in "${programs[@]}"; do
    found=$source/$program
    [ -e "$found" ] || found=$source/$(basename "$program")
    ln -s "$(readlink -f "$found")" "$bin/$(basename "$program")" || exit 1
  done
fi

if [ -n "$bundle" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder" "$bin"' EXIT
  top=$folder/shardgraph_gpu_check
  mkdir -p "$top/proto" "$top/tools/bench"
  "$root/tools/bundle.sh" "$top/bin" "$bin"/* || exit 1
  chmod u+w "$top/bin"/* "$top/bin/lib"/*
  strip "$top/bin"/* "$top/bin/lib"/* 2>/dev/null
  install -m 755 "$root/tools/gpu_check.sh" "$top/"
  cp -rL "$root/proto/configs" "$root/proto/targets" "$top/proto/"
  cp -L "$root/tools/bench/compare_torch.py" "$top/tools/bench/"
  tar -C "$folder" -czf "$bundle" shardgraph_gpu_check || exit 1
  size=$(stat -c %s "$bundle")
  echo "gpu_check: $bundle has $((size / 1000000)) MB"
  if [ "$size" -gt 60000000 ]; then
    echo "gpu_check: that is more than 60 MB; build with --strip=always or leave programs out" >&2
    exit 1
  fi
  exit 0
fi

# The libraries in the bundle; those of CUDA come behind them.
[ ! -d "$bin/lib" ] || export LD_LIBRARY_PATH="$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
started=$SECONDS
left() { echo $((minutes * 60 - (SECONDS - started))); }

if ! message=$("$bin/bench" --device=cuda --benchmark_filter=NONE 2>&1) &&
  [[ $message == *"no GPU"* ]]; then
  echo "gpu_check: ${message#bench: }" >&2
  exit 1
fi

out=$(realpath -m "$out")
work=$(mktemp -d)
trap 'rm -rf "$work"; [ -L "$bin/train" ] && rm -rf "$bin"' EXIT
cd "$root" || exit 1 # presets are found from here

# A string of JSON.
quote() {
  LC_ALL=C tr -d '\000-\010\013-\037' | sed -e 's/\\/\\\\/g; s/"/\\"/g; s/\t/\\t/g' |
    awk 'BEGIN { printf "\"" } { printf "%s%s", (NR > 1 ? "\\n" : ""), $0 } END { printf "\"" }'
}

checks='' failures=0
# check NAME MOST_SECONDS COMMAND...: runs it and notes how it went.
check() {
  local name=$1 most=$2 status begin=$SECONDS log=$work/$1.log result=passed
  shift 2
  if [ "$(left)" -lt 5 ]; then
    result=skipped
    echo "no time is left" >"$log"
  else
    [ "$most" -le "$(left)" ] || most=$(left)
    timeout -k 5 "$most" "$@" >"$log" 2>&1
    status=$?
    [ $status = 0 ] || result=failed
    [ $status = 77 ] && result=skipped
    [ $status != 124 ] || echo "ended after $most seconds" >>"$log"
  fi
  [ $result != failed ] || failures=$((failures + 1))
  printf 'gpu_check: %-22s %s, %d s\n' "$name" $result $((SECONDS - begin))
  [ $result = passed ] || tail -n 5 "$log" | sed 's/^/    /'
  checks+="${checks:+,}
    {\"name\": \"$name\", \"result\": \"$result\", \"seconds\": $((SECONDS - begin)), \"tail\": $(tail -n 30 "$log" | quote)}"
}

# 64,000 bytes that a small model soon learns; the last tenth is held out.
prepare_data() {
  mkdir -p "$work/data"
  awk 'BEGIN { for (i = 0; i < 4000; ++i) printf "%04d is %s\n", i % 97, i % 2 ? "odd." : "even" }' \
    >"$work/text"
  # nanoGPT token files: 16 bits for each byte.
  LC_ALL=C od -An -v -tx1 "$work/text" | awk '{ for (i = 1; i <= NF; ++i) printf "\\x%s\\x00", $i }' >"$work/escaped"
  printf '%b' "$(cat "$work/escaped")" >"$work/tokens"
  head -c 90000 "$work/tokens" >"$work/data/train.bin"
  tail -c +90001 "$work/tokens" >"$work/data/val.bin"
}

small=(--config=quickstart run.steps=30 evaluation.every=0 evaluation.sequences=16
  checkpoint.every=0 run.trace_steps=0 precision.compute=FP32 model.llama.num_hidden_layers=2)

losses() { sed -n 's/.*"step": \([0-9]*\), "loss": \([-0-9.e]*\).*/\1 \2/p' "$1/metrics.jsonl"; }

# The same small training on the GPU and on the CPU.
train_as_cpu() {
  local device
  for device in cuda cpu; do
    "$bin/train" "${small[@]}" --device=$device --run_dir="$work/run_$device" \
      data.path="$work/data" || return 1
  done
  paste <(losses "$work/run_cuda") <(losses "$work/run_cpu") | awk '
    { d = $2 - $4; if (d < 0) d = -d; if (d > most) most = d; if (NR == 1) first = $2; last = $2 }
    END {
      printf "%d steps, loss %g to %g, differs from the CPU by at most %g\n", NR, first, last, most
      exit !(NR == 30 && most < 1e-3 && last < first)
    }'
}

# Two ranks on one GPU: NCCL takes them for two hosts (it refuses otherwise).
two_ranks() {
  local rank pids=() status=0
  for rank in 0 1; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
      MASTER_PORT=29517 CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0} \
      NCCL_HOSTID=gpu_check_$rank NCCL_SOCKET_IFNAME=lo NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 \
      NCCL_IB_DISABLE=1 NCCL_MULTI_RANK_GPU_ENABLE=1 \
      "$bin/train" "${small[@]}" --device=cuda --run_dir="$work/run_two" data.path="$work/data" \
      run.startup_timeout_seconds=60 run.timeout_seconds=30 >"$work/two_$rank.log" 2>&1 &
    pids+=($!)
  done
  for rank in 0 1; do wait "${pids[$rank]}" || status=1; done
  tail -n 12 "$work"/two_?.log
  # Whether NCCL allows it is not ours to promise.
  [ $status = 0 ] || return 77
}

torch() {
  "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || {
    echo "$python has no PyTorch that sees the GPU"
    return 77
  }
  "$python" tools/bench/compare_torch.py --device=cuda --train="$bin/train" --rounds=2 \
    --sequences=16 --json="$work/torch.json"
}
export -f train_as_cpu two_ranks torch losses
export bin work python
small_text=$(declare -p small)
run() { check "$1" "$2" bash -c "$small_text; $3"; }

"$bin/doctor" --format=json >"$work/doctor.json" 2>"$work/doctor.log"
prepare_data
run conformance 150 "$bin/gpu_test --gtest_brief=1 --gtest_filter=-Training/*:*Fixture*"
run training 120 "$bin/gpu_test --gtest_brief=1 --gtest_filter=Training/*"
run train_program 90 train_as_cpu
run two_ranks_on_one_gpu 90 two_ranks
run benchmarks 200 "$bin/bench --device=cuda --benchmark_filter='Steps|Cuda' --benchmark_out=$work/bench.json --benchmark_out_format=json"
run torch_fsdp2 240 torch

json() { if [ -s "$1" ]; then cat "$1"; else printf null; fi; }
{
  printf '{\n  "version": 1,\n  "date": "%s",\n  "seconds": %d,\n' "$(date -u +%FT%TZ)" $((SECONDS - started))
  printf '  "environment": %s,\n' "$(json "$work/doctor.json")"
  printf '  "driver": %s,\n' "$({ nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>&1 || true; } | quote)"
  printf '  "checks": [%s\n  ],\n' "$checks"
  printf '  "benchmarks": %s,\n' "$(json "$work/bench.json")"
  printf '  "torch": %s\n}\n' "$(json "$work/torch.json")"
} >"$out"
echo "gpu_check: report in $out, $failures failed, $((SECONDS - started)) s"
[ $failures = 0 ]
