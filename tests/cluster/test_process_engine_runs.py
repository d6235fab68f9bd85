"""Whole runs on engine 'process': equal to the serial run bit for bit; continued or ended cleanly if a process dies."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from tests.cluster.runners import shared_names
from tests.envs import LimitEnv
from tests.forked import run_python
from tests.policy_envs import differing, job_config, rows
from tests.processes import PATIENCE, descendants, group_of, is_alive, left, wait_until, words_of
from zoo.config.yaml_io import save_yaml
from zoo.core.errors import RunError
from zoo.env import EnvError
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.config import resolve_config

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != 'linux', reason='it looks into /proc')]

ROOT = Path(__file__).parents[2]
SAME = ['policy.n_thread=1', 'policy.learn.compile=off', 'policy.eval.stop_value=null', 'env.check=false']


class FaultyEnv(LimitEnv):
    """LimitEnv whose step `at` raises. With a `marker`, the first env to create that file hangs in that step instead.

    With starts=False an env in a runner creates the file in its constructor and hangs. With kills=True a step kills its process.
    """

    def __init__(
        self, at: int = 0, marker: str = '', pause: float = 0.0, kills: bool = False, starts: bool = True
    ) -> None:
        super().__init__()
        if not starts and any('zoo-runner' in word for word in words_of(os.getpid())):
            Path(marker).touch()
            time.sleep(3600)
        self._at, self._marker, self._pause, self._kills = at, marker, pause, kills
        self._n = 0

    def step(self, action: Any) -> Any:
        self._n += 1
        time.sleep(self._pause)
        if self._kills:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._n == self._at and not self._marker:
            raise ValueError('the wheel came off')
        if self._n == self._at and _is_first(self._marker):
            time.sleep(3600)
        return super().step(action)


def _is_first(marker: str) -> bool:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def faulty_env(**kwargs: Any) -> gymnasium.Env:
    return FaultyEnv(**kwargs)


def config(root: Path, **sections: Any) -> dict[str, Any]:
    """Config of two runners of 2 envs each, 64 env steps a rollout, no evaluation except the last."""
    sections['env'] = dict(id='tests.cluster.test_process_engine_runs:faulty_env', **sections.get('env', {}))
    return job_config(root, **{**sections, 'cluster': dict(runner_num=2, **sections.get('cluster', {}))})


def logged(root: Path) -> list[dict[str, Any]]:
    """Returns the logged rows of rollouts, without the row of the last evaluation."""
    (path,) = root.glob('*/*/metrics.jsonl')
    return [row for row in rows(path.parent) if 'cluster/restart' in row]


def runners_of(pid: int) -> list[int]:
    """Returns the ids of the runner processes that a run has started."""
    return [child for child in descendants(pid) if any('zoo-runner' in word for word in words_of(child))]


class Command:
    """`zoo train` of a config, in its own process group."""

    def __init__(self, root: Path, **sections: Any) -> None:
        self.root = root
        save_yaml(resolve_config(config(root, **sections)), root / 'config.yaml')
        words = [sys.executable, '-m', 'zoo', 'train', str(root / 'config.yaml')]
        options: Any = dict(cwd=ROOT, env={**os.environ, 'PYTHONPATH': str(ROOT)}, start_new_session=True)
        options |= dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.process = subprocess.Popen(words, **options)

    def wait_for_rows(self, n: int) -> None:
        def has_rows() -> bool:
            return any(len(path.read_text().splitlines()) >= n for path in self.root.glob('run/*/metrics.jsonl'))

        wait_until(has_rows, self.process)

    def end(self) -> tuple[int, str]:
        try:
            words = self.process.communicate(timeout=PATIENCE)[1]
        finally:
            self.process.kill()
        return self.process.returncode, words


@pytest.mark.parametrize(
    ('name', 'words'),
    [
        ('pendulum_ppo', ['max_env_step=4096', 'policy.learn.executor=eager']),
        ('cartpole_ppg_offpolicy', ['max_env_step=4096', 'policy.learn.aux_freq=20']),
    ],
)
@pytest.mark.filterwarnings('ignore')
@pytest.mark.soak
def test_two_runners_end_with_the_bits_of_two_groups(tmp_path: Path, name: str, words: list[str]) -> None:
    ends = []
    for i, where in enumerate(('env.collector_group_num=2', 'cluster.runner_num=2')):
        root = [f'logger.root={tmp_path / str(i)}', 'logger.console=off', 'logger.tensorboard=false']
        ends.append(serial_pipeline(name, overrides=[*words, *SAME, *root, where]))
    assert not differing(*(end.policy.model.state_dict() for end in ends))
    assert (ends[0].env_step, ends[0].train_iter) == (ends[1].env_step, ends[1].train_iter)


SCRIPT = """
import sys
import gymnasium
from tests.envs import LimitEnv
from zoo.core.registry import ENV_REGISTRY, POLICY_REGISTRY
from zoo import serial_pipeline
from zoo.policy.ppo import PPOPolicy

print('the script runs', flush=True)

@POLICY_REGISTRY.register('mine')
class Mine(PPOPolicy):
    def _forward_collect(self, obs, state=None):
        with open(sys.argv[1] + '/acted', 'a') as file:
            file.write('x')
        return super()._forward_collect(obs, state)

class Env(LimitEnv):
    def step(self, action):
        return super().step(action)

gymnasium.register('Mine-v0', lambda: Env())
from tests.policy_envs import job_config
result = serial_pipeline(job_config(sys.argv[1], 'Mine-v0', cluster=dict(runner_num=2), policy=dict(type='mine')))
print('env_step', result.env_step)
"""


@pytest.mark.soak
def test_env_and_policy_of_a_script_without_a_main_guard(tmp_path: Path) -> None:
    (tmp_path / 'script.py').write_text(SCRIPT)
    done = run_python(tmp_path / 'script.py', tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ['the script runs', 'env_step 256']
    assert len((tmp_path / 'acted').read_text()) == 2 * 16 * 4  # by 2 runners, in 4 rollouts of 16 steps


@pytest.mark.parametrize('vectorization', ['sync', 'async'])
@pytest.mark.soak
def test_error_of_an_env_ends_the_run_with_its_own_words(tmp_path: Path, vectorization: str) -> None:
    run = Command(tmp_path, env=dict(kwargs={'at': 20}, vectorization=vectorization))
    code, words = run.end()
    assert code == 1
    where = re.search(r"env '\S+\[(\d):\d\]', index (\d) \((\d) of all\), step 20, in a runner on (\S+): ", words)
    assert where and 'the wheel came off' in words, words
    assert int(where[1]) + int(where[2]) == int(where[3]) and where[4] == socket.gethostname()
    assert 'test_process_engine_runs.py:' in words


@pytest.mark.parametrize('engine', ['process', 'inline'])
@pytest.mark.soak
def test_env_that_hangs_in_a_runner_is_named_within_step_timeout(tmp_path: Path, engine: str) -> None:
    env = dict(kwargs={'at': 20, 'marker': str(tmp_path / 'hung')}, step_timeout=2, vectorization='sync')
    words = r"env '.*faulty_env.*', index \d .*, step \d+: no answer within 2 s, at .*test_process_engine_runs.py:\d+"
    with pytest.raises(EnvError, match=words):
        serial_pipeline(config(tmp_path, env=env, cluster=dict(engine=engine, runner_timeout=PATIENCE)))
    assert time.time() - (tmp_path / 'hung').stat().st_mtime < 2 + 10


@pytest.mark.soak
def test_runner_that_hangs_is_replaced_and_the_run_ends(tmp_path: Path) -> None:
    kwargs = {'at': 20, 'marker': str(tmp_path / 'hung')}
    result = serial_pipeline(config(tmp_path, env=dict(kwargs=kwargs), cluster=dict(runner_timeout=4)))
    assert (tmp_path / 'hung').exists()
    assert result.env_step == 256
    assert logged(tmp_path)[-1]['cluster/restart'] >= 1  # more on a busy machine: others may take too long too


@pytest.mark.soak
def test_killed_runners_change_no_counter(tmp_path: Path) -> None:
    run = Command(tmp_path, env=dict(kwargs={'pause': 0.004}), max_env_step=64 * 20)
    shared = shared_names()

    def two_runners() -> list[int]:
        return wait_until(lambda: found if len(found := runners_of(run.process.pid)) == 2 else None, run.process)

    killed = []
    for i, n in enumerate((1, 3)):
        run.wait_for_rows(n)
        killed.append(two_runners()[i])
        os.kill(killed[-1], signal.SIGKILL)
        wait_until(lambda: not is_alive(killed[-1]))
    pids = two_runners()
    code, words = run.end()
    lines = logged(tmp_path)
    assert code == 0 and words.count('is lost (its process') == 2, words
    assert [row['env_step'] for row in lines] == [64 * (i + 1) for i in range(20)]
    assert lines[-1]['cluster/restart'] == 2
    assert not any(map(is_alive, [*pids, *killed])) and shared_names() == shared


def test_runners_that_always_die_end_the_run(tmp_path: Path) -> None:
    said = r'2 runners were lost within an hour, the last one since its process .* \(SIGKILL'
    with pytest.raises(RunError, match=said):
        serial_pipeline(config(tmp_path, env=dict(kwargs={'kills': True}), cluster=dict(restart_limit=1)))


def test_killed_driver_leaves_no_process_and_no_memory(tmp_path: Path) -> None:
    shared = shared_names()
    run = Command(tmp_path, env=dict(kwargs={'pause': 0.005}, vectorization='async'), max_env_step=10**6)
    run.wait_for_rows(2)
    group = group_of(run.process.pid)
    assert len(group) >= 1 + 2 + 4  # the run, its 2 runners, their 4 envs
    run.process.kill()
    run.end()
    assert not left(group) and shared_names() == shared


@pytest.mark.parametrize(('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.soak
def test_signal_to_the_process_group_saves_once_and_leaves_no_process(tmp_path: Path, number: int, code: int) -> None:
    run = Command(tmp_path, env=dict(kwargs={'pause': 0.002}), max_env_step=10**6, checkpoint=dict(freq=10**6))
    run.wait_for_rows(2)
    group = group_of(run.process.pid)
    os.killpg(run.process.pid, number)
    assert run.end()[0] == code
    (run_dir,) = (tmp_path / 'run').iterdir()
    (saved,) = (run_dir / 'checkpoints').glob('step_*.safetensors')
    assert load_checkpoint(run_dir).meta['env_step'] == logged(tmp_path)[-1]['env_step'] == int(saved.stem[5:])
    assert len(group) >= 3 and not left(group)


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.soak
def test_signal_while_runners_start_ends_the_run_at_once_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    kwargs = {'starts': False, 'marker': str(tmp_path / 'starting')}
    run = Command(tmp_path, env=dict(kwargs=kwargs), cluster=dict(start_timeout=3600))
    wait_until((tmp_path / 'starting').exists, run.process)
    group = group_of(run.process.pid)
    assert len(group) >= 3
    os.killpg(run.process.pid, number)
    code, words = run.end()
    assert code == 128 + number and not left(group)
    assert 'before the run began; nothing was saved' in words and 'Traceback' not in words
    assert not list(tmp_path.glob('run/*'))


def test_second_signal_ends_a_run_with_runners_at_once(tmp_path: Path) -> None:
    marker = tmp_path / 'hung'
    run = Command(tmp_path, env=dict(kwargs={'at': 20, 'marker': str(marker)}), cluster=dict(runner_timeout=3600))
    wait_until(marker.exists, run.process)
    group = group_of(run.process.pid)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.process.stderr is not None
    assert any('Ctrl-C: finishing the update' in line for line in run.process.stderr)  # the update would take an hour
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.end()[0] == 130 and not left(group)
