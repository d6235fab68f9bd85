"""Circles of self-play in Kuhn poker: the exploitability of snapshots with and without past opponents, entropy, a magnet.

    python benchmarks/selfplay_cycles.py [--seeds 0 1 2] [--only NAME ...] [--out benchmarks/results/selfplay/raw]

The config of examples/self_play.py on the tensor env with all its snapshots kept. Writes OUT/cycles.jsonl: for each setting and
seed the exploitability at the end, the lowest and the highest of snapshots in the second half of the run, and that of the average
of all snapshots. Needs the extra agents.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from zoo import exploitability, serial_pipeline  # noqa: E402
from zoo.run.config import resolve_config  # noqa: E402

LATEST = 'agents.self_play.opponents={latest: 1.0, past: 0.0}'
HALF = 'agents.self_play.opponents={latest: 0.5, past: 0.5}'
ENTROPY = 'policy.learn.entropy_weight='
MAGNET = 'policy.learn.penalties=[{type: magnet, weight: 0.1, decay: 0.999}]'
SETTINGS = {
    'latest': [LATEST, ENTROPY + '0.0'],
    'half': [HALF, ENTROPY + '0.0'],
    'entropy_0.05': [LATEST, ENTROPY + '0.05'],
    'entropy_0.1': [LATEST, ENTROPY + '0.1'],
    'entropy_0.05_magnet': [LATEST, ENTROPY + '0.05', MAGNET],
    'entropy_0.1_magnet': [LATEST, ENTROPY + '0.1', MAGNET],
}


def measured(setting: str, seed: int) -> dict[str, Any]:
    """The row of one run."""
    config = runpy.run_path(str(ROOT / 'examples' / 'self_play.py'))['config']
    overrides = ['env.id=torch', 'env.game=kuhn_poker', 'agents.self_play.keep=30', *SETTINGS[setting], f'seed={seed}']
    run = serial_pipeline(resolve_config(config, overrides))
    lines = [json.loads(line) for line in (run.run_dir / 'metrics.jsonl').read_text().splitlines()]
    late = [
        line['league/exploitability']
        for line in lines
        if 'league/exploitability' in line and line['env_step'] > run.env_step / 2
    ]
    return {
        'setting': setting,
        'overrides': overrides,
        'env_step': run.env_step,
        'seconds': round(run.wall_s, 1),
        'last': exploitability(run.run_dir).exploitability,
        'lowest': min(late),
        'highest': max(late),
        'average': exploitability(run.run_dir, average=True).exploitability,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2])
    parser.add_argument('--only', nargs='+', choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument('--out', type=Path, default=Path('benchmarks/results/selfplay/raw'))
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for setting in args.only:
        for seed in args.seeds:
            row = measured(setting, seed)
            with (args.out / 'cycles.jsonl').open('a') as file:
                file.write(json.dumps(row) + '\n')
            print(json.dumps(row), flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
