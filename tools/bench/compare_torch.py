#!/usr/bin/env python3
"""Tokens per second of Shardgraph and of PyTorch, side by side.

The same GPT-2 (124 M parameters by default), batch, sequence length and
precision, as many processes on the same cores, in alternating runs: ours with
`//tools:train`, PyTorch's with FSDP2 (`fully_shard`) or, where that does not
run, with DDP and autocast. AdamW and gradient clipping in both. Needs PyTorch,
any version with torch.distributed and Gloo; nothing else here does.

    bazel build //tools:train
    python3 tools/bench/compare_torch.py [--rounds=3] [--steps=4] [--json=FILE]

Prints tokens per second of each run (of its fastest step) and the ratio of the
best ones. With --device=cuda, one rank for each GPU, over NCCL, PyTorch plain,
with its blocks compiled, and with them compiled to CUDA graphs; the ratio is to
the fastest of these.
"""

import argparse
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WARM_UP = 5 if '--device=cuda' in sys.argv else 2  # steps that do not count, in both


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--config', default='gpt2_124m',
                        help='a preset of proto/configs with a gpt2 model')
    parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu')
    parser.add_argument('--ranks', type=int, default=0, help='default: 2, or 1 with a GPU')
    parser.add_argument('--sequences', type=int, default=1, help='per rank and step')
    parser.add_argument('--sequence_length', type=int, default=0, help='default: all positions')
    parser.add_argument('--precision', choices=['BF16', 'FP32'], default='BF16')
    parser.add_argument('--rounds', type=int, default=3, help='runs of each, alternating')
    parser.add_argument('--steps', type=int, default=4, help='timed steps of a run')
    parser.add_argument('--parallel', choices=['auto', 'fsdp2', 'ddp'], default='auto')
    parser.add_argument('--compile', action='store_true', help='torch.compile the blocks')
    parser.add_argument('--graphs', action='store_true', help=argparse.SUPPRESS)
    parser.add_argument('--python', default=sys.executable, help='a Python that has torch')
    parser.add_argument('--train', default=os.path.join(ROOT, 'bazel-bin/tools/train/train'))
    parser.add_argument('--json', default='', help='write the figures to this file')
    parser.add_argument('--rank_of', default='', help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.ranks = args.ranks or (1 if args.device == 'cuda' else 2)
    return args


def model_of(config):
    """The gpt2 block of a preset, as a dict of numbers."""
    path = os.path.join(ROOT, 'proto/configs', config + '.textproto')
    try:
        with open(path) as file:
            text = file.read()
    except OSError as error:
        sys.exit('compare_torch: cannot read %s: %s' % (path, error.strerror))
    block = re.search(r'gpt2\s*\{([^}]*)\}', text)
    if not block:
        sys.exit('compare_torch: --config is %s; it must be a preset with a gpt2 model, '
                 'for example gpt2_124m' % config)
    return {name: float(value)
            for name, value in re.findall(r'(\w+):\s*([-\d.e]+)', block.group(1))}


# ---- PyTorch: one rank.

def run_rank(args, model_sizes):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn

    rank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    cuda = args.device == 'cuda'
    if cuda:
        torch.cuda.set_device(rank)
        torch.set_float32_matmul_precision('highest')
    else:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    dist.init_process_group('nccl' if cuda else 'gloo')
    torch.manual_seed(1)
    dtype = torch.bfloat16 if args.precision == 'BF16' else torch.float32
    width, heads = int(model_sizes['n_embd']), int(model_sizes['n_head'])
    positions, vocabulary = int(model_sizes['n_positions']), int(model_sizes['vocab_size'])

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (y.view(b, t, heads, c // heads).transpose(1, 2)
                       for y in self.c_attn(self.ln_1(x)).split(c, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
            return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate='tanh'))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
            self.blocks = nn.ModuleList(Block() for _ in range(int(model_sizes['n_layer'])))
            self.ln_f = nn.LayerNorm(width)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.ln_f(x), self.wte.weight)  # tied
            return F.cross_entropy(logits.float().view(-1, vocabulary), targets.view(-1))

    model = Gpt2().to(args.device)
    if args.compile or args.graphs:
        for block in model.blocks:
            block.compile(mode='reduce-overhead' if args.graphs else 'default')

    def fsdp2():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        mesh = init_device_mesh(args.device, (world,))
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=policy)

    def ddp():
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)

    def prepare(kind):
        parallel = fsdp2() if kind == 'fsdp2' else ddp()
        try:
            return parallel, torch.optim.AdamW(parallel.parameters(), lr=6e-4, fused=True)
        except (RuntimeError, TypeError):
            return parallel, torch.optim.AdamW(parallel.parameters(), lr=6e-4)

    parallel, optimizer = prepare(args.rank_of)
    length = args.sequence_length or positions
    generator = torch.Generator().manual_seed(rank)
    seconds = []
    for step in range(WARM_UP + args.steps):
        tokens = torch.randint(vocabulary, (args.sequences, length + 1), generator=generator)
        tokens = tokens.to(args.device)
        dist.barrier()
        begin = time.perf_counter()
        with torch.autocast(args.device, dtype=torch.bfloat16,
                            enabled=args.rank_of == 'ddp' and args.precision == 'BF16'):
            loss = parallel(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        dist.barrier()
        if step >= WARM_UP:
            seconds.append(time.perf_counter() - begin)
    if rank == 0:
        print(json.dumps({'seconds': seconds, 'torch': torch.__version__}))
    dist.destroy_process_group()


def free_port():
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


def cores_of(rank, ranks):
    """The share of a rank, as //tools:train gives it; all where there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // ranks
    return cores[rank * each:(rank + 1) * each] if each else cores


def run_torch(args, kind, flags=()):
    """Seconds of each timed step, or None and why not."""
    port = free_port()
    processes = []
    for rank in range(args.ranks):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(args.ranks),
                           MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
        cores = cores_of(rank, args.ranks)
        environment['OMP_NUM_THREADS'] = str(max(1, len(os.sched_getaffinity(0)) // args.ranks))
        processes.append(subprocess.Popen(
            [args.python, os.path.abspath(__file__), '--rank_of=' + kind] + list(flags) +
            [a for a in sys.argv[1:] if not a.startswith('--rank_of')],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda cores=cores: os.sched_setaffinity(0, cores)))
    results = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, results):
        if process.returncode != 0:
            return None, errors.strip().splitlines()[-1:] or ['exit %d' % process.returncode]
    return json.loads(results[0][0].strip().splitlines()[-1]), None


# ---- Shardgraph.

def run_ours(args, length, tokens, folder):
    """Seconds of each timed step."""
    run = os.path.join(folder, 'run')
    subprocess.run(['rm', '-rf', run], check=True)
    result = subprocess.run(
        [args.train, '--config=' + args.config, '--nproc=%d' % args.ranks, '--run_dir=' + run,
         '--device=' + args.device,
         'data.path=' + tokens, 'data.batch_size=%d' % (args.sequences * args.ranks),
         'data.micro_batch_size=%d' % args.sequences, 'data.sequence_length=%d' % length,
         'precision.compute=' + args.precision, 'run.steps=%d' % (WARM_UP + args.steps),
         'schedule.warmup_steps=1'],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        sys.exit('compare_torch: %s failed:\n%s' % (args.train, result.stdout[-2000:]))
    with open(os.path.join(run, 'metrics.jsonl')) as file:
        lines = [json.loads(line) for line in file]
    return [line['step_seconds'] for line in lines if 'step_seconds' in line][WARM_UP:]


# How PyTorch runs on a GPU.
MODES = {'plain': [], 'compiled': ['--compile'], 'cuda_graphs': ['--graphs']}


def compare_on_gpu(args, length, per_step, tokens, folder):
    figures = {'shardgraph': [], **{mode: [] for mode in MODES}}
    problems, version = {}, ''
    for turn in range(args.rounds):
        figures['shardgraph'].append(per_step / min(run_ours(args, length, tokens, folder)))
        for mode, flags in MODES.items():
            if mode in problems:
                continue
            theirs, problem = run_torch(args, 'fsdp2', flags)
            if theirs is None:
                problems[mode] = problem[0]
                print('FSDP2, %s, does not run: %s' % (mode, problem[0]))
                continue
            version = theirs['torch']
            figures[mode].append(per_step / min(theirs['seconds']))
        print('run %d: Shardgraph %.0f tokens/s, PyTorch %s' % (
            turn + 1, figures['shardgraph'][-1],
            ', '.join('%s %.0f' % (mode, rates[-1]) for mode, rates in figures.items()
                      if mode != 'shardgraph' and rates)), flush=True)
    ours = max(figures['shardgraph'])
    ratios = {mode: ours / max(figures[mode]) for mode in MODES if figures[mode]}
    if not ratios:
        sys.exit('compare_torch: FSDP2 does not run in any mode')
    for mode, ratio in ratios.items():
        print('%s, %d tokens a step, %s: Shardgraph is %.2f times as fast as FSDP2, %s' %
              (args.config, per_step, args.precision, ratio, mode))
    return dict(figures, ratios=ratios, ratio=min(ratios.values()), problems=problems,
                torch_version=version, parallel='fsdp2')


def main():
    args = parse_arguments()
    sizes = model_of(args.config)
    if args.rank_of:
        return run_rank(args, sizes)
    if subprocess.run([args.python, '-c', 'import torch.distributed'],
                      stderr=subprocess.DEVNULL).returncode != 0:
        sys.exit('compare_torch: %s has no torch; name a Python that does with --python' %
                 args.python)
    if not os.path.exists(args.train):
        sys.exit('compare_torch: %s is missing; bazel build //tools:train' % args.train)
    length = args.sequence_length or int(sizes['n_positions'])
    per_step = args.sequences * args.ranks * length
    kinds = ['fsdp2', 'ddp'] if args.parallel == 'auto' else [args.parallel]
    figures = {'shardgraph': [], 'torch': []}
    with tempfile.TemporaryDirectory() as folder:
        tokens = os.path.join(folder, 'tokens.bin')
        with open(tokens, 'wb') as file:
            chooser = random.Random(1)
            for _ in range(64 * length):
                file.write(chooser.randrange(int(sizes['vocab_size'])).to_bytes(2, 'little'))
        if args.device == 'cuda':
            report = compare_on_gpu(args, length, per_step, tokens, folder)
            if args.json:
                with open(args.json, 'w') as file:
                    json.dump(report, file)
            return
        for turn in range(args.rounds):
            ours = run_ours(args, length, tokens, folder)
            theirs, problem = run_torch(args, kinds[0])
            while theirs is None and len(kinds) > 1:
                print('%s does not run: %s' % (kinds[0], problem[0]))
                kinds = kinds[1:]
                theirs, problem = run_torch(args, kinds[0])
            if theirs is None:
                sys.exit('compare_torch: %s does not run: %s' % (kinds[0], problem[0]))
            figures['shardgraph'].append(per_step / min(ours))
            figures['torch'].append(per_step / min(theirs['seconds']))
            print('run %d: Shardgraph %.0f tokens/s, PyTorch %s (%s%s) %.0f tokens/s' %
                  (turn + 1, figures['shardgraph'][-1], theirs['torch'], kinds[0],
                   ', compiled' if args.compile else '', figures['torch'][-1]), flush=True)
    ratio = max(figures['shardgraph']) / max(figures['torch'])
    print('%s, %d x %d tokens, %s, %d ranks: Shardgraph is %.2f times as fast' %
          (args.config, args.sequences * args.ranks, length, args.precision, args.ranks, ratio))
    if args.json:
        with open(args.json, 'w') as file:
            json.dump(dict(figures, ratio=ratio, torch_version=theirs['torch'],
                           parallel=kinds[0]), file)


if __name__ == '__main__':
    main()
