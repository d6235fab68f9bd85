"""Whole runs under torchrun: what the ranks write, how they end, and what they continue from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.policy_envs import rows
from zoo.cli.command import main
from zoo.core.data import leaves
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint import load_checkpoint, steps_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group('torchrun')]

PATIENCE = 120.0  # seconds, on a busy machine
QUICK = ('env.check=false', 'logger.tensorboard=false', 'logger.freq=1', 'policy.eval.stop_value=null')
SMALL = (
    'policy.learn.epoch_per_collect=2',
    'policy.collect.n_step=32',
    'policy.learn.batch_size=64',
    'max_env_step=1100',
)
ENDLESS = (
    'max_env_step=100000000',
    'policy.eval.eval_freq=100000000',
    'checkpoint.freq=1024',
    'checkpoint.keep_last=1000',
)

DIGESTS = """
import hashlib, os
from pathlib import Path
from zoo.core.data import leaves


def on_update(job, metrics):
    digest = hashlib.sha256()
    for name, x in leaves({'model': job.policy.model.state_dict()}):
        digest.update(name.encode() + x.numpy(force=True).tobytes())
    file = Path(__file__).with_name(f'rank_{os.environ["RANK"]}.txt')
    with file.open('a') as out:
        print(job.env_step, job.train_iter, digest.hexdigest(), file=out)
"""


class Started:
    """`zoo train ARGS` under torchrun, in a session of its own, with its output in files of `folder`."""

    def __init__(self, folder: Path, n_rank: int, *args: str, options: tuple[str, ...] = ()) -> None:
        self.root, self._log = folder / 'runs', folder / 'output.txt'
        run = ['-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={n_rank}', *options]
        train = ['-m', 'zoo', 'train', *args, f'logger.root={self.root}', *QUICK]
        with self._log.open('w') as out:
            self.process = subprocess.Popen(
                [sys.executable, *run, *train],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, 'OMP_NUM_THREADS': '1'},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def ended(self) -> int:
        """The exit code; processes that do not end are killed, and the test fails."""
        try:
            return self.process.wait(PATIENCE)
        finally:
            for pid in (self.process.pid, *self.ranks()):
                if _is_alive(pid):
                    os.kill(pid, signal.SIGKILL)

    def ranks(self) -> list[int]:
        """The processes of the ranks, in order."""
        found = []
        for stat in Path('/proc').glob('[0-9]*/stat'):
            try:
                fields = stat.read_text().rpartition(')')[2].split()
                words = (stat.parent / 'cmdline').read_text().split('\0')
            except OSError:
                continue
            if int(fields[1]) == self.process.pid and 'train' in words:
                found.append(int(stat.parent.name))
        return sorted(found)

    def run(self) -> Path:
        """The one run folder."""
        (found,) = self.root.glob('*/*')
        return found

    def saved(self) -> list[int]:
        """Env steps of the checkpoints."""
        return [step for folder in self.root.glob('*/*/checkpoints') for step in steps_of(folder)]

    def wait_for_checkpoints(self, n: int) -> None:
        end = time.monotonic() + PATIENCE
        while len(self.saved()) < n:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    return Path(f'/proc/{pid}').exists()


def _state(folder: Path) -> dict[str, torch.Tensor]:
    """Tensors of the newest checkpoint that training changes, by name."""
    state = load_checkpoint(folder).state
    return dict(leaves({'model': state['policy']['model'], **_tensors(state['policy'])}))


def _tensors(tree: Any) -> dict[str, Any]:
    return {
        str(key): _tensors(x) if isinstance(x, dict) else x
        for key, x in tree.items()
        if isinstance(x, torch.Tensor) or (isinstance(x, dict) and _tensors(x))
    }


def _without_times(run: Path) -> list[dict[str, Any]]:
    return [{key: x for key, x in row.items() if 'time/' not in key and key != 'wall_s'} for row in rows(run)]


def _check_log_rises(run: Path) -> None:
    for name in ('learn/train_iter', 'eval/return_mean'):
        steps = [row['env_step'] for row in rows(run) if name in row]
        assert steps == sorted(set(steps)) and steps, (name, steps)


@pytest.fixture(scope='module')
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A run of two ranks that has ended."""
    folder = tmp_path_factory.mktemp('two')
    (folder / 'digests.py').write_text(DIGESTS)
    options = ('policy.eval.eval_freq=512', 'checkpoint.freq=256', f'callbacks=["{folder}/digests.py:on_update"]')
    started = Started(folder, 2, 'cartpole_ppo', *SMALL, *options)
    assert started.ended() == 0, started.output
    yield started


def test_two_ranks_write_one_run(two: Started) -> None:
    run = two.run()
    _check_log_rises(run)
    assert two.output.count('run folder: ') == 1
    updates = [row for row in rows(run) if 'learn/train_iter' in row]
    # rollouts of 8 x 32 rows in 2 passes of 4 minibatches, whatever the number of ranks
    assert [row['learn/train_iter'] for row in updates] == [8, 16, 24, 32]
    assert all(0 < row['env_step'] <= 256 * (i + 1) for i, row in enumerate(updates))
    assert [row['learn/sample'] for row in updates] == [row['env_step'] for row in updates]
    assert two.saved()[-1] == updates[-1]['env_step']


def test_two_ranks_are_equal_bit_for_bit_after_every_rollout(two: Started) -> None:
    first, second = ((two.root.parent / f'rank_{i}.txt').read_text().splitlines() for i in (0, 1))
    assert first == second
    assert len(first) == 4
    assert len({line.split()[2] for line in first}) == 4  # each rollout changes the model


def test_checkpoint_of_two_ranks_evaluates_and_continues_in_one_process(
    two: Started, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not main(['eval', str(two.run()), '--json', '--trust', '--episodes', '2'])
    assert json.loads(capsys.readouterr().out)
    result = serial_pipeline(
        'cartpole_ppo',
        resume=two.run(),
        overrides=[*QUICK, *SMALL, f'logger.root={tmp_path}', 'max_env_step=1600'],
    )
    assert result.env_step > 1100


def test_uneven_split_is_refused_in_one_sentence_before_anything_is_made(tmp_path: Path) -> None:
    started = Started(tmp_path, 3, 'cartpole_ppo', f'--run-dir={tmp_path / "mine"}')
    assert started.ended() == 1
    assert [line for line in started.output.splitlines() if line.startswith('zoo:')] == [
        'zoo: error: env.collector_env_num is 8 but there are 3 ranks: 8 % 3 = 2; use a multiple, e.g. 6 or 9.'
    ]
    assert not started.root.exists() and not (tmp_path / 'mine').exists()


def test_one_rank_is_a_run_of_one_process_bit_for_bit(tmp_path: Path) -> None:
    options = (*SMALL, 'policy.eval.eval_freq=512')
    started = Started(tmp_path / 'a', 1, 'cartpole_ppo', *options) if (tmp_path / 'a').mkdir() is None else None
    assert started is not None and started.ended() == 0
    plain = subprocess.run(
        [sys.executable, '-m', 'zoo', 'train', 'cartpole_ppo', *options, *QUICK, f'logger.root={tmp_path / "b"}'],
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert plain.returncode == 0, plain.stderr
    (run,) = (tmp_path / 'b').glob('*/*')
    one, other = _state(started.run()), _state(run)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert _without_times(started.run()) == _without_times(run)


def test_killed_rank_resumes_from_the_newest_checkpoint_in_its_own_folder(tmp_path: Path) -> None:
    ends = ('max_env_step=40000', *ENDLESS[1:])
    started = Started(tmp_path, 2, 'cartpole_ppo', *SMALL[:3], *ends, options=('--max-restarts=1',))
    started.wait_for_checkpoints(2)
    os.kill(started.ranks()[1], signal.SIGKILL)
    assert started.ended() == 0, started.output
    assert started.saved()[-1] > 40000 - 256
    _check_log_rises(started.run())
    assert 'the run continues from step_' in started.output
    assert started.output.count('run folder: ') == 1


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_group_saves_once_and_leaves_no_process(tmp_path: Path, number: int) -> None:
    started = Started(tmp_path, 2, 'cartpole_ppo', *ENDLESS)
    started.wait_for_checkpoints(1)
    ranks = started.ranks()
    assert len(ranks) == 2
    os.killpg(started.process.pid, number)
    assert started.ended() == 1  # of torchrun itself
    end = time.monotonic() + 10
    while any(map(_is_alive, ranks)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(_is_alive, ranks))
    assert started.output.count('continue with: zoo train --resume') == 1
    assert 'Traceback' not in started.output.partition('SignalException')[0].partition('Traceback')[2]
    last = started.saved()[-1]
    assert load_checkpoint(started.run()).meta['env_step'] == last
    assert [row['env_step'] for row in rows(started.run()) if 'learn/train_iter' in row][-1] == last


PPG = (
    'policy.learn.aux_freq=4',
    'policy.learn.aux_train_epoch=1',
    'policy.learn.actor_epoch_per_collect=1',
    'policy.learn.critic_epoch_per_collect=1',
    'policy.collect.n_step=32',
    'policy.learn.batch_size=64',
    'policy.learn.aux_batch_size=128',
    'policy.eval.eval_freq=100000000',
)


def test_auxiliary_memory_of_each_rank_is_saved_and_found_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started = Started(
        tmp_path, 2, 'cartpole_ppg', *PPG, 'max_env_step=800', 'checkpoint.freq=256', 'checkpoint.keep_last=2'
    )
    assert started.ended() == 0, started.output
    folder = started.run() / 'checkpoints'
    steps = steps_of(folder)
    assert len(steps) == 2
    assert sorted(file.name for file in folder.glob('step_*.rank_*')) == [
        f'{file.stem}.rank_1.safetensors' for file in steps.values()
    ]
    # 3 rollouts of 4 envs x 32 steps are kept for the phase after the 4th, by each rank its own
    own = load_checkpoint(folder / f'{steps[max(steps)].stem}.rank_1.safetensors').state['memory']
    main_file = load_checkpoint(started.run()).state['memory']
    assert own.keys() == main_file.keys()
    assert any(
        not torch.equal(x, y) for (_, x), (_, y) in zip(leaves(_tensors(own)), leaves(_tensors(main_file)), strict=True)
    )

    again = (
        Started(tmp_path / 'again', 2, '--resume', str(started.run()), 'max_env_step=1100')
        if _make(tmp_path / 'again')
        else None
    )
    assert again is not None and again.ended() == 0, again and again.output
    assert 'left out' not in again.output and 'missing' not in again.output

    overrides = [*PPG, *QUICK, 'max_env_step=1500', f'logger.root={tmp_path / "one"}']
    serial_pipeline('cartpole_ppg', resume=steps[max(steps)], overrides=overrides)
    assert 'was written by 2 ranks and this run has 1' in caplog.text


def _make(folder: Path) -> bool:
    folder.mkdir()
    return True
