"""Peak memory of PPG's auxiliary phase; writes benchmarks/results/memory.md and memory.json.

    python benchmarks/memory.py [--rollouts 16] [--rows 2048] [--minibatch 256] [--encoder nature] [--quick]

Observations have the size of Procgen's (64x64x3 bytes). One process per place of the memory (policy.learn.aux_memory) runs
all policy phases and an auxiliary phase of one epoch. Before that, the process does the same with one rollout; its peak is
the baseline: networks, optimiser, the largest minibatch of all phases and one rollout in the memory. The size of that
rollout is added to the difference of the two peaks. --quick: takes seconds, writes into the temporary folder.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import (
    RESULTS,
    git_commit,
    last_json_line,
    machine,
    one_thread_env,
    table,
    today,
    versions,
    versions_line,
    write_json,
)

PLACES = ('device', 'cpu', 'disk')
SHAPE, N_ACTION = (64, 64, 3), 15
LIMIT = 1.1  # claimed upper limit of the memory's peak / the raw size of the observations
COLUMNS = (
    'aux_memory',
    'observations, MB',
    'peak before, MB',
    'peak, MB',
    'memory at its peak, MB',
    'over the observations',
    'of it file pages, MB',
    'rows',
    's',
)

log = logging.getLogger('memory')


def status_mb(*keys: str) -> float:
    """Sum of some lines of /proc/self/status in MB, e.g. VmHWM, the peak of the resident memory."""
    lines = dict(line.split(':', 1) for line in Path('/proc/self/status').read_text().splitlines())
    return sum(int(lines[key].split()[0]) for key in keys) * 1024 / 1e6


def train(args: argparse.Namespace, n_rollout: int) -> float:
    """Runs n_rollout policy phases and the auxiliary phase after them; returns the MB of file pages at the end."""
    import numpy as np
    import torch

    from zoo.core.registry import POLICY_REGISTRY
    from zoo.core.spaces import Box, Discrete
    from zoo.run.config import resolve_policy

    learn = dict(
        batch_size=args.minibatch,
        aux_batch_size=args.minibatch,
        aux_freq=n_rollout,
        aux_train_epoch=1,
        aux_memory=args.child,
    )
    cfg = resolve_policy({'type': 'ppg', 'device': 'cpu', 'learn': learn, 'model': {'encoder': args.encoder}})
    policy = POLICY_REGISTRY.get('ppg')(
        cfg, Box(np.zeros(SHAPE), np.full(SHAPE, 255.0), 'uint8'), Discrete(N_ACTION), enable_field=['learn']
    )
    generator = torch.Generator().manual_seed(0)
    n = args.rows
    # like a collector's block: every rollout overwrites it
    samples = {
        'obs': torch.empty((n, *SHAPE), dtype=torch.uint8),
        'action': torch.zeros(n, dtype=torch.int64),
        'logit': torch.zeros(n, N_ACTION),
        'value': torch.zeros(n),
        'adv': torch.zeros(n),
        'return_': torch.zeros(n),
    }
    for _ in range(n_rollout):
        samples['obs'].random_(generator=generator)
        for name in ('adv', 'return_'):
            samples[name].normal_(generator=generator)
        metrics = policy.learn_mode.forward(samples)
    assert 'auxiliary_loss' in metrics, 'the auxiliary phase has come'
    return status_mb('RssFile', 'RssShmem')


def child(args: argparse.Namespace) -> None:
    """Measures one place of the memory in this process; prints a JSON line."""
    start = time.perf_counter()
    file_before = train(args, 1)
    gc.collect()
    baseline, one = status_mb('VmHWM'), args.rows * math.prod(SHAPE) / 1e6
    file_after = train(args, args.rollouts)
    peak, raw = status_mb('VmHWM'), one * args.rollouts
    file_mb = file_after - file_before + one if args.child == 'disk' else 0.0
    record = {
        'where': args.child,
        'raw_mb': raw,
        'baseline_mb': baseline,
        'peak_mb': peak,
        'memory_mb': peak - baseline + one,
        'file_mb': file_mb,
        'rows': args.rows * args.rollouts,
        'wall_s': time.perf_counter() - start,
    }
    sys.stdout.write('\n' + json.dumps(record) + '\n')


def measure(where: str, args: argparse.Namespace) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        '--child',
        where,
        '--rollouts',
        str(args.rollouts),
        '--rows',
        str(args.rows),
        '--minibatch',
        str(args.minibatch),
        '--encoder',
        args.encoder,
    ]
    # freed memory returns to the system at once, so that the resident set is the memory in use
    env = {**one_thread_env(), 'MALLOC_MMAP_THRESHOLD_': str(2**16), 'MALLOC_TRIM_THRESHOLD_': str(2**16)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    record = last_json_line(done.stdout)
    if done.returncode or record is None:
        raise RuntimeError(f'the process for aux_memory {where!r} ended with {done.returncode}:\n{done.stderr[-2000:]}')
    record['ratio'] = record['memory_mb'] / record['raw_mb']
    log.info(
        '%s: %.1f MB for %.1f MB of observations, %.0f s',
        where,
        record['memory_mb'],
        record['raw_mb'],
        record['wall_s'],
    )
    return record


def write_results(records: list[dict[str, Any]], args: argparse.Namespace, command: str) -> None:
    rows = [
        [
            r['where'],
            *(f'{r[key]:.1f}' for key in ('raw_mb', 'baseline_mb', 'peak_mb', 'memory_mb')),
            f'{r["ratio"]:.3f}',
            f'{r["file_mb"]:.1f}',
            f'{r["rows"]:,}',
            f'{r["wall_s"]:.0f}',
        ]
        for r in records
    ]
    worst = max(r['ratio'] for r in records)
    facts = {'machine': machine(), 'versions': versions(), 'date': today(), 'commit': git_commit(), 'command': command}
    text = [
        '# Peak memory of the auxiliary phase\n',
        f'{args.rollouts} rollouts of {args.rows:,} observations of 64x64x3 bytes, encoder {args.encoder!r}, arch '
        f"'dual', minibatches of {args.minibatch} in all phases, on a CPU (so that 'device' is 'cpu'). The peak is "
        'that of the resident set (VmHWM): networks, optimisers and activations are in it. The peak before is that of '
        'the same with a phase of one rollout; the memory at its peak is the difference, and that one rollout. Of a '
        'memory on disk, what is resident are pages of its file, which the kernel takes back when others want room.\n',
        table(COLUMNS, rows),
        f'- claimed: at most {LIMIT} times the observations beside the model; found: {worst:.3f}, '
        f'{"as claimed" if worst <= LIMIT else "NOT as claimed"}',
        f'- machine: {facts["machine"]}',
        f'- versions: {versions_line(versions())}',
        f'- date: {facts["date"]}, commit {facts["commit"]}',
        f'- command: `{command}`; raw numbers: `memory.json`',
    ]
    folder = Path(tempfile.gettempdir()) if args.quick else RESULTS
    write_json(folder / 'memory.json', {**facts, 'runs': records})
    (folder / 'memory.md').write_text('\n'.join(text) + '\n', encoding='utf-8')
    log.info('written: %s', folder / 'memory.md')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rollouts', type=int, default=16, help='policy phases before the auxiliary phase')
    parser.add_argument('--rows', type=int, default=2048, help='observations of a rollout')
    parser.add_argument('--minibatch', type=int, default=256)
    parser.add_argument(
        '--encoder',
        choices=('nature', 'impala'),
        default='nature',
        help='impala, as for Procgen, takes some ten times as long',
    )
    parser.add_argument('--quick', action='store_true', help='4 rollouts of 512; into the temporary folder')
    parser.add_argument('--child', choices=PLACES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        return
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    if not Path('/proc/self/status').exists():
        parser.error('the peak is read from /proc/self/status, which this system has not; use Linux')
    if args.quick:
        args.rollouts, args.rows = 4, 512
    command = ' '.join(['python benchmarks/memory.py', *sys.argv[1:]])
    write_results([measure(where, args) for where in PLACES], args, command)


if __name__ == '__main__':
    main()
