"""Plots of curves of groups of runs: one line for each group, the average of its runs, with an interval."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from zoo.core.errors import UserError, need
from zoo.core.files import refuse_failure, whole_file
from zoo.core.registry import TOOL_REGISTRY
from zoo.core.streams import visible
from zoo.tools.results.read import Run, curve_metrics, read_run
from zoo.tools.results.statistics import LEVEL, WORDS, Axis, Band, Stat, band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as Axis_
    from matplotlib.figure import Figure

Theme = Literal['light', 'dark']
OUTPUTS = {
    'picture': (('.svg', '.png', '.pdf'), '.svg, .png or .pdf', 'curve.svg'),
    'report': (('.html', '.htm'), '.html', 'report.html'),
}
"""Kind of an output file -> its suffixes, these as readable text, an example of a name."""
COLORS: dict[Theme, tuple[str, ...]] = {
    'light': ('#003ab2', '#d55e00', '#007b5a', '#b1529b', '#000000', '#994d00', '#3a9bd6'),
    'dark': ('#5581e9', '#f18b3c', '#2fc68c', '#e09bc9', '#ffffff', '#f0e442', '#8fa0ff'),
}
"""Colours that people who do not see red, green or blue can distinguish, with a contrast of 3 to the background."""
MARKERS = 'osD^vPX*h'  # 9 markers and 7 colours: 63 different lines; markers differ in print without colours too
PAPER: dict[Theme, dict[str, str]] = {
    'light': {'paper': '#ffffff', 'ink': '#1f2328', 'rule': '#d8dce0', 'other': '#8c939b'},
    'dark': {'paper': '#16181c', 'ink': '#e4e6ea', 'rule': '#3a3f46', 'other': '#7b828b'},
}
# titles of the metrics that show the progress of a run, by importance; other metrics have their name as title
TITLES = {
    'eval/success_rate': 'Share of episodes with success',
    'eval/return_mean': 'Return in evaluations',
    'collect/return_mean': 'Return in training',
    'eval/episode_len_mean': 'Length of an episode in evaluations',
    'learn/entropy': 'Entropy of the policy',
    'learn/kl': 'Change of the policy in an update (KL)',
    'learn/explained_variance': 'Share of the return that the value function explains',
    'learn/value_loss': 'Loss of the value function',
    'time/env_step_per_s': 'Env steps per second',
}
N_WHOLE_RANGE = 3  # most runs of which the interval is from the lowest to the highest: 1 in 27 draws has one run only
N_MARKER = 8  # on a line of more than N_MARK points, if colours alone do not distinguish the lines
# of a legend: inches of a line, and lines that fit into a figure of its normal size
LINE_HEIGHT = 0.19
N_CHARACTER = 13  # in an inch of a title
N_LINE = 4
EDGE = 0.1  # inches around a figure
N_CHANGE = 3  # most changes of the number of runs that a legend lists
SIZES = ((1e9, 'G'), (1e6, 'M'), (1e3, 'k'))
PLAIN = 1e4  # smaller numbers of an axis have no unit: 800 and 1,000
UNITS = ((3600.0, 'hours'), (60.0, 'minutes'), (1.0, 'seconds'))


def figure(
    groups: Mapping[str, Sequence[Run]],
    metric: str | Sequence[str],
    x: Axis = 'env_step',
    stat: Stat = 'iqm',
    *,
    size: tuple[float, float] = (7.2, 4.6),
    theme: Theme = 'light',
    title: str | None = None,
    n_top: int | None = None,
) -> Figure:
    """Draws one line for each group: the average of its runs on one grid of steps, and a 95% interval (for one point, a bar).

    Of several metrics there is one for each group and metric: the colour is that of the group, the marker that of the metric.
    At steps where not all runs of a group have values, the line is dotted, and the legend says how many runs have them.
    Args:
      groups: runs by the label of their line; metric: one or several, from `resolve_metric`; x: 'env_step' or 'wall_s'.
      size: width and height in inches of 100 pixels; a long legend makes the figure higher; title: replaces metric and env;
        '': no title; n_top: groups that are drawn so, the first ones; the lines of the others are thin, grey, and without
        interval; None: all.
    Raises: UserError if matplotlib is not installed.
    """
    paper = PAPER[theme]
    colors = COLORS[theme]
    with styled_figure(size, theme) as drawn:
        axes = drawn.add_subplot()
        metrics = as_metrics(metric)
        drawn_lines = lines_of(groups, metrics)
        curves = [band(line.runs, line.metric, x, stat) for line in drawn_lines]
        unit, unit_words = _unit(x, curves)
        named = curves[:n_top]
        has_more_lines_than_colors = len(named) > len(colors) or len(metrics) > 1 < len(groups)
        looks = _looks(len(groups), len(metrics), colors)[: len(named)]
        lines = {
            _label(line.label, curve, unit, unit_words): _draw(axes, curve, *look, unit, has_more_lines_than_colors)
            for line, curve, look in zip(drawn_lines, named, looks, strict=False)
        }
        others = curves[len(named) :]
        if others:
            lines[f'the {len(others)} others'] = _draw_others(axes, others, paper['other'], unit)
        words = _title_of(metrics)
        style_axes(axes, paper)
        axes.set_xlim(left=0)
        axes.set_xlabel(f'wall time ({unit_words.strip()})' if unit_words else 'env steps', color=paper['ink'])
        axes.set_ylabel(
            '\n'.join(wrap(visible(words), int(size[1] * N_CHARACTER))), color=paper['ink'], parse_math=False
        )
        envs = dict.fromkeys(run.env_id for runs in groups.values() for run in runs)
        if title is None:
            head = f'{words} on {", ".join(envs)}'
        else:
            head = title
        _write_around(drawn, axes, head, _caption(stat, named, x), lines)
    return drawn


class Line(NamedTuple):
    """A line of a figure: a metric of the runs of a group."""

    label: str
    runs: Sequence[Run]
    metric: str


def as_metrics(metric: str | Sequence[str]) -> list[str]:
    """A list of metrics, each once."""
    if isinstance(metric, str):
        return [metric]
    return list(dict.fromkeys(metric))


def lines_of(groups: Mapping[str, Sequence[Run]], metrics: Sequence[str]) -> list[Line]:
    """The lines of a figure. A label names what differs between lines: the group, the metric, or both."""
    lines = []
    for group, runs in groups.items():
        for metric in metrics:
            label = group
            if len(metrics) > 1:
                label = f'{group}, {metric}'
            if len(groups) == 1 < len(metrics):
                label = metric
            lines.append(Line(label, runs, metric))
    return lines


def _looks(n_group: int, n_metric: int, colors: Sequence[str]) -> list[tuple[str, str]]:
    """The colour and marker of each line: of the group and the metric where both are several and there are enough of each."""
    if n_group > 1 < n_metric and n_group <= len(colors) and n_metric <= len(MARKERS):
        return [(color, marker) for color in colors[:n_group] for marker in MARKERS[:n_metric]]
    return [(colors[i % len(colors)], MARKERS[i % len(MARKERS)]) for i in range(n_group * n_metric)]


def _title_of(metrics: Sequence[str]) -> str:
    """The words at the axis. Metrics of several policies or agents have those that they share: return_mean of evaluations."""
    shared = {(name.split('/')[0], name.split('/')[-1]) for name in metrics}
    if len(metrics) > 1 and len(shared) == 1:
        group, name = shared.pop()
        return TITLES.get(f'{group}/{name}', f'{group}/{name}')
    return ', '.join(TITLES.get(name, name) for name in metrics)


@contextmanager
def styled_figure(size: tuple[float, float], theme: Theme = 'light') -> Iterator[Figure]:
    """Yields an empty figure. Args: size: in inches of 100 pixels. Raises: UserError if matplotlib is not installed."""
    need('matplotlib', 'plot', 'drawing curves')
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paper = PAPER[theme]
    with rc_context({'font.family': 'DejaVu Sans', 'font.size': 9.5, 'text.color': paper['ink']}):
        drawn = Figure(figsize=size, dpi=100, layout='constrained', facecolor=paper['paper'])
        drawn.set_layout_engine('constrained', w_pad=EDGE, h_pad=EDGE)
        FigureCanvasAgg(drawn)  # no window, and none of pyplot's state
        yield drawn


@TOOL_REGISTRY.register('plot_run')
def plot_run(folder: Path, metric: str | Sequence[str] | None = None, path: str | Path | None = None) -> Figure:
    """Draws the curve of one run, see `TrainResult.plot`. A notebook shows the figure, which has the method `_repr_svg_`."""
    run = read_run(folder)
    drawn = figure({run.label: [run]}, curve_metrics([run], metric))
    # a notebook shows a matplotlib Figure only if pyplot was told so there (%matplotlib inline)
    vars(drawn)['_repr_svg_'] = partial(svg_text, drawn, str(folder))
    if path is not None:
        save(drawn, Path(path))
    return drawn


@TOOL_REGISTRY.register('html_of_run')
def html_of_run(folder: Path, text: str) -> str:
    """Returns HTML for a notebook: a text above the curve of a run. Raises: UserError if the curve cannot be drawn."""
    return f'<pre>{escape(text)}</pre>{svg_text(plot_run(folder), str(folder))}'


def save(drawn: Figure, path: Path) -> None:
    """Writes a figure as .svg, .png or .pdf, whole or not at all. Raises: UserError if it cannot be written."""
    check_output(path, 'picture')
    is_svg = path.suffix.lower() == '.svg'
    write_output(path, svg_text(drawn, is_file=True).encode() if is_svg else _bytes(drawn, path.suffix[1:]))


def write_output(path: Path, data: bytes) -> None:
    """Writes an output file of a command, whole or not at all. Raises: UserError if it cannot be written."""
    with refuse_failure(f'{path} cannot be written', 'name another file with -o'), whole_file(path) as file:
        file.write(data)


def check_output(path: Path, what: Literal['picture', 'report']) -> None:
    """Checks suffix and folder of an output file, before any run is read. Raises: UserError."""
    suffixes, words, example = OUTPUTS[what]
    if path.suffix.lower() not in suffixes:
        raise UserError(f'the {what} is to be {path}, but its name must end in {words}; e.g. -o {example}')
    if path.is_dir() or not path.absolute().parent.is_dir():
        if path.is_dir():
            problem = 'that is a folder'
        else:
            problem = f'there is no folder {path.parent}; make it first'
        raise UserError(f'the {what} is to be {path}, but {problem}; name a file with -o, e.g. -o {example}')


def curve_numbers(
    groups: Mapping[str, Sequence[Run]], metric: str | Sequence[str], x: Axis, stat: Stat
) -> dict[str, dict[str, Any]]:
    """Returns the runs and the metric of each line that `figure` draws, and its numbers, None for those that are not known."""
    curves = {}
    for label, runs, name in lines_of(groups, as_metrics(metric)):
        drawn = band(runs, name, x, stat)
        ends = {'low': drawn.low, 'high': drawn.high, 'n_run': drawn.n_run}
        rows: dict[str, np.ndarray] = {x: drawn.steps, stat: drawn.center, **ends}
        curves[label] = {
            'runs': [str(run.path) for run in runs],
            'metric': name,
            **{key: [None if math.isnan(value) else value for value in row.tolist()] for key, row in rows.items()},
        }
    return curves


def svg_text(drawn: Figure, salt: str = 'zoo', is_file: bool = False) -> str:
    """Returns a figure as the text of an `<svg>` element; the text is the same at each call.

    Args: salt: makes the ids of elements differ from those of other figures on a page; is_file: with the XML declaration.
    """
    from matplotlib import rc_context

    with rc_context({'svg.hashsalt': salt, 'svg.fonttype': 'path'}):
        text = _bytes(drawn, 'svg', metadata={'Date': None}).decode()
    if is_file:
        return text
    return text[text.index('<svg') :]


def _bytes(drawn: Figure, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    drawn.savefig(file, format=kind.lower(), dpi=200, **options)
    return file.getvalue()


def _draw(axes: Axes, curve: Band, color: str, marker: str, unit: float, needs_marker: bool) -> Any:
    """Draws one line with its interval, dotted at steps where not all runs have values. Returns: the handle for the legend.

    Each point has a marker; if there are too many, only a few have one, or none, unless `needs_marker`. The interval is a
    shade, or a bar if the line is a single point.
    """
    from matplotlib.lines import Line2D

    at = curve.steps / unit
    marked = curve.marked
    if needs_marker and not marked.any():
        marked = _some(curve.steps)
    line: dict[str, Any] = {'color': color, 'marker': marker, 'markersize': 5, 'markeredgewidth': 0}
    has_marker = marked.any() or len(at) < 2
    for part, n_run in curve.parts():
        style: dict[str, Any]
        if n_run == curve.n_with:
            style = {'linestyle': '-', 'linewidth': 1.8}
        else:
            style = {'linestyle': ':', 'linewidth': 1.4}
        if part.stop - part.start > 1:
            marks = np.flatnonzero(marked[part]).tolist()
        else:
            marks = [0]
        axes.plot(at[part], curve.center[part], markevery=marks, **line, **style)
        if n_run > 1 and part.stop - part.start == 1:  # a shade of one step has no width
            low = curve.low[part]
            high = curve.high[part]
            axes.vlines(at[part], low, high, color=color, linewidth=1.4)
            axes.plot(np.repeat(at[part], 2), [*low, *high], '_', color=color, markersize=9, markeredgewidth=1.4)
        else:
            axes.fill_between(at[part], curve.low[part], curve.high[part], color=color, alpha=0.18, linewidth=0)
    if not len(at):
        return Line2D([], [], linestyle='none')
    return Line2D([], [], linewidth=1.8, **(line if has_marker else line | {'marker': ''}))


def _draw_others(axes: Axes, curves: Sequence[Band], color: str, unit: float) -> Any:
    """Draws lines that are only the background of others. Returns: the handle for the legend."""
    from matplotlib.lines import Line2D

    for curve in curves:
        marker = ''
        if len(curve.steps) == 1:
            marker = 'o'
        style: dict[str, Any] = {'color': color, 'linewidth': 1.0, 'marker': marker, 'markersize': 3, 'zorder': 1.5}
        axes.plot(curve.steps / unit, curve.center, **style)
    return Line2D([], [], color=color, linewidth=1.0)


def _some(steps: np.ndarray) -> np.ndarray:
    """Returns some points of a long line, [n] bool: the first in each of N_MARKER equal stretches."""
    width = 0
    if len(steps):
        width = (steps[-1] - steps[0]) / N_MARKER
    return np.diff(np.floor((steps - steps[:1]) / (width or 1)), prepend=-1) > 0


def style_axes(axes: Axes, paper: Mapping[str, str]) -> None:
    """Styles axes: short numbers, and grid lines to read values."""
    axes.set_facecolor('none')
    axes.grid(True, color=paper['rule'], linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    axes.spines[['top', 'right']].set_visible(False)
    axes.spines[['left', 'bottom']].set_color(paper['rule'])
    axes.tick_params(colors=paper['ink'], length=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(partial(_tick, axis))


def _write_around(drawn: Figure, axes: Axes, head: str, caption: str, lines: Mapping[str, Any]) -> None:
    """Writes the title above the axes, and the legend in them, or below if it is long. The caption is below the axes.

    Without a title, legend and caption are always below: a page shows them as its own text.
    """
    wide = drawn.get_figwidth()
    # characters that fit
    width = int(wide * N_CHARACTER)
    width_small = int(wide * 16)
    if head:
        axes.set_title('\n'.join(wrap(visible(head), width)), loc='left', fontsize=11, parse_math=False)
    labels = ['\n'.join(wrap(visible(label), width - 8)) for label in lines]
    if len(labels) > 3 and max(map(len, labels)) < width // 2 - 8:
        n_column = 2
    else:
        n_column = 1
    caption = '\n'.join(wrap(caption, width_small))
    n_line = sum(label.count('\n') + 1 for label in labels) / n_column
    if head and n_line <= N_LINE and max(map(len, labels)) < width // 2:
        legend = axes.legend(list(lines.values()), labels, frameon=False)
        drawn.supxlabel(caption, fontsize=8, x=0.01, ha='left')
    else:
        place: dict[str, Any] = {'loc': 'outside lower left', 'alignment': 'left', 'ncols': n_column}
        legend = drawn.legend(list(lines.values()), labels, frameon=False, title=caption, title_fontsize=8, **place)
        drawn.set_figheight(drawn.get_figheight() + LINE_HEIGHT * max(0, n_line - N_LINE))
    for text in legend.get_texts():
        text.set_parse_math(False)


def _label(name: str, curve: Band, unit: float, unit_words: str) -> str:
    """Returns a line of the legend: 'cartpole_ppo: 5 runs, 4 from 50k on'."""
    if curve.n_with == 1:
        runs = 'run'
    else:
        runs = 'runs'
    if not curve.n_with:
        return f'{name}: no run has this metric'
    changes = [(n_run, curve.steps[part.start] / unit) for part, n_run in curve.parts() if n_run]
    if changes[0][0] == curve.n_with:
        changes = changes[1:]
    words = [f'{curve.n_with} {runs}']
    if len(changes) <= N_CHANGE:
        words += [f'{n_run} from {short(at, 3)}{unit_words} on' for n_run, at in changes]
    elif whole := [part for part, n_run in curve.parts() if n_run == curve.n_with]:
        first, last = (short(curve.steps[at] / unit, 3) for at in (whole[0].start, whole[-1].stop - 1))
        words.append(f'all of them from {first} to {last}{unit_words}')
    else:
        words.append(f'at most {max(n_run for n_run, _ in changes)} at one time')
    if curve.n_without:
        words.append(f'{curve.n_without} more without this metric')
    return f'{name}: {", ".join(words)}'


def _caption(stat: Stat, curves: Sequence[Band], x: Axis) -> str:
    """Returns the caption, which explains lines, shades and bars."""
    words = []
    if any(curve.n_with > 1 for curve in curves):
        words = [f'line: {WORDS[stat]} of runs']
    lengths = [part.stop - part.start for curve in curves for part, n_run in curve.parts() if n_run > 1]
    if lengths:
        kinds = {'shade': max(lengths) > 1, 'bar': min(lengths) == 1}
        drawn = ' or '.join(kind for kind, is_drawn in kinds.items() if is_drawn)
        most = max(n_run for curve in curves for _, n_run in curve.parts())
        meaning = f'{LEVEL:.0%} bootstrap interval over runs'
        words.append(f'{drawn}: {meaning if most > N_WHOLE_RANGE else "from the lowest to the highest run"}')
    if any(n_run < curve.n_with for curve in curves for _, n_run in curve.parts()):
        words.append('dotted: not all runs have values there')
    n_kept = sum(curve.n_kept for curve in curves)
    if n_kept and x == 'wall_s':
        words.append('a run keeps its last value after its end')
    elif n_kept:
        words.append(f'{n_kept} {"run" if n_kept == 1 else "runs"} reached stop_value and kept the last value')
    return '; '.join(words)


def _unit(x: Axis, curves: Sequence[Band]) -> tuple[float, str]:
    """Returns the divisor of steps, and the name of the unit after a number: ' hours' etc.; '' for env steps."""
    if x == 'env_step':
        return 1.0, ''
    longest = max((float(curve.steps[-1]) for curve in curves if len(curve.steps)), default=0.0)
    unit, name = next(((unit, name) for unit, name in UNITS if longest >= 3 * unit), UNITS[-1])
    return unit, f' {name}'


def _tick(axis: Axis_, value: float, _: object) -> str:
    """Returns the label of a tick; all labels of an axis have the same unit and the same number of decimals."""
    largest = max(map(abs, axis.get_view_interval()))
    size, letter = next((unit for unit in SIZES if largest >= max(unit[0], PLAIN)), (1.0, ''))
    gap = float(np.diff(axis.get_majorticklocs()[:2])[0]) / size
    n_digit = next((n for n in range(6) if abs(gap - round(gap, n)) < 1e-6), 6)
    if value:
        return f'{value / size:,.{n_digit}f}{letter}'
    return '0'


def short(value: float, n_digit: int = 4) -> str:
    """Formats a number for an axis: 950, 20k, 1.5M."""
    size, letter = next((unit for unit in SIZES if abs(value) >= unit[0]), (1.0, ''))
    return f'{value / size:.{n_digit}g}{letter}'
