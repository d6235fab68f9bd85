"""Several runs of one command, in real processes: equal to single runs, independent of each other, saved by a signal."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from zoo import load_policy, read_run, serial_pipeline
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.tools.cli.command import main
from zoo.tools.sweep.batch import grid_of, train_many

SHORT = ['max_env_step=2_048', 'policy.eval.n_episode=1', 'logger.tensorboard=false']
BROKEN = """
import gymnasium


class Broken(gymnasium.wrappers.TimeLimit):
    def __init__(self, at=0):
        super().__init__(gymnasium.make('CartPole-v1'), 500)
        self.at, self.n = at, 0

    def step(self, action):
        self.n += 1
        if self.at and self.n == self.at:
            raise RuntimeError('a wire is loose')
        return super().step(action)
"""


def zoo(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, '-m', 'zoo', *words], cwd=cwd, capture_output=True, text=True, timeout=240)


def parameters(run: Path) -> dict[str, Any]:
    return load_policy(run).state_dict()['model']


@pytest.mark.long
def test_runs_end_as_single_runs_do_and_continue_in_their_folder(tmp_path: Path) -> None:
    members, fixed = grid_of([*SHORT, 'seed=0..1'])
    ended: list[int] = []
    outcomes = train_many(
        'cartpole_ppo', members, fixed, jobs=2, run_dir=tmp_path / 'runs', on_end=lambda outcome, n: ended.append(n)
    )
    assert [outcome.state for outcome in outcomes] == ['done', 'done'] and ended == [1, 2]
    assert [outcome.run_dir for outcome in outcomes] == [tmp_path / 'runs' / f'seed{k}' for k in range(2)]
    alone = serial_pipeline('cartpole_ppo', overrides=[*SHORT, 'seed=1', f'logger.root={tmp_path}'])
    one, other = parameters(alone.run_dir), parameters(tmp_path / 'runs' / 'seed1')
    assert one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)
    more = [text for text in fixed if 'max_env_step' not in text] + ['max_env_step=4_096']
    train_many('cartpole_ppo', members, more, run_dir=tmp_path / 'runs')
    assert all(read_run(tmp_path / 'runs' / f'seed{k}').env_step > 3_000 for k in range(2))


@pytest.mark.long
def test_run_that_fails_ends_no_other_and_the_command_with_1(tmp_path: Path) -> None:
    (tmp_path / 'broken.py').write_text(BROKEN)
    done = zoo('train', 'broken.py:Broken', 'env.kwargs.at=0,50', *SHORT, '--json', cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert [run['state'] for run in found['runs']] == ['done']
    assert found['failed'][0]['values'] == {'env.kwargs.at': '50'} and 'a wire is loose' in found['failed'][0]['reason']
    failed = json.loads((tmp_path / found['failed'][0]['run_dir'] / 'result.json').read_text())
    assert failed['state'] == 'failed' and 'env.kwargs.at=50' in failed['command']
    listed = zoo('runs', '--json', cwd=tmp_path)
    assert sorted(run['state'] for run in json.loads(listed.stdout)['runs']) == ['done', 'failed']


@pytest.mark.long
def test_signal_lets_all_runs_save_and_leaves_no_process(tmp_path: Path) -> None:
    words = ['cartpole_ppo', '--seeds', '3', '--jobs', '2', 'max_env_step=100_000_000', 'policy.eval.stop_value=null']
    with open(tmp_path / 'log', 'wb') as log:
        command = [sys.executable, '-m', 'zoo', 'train', *words, 'logger.freq=1', 'logger.tensorboard=false']
        process = subprocess.Popen(command, cwd=tmp_path, stderr=log, stdout=log)
    try:
        end = time.monotonic() + 120
        while len(list(tmp_path.glob('runs/*/*/metrics.jsonl'))) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130, (tmp_path / 'log').read_text()
    finally:
        process.kill()
    runs = [read_run(path.parent) for path in tmp_path.glob('runs/*/*/config.yaml')]
    assert [run.state for run in runs] == ['stopped', 'stopped']  # the third never began
    assert all(list(run.path.glob('checkpoints/step_*')) for run in runs)
    assert '0 of 3 runs done' in (tmp_path / 'log').read_text()
    groups = {os.getpgid(int(path.name)) for path in Path('/proc').glob('[0-9]*') if _is_of(path, tmp_path)}
    assert not groups


def _is_of(process: Path, folder: Path) -> bool:
    try:
        return Path(os.readlink(process / 'cwd')) == folder
    except OSError:
        return False


@pytest.mark.long
def test_each_run_keeps_the_command_that_repeats_it_and_a_folder_of_another_config_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what was trained stays what config.yaml says of it."""
    words = ['train', 'cartpole_ppo', '--seeds', '2', '--json', '--run-dir', 'g', *SHORT]
    rate = 'policy.learn.learning_rate'
    first = zoo(*words, f'{rate}=1e-3', cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    before = {file: file.read_bytes() for file in (tmp_path / 'g').glob('*/config.yaml')}
    result = json.loads((tmp_path / 'g/seed1/result.json').read_text())
    command = ['zoo', 'train', 'cartpole_ppo', *SHORT, f'{rate}=1e-3', 'seed=1', '--run-dir', 'g/seed1']
    assert result['command'] == command
    other = zoo(*words, f'{rate}=3e-4', cwd=tmp_path)
    said = f'the run in g/seed0 has {rate}=0.001, not 0.0003; name another --run-dir, or give the values that it has'
    assert other.returncode == 2 and said in other.stderr and 'Traceback' not in other.stderr
    assert {file: file.read_bytes() for file in before} == before and len(before) == 2
    assert json.loads((tmp_path / 'g/seed1/result.json').read_text()) == result
    again = zoo(*words, f'{rate}=1e-3', cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    alone = zoo(*command[1:-2], '--run-dir', 'alone', cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    one, same = parameters(tmp_path / 'alone'), parameters(tmp_path / 'g/seed1')
    assert all((one[name] == same[name]).all() for name in one)


@pytest.mark.long
def test_killed_run_has_its_folder_in_the_outcome(tmp_path: Path) -> None:
    (tmp_path / 'dies.py').write_text(BROKEN.replace("raise RuntimeError('a wire is loose')", 'os._exit(9)'))
    text = (tmp_path / 'dies.py').read_text()
    (tmp_path / 'dies.py').write_text(f'import os\n{text}')
    members, fixed = grid_of(['env.kwargs.at=50,60', *SHORT, f'logger.root={tmp_path}'])
    source = {
        'env': {'id': f'{tmp_path}/dies.py:Broken', 'vectorization': 'sync', 'check': False},
        'policy': {'type': 'ppo'},
    }
    outcomes = train_many(source, members, fixed, jobs=2)
    folders = [outcome.run_dir for outcome in outcomes]
    assert [outcome.state for outcome in outcomes] == ['failed', 'failed']
    assert all(folder is not None and (folder / 'config.yaml').is_file() for folder in folders)
    assert len(set(folders)) == 2


def test_all_configs_are_checked_before_anything_starts(tmp_path: Path) -> None:
    members, fixed = grid_of(['seed=0,1', 'policy.learn.batch_size=64,7', f'logger.root={tmp_path}'])
    with pytest.raises(ConfigError, match='batch_size is 7'):
        train_many('cartpole_ppo', members, fixed)
    assert not list(tmp_path.iterdir())


def test_jobs_below_one_and_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    members, _ = grid_of(['seed=0,1'])
    with pytest.raises(UserError, match='jobs is 0'):
        train_many('cartpole_ppo', members, jobs=0)
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(UserError, match='torchrun'):
        train_many('cartpole_ppo', members)


@pytest.mark.parametrize(
    'words, message',
    [
        (['--jobs', '2'], '--jobs 2 is for several runs'),
        (['--seeds', '2', '--resume', 'x'], '--resume is for one run'),
        (['--seeds', '2', '--profile', '3'], '--profile is for one run'),
        (['seed=3..1'], 'counts down'),
        (['seed=0-4'], 'write seed=0..4'),
        (['policy.model.hidden_sizes=64,32'], 'one list of them is policy.model.hidden_sizes=[64,32]'),
    ],
)
def test_words_that_do_not_go_together_are_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(['train', 'cartpole_ppo', *words]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())
