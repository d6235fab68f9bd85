"""The curves of a report, as SVG inside the page: for wide and narrow screens, in the colours of light and dark ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zoo.results.curves import Axis
from zoo.results.plot import COLORS, MARKERS, PAPER, Theme, figure, svg_text
from zoo.results.read import Run
from zoo.results.report_html import Html, html, join
from zoo.results.statistics import Stat

WIDE, NARROW, SMALL = (10.4, 4.4), (3.7, 3.9), (3.5, 2.3)
"""Sizes in inches. The text of a figure is as large as that of the page where it is shown in its own width."""
MORE = {
    'eval/success_rate': 'Share of episodes with success',
    'eval/return_mean': 'Return in evaluations',
    'collect/return_mean': 'Return in training',
    'eval/episode_len_mean': 'Length of an episode in evaluations',
    'learn/entropy': 'Entropy of the policy',
    'learn/approx_kl': 'Change of the policy in an update (KL)',
    'learn/explained_variance': 'Share of the return that the value function explains',
    'learn/value_loss': 'Loss of the value function',
    'time/env_step_per_s': 'Env steps per second',
}
"""Other curves that say how a run went, by importance."""
N_MORE = 6
N_COLOR = len(COLORS['light'])
MARKS = {'o': '●', 's': '■', 'D': '◆', '^': '▲', 'v': '▼', 'P': '✚', 'X': '✖', '*': '★', 'h': '⬢'}
"""The markers of matplotlib as text."""

Groups = Mapping[str, Sequence[Run]]


def palette() -> str:
    """The colours of curves as variables of CSS, one block for light and one for dark screens."""
    themes: tuple[Theme, Theme] = ('light', 'dark')
    light, dark = (''.join(f'--{name}: {color};' for name, color in _colors(theme).items()) for theme in themes)
    return f':root {{ {light} }} @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}'


def main_figure(groups: Groups, colors: Sequence[int], metric: str, x: Axis, stat: Stat, name: str) -> Html:
    """The curve of a metric, twice: the page shows the one that fits its width. Below it is the legend, as text.

    Args: colors: the number of the colour of each group; name: begins the ids of its elements.
    """
    words = f'{metric} of {len(groups)} {"config" if len(groups) == 1 else "configs"} over {_X_WORDS[x]}'
    wide, narrow = (
        _draw(groups, colors, metric, x, stat, size, f'{name}-{kind}', words)
        for kind, size in (('wide', WIDE), ('narrow', NARROW))
    )
    keys = (
        html(
            '<li><span class="key" style="color:var(--line-$color)" aria-hidden="true">─$mark─</span>$label</li>', **key
        )
        for key in (
            {'color': color % N_COLOR, 'mark': MARKS[MARKERS[i % len(MARKERS)]], 'label': label}
            for i, (color, label) in enumerate(zip(colors, wide.labels, strict=True))
        )
    )
    return html(
        '<figure><div class="wide">$wide</div><div class="narrow">$narrow</div>'
        '<ul class="legend">$keys</ul><figcaption>$caption</figcaption></figure>',
        wide=wide.svg,
        narrow=narrow.svg,
        keys=join(keys),
        caption=wide.caption[:1].upper() + wide.caption[1:] if any(len(runs) > 1 for runs in groups.values()) else None,
    )


def more_figures(groups: Groups, colors: Sequence[int], shown: str, x: Axis, stat: Stat, name: str) -> Html:
    """Small curves of what else is known, without the metric that is shown already; empty if nothing is."""
    return join(_more(groups, colors, shown, x, stat, name))


class _Drawn(NamedTuple):
    """A figure without its legend, and the texts of that: a line for each group, and what lines and shades are."""

    svg: Html
    labels: list[str]
    caption: str


_X_WORDS: dict[Axis, str] = {'env_step': 'env steps', 'wall_s': 'wall time'}


def _more(groups: Groups, colors: Sequence[int], shown: str, x: Axis, stat: Stat, name: str) -> Iterator[Html]:
    runs = [run for group in groups.values() for run in group]
    known = [metric for metric in MORE if metric != shown and any(_is_curve(run, metric) for run in runs)]
    for i, metric in enumerate(known[:N_MORE]):
        words = f'{metric} over {_X_WORDS[x]}'
        drawn = _draw(groups, colors, metric, x, stat, SMALL, f'{name}-more-{i}', words, y_words='')
        yield html('<figure><figcaption>$title</figcaption>$svg</figure>', title=MORE[metric], svg=drawn.svg)


def _is_curve(run: Run, metric: str) -> bool:
    return int(np.isfinite(run.columns.get(metric, np.empty(0))).sum()) > 1


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
) -> _Drawn:
    """Args: name: of its ids, which differ from those of other figures; words: for those who cannot see it."""
    drawn = figure(groups, metric, x, stat, size=size, title='')
    [legend] = drawn.legends
    labels = [' '.join(text.get_text().split()) for text in legend.get_texts()]
    caption = ' '.join(legend.get_title().get_text().split())
    legend.remove()  # text of the page has every letter and wraps
    drawn.set_size_inches(*size)
    if y_words is not None:
        drawn.axes[0].set_ylabel(y_words)
    return _Drawn(_inline(svg_text(drawn, salt=name), colors, name, words), labels, caption)


def _inline(svg: str, colors: Sequence[int], name: str, words: str) -> Html:
    """An SVG as a part of a page: with colours of the page, ids of its own, and words."""
    svg = re.sub(r'<metadata>.*?</metadata>', '', svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|="#|url\(#)', rf'\g<1>{name}-', svg)  # ids, and what refers to them
    for i, color in enumerate(COLORS['light'][: len(colors)]):
        svg = svg.replace(color, f'var(--line-{colors[i] % N_COLOR})')
    for part, color in PAPER['light'].items():
        svg = svg.replace(color, f'var(--plot-{part})')
    head = html('<svg role="img" aria-label="$words" ', words=words)
    return Html(re.sub(r'<svg\s', lambda _: head, svg, count=1))


def _colors(theme: Theme) -> dict[str, str]:
    """The colours of a theme by the variables of CSS that they become."""
    lines = {f'line-{i}': color for i, color in enumerate(COLORS[theme])}
    return lines | {f'plot-{name}': color for name, color in PAPER[theme].items()}
