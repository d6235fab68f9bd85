"""Numbers of one's own in the log: `job.log`, its reductions, windows, lifetimes, ranks and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.policy_envs import job_config
from zoo.core.errors import UserError
from zoo.core.ranks import Ranks
from zoo.pipeline import serial_pipeline
from zoo.run.job import SerialJob
from zoo.worker.own_numbers import OwnNumbers, Reduction


class TwoRanks(Ranks):
    """Two ranks that give the same."""

    def __init__(self) -> None:
        super().__init__()

    def gather(self, value: Any) -> list[Any]:
        return [value, value]


@pytest.mark.parametrize(('reduce', 'want'), [('mean', 3.0), ('sum', 12.0), ('min', 1.0), ('max', 6.0), ('last', 2.0)])
def test_numbers_of_a_line_are_reduced(reduce: Any, want: float) -> None:
    own = OwnNumbers()
    how = Reduction(reduce, None, False)
    own.add('x', 1, how)
    own.add('x', [3.0, 6.0], how)  # each of a list counts
    own.add('x', torch.tensor(2), how)
    own.add('x', [], how)
    assert own.take() == {'own/x': want}
    assert own.take() == {}  # nothing since that line


def test_window_has_the_last_numbers_and_lifetime_all() -> None:
    own = OwnNumbers()
    for x in (1.0, 2.0, 6.0):
        own.add('a/window', x, Reduction('mean', 2, False))
        own.add('a/life', x, Reduction('sum', None, True))
    assert own.take() == {'a/window': 4.0, 'a/life': 9.0}  # (2 + 6) / 2
    own.add('a/window', np.array([10.0]), Reduction('mean', 2, False))
    assert own.take() == {'a/window': 8.0, 'a/life': 9.0}  # (6 + 10) / 2


def test_histogram_has_quantiles_of_the_numbers_since_the_last_line_or_of_a_window() -> None:
    own = OwnNumbers()
    own.add('x', [4.0, 0.0, 2.0, 1.0, 3.0], Reduction('histogram', None, False))
    own.add('y', [9.0, 1.0], Reduction('histogram', 2, False))
    want = {'own/x_min': 0.0, 'own/x_p25': 1.0, 'own/x_p50': 2.0, 'own/x_p75': 3.0, 'own/x_max': 4.0, 'own/x_mean': 2.0}
    line = own.take()
    assert {name: x for name, x in line.items() if 'x' in name[:5]} == want
    own.add('y', 5.0, Reduction('histogram', 2, False))
    line = own.take()
    assert (line['own/y_min'], line['own/y_p50'], line['own/y_max']) == (1.0, 3.0, 5.0)  # of 1 and 5
    assert 'own/x_p50' not in line and own.state_dict() == {}
    own.add('x', [1.0, 2.0], Reduction('histogram', None, False))
    assert own.take(TwoRanks())['own/x_p75'] == 2.0  # of 1, 1, 2, 2


def test_lifetime_is_continued_by_a_resume_with_numbers_since_the_last_line() -> None:
    how = Reduction('mean', None, True)
    own = OwnNumbers()
    own.add('x', [1.0, 2.0], how)
    own.take()
    own.add('x', 9.0, how)
    state = json.loads(json.dumps(own.state_dict()))
    again = OwnNumbers()
    again.load_state_dict(state)
    again.add('x', 0.0, how)
    assert again.take() == {'own/x': 3.0}  # 12 / 4
    assert own.take() == {'own/x': 4.0}  # 12 / 3: to save it changed nothing


def test_ranks_reduce_the_numbers_of_all() -> None:
    own = OwnNumbers()
    for name, reduce in (('mean', 'mean'), ('sum', 'sum')):
        own.add(name, [1.0, 5.0], Reduction(reduce, None, False))  # type: ignore[arg-type]
    assert own.take(TwoRanks()) == {'own/mean': 3.0, 'own/sum': 12.0}


@pytest.mark.parametrize(
    ('name', 'value', 'how', 'words'),
    [
        ('learn/x', 1, Reduction('mean', None, False), "group 'learn' is that of zoo; use another group"),
        ('', 1, Reduction('mean', None, False), "got the name ''; give a text"),
        ('x', 1, Reduction('median', None, False), "reduce='median'; use one of mean, sum, min, max, last, histogram"),  # type: ignore[arg-type]
        ('x', 1, Reduction('mean', 0, False), 'window=0; use a number of values from 1 on'),
        ('x', 1, Reduction('mean', 5, True), 'got window and lifetime; use one of the two'),
        (
            'x',
            1,
            Reduction('histogram', None, True),
            "got reduce='histogram' and lifetime, which would keep all numbers",
        ),
        ('x', 'far', Reduction('mean', None, False), "got 'far'; give a number, or a list or array of numbers"),
        ('x', None, Reduction('mean', None, False), 'got None; give a number'),
        ('x', '7', Reduction('mean', None, False), "got '7'; give a number"),
        ('x', [[1.0], [1.0, 2.0]], Reduction('mean', None, False), 'got [[1.0], [1.0, 2.0]]; give a number'),
    ],
)
def test_what_the_log_cannot_take_is_refused_in_a_sentence(name: str, value: Any, how: Reduction, words: str) -> None:
    with pytest.raises(UserError) as error:
        OwnNumbers().add(name, value, how)
    assert words in str(error.value)


def test_entries_of_a_runner_count_when_they_are_added() -> None:
    own = OwnNumbers()
    runner = OwnNumbers()
    entries = [runner.checked('x', x, Reduction('sum', None, False)) for x in (1.0, [2.0, 3.0])]
    assert runner.take() == {} and own.take() == {}
    own.extend(entries)
    assert own.take() == {'own/x': 6.0}
    with pytest.raises(UserError, match="reduce='sum', window=None, lifetime=False before and now with reduce='mean'"):
        own.add('x', 1, Reduction('mean', None, False))


def test_one_name_has_one_reduction() -> None:
    own = OwnNumbers()
    own.add('x', 1, Reduction('mean', None, False))
    with pytest.raises(UserError, match="reduce='mean', window=None, lifetime=False before and now with reduce='sum'"):
        own.add('x', 1, Reduction('sum', None, False))


class Distances:
    """Callback that logs two numbers in each rollout: its index, and one."""

    def __init__(self) -> None:
        self.n = 0

    def on_rollout(self, job: Any, rollout: Any) -> None:
        self.n += 1
        job.log('distance', [self.n, self.n + 1])
        job.log('count/rollouts', 1, reduce='sum', lifetime=True)


def test_log_of_a_run_has_them_and_a_resume_continues_lifetimes(tmp_path: Path) -> None:
    result = serial_pipeline(job_config(tmp_path), callbacks=[Distances])
    lines = [json.loads(line) for line in (result.run_dir / 'metrics.jsonl').read_text().splitlines()]
    mine = [line for line in lines if 'own/distance' in line]
    n = len(mine)
    assert n >= 4 and [line['own/distance'] for line in mine] == [i + 1.5 for i in range(n)]
    assert [line['count/rollouts'] for line in mine] == [i + 1.0 for i in range(n)]
    again = serial_pipeline(resume=result.run_dir, overrides=['max_env_step=384'], callbacks=[Distances])
    last = json.loads((again.run_dir / 'metrics.jsonl').read_text().splitlines()[-2])
    assert (
        last['count/rollouts'] == n + last['own/distance'] - 0.5
    )  # distance is the rollout since the resume, and a half


def test_nan_is_logged_and_saved(tmp_path: Path) -> None:
    with SerialJob(job_config(tmp_path)) as job:
        job.log('x', math.nan, lifetime=True)
        job.iteration()
        path = job.save()
    assert path.is_file()
