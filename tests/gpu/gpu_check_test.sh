#!/bin/bash
# shellcheck disable=SC2016
# gpu_check.sh with programs that only pretend: what it reports of those that
# pass, fail and are not there, and how it ends.
set -uo pipefail
fail() {
  echo "gpu_check_test: $*" >&2
  exit 1
}
top=$TEST_TMPDIR/bundle
mkdir -p "$top/bin" "$top/proto/configs" "$top/tools/bench"
cp tools/gpu_check.sh "$top/"
program() {
  printf '#!/bin/bash\n%s\n' "$2" >"$top/bin/$1"
  chmod +x "$top/bin/$1"
}
program doctor "echo '{\"usable\": true}'"
program gpu_test 'echo "said \"this\"	and a \\ backslash"; exit ${GPU_TEST_STATUS:-0}'
program bench 'for a; do case $a in --benchmark_out=*) echo "{\"benchmarks\": []}" >"${a#*=}" ;; esac; done'
program train '
for a; do case $a in --run_dir=*) dir=${a#*=} ;; data.path=*) test -s "${a#*=}/train.bin" || exit 1 ;; esac; done
mkdir -p "$dir"
for ((i = 1; i <= 30; ++i)); do echo "{\"step\": $i, \"loss\": $((60 - i)).5, \"x\": 1}"; done >"$dir/metrics.jsonl"'

cd "$top" || fail "no folder"
./gpu_check.sh --out="$TEST_TMPDIR/good.json" --python=none >"$TEST_TMPDIR/good.log" ||
  fail "a good run ended with $?: $(cat "$TEST_TMPDIR/good.log")"
GPU_TEST_STATUS=3 ./gpu_check.sh --out="$TEST_TMPDIR/bad.json" --python=none >/dev/null &&
  fail "a bad run ended with 0"
./gpu_check.sh --minutes=none 2>/dev/null
[ $? = 2 ] || fail "--minutes=none is not refused"
python3 - "$TEST_TMPDIR" <<'END' || fail "wrong reports"
import json, sys
good, bad = (json.load(open('%s/%s.json' % (sys.argv[1], name))) for name in ('good', 'bad'))
results = lambda report: {check['name']: check['result'] for check in report['checks']}
assert results(good) == {
    'conformance': 'passed', 'training': 'passed', 'train_program': 'passed',
    'two_ranks_on_one_gpu': 'passed', 'benchmarks': 'passed', 'torch_fsdp2': 'skipped'}, good
assert results(bad)['conformance'] == 'failed' and results(bad)['train_program'] == 'passed', bad
assert good['checks'][0]['tail'] == 'said "this"\tand a \\ backslash', good['checks'][0]
assert good['environment'] == {'usable': True} and good['benchmarks'] == {'benchmarks': []}
assert good['torch'] is None and good['checks'][-1]['tail'] == 'none has no PyTorch that sees the GPU'
END
