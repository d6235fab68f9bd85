"""A page for each bundled config, and one with all of them: its curve, return, time and command, from benchmarks/results/."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from zoo.config.source import bundled_configs, load_config
from zoo.env.make import extra_of
from zoo.tools.results.plot import figure
from zoo.tools.results.read import Run
from zoo.tools.results.report_figures import inline
from zoo.tools.results.statistics import center, interval
from zoo.tools.results.table import number_text

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / 'benchmarks' / 'results'
FOLDERS = ('learning_raw', 'learning_before_raw', 'variants_raw')
LENGTH = 'max_env_step='  # the one override that a record of a bundled config may have
WIDTH, HEIGHT, EDGE = 320, 80, 4
SIZE = 7.2, 3.8  # inches of a curve with axes
METRIC = 'eval/return_mean'
N_POINT = 80
_SAME_NAME = ('atari', 'envpool', 'minatar', 'procgen')
EXTRA_OF_FAMILY = {'minigrid_memory_s7': 'envpool', **dict(zip(_SAME_NAME, _SAME_NAME, strict=True))}

sys.path.insert(0, str(RESULTS.parent))
import learning  # noqa: E402
from frames import frame_of  # noqa: E402


class Entry(NamedTuple):
    """A bundled config and the records of its runs, one a seed; none: it has not been measured."""

    name: str
    config: dict[str, Any]
    about: str
    records: list[dict[str, Any]]


def pages() -> dict[str, str]:
    """{page: Markdown} of the gallery and of each config."""
    entries = [_entry(name) for name in bundled_configs()]
    made = {f'configs/{entry.name}.md': _page(entry) for entry in entries}
    return {'reference/bundled_configs.md': _gallery(entries), **made}


def _entry(name: str) -> Entry:
    path = ROOT / 'dizoo_configs' / f'{name}_config.py'
    about = ' '.join(path.read_text().split('"""')[1].split())
    return Entry(name, load_config(name)[0], about, records_of(name))


def records_of(name: str) -> list[dict[str, Any]]:
    """The records of a bundled config as it is now, but for its length, in the first folder that has some."""
    for folder in FOLDERS:
        found: dict[str, list[dict[str, Any]]] = {}
        for path in sorted((RESULTS / folder).glob(f'{name}_*.json')):
            record = json.loads(path.read_text())
            title, (config, *overrides) = record['config'], record['config'].split()
            is_it = config == name and all(override.startswith(LENGTH) for override in overrides)
            if is_it and learning.is_done(title, record['seed'], RESULTS / folder):
                found.setdefault(title, []).append(record)
        if found:
            return found[min(found)]
    return []


def _gallery(entries: Sequence[Entry]) -> str:
    cards = [
        f'<a class="card" href="../configs/{entry.name}.html">{_frame(entry.config)}{sparkline(entry.records)}'
        f'<strong>{entry.name.replace("_", "_<wbr>")}</strong><span>{escape(_env(entry.config))}{_extra(entry.config)}</span><span>{escape(_result(entry))}</span></a>'
        for entry in entries
    ]
    about = (
        '`zoo train NAME` trains one, `zoo config NAME` shows its keys. A curve is the greedy return while training: the median '
        'of the seeds, whose first and last values are below it, in the band between the lowest and the highest seed. A thin '
        'line is at 0. The last words are the return of the last policy.'
    )
    return '\n'.join(['# Bundled configs', '', about, '', '<div class="gallery">', *cards, '</div>', ''])


def _frame(config: dict[str, Any]) -> str:
    """The picture of the env; '' if there is none."""
    path = frame_of(config['env'])
    place = path.relative_to(ROOT / 'docs')
    return f'<img src="../{place}" alt="{escape(_env(config))}" loading="lazy">' if path.exists() else ''


def _page(entry: Entry) -> str:
    source = (ROOT / 'dizoo_configs' / f'{entry.name}_config.py').read_text()
    source = source.split('"""', 2)[2].split('\n\nif __name__')[0].strip()
    policy = entry.config['policy']['type']
    lines = [f'# {entry.name}', '', entry.about, '', f'    zoo train {entry.name}', '']
    lines += [
        f'Env {_env(entry.config)}{_extra(entry.config)}; policy [{policy}](../policies/{policy}.md). {_result(entry)}.',
        '',
    ]
    lines += [f'<div class="frame">{_frame(entry.config)}</div>', '']
    lines += [f'<div class="curve">{curve(entry)}</div>', ''] if entry.records else []
    return '\n'.join([*lines, '```python', source, '```', ''])


def _env(config: dict[str, Any]) -> str:
    env = config['env']
    return f'{env["id"]} {env["game"]}' if env.get('game') else env['id']


def _extra(config: dict[str, Any]) -> str:
    """The extra of zoo that the env needs, '; extra mujoco'; '' if none."""
    env_id = config['env']['id']
    if env_id.startswith(('mpe2.', 'pettingzoo:')):
        return '; extra agents'
    extra = extra_of(env_id) if env_id in gymnasium.registry else EXTRA_OF_FAMILY.get(env_id)
    return f'; extra {extra}' if extra else ''


def _result(entry: Entry) -> str:
    """What the last policies reached, over how many seeds, env steps and seconds."""
    if not entry.records:
        return f'{entry.config["max_env_step"]:,} env steps; not measured yet'
    means = [record['return_mean'] for record in entry.records]
    low, high = interval(means)
    steps, seconds = (max(record[key] for record in entry.records) for key in ('env_step', 'wall_s'))
    return (
        f'Return {number_text(float(center(means)))} [{number_text(low)}, {number_text(high)}] over {len(means)} seeds, '
        f'{steps:,} env steps, up to {seconds:.0f}\u00a0s'
    )


def sparkline(records: Sequence[dict[str, Any]]) -> str:
    """A small picture in the colours of the page, and its numbers as text below; '' if nothing was measured."""
    curves = [np.array(record['curve'], dtype=np.float64).T for record in records]
    curves = [points for points in curves if points.shape[-1] > 1]
    if not curves:
        return ''
    grid = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), N_POINT)
    returns = np.array([np.interp(grid, x, y) for x, y in curves])
    median = np.median(returns, axis=0)
    low, high = float(returns.min()), float(returns.max())
    x = np.linspace(0, WIDTH, N_POINT)

    def down(y: np.ndarray) -> np.ndarray:
        return EDGE + (high - y) / max(high - low, 1e-9) * (HEIGHT - 2 * EDGE)

    def points(y: np.ndarray) -> list[str]:
        return [f'{across:.0f},{place:.1f}' for across, place in zip(x, down(y), strict=True)]

    band = ' '.join([*points(returns.min(axis=0)), *reversed(points(returns.max(axis=0)))])
    zero = float(down(np.zeros(1))[0])
    rule = f'<path d="M0 {zero:.1f}H{WIDTH}" class="zero"/>' if low <= 0 <= high else ''
    first, last = number_text(float(median[0])), number_text(float(median[-1]))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Return while training">{rule}'
        f'<polygon points="{band}" class="band"/><polyline points="{" ".join(points(median))}" class="line"/></svg>'
        f'<span>from {first} to {last} in {grid[-1]:,.0f} steps</span>'
    )


def curve(entry: Entry) -> str:
    """The curve of a config with axes, as SVG in the colours of the page."""
    runs = [_run(record) for record in entry.records if len(record['curve']) > 0]
    if not runs:
        return ''
    drawn = figure({entry.name: runs}, METRIC, size=SIZE, title='')
    svg = inline(drawn, [0], entry.name, f'return of {entry.name} in evaluations over env steps')
    return re.sub(r'\s*\n\s*', ' ', svg)  # Markdown ends a block at an empty line


def _run(record: dict[str, Any]) -> Run:
    steps, returns = np.array(record['curve'], dtype=np.float64).T
    names = {'exp_name': record['config'], 'seed': record['seed'], 'env': {'id': record['env']}, 'policy': {'type': ''}}
    columns = {'env_step': steps, 'wall_s': np.full(len(steps), np.nan), METRIC: returns}
    return Run(Path(f'{record["config"]}-{record["seed"]}'), names, columns)
