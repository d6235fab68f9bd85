"""`zoo compare` on real and on made runs: its table, what it says of it, its mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.real_runs import made_run, train_seeds, write_run
from zoo.tools.cli.command import main


def write(name: str, returns: list[float], end: int = 1_000, env: str = 'CartPole-v1', **learn: float) -> None:
    """runs/<name> with a run of each return."""
    for seed, value in enumerate(returns):
        run = made_run([0, end], [0, value], seed=seed, name=name, env=env, **learn)
        write_run(Path('runs') / name / str(seed), run)


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that it prints."""
    assert main(['compare', *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_real_runs_of_two_configs(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ['exp_name=slow', 'policy.learn.learning_rate=1e-5']):
        train_seeds(Path('runs'), range(3), 'cartpole_ppo', *words)
    assert main(['compare', 'cartpole_ppo', 'runs/slow', '--json']) == 0
    data = json.loads(capsys.readouterr().out)
    for side, name in zip(data['sides'], ('cartpole_ppo', 'slow'), strict=True):
        logs = sorted(Path('runs', name).glob('*/metrics.jsonl'))
        rows = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
        last = [[row['eval/return_mean'] for row in each if 'eval/return_mean' in row][-1] for each in rows]
        ends = [json.loads((log.parent / 'result.json').read_text()) for log in logs]
        speeds = [end['env_step'] / end['wall_s'] for end in ends]
        assert (side['label'], side['n_run'], side['last']['values']) == (name, 3, last)
        # of three runs, 3/4 is cut from either end: the interquartile mean has weights 1/4, 1, 1/4
        assert side['last']['center'] == pytest.approx(np.dot(sorted(last), [1 / 6, 2 / 3, 1 / 6]), abs=1e-9)
        assert side['speed'] == pytest.approx(np.median(speeds))
    assert list(data['differences']) == ['policy.learn.learning_rate'] and data['common_step'] is None
    table = said(['cartpole_ppo', 'slow'], capsys)
    assert table[0] == 'eval/return_mean at the last point of each run, interquartile mean of runs [95% interval]'
    assert [line.split()[:3] for line in table[3:5]] == [['A', 'cartpole_ppo', '3'], ['B', 'slow', '3']]


@pytest.mark.parametrize(
    ('others', 'meaning'),
    [
        # 2 of the 70 ways to part 8 runs have all higher runs on one side
        ([7, 8, 9, 6], '100% of the pairs of runs (95% interval 100% to 100%): it is higher ({luck} 2.9% of cases)'),
        ([0, 0, 0, 0], '0% of the pairs of runs (95% interval 0% to 0%): it is lower ({luck} 2.9% of cases)'),
        ([1, 2, 3, 4], ': no clear difference ({luck} 100% of cases)'),
        # of 3 and 4 runs 2 of 35, of 1 and 4 runs 2 of 5
        (
            [7, 8, 9],
            '100% of the pairs of runs: 3 and 4 runs are too few to tell them apart ({luck} 5.7% of cases; {usual})',
        ),
        ([9], '100% of the pairs of runs: 1 and 4 runs are too few to tell them apart ({luck} 40% of cases; {usual})'),
    ],
)
def test_meaning_of_the_chance(others: list, meaning: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write('a', [1, 2, 3, 4])
    write('b', others)
    words = meaning.format(luck='chance alone gives such a difference in', usual='5 or more of each are usual')
    assert sum(line.endswith(words) for line in said(['a', 'b'], capsys)) == 1


def test_three_runs_against_three_are_never_called_different(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write('a', [1, 2, 3])
    write('b', [7, 8, 9])
    lines = said(['a', 'b'], capsys)
    assert 'it is' not in lines[6] and lines[6].endswith('in 10% of cases; 5 or more of each are usual)')
    assert lines[4].endswith(' 1.00') and lines[4].count('[') == 1  # no interval of the chance


def test_side_of_one_run_has_no_interval(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write('a', [5])
    write('b', [7])
    lines = said(['a', 'b'], capsys)
    assert lines[0] == 'eval/return_mean at the last point of each run, interquartile mean of runs'
    assert lines[3].split()[-2:] == ['5', '-'] and lines[4].split()[-2:] == ['7', '1.00']
    assert main(['compare', 'a', 'b', '--json']) == 0
    side = json.loads(capsys.readouterr().out)['sides'][1]
    assert side['last'] == {'values': [7], 'center': 7, 'low': None, 'high': None}
    assert side['chance'] == {'value': 1, 'low': None, 'high': None, 'p': 1}


@pytest.mark.parametrize('without', ['a', 'b'])
def test_side_without_evaluations_is_compared_in_its_config(
    without: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, rate in (('a', 0.1), ('b', 0.2)):
        metric = 'collect/return_mean' if name == without else 'eval/return_mean'
        for seed in range(2):
            run = made_run([0, 100], [0, 5], seed=seed, name=name, metric=metric, learning_rate=rate)
            write_run(Path('runs') / name / str(seed), run)
    lines, letter = said(['a', 'b'], capsys), without.upper()
    assert [line.split()[5] for line in lines[3:5]] == ['-' if name == without else '5' for name in ('a', 'b')]
    assert [line for line in lines if line.startswith(('no run', 'left out'))] == [
        f'no run of {letter} has a value of eval/return_mean, so that is not compared; let one run until its first '
        'evaluation, or name another with --metric, e.g. --metric collect/return_mean'
    ]
    assert lines[-1].split() == ['policy.learn.learning_rate', '0.1', '0.2']
    assert main(['compare', 'a', 'b', '--json']) == 0
    data = json.loads(capsys.readouterr().out)
    assert [side['last'] is None for side in data['sides']] == [name == without for name in ('a', 'b')]
    assert [side['chance'] for side in data['sides']] == [None, None]


def test_table_of_runs_of_different_length(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write('a', [10, 10, 10], learning_rate=0.1)
    write('b', [6, 6, 6], end=500, learning_rate=0.2, aux_freq=8)
    lines = said(['a', 'b'], capsys)
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


def test_runs_that_are_left_out_are_named_in_one_line(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write('a', [10, 10, 10])
    write('b', [6, 6, 6])
    for seed in (7, 8):
        folder = write_run(Path('runs/b') / str(seed), made_run([0, 50], [0, 99], seed=seed, name='b'))
        (folder / 'result.json').write_text('{"state": "failed", "env_step": 60}')
    lines = said(['a', 'b'], capsys)
    assert lines[4].split()[:6] == ['B', 'b', '3', 'of', '5', '1,000']
    words = 'runs/b/7 (failed at env step 50), runs/b/8 (failed at env step 50)'
    assert lines[6] == f'left out, since they are at an earlier env step than the others: {words}'
    assert main(['compare', 'a', 'b', '--json']) == 0
    data = json.loads(capsys.readouterr().out)
    assert data['left_out'][0] == {'path': 'runs/b/7', 'state': 'failed', 'env_step': 50}


def test_three_sides_are_each_compared_with_the_first(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (('a', 5), ('b', 9), ('c', 1)):
        write(name, [value] * 4)
    lines = said(['a', 'b', 'c'], capsys)
    assert [line[-17:] for line in lines[4:6]] == ['1.00 [1.00, 1.00]', '0.00 [0.00, 0.00]']
    assert lines[-1] == 'the configs are the same, but for seeds, names and logging'


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['a'], 'all 2 runs are of one config'),
        (['a', 'aa'], 'no run at'),
        (['a', 'other'], 'returns of different envs do not compare'),
        (['a', 'b', '--metric', 'eval/return'], 'did you mean eval/return_mean'),
        (['a', 'b', '--stat', 'best'], "invalid choice: 'best'"),
    ],
)
def test_a_mistake_is_one_line(words: list, message: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write('a', [1, 2])
    write('b', [3, 4])
    write('other', [3, 4], env='Acrobot-v1')
    assert main(['compare', *words]) == 2
    out, err = capsys.readouterr()
    assert out == '' and message in err and err.count('\n') == 1, err
