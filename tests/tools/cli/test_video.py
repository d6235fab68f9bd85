"""`zoo video`: the episodes of `zoo eval`, as a file; what it refuses, and what an interrupt leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.policy_envs import job_config
from tests.tools.cli.processes import run_in
from tests.video_files import read_video
from zoo import serial_pipeline
from zoo.tools.cli.command import main

pytest.importorskip('imageio_ffmpeg')
pytestmark = pytest.mark.slow

OWN = Path(__file__).parents[2] / 'film_envs.py'


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {
        'max_env_step': 2_048,
        'env': {'id': 'CartPole-v1'},
        'policy': {'type': 'ppo', 'collect': {'n_step': 64}, 'eval': {'eval_freq': 1_024, 'n_episode': 1}},
        'logger': {'console': 'off', 'tensorboard': False, 'root': str(tmp_path_factory.mktemp('runs'))},
    }
    return serial_pipeline(config).run_dir


@pytest.mark.long
@pytest.mark.parametrize('options', [[], ['--stochastic', '--best'], ['--max-step', '7', 'env.max_episode_steps=20']])
@pytest.mark.parametrize('name', ['x.mp4', 'x.gif'])
def test_video_has_the_episodes_of_zoo_eval(
    name: str, options: list[str], run_dir: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(run_dir), '--episodes', '2', '--seed', '5', '--json', *options]
    assert main(['video', *words, '-o', name]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(['eval', *words, 'env.evaluator_env_num=1', '-o', 'rows.json']) == 0
    rows = json.loads(Path('rows.json').read_text())
    assert found['returns'] == [row['return'] for row in rows]
    assert found['lengths'] == [row['length'] for row in rows]
    assert found['frames'] == len(read_video(name)[0]) == sum(found['lengths']) + 2 and found['fps'] == 50


def test_people_read_a_line_for_each_episode(run_dir: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['video', str(run_dir), '-o', 'x.gif', '--episodes', '2', '--max-step', '5', '--fps', '10']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        'episode 1: return 5.00, length 5, cut off',
        'episode 2: return 5.00, length 5, cut off',
        lines[2],
    ]
    assert re.fullmatch(r'x.gif: 1.2 s, 12 pictures, policy of env step \d+', lines[2])


def test_what_it_refuses_leaves_no_file(run_dir: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in [
        (['-o', 'x.avi'], 'x.avi must end in .mp4 or .gif'),
        (['-o', 'none/x.mp4'], 'there is no folder none'),
        (['-o', 'x.mp4', '--episodes', '0'], '--episodes is 0'),
        (['-o', 'x.mp4', '--max-step', '0'], '--max-step is 0'),
        (['-o', 'x.gif', '--fps', '99'], 'fps is 99 but must be more than 0 and at most 50'),
        (['-o', 'x.mp4', '--set', 'none'], 'there is no evaluation'),
        (
            ['-o', 'x.mp4', 'env.id=torch', 'env.game=CartPole-v1'],
            'draws nothing; name an env that does: env.id=CartPole-v1',
        ),
        ([], 'the following arguments are required: --output/-o'),
    ]:
        assert main(['video', str(run_dir), *words]) == 2
        error = capsys.readouterr().err.strip()
        assert said in error and '\n' not in error
    assert main(['video', str(in_tmp / 'nothing'), '-o', 'x.mp4']) == 2
    assert os.listdir(in_tmp) == []


def test_own_env_of_a_file_needs_consent_like_zoo_eval(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = serial_pipeline(job_config(in_tmp / 'runs', f'{OWN}:LineEnv', max_env_step=64))
    words = ['video', str(result.run_dir), '-o', 'x.mp4', '--json']
    refused = run_in(*words, cwd=in_tmp)  # here its code is loaded
    assert refused.returncode == 2 and 'loaded only with your consent' in refused.stderr and not Path('x.mp4').exists()
    assert main([*words, '--import', str(OWN)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['frames'] == found['lengths'][0] + 1 and found['fps'] == 12


@pytest.mark.long
@pytest.mark.parametrize(('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_leaves_nothing(number: int, code: int, run_dir: Path, in_tmp: Path) -> None:
    words = ['video', str(run_dir), '-o', 'x.mp4', '--episodes', '100000']
    process = subprocess.Popen([sys.executable, '-m', 'zoo', *words], cwd=in_tmp, start_new_session=True)
    try:
        for _ in range(600):
            if os.listdir(in_tmp):  # the first picture is written
                break
            time.sleep(0.1)
        assert os.listdir(in_tmp)
        os.killpg(process.pid, number)  # as a terminal does: to all processes of the command
        assert process.wait(60) == code
    finally:
        process.kill()
    assert os.listdir(in_tmp) == []
