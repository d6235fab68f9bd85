"""The Ray engine: its contract, with runners that have no envs; whole runs with runners on Ray."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cluster.engine_contract import OutsideContract, request, shown, until
from tests.cluster.ray_runs import same_state
from tests.cluster.runners import Numbers
from tests.processes import PATIENCE, left, wait_until
from zoo import serial_pipeline
from zoo.cluster.config import ClusterConfig
from zoo.cluster.messages import Lost, RunnerLostError
from zoo.core.errors import RunError
from zoo.env import EnvError

ray = pytest.importorskip('ray')

from zoo.cluster.ray_engine import RayEngine  # noqa: E402

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings('ignore::ResourceWarning'),  # Ray leaves some resources open until exit
    pytest.mark.usefixtures('session'),
]

SMALL_RUN = 'env.collector_env_num=4', 'policy.collect.n_step=32', 'policy.learn.batch_size=64', 'max_env_step=384'


@dataclass(frozen=True)
class Spec:
    group: int
    words: str = ''
    n: int = 100_000  # floats: 800 kB, large enough that Ray sends them through its object store
    payload: bytes = b'payload'

    def _replace(self, n: int) -> Spec:
        return replace(self, n=n)


def cluster(**options: Any) -> dict[str, Any]:
    """Returns a section `cluster` whose runners reserve no CPU in Ray."""
    return {
        **ClusterConfig().model_dump(),
        'runner_cpu': 0.0,  # leaves all CPUs for learners
        'runner_timeout': PATIENCE,
        'start_timeout': PATIENCE,
        **options,
    }


@pytest.fixture(scope='module')
def engine(session: str) -> Iterator[RayEngine]:
    """An engine with two runners and weights of version 0."""
    engine = RayEngine(cluster(), 'run', Numbers)
    engine.start([Spec(0), Spec(1)])  # type: ignore[list-item]
    engine.publish(np.full(9, 100, np.uint8), 0)
    yield engine
    pids = [pid for _, pid in engine.pids().values()]
    engine.close()
    assert not left(pids, 0.0)


def train(tmp_path: Path, name: str, *overrides: str, **more: Any) -> Any:
    always = ['policy.learn.compile=off', 'seed=3', f'logger.root={tmp_path}', 'policy.eval.n_episode=1']
    return serial_pipeline(name, overrides=[*SMALL_RUN, *always, *overrides], **more)


class LogsItsGroup:
    """Logs 1 in the runner of the first group, 3 in that of the second one."""

    def on_runner_rollout(self, runner: Any, columns: dict[str, Any]) -> None:
        number = 2 * runner.group + 1
        runner.log('sum', number, reduce='sum')
        runner.log('mean', number)
        runner.log('life', number, reduce='sum', lifetime=True)


@pytest.mark.soak
class TestRayEngine(OutsideContract):
    killed = 'its process {pid} on {host} ended unexpectedly, e.g. by signal 9 or for lack of memory'


def test_call_of_a_hanging_runner_ends_it(engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.call(0, 'next', 'sleep')
    monkeypatch.setitem(engine.cluster, 'runner_timeout', 2.0)
    engine.ask(request(0, 13))
    with pytest.raises(RunnerLostError, match='did not answer give within 2 s'):
        engine.call(0, 'give', 'threads')
    assert until(engine, 1) == [Lost(0, 'it did not answer give within 2 s')]


def test_orders_without_version_take_weights_that_came_while_they_waited(session: str, tmp_path: Path) -> None:
    engine = RayEngine(cluster(max_lag=4), 'free', Numbers, runners_per_process=2)
    engine.start([Spec(0), Spec(1)])  # type: ignore[list-item]
    try:
        assert len({pid for _, pid in engine.pids().values()}) == 1
        engine.publish(np.full(9, 100, np.uint8), 0)
        engine.call(0, 'next', f'until {tmp_path / "go"}')
        for i in (0, 1):
            engine.ask(request(0, i, None))
        engine.ask(request(1, 0, None))
        assert shown(until(engine, 1)[0]) == (1, 0, 0.0, 100)  # does not wait for runner 0, in the same process
        wait_until(lambda: (tmp_path / 'go.begun').exists())
        engine.publish(np.full(9, 107, np.uint8), 7)
        actor = engine.actors[0].handle
        ray.get(actor.publish.options(concurrency_group='weights').remote(-1, None), timeout=PATIENCE)  # 7 is there
        (tmp_path / 'go').touch()
        assert [shown(reply) for reply in until(engine, 2)] == [(0, 0, 0.0, 100), (0, 7, 7.001, 107)]
        os.kill(engine.pids()[0][1], signal.SIGKILL)
        engine.ask(request(0, 2, None))
        assert {lost.group for lost in until(engine, 2)} == {0, 1}
    finally:
        engine.close()


def test_runner_that_cannot_be_made_raises_what_it_raised(session: str) -> None:
    engine = RayEngine(cluster(), 'import', Numbers)
    with pytest.raises(ModuleNotFoundError, match='no_such_module'):
        engine.start([Spec(0, 'import')])  # type: ignore[list-item]


def test_missing_cores_are_named_after_the_deadline(session: str) -> None:
    engine = RayEngine(cluster(runner_cpu=8.0, start_timeout=0.5), 'cores', Numbers)
    words = 'runners did not start within cluster.start_timeout=0.5 s: 2 runners of 8 CPU each need 16, and the Ray cluster has 4'
    with pytest.raises(RunError, match=words):
        engine.start([Spec(0), Spec(1)])  # type: ignore[list-item]


@pytest.mark.parametrize(
    'lag', [(), ('cluster.max_lag=2', 'policy.learn.correction=decoupled')], ids=['lag 0', 'lag 2']
)
@pytest.mark.soak
def test_env_that_hangs_in_a_runner_is_named_within_step_timeout(
    lag: tuple[str, ...], session: str, tmp_path: Path
) -> None:
    """With max_lag above 1, runners collect in threads, since weights arrive during a rollout."""
    hangs = (
        'env.id=tests.cluster.test_process_engine_runs:faulty_env',
        f'env.kwargs={{at: 20, marker: {tmp_path}/hung}}',
    )
    runners = 'env.check=false', 'env.vectorization=sync', 'cluster.runner_num=2', 'cluster.engine=ray', session
    patience = 'env.step_timeout=2', f'cluster.runner_timeout={PATIENCE}', f'logger.root={tmp_path}'
    words = r"env '.*faulty_env.*', index \d .*, step \d+: no answer within 2 s, at .*test_process_engine_runs.py:\d+"
    with pytest.raises(EnvError, match=words):
        serial_pipeline('cartpole_ppo', overrides=[*SMALL_RUN, *hangs, *runners, *patience, *lag])
    assert time.time() - (tmp_path / 'hung').stat().st_mtime < 2 + 10


@pytest.mark.parametrize(
    ('name', 'of_both', 'other'),
    [
        ('acrobot_ppo', (), ('env.collector_group_num=2',)),
        ('pendulum_ppo', ('cluster.max_lag=1',), ('cluster.engine=inline', 'cluster.runner_num=2')),
    ],
    ids=['a serial run', 'lag 1, continuous actions, another engine'],
)
def test_two_runners_end_with_the_parameters_of(
    name: str, of_both: tuple[str, ...], other: tuple[str, ...], tmp_path: Path
) -> None:
    one, ran = (
        train(tmp_path, name, *of_both, *each) for each in (other, ('cluster.engine=ray', 'cluster.runner_num=2'))
    )
    assert ran.env_step == one.env_step > 300  # rows that only reset an env do not count
    assert same_state(ran.policy, one.policy)


def test_policies_of_several_agents_end_with_the_bits_of_runners_in_processes(session: str, tmp_path: Path) -> None:
    """Agents that die and are born, of two types of policies, on two runners."""
    agents = [
        'env.id=tests.agents.envs:Clockwork',
        'env.vectorization=sync',
        'policy.model.hidden_sizes=[8]',
        'agents.policies={p: {}, q: {type: a2c}}',
        'agents.mapping={a: p, "*": q}',
        'cluster.runner_num=2',
    ]
    on_ray, in_processes = [
        train(tmp_path / name, 'cartpole_ppo', *agents, f'cluster.engine={engine}', *more)
        for name, engine, more in (('ray', 'ray', [session, 'cluster.runner_cpu=0']), ('process', 'process', []))
    ]
    assert list(on_ray.policies) == ['p', 'q']
    for name, policy in on_ray.policies.items():
        other = in_processes.policies[name].state_dict()['model']
        assert all(torch.equal(x, other[key]) for key, x in policy.state_dict()['model'].items())


@pytest.mark.soak
def test_numbers_that_runners_log_are_reduced_together(session: str, tmp_path: Path) -> None:
    on_ray = 'cluster.engine=ray', 'cluster.runner_num=2', 'cluster.runner_cpu=0', session
    result = train(tmp_path, 'cartpole_ppo', *on_ray, 'logger.freq=1', callbacks=[LogsItsGroup()])
    lines = [json.loads(line) for line in (result.run_dir / 'metrics.jsonl').read_text().splitlines()]
    found = [(line['own/sum'], line['own/mean'], line['own/life']) for line in lines if 'own/sum' in line]
    assert found == [
        (4.0, 2.0, 4.0),
        (4.0, 2.0, 8.0),
        (4.0, 2.0, 12.0),
    ]  # runners log 1 and 3, in each of three rollouts
