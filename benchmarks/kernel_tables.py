"""Report of benchmarks/kernels.py: makes the Markdown tables from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report import table, versions_line, write_json

TIME_COLUMNS = (
    'op',
    'size',
    'logits',
    'pass',
    'error: result',
    'error: gradient (relative)',
    'kernel, us',
    'reference, us',
    'torch.compile, us',
    'loop over rows, us',
    'floor, us',
    'zoo / floor',
    'kernel: share of copy bandwidth',
    'reference / kernel',
    'loop / zoo',
)
HOST_COLUMNS = (
    'op',
    'size',
    'logits',
    'host: zoo, us',
    'host: reference, us',
    'wall: zoo, us',
    'wall: reference, us',
    'wall: torch.compile, us',
    'wall: reference / zoo',
    'graph replay: zoo, us',
    'graph replay: reference, us',
)
PLAIN_COLUMNS = ('op', 'size', 'zoo, us', 'against', 'us', 'its time / zoo')

INTRO = (
    'Copy bandwidth: {bandwidth:,.0f} GB/s, read and written. Times are medians; the variants take turns, on changing '
    'inputs{clock}. zoo is what the public function does: the kernel on a GPU where it covers the case, else the '
    'reference. Floor: bytes over copy bandwidth; the bytes of forward and of backward are what one launch for each '
    'moves, those of both what a single launch would. The share of the copy bandwidth counts what the launches of the '
    'kernel move. The backward pass that torch.compile makes runs once per forward pass, so it is not timed alone. '
    'Errors are those of zoo: the largest distance to the reference in float64, for gradients over the largest '
    'gradient. A ratio within rounding of its clip bound may be inside in float32 and outside in float64: then the '
    'gradient of that row is an error above 1e-3, in some rows of the table of the kernel, in others of the reference in '
    'float32, whose errors are in the .json.\n'
)
CUDA_CLOCK = ' that exceed the cache together: time of the device by CUDA events, the calls queued ahead'
CPU_CLOCK = ', in one thread. Small inputs stay in the cache and can beat the copy bandwidth'
CUDA_HOST = (
    'Of the whole call, forward and backward. Host: until it returns, the device idle before. Wall: calls one after '
    'another. Graph replay: per call, from a captured CUDA graph.\n'
)
CPU_HOST = 'Forward and backward of a single row: the wrapper and its torch ops, with next to no arithmetic.\n'


def write_results(out: Path, result: dict[str, Any]) -> None:
    """Writes the .md and, next to it, the .json with all raw numbers."""
    on_cuda = result['on_cuda']
    intro = INTRO.format(bandwidth=result['copy_bandwidth'] / 1e9, clock=CUDA_CLOCK if on_cuda else CPU_CLOCK)
    text = [f'# Kernels and references: {result["device"]}\n']
    if result['quick']:
        text += ['**A quick run: its numbers mean nothing.**\n']
    text += [
        intro,
        table(TIME_COLUMNS, [time_row(record) for record in result['records']]),
        '## What a call costs the host\n',
        CUDA_HOST if on_cuda else CPU_HOST,
        table(HOST_COLUMNS, [host_row(record) for record in result['host']]),
    ]
    if result['plain']:
        text += [
            '## Against the code that people write\n',
            table(PLAIN_COLUMNS, [plain_row(record) for record in result['plain']]),
        ]
    text += [
        f'- host synchronisations in a training minibatch (loss, gradient, Adam): {result["minibatch_sync"]}',
        f'- device: {result["device"]}; machine: {result["machine"]}',
        f'- versions: {versions_line(result["versions"])}',
        f'- date: {result["date"]}, commit {result["commit"]}',
        f'- command: `{result["command"]}`; raw numbers: `{out.with_suffix(".json").name}`',
    ]
    write_json(out.with_suffix('.json'), result)
    out.write_text('\n'.join(text) + '\n', encoding='utf-8')


def time_row(record: dict[str, Any]) -> list[str]:
    us, kernel = record['us'], record['us'].get('kernel')
    main = 'reference' if kernel is None else 'kernel'
    error = record['error'][main]
    return [
        record['op'],
        record['size'],
        record['logits'],
        record['pass'],
        _number(error['result'], '.1e'),
        _number(error['gradient_relative'], '.1e'),
        _number(kernel),
        _number(us['reference']),
        _number(us.get('compiled', record['missing'].get('compiled'))),
        _number(us.get('loop')),
        _number(record['floor_us']),
        _ratio(us[main], record['floor_us']),
        _ratio(record['bandwidth_us'], kernel),
        _ratio(us['reference'], kernel),
        _ratio(us.get('loop'), us[main]),
    ]


def host_row(record: dict[str, Any]) -> list[str]:
    host, wall, graph = (record.get(clock, {}) for clock in ('host_us', 'wall_us', 'graph_us'))
    main = 'kernel' if 'kernel' in host else 'reference'
    return [
        record['op'],
        record['size'],
        record['logits'],
        _number(host[main]),
        _number(host['reference']),
        _number(wall.get(main)),
        _number(wall.get('reference')),
        _number(wall.get('compiled')),
        _ratio(wall.get('reference'), wall.get(main)),
        _number(graph.get(main)),
        _number(graph.get('reference')),
    ]


def plain_row(record: dict[str, Any]) -> list[str]:
    return [
        record['op'],
        record['size'],
        _number(record['zoo_us']),
        record['against'],
        _number(record['us']),
        _ratio(record['us'], record['zoo_us']),
    ]


def _number(x: float | str | None, form: str = '.3g') -> str:
    """A number with three digits; a string unmodified; '-' for None."""
    if x is None or isinstance(x, str):
        return x or '-'
    return f'{x:,.0f}' if x >= 100 else f'{x:{form}}'


def _ratio(x: float | None, y: float | None) -> str:
    return '-' if x is None or y is None else _number(x / y)
