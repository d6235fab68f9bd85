"""The remote collector: where runners' steps lie in the learner's block, the order of episodes, requests, errors; remote envs."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.cluster.faulty_engine import RUN, FaultyEngine
from zoo.cluster.messages import Reply, RunnerLostError, WeightLayout
from zoo.cluster.remote_collector import RemoteCollector, RemoteEnvs
from zoo.cluster.scheduler import RolloutScheduler
from zoo.core.data import final_rows
from zoo.core.errors import UserError
from zoo.core.spaces import Box, Discrete
from zoo.env.errors import EnvContractError, EnvError
from zoo.env.interface import EnvCommand
from zoo.env.restarts import Restarts
from zoo.worker.collector import RolloutExtras

T, B = 2, 2


class RowsEngine(FaultyEngine):
    """Engine whose runner g sends steps of value 10 * g + t, and whose second env per runner ends an episode at t = 0."""

    n_restart = 0
    info_shape: tuple[int, ...] = ()

    def collect(self, group: int) -> Reply:
        rows = (np.arange(T)[:, None] + np.zeros(B) + 10 * group).astype(np.float32)
        obs = np.concatenate((rows, rows[-1:] + 1))[..., None]
        blocks = {'obs': obs, 'steps.reward': rows, 'steps.terminated': rows > 10, 'steps.truncated': rows < 0}
        blocks |= {'output.action': rows.astype(np.int64), 'state.h': np.full((B, 3), group, np.float32)}
        if group:
            blocks['info.speed'] = np.ones((T, B, *self.info_shape), np.float32)
        elif self.info_shape:
            blocks['info.speed'] = np.ones((T, B), np.float32)
        finals = [(0, np.array([1]), np.full((1, 1), group + 0.5, np.float32))]
        episodes = [(0, {'a': float(group)}), (1, {'a': group + 0.1})]
        reply = super().collect(group)._replace(blocks=blocks, finals=finals, episodes=episodes)
        return reply._replace(time={'env': 1.0, 'act': 2.0}, n_restart=self.n_restart)

    def pids(self) -> dict[int, tuple[str, int]]:
        return {0: ('a', 1), 1: ('b', 2)}


def made(engine: RowsEngine, max_lag: int = 0, limit: int = 10, reader: torch.device | None = None) -> RemoteCollector:
    scheduler = RolloutScheduler(engine, RUN, 2, 0, max_lag)  # type: ignore[arg-type]
    layout, bound = WeightLayout({'w': torch.zeros(4)}), np.full(1, 99.0, np.float32)
    space = Box(-bound, bound)
    envs: Any = [SimpleNamespace(n_env=B, name='x', obs_space=space)] * 2
    mode: Any = SimpleNamespace(n_step=T, reset=lambda: None)
    rows = RemoteCollector(envs, mode, engine, scheduler, layout, max_lag, Restarts(limit), ('speed',), reader)  # type: ignore
    rows.reset(np.random.SeedSequence([1, 2]))
    return rows


def steps_of(rows: RemoteCollector, collect_iter: int, env_step: int) -> RolloutExtras:
    rows.collect_iter, rows.env_step = collect_iter, env_step
    return rows.fill_block()


def test_rows_stand_where_the_envs_of_their_runner_are() -> None:
    rows = made(RowsEngine(2))
    steps = steps_of(rows, 0, 0)
    assert rows.block.steps.reward.tolist() == [[0, 0, 10, 10], [1, 1, 11, 11]]
    assert rows.block.obs[..., 0].tolist() == [[0, 0, 10, 10], [1, 1, 11, 11], [2, 2, 12, 12]]
    assert rows.block.steps.terminated.tolist() == [[False] * 4, [False, False, True, True]]
    assert steps.output['action'].dtype == torch.int64 and steps.output['action'][1].tolist() == [1, 1, 11, 11]
    assert steps.state['h'][:, 0].tolist() == [0, 0, 1, 1]
    obs, index = final_rows(steps.finals, rows.block.obs)
    assert index.tolist() == [[0, 1], [0, 3]] and obs[:, 0].tolist() == [0.5, 1.5]


def test_episodes_are_told_in_the_order_of_one_process_and_missing_infos_are_nan() -> None:
    steps = steps_of(made(RowsEngine(2)), 0, 0)
    assert [numbers['a'] for _, numbers in steps.episodes] == [0.0, 1.0, 0.1, 1.1]
    assert steps.infos['speed'].isnan().tolist() == [[True, True, False, False]] * 2


def test_an_info_of_another_shape_in_another_runner_is_refused() -> None:
    engine = RowsEngine(2)
    engine.info_shape = (3,)
    with pytest.raises(EnvContractError, match='speed'):
        steps_of(made(engine), 0, 0)


def test_the_block_is_allocated_once() -> None:
    rows = made(RowsEngine(2))
    first = steps_of(rows, 0, 0)
    block, action = rows.block, first.output['action']
    assert steps_of(rows, 1, 8).output['action'] is action and rows.block is block


def test_rows_are_written_once_a_gpu_has_read_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block is pinned memory, which a GPU reads asynchronously. Here it is plain memory, so that no GPU is needed."""
    seen: list[tuple[str, list[float]]] = []
    monkeypatch.setattr(torch, 'empty', partial(_unpinned, torch.empty))
    monkeypatch.setattr(
        torch.cuda, 'synchronize', lambda device: seen.append((device, rows.block.steps.reward[0].tolist()))
    )
    engine = RowsEngine(2)
    rows = made(engine, reader=torch.device('cuda'))
    for i in range(2):
        steps_of(rows, i, 8 * i)
        rows.block.steps.reward.fill_(-1)  # must still be there at the synchronisation
    assert seen == [(torch.device('cuda'), [-1.0] * 4)]


def _unpinned(empty: Any, *shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
    return empty(*shape, **options)


@pytest.mark.parametrize(('max_lag', 'versions'), [(0, [0, 1, 2]), (1, [0, 0, 1, 2]), (2, [None] * 5)])
def test_what_runners_are_asked_and_with_which_weights(max_lag: int, versions: list[int | None]) -> None:
    engine = RowsEngine(2)
    rows = made(engine, max_lag)
    for i in range(3):
        steps_of(rows, i, 8 * i)
    asked = [request for request in engine.asked if request.group == 0]
    assert [request.collect_iter for request in asked] == list(range(len(versions)))
    assert [request.version for request in asked] == versions
    assert [request.reset_seed for request in asked] == [(1, 2), *[None] * (len(asked) - 1)]
    assert engine.weights == [0, 1, 2]  # each version is published once


def test_metrics_are_of_the_rollouts_since_the_last_call() -> None:
    rows = made(RowsEngine(2), 1)
    steps_of(rows, 0, 0), steps_of(rows, 1, 8)
    found = rows.metrics()
    assert found['cluster/runner'] == 2 and found['cluster/restart'] == 0 and found['cluster/discarded_step'] == 0
    assert found['time/runner_env_s'] == 1.0 and found['time/runner_act_s'] == 2.0
    assert found['collect/lag_mean'] == 0.5 and found['collect/lag_max'] == 1
    assert {'cluster/put_s', 'cluster/wait_s', 'cluster/join_s', 'cluster/mb_per_s'} <= found.keys()
    assert 'collect/lag_max' not in rows.metrics()


def test_envs_recreated_in_runners_count_for_the_run() -> None:
    engine = RowsEngine(2)
    engine.n_restart = 3  # of each of the 2 runners so far
    rows = made(engine, limit=6)
    steps_of(rows, 0, 0), steps_of(rows, 1, 8)
    engine.n_restart = 4
    with pytest.raises(EnvError, match='envs were made anew 7 times, wanted at most 6 times'):
        steps_of(rows, 2, 16)


# --- remote envs: commands reach a runner, and values that were set are kept for its replacement


class CallEngine(FaultyEngine):
    """Answers a call with the call itself; in the first `n_loss` calls the runner is lost instead."""

    def __init__(self, n_loss: int = 0) -> None:
        super().__init__(1)
        self.n_loss = n_loss

    def call(self, group: int, method: str, *args: Any) -> list[Any]:
        if self.n_loss:
            self.n_loss -= 1
            self.lose(group, 'a test')
            raise RunnerLostError('a test')
        if args and isinstance(args[0], EnvCommand) and args[0].name == 'typo':
            raise UserError('there is no typo')
        return [(group, method, *args)]


def envs_of(engine: CallEngine) -> tuple[RemoteEnvs, RolloutScheduler]:
    scheduler = RolloutScheduler(engine, RUN, 1, 0)  # type: ignore[arg-type]
    return RemoteEnvs(engine, scheduler, 0, 3, 'x', (Discrete(2), Discrete(3))), scheduler  # type: ignore[arg-type]


def test_what_was_set_is_kept_and_a_mistake_is_not() -> None:
    envs, scheduler = envs_of(CallEngine())
    command = EnvCommand('set', 'gravity', (5.0,))
    assert envs.command(command) == [(0, 'command', command)]
    envs.command(EnvCommand('get', 'mass'))
    with pytest.raises(UserError, match='no typo'):
        envs.command(EnvCommand('set', 'typo', (1,)))
    envs.set_reset_options({'low': 1})
    assert scheduler.commands == {'gravity': command} and scheduler.reset_options == {'low': 1}
    assert envs.action_space == Discrete(3) and envs.n_env == 3


def test_a_value_that_is_set_again_drops_what_was_set_inside_the_one_before() -> None:
    """A new env may have no object yet in which `cfg.x` can be set before `cfg`."""
    envs, scheduler = envs_of(CallEngine())
    for name, value in (('cfg', 'a'), ('cfg.x', 1), ('cfgs', 2), ('cfg', 'b'), ('cfg.y', 3)):
        envs.command(EnvCommand('set', name, (value,)))
    kept = [(each.name, *each.args) for each in scheduler.commands.values()]
    assert kept == [('cfgs', 2), ('cfg', 'b'), ('cfg.y', 3)]


def test_a_command_is_given_again_to_the_runner_recreated() -> None:
    envs, scheduler = envs_of(CallEngine(n_loss=2))
    command = EnvCommand('get', 'gravity')
    assert envs.command(command) == [(0, 'command', command)]
    assert scheduler.n_restart == 2


def test_a_value_that_cannot_be_sent_is_refused() -> None:
    envs, _ = envs_of(CallEngine())
    with pytest.raises(UserError, match="set of 'gravity' has a value that cannot be sent"):
        envs.command(EnvCommand('set', 'gravity', (lambda: 1,)))
