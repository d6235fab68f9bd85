"""Profiles: their numbers, their trace, and that they do not change the run."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from tests.envs import limit_env
from tests.policy_envs import job_config
from zoo.core.errors import UserError
from zoo.pipeline import serial_pipeline
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.run.profile import Clocks, profiled

LEARN_STEPS = 4  # per rollout of 4 envs x 16 steps: 2 epochs of 2 minibatches of 32
TRACED: list[bool] = []
"""Whether torch's profiler was on, for each step of one env."""


class TracedEnv(gymnasium.Wrapper):
    def step(self, action: Any) -> Any:
        TRACED.append(torch.autograd._profiler_enabled())
        return super().step(action)


def traced_env() -> gymnasium.Env:
    return TracedEnv(limit_env())


def cartpole(root: Path, **sections: Any) -> dict[str, Any]:
    """Config of 10 iterations of 4 envs x 16 steps; sync envs have no steps that only reset an env."""
    return job_config(root, 'CartPole-v1', **{'max_env_step': 640, 'env': dict(vectorization='sync'), **sections})


def table(run_dir: Path) -> dict[str, list[str]]:
    """Returns the rows of the first table, by name: seconds, share, calls, env steps/s."""
    lines = (run_dir / 'profile.txt').read_text().split('costliest')[0].splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines[2:] if line.startswith('  ')}


def test_clocks_since_an_earlier_reading_are_the_differences() -> None:
    start = Clocks(10.0, 100, {'env': 1.0, 'learn': 2.0}, {'env': 5, 'learn': 7})
    end = Clocks(14.0, 160, {'env': 2.5, 'learn': 2.25}, {'env': 8, 'learn': 11})
    assert end.since(start) == Clocks(4.0, 60, {'env': 1.5, 'learn': 0.25}, {'env': 3, 'learn': 4})


@pytest.fixture(scope='module')
def profile_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a profile of 3 iterations; with the eager executor all operators are torch's."""
    cfg = cartpole(tmp_path_factory.mktemp('profiled'), policy=dict(learn=dict(executor='eager')))
    return serial_pipeline(cfg, profile=3).run_dir


@pytest.mark.long
@pytest.mark.slow
def test_parts_of_an_iteration_add_up_and_are_told_alone(profile_dir: Path) -> None:
    parts = table(profile_dir)
    assert list(parts) == ['env', 'act', 'sample', 'learn', 'log', 'other', 'all']
    seconds = {name: float(row[0]) for name, row in parts.items()}
    shares = {name: float(row[1].rstrip('%')) for name, row in parts.items()}
    whole = seconds.pop('all')
    assert sum(seconds.values()) == pytest.approx(whole, abs=4e-6)  # 7 numbers rounded to 6 digits
    assert sum(shares.values()) - 100 == pytest.approx(100, abs=0.4)
    assert shares['learn'] == pytest.approx(100 * seconds['learn'] / whole, abs=0.5)
    calls = {name: row[2] for name, row in parts.items() if name != 'other'}
    assert calls == {'env': '16', 'act': '16', 'sample': '1', 'learn': str(LEARN_STEPS), 'log': '1', 'all': '1'}
    alone = float(parts['learn'][3].replace(',', ''))
    assert alone == pytest.approx(64 / seconds['learn'], rel=0.01)  # 64 env steps an iteration


@pytest.mark.slow
def test_evaluation_is_told_by_the_call_and_as_its_share_of_a_run(tmp_path: Path) -> None:
    cfg = cartpole(tmp_path, policy=dict(eval=dict(eval_freq=320)))
    run_dir = serial_pipeline(cfg, profile=3).run_dir
    (line,) = [x for x in (run_dir / 'profile.txt').read_text().splitlines() if x.startswith('evaluate')]
    call_s, share = float(line.split()[1]), float(line.split('takes ')[1].split('%')[0])
    iteration_s = float(table(run_dir)['all'][0])
    # one evaluation every 320 env steps, which are 5 iterations
    assert 'one every 320 env steps' in line
    assert share == pytest.approx(100 * call_s / (call_s + 5 * iteration_s), abs=0.5)


@pytest.mark.slow
def test_iterations_that_are_timed_are_not_traced(tmp_path: Path) -> None:
    TRACED.clear()
    cfg = job_config(
        tmp_path,
        traced_env,
        max_env_step=160,
        env=dict(collector_env_num=1),
        policy=dict(learn=dict(batch_size=16), eval=dict(n_episode=1)),
    )
    serial_pipeline(cfg, profile=2)
    # 10 iterations of 16 steps; an evaluation of 5 steps after the second iteration, and another at the end
    assert TRACED == [False] * (2 * 16 + 5 + 2 * 16) + [True] * (3 * 16) + [False] * (3 * 16 + 5)


@pytest.mark.slow
def test_trace_has_the_parts_of_three_iterations_and_their_operators(profile_dir: Path) -> None:
    events = json.loads((profile_dir / 'trace.json').read_text())['traceEvents']
    names = [event.get('name') for event in events if event.get('cat') in ('user_annotation', 'cpu_op')]
    for part in ('collect', 'sample', 'learn'):
        assert names.count(f'zoo/{part}') == 3
    assert names.count('aten::addmm') >= 3 * LEARN_STEPS * 6  # 6: two networks of three layers


@pytest.mark.slow
def test_operators_are_the_ten_costliest_in_order(profile_dir: Path) -> None:
    text = (profile_dir / 'profile.txt').read_text()
    lines = [line.rsplit(None, 3) for line in text.split('costliest')[1].splitlines()[2:12]]  # names may have blanks
    seconds = [float(line[1]) for line in lines]
    assert len(lines) == 10 and seconds == sorted(seconds, reverse=True) and seconds[0] > 0
    assert not any(line[0].strip().startswith('zoo/') for line in lines)


@pytest.mark.slow
def test_resumed_run_is_profiled_from_where_it_continues(tmp_path: Path) -> None:
    first = serial_pipeline(cartpole(tmp_path))
    second = serial_pipeline(resume=first.run_dir, max_env_step=1280, profile=2)
    assert second.run_dir == first.run_dir and second.env_step == 1280
    text = (first.run_dir / 'profile.txt').read_text()
    assert text.startswith('profile of 2 iterations, env steps 768 to 896')  # 640 + 2 x 64 of warm-up


@pytest.mark.slow
@pytest.mark.parametrize(('n_iter', 'timed', 'traced'), [(2, 0, 0), (4, 2, 0), (8, 4, 2)])
def test_short_run_says_what_is_missing_and_tells_what_it_has(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    n_iter: int,
    timed: int,
    traced: int,
) -> None:
    with caplog.at_level(logging.INFO):
        result = serial_pipeline(cartpole(tmp_path, max_env_step=64 * n_iter), profile=4)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning == (
        f'a profile takes 9 iterations (2 to warm up, 4 timed, 3 traced) but max_env_step leaves '
        f'{n_iter}; raise it to 576 or more'
    )
    assert result.env_step == 64 * n_iter
    assert (f'profile of {timed} iterations' in caplog.text) == bool(timed)
    assert (f'trace of {traced} iterations' in caplog.text) == bool(traced)
    assert (result.run_dir / 'profile.txt').exists() == bool(timed)
    assert (result.run_dir / 'trace.json').exists() == bool(traced)


def test_run_that_stops_while_traced_leaves_torch_s_profiler_off(tmp_path: Path) -> None:
    cfg = job_config(tmp_path, 'tests.policy_envs:nan_env', env=dict(kwargs={'at': 55}), max_env_step=6400)
    with pytest.raises(RuntimeError, match='reward is nan'):  # in the 4th iteration of 16 steps, the first traced
        serial_pipeline(cfg, profile=1)
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize('profile', [0, -1, 2.5, True])
def test_profile_of_no_iterations_is_refused(profile: Any) -> None:
    with pytest.raises(UserError, match=f'profile is {profile} but must be the number of iterations'):
        serial_pipeline('cartpole_ppo', profile=profile)


@pytest.mark.slow
def test_trace_ends_before_the_final_evaluation_where_the_run_ends_with_it(tmp_path: Path) -> None:
    """The run has 10 iterations: 2 to warm up, 5 timed, 3 traced."""
    run_dir = serial_pipeline(cartpole(tmp_path), profile=5).run_dir
    names = [event.get('name') for event in json.loads((run_dir / 'trace.json').read_text())['traceEvents']]
    assert 'zoo/learn' in names and 'zoo/evaluate' not in names


def test_profile_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SerialJob(resolve_config(cartpole(tmp_path))) as job:
        (job.run_dir / 'profile.txt').mkdir()
        with closing(profiled(job, 1)) as iterations:
            for _ in range(4):
                next(iterations)
    assert 'profile.txt cannot be written (Is a directory); training continues' in caplog.text
