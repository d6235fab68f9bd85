"""The rollout scheduler: each rollout is used once and none is too old, even if replies are late, repeated, foreign or lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import zoo.cluster.scheduler as orders_module
from tests.cluster.faulty_engine import RUN, B, FaultyEngine, T
from zoo.cluster.messages import Reply
from zoo.cluster.scheduler import RolloutScheduler, entropy_of
from zoo.core.errors import RunError
from zoo.core.seeding import stream
from zoo.env.interface import EnvCommand


def play(engine: FaultyEngine, scheduler: RolloutScheduler, n_runner: int, max_lag: int, n_rollout: int) -> list[Any]:
    """Requests rollouts as `RemoteCollector` does; returns (group, collect_iter, lag, is_fresh, token, length) of each used."""
    used: list[Any] = []
    asked_to = -1

    def ask(i: int, version: int) -> None:
        nonlocal asked_to
        engine.publish(None, version)
        scheduler.ask(i, version if max_lag <= 1 else None, i * 100, (7,) if i == 0 else None)
        asked_to = i

    for i in range(n_rollout):

        def use(reply: Reply, is_fresh: bool, i: int = i) -> None:
            trace = reply.episodes[0][1]
            used.append((reply.group, i, i - reply.version, is_fresh, trace['token'], trace['length']))

        if max_lag > 1:
            for j in range(asked_to + 1, min(i + max_lag + 1, n_rollout)):
                ask(j, i)
        elif asked_to < i:
            ask(i, i)
        if max_lag > 1:
            engine.publish(None, i)
        scheduler.wait(i, use)
        if max_lag == 1 and i < n_rollout - 1:
            ask(i + 1, i)
    return used


@pytest.mark.slow
@pytest.mark.parametrize('max_lag', [0, 1, 3])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_every_rollout_is_used_once_and_none_is_too_old(max_lag: int, data: st.DataObject) -> None:
    def choose(n: int) -> int:
        return data.draw(st.integers(0, n - 1)) if n > 1 else 0

    n_runner, n_rollout = data.draw(st.integers(1, 3)), 6
    engine = FaultyEngine(n_runner, choose, n_fault=data.draw(st.integers(0, 8)))
    scheduler = RolloutScheduler(engine, RUN, n_runner, 0, max_lag, timeout=10.0, limit=100)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders_module, 'monotonic', lambda: engine.now)
        patch.setattr(orders_module, 'N_ROUND', 100)
        used = play(engine, scheduler, n_runner, max_lag, n_rollout)
    assert sorted(key[:2] for key in used) == [(g, i) for g in range(n_runner) for i in range(n_rollout)]
    assert all(0 <= lag <= max_lag for _, _, lag, *_ in used)
    assert scheduler.is_idle and scheduler.n_discarded == engine.n_arrived - T * B * len(used)
    assert scheduler.n_restart <= engine.n_lost  # a loss at the end is not yet known
    for group in range(n_runner):
        own = sorted((i, is_fresh, token, length) for g, i, _, is_fresh, token, length in used if g == group)
        assert all(token >= 0 for _, _, token, _ in own)  # -1: envs that were never reset
        for (_, _, token, length), (_, is_fresh, next_token, next_length) in zip(own, own[1:], strict=False):
            goes_on = (next_token, next_length) == (token, length + 1)
            assert is_fresh != goes_on  # an episode continues in the next rollout, or is known to be lost


Make = Callable[..., tuple[FaultyEngine, RolloutScheduler]]


@pytest.fixture(name='make')
def _make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Function of the number of runners that makes an engine without faults, and a scheduler that uses the engine's clock."""

    def make(n_runner: int, **options: Any) -> tuple[FaultyEngine, RolloutScheduler]:
        engine = FaultyEngine(n_runner)
        monkeypatch.setattr(orders_module, 'monotonic', lambda: engine.now)
        engine.publish(None, 0)
        return engine, RolloutScheduler(engine, RUN, n_runner, **{'seed': 0, **options})  # type: ignore[arg-type]

    return make


def ignore(reply: Reply, is_fresh: bool) -> None:
    """Callback that uses nothing of a reply."""


def test_a_lost_runner_is_asked_again_with_a_seed_of_its_own_and_what_was_set(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    engine, scheduler = make(2, seed=5)
    scheduler.commands['gravity'], scheduler.reset_options = EnvCommand('set', 'gravity', (9.0,)), {'low': 0.1}
    scheduler.ask(0, 0, 640, (1, 2))
    engine.lose(1, 'its process was ended by signal 9')
    with caplog.at_level(logging.WARNING):
        scheduler.wait(0, ignore)
    again = engine.asked[-1]
    assert again.group == 1 and again.collect_iter == 0 and again.attempt == 1
    assert again.reset_seed == entropy_of(stream(5, 'collect', 640, 'again', 1))
    assert again.commands == (EnvCommand('set', 'gravity', (9.0,)),) and again.reset_options == {'low': 0.1}
    assert all(
        request.reset_options is None and not request.commands for request in engine.asked[:-1]
    )  # the other envs have them already
    assert 'runner 1 is lost (its process was ended by signal 9)' in caplog.text
    assert 'the run is not that of its seed' in caplog.text and scheduler.n_restart == 1


@pytest.mark.parametrize(
    ('losses', 'limit', 'words'),
    [
        ([0, 0], 1, '2 runners were lost within an hour, .* signal 11, and cluster.restart_limit is 1'),
        ([0, 1] * 3, 100, 'all 2 runners were lost 3 times .* signal 11'),
    ],
)
def test_losses_beyond_a_limit_end_the_run_with_the_last_cause(
    losses: list[int], limit: int, words: str, make: Make
) -> None:
    engine, scheduler = make(2, limit=limit)
    scheduler.ask(0, 0, 0, (1,))
    for i, group in enumerate(losses):
        engine.lose(group, 'x' if i < len(losses) - 1 else 'its process was ended by signal 11')
    with pytest.raises(RunError, match=words):
        scheduler.wait(0, ignore)


def test_a_runner_that_hangs_is_ended_after_the_timeout(make: Make) -> None:
    engine, scheduler = make(2, timeout=30.0)
    engine.is_hung[1] = True
    scheduler.ask(0, 0, 0, (1,))
    fresh: dict[int, bool] = {}
    scheduler.wait(0, lambda reply, is_fresh: fresh.__setitem__(reply.group, is_fresh))
    assert engine.now == 30.0 and engine.n_lost == 1 and fresh == {0: False, 1: True}


def test_a_runner_that_is_recreated_has_the_seconds_of_its_start_besides(make: Make) -> None:
    engine, scheduler = make(2, timeout=30.0, start_s=120.0)
    for i, now in enumerate((150.0, 180.0)):  # before and after the first reply of the new one
        scheduler.ask(i, i, 0, (1,))
        engine.publish(None, i)
        if i == 0:
            engine.lose(1, 'x'), scheduler.settle()
        engine.is_hung[1] = True
        scheduler.wait(i, ignore)
        assert engine.now == now


def test_each_runner_that_is_recreated_has_another_seed(make: Make) -> None:
    engine, scheduler = make(2, seed=5)
    scheduler.ask(0, 0, 640, (1, 2))
    engine.lose(0, 'x'), engine.lose(1, 'x'), engine.lose(1, 'x')
    scheduler.wait(0, ignore)
    seeds = [request.reset_seed for request in engine.asked[2:]]
    assert seeds == [entropy_of(stream(5, 'collect', 640, 'again', n)) for n in (1, 2, 3)]


@pytest.mark.parametrize('group', [0, 7])  # 7: the other run had more runners than this one
def test_a_rollout_of_another_run_is_not_used(make: Make, group: int) -> None:
    engine, scheduler = make(1)
    scheduler.ask(0, 0, 0, (1,))
    engine.arrive(Reply('another', group, 0, 0, {'steps.reward': np.zeros((T, B))}, [], [], {}))
    used: list[str] = []
    scheduler.wait(0, lambda reply, is_fresh: used.append(reply.run_id))
    assert used == [RUN] and scheduler.n_discarded == T * B


def test_losses_are_forgotten_after_an_hour(make: Make) -> None:
    engine, scheduler = make(2, limit=2)
    for engine.now in (0.0, 1800.0, 3600.0, 5400.0):  # never three losses within one hour
        engine.lose(0, 'x'), scheduler.settle()
    engine.now = 5401.0
    engine.lose(0, 'x')
    with pytest.raises(RunError, match='3 runners were lost within an hour'):
        scheduler.settle()


def test_a_rollout_of_one_runner_forgives_the_losses_of_all(make: Make) -> None:
    engine, scheduler = make(2, limit=100)
    for i in range(4):
        scheduler.ask(i, i, 0, (1,))
        engine.publish(None, i)
        for group in (0, 1):  # twice in a row; a third time without a rollout would end the run
            engine.lose(group, 'x'), engine.lose(group, 'x')
        scheduler.wait(i, ignore)
    assert scheduler.n_restart == 16


def test_time_counts_from_the_last_rollout_of_a_runner(make: Make) -> None:
    engine, scheduler = make(1, max_lag=2, timeout=30.0)
    for i in range(3):
        scheduler.ask(i, None, 0, (1,) if i == 0 else None)
    for i in (0, 1):  # each takes 20 s of 30 s
        engine.now += 20.0
        scheduler.wait(i, ignore)
    engine.held.clear()  # the third never arrives
    scheduler.wait(2, ignore)
    assert (engine.now, engine.n_lost) == (2 * 20.0 + 30.0, 1)


def test_a_rollout_that_comes_early_is_kept_when_its_memory_is_used_again(make: Make) -> None:
    engine, scheduler = make(1, max_lag=1)
    memory = np.zeros((T, B), np.float32)  # the engine's, used for every reply
    for i in range(2):
        scheduler.ask(i, 0, 0, (1,) if i == 0 else None)
    engine.queues[0].clear()
    used: list[float] = []

    def arrive(i: int) -> None:
        memory[:] = i + 1
        engine.arrive(Reply(RUN, 0, i, 0, {'steps.reward': memory}, [], [], {}))
        scheduler.settle()

    arrive(0), arrive(1)  # before anyone waits for them
    memory[:] = 9
    for i in range(2):
        scheduler.wait(i, lambda reply, is_fresh: used.append(reply.blocks['steps.reward'][0, 0]))
    assert used == [1.0, 2.0]
