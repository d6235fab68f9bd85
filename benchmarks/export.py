"""Exports a policy of every bundled config in both formats and measures how much the files differ from `policy.act`.

    python benchmarks/export.py [--only NAME ...]       # writes benchmarks/results/export.md

The policies are not trained. Their last layers are multiplied by 100 and their statistics are drawn at random, so that
differences are as large as those of trained policies, whose last layers grow.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from zoo.config.source import bundled_configs
from zoo.core.registry import POLICY_REGISTRY
from zoo.env import make_env_groups
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.run.config import resolve_config
from zoo.tools.export import FORMATS, Exported
from zoo.tools.results.card import space_words

RESULTS = Path(__file__).parent / 'results'
GAIN = 100.0


class Row(NamedTuple):
    """One config: its spaces and, by format, the exported file and its size in bytes."""

    config: str
    obs: str
    action: str
    files: dict[str, tuple[Exported, int]]


def policy_of_config(name: str) -> Any:
    """An untrained policy of a config whose numbers are about as large as those of a trained one."""
    cfg = resolve_config(name, ['policy.device=cpu'])
    cfg.env.collector_env_num = cfg.env.collector_group_num = 1  # no override: the check would refuse batch_size
    groups = make_env_groups(cfg.env)
    spaces = groups[0].obs_space, groups[0].action_space
    for group in groups:
        group.close()
    make = POLICY_REGISTRY.get(cfg.policy.type)
    return as_trained(make(cfg.policy, *spaces, enable_field=['eval'], action_mode=cfg.env.action_mode))


@torch.no_grad()
def as_trained(policy: Any) -> Any:
    """Multiplies a policy's last layers by GAIN and draws its statistics at random, in place."""
    generator = torch.Generator().manual_seed(0)
    for name, module in policy.model.named_modules():
        if isinstance(module, nn.Linear) and name.startswith('policy_head'):
            module.weight.mul_(GAIN)
    for module in (*policy.model.modules(), *policy.normalizers.modules()):
        if isinstance(module, RunningMeanStd):
            module.update(3 + 2 * torch.randn(100, *module.mean.shape, generator=generator))
    return policy


def export(name: str, folder: Path) -> Row:
    """Exports a policy in every format. Raises: UserError, RunError if a file cannot be written or acts differently."""
    policy, files = policy_of_config(name), {}
    for each in FORMATS.values():
        exported = policy.export(folder / f'{name}{each.suffix}', value=policy.cfg.type not in ('dqn', 'pg'))
        files[each.name] = exported, exported.path.stat().st_size
    words = [space_words(space) for space in (policy.obs_space, policy.action_space)]
    return Row(name, *words, files)


def table(rows: list[Row]) -> str:
    """The results as a Markdown page."""
    heads = ' | '.join(f'{name}, kB | {name}, difference' for name in FORMATS)
    lines = [
        '# Exported policies',
        '',
        f'Of {len(rows)} bundled configs, one policy each in both formats, compared with `policy.act` and `policy.value` on',
        '1,000 random observations each. The difference is the largest of an action or a value, as a share of it where it is',
        'above 1; the values of discrete policies are in it too. No action of any policy was another choice, unless noted.',
        f'The policies are not trained: last layers are {GAIN:g} times larger than at the start and statistics are drawn.',
        f'torch {torch.__version__}. `python benchmarks/export.py` makes this table.',
        '',
        f'| config | observation | action | {heads} | drawn |',
        f'|---|---|---|{"---|---|" * len(FORMATS)}---|',
    ]
    for row in rows:
        cells = [f'{size / 1e3:,.0f} | {_difference(found)}' for found, size in row.files.values()]
        drawn = next(iter(row.files.values()))[0].comparison.drawn
        lines.append(f'| {row.config} | {row.obs} | {row.action} | {" | ".join(cells)} | {drawn} |')
    return '\n'.join([*lines, ''])


def _difference(exported: Exported) -> str:
    found = exported.comparison
    numbers = f'{found.error:.1e}' if found.error else '0'
    return numbers if not found.n_differ else f'{numbers}; {found.n_differ} other choices, {found.n_tie} of them ties'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--only', nargs='+', default=None, metavar='NAME', help='these configs alone; nothing is written'
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only or sorted(bundled_configs()):
            rows.append(export(name, Path(folder)))
            print(name, *(found.comparison.text() for found, _ in rows[-1].files.values()), sep='\n  ', flush=True)
    if args.only is None:
        (RESULTS / 'export.md').write_text(table(rows))


if __name__ == '__main__':
    main()
