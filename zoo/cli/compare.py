"""`zoo compare`: two or more groups of runs -> what differs, their returns, and the chance that one is better."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from zoo.cli.output import columns, print_json
from zoo.cli.plot import add_choice
from zoo.core.streams import write_line

if TYPE_CHECKING:
    from zoo.results.compare import Chance, Comparison, Side, Spread

SUMMARY = 'compare runs: returns with intervals, the chance that one config is better, and what differs'
OPTIONS = ('json',)
FEW = 3  # with fewer runs on a side, nothing is said of the difference
N_SHOWN = 4  # runs that a line names
NOTES = """  zoo compare runs/cartpole_ppo runs/cartpole_ppg

Runs that differ only in their seed are a side, and each side is compared with the first one. Of two words the runs are
never put together, even if they are of one config. The chance to beat A is the share of pairs, one run of each side, in which the other is higher:
.5 is a tie."""


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, NOTES
    add_choice(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the comparison."""
    from zoo.results.choice import check_same_env, sides_of
    from zoo.results.compare import compare
    from zoo.results.read import resolve_metric

    sides = sides_of(args.runs)
    runs = [run for side in sides.values() for run in side]
    check_same_env(runs, args.allow_different_envs)
    metric = resolve_metric(runs, args.metric)
    found = compare(sides, metric, args.stat)
    if args.json:
        print_json(_as_data(found))
    else:
        write_line(_text(found))
    return 0


def _text(found: Comparison) -> str:
    """The comparison as people read it: a table, what it means, and what differs in the configs."""
    from zoo.results.statistics import WORDS

    head = f'{found.metric} at the last point of each run, {WORDS[found.stat]} of runs [95% interval]'
    means = [line for i, side in enumerate(found.sides) if (line := _meaning(i, side, found)) is not None]
    left_out = [_left_out(found)] if found.left_out else []
    return '\n'.join([head, '', columns(_table(found)), '', *left_out, *means, '', _differences(found)])


def _left_out(found: Comparison) -> str:
    """The runs that are not compared, and why."""
    runs = [f'{run.path} ({run.state} at env step {run.env_step:,})' for run in found.left_out]
    more = f' and {len(runs) - N_SHOWN} more' if len(runs) > N_SHOWN else ''
    return f'left out, since they are at an earlier env step than the others: {", ".join(runs[:N_SHOWN])}{more}'


def _table(found: Comparison) -> list[tuple[str, ...]]:
    at = [] if found.common_step is None else [f'at {found.common_step:,.0f} steps']
    rows = [('', 'name', 'runs', 'env steps', 'env steps/s', 'last', *at, 'chance to beat A')]
    for i, side in enumerate(found.sides):
        words = [
            _letter(i),
            side.label,
            str(side.n_run) if len(side.env_step) == side.n_run else f'{len(side.env_step)} of {side.n_run}',
            _range(side.env_step),
            f'{side.speed:,.0f}',
            _spread(side.last),
        ]
        words += [] if side.common is None else [_spread(side.common)]
        rows.append((*words, _chance(side.chance if found.common_step is None else side.common_chance)))
    return rows


def _meaning(i: int, side: Side, found: Comparison) -> str | None:
    """What the chance of a side says, at equal env steps where the runs are not equally long."""
    chance = side.chance if found.common_step is None else side.common_chance
    if chance is None:
        return None
    at = '' if found.common_step is None else f'after {found.common_step:,.0f} env steps '
    said = f'{at}{_letter(i)} is higher than A in {chance.value:.0%} of the pairs of runs'
    n_few = min(len(side.last.values), len(found.sides[0].last.values))
    if n_few < FEW:
        return f'{said}; too few runs to tell them apart ({n_few}; 5 or more are usual)'
    is_clear = not chance.low <= 0.5 <= chance.high
    verdict = ('it is higher' if chance.value > 0.5 else 'it is lower') if is_clear else 'no clear difference'
    return f'{said} (95% interval {chance.low:.0%} to {chance.high:.0%}): {verdict}'


def _differences(found: Comparison) -> str:
    from zoo.results.report_config import value_text

    if not found.differences:
        return 'the configs are the same, but for seeds, names and logging'
    rows = [('differs in the config', *(_letter(i) for i in range(len(found.sides))))]
    for key, values in found.differences.items():
        rows.append((key, *(value_text(values[x.label]) if x.label in values else '-' for x in found.sides)))
    return columns(rows)


def _as_data(found: Comparison) -> dict[str, Any]:
    """The same for programs."""
    sides = [
        {
            **side._asdict(),
            **{name: _plain(getattr(side, name)) for name in ('last', 'common', 'chance', 'common_chance')},
            'speed': side.speed if math.isfinite(side.speed) else None,
        }
        for side in found.sides
    ]
    return {**found._asdict(), 'sides': sides, 'left_out': [run._asdict() for run in found.left_out]}


def _plain(value: Spread | Chance | None) -> dict[str, Any] | None:
    return None if value is None else value._asdict()


def _letter(i: int) -> str:
    return f'{chr(ord("A") + i % 26)}{i // 26 or ""}'


def _range(steps: tuple[int, ...]) -> str:
    low, high = min(steps), max(steps)
    return f'{high:,}' if low > 0.98 * high else f'{low:,} to {high:,}'


def _spread(spread: Spread) -> str:
    return f'{spread.center:.5g} [{spread.low:.5g}, {spread.high:.5g}]'


def _chance(chance: Chance | None) -> str:
    return '-' if chance is None else f'{chance.value:.2f} [{chance.low:.2f}, {chance.high:.2f}]'
