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
N_SHOWN = 4  # runs that a line names
NOTES = """  zoo compare runs/cartpole_ppo runs/cartpole_ppg

Runs that differ only in their seed are a side, and each side is compared with the first one. Of two words the runs are
never put together, even if they are of one config. The chance to beat A is the share of pairs, one run of each side, in
which the other is higher: .5 is a tie. A difference is called one if chance alone gives such a one in 5% of cases at most,
and .5 is outside of the interval; 3 runs against 3 are too few for that, 4 against 4 are enough."""


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

    has_interval = any(side.last is not None and side.last.low is not None for side in found.sides)
    head = (
        f'{found.metric} at the last point of each run, {WORDS[found.stat]} of runs{" [95% interval]" * has_interval}'
    )
    means = [line for i, side in enumerate(found.sides) if (line := _meaning(i, side, found)) is not None]
    notes = [*([_left_out(found)] if found.left_out else []), *_without_values(found), *means]
    return '\n'.join([head, '', columns(_table(found)), '', *notes, '', _differences(found)])


def _left_out(found: Comparison) -> str:
    """The runs that are not compared, and why."""
    runs = [f'{run.path} ({run.state} at env step {run.env_step:,})' for run in found.left_out]
    more = f' and {len(runs) - N_SHOWN} more' if len(runs) > N_SHOWN else ''
    return f'left out, since they are at an earlier env step than the others: {", ".join(runs[:N_SHOWN])}{more}'


def _without_values(found: Comparison) -> list[str]:
    """The sides that have no run with the metric, and what to do, as one sentence; none if there are none."""
    from zoo.results.compare import way_to_values

    letters = [_letter(i) for i, side in enumerate(found.sides) if side.last is None]
    if not letters:
        return []
    return [
        f'no run of {" or ".join(letters)} has a value of {found.metric}, so that is not compared; '
        f'{way_to_values(found.metric)}'
    ]


def _table(found: Comparison) -> list[tuple[str, ...]]:
    at = [] if found.common_step is None else [f'at {found.common_step:,.0f} steps']
    rows = [('', 'name', 'runs', 'env steps', 'env steps/s', 'last', *at, 'chance to beat A')]
    for i, side in enumerate(found.sides):
        words = [
            _letter(i),
            side.label,
            str(side.n_run) if len(side.env_step) == side.n_run else f'{len(side.env_step)} of {side.n_run}',
            _range(side.env_step),
            f'{side.speed:,.0f}' if math.isfinite(side.speed) else '-',
            _spread(side.last),
        ]
        words += [] if found.common_step is None else [_spread(side.common)]
        rows.append((*words, _chance(side.chance if found.common_step is None else side.common_chance)))
    return rows


def _meaning(i: int, side: Side, found: Comparison) -> str | None:
    """What the chance of a side says, at equal env steps where the runs are not equally long."""
    chance = side.chance if found.common_step is None else side.common_chance
    if chance is None:
        return None
    at = '' if found.common_step is None else f'after {found.common_step:,.0f} env steps '
    said = f'{at}{_letter(i)} is higher than A in {chance.value:.0%} of the pairs of runs'
    luck = f'chance alone gives such a difference in {_percent(chance.p)} of cases'
    if chance.low is None or chance.high is None:
        n, n_first = (len(one.last.values) if one.last else 0 for one in (side, found.sides[0]))
        return f'{said}: {n} and {n_first} runs are too few to tell them apart ({luck}; 5 or more of each are usual)'
    verdict = ('it is higher' if chance.value > 0.5 else 'it is lower') if chance.is_clear else 'no clear difference'
    return f'{said} (95% interval {chance.low:.0%} to {chance.high:.0%}): {verdict} ({luck})'


def _differences(found: Comparison) -> str:
    from zoo.config.yaml_text import value_text

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


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return '-'
    ends = '' if spread.low is None else f' [{spread.low:.5g}, {spread.high:.5g}]'
    return f'{spread.center:.5g}{ends}'


def _chance(chance: Chance | None) -> str:
    if chance is None:
        return '-'
    ends = '' if chance.low is None else f' [{chance.low:.2f}, {chance.high:.2f}]'
    return f'{chance.value:.2f}{ends}'


def _percent(share: float) -> str:
    return f'{share:.0%}' if share >= 0.1 else f'{share:.1%}' if share >= 0.001 else 'less than 0.1%'
