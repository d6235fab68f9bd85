"""`zoo runs`, `plot`, `compare` and `report`: their text and files, and their numbers against numpy's from the logs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.real_runs import made_run, train_seeds, write_run
from tests.tools.cli.commands import Zoo, run_in

METRIC = 'eval/return_mean'


def write(name: str, returns: list[float], end: int = 1_000, env: str = 'CartPole-v1', **learn: float) -> None:
    """Writes runs/<name> with one run for each return."""
    for seed, value in enumerate(returns):
        run = made_run([0, end], [0, value], seed=seed, name=name, env=env, **learn)
        write_run(Path('runs') / name / str(seed), run)


# -- trained runs ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: five of cartpole_ppo, three of `slow`."""
    root = tmp_path_factory.mktemp('runs')
    train_seeds(root, range(3), 'cartpole_ppo', 'exp_name=slow', 'policy.learn.learning_rate=1e-5')
    return train_seeds(root, range(5)).parent


@pytest.fixture
def runs(trained: Path, in_tmp: Path) -> Path:
    """A copy of the trained runs in the current folder."""
    return shutil.copytree(trained, in_tmp / 'runs')


def logged(folder: Path, metric: str = METRIC) -> list[np.ndarray]:
    """Env steps and values of each run, [2, n], as json reads them."""
    found = []
    for log in sorted(folder.glob('*/metrics.jsonl')):
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        found.append(np.array([(row['env_step'], row[metric]) for row in rows if metric in row]).T)
    return found


def iqm(values: np.ndarray) -> np.ndarray:
    """The interquartile mean over the last axis: the mean of the middle half of 4 copies of each value."""
    n = values.shape[-1]
    return np.sort(np.repeat(values, 4, axis=-1), axis=-1)[..., n : 3 * n].mean(axis=-1)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('stat', ['iqm', 'mean', 'median'])
def test_curve_of_five_seeds_is_that_of_numpy(trained: Path, stat: str, zoo: Zoo) -> None:
    curves = logged(trained / 'cartpole_ppo')
    assert len(curves) == 5 and len({tuple(steps) for steps, _ in curves}) > 1, 'their evaluations are at other steps'
    data = zoo(f'plot {trained}/cartpole_ppo --stat {stat} --json').data
    ((label, curve),) = data['curves'].items()
    steps = np.array(curve['env_step'])
    assert (label, data['metric'], len(curve['runs'])) == ('cartpole_ppo', METRIC, 5) and len(steps) >= 10
    assert min(steps) >= max(at[0] for at, _ in curves) and max(steps) <= min(at[-1] for at, _ in curves)
    at_steps = np.stack([np.interp(steps, *points) for points in curves], axis=-1)  # [n, 5]
    average = {'iqm': iqm, 'mean': lambda x: x.mean(axis=-1), 'median': lambda x: np.median(x, axis=-1)}[stat]
    drawn = np.random.default_rng(0).integers(5, size=(5_000, 5))
    low, high = np.quantile(average(at_steps[:, drawn]), [0.025, 0.975], axis=1)
    for name, expected in ((stat, average(at_steps)), ('low', low), ('high', high), ('n_run', 5)):
        assert np.max(np.abs(np.array(curve[name]) - expected)) <= 1e-9, name


@pytest.mark.long
@pytest.mark.slow
def test_run_that_ended_early_is_not_continued(runs: Path, zoo: Zoo) -> None:
    log = sorted(runs.glob('cartpole_ppo/*/metrics.jsonl'))[2]
    lines = log.read_text().splitlines(keepends=True)
    half = [line for line in lines if json.loads(line)['env_step'] <= 3_500]
    log.write_text(''.join(half))
    curves = logged(runs / 'cartpole_ppo')
    end = curves[2][0][-1]
    log.write_text(''.join(half) + lines[len(half)][:40])  # killed while it wrote a line
    ((_, curve),) = zoo('plot cartpole_ppo --json').data['curves'].items()
    steps, n_run = np.array(curve['env_step']), np.array(curve['n_run'])
    assert np.array_equal(n_run, np.where(steps <= end, 5, 4)) and set(n_run) == {4, 5}
    after = steps > end
    expected = iqm(np.stack([np.interp(steps[after], *curves[i]) for i in (0, 1, 3, 4)], axis=-1))
    assert np.max(np.abs(np.array(curve['iqm'])[after] - expected)) <= 1e-9


@pytest.mark.long
@pytest.mark.slow
def test_trained_runs_of_two_configs_are_compared_by_their_logs(runs: Path, zoo: Zoo) -> None:
    data = zoo('compare cartpole_ppo runs/slow --json').data
    for side, (name, n) in zip(data['sides'], (('cartpole_ppo', 5), ('slow', 3)), strict=True):
        last = [values[-1] for _, values in logged(runs / name)]
        ends = [json.loads(file.read_text()) for file in sorted(runs.glob(f'{name}/*/result.json'))]
        assert (side['label'], side['n_run'], side['last']['values']) == (name, n, last)
        assert side['last']['center'] == pytest.approx(iqm(np.array(last)), abs=1e-9)
        assert side['speed'] == pytest.approx(np.median([end['env_step'] / end['wall_s'] for end in ends]))
    assert list(data['differences']) == ['policy.learn.learning_rate'] and data['common_step'] is None
    table = zoo('compare cartpole_ppo slow').lines
    assert table[0] == 'eval/return_mean at the last point of each run, interquartile mean of runs [95% interval]'
    assert [line.split()[:3] for line in table[3:5]] == [['A', 'cartpole_ppo', '5'], ['B', 'slow', '3']]


@pytest.mark.long
@pytest.mark.slow
def test_pictures_and_report_of_trained_runs_are_a_file_each(runs: Path, zoo: Zoo) -> None:
    pytest.importorskip('matplotlib')
    out = zoo('plot cartpole_ppo -o curve.svg --x wall_s --metric learn/entropy').out
    assert out == 'curve.svg: learn/entropy of 5 runs in 1 line\n'
    assert ElementTree.parse('curve.svg').getroot().tag.endswith('svg')
    zoo('plot cartpole_ppo -o curve.png')
    assert zoo('report cartpole_ppo').out.startswith('report.html: 5 runs, 0.')
    page = Path('report.html').read_text()
    assert 'cartpole_ppo on CartPole-v1' in page and 'in 5 runs with seeds 0 to 4' in page
    assert str(runs.parent) not in page
    assert sorted(path.name for path in runs.parent.iterdir()) == ['curve.png', 'curve.svg', 'report.html', 'runs']


# -- made runs -------------------------------------------------------------------------------------------------------------


USUAL = 'of cases; 5 or more of each are usual)'


@pytest.mark.parametrize(
    ('others', 'meaning', 'luck'),
    [
        # 2 of the 70 ways to split 8 runs into 4 and 4 have all higher runs on one side
        ([7, 8, 9, 6], '100% of the pairs of runs (95% interval 100% to 100%): a clear difference (', '2.9% of cases)'),
        ([0, 0, 0, 0], '0% of the pairs of runs (95% interval 0% to 0%): a clear difference (', '2.9% of cases)'),
        ([1, 2, 3, 4], ': no clear difference (', '100% of cases)'),
        # for 3 and 4 runs 2 of 35, for 1 and 4 runs 2 of 5: never called different, and the chance has no interval
        ([7, 8, 9], '100% of the pairs of runs: 3 and 4 runs are too few to tell them apart (', f'5.7% {USUAL}'),
        ([9], '100% of the pairs of runs: 1 and 4 runs are too few to tell them apart (', f'40% {USUAL}'),
    ],
)
def test_meaning_of_the_chance(others: list[float], meaning: str, luck: str, in_tmp: Path, zoo: Zoo) -> None:
    write('a', [1, 2, 3, 4])
    write('b', others)
    words = f'{meaning}chance alone gives such a difference in {luck}'
    lines = zoo('compare a b').lines
    assert sum(line.endswith(words) for line in lines) == 1
    if len(others) == 3:
        assert lines[4].endswith(' 1.00') and lines[4].count('[') == 1  # no interval of the chance


def test_two_runs_are_no_comparison(in_tmp: Path, zoo: Zoo) -> None:
    write('a', [5])
    write('b', [7])
    said = 'A and B have one run each, which says nothing about their difference; train 5 seeds of both'
    assert said in zoo('compare a b').lines


def test_side_of_one_run_has_no_interval(in_tmp: Path, zoo: Zoo) -> None:
    write('a', [5])
    write('b', [7])
    lines = zoo('compare a b').lines
    assert lines[0] == 'eval/return_mean at the last point of each run, interquartile mean of runs'
    assert lines[3].split()[-2:] == ['5', '-'] and lines[4].split()[-2:] == ['7', '1.00']
    side = zoo('compare a b --json').data['sides'][1]
    assert side['last'] == {'values': [7], 'center': 7, 'low': None, 'high': None}
    assert side['chance'] == {'value': 1, 'low': None, 'high': None, 'p': 1}


@pytest.mark.parametrize('without', ['a', 'b'])
def test_side_without_evaluations_is_compared_in_its_config(without: str, in_tmp: Path, zoo: Zoo) -> None:
    for name, rate in (('a', 0.1), ('b', 0.2)):
        metric = 'collect/return_mean' if name == without else 'eval/return_mean'
        for seed in range(2):
            run = made_run([0, 100], [0, 5], seed=seed, name=name, metric=metric, learning_rate=rate)
            write_run(Path('runs') / name / str(seed), run)
    lines, letter = zoo('compare a b').lines, without.upper()
    assert [line.split()[5] for line in lines[3:5]] == ['-' if name == without else '5' for name in ('a', 'b')]
    assert [line for line in lines if line.startswith(('no run', 'left out'))] == [
        f'no run of {letter} has a value of eval/return_mean, so that is not compared; let one run until its first '
        'evaluation, or name another with --metric, e.g. --metric collect/return_mean'
    ]
    assert lines[-1].split() == ['policy.learn.learning_rate', '0.1', '0.2']
    data = zoo('compare a b --json').data
    assert [side['last'] is None for side in data['sides']] == [name == without for name in ('a', 'b')]
    assert [side['chance'] for side in data['sides']] == [None, None]


def test_table_of_runs_of_different_length(in_tmp: Path, zoo: Zoo) -> None:
    write('a', [10, 10, 10], learning_rate=0.1)
    write('b', [6, 6, 6], end=500, learning_rate=0.2, aux_freq=8)
    lines = zoo('compare a b').lines
    assert lines[2:5] == [
        '   name  runs  env steps  env steps/s  last         at 500 steps  chance to beat A',
        'A  a     3     1,000      1            10 [10, 10]  5 [5, 5]      -',
        'B  b     3     500        1            6 [6, 6]     6 [6, 6]      1.00',
    ]
    assert lines[6].startswith('after 500 env steps B is higher than A')
    assert [line.split() for line in lines[8:]] == [
        ['differs', 'in', 'the', 'config', 'A', 'B'],
        ['policy.learn.learning_rate', '0.1', '0.2'],
        ['policy.learn.aux_freq', '-', '8'],
    ]


def test_runs_that_are_left_out_are_named_in_one_line(in_tmp: Path, zoo: Zoo) -> None:
    write('a', [10, 10, 10])
    write('b', [6, 6, 6])
    for seed in (7, 8):
        folder = write_run(Path('runs/b') / str(seed), made_run([0, 50], [0, 99], seed=seed, name='b'))
        (folder / 'result.json').write_text('{"state": "failed", "env_step": 60}')
    lines = zoo('compare a b').lines
    assert lines[4].split()[:6] == ['B', 'b', '3', 'of', '5', '1,000']
    words = 'runs/b/7 (failed at env step 50), runs/b/8 (failed at env step 50)'
    assert lines[6] == f'left out, since they are at an earlier env step than the others: {words}'
    data = zoo('compare a b --json').data
    assert data['left_out'][0] == {'path': 'runs/b/7', 'state': 'failed', 'env_step': 50}


def test_three_sides_are_each_compared_with_the_first(in_tmp: Path, zoo: Zoo) -> None:
    for name, value in (('a', 5), ('b', 9), ('c', 1)):
        write(name, [value] * 4)
    lines = zoo('compare a b c').lines
    assert [line[-17:] for line in lines[4:6]] == ['1.00 [1.00, 1.00]', '0.00 [0.00, 0.00]']
    assert lines[-1] == 'the configs are the same, but for seeds, names and logging'


def test_plot_of_different_envs_may_be_allowed(in_tmp: Path, zoo: Zoo) -> None:
    write('a', [1])
    write('b', [1], env='Acrobot-v1')
    assert list(zoo('plot runs --allow-different-envs --json').data['curves']) == ['a', 'b']


def test_numbers_that_json_lacks_are_null(in_tmp: Path, zoo: Zoo) -> None:
    write('a', [5.0])
    with open('runs/a/0/metrics.jsonl', 'a') as file:
        file.write('{"env_step": 1001, "wall_s": 1, "eval/return_mean": -Infinity}\n')
    out = zoo('runs --json').out
    assert 'null' in out and 'Infinity' not in out


@pytest.mark.slow
def test_metrics_that_are_named_several_times_are_all_drawn_or_refused(in_tmp: Path, zoo: Zoo) -> None:
    pytest.importorskip('matplotlib')
    write_run(in_tmp / 'runs' / 'a' / '1', made_run([0, 10], [1, 2]))
    two = '--metric eval/return_mean --metric env_step'
    assert zoo(f'plot a -o a.svg {two}').out == 'a.svg: eval/return_mean, env_step of 1 run in 2 lines\n'
    data = zoo(f'plot a --json {two}').data
    assert data['metrics'] == ['eval/return_mean', 'env_step'] and data['curves']['env_step']['iqm'] == [0, 10]
    for command in ('compare', 'report'):
        assert f'is given 2 times (eval/return_mean, env_step) but zoo {command} takes one' in zoo(
            f'{command} a {two}', code=2
        ).err.replace('\n', ' ')


@pytest.mark.slow
def test_report_of_a_reason_that_is_no_text_is_written(in_tmp: Path, zoo: Zoo) -> None:
    pytest.importorskip('matplotlib')
    write('a', [5.0])
    Path('runs/a/0/result.json').write_text('{"state": "failed", "error": "\\ud800 boom"}')
    assert zoo('report a').out.startswith('report.html: 1 run, ')
    assert '? boom' in Path('report.html').read_text()


@pytest.mark.parametrize('command', ['plot nowhere -o x.svg', 'report a'])
def test_missing_matplotlib_is_named_with_its_extra(
    command: str, in_tmp: Path, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    write('a', [1])
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    needs = 'needs matplotlib, which is not installed; run: pip install '
    err = zoo(command, code=2).err  # before runs are read
    assert err == f"zoo: error: zoo {command.split()[0]} {needs}'.[plot]' in the checkout of zoo\n"
    zoo('plot a --json')  # numbers need no matplotlib


@pytest.mark.slow
def test_runs_are_listed(tmp_path: Path) -> None:
    write_run(tmp_path / 'runs' / 'x' / 'first', made_run([10], [2.0], name='x'))
    write_run(tmp_path / 'runs' / 'x' / 'second', made_run([10], [4.0], name='x', seed=1))
    listed = run_in('runs', '--sort', 'return', cwd=tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in listed] == ['run', 'runs/x/second', 'runs/x/first']
    found = json.loads(run_in('runs', 'runs/x/first', '--json', cwd=tmp_path).stdout)['runs']
    assert [(run['last'], run['seed']) for run in found] == [(2.0, 0)]


def test_only_a_terminal_is_shown_less_than_all_columns(
    in_tmp: Path, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = 'with_a_name_that_is_longer_than_any_column_of_a_table_should_ever_be'
    for kind in ('first', 'other'):
        write_run(in_tmp / 'runs' / kind, made_run([10], [2.0], name=f'{kind}_{long}'))
    printed = zoo('runs').out
    assert f'first_{long}  ' in printed and f'other_{long}  ' in printed
    monkeypatch.setenv('COLUMNS', '80')
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: True)
    lines = zoo('runs').lines
    assert lines[0].split()[:2] == ['run', 'seed'] and all(len(line) <= 80 for line in lines)


def test_folder_of_something_else_hides_no_run(in_tmp: Path, zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    write_run(in_tmp / 'runs' / 'x', made_run([10], [2.0]))
    (in_tmp / 'runs' / 'other').mkdir()
    (in_tmp / 'runs' / 'other' / 'config.yaml').write_text('database: here\n')
    assert len(zoo('runs').lines) == 2 and 'other/config.yaml is no config of a run' in caplog.text


def test_without_a_folder_it_says_how_to_train(in_tmp: Path, zoo: Zoo) -> None:
    assert 'there is no folder runs here; train something' in zoo('runs', code=2).err
