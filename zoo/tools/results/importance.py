"""Importance of settings: plots of how much each setting explains of the results of many configs, e.g. of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, Literal, NamedTuple

import numpy as np
from markupsafe import Markup

from zoo.config.section import short_keys, value_at
from zoo.config.yaml_io import value_text
from zoo.core.streams import visible
from zoo.tools.results.plot import COLORS, PAPER, short, style_axes, styled_figure
from zoo.tools.results.report_figures import NARROW, SMALL, WIDE, inline

Better = Literal['high', 'low'] | None
LEAST = 8  # configs with a result; with fewer, no effect of a setting can be told from luck
# most settings: with a plot each; in parallel coordinates on wide, narrow screens
N_SLICE = 8
N_WIDE = 8
N_NARROW = 3
LOG_FROM = 20.0  # positive numbers are on a logarithmic axis if the largest is at least this many times the smallest
LARGEST = 1e15  # larger numbers are placed like choices
BEST = 0.25  # share of the configs whose lines stand out
# most labels below an axis, and letters of a label
N_TICK = 5
N_LETTER = 13


class SettingShare(NamedTuple):
    """A setting that differs between configs, and how much it explains.

    Attributes: name: last word of its key if it is unique, else the key. at: [n], place on an axis of its value in each config.
      ticks: places and texts below the axis, in order; ends: texts of the lowest and the highest value. share: share of the variance of the results' ranks that the setting
      explains by itself, 0 to 1; NaN if each config has another choice.
    """

    key: str
    name: str
    at: np.ndarray
    ticks: list[tuple[float, str]]
    share: float
    ends: tuple[str, str] = ('', '')


class Importance(NamedTuple):
    """The part of a report on importance: key, share and plot of each setting, by falling share; parallel coordinates.

    words, better: as given to `importance_of`.
    """

    words: str
    better: Better
    n_config: int
    n_setting: int
    slices: list[tuple[str, float | None, Markup]]
    wide: Markup
    narrow: Markup


def importance_of(
    configs: Sequence[Mapping[str, Any]],
    results: Sequence[float | None],
    keys: Sequence[str],
    words: str,
    better: Better = 'high',
) -> Importance | None:
    """Returns the importance of settings; None for fewer than LEAST results, or if all results or all settings are equal.

    Args: results: of each config, None if it has none; keys: dotted, of settings that differ; words: describe a result;
      better: which results are better; None: neither, and no best one is marked.
    """
    known = [i for i, x in enumerate(results) if x is not None and abs(x) < LARGEST]
    result = np.array([results[i] for i in known], dtype=np.float64)
    if len(known) < LEAST or not np.ptp(result):
        return None
    shares = (
        setting_share(key, name, [value_at(configs[i], key) for i in known], result)
        for key, name in zip(keys, short_keys(keys), strict=True)
    )
    found = sorted((x for x in shares if x is not None), key=lambda x: -np.nan_to_num(x.share, nan=-1))
    if not found:
        return None
    slices = [
        (x.key, None if math.isnan(x.share) else x.share, _slice(x, result, words, better, f'slice-{i}'))
        for i, x in enumerate(found[:N_SLICE])
    ]
    wide = _parallel(found[:N_WIDE], result, words, better, WIDE, 'tried-wide')
    narrow = _parallel(found[:N_NARROW], result, words, better, NARROW, 'tried-narrow')
    return Importance(words, better, len(known), len(found), slices, wide, narrow)


def setting_share(key: str, name: str, values: Sequence[Any], result: np.ndarray) -> SettingShare | None:
    """Returns a setting with its share; None if it has a single value. Args: values [n]: None if a config lacks the key."""
    if not all(map(_is_number, values)):
        texts = [value_text(value) for value in values]
        ordered = sorted(
            zip(values, texts, strict=True), key=lambda x: (_is_number(x[0]), x[0] if _is_number(x[0]) else 0, x[1])
        )
        choices = list(dict.fromkeys(text for _, text in ordered))
        at = np.array([choices.index(text) for text in texts], dtype=np.float64)
        some = sorted({round(i) for i in np.linspace(0, len(choices) - 1, N_TICK)})
        ticks = [(float(i), _shortened(choices[i])) for i in some]
        ends = ticks[0][1], ticks[-1][1]
        share = rank_share(at, result, is_choice=True)
    else:
        at = np.array(values, dtype=np.float64)
        is_log = at.min() > 0 and at.max() >= LOG_FROM * at.min()
        if is_log:
            at = np.log10(at)
        ticks = _ticks(float(at.min()), float(at.max()), is_log)
        lowest = min(values)
        highest = max(values)
        ends = _number_text(float(lowest)), _number_text(float(highest))
        share = rank_share(at, result)
    if np.ptp(at):
        return SettingShare(key, name, at, ticks, share, ends)
    return None


def _ticks(low: float, high: float, is_log: bool) -> list[tuple[float, str]]:
    """Returns round numbers between two places of an axis; of a logarithmic one, whose places are logarithms, powers of ten."""
    if is_log:
        powers = range(math.floor(low), math.floor(high) + 1)
        for digits in ((1,), (1, 5), (1, 2, 5)):
            places = [(math.log10(digit) + power, digit, power) for power in powers for digit in digits]
            there = [place for place in places if low - 1e-9 <= place[0] <= high + 1e-9]
            if len(there) > 2:
                break
        some = there[:: math.ceil(len(there) / N_TICK)]
        has_powers = low < -2  # 1e-4 and 1e-2, but 0.1 and 10
        return [
            (place, f'{digit}e{power}' if has_powers else short(digit * 10.0**power)) for place, digit, power in some
        ]
    if low == high:
        return [(low, _number_text(low))]
    width = (high - low) / 3
    size = 10.0 ** math.floor(math.log10(width))
    step = size * next(n for n in (10, 5, 2, 1) if n * size <= width)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [(i * step, short(round(i * step, 12), 3)) for i in range(first, last + 1)]


def _number_text(value: float) -> str:
    """Formats a number in few characters: 2.1e-5, 0.26, 1.5M."""
    if value and abs(value) < 1e-3:
        digits, _, power = f'{value:.1e}'.partition('e')
        return f'{digits.removesuffix(".0")}e{int(power)}'
    return short(value, 3)


def rank_share(at: np.ndarray, result: np.ndarray, *, is_choice: bool = False) -> float:
    """Returns the share of the variance of the results' ranks that one setting explains: 0: no more than luck, 1: all.

    It is the adjusted R^2 (Ezekiel 1930) of a fit: of a parabola through the places of numbers, or of the mean of each
    choice. Settings that matter only together with another one get a low share.
    Args: at [n]: places of the setting's values; result [n].
    Returns: NaN if the fit has as many parameters as there are results.
    """
    values = np.unique(at)
    x = (at - at.mean()) / (np.ptp(at) or 1)
    if is_choice:
        design = (at[:, None] == values).astype(float)
    else:
        design = np.vander(x, min(len(values), 3))
    n, n_fitted = design.shape
    if n <= n_fitted:
        return math.nan
    ordered = np.sort(result)
    rank = (np.searchsorted(ordered, result, 'left') + np.searchsorted(ordered, result, 'right') - 1) / 2
    left = rank - design @ np.linalg.lstsq(design, rank, rcond=None)[0]
    return max(0.0, 1.0 - float(left @ left) / (n - n_fitted) / float(rank.var(ddof=1)))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _shortened(text: str) -> str:
    text = visible(text)
    if len(text) <= N_LETTER:
        return text
    return f'{text[: N_LETTER - 1]}…'


def _slice(setting: SettingShare, result: np.ndarray, words: str, better: Better, name: str) -> Markup:
    """Plots the results over the values of one setting."""
    blue, orange, *_ = COLORS['light']
    with styled_figure(SMALL) as drawn:
        axes = drawn.add_subplot()
        style_axes(axes, PAPER['light'])
        axes.plot(setting.at, result, 'o', color=blue, markersize=5, markeredgewidth=0, alpha=0.6)
        if better is not None:
            best = int(result.argmax() if better == 'high' else result.argmin())
            axes.plot(setting.at[best], result[best], 'o', color=orange, markersize=8, markeredgewidth=0)
        axes.margins(x=0.08)
        places, texts = zip(*setting.ticks, strict=True)
        is_long = sum(map(len, texts)) > 2 * N_LETTER
        axes.set_xticks(
            places, texts, parse_math=False, rotation=20 if is_long else 0, ha='right' if is_long else 'center'
        )
    return inline(drawn, [0, 1], name, f'{words} over {setting.key}')


def _parallel(
    found: Sequence[SettingShare],
    result: np.ndarray,
    words: str,
    better: Better,
    size: tuple[float, float],
    name: str,
) -> Markup:
    """Plots parallel coordinates: an axis for each setting, a last one for the result, and a line for each config."""
    ends = _number_text(float(result.min())), _number_text(float(result.max()))
    columns = [*found, SettingShare('', words, result, [], 1.0, ends)]
    places = np.stack([(x.at - x.at.min()) / np.ptp(x.at) for x in columns])
    stands_out = np.ones(len(result), bool)
    if better is not None:
        if better == 'high':
            goodness = result
        else:
            goodness = -result
        stands_out = goodness >= np.quantile(goodness, 1 - BEST)
    paper = PAPER['light']
    blue = COLORS['light'][0]
    with styled_figure(size) as drawn:
        drawn.set_layout_engine('none')
        axes = drawn.add_axes((0.1, 0.07, 0.8, 0.68))
        axes.set_axis_off()
        for i, x in enumerate(columns):
            axes.plot([i, i], [0, 1], color=paper['rule'], linewidth=1.4, zorder=0)
            head = (
                '\n'.join(wrap(visible(x.name).replace('.', '. ').replace('_', '_ '), N_LETTER))
                .replace('_ ', '_')
                .replace('. ', '.')
            )
            for text, y, place in (
                (x.ends[0], -0.03, 'top'),
                (x.ends[1], 1.03, 'bottom'),
                (head, 1.12, 'bottom'),
            ):
                axes.text(i, y, text, ha='center', va=place, fontsize=8, parse_math=False)
        for i in np.argsort(result if better != 'low' else -result):
            if stands_out[i]:
                color = blue
                width = 1.8
                alpha = 0.9
            else:
                color = paper['ink']
                width = 0.9
                alpha = 0.25
            axes.plot(places[:, i], color=color, linewidth=width, alpha=alpha)
    return inline(drawn, [0], name, f'the values of {len(found)} settings and the {words} of {len(result)} configs')
