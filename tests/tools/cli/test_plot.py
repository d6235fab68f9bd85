"""`zoo plot` on real runs: its numbers against those that numpy finds in their logs, its picture, its mistakes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.real_runs import made_run, train_seeds, write_run
from zoo.tools.cli.command import main

METRIC = 'eval/return_mean'


@pytest.fixture(scope='module')
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with five runs of cartpole_ppo."""
    return train_seeds(tmp_path_factory.mktemp('runs'), range(5))


def logged(folder: Path, metric: str = METRIC) -> list[np.ndarray]:
    """Env steps and values of each run, [2, n], as json reads them."""
    found = []
    for log in sorted(folder.glob('*/metrics.jsonl')):
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        found.append(np.array([(row['env_step'], row[metric]) for row in rows if metric in row]).T)
    return found


def iqm(values: np.ndarray) -> np.ndarray:
    """Over the last axis: each value 4 times, and of these the middle half."""
    n = values.shape[-1]
    return np.sort(np.repeat(values, 4, axis=-1), axis=-1)[..., n : 3 * n].mean(axis=-1)


def numbers(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    """What `zoo plot --json` prints."""
    assert main(['plot', *words, '--json']) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize('stat', ['iqm', 'mean', 'median'])
def test_curve_of_five_seeds_is_that_of_numpy(trained: Path, stat: str, capsys: pytest.CaptureFixture[str]) -> None:
    curves = logged(trained)
    assert len(curves) == 5 and len({tuple(steps) for steps, _ in curves}) > 1, 'their evaluations are at other steps'
    data = numbers([str(trained), '--stat', stat], capsys)
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


@pytest.mark.slow
def test_run_that_ended_early_is_not_continued(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / 'all')
    log = sorted((tmp_path / 'all').glob('*/metrics.jsonl'))[2]
    lines = log.read_text().splitlines(keepends=True)
    half = [line for line in lines if json.loads(line)['env_step'] <= 3_500]
    log.write_text(''.join(half))
    curves = logged(tmp_path / 'all')
    end = curves[2][0][-1]
    log.write_text(''.join(half) + lines[len(half)][:40])  # killed while it wrote a line
    ((_, curve),) = numbers([str(tmp_path / 'all')], capsys)['curves'].items()
    steps, n_run = np.array(curve['env_step']), np.array(curve['n_run'])
    assert np.array_equal(n_run, np.where(steps <= end, 5, 4)) and set(n_run) == {4, 5}
    after = steps > end
    expected = iqm(np.stack([np.interp(steps[after], *curves[i]) for i in (0, 1, 3, 4)], axis=-1))
    assert np.max(np.abs(np.array(curve['iqm'])[after] - expected)) <= 1e-9


@pytest.mark.slow
def test_picture_of_real_runs(trained: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip('matplotlib')
    assert main(['plot', str(trained), '-o', 'curve.svg', '--x', 'wall_s', '--metric', 'learn/entropy']) == 0
    assert capsys.readouterr().out == 'curve.svg: learn/entropy of 5 runs in 1 line\n'
    assert ElementTree.parse('curve.svg').getroot().tag.endswith('svg')
    assert main(['plot', str(trained), '-o', 'curve.png']) == 0
    assert sorted(file.name for file in in_tmp.iterdir()) == ['curve.png', 'curve.svg']


@pytest.fixture
def made(in_tmp: Path) -> Path:
    """runs/a and runs/b on two envs."""
    write_run(Path('runs/a/1'), made_run([1, 2], [3, 4], name='a'))
    write_run(Path('runs/b/1'), made_run([1, 2], [3, 4], name='b', env='Acrobot-v1'))
    return in_tmp


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        ([], 'the following arguments are required: RUN'),
        (['runs/a'], 'name one with -o'),
        (['runs/a', '-o', 'x.jpg'], '.svg, .png or .pdf'),
        (['runs/a', '-o', 'no/x.svg'], 'there is no folder no'),
        (['runs/aa', '-o', 'x.svg'], 'no run at runs/aa; did you mean runs/a?'),
        (['runs', '-o', 'x.svg'], 'is of the env CartPole-v1 but runs/b/1 of Acrobot-v1'),
        (['runs/a', '-o', 'x.svg', '--metric', 'eval/retrun_mean'], 'did you mean eval/return_mean?'),
        (['runs/a', '-o', 'x.svg', '--stat', 'iqr'], "invalid choice: 'iqr'"),
        (['runs/a', '-o', 'x.svg', '--x', 'steps'], "invalid choice: 'steps'"),
        (['runs/a', '-o', 'x.svg', '--outptu', 'y'], 'zoo plot does not take'),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['plot', *words]) == 2
    out, err = capsys.readouterr()
    assert out == '' and said in err and err.count('\n') == 1, err
    assert [file.name for file in made.iterdir()] == ['runs']


def test_different_envs_may_be_allowed(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(numbers(['runs', '--allow-different-envs'], capsys)['curves']) == ['a', 'b']


def test_missing_matplotlib_is_said_before_runs_are_read(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    assert main(['plot', 'nowhere', '-o', 'x.svg']) == 2
    assert capsys.readouterr().err == (
        "zoo: error: zoo plot needs matplotlib, which is not installed; run: pip install '.[plot]' in the checkout of zoo\n"
    )
    assert main(['plot', 'a', '--json']) == 0, 'numbers need no matplotlib'


@pytest.mark.slow
def test_help_loads_no_matplotlib() -> None:
    code = (
        'import sys, zoo.tools.cli.command as c\n'
        'for words in (["--help"], ["plot", "--help"], ["compare", "--help"]):\n'
        '    try: c.main(words)\n'
        '    except SystemExit: pass\n'
        'assert not {"matplotlib", "numpy", "torch"} & set(sys.modules), sorted(sys.modules)'
    )
    subprocess.run([sys.executable, '-c', code], check=True, stdout=subprocess.DEVNULL, timeout=120)
