"""Runs with several learners, whose ranks are actors on Ray."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ray_runs import ONE, REPO, TWO, driver, same_state, wait_for
from tests.cluster.torchrun import TORCHRUN
from tests.policy_envs import rows
from tests.processes import PATIENCE, descendants, left, wait_until, words_of
from zoo import load_policy, serial_pipeline
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.run.checkpoint.file import steps_of

ray = pytest.importorskip('ray')

from zoo.cluster import ray_cluster  # noqa: E402

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings('ignore::ResourceWarning'),  # Ray leaves some resources open until exit
    pytest.mark.usefixtures('session'),
]

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
    assert text.count('finishing the update, then saving') == text.count('stopped by Ctrl-C') == 1, text
    assert 'Traceback' not in text
    (found,) = folder.glob('*/*')  # one folder: the second start continued the run
    logged = [row['env_step'] for row in rows(found)]
    assert logged == sorted(logged)
