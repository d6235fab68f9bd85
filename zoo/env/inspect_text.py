"""The report about an env in lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MASKS = {
    'none': 'none',
    'obs': "found: the entry 'action_mask' of the observations",
    'info': "found: the entry 'action_mask' of the infos",
    'method': 'found: the method action_masks()',
}


def report_text(name: str, problems: Sequence[str], warnings: Sequence[str], facts: Mapping[str, Any]) -> str:
    """A line that sums up, the problems, the warnings, then one fact a line."""
    counts = f'{_count(len(problems), "problem")}, {_count(len(warnings), "warning")}'
    steps = f' in {_count(facts["steps"], "step")}' if 'steps' in facts else ''
    lines = [f'{name}: {counts}{steps}']
    lines += [f'problem: {sentence}' for sentence in problems]
    lines += [f'warning: {sentence}' for sentence in warnings]
    lines += [f'  {label:<17} {words}' for label, words in _facts(facts)]
    return '\n'.join(lines)


def _facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, label in (('kind', 'kind'), ('obs_space', 'observations'), ('action_space', 'actions')):
        if key in facts:
            yield label, facts[key]
    if facts.get('wrappers'):
        yield 'wrappers', ', '.join(facts['wrappers'])
    if 'unbounded' in facts:
        yield 'without bounds', ', '.join(facts['unbounded']) or 'none'
        yield 'action masks', MASKS[facts['masks']]
    if 'time_limit' in facts:
        yield 'time limit', f'{facts["time_limit"]} steps' if facts['time_limit'] else 'none'
    if facts.get('steps'):
        yield from _values(facts)
    if 'vectorization' in facts:
        yield 'vectorization', f'{facts["vectorization"]}: {facts["vectorization_why"]}'
    if 'picklable' in facts:
        yield 'picklable', 'yes' if facts['picklable'] else 'no'
    if facts.get('repeats') is not None:
        yield 'seeds', 'repeat its episodes' if facts['repeats'] else 'do not repeat its episodes'


def _values(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for path, seen in facts['obs'].items():
        yield f'{path} range', _range(seen)
    yield 'reward range', _range(facts['reward'])
    yield 'episodes', _episodes(facts['episodes'])
    keys = [key if key in facts['info_numbers'] else f'{key} (no number)' for key in facts['info_keys']]
    yield 'info at the end', ', '.join(keys) or 'none seen'
    which = 'one env' if facts['envs'] == 1 else f'{facts["envs"]} envs together'
    times = f'{facts["step_ms"]:.3g} ms for the step of an env, {facts["reset_ms"]:.3g} ms for a reset'
    yield 'speed', f'{facts["steps_per_s"]:.4g} steps/s of {which}; {times}'


def _range(seen: Mapping[str, float | None]) -> str:
    if seen['min'] is None:
        return 'no numbers'
    return f'{seen["min"]:.4g} to {seen["max"]:.4g}, mean {seen["mean"]:.4g}, deviation {seen["std"]:.4g}'


def _episodes(seen: Mapping[str, Any]) -> str:
    if not seen['count']:
        return 'none ended'
    return (
        f'{seen["count"]} ended ({seen["terminated"]} terminated, {seen["truncated"]} truncated) after '
        f'{seen["length_mean"]:.4g} steps on average, {seen["length_max"]} at most; returns {seen["return_min"]:.4g} to '
        f'{seen["return_max"]:.4g}, mean {seen["return_mean"]:.4g}'
    )


def _count(n: int, what: str) -> str:
    return f'{n or "no"} {what}{"" if n == 1 else "s"}'
