"""The Ray engine: its contract, with runners that have no envs; whole runs with runners and with learners on Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.ray_runs import REPO, driver, names, processes_of, same_state, wait_for
from tests.cluster.runners import Numbers
from tests.cluster.test_engine import OutsideContract, request, shown, until
from tests.cluster.torchrun import TORCHRUN
from tests.policy_envs import rows
from tests.processes import PATIENCE, descendants, left, wait_until, words_of
from zoo import load_policy, serial_pipeline
from zoo.cluster.config import ClusterConfig
from zoo.cluster.messages import Lost, RunnerLostError
from zoo.config.section import ConfigError
from zoo.core.errors import RunError, UserError
from zoo.env import EnvError
from zoo.run.checkpoint.file import steps_of

ray = pytest.importorskip('ray')

from zoo.cluster import ray_cluster  # noqa: E402
from zoo.cluster.ray_engine import RayEngine  # noqa: E402

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings('ignore::ResourceWarning'),  # Ray leaves some resources open until exit
]

N_CPU = 4  # two ranks with a runner each
SMALL_RUN = 'env.collector_env_num=4', 'policy.collect.n_step=32', 'policy.learn.batch_size=64', 'max_env_step=384'


@dataclass(frozen=True)
class Spec:
    group: int
    words: str = ''
    n: int = 100_000  # floats: 800 kB, large enough that Ray sends them through its object store
    payload: bytes = b'payload'

    def _replace(self, n: int) -> Spec:
        return replace(self, n=n)


HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}  # before Ray starts


def cluster(**options: Any) -> dict[str, Any]:
    """Returns a section `cluster` whose runners reserve no CPU in Ray."""
    return {
        **ClusterConfig().model_dump(),
        'runner_cpu': 0.0,  # leaves all CPUs for learners
        'runner_timeout': PATIENCE,
        'start_timeout': PATIENCE,
        **options,
    }


@pytest.fixture(scope='module', autouse=True)
def session() -> Iterator[str]:
    """Starts one cluster for all tests, since a start takes seconds; gives its address as an override, for other processes."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter('ignore')
        patch.setattr(ray_cluster, '_alone', contextlib.nullcontext)
        assert ray_cluster.join(None, {'CPU': N_CPU, 'GPU': 0}, None)
        yield f'cluster.address={ray.get_runtime_context().gcs_address}'
        ray_cluster.leave()


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


SOCKETS = """
import contextlib, os
from pathlib import Path
from tests.processes import descendants
from zoo.cluster import ray_cluster

assert ray_cluster.join(None, {'CPU': 1, 'GPU': 0}, None)
owners = {}  # of sockets
for pid in (os.getpid(), *descendants(os.getpid())):
    for fd in Path(f'/proc/{pid}/fd').glob('*'):
        with contextlib.suppress(OSError):
            owners[os.readlink(fd)] = pid
for family in ('tcp', 'tcp6'):
    for line in Path(f'/proc/net/{family}').read_text().splitlines()[1:]:
        _, place, _, state, *_, inode = line.split()[:10]
        if state == '0A' and f'socket:[{inode}]' in owners:
            print(place.partition(':')[0], owners[f'socket:[{inode}]'])
ray_cluster.leave()
"""


@pytest.mark.soak
def test_local_cluster_listens_on_the_loopback_interface_and_its_token_is_private(tmp_path: Path) -> None:
    (tmp_path / 'sockets.py').write_text(SOCKETS)
    (tmp_path / '.ray').mkdir()
    (tmp_path / '.ray' / 'auth_token').write_text('0' * 64)
    command = [sys.executable, str(tmp_path / 'sockets.py')]
    environment = {**os.environ, 'HOME': str(tmp_path), 'PYTHONPATH': str(REPO)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    found = [line.split() for line in done.stdout.splitlines()]
    assert len({pid for _, pid in found}) >= 3, done.stderr  # at least gcs, raylet and the process itself
    assert {address for address, _ in found} <= {'0100007F', '0000000000000000FFFF00000100007F'}
    assert (tmp_path / '.ray' / 'auth_token').stat().st_mode & 0o077 == 0


def train(tmp_path: Path, name: str, *overrides: str) -> Any:
    always = ['policy.learn.compile=off', 'seed=3', f'logger.root={tmp_path}', 'policy.eval.n_episode=1']
    return serial_pipeline(name, overrides=[*SMALL_RUN, *always, *overrides])


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


def test_handlers_of_signals_stay_those_of_the_caller(session: str) -> None:
    """`session` has started Ray, whose own handler of SIGTERM would end the process without saving."""
    assert {number: signal.getsignal(number) for number in HANDLERS} == HANDLERS


def test_machine_without_a_cluster_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise ConnectionError('Could not find any running Ray instance. Please specify ...')  # Ray's own words

    monkeypatch.setattr(ray, 'is_initialized', lambda: False)
    monkeypatch.setattr(ray, 'init', init)
    with pytest.raises(
        UserError, match="is 'auto' but no Ray cluster runs on this machine; start one with `ray start --head`"
    ):
        ray_cluster.join('auto', {'CPU': 1}, None)


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


ONE = 'cluster.engine=ray', 'cluster.runner_num=1'
TWO = 'cluster.learner_num=2'


@pytest.mark.soak
def test_signals_to_a_run_leave_no_process(session: str, tmp_path: Path) -> None:
    """SIGTERM and SIGINT go to the process group, as schedulers and terminals send them; SIGKILL goes to the run alone.

    Two runs train, each with its own Ray cluster. Two runs are still starting, one of them on the cluster of these tests.
    """
    hangs = *ONE, 'env.id=tests.cluster.ray_runs:waiting_env'
    options = {
        'told': ONE,
        'killed': (TWO,),
        'starting': (*hangs, f'env.kwargs={{marker: {tmp_path}/marker}}'),
        'joined': (*hangs, f'env.kwargs={{marker: {tmp_path}/joined_marker}}', session),
    }
    drivers = {name: driver(tmp_path / name, *words) for name, words in options.items()}

    def said(name: str) -> str:
        return (tmp_path / name / 'log').read_text()

    try:
        wait_until(lambda: 'raylet' in names(tmp_path / 'starting'), drivers['starting'], lambda: said('starting'))
        os.killpg(drivers['starting'].pid, signal.SIGINT)
        wait_until((tmp_path / 'joined_marker').exists, drivers['joined'], lambda: said('joined'))
        os.killpg(drivers['joined'].pid, signal.SIGINT)
        for name in ('told', 'killed'):
            wait_for(tmp_path / name, drivers[name], '**/metrics.jsonl', 'env_step')
            assert {'gcs_server', 'raylet'} <= names(tmp_path / name)
        os.killpg(drivers['told'].pid, signal.SIGTERM)
        drivers['killed'].kill()
        codes = {name: process.wait(PATIENCE) for name, process in drivers.items()}
        assert codes == {'told': 143, 'killed': -signal.SIGKILL, 'starting': 130, 'joined': 130}, {
            name: said(name)[-2000:] for name in drivers
        }
        runner = int((tmp_path / 'joined_marker').read_text())  # unmarked: it inherits the cluster's environment
        for name in drivers:
            assert not left([*processes_of(tmp_path / name), runner]), names(tmp_path / name)
    finally:
        for process in drivers.values():
            process.kill()
            process.wait()
    assert said('told').count('finishing the update, then saving') == said('told').count('stopped by signal 15') == 1
    assert list(tmp_path.glob('told/**/checkpoints/*.safetensors'))
    for name in ('starting', 'joined'):
        assert said(name).count('stopped by signal 2 before the run began; nothing was saved') == 1, said(name)
        assert 'Traceback' not in said(name) and not list(tmp_path.glob(f'{name}/*/*'))


# --- learners ---

SIZES = 'policy.learn.compile=off', 'policy.collect.n_step=32', 'policy.learn.batch_size=64'
SMALL = *SIZES, 'max_env_step=1100', 'logger.freq=1', 'seed=3'


class Trained:
    """A run of two learners with one runner each. `seen`: the calls of on_evaluation in the process that started the run."""

    def __init__(self, root: Path) -> None:
        self.seen: list[tuple[int, float, int]] = []
        self.result = serial_pipeline(
            'cartpole_ppo',
            overrides=[*SMALL, *ONE, TWO, f'logger.root={root}'],
            on_evaluation=self._evaluated,
            callbacks=[Rank],
        )

    def _evaluated(self, env_step: int, evaluation: Any) -> None:
        self.seen.append((env_step, evaluation.return_mean, os.getpid()))


class Rank:
    """A callback that notes in the run folder which processes call it."""

    def on_update(self, job: Any, metrics: Any) -> None:
        (job.run_dir / f'rank_{os.environ["RANK"]}_of_{os.environ["WORLD_SIZE"]}').write_text(str(os.getpid()))


@pytest.fixture(scope='module')
def trained(session: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp('two'))


def processes() -> list[int]:
    """Returns the ids of the ranks' processes on the cluster of these tests."""
    return [pid for pid in descendants(os.getpid()) if any('RankProcess' in word for word in words_of(pid))]


def newest(root: Path) -> int:
    """Returns the env step of the newest checkpoint."""
    return max(step for folder in root.glob('*/*/checkpoints') for step in steps_of(folder))


@pytest.mark.soak
def test_two_learners_with_runners_end_with_the_parameters_of_two_ranks_under_torchrun(
    trained: Trained, tmp_path: Path
) -> None:
    run = [*TORCHRUN, '--nproc-per-node=2', '-m', 'zoo', 'train', 'cartpole_ppo']
    env = {**os.environ, 'PYTHONPATH': str(REPO), 'OMP_NUM_THREADS': '1'}
    done = subprocess.run(
        [*run, *SMALL, f'logger.root={tmp_path}'], env=env, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob('*/*')
    other, result = load_policy(folder), trained.result
    assert same_state(result.policy, other)
    assert [row['env_step'] for row in rows(result.run_dir)] == [row['env_step'] for row in rows(folder)]
    assert any(row.get('cluster/runner') == 1 for row in rows(result.run_dir))
    assert (result.env_step, result.train_iter) == (rows(folder)[-1]['env_step'], 4 * 10 * 4)  # rollouts, passes, steps


@pytest.mark.soak
def test_callbacks_are_called_in_each_learner_and_on_evaluation_in_the_caller(trained: Trained) -> None:
    noted = {path.name: int(path.read_text()) for path in trained.result.run_dir.glob('rank_*')}
    assert noted.keys() == {'rank_0_of_2', 'rank_1_of_2'}
    assert len({*noted.values(), os.getpid()}) == 3
    assert trained.seen == [(trained.result.env_step, trained.result.last_return, os.getpid())]
    assert not left(list(noted.values()), 0.0)


def test_what_does_not_divide_is_refused_before_ray_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, 'join', None)
    words = 'policy.eval.n_episode is 1 but there are 2 ranks, which share the episodes; use 2 or more.'
    with pytest.raises(ConfigError, match=words):
        serial_pipeline('cartpole_ppo', overrides=[TWO, 'policy.eval.n_episode=1', f'logger.root={tmp_path}'])
    assert not list(tmp_path.iterdir())


def test_policy_is_refused(trained: Trained) -> None:
    with pytest.raises(UserError, match='got a policy but cluster.learner_num is 2'):
        serial_pipeline('cartpole_ppo', overrides=[TWO], policy=trained.result.policy)


@pytest.mark.soak
def test_error_of_an_env_is_raised_as_it_is(tmp_path: Path) -> None:
    steer = 'env.id=tests.steer_envs:SteerEnv', 'env.kwargs={fail_at: 3}'
    with pytest.raises(RuntimeError, match='it fell over') as caught:
        serial_pipeline('cartpole_ppo', overrides=[*SMALL, TWO, *steer, f'logger.root={tmp_path}'])
    assert caught.value.env_place  # type: ignore[attr-defined]  # `zoo train` makes one sentence of it
    notes = ''.join(caught.value.__notes__)
    assert f'on {socket.gethostname()}' in notes and 'in rank ' in notes
    assert not processes()


def test_learners_that_find_no_room_are_named(tmp_path: Path) -> None:
    words = r'5 ranks did not start within cluster.start_timeout=0.5 s: 5 ranks of 1 CPU each need 5, and the Ray cluster has 4'
    five = ['cluster.learner_num=5', 'env.collector_env_num=10', 'policy.learn.batch_size=160']
    five += ['cluster.start_timeout=0.5', f'logger.root={tmp_path}']
    with pytest.raises(RuntimeError, match=words):
        serial_pipeline('cartpole_ppo', overrides=[*SMALL[:2], *five])


@pytest.mark.soak
def test_lost_rank_is_replaced_and_ctrl_c_leaves_no_process(session: str, tmp_path: Path) -> None:
    folder = tmp_path / 'told'
    run = driver(folder, TWO, 'checkpoint.freq=1024', 'checkpoint.keep_last=2', session)
    log = folder / 'log'
    try:
        wait_for(folder, run, '*/*/checkpoints/step_*', '')
        first = processes()
        assert len(first) == 2
        os.kill(first[1], signal.SIGKILL)
        wait_for(folder, run, 'log', 'start again from the newest checkpoint')
        saved = newest(folder)
        wait_until(lambda: newest(folder) > saved, run, log.read_text)
        second = processes()
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(PATIENCE) == 128 + signal.SIGINT, log.read_text()
        assert len(second) == 2 and not left([*first, *second])
    finally:
        run.kill()
        run.wait()
    text = log.read_text()
    assert text.count('ended unexpectedly, e.g. by signal 9') == text.count('(1 of 20 times in an hour)') == 1, text
    assert text.count('finishing the update, then saving') == text.count('stopped by signal 2') == 1, text
    assert 'Traceback' not in text
    (found,) = folder.glob('*/*')  # one folder: the second start continued the run
    logged = [row['env_step'] for row in rows(found)]
    assert logged == sorted(logged)
