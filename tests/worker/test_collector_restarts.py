"""env.on_error=restart: an env that fails is made again, and no row of its broken episode is learned from.

The env observes the number of steps taken in its episode, gives reward 1 per step and ends after 5.
"""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.envs import End, LimitEnv
from tests.policy_envs import job_config, make_policy
from zoo import serial_pipeline
from zoo.core.data import leaves
from zoo.core.seeding import stream
from zoo.env import EnvConfig, EnvContractError, EnvError, UnsupportedEnvError, make_vector_env
from zoo.env.interface import EnvCommand
from zoo.env.restarts import Restarts
from zoo.rl_utils.gae import gae, gae_data
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.worker.collector import Collector
from zoo.worker.evaluator import Evaluator

N_KILL = 3
MODES = [(how, mode) for how in ('sync', 'async') for mode in ('same_step', 'next_step', 'disabled')]
EACH_ONCE = [('sync', 'same_step'), ('async', 'next_step'), ('async', 'disabled')]  # each vector and mode


class FailingEnv(LimitEnv):
    """Fails once, at its n-th step or reset; the env that fails removes `file`, so that no other env fails."""

    def __init__(
        self,
        file: str,
        n_step: int = 8,
        n_reset: int = -1,
        fault: str = 'raise',
        limit: int = 5,
        end: End = 'truncated',
    ) -> None:
        super().__init__(limit, end)
        self.file, self.n_left = Path(file), {'step': n_step, 'reset': n_reset}
        self.fault = fault

    def _fail(self, call: str) -> None:
        self.n_left[call] -= 1
        if self.n_left[call]:
            return
        try:
            self.file.unlink()
        except FileNotFoundError:
            return
        if self.fault == 'raise':
            raise OSError('the simulator is gone')
        if self.fault == 'exit':
            raise SystemExit(3)
        if self.fault == 'kill':
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    def step(self, action: Any) -> Any:
        self._fail('step')
        return super().step(action)

    def reset(self, **kwargs: Any) -> Any:
        self._fail('reset')
        return super().reset(**kwargs)


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    gc.collect()  # frees the vectors of a failed test
    assert multiprocessing.active_children() == []


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / 'may_fail'
    path.touch()
    return str(path)


def make_collector(file: str, how: str, mode: str, n_env: int = 1, model: Any = None, **kwargs: Any) -> Collector:
    fields: Any = dict(
        vectorization=how,
        autoreset=mode,
        on_error='restart',
        action_mask='off',
        step_timeout=2.0 if kwargs.get('fault') == 'hang' else 60.0,
    )
    vector = make_vector_env(EnvConfig(id=FailingEnv, kwargs={'file': file, **kwargs}, **fields), n_env)
    collect, learn = dict(n_step=12), dict(sequence=dict(len=4)) if model else {}
    fields = dict(collect=collect, model=model or {}, learn=learn)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['collect'], **fields)
    collector = Collector([vector], policy.collect_mode)
    collector.reset(stream(0, 'test'))
    return collector


def rows(flags: torch.Tensor, env: int = 0) -> list[int]:
    return flags[:, env].nonzero().flatten().tolist()


# the 12 rows of a rollout in which the 8th step fails, the third step of the second episode
OBS = dict.fromkeys(('same_step', 'disabled'), [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3])
OBS['next_step'] = [0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1, 2]  # row 5 is only a reset
INVALID = {'same_step': [5, 6, 7], 'next_step': [5, 6, 7, 8], 'disabled': [5, 6, 7]}
FIRST = {'same_step': [5, 8], 'next_step': [6, 9]}


@pytest.mark.long
@pytest.mark.parametrize(('how', 'mode'), MODES)
def test_rows_of_the_broken_episode_are_no_samples(how: str, mode: str, file: str) -> None:
    collector = make_collector(file, how, mode)
    data = collector.collect().data
    broken = INVALID[mode][-1]
    assert data['obs'].flatten().tolist() == OBS[mode]
    assert rows(data['is_reset']) == INVALID[mode]
    assert rows(data['traj_flag']) == [4, broken] and not data['done'].any()
    assert data['reward'].flatten().tolist() == [
        float(t not in (broken, 5 if mode == 'next_step' else -1)) for t in range(12)
    ]
    assert collector.env_step == 12 - (2 if mode == 'next_step' else 1)  # neither a reset nor the failed step counts
    assert list(collector.episodes.returns) == [5.0] and collector.episodes.n_episode == 1
    data = collector.collect().data  # the new episode continues to its end after 5 steps
    assert rows(data['is_reset']) == ([] if mode != 'next_step' else [2, 8])
    assert set(collector.episodes.lengths) == {5}
    collector.groups[0].env.close()


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['same_step', 'next_step'])
def test_no_advantage_crosses_the_break(mode: str, file: str) -> None:
    """Each stretch of valid rows has the advantages of GAE on it alone; other rows have weight 0, the mean weight is 1."""
    collector = make_collector(file, 'sync', mode)
    rollout = collector.collect()
    next_obs = rollout.next_obs()
    sample = collector.mode.get_train_sample(rollout)
    valid = [t for t in range(12) if t not in INVALID[mode]]
    assert sample['weight'].tolist() == pytest.approx([12 / len(valid) if t in valid else 0.0 for t in range(12)])
    critic = collector.mode.get_train_sample.__self__.compute_critic  # type: ignore[attr-defined]
    for stretch in (slice(0, 5), slice(INVALID[mode][-1] + 1, 12)):
        parts = (
            critic(rollout.data['obs'][stretch, 0]),
            critic(next_obs[stretch, 0]),
            rollout.data['reward'][stretch, 0],
        )
        end = rollout.data['traj_flag'][stretch, 0]
        want = gae(gae_data(*parts, torch.zeros_like(end), end), 0.99, 0.95)
        torch.testing.assert_close(sample['adv'][stretch], want)


@pytest.mark.long
@pytest.mark.parametrize(('how', 'mode'), [('async', 'same_step'), ('sync', 'next_step')])
def test_recurrent_state_starts_again_after_the_break(how: str, mode: str, file: str) -> None:
    collector = make_collector(file, how, mode, model=dict(recurrent=dict(cell='gru', hidden_size=4)))
    rollout = collector.collect()
    assert rows(rollout.data['is_first']) == FIRST[mode]
    # first rows of the episode that breaks after observations 0, 1, 2, and of the next one, which has the same
    first, again = FIRST[mode]
    for _, state in leaves(rollout.data['state']):
        assert torch.equal(state[first : first + 3], state[again : again + 3]) and state[again + 1].any()
    sample = collector.mode.get_train_sample(rollout)  # 3 sequences of 4 rows
    assert (sample['weight'].flatten() == 0).nonzero().flatten().tolist() == INVALID[mode]
    assert sample['is_first'].flatten().nonzero().flatten().tolist() == FIRST[mode]
    collector.groups[0].env.close()


@pytest.mark.slow
def test_other_envs_continue_as_if_nothing_had_happened(file: str) -> None:
    data = make_collector(file, 'sync', 'same_step', n_env=3).collect().data
    assert rows(data['is_reset'], 0) == [5, 6, 7]
    for env in (1, 2):
        assert data['obs'][:, env, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
        assert rows(data['is_reset'], env) == [] and rows(data['traj_flag'], env) == [4, 9]


@pytest.mark.slow
def test_break_in_the_first_row_leaves_the_rollout_before(file: str) -> None:
    collector = make_collector(file, 'sync', 'same_step', n_step=13)
    assert not collector.collect().data['is_reset'].any()  # this rollout was already learned from
    data = collector.collect().data
    assert rows(data['is_reset']) == [0] and rows(data['traj_flag']) == [0, 5, 10]
    assert list(collector.episodes.lengths) == [5] * 4 and collector.env_step == 23


@pytest.mark.long
@pytest.mark.parametrize(
    ('fault', 'what'),
    [
        ('raise', 'step 8: OSError: the simulator is gone ('),
        ('exit', 'its code raised SystemExit: 3 at step 8 ('),
        ('kill', 'its worker process died during step 8 (killed by SIGKILL)'),
        ('hang', 'no answer to step 8 within 2 s'),
    ],
)
def test_worker_that_fails_in_any_way_is_recreated(fault: str, what: str, file: str, caplog: Any) -> None:
    collector = make_collector(file, 'async', 'same_step', n_env=2, fault=fault)
    with caplog.at_level(logging.WARNING):
        data = collector.collect().data
    failed = next(env for env in (0, 1) if len(rows(data['is_reset'], env)))
    assert rows(data['is_reset'], failed) == [5, 6, 7]
    [warning] = [record.getMessage() for record in caplog.records if record.name == 'zoo.env.restarts']
    assert f'index {failed}' in warning and what in warning
    assert warning.endswith('it is made anew (1 of at most 10 restarts)')
    collector.groups[0].env.close()


@pytest.mark.slow
@pytest.mark.parametrize(('how', 'mode'), EACH_ONCE)
def test_first_reset_that_fails_is_recreated(how: str, mode: str, file: str) -> None:
    collector = make_collector(file, how, mode, n_step=-1, n_reset=1)
    assert collector.collect().data['obs'].flatten().tolist()[:5] == [0, 1, 2, 3, 4]
    collector.groups[0].env.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ('how', 'mode', 'fault', 'end'),
    [
        ('sync', 'same_step', 'exit', 'terminated'),
        ('sync', 'next_step', 'raise', 'truncated'),
        ('sync', 'disabled', 'exit', 'truncated'),
        ('async', 'same_step', 'raise', 'truncated'),
        ('async', 'next_step', 'exit', 'terminated'),
        ('async', 'disabled', 'raise', 'terminated'),
    ],
)
def test_reset_that_fails_leaves_the_complete_episode_before(
    how: str, mode: str, fault: str, end: str, file: str
) -> None:
    collector = make_collector(file, how, mode, n_step=-1, n_reset=2, fault=fault, end=end)
    rollout = collector.collect()
    data, has_reset_row = rollout.data, mode == 'next_step'
    assert not Path(file).exists()
    assert rows(data['is_reset']) == ([5, 11] if has_reset_row else [])
    assert rows(data['done']) == ([] if end == 'truncated' else [4, 10] if has_reset_row else [4, 9])
    assert data['traj_flag'][4, 0] and data['reward'][:5, 0].tolist() == [1.0] * 5
    assert rollout.next_obs()[4, 0].tolist() == [5.0]  # the last observation, not the first of the new env
    begin = 6 if has_reset_row else 5
    assert data['obs'].flatten().tolist()[begin : begin + 5] == [0, 1, 2, 3, 4]
    assert list(collector.episodes.returns) == [5.0, 5.0] and collector.env_step == (10 if has_reset_row else 12)
    collector.groups[0].env.close()


@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_reset_row_that_fails_first_in_a_rollout_leaves_the_episode_before(how: str, file: str) -> None:
    collector = make_collector(file, how, 'next_step', n_step=-1, n_reset=2, limit=12)
    data = collector.collect().data
    assert rows(data['is_reset']) == [] and rows(data['traj_flag']) == [11]
    data = collector.collect().data
    assert rows(data['is_reset']) == [0] and data['obs'].flatten().tolist() == [12, *range(11)]
    assert list(collector.episodes.returns) == [12.0] and not Path(file).exists()
    collector.groups[0].env.close()


@pytest.mark.long
@pytest.mark.slow
def test_worker_that_dies_in_a_reset_takes_the_step_before_with_it(file: str) -> None:
    """In mode same_step the reset is part of the step that ended the episode, so the result of that step is lost."""
    collector = make_collector(file, 'async', 'same_step', n_step=-1, n_reset=2, fault='kill')
    assert rows(collector.collect().data['is_reset']) == [0, 1, 2, 3, 4]
    collector.groups[0].env.close()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('command', [EnvCommand('set', 'limit', (7,)), EnvCommand('get', 'limit')])
def test_worker_that_dies_between_rollouts_is_recreated_by_a_command(command: EnvCommand, file: str) -> None:
    collector = make_collector(file, 'async', 'same_step', n_env=2, n_step=-1)
    collector.collect()  # it ends two steps into the third episode
    vector: Any = collector.groups[0].env
    vector.env.processes[1].kill()
    assert vector.command(command) == [5 if command.kind == 'get' else None] * 2
    data = collector.collect().data
    assert rows(data['is_reset'], 1) == rows(data['traj_flag'], 1)[:1] == [0]
    limit = vector.command(EnvCommand('get', 'limit'))[0]
    assert data['obs'][:, 0, 0].tolist() == [*range(2, limit), *(list(range(limit)) * 2)][:12]
    assert data['obs'][:, 1, 0].tolist() == [2, *(list(range(limit)) * 3)][:12]
    vector.close()


class OneEpisodeEnv(FailingEnv):
    """Can be reset only once."""

    def reset(self, **kwargs: Any) -> Any:
        if self._n_step:
            raise OSError('no second episode')
        return super().reset(**kwargs)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(('how', 'mode'), EACH_ONCE)
def test_evaluation_counts_episodes_whose_next_reset_fails(how: str, mode: str, file: str) -> None:
    fields: Any = dict(vectorization=how, autoreset=mode, on_error='restart', max_restarts=8)
    env = make_vector_env(EnvConfig(id=OneEpisodeEnv, kwargs={'file': file, 'n_step': -1}, **fields), 2)
    policy = make_policy(env.obs_space, env.action_space, enable_field=['eval'])
    assert Evaluator(env, policy.eval_mode, 8).evaluate(stream(0, 'test')).lengths == [5] * 8  # type: ignore[union-attr]
    env.close()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_step_and_reset_that_fail_at_once_break_only_the_episode_of_the_step(how: str, file: str, caplog: Any) -> None:
    fields: Any = dict(vectorization=how, on_error='restart', action_mask='off')
    env = make_vector_env(EnvConfig(id=OneEpisodeEnv, kwargs={'file': file, 'n_step': 5}, **fields), 2)
    env.reset(0)
    for _ in range(5):
        timestep = env.step(torch.tensor([0, 0]))
    env.close()
    assert timestep.is_reset is not None and timestep.begins is not None and timestep.final_obs is not None
    broken = int(timestep.is_reset.nonzero())  # the env that removed the file
    assert timestep.is_broken is not None and timestep.is_broken.nonzero().tolist() == [[broken]]
    assert timestep.reward[1 - broken] == 1 and timestep.reward[broken] == 0
    assert timestep.begins.all() and timestep.truncated.all() and timestep.obs.tolist() == [[0], [0]]
    assert timestep.final_index.tolist() == [1 - broken] and timestep.final_obs.tolist() == [[5]]  # type: ignore[union-attr]
    one, other = sorted((record.getMessage() for record in caplog.records), key=lambda said: 'reset after' in said)
    assert f'index {broken}, step 5: OSError: the simulator is gone (' in one
    assert f'index {1 - broken}, the reset after step 5: OSError: no second episode (' in other


@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_restart_that_fails_again_says_what_it_did(how: str, tmp_path: Path, caplog: Any) -> None:
    fields: Any = dict(vectorization=how, on_error='restart', action_mask='off')
    files = {call: str(tmp_path / call) for call in ('construction', 'reset', 'step')}
    env = make_vector_env(EnvConfig(id=AgainEnv, kwargs=files, **fields), 1)
    env.reset(0)
    for file in files.values():
        Path(file).touch()
    env.step(torch.tensor([0]))
    env.close()
    calls = 'step 1', 'its construction', 'its reset'
    for record, call in zip(caplog.records, calls, strict=True):
        assert f"env '{__name__}:AgainEnv', index 0, {call}: FileNotFoundError" in record.getMessage()


class AgainEnv(LimitEnv):
    """Each call fails once if its file exists, and removes the file."""

    def __init__(self, construction: str, reset: str, step: str) -> None:
        self._files = {'reset': Path(reset), 'step': Path(step)}
        _fail_once(Path(construction))
        super().__init__()

    def reset(self, **kwargs: Any) -> Any:
        _fail_once(self._files['reset'])
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        _fail_once(self._files['step'])
        return super().step(action)


def _fail_once(file: Path) -> None:
    if file.exists():
        file.unlink()
        file.unlink()


class HopelessEnv(LimitEnv):
    """Fails in every third step."""

    def step(self, action: Any) -> Any:
        if self._n_step == 2:
            raise OSError('no more')
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_more_than_max_restarts_end_the_run_with_the_last_cause(how: str) -> None:
    config = EnvConfig(id=HopelessEnv, vectorization=how, on_error='restart', max_restarts=2)  # type: ignore[arg-type]
    env = make_vector_env(config, 1)
    env.reset(0)
    with pytest.raises(EnvError) as raised:
        for _ in range(12):
            env.step(torch.tensor([0]))
    env.close()
    # restarted after steps 3 and 6
    assert str(raised.value).startswith(f"env '{__name__}:HopelessEnv', index 0, step 9: OSError: no more (")
    assert isinstance(raised.value.__cause__, OSError)
    assert str(raised.value).endswith(
        'envs were made anew 2 times before, wanted at most 2 times in a run; fix the env, or raise env.max_restarts.'
    )


class ShortEnv(LimitEnv):
    def step(self, action: Any) -> Any:
        return super().step(action)[:3]


@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_env_that_breaks_the_interface_is_not_recreated(how: str) -> None:
    env = make_vector_env(EnvConfig(id=ShortEnv, vectorization=how, on_error='restart'), 2)  # type: ignore[arg-type]
    env.reset(0)
    with pytest.raises(EnvError, match='index 0, step 1: step returned another number of values'):
        env.step(torch.tensor([0, 0]))
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    'fields',
    [dict(id='tests.envs:Limit-v0', vectorization='batched'), dict(id='torch', game='CartPole-v1')],
    ids=['batched', 'tensor'],
)
def test_envs_that_step_at_once_refuse_restarts(fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedEnvError, match="env.on_error is 'restart' but .* steps all its envs at once"):
        make_vector_env(EnvConfig(**fields, on_error='restart'), 2)


@pytest.mark.slow
def test_auto_takes_single_envs_where_they_may_be_recreated() -> None:
    env = make_vector_env(EnvConfig(id='tests.envs:LimitSameStep-v0', on_error='restart'), 2)
    env.reset(0)
    assert env.step(torch.tensor([0, 0])).begins.tolist() == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['same_step', 'next_step', 'disabled'])
def test_evaluation_counts_whole_episodes_only(mode: str, file: str) -> None:
    config = EnvConfig(id=FailingEnv, kwargs={'file': file}, autoreset=mode, on_error='restart')  # type: ignore[arg-type]
    env = make_vector_env(config, 2)
    policy = make_policy(env.obs_space, env.action_space, enable_field=['eval'])
    assert set(Evaluator(env, policy.eval_mode, 8).evaluate(stream(0, 'test')).lengths) == {5}  # type: ignore[union-attr]
    assert not Path(file).exists()


@pytest.mark.slow
def test_new_env_has_a_seed_of_its_own(file: str) -> None:
    seeds: list[int] = []

    class Env(FailingEnv):
        def reset(self, *, seed: Any = None, **kwargs: Any) -> Any:
            seeds.extend([] if seed is None else [seed])
            return super().reset(seed=seed, **kwargs)

    def play() -> list[int]:
        Path(file).touch()
        seeds.clear()
        config = EnvConfig(id=Env, kwargs={'file': file, 'n_step': 2}, on_error='restart', action_mask='off')
        env = make_vector_env(config, 2)
        env.reset(0)
        for _ in range(4):
            env.step(torch.tensor([0, 0]))
        return list(seeds)

    once = play()
    assert len(set(once)) == 3 and play() == once


@pytest.mark.slow
def test_warnings_are_one_each_at_first_then_one_in_a_hundred(caplog: Any) -> None:
    restarts = Restarts(1000)
    for i in range(250):
        restarts.note('env', OSError(str(i)))
    assert len(caplog.records) == 12 and restarts.count == 250


# --- whole runs


@pytest.mark.slow
def test_run_logs_its_restarts_and_continues(file: str, tmp_path: Path) -> None:
    env = dict(kwargs=dict(file=file), on_error='restart', vectorization='sync', collector_group_num=1)
    with SerialJob(resolve_config(job_config(tmp_path, FailingEnv, env=env))) as job:
        while not job.done:
            job.iteration()
        lines = [json.loads(line) for line in (job.run_dir / 'metrics.jsonl').read_text().splitlines()]
    assert job.env_step == 255  # 4 rollouts of 64 rows; the failed step does not count
    assert lines[-1]['env/restart'] == 1


@pytest.mark.slow
@pytest.mark.parametrize('policy', ['ppg', 'ppg_offpolicy', 'recurrent'])
def test_run_with_restarts_counts_its_steps(policy: str, file: str, tmp_path: Path) -> None:
    env = dict(kwargs=dict(file=file), on_error='restart', vectorization='sync')
    config = job_config(tmp_path, FailingEnv, env=env, max_env_step=300, policy=dict(type=policy))
    if policy.startswith('ppg'):
        del config['policy']['learn']['epoch_per_collect']
    if policy == 'ppg_offpolicy':
        config['policy']['collect'] = dict(n_sample=64)
        config['buffer'] = dict(policy=dict(n_sample=64), value=dict(n_sample=64))
    if policy == 'recurrent':
        config['policy'] |= dict(type='ppo', model=dict(recurrent=dict(cell='lstm', hidden_size=4)))
    result = serial_pipeline(config)
    assert result.env_step == 255 and result.last_return == 5.0  # 4 rollouts of 64 rows; the failed step does not count


@pytest.mark.long
def test_workers_killed_at_random_leave_an_exact_count_and_no_child(tmp_path: Path) -> None:
    env = dict(on_error='restart', vectorization='async', collector_group_num=2)
    chance, is_over = random.Random(0), threading.Event()
    with SerialJob(resolve_config(job_config(tmp_path, 'CartPole-v1', env=env, max_env_step=100_000))) as job:
        restarts = job.parts.restarts

        def kill() -> None:
            for _ in range(N_KILL):
                time.sleep(chance.uniform(0.02, 0.2))
                before = restarts.count
                process = chance.choice(chance.choice(job.parts.envs).env.processes)  # type: ignore[union-attr]
                os.kill(process.pid, signal.SIGKILL)
                while restarts.count == before and not is_over.wait(0.01):
                    pass
                n_iteration = job.collector.collect_iter  # once it has grown twice, the new worker has taken steps
                while job.collector.collect_iter < n_iteration + 2 and not is_over.wait(0.01):
                    pass

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                job.iteration()
            job.iteration()
        finally:
            is_over.set()
        assert restarts.count == N_KILL
        # a rollout has 4 envs x 16 steps = 64 rows; each kill breaks one row
        assert job.env_step == job.collector.collect_iter * 64 - N_KILL
    assert multiprocessing.active_children() == []


class WrongEnv(LimitEnv):
    """Returns a wrong value in its 3rd step."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        if self._n_step < 3:
            return obs, reward, *rest
        if self.what == 'nan observation':
            obs = obs * np.nan
        return obs, {'nan reward': np.nan, 'text reward': 'one'}.get(self.what, reward), *rest


@pytest.mark.parametrize('what', ['nan reward', 'nan observation', 'text reward'])
@pytest.mark.parametrize('how', ['sync', 'async'])
@pytest.mark.slow(ci=True)
def test_wrong_value_ends_a_run_that_restarts_and_the_message_says_so(what: str, how: str) -> None:
    scope = 'env.on_error=restart replaces an env that raises, hangs or dies, not one that returns a wrong value'
    for on_error in ('restart', 'raise'):
        cfg = EnvConfig(id=WrongEnv, kwargs={'what': what}, on_error=on_error, vectorization=how)
        with closing(make_vector_env(cfg, 1)) as vector, pytest.raises(EnvContractError) as raised:
            vector.reset(0)
            for _ in range(3):
                vector.step(torch.zeros(1, dtype=torch.int64))
        assert (scope in str(raised.value)) == (on_error == 'restart')
