"""Pictures of what mattered among many configs, as of a sweep: how much of the result each setting alone explains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from zoo.config.section import value_at
from zoo.config.yaml_io import value_text
from zoo.core.streams import visible
from zoo.tools.results.plot import COLORS, PAPER, short, style_axes, styled_figure
from zoo.tools.results.report_figures import NARROW, SMALL, WIDE, inline

LEAST = 8  # configs with a result; fewer tell no setting from luck
MOST = 8  # settings that are drawn, those that explain most
LOG_FROM = 20.0  # positive numbers whose largest is so many times the smallest are drawn and fitted by their logarithm
N_NARROW = 3  # settings that a narrow screen has room for at once
MOST_LETTERS = 12  # of a word at an axis
BEST = 0.25  # share of the configs whose lines stand out


class Tried(NamedTuple):
    """A setting that differs between configs.

    at: its place on an axis in each config [n], NaN where a config has no such key; ticks: places on the axis with their
    texts; is_log: the axis is that of the logarithm; share: of the order of the results, that it alone explains, 0 to 1.
    """

    key: str
    at: np.ndarray
    ticks: list[tuple[float, str]]
    is_log: bool
    share: float


class Mattered(NamedTuple):
    """The pictures of a report: the settings with their share and slice, the first ones explain most; all of them at once."""

    n_config: int
    slices: list[tuple[str, float, Markup]]
    wide: Markup
    narrow: Markup


def mattered(
    configs: Sequence[Mapping[str, Any]], results: Sequence[float | None], keys: Sequence[str], words: str
) -> Mattered | None:
    """The pictures of what mattered; None for fewer than LEAST configs with a result, or without a setting that differs.

    Args: results: of each config, None where it has none; keys: the settings that differ; words: what the result is.
    """
    known = [i for i, result in enumerate(results) if result is not None and math.isfinite(result)]
    result = np.array([results[i] for i in known], dtype=np.float64)
    if len(known) < LEAST or not np.ptp(result):
        return None
    found = [tried(key, [value_at(configs[i], key) for i in known], result) for key in keys]
    found = sorted((each for each in found if each.share >= 0), key=lambda each: -each.share)[:MOST]
    if not found:
        return None
    slices = [(each.key, each.share, _slice(each, result, words, f'slice-{i}')) for i, each in enumerate(found)]
    wide = _lines(found, result, words, WIDE, 'tried-wide')
    narrow = _lines(found[:N_NARROW], result, words, NARROW, 'tried-narrow')
    return Mattered(len(known), slices, wide, narrow)


def tried(key: str, values: Sequence[Any], result: np.ndarray) -> Tried:
    """A setting with its share. Args: values [n]: as the configs have them, None where one has no such key."""
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if not is_number:
        texts = ['none' if value is None else value_text(value) for value in values]
        names = sorted(set(texts))
        at = np.array([names.index(text) for text in texts], dtype=np.float64)
        return Tried(key, at, list(enumerate(map(visible, names))), False, explained(at, result, is_choice=True))
    at = np.array(values, dtype=np.float64)
    is_log = at.min() > 0 and at.max() >= LOG_FROM * at.min()
    at = np.log10(at) if is_log else at
    ends = [float(at.min()), float(at.max())]
    ticks = [(end, short(10**end if is_log else end, 3)) for end in ends]
    return Tried(key, at, ticks, is_log, explained(at, result))


def explained(at: np.ndarray, result: np.ndarray, *, is_choice: bool = False) -> float:
    """How much of the order of results one setting alone explains: 0 is nothing (or no more than luck), 1 is all; -1: no value.

    It is R^2 of the ranks of the results, adjusted for the numbers that are fitted (Ezekiel 1930): a parabola through the
    places of numbers, or the mean of each choice. Settings that matter only together with another one show little.
    Args: at [n]: places of its values; result [n].
    """
    values = np.unique(at)
    if len(values) < 2:
        return -1.0
    x = (at - at.mean()) / np.ptp(at)
    design = (at[:, None] == values).astype(float) if is_choice else np.vander(x, min(len(values), 3))
    n, n_fitted = design.shape
    if n <= n_fitted:
        return 0.0
    ordered = np.sort(result)
    rank = (np.searchsorted(ordered, result, 'left') + np.searchsorted(ordered, result, 'right') - 1) / 2
    left = rank - design @ np.linalg.lstsq(design, rank, rcond=None)[0]
    return max(0.0, 1.0 - float(left @ left) / (n - n_fitted) / float(rank.var(ddof=1)))


def _slice(setting: Tried, result: np.ndarray, words: str, name: str) -> Markup:
    """The results over the values of one setting, the best one marked."""
    with styled_figure(SMALL) as drawn:
        axes = drawn.add_subplot()
        style_axes(axes, PAPER['light'])
        axes.plot(setting.at, result, 'o', color=COLORS['light'][0], markersize=5, markeredgewidth=0, alpha=0.6)
        best = int(result.argmax())
        axes.plot(setting.at[best], result[best], 'o', color=COLORS['light'][1], markersize=8, markeredgewidth=0)
        axes.margins(x=0.08)
        axes.set_xticks(*map(list, zip(*_readable(setting), strict=True)))
    return inline(drawn, [0, 1], name, f'{words} over {setting.key}')


def _lines(found: Sequence[Tried], result: np.ndarray, words: str, size: tuple[float, float], name: str) -> Markup:
    """Parallel coordinates: an axis for each setting, the last one for the result, and a line for each config."""
    result_axis = Tried(
        words, result, [(float(end), short(float(end), 3)) for end in (result.min(), result.max())], False, 1
    )
    columns = [*found, result_axis]
    places = np.stack([(each.at - each.at.min()) / np.ptp(each.at) for each in columns])
    stands_out = result >= np.quantile(result, 1 - BEST)
    paper, color = PAPER['light'], COLORS['light'][0]
    with styled_figure(size) as drawn:
        drawn.set_layout_engine('none')
        axes = drawn.add_axes((0.1, 0.07, 0.8, 0.68))
        axes.set_axis_off()
        for i, each in enumerate(columns):
            axes.plot([i, i], [0, 1], color=paper['rule'], linewidth=1.4, zorder=0)
            for (_, text), y, place in ((each.ticks[0], -0.03, 'top'), (each.ticks[-1], 1.03, 'bottom')):
                axes.text(i, y, text[:MOST_LETTERS], ha='center', va=place, fontsize=8, parse_math=False)
            head = '\n'.join(wrap(visible(each.key.rpartition('.')[2]).replace('_', ' '), MOST_LETTERS))
            axes.text(i, 1.12, head, ha='center', va='bottom', fontsize=8.5, parse_math=False)
        for i in np.argsort(result):
            line_color, width, alpha = (color, 1.8, 0.9) if stands_out[i] else (paper['ink'], 0.9, 0.25)
            axes.plot(places[:, i], color=line_color, linewidth=width, alpha=alpha)
    return inline(drawn, [0], name, f'the values of {len(found)} settings and the {words} of {len(result)} configs')


def _readable(setting: Tried) -> list[tuple[float, str]]:
    """The ends of an axis, and of numbers the middle."""
    if len(setting.ticks) != 2 or setting.ticks[0][0] == setting.ticks[1][0]:
        return setting.ticks
    (low, _), (high, _) = setting.ticks
    middle = (low + high) / 2
    return [setting.ticks[0], (middle, short(10**middle if setting.is_log else middle, 3)), setting.ticks[1]]
