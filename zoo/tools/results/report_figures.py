"""Figures and videos of a report: curves as SVG for wide and narrow screens, with colours for light and dark screens."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from zoo.core.errors import UserError
from zoo.core.files import refuse_failure
from zoo.tools.results.plot import COLORS, PAPER, TITLES, Theme, figure, svg_text
from zoo.tools.results.read import Run
from zoo.tools.results.statistics import Axis, Stat

WIDE = (10.4, 4.4)
NARROW = (3.7, 3.9)
SMALL = (3.5, 2.3)
"""Sizes in inches. At these sizes, the text of a figure is as large as the text of the page."""
N_MORE = 6
OTHERS = 'plot-other'
"""The CSS variable of the colour of groups that are only the background of others."""
N_COLOR = len(COLORS['light'])
MARKS = {'o': '●', 's': '■', 'D': '◆', '^': '▲', 'v': '▼', 'P': '✚', 'X': '✖', '*': '★', 'h': '⬢'}
"""Matplotlib's markers as characters."""

KINDS = {
    '.mp4': ('video/mp4', b'ftyp', 4),
    '.webm': ('video/webm', b'\x1a\x45\xdf\xa3', 0),
    '.gif': ('image/gif', b'GIF8', 0),
}
"""By the suffix of a file: its media type, the bytes that identify such a file, and their offset."""
MAX_BYTE = 32 << 20  # larger pages are refused by many mail servers, and slow on a phone

Groups = Mapping[str, Sequence[Run]]


def palette() -> str:
    """Returns the colours of curves as CSS variables, one block for light and one for dark screens."""
    themes: tuple[Theme, Theme] = ('light', 'dark')
    light, dark = (
        ''.join(f'--line-{i}: {color};' for i, color in enumerate(COLORS[theme]))
        + ''.join(f'--plot-{name}: {color};' for name, color in PAPER[theme].items())
        for theme in themes
    )
    return f':root {{ {light} }} @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}'


class Video(NamedTuple):
    """A video. kind: its media type, e.g. 'video/mp4'; data: its bytes."""

    kind: str
    data: bytes

    @property
    def source(self) -> str:
        """The data URL of the video."""
        return f'data:{self.kind};base64,{base64.b64encode(self.data).decode()}'


class Figure(NamedTuple):
    """The curves of a metric in two sizes: a page shows the one that fits its width, with the legend below as text.

    keys: for each line, the CSS variable of its colour, its marker ('' for none) and its label.
    """

    wide: Markup
    narrow: Markup
    keys: list[tuple[str, str, str]]
    caption: str


def main_figure(
    groups: Groups, colors: Sequence[int], metric: str, x: Axis, stat: Stat, name: str, n_top: int | None = None
) -> Figure:
    """Draws the figure of a metric.

    Args: colors: index of the colour of each group; name: prefix of the ids of its elements; n_top: see `figure`.
    """
    words = f'{metric} of {len(groups)} {"config" if len(groups) == 1 else "configs"} over {_X_WORDS[x]}'
    (wide, legend, caption), (narrow, *_) = (
        _draw(groups, colors, metric, x, stat, size, f'{name}-{kind}', words, n_top=n_top)
        for kind, size in (('wide', WIDE), ('narrow', NARROW))
    )
    variables = [variable_of(color, n_top) for color in colors[:n_top]] + [OTHERS]
    keys = [(variable, mark, label) for variable, (mark, label) in zip(variables, legend, strict=False)]
    has_several = any(len(runs) > 1 for runs in groups.values())
    return Figure(wide, narrow, keys, caption[:1].upper() + caption[1:] if has_several else '')


def variable_of(i: int, n_top: int | None = None) -> str:
    """Returns the CSS variable of the colour of the i-th group. Args: n_top: see `figure`."""
    if n_top is None or i < n_top:
        return f'line-{i % N_COLOR}'
    return OTHERS


def more_figures(
    groups: Groups, colors: Sequence[int], shown: str, x: Axis, stat: Stat, name: str, n_top: int | None = None
) -> list[tuple[str, Markup]]:
    """Draws small curves of other known metrics, each with a title. Args: shown: the metric of the main figure."""
    columns = [run.columns for group in groups.values() for run in group]
    n_point = {
        metric: max(int(np.isfinite(each.get(metric, np.empty(0))).sum()) for each in columns) for metric in TITLES
    }
    known = [metric for metric in TITLES if metric != shown and n_point[metric] > 1]
    words = [f'{metric} over {_X_WORDS[x]}' for metric in known]
    return [
        (TITLES[metric], _draw(groups, colors, metric, x, stat, SMALL, f'{name}-more-{i}', words[i], '', n_top)[0])
        for i, metric in enumerate(known[:N_MORE])
    ]


def read_video(path: Path) -> Video:
    """Reads a video from a file. Raises: UserError if browsers cannot show it, or if it is too large for a page."""
    if path.suffix.lower() not in KINDS:
        raise UserError(f'the video {path} must end in {", ".join(KINDS)}, which browsers show; convert it')
    with refuse_failure(f'the video {path} cannot be read', 'name another file'):
        n_byte = path.stat().st_size
        if n_byte <= MAX_BYTE:
            data = path.read_bytes()
        else:
            data = b''
    if n_byte > MAX_BYTE:
        raise UserError(
            f'the video {path} has {n_byte / 2**20:.0f} MB but a page takes {MAX_BYTE >> 20} MB; make a shorter one'
        )
    kind, mark, at = KINDS[path.suffix.lower()]
    if data[at : at + len(mark)] != mark:
        raise UserError(f'the video {path} is no {kind.rpartition("/")[2]} file; name another file')
    return Video(kind, data)


def newest_video(run: Run) -> Path | None:
    """Returns the video with the highest env step in the folder `videos` of a run, without links; None if there is none."""
    folder = run.path / 'videos'
    if folder.is_symlink():
        found = []
    else:
        found = [path for path in sorted(folder.glob('*')) if path.suffix.lower() in KINDS]
    files = [x for x in found if x.is_file() and not (x.is_symlink() or x.name.startswith('.'))]  # '.': unfinished
    return max(files, key=lambda path: (step_of(path) or 0, path.name), default=None)


def step_of(path: Path) -> int | None:
    """Returns the env step in a name such as step_40670.mp4; None if it has none."""
    found = re.search(r'step_0*(\d+)', path.stem)
    if found:
        return int(found[1])
    return None


_X_WORDS: dict[Axis, str] = {'env_step': 'env steps', 'wall_s': 'wall time'}


def _draw(
    groups: Groups,
    colors: Sequence[int],
    metric: str,
    x: Axis,
    stat: Stat,
    size: tuple[float, float],
    name: str,
    words: str,
    y_words: str | None = None,
    n_top: int | None = None,
) -> tuple[Markup, list[tuple[str, str]], str]:
    """Draws a figure without its legend, and returns the legend: marker and label of each line, and the caption.

    Args: name: unique prefix of the ids in the figure; words: description for people who cannot see it.
    """
    drawn = figure(groups, metric, x, stat, size=size, title='', n_top=n_top)
    [legend] = drawn.legends
    labels = [' '.join(text.get_text().split()) for text in legend.get_texts()]
    marks = [MARKS.get(str(line.get_marker()), '') for line in legend.get_lines()]
    caption = ' '.join(legend.get_title().get_text().split())
    legend.remove()  # the page's own text has all letters and wraps
    drawn.set_size_inches(*size)
    if y_words is not None:
        drawn.axes[0].set_ylabel(y_words)
    return inline(drawn, colors, name, words), list(zip(marks, labels, strict=True)), caption


def inline(drawn: Any, colors: Sequence[int], name: str, words: str) -> Markup:
    """Returns a figure as SVG for a page, with the page's colours, unique ids and a description. Args: as for `_draw`."""
    svg = re.sub(r'<metadata>.*?</metadata>', '', svg_text(drawn, salt=name), flags=re.DOTALL)
    svg = re.sub(r'(\bid="|="#|url\(#)', rf'\g<1>{name}-', svg)  # ids, and references to them
    for i, color in enumerate(COLORS['light'][: len(colors)]):
        svg = svg.replace(color, f'var(--line-{colors[i] % N_COLOR})')
    for part, color in PAPER['light'].items():
        svg = svg.replace(color, f'var(--plot-{part})')
    head = Markup('<svg role="img" aria-label="{}" ').format(words)
    return Markup(re.sub(r'<svg\s', lambda _: head, svg, count=1))
