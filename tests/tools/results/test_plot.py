"""Pictures of curves: their lines, text and colours, and the errors if they cannot be drawn."""

from __future__ import annotations

import re
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.real_runs import made_run, write_run
from zoo import make_policy
from zoo.core.errors import UserError
from zoo.run.result import TrainResult
from zoo.tools.results.plot import COLORS, MARKERS, PAPER, figure, save, short, svg_text
from zoo.tools.results.statistics import band

pytest.importorskip('matplotlib')
METRIC = 'eval/return_mean'
TWO = [made_run([0, 10, 20, 30, 40], [1, 2, 4, 4, 5]), made_run([0, 10, 20], [3, 3, 2], seed=1)]


def words_of(drawn) -> list[str]:
    """The lines of the legend."""
    legend = drawn.axes[0].get_legend() or drawn.legends[0]
    return [text.get_text() for text in legend.get_texts()]


def caption_of(drawn) -> str:
    """The caption, which explains lines and shades."""
    below = [legend.get_title().get_text() for legend in drawn.legends]
    return (drawn.get_supxlabel() or ''.join(below)).replace('\n', ' ')


@pytest.mark.slow
def test_lines_are_the_average_and_dotted_where_runs_have_ended() -> None:
    whole, rest = figure({'made': TWO}, METRIC, stat='mean').axes[0].lines
    assert whole.get_linestyle() == '-' and rest.get_linestyle() == ':'
    assert whole.get_xydata().tolist() == [[0, 2], [10, 2.5], [20, 3]]
    assert rest.get_xydata().tolist() == [[21, 4], [30, 4], [40, 5]]


SEVERAL = ('eval/p/return_mean', 'eval/q/return_mean')


def run_of_two(label: str, seed: int = 0):
    run = made_run([0, 10], [1, 2], seed=seed)
    run.label = label
    run.columns |= {SEVERAL[0]: np.array([3.0, 4.0]), SEVERAL[1]: np.array([5.0, 6.0])}
    return run


@pytest.mark.slow
def test_several_metrics_have_a_line_each() -> None:
    drawn = figure({'made': [run_of_two('made')]}, SEVERAL)
    assert [line.get_ydata().tolist() for line in drawn.axes[0].lines] == [[3, 4], [5, 6]]
    assert words_of(drawn) == [f'{name}: 1 run' for name in SEVERAL]
    assert drawn.axes[0].get_ylabel() == 'Return in evaluations'  # the two differ in their policy


@pytest.mark.slow
def test_color_is_of_the_runs_and_marker_of_the_metric_where_both_are_several() -> None:
    drawn = figure({label: [run_of_two(label)] for label in 'ab'}, SEVERAL)
    looks = [(line.get_color(), line.get_marker()) for line in drawn.axes[0].lines]
    first, second = COLORS['light'][:2]
    assert looks == [(first, 'o'), (first, 's'), (second, 'o'), (second, 's')]
    assert words_of(drawn)[1] == 'a, eval/q/return_mean: 1 run'


@pytest.mark.slow
def test_long_names_of_metrics_stay_in_the_figure() -> None:
    drawn = figure({'made': [run_of_two('made')]}, [*SEVERAL, 'learn/a_long_name_of_a_metric/entropy'])
    assert max(map(len, drawn.axes[0].get_ylabel().split('\n'))) <= 59  # 13 characters in each of 4.6 inches


@pytest.mark.slow
def test_what_a_terminal_or_a_font_would_act_on_is_shown_as_it_is_written(recwarn: pytest.WarningsRecorder) -> None:
    runs = [made_run([10, 20], [1.0, 2.0])]
    drawn = figure({'one\x1b[2J': runs}, 'eval/return_mean', title='two\x07')
    svg_text(drawn)
    assert '\x1b' not in ''.join(words_of(drawn)) and '\x07' not in ''.join(words_of(drawn))
    assert not [each for each in recwarn if 'Glyph' in str(each.message)]


def test_shade_is_the_interval_of_each_part() -> None:
    curve = band(TWO, METRIC)
    first, second = figure({'made': TWO}, METRIC).axes[0].collections
    for shade, (part, _) in zip((first, second), curve.parts(), strict=True):
        corners = {tuple(corner) for corner in shade.get_paths()[0].vertices.tolist()}
        rows = zip(curve.steps[part], curve.low[part], curve.high[part], strict=True)
        assert {corner for at, low, high in rows for corner in ((at, low), (at, high))} <= corners


def test_interval_of_a_single_point_is_a_bar() -> None:
    runs = [made_run([10], [value], seed=seed) for seed, value in enumerate((1, 2, 9))]
    drawn, curve = figure({'made': runs}, METRIC), band(runs, METRIC)
    [bar] = drawn.axes[0].collections
    assert bar.get_segments()[0].tolist() == [[10, curve.low[0]], [10, curve.high[0]]] and curve.low[0] < curve.high[0]
    assert 'bar: from the lowest to the highest run' in caption_of(drawn)
    alone = figure({'made': runs[:1]}, METRIC)
    assert not any(bar.get_paths()[0].get_extents().height for bar in alone.axes[0].collections)


@pytest.mark.parametrize(
    ('runs', 'said'),
    [
        (TWO[:1], 'x: 1 run'),
        (TWO, 'x: 2 runs, 1 from 21 on'),
        ([*TWO, made_run([1], [1], metric='other')], 'x: 2 runs, 1 from 21 on, 1 more without this metric'),
        ([made_run([1], [1], metric='other')], 'x: no run has this metric'),
        (
            [made_run(np.arange(0, end + 1, 1_000), np.zeros(end // 1_000 + 1)) for end in range(5_000, 50_001, 5_000)],
            'x: 10 runs, all of them from 0 to 5k',
        ),
        ([made_run([at, at + 2], [0, 0]) for at in range(0, 12, 2)], 'x: 6 runs, at most 2 at one time'),
        (
            [made_run([1_000, 90_000], [0, 0]), made_run([60_000, 70_000], [0, 0])],
            'x: 2 runs, 1 from 1k on, 2 from 60k on',
        ),
    ],
)
def test_legend_says_how_many_runs_each_part_has(runs: list, said: str) -> None:
    assert words_of(figure({'x': runs}, METRIC, size=(20, 4)))[0].startswith(said)


def test_axes_and_caption_say_what_is_drawn() -> None:
    drawn = figure({'made': TWO}, METRIC, stat='median')
    axes = drawn.axes[0]
    assert axes.get_title(loc='left') == 'Return in evaluations on CartPole-v1'
    assert (axes.get_xlabel(), axes.get_ylabel()) == ('env steps', 'Return in evaluations')
    said = caption_of(drawn)
    assert said == (
        'line: median of runs; shade: from the lowest to the highest run; dotted: not all runs have values there'
    )
    four = [made_run([0, 10], [1, seed], seed=seed) for seed in range(4)]
    assert 'shade: 95% bootstrap interval over runs' in caption_of(figure({'made': four}, METRIC))
    assert caption_of(figure({'one': TWO[:1]}, METRIC)) == ''  # a line of one run is no average


def test_runs_that_reached_stop_value_keep_their_last_value_and_the_caption_says_so() -> None:
    runs = [made_run([10, 20, 30], [1, 2, 9]), made_run([10, 20], [5, 8], seed=1)]
    for run in runs:
        run.config['policy']['eval'] = {'stop_value': 8.0}
    drawn = figure({'made': runs}, METRIC, stat='mean')
    [line] = drawn.axes[0].lines
    assert line.get_xydata().tolist() == [[10, 3], [20, 5], [30, 8.5]]  # 8.5: the mean of 9 and of the kept 8
    assert drawn.axes[0].get_xlim()[0] == 0 and words_of(drawn) == ['made: 2 runs']
    # both reached 8, also the one that is drawn to its end
    assert caption_of(drawn).endswith('; 2 runs reached stop_value and kept the last value')


@pytest.mark.parametrize(('n', 'marked'), [(12, 12), (30, 30), (31, 0)])
def test_each_point_of_a_line_has_a_marker_unless_there_are_many(n: int, marked: int) -> None:
    at = np.arange(1, n + 1) * 1_000
    runs = [made_run(at, at), made_run(at + 7, at, seed=1)]  # evaluations of two seeds are never at the same step
    for group in (runs[:1], runs):
        lines = figure({'made': group}, METRIC).axes[0].lines
        n_mark = sum(len(line.get_markevery()) for line in lines if line.get_markevery() is not None)
        assert n_mark == marked, (len(group), n_mark)


@pytest.mark.slow
def test_long_lines_have_markers_where_their_colors_repeat() -> None:
    long = made_run(np.arange(100), np.arange(100))
    for n, least in ((7, 0), (8, 8)):
        drawn = figure({str(i): [long] for i in range(n)}, METRIC)
        assert {len(line.get_markevery()) for line in drawn.axes[0].lines} <= {least, least + 1}
        legend = drawn.axes[0].get_legend() or drawn.legends[0]
        assert all((line.get_marker() not in ('', 'None')) == (n == 8) for line in legend.get_lines())


def test_line_over_wall_time_has_all_runs_at_each_point() -> None:
    runs = [made_run([10, 20, 30], [1, 2, 3]), made_run([12, 24, 36], [1, 2, 5], seed=1)]
    drawn = figure({'made': runs}, METRIC, x='wall_s', stat='mean')
    [line] = drawn.axes[0].lines
    # from 12 s on, when both have a value; the first one ends at 30 s and keeps 3: (3 + 5) / 2 = 4 at 36 s
    assert line.get_xdata()[[0, -1]].tolist() == [12, 36] and line.get_ydata()[-1] == 4
    assert words_of(drawn) == ['made: 2 runs'] and caption_of(drawn).endswith(
        'a run keeps its last value after its end'
    )
    for run in runs:
        run.columns['learn/entropy'] = run.columns[METRIC]
    drawn = figure({'made': runs}, 'learn/entropy', x='wall_s', stat='mean')
    [line] = drawn.axes[0].lines
    assert line.get_xdata()[-1] == 30 and words_of(drawn) == ['made: 2 runs']


def test_legend_is_in_the_axes_where_it_fits() -> None:
    assert figure({'made': TWO}, METRIC).axes[0].get_legend() is not None
    assert figure({'made': TWO, 'x' * 60: TWO}, METRIC).axes[0].get_legend() is None


@pytest.mark.parametrize(
    ('values', 'said'),
    [
        ([-1_100, -1_000], ['-1,100', '-1,080', '-1,060', '-1,040', '-1,020', '-1,000']),
        ([0, 500], ['0', '100', '200', '300', '400', '500']),
        ([0, 5_000], ['0', '1,000', '2,000', '3,000', '4,000', '5,000']),
        ([0, 50_000], ['0', '10k', '20k', '30k', '40k', '50k']),
    ],
)
def test_ticks_of_an_axis_have_one_unit_and_as_many_digits(values: list[float], said: list[str]) -> None:
    axes = figure({'made': [made_run([0, 10], values)]}, METRIC).axes[0]
    axes.yaxis.set_ticks(np.linspace(*values, 6))
    assert [text.get_text() for text in axes.get_yticklabels()] == said


@pytest.mark.parametrize(
    ('seconds', 'unit', 'end'), [(100, 'seconds', 100), (600, 'minutes', 10), (36_000, 'hours', 10)]
)
def test_wall_time_is_in_a_unit_that_fits(seconds: int, unit: str, end: float) -> None:
    axes = figure({'made': [made_run([0, seconds], [1, 2])]}, METRIC, x='wall_s').axes[0]
    assert axes.get_xlabel() == f'wall time ({unit})' and axes.lines[0].get_xdata()[-1] == end


def test_short_numbers() -> None:
    rows = {950: '950', 20_000: '20k', 1.5e6: '1.5M', 2e9: '2G', -0.0125: '-0.0125'}
    assert {value: short(value) for value in rows} == rows


@pytest.mark.slow
def test_names_with_marks_of_formulas_are_drawn_as_they_are() -> None:
    names = ['a$b_{', '_c', '$x$', '100%']
    drawn = figure({name: TWO[:1] for name in names}, METRIC, title='cost in $ and _{')
    svg_text(drawn)  # would fail if a name were read as a formula
    assert [word.partition(':')[0] for word in words_of(drawn)] == names


@pytest.mark.slow
def test_figure_grows_with_its_legend_and_nothing_is_outside_of_it() -> None:
    many = {f'experiment_{i} policy.learn.learning_rate=0.000{i}': TWO for i in range(20)}
    drawn = figure(many, METRIC, size=(4, 3.5))
    drawn.draw_without_rendering()
    width, height = drawn.get_size_inches() * drawn.dpi
    assert height > 2 * 350
    for box in (drawn.legends[0].get_window_extent(), drawn.axes[0].get_tightbbox()):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width + 1 and box.y1 <= height + 1
    assert drawn.axes[0].get_window_extent().height > 100


# Linear RGB as seen by eyes that lack one kind of cone: Machado, Oliveira and Fernandes 2009, severity 1.
CONES = {
    'all': np.eye(3),
    'no red': [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    'no green': [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    'no blue': [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(color: str) -> np.ndarray:
    """Linear RGB of '#rrggbb': sRGB without its transfer curve."""
    srgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """CIE Lab of linear RGB; in Lab, equal distances look about equally large."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.clip(np.array(to_xyz) @ light / [0.9505, 1, 1.089], 0.008856, None))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize('theme', COLORS)
@pytest.mark.parametrize('eyes', CONES)
def test_colors_differ_for_all_eyes(theme, eyes: str) -> None:
    # 2.3 is the least visible distance of colours that touch; lines are thin and separate. Most pictures use the first four
    seen = [lab(np.clip(CONES[eyes] @ linear(color), 0, 1)) for color in COLORS[theme]]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 13
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen[:4], 2)) > 24


@pytest.mark.parametrize('theme', COLORS)
def test_lines_have_a_contrast_of_3_to_their_paper_and_words_of_7(theme) -> None:
    def luminance(color: str) -> float:
        return float(linear(color) @ [0.2126, 0.7152, 0.0722])

    def contrast(color: str) -> float:
        dark, light = sorted((luminance(color), luminance(PAPER[theme]['paper'])))
        return (light + 0.05) / (dark + 0.05)

    assert all(contrast(color) >= 3 for color in COLORS[theme]) and contrast(PAPER[theme]['ink']) >= 7


def test_63_lines_differ_in_color_or_marker_and_neighbours_in_both() -> None:
    looks = [(i % len(COLORS['light']), i % len(MARKERS)) for i in range(63)]
    assert len(set(looks)) == 63 and len(set(MARKERS)) == 9
    drawn = figure({str(i): TWO[:1] for i in range(8)}, METRIC)
    shown = [(line.get_color(), line.get_marker()) for line in drawn.axes[0].lines]
    assert shown == [(COLORS['light'][i % 7], MARKERS[i]) for i in range(8)]


@pytest.mark.slow
def test_svg_is_the_same_each_time_and_its_ids_differ_by_salt() -> None:
    one, again = (svg_text(figure({'made': TWO}, METRIC)) for _ in range(2))
    assert one == again and one.startswith('<svg') and ElementTree.fromstring(one).tag.endswith('svg')
    other = svg_text(figure({'made': TWO}, METRIC), salt='b')
    clips = [set(re.findall(r'clipPath id="(\w+)"', text)) for text in (one, other)]
    assert all(clips) and not clips[0] & clips[1]


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'begin'), [('a.png', b'\x89PNG'), ('a.SVG', b'<?xml'), ('a.pdf', b'%PDF')])
def test_save_writes_the_format_of_the_name(name: str, begin: bytes, tmp_path: Path) -> None:
    save(figure({'made': TWO}, METRIC), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begin) and len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_full_disk_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'a.svg').write_text('old')
    monkeypatch.setattr('os.fsync', lambda _: (_ for _ in ()).throw(OSError(28, 'No space left on device')))
    with pytest.raises(UserError, match='cannot be written .No space left'):
        save(figure({'made': TWO}, METRIC), tmp_path / 'a.svg')
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [('a.svg', 'old')]


def test_figure_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    with pytest.raises(UserError, match=r"needs matplotlib, which is not installed; .*'\.\[plot\]'"):
        figure({'made': TWO}, METRIC)


@pytest.mark.slow
def test_pyplot_is_not_needed_and_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    monkeypatch.delitem(sys.modules, 'matplotlib.pyplot', raising=False)
    svg_text(figure({'made': TWO}, METRIC))
    assert 'matplotlib.pyplot' not in sys.modules and dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_result_draws_its_curve_and_shows_it_in_a_notebook(tmp_path: Path) -> None:
    folder = write_run(tmp_path / 'run', made_run([0, 10], [1, 2]))
    result = TrainResult(make_policy('cartpole_ppo'), folder, 10, 1, 2.0, 2.0, 1.0, 10.0)
    drawn = result.plot(path=tmp_path / 'a.svg')
    assert drawn.axes[0].lines[0].get_xydata().tolist() == [[0, 1], [10, 2]] and (tmp_path / 'a.svg').stat().st_size > 0
    shown = result._repr_html_() or ''
    assert shown.startswith('<pre>TrainResult(policy=&#x27;') and shown.count('<svg') == 1
    assert drawn._repr_svg_().startswith('<svg')  # a notebook calls it to show the figure
    assert len(result.plot(['eval/return_mean', 'env_step']).axes[0].lines) == 2
    with pytest.raises(UserError, match="no run has the metric 'learn/loss'"):
        result.plot('learn/loss')
    (folder / 'metrics.jsonl').unlink()
    assert result._repr_html_() is None  # the notebook shows the text
