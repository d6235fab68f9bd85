"""Learners as actors of Ray: what they train, how they end, and what they continue from."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ray_runs import PATIENCE, REPO, descendants, driver, left, same_state, wait_for
from tests.policy_envs import rows
from zoo import load_policy, serial_pipeline
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.run.checkpoint import steps_of

ray_cluster = pytest.importorskip('zoo.cluster.ray_cluster')

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group('ray'),
    pytest.mark.filterwarnings(
        'ignore::ResourceWarning'
    ),  # files and sockets that Ray leaves to the end of the process
]

N_CPU = 4  # two ranks with a runner each
TWO = 'cluster.learner_num=2'
SMALL = (
    'policy.learn.compile=off',
    'policy.collect.n_step=32',
    'policy.learn.batch_size=64',
    'max_env_step=1100',
    'seed=3',
)


@pytest.fixture(scope='module', autouse=True)
def session() -> Iterator[str]:
    """One local cluster for all tests; its address."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        assert ray_cluster.join(None, {'CPU': N_CPU}, None)
        yield f'cluster.address={ray_cluster.ray.get_runtime_context().gcs_address}'
        ray_cluster.leave()


class Trained:
    """A run of two learners, and what was called in the process that started them."""

    def __init__(self, root: Path) -> None:
        self.seen: list[tuple[int, float, int]] = []
        self.result = serial_pipeline(
            'cartpole_ppo',
            overrides=[*SMALL, TWO, f'logger.root={root}'],
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
    """The ranks on the cluster of these tests."""
    found = []
    for pid in descendants(os.getpid()):
        try:
            words = Path(f'/proc/{pid}/cmdline').read_text()
        except OSError:
            continue
        found += [pid] if 'RankProcess' in words else []
    return found


def newest(root: Path) -> int:
    """Env step of the newest checkpoint."""
    return max(step for folder in root.glob('*/*/checkpoints') for step in steps_of(folder))


def test_two_learners_end_with_the_parameters_of_two_ranks_under_torchrun(trained: Trained, tmp_path: Path) -> None:
    run = ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2', '-m', 'zoo', 'train', 'cartpole_ppo']
    env = {**os.environ, 'PYTHONPATH': str(REPO), 'OMP_NUM_THREADS': '1'}
    done = subprocess.run(
        [sys.executable, *run, *SMALL, f'logger.root={tmp_path}'], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob('*/*')
    other, result = load_policy(folder), trained.result
    assert same_state(result.policy, other)
    assert [row['env_step'] for row in rows(result.run_dir)] == [row['env_step'] for row in rows(folder)]
    assert (result.env_step, result.train_iter) == (rows(folder)[-1]['env_step'], 4 * 10 * 4)  # rollouts, passes, steps


def test_callbacks_are_called_in_each_learner_and_on_evaluation_in_the_caller(trained: Trained) -> None:
    noted = {path.name: int(path.read_text()) for path in trained.result.run_dir.glob('rank_*')}
    assert noted.keys() == {'rank_0_of_2', 'rank_1_of_2'}
    assert len({*noted.values(), os.getpid()}) == 3
    assert trained.seen == [(trained.result.env_step, trained.result.last_return, os.getpid())]
    assert not left(list(noted.values()), 0.0)


def test_learners_have_runners_of_their_own(trained: Trained, tmp_path: Path) -> None:
    ray_runner = 'cluster.engine=ray', 'cluster.runner_num=1', 'logger.freq=1'
    result = serial_pipeline('cartpole_ppo', overrides=[*SMALL, TWO, *ray_runner, f'logger.root={tmp_path}'])
    assert any(row.get('cluster/runner') == 1 for row in rows(result.run_dir))
    assert same_state(result.policy, trained.result.policy)


def test_what_does_not_divide_is_refused_before_ray_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, 'join', None)
    words = 'policy.eval.n_episode is 1 but there are 2 ranks, which share the episodes; use 2 or more.'
    with pytest.raises(ConfigError, match=words):
        serial_pipeline('cartpole_ppo', overrides=[TWO, 'policy.eval.n_episode=1', f'logger.root={tmp_path}'])
    assert not list(tmp_path.iterdir())


def test_policy_is_refused(trained: Trained) -> None:
    with pytest.raises(UserError, match='got a policy but cluster.learner_num is 2'):
        serial_pipeline('cartpole_ppo', overrides=[TWO], policy=trained.result.policy)


def test_error_of_an_env_is_raised_as_it_is(tmp_path: Path) -> None:
    steer = 'env.id=tests.steer_envs:SteerEnv', 'env.kwargs={fail_at: 3}'
    with pytest.raises(RuntimeError, match='it fell over') as caught:
        serial_pipeline('cartpole_ppo', overrides=[*SMALL, TWO, *steer, f'logger.root={tmp_path}'])
    assert caught.value.env_place  # type: ignore[attr-defined]  # by which the command says it in one sentence
    assert f'on {socket.gethostname()}' in ''.join(caught.value.__notes__) and 'in rank ' in ''.join(
        caught.value.__notes__
    )
    assert not processes()


def test_learners_that_find_no_room_are_named(tmp_path: Path) -> None:
    words = r'5 ranks did not start within cluster.start_timeout=0.5 s: 5 ranks of 1 CPU each need 5, and the Ray cluster has 4'
    five = (
        'cluster.learner_num=5',
        'env.collector_env_num=10',
        'policy.learn.batch_size=160',
        'cluster.start_timeout=0.5',
    )
    with pytest.raises(RuntimeError, match=words):
        serial_pipeline('cartpole_ppo', overrides=[*SMALL[:2], *five, f'logger.root={tmp_path}'])


def test_lost_rank_is_replaced_and_signals_leave_no_process(session: str, tmp_path: Path) -> None:
    """One run joins the cluster of these tests, loses a rank and then is told to end; the other is killed."""
    folders = tmp_path / 'told', tmp_path / 'killed'
    often = TWO, 'checkpoint.freq=1024', 'checkpoint.keep_last=2'
    drivers = [driver(folders[0], *often, session), driver(folders[1], TWO)]
    try:
        wait_for(folders[1], drivers[1], '**/metrics.jsonl', 'env_step')
        children = descendants(drivers[1].pid)
        assert len(children) >= 6  # two services of Ray, two agents and two ranks, at least
        drivers[1].kill()
        wait_for(folders[0], drivers[0], '*/*/checkpoints/step_*', '')
        first = sorted({*processes()} - {*children})
        assert len(first) == 2
        os.kill(first[1], signal.SIGKILL)
        wait_for(folders[0], drivers[0], 'log', 'start again from the newest checkpoint')
        saved = newest(folders[0])
        while newest(folders[0]) <= saved:
            wait_for(folders[0], drivers[0], 'log')
            time.sleep(0.1)
        second = processes()
        drivers[0].send_signal(signal.SIGINT)  # which Ray blocks in its processes
        assert drivers[0].wait(PATIENCE) == 128 + signal.SIGINT
        assert not left([*first, *second, *children])
    finally:
        for process in drivers:
            process.kill()
    text = (folders[0] / 'log').read_text()
    assert text.count('ended unexpectedly, e.g. by signal 9') == text.count('(1 of 20 times in an hour)') == 1, text
    assert text.count('finishing the update, then saving') == text.count('stopped by signal 2') == 1, text
    assert 'Traceback' not in text
    (run,) = folders[0].glob('*/*')  # which the second start continued
    logged = [row['env_step'] for row in rows(run)]
    assert logged == sorted(logged)
