"""Ray: what the engine promises, with runners that have no envs, and whole runs beside the serial one."""

from __future__ import annotations

import os
import signal
import socket
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.ray_runs import PATIENCE, descendants, driver, left, same_state, wait_for
from tests.cluster.runners import Numbers
from zoo import serial_pipeline
from zoo.cluster.config import ClusterConfig
from zoo.cluster.engine import RunnerLostError
from zoo.cluster.parcel import Lost, Order, Parcel
from zoo.core.errors import RunError, UserError

ray = pytest.importorskip('ray')

from zoo.cluster import ray_cluster  # noqa: E402
from zoo.cluster.ray_engine import RayEngine  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group('ray'),
    pytest.mark.filterwarnings(
        'ignore::ResourceWarning'
    ),  # files and sockets that Ray leaves to the end of the process
]

N_CPU = 4
TWO = ['cluster.engine=ray', 'cluster.runner_num=2']
SMALL = {
    'acrobot_ppo': [
        'env.collector_env_num=4',
        'policy.collect.n_step=32',
        'policy.learn.batch_size=64',
        'max_env_step=384',
    ],
    'pendulum_ppo': [
        'env.collector_env_num=4',
        'policy.collect.n_step=32',
        'policy.learn.batch_size=64',
        'max_env_step=384',
    ],
    'acrobot_ppg': [
        'env.collector_env_num=4',
        'policy.collect.n_step=32',
        'max_env_step=384',
        'policy.learn.aux_freq=2',
        'policy.learn.aux_batch_size=64',
    ],
    'cartpole_ppg_offpolicy': [
        'env.collector_env_num=4',
        'policy.collect.n_step=32',
        'max_env_step=384',
        'buffer.policy.n_sample=128',
        'buffer.value.n_sample=128',
        'policy.learn.batch_size=64',
        'policy.learn.aux_freq=10',
        'policy.learn.aux_batch_size=128',
    ],
}


@dataclass(frozen=True)
class Spec:
    """What a runner of `Numbers` is made of."""

    group: int
    words: str = ''
    n: int = 100_000  # 800 kB, which Ray sends through its store
    cargo: bytes = b'cargo'

    def _replace(self, n: int) -> Spec:
        return replace(self, n=n)


def cluster(**options: Any) -> dict[str, Any]:
    """The section `cluster`, with small runners."""
    return {**ClusterConfig().model_dump(), 'runner_cpu': 0.5, 'runner_timeout': 2.0, 'start_timeout': 60.0, **options}


@pytest.fixture(scope='module', autouse=True)
def session() -> Iterator[None]:
    """One local cluster for all tests: starting one takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        assert ray_cluster.join(None, {'CPU': N_CPU, 'GPU': 0}, None)
        yield
        ray_cluster.leave()


@pytest.fixture(scope='module')
def engine(session: None) -> Iterator[RayEngine]:
    """Two runners, with weights of version 0."""
    engine = RayEngine(cluster(), 'run', Numbers)
    engine.start([Spec(0), Spec(1)])  # type: ignore[list-item]
    engine.publish(np.full(9, 100, np.uint8), 0)
    yield engine
    pids = [pid for _, pid in engine.pids().values()]
    engine.close()
    assert not left(pids, 0.0)


def order(group: int, collect_iter: int, version: int | None = 0) -> Order:
    return Order('run', group, collect_iter, version, 0)


def until(engine: RayEngine, n: int) -> list[Parcel | Lost]:
    """The next n things."""
    found: list[Parcel | Lost] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < n and time.monotonic() < deadline:
        found += engine.wait(1.0)
    assert len(found) == n, found
    return found


def shown(parcel: Any) -> tuple[int, int, float, int]:
    """Group, version, last number of the block, byte of the weights."""
    return parcel.group, parcel.version, parcel.blocks['obs'][-1], int(parcel.blocks['steps.reward'][1, 2])


def train(tmp_path: Path, name: str, *overrides: str) -> Any:
    """A short run."""
    always = ['policy.learn.compile=off', 'seed=3', f'logger.root={tmp_path}', 'policy.eval.n_episode=1']
    return serial_pipeline(name, overrides=[*SMALL.get(name, []), *always, *overrides])


def test_orders_are_done_with_the_weights_of_their_version(engine: RayEngine) -> None:
    engine.ask(order(0, 0, 0))
    engine.publish(np.full(9, 101, np.uint8), 1)
    engine.ask(order(0, 1, 1))
    engine.ask(order(0, 2, 0))
    engine.ask(order(1, 3, None))
    parcels = sorted(map(shown, until(engine, 4)), key=lambda parcel: parcel[2] % 1)
    # version + collect_iter / 1000, and the byte that was published with the version
    assert parcels == [(0, 0, 0.0, 100), (0, 1, 1.001, 101), (0, 0, 0.002, 100), (1, 1, 1.003, 101)]
    assert engine.wait(0.0) == []


def test_call_comes_after_orders_and_raises_the_runners_own_error(engine: RayEngine) -> None:
    engine.call(1, 'next', 'nap')
    engine.ask(order(1, 4))
    start = time.monotonic()
    assert engine.call(1, 'give', 'threads') == 1
    assert time.monotonic() - start > 0.4  # the order slept for 0.5 s
    assert [shown(parcel)[2] for parcel in until(engine, 1)] == [0.004]
    with pytest.raises(KeyError, match='nothing') as caught:
        engine.call(1, 'give', 'nothing')
    assert socket.gethostname() in ''.join(caught.value.__notes__)


def test_error_in_a_rollout_is_raised_by_wait_as_it_is(engine: RayEngine) -> None:
    engine.call(0, 'next', 'raise')
    engine.ask(order(0, 5))
    with pytest.raises(OSError, match='the moon is full, in group 0') as caught:
        until(engine, 1)
    assert caught.value.errno == 28
    engine.call(0, 'next', '')


def test_killed_runner_is_lost_and_made_anew_while_others_collect(engine: RayEngine) -> None:
    engine.call(1, 'next', 'sleep')
    engine.ask(order(1, 6))
    engine.ask(order(1, 7))
    pid = engine.pids()[1][1]
    os.kill(pid, signal.SIGKILL)
    (lost,) = until(engine, 1)  # one loss, though two orders were outstanding
    words = f'its process {pid} on {socket.gethostname()} ended unexpectedly, e.g. by signal 9 or for lack of memory'
    assert lost == Lost(1, words)
    engine.ask(order(1, 8))  # of the new one, which is still starting
    engine.ask(order(0, 9))
    assert [shown(parcel) for parcel in until(engine, 2)] == [(0, 0, 0.009, 100), (1, 0, 0.008, 100)]
    assert engine.pids()[1][1] != pid


def test_idle_runner_that_ended_is_noticed_by_the_next_order(engine: RayEngine) -> None:
    pid = engine.pids()[0][1]
    os.kill(pid, signal.SIGKILL)
    assert not left([pid])
    engine.ask(order(0, 10))
    (lost,) = until(engine, 1)  # no rollout of envs that nobody has reset
    assert isinstance(lost, Lost) and lost.group == 0


@pytest.mark.parametrize('how', ['gil', 'stopped'])
def test_kill_ends_a_runner_that_hangs_and_forgets_its_orders(engine: RayEngine, how: str) -> None:
    engine.call(1, 'next', 'gil' if how == 'gil' else '')
    pid = engine.pids()[1][1]
    if how == 'stopped':
        os.kill(pid, signal.SIGSTOP)
    engine.ask(order(1, 11))
    assert engine.wait(0.3) == []
    engine.kill(1, 'it took too long')
    engine.ask(order(1, 12))
    lost, parcel = until(engine, 2)
    assert lost == Lost(1, 'it took too long') and shown(parcel) == (1, 0, 0.012, 100)
    assert not left([pid])


def test_call_of_a_hanging_runner_ends_it(engine: RayEngine) -> None:
    engine.call(0, 'next', 'sleep')
    engine.ask(order(0, 13))
    with pytest.raises(RunnerLostError, match='did not answer give within 2 s'):
        engine.call(0, 'give', 'threads')
    assert until(engine, 1) == [Lost(0, 'it did not answer give within 2 s')]


def test_orders_without_version_take_weights_that_came_while_they_waited(session: None) -> None:
    engine = RayEngine(cluster(max_lag=4), 'free', Numbers, runners_per_process=2)
    engine.start([Spec(0), Spec(1)])  # type: ignore[list-item]
    try:
        assert len({pid for _, pid in engine.pids().values()}) == 1
        engine.publish(np.full(9, 100, np.uint8), 0)
        engine.call(0, 'next', 'nap')
        for i in (0, 1):
            engine.ask(order(0, i, None))
        engine.ask(order(1, 0, None))
        assert shown(until(engine, 1)[0]) == (1, 0, 0.0, 100)  # not behind its sleeping neighbour
        engine.publish(np.full(9, 107, np.uint8), 7)
        assert [shown(parcel) for parcel in until(engine, 2)] == [(0, 0, 0.0, 100), (0, 7, 7.001, 107)]
        os.kill(engine.pids()[0][1], signal.SIGKILL)
        engine.ask(order(0, 2, None))
        assert {lost.group for lost in until(engine, 2)} == {0, 1}
    finally:
        engine.close()


def test_runner_that_cannot_be_made_raises_what_it_raised(session: None) -> None:
    engine = RayEngine(cluster(), 'import', Numbers)
    with pytest.raises(ModuleNotFoundError, match='no_such_module'):
        engine.start([Spec(0), Spec(1, 'import')])  # type: ignore[list-item]


def test_missing_cores_are_named_after_the_deadline(session: None) -> None:
    engine = RayEngine(cluster(runner_cpu=2.0, start_timeout=3.0), 'cores', Numbers)
    words = r'runners did not start within cluster.start_timeout=3 s: 8 runners of 2 CPU each need 16, and the Ray cluster has 4'
    with pytest.raises(RunError, match=words):
        engine.start([Spec(i) for i in range(8)])  # type: ignore[misc]


def test_handlers_of_signals_stay_those_of_the_caller(session: None) -> None:
    """The session has been started: Ray's own handler of SIGTERM would end the process unsaved."""
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


@pytest.mark.parametrize(
    ('address', 'words'),
    [
        ('127.0.0.1:1', "'127.0.0.1:1' cannot be joined: ConnectionRefusedError"),
        ('banana', "is 'banana' but must be host:port"),
        ('ray://head:10001', 'but must be host:port'),
    ],
)
def test_address_without_a_cluster_is_one_sentence(address: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, 'is_initialized', lambda: False)
    with pytest.raises(UserError, match=words):
        ray_cluster.join(address, {'CPU': 1}, None)


@pytest.mark.parametrize('name', SMALL)
def test_two_runners_end_with_the_parameters_of_a_serial_run(name: str, tmp_path: Path) -> None:
    serial = train(tmp_path, name, 'env.collector_group_num=2')
    ran = train(tmp_path, name, *TWO)
    assert ran.env_step == serial.env_step > 300  # rows that only reset an env do not count
    assert same_state(ran.policy, serial.policy)


def test_lag_1_is_reproducible(tmp_path: Path) -> None:
    first, second = (train(tmp_path, 'pendulum_ppo', *TWO, 'cluster.max_lag=1') for _ in range(2))
    assert same_state(first.policy, second.policy)
    assert not same_state(first.policy, train(tmp_path, 'pendulum_ppo', 'env.collector_group_num=2').policy)


def test_env_error_ends_the_run_with_its_own_message(tmp_path: Path) -> None:
    env = {'id': 'tests.steer_envs:SteerEnv', 'kwargs': {'lengths': (5,), 'fail_at': 3}}
    with pytest.raises(RuntimeError, match='it fell over') as caught:
        train(
            tmp_path, 'cartpole_ppo', *TWO, f'env.id={env["id"]}', 'env.kwargs={fail_at: 3}', 'env.collector_env_num=4'
        )
    assert socket.gethostname() in ''.join(caught.value.__notes__)


def test_signals_to_a_run_save_it_once_and_leave_no_process(tmp_path: Path) -> None:
    """SIGINT and SIGTERM go to the process group, as a terminal and a scheduler send them; SIGKILL to the run alone."""
    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
    joins = (
        f'cluster.address={ray.get_runtime_context().gcs_address}'  # one of the three joins the cluster of these tests
    )
    folders = [tmp_path / number.name for number in numbers]
    one = 'cluster.engine=ray', 'cluster.runner_num=1'
    extra = (), (joins, 'cluster.runner_cpu=0.5'), ()
    drivers = [driver(folder, *one, *words) for folder, words in zip(folders, extra, strict=True)]
    try:
        children = []
        for folder, process in zip(folders, drivers, strict=True):
            wait_for(folder, process, '**/metrics.jsonl', 'env_step')
            children.append(descendants(process.pid))
        assert len(children[0]) >= 5  # two services of Ray, two agents and a runner, at least
        for number, process in zip(numbers, drivers, strict=True):
            process.kill() if number == signal.SIGKILL else os.killpg(process.pid, number)
        codes = [process.wait(PATIENCE) for process in drivers]
        assert codes == [128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGKILL]
        still = left([pid for pids in children for pid in pids])
        assert not still, [Path(f'/proc/{pid}/cmdline').read_bytes()[:40] for pid in still]
    finally:
        for process in drivers:
            process.kill()
    for folder in folders[:2]:
        text = (folder / 'log').read_text()
        assert text.count('finishing the update, then saving') == 1 and text.count('stopped by signal') == 1, text
        assert list(folder.glob('**/checkpoints/*.safetensors'))
