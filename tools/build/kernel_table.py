#!/usr/bin/env python3
"""Registers, shared memory, spills, occupancy and memory instructions of every CUDA kernel.

    python3 tools/build/kernel_table.py [--arch=sm_90a] [--json=FILE] [--check] [FILE.cu ...]

Compiles each kernels/**/*.cu for one architecture as the build does and reads
what ptxas says (-v). Loads and stores of global memory are counted by width in
the machine code where nvdisasm or cuobjdump is found, else in the PTX, which
ptxas may still change. Occupancy: blocks that fit on a multiprocessor, and the
share of its 2,048 threads, by registers, static shared memory and the
__launch_bounds__; dynamic shared memory is not known here.

--check ends with status 1 when a kernel spills registers, when it loads or
stores global memory without one access of 128 bits and NARROW has no reason for
that, or when a reason in NARROW is out of date.
"""

import argparse
import collections
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CUDA = os.environ.get('CUDA_HOME', '/usr/local/cuda')
# Of a multiprocessor, sm_80 and sm_90: registers, bytes of shared memory, threads, blocks.
REGISTERS, SHARED, THREADS, BLOCKS = 65536, {'80': 164 << 10, '90': 228 << 10}, 2048, 32

# Kernels that move little, or little at a time: what they do without 128 bits,
# and why.
BOTH = ('ld', 'st')
NARROW = [
    (r'attention/cuda.*\.cu: (Attention|QueryGradient|KeyGradient)Kernel<__nv_bfloat16', ('st',),
     'rows of results are stored once, 8 bytes to a thread'),
    (r'attention/cuda_gradient\.cu: DeltaKernel', ('st',), 'a float for a query'),
    (r'cuda/signals\.cu: MarkKernel', BOTH, 'one integer'),
    (r'cuda/signals\.cu: EndTurnKernel', BOTH, 'two integers'),
    (r'cuda/signals\.cu: AppendKernel', BOTH, 'a report of a few hundred bytes'),
    (r'embedding/cuda\.cu: (Count|Place)Kernel', BOTH, 'atomic additions to scattered integers'),
    (r'embedding/cuda\.cu: EmbeddingKernel<unsigned short>', BOTH,
     'rows that are no multiple of 16 bytes; the others are EmbeddingKernel<uint4>\'s'),
    (r'embedding/cuda\.cu: PositionsKernel', BOTH, 'an integer for a token'),
    (r'embedding/cuda\.cu: StartKernel', BOTH, 'one block: a running sum of counts'),
    (r'layout/cuda\.cu: KvWriteKernel<unsigned short>', BOTH,
     'rows that are no multiple of 16 bytes; the others are KvWriteKernel<uint4>\'s'),
    (r'loss/cuda\.cu: LossStatsKernel', BOTH, 'one block: two numbers of a row'),
    (r'matmul/column_sum\.cu: ColumnSumKernel', ('st',), 'a row of sums for many rows'),
    (r'matmul/cuda\.cu: GemmKernel', BOTH,
     'bound by arithmetic on tiles in shared memory; cuBLASLt has the products that take time'),
    (r'optimizer/cuda\.cu: (AdvanceState|FinishGradients|UpdateLossScale)Kernel', BOTH,
     'numbers of a step'),
    (r'optimizer/cuda\.cu: SquaresKernel', ('st',), 'a float for 4,096 elements'),
    (r'optimizer/cuda\.cu: SumKernel', BOTH, 'one block: a float of 4,096 elements'),
]


def run(command):
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    if done.returncode != 0:
        sys.exit('kernel_table: %s failed:\n%s' % (' '.join(command), done.stdout))
    return done.stdout


def demangle(names):
    tool = shutil.which('c++filt')
    if not tool or not names:
        return {name: name for name in names}
    plain = subprocess.run([tool] + list(names), stdout=subprocess.PIPE, text=True, check=True)
    short = lambda text: re.sub(r'\(anonymous namespace\)::|shardgraph::|cuda::', '',
                                re.sub(r'^void ', '', text)).rsplit('(', 1)[0]
    return {name: short(text) for name, text in zip(names, plain.stdout.splitlines())}


def of_ptx(text):
    """By kernel: threads of its launch bounds, and accesses by kind and bytes."""
    kernels, name = {}, None
    for line in text.splitlines():
        entry = re.search(r'\.entry\s+(\w+)', line)
        if entry:
            name = entry.group(1)
            kernels[name] = {'threads': 0, 'accesses': collections.Counter()}
        if name is None:
            continue
        bound = re.search(r'\.maxntid\s+(\d+)', line)
        if bound:
            kernels[name]['threads'] = int(bound.group(1))
        access = re.search(r'\b(ld|st)\.global\S*?(?:\.v([248]))?\.[bfus](\d+)', line)
        if access:
            size = int(access.group(2) or 1) * int(access.group(3)) // 8
            kernels[name]['accesses'][(access.group(1), size)] += 1
        if line == '}':
            name = None
    return kernels


def of_machine_code(cubin):
    """The same accesses in machine code; None without a disassembler."""
    for tool, flags in (('nvdisasm', ['-c']), ('cuobjdump', ['-sass'])):
        path = shutil.which(tool) or os.path.join(CUDA, 'bin', tool)
        if os.path.exists(path):
            break
    else:
        return None
    kernels, name = {}, None
    for line in run([path] + flags + [cubin]).splitlines():
        begin = re.search(r'\.text\.(\w+):|Function : (\w+)', line)
        if begin:
            name = begin.group(1) or begin.group(2)
            kernels[name] = collections.Counter()
        access = re.search(r'\b(LDG|STG)\.E(\S*)', line)
        if access and name:
            width = re.search(r'\.(64|128)\b', access.group(2))
            narrow = re.search(r'\.[US](8|16)\b', access.group(2))
            bits = int((width or narrow).group(1)) if width or narrow else 32
            kernels[name][('ld' if access.group(1) == 'LDG' else 'st', bits // 8)] += 1
    return kernels


def blocks_of(kernel, arch):
    threads = kernel['threads'] or 256
    warps = (threads + 31) // 32
    registers = (kernel['registers'] + 7) // 8 * 8 * 32 * warps
    shared = SHARED.get(arch[3:5], 164 << 10) // (kernel['shared'] + 1024)
    return min(BLOCKS, THREADS // (warps * 32), REGISTERS // max(1, registers), shared)


def compile_file(source, arch, folder):
    keep = tempfile.mkdtemp(dir=folder)
    cubin = os.path.join(keep, 'kernels.cubin')
    virtual = arch.replace('sm_', 'compute_')
    said = run([os.path.join(CUDA, 'bin/nvcc'), '-x', 'cu', '-std=c++20', '-O3', '-DNDEBUG',
                '--expt-relaxed-constexpr', '-I.', '-gencode', 'arch=%s,code=%s' % (virtual, arch),
                '-cubin', '-Xptxas=-v', '--keep', '--keep-dir', keep, '-o', cubin, source])
    ptx = {}
    for path in glob.glob(os.path.join(keep, '*.ptx')):
        with open(path) as file:
            ptx.update(of_ptx(file.read()))
    code = of_machine_code(cubin)
    kernels, name = [], None
    for line in said.splitlines():
        entry = re.search(r"Compiling entry function '(\w+)'", line)
        if entry:
            name = entry.group(1)
            kernels.append({'file': source, 'kernel': name, 'registers': 0, 'shared': 0,
                            'spill_bytes': 0, 'threads': ptx.get(name, {}).get('threads', 0)})
            continue
        if name is None:
            continue
        for stores, loads in re.findall(r'(\d+) bytes spill stores, (\d+) bytes spill loads', line):
            kernels[-1]['spill_bytes'] = int(stores) + int(loads)
        used = re.search(r'Used (\d+) registers', line)
        if used:
            shared = re.search(r'(\d+) bytes smem', line)
            kernels[-1]['registers'] = int(used.group(1))
            kernels[-1]['shared'] = int(shared.group(1)) if shared else 0
            name = None
    for kernel in kernels:
        accesses = (code.get(kernel['kernel']) if code is not None
                    else ptx.get(kernel['kernel'], {}).get('accesses')) or {}
        kernel['accesses'] = {'%s%d' % (kind, size * 8): count
                              for (kind, size), count in sorted(accesses.items())}
        kernel['accesses_of'] = 'ptx' if code is None else 'machine code'
        kernel['blocks'] = blocks_of(kernel, arch)
        kernel['occupancy'] = kernel['blocks'] * (kernel['threads'] or 256) / THREADS
    return kernels


def narrow(kernel):
    """Of ('ld', 'st'), what the kernel does, and never 128 bits at a time."""
    widths = lambda kind: [width for width in kernel['accesses'] if width.startswith(kind)]
    return {kind for kind in BOTH if widths(kind) and kind + '128' not in widths(kind)}


def problems_of(kernels, all_files):
    problems, used = [], collections.Counter()
    for kernel in kernels:
        place = '%s: %s' % (kernel['file'], kernel['kernel'])
        if kernel['spill_bytes']:
            problems.append('%s spills %d bytes' % (place, kernel['spill_bytes']))
        left = narrow(kernel)
        for entry in NARROW:
            if re.search(entry[0], place):
                used[entry[0]] += len(left & set(entry[1]))
                left = left - set(entry[1])
        if left:
            problems.append('%s has no 128-bit %s' % (
                place, ' and no 128-bit '.join({'ld': 'load', 'st': 'store'}[k] for k in sorted(left))))
    if all_files:
        problems += ['NARROW has %s, which no kernel needs' % entry[0]
                     for entry in NARROW if not used[entry[0]]]
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--arch', default='sm_90a')
    parser.add_argument('--json', default='', help='write the table to this file')
    parser.add_argument('--check', action='store_true', help='status 1 when a kernel is not as it should be')
    parser.add_argument('files', nargs='*')
    args = parser.parse_args()
    if not os.path.exists(os.path.join(CUDA, 'bin/nvcc')):
        sys.exit('kernel_table: there is no %s/bin/nvcc; set CUDA_HOME' % CUDA)
    files = args.files or sorted(
        os.path.relpath(path, ROOT)
        for path in glob.glob(os.path.join(ROOT, 'kernels/**/*.cu'), recursive=True))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        tables = list(pool.map(lambda source: compile_file(source, args.arch, folder), files))
    kernels = [kernel for table in tables for kernel in table]
    names = demangle([kernel['kernel'] for kernel in kernels])
    for kernel in kernels:
        kernel['kernel'] = names[kernel['kernel']]
    spilling = [kernel for kernel in kernels if kernel['spill_bytes']]
    problems = problems_of(kernels, not args.files)
    print('%4s %6s %6s %7s %6s %9s  %s' % ('regs', 'shared', 'spills', 'threads', 'blocks',
                                           'occupancy', 'kernel: accesses of global memory'))
    source = None
    for kernel in kernels:
        if kernel['file'] != source:
            source = kernel['file']
            print(source)
        print('%4d %6d %6d %7s %6d %8.0f%%  %s: %s' % (
            kernel['registers'], kernel['shared'], kernel['spill_bytes'],
            kernel['threads'] or '(256)', kernel['blocks'], 100 * kernel['occupancy'],
            kernel['kernel'],
            ' '.join('%s x%d' % item for item in kernel['accesses'].items()) or 'none'))
    print('%d kernels for %s, %d spill registers; accesses counted in %s' % (
        len(kernels), args.arch, len(spilling), kernels[0]['accesses_of'] if kernels else 'nothing'))
    if args.json:
        with open(args.json, 'w') as file:
            json.dump({'arch': args.arch, 'kernels': kernels}, file, indent=1)
    for problem in problems:
        print('problem: ' + problem)
    if args.check and problems:
        sys.exit(1)


if __name__ == '__main__':
    main()
