"""`zoo eval`, `zoo play` and `zoo video`: the same episodes as numbers, in a window and as a file."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import job_config
from tests.tools.cli.processes import run_in
from tests.video_files import read_video
from zoo import serial_pipeline
from zoo.tools.cli.command import main

pytestmark = pytest.mark.slow
OWN = Path(__file__).parents[2] / 'film_envs.py'
needs_video = pytest.mark.skipif(not importlib.util.find_spec('imageio_ffmpeg'), reason='the extra video is missing')
needs_window = pytest.mark.skipif(not importlib.util.find_spec('pygame'), reason='the extra video is missing')


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sets = {'short': {'max_episode_steps': 9}}
    config = {
        'max_env_step': 2_048,
        'env': {'id': 'CartPole-v1'},
        'policy': {'collect': {'n_step': 64}, 'eval': {'eval_freq': 1_024, 'n_episode': 2, 'sets': sets}},
        'logger': {'console': 'off', 'tensorboard': False, 'root': str(tmp_path_factory.mktemp('runs'))},
    }
    return serial_pipeline(config).run_dir


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Runs a command with --json; returns the data that it prints."""
    assert main([*words, '--json']) == 0
    return json.loads(capsys.readouterr().out)


def evaluated(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return shown(['eval', *words, '--episodes', '4'], capsys)


def test_eval_of_the_best_is_that_of_its_checkpoint(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_path = evaluated([str(run_dir / 'checkpoints' / 'best.safetensors')], capsys)
    assert evaluated([str(run_dir), '--best'], capsys) == by_path
    (run_dir.parent / 'empty').mkdir(exist_ok=True)
    assert main(['eval', str(run_dir.parent / 'empty'), '--best']) == 2
    assert 'has no best checkpoint' in capsys.readouterr().err


@pytest.mark.parametrize('word', ['run', 'runs', 'last', 'runs/run/new'])
def test_the_newest_run_goes_by_a_name(
    word: str, run_dir: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    for k, name in enumerate(('old', 'new', 'no_checkpoint')):
        ignore = shutil.ignore_patterns('*.safetensors') if name == 'no_checkpoint' else None
        shutil.copytree(run_dir, Path('runs', 'run', name), ignore=ignore)
        os.utime(Path('runs', 'run', name, 'metrics.jsonl'), (2e9 + k, 2e9 + k))
    assert evaluated([word], capsys) == evaluated(['runs/run/new'], capsys)
    said = [text for text in caplog.messages if 'newest' in text]
    assert said == ([] if word == 'runs/run/new' else [f'{word} is runs/run/new, the newest of 3 runs'])


def test_keys_of_the_env_sets_and_max_step_change_what_is_evaluated(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = evaluated([str(run_dir), 'env.max_episode_steps=7'], capsys)
    assert cut['return_mean'] == cut['length_mean'] == 7.0
    assert evaluated([str(run_dir), '--set', 'short'], capsys)['return_max'] == 9.0
    assert evaluated([str(run_dir), '--max-step', '5'], capsys)['episodes_cut'] == 4
    for words, said in (
        (['--set', 'none'], 'it has short'),
        (['policy.type=ppg'], 'env.KEY=value'),
        (['env.id=Pendulum-v1'], 'the policy takes'),
    ):
        assert main(['eval', str(run_dir), *words]) == 2
        assert said in capsys.readouterr().err


def test_sampled_actions_are_others_and_the_same_with_the_same_seed(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sampled = evaluated([str(run_dir), '--stochastic'], capsys)
    assert sampled == evaluated([str(run_dir), '--stochastic'], capsys) != evaluated([str(run_dir)], capsys)


@pytest.mark.parametrize('suffix', ['csv', 'json', 'jsonl'])
def test_output_has_a_row_for_each_episode(
    suffix: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f'episodes.{suffix}'
    summary = evaluated([str(run_dir), '-o', str(file)], capsys)
    text = file.read_text()
    rows: list[dict[str, Any]] = {
        'csv': lambda: list(csv.DictReader(text.splitlines())),
        'json': lambda: json.loads(text),
        'jsonl': lambda: [json.loads(line) for line in text.splitlines()],
    }[suffix]()
    returns = [float(row['return']) for row in rows]
    assert len(returns) == 4 and sum(returns) / 4 == pytest.approx(summary['return_mean'], abs=1e-9)
    assert {'episode', 'return', 'length', 'cut'} <= set(rows[0])


@needs_window
def test_play_shows_the_episodes_of_zoo_eval(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SDL's driver 'dummy' has an invisible window."""
    monkeypatch.setenv('SDL_VIDEODRIVER', 'dummy')
    words = [str(run_dir), '--seed', '2']
    found = shown(['play', *words, '--fps', '1000'], capsys)
    evaluation = shown(['eval', *words, '--episodes', '3', 'env.evaluator_env_num=1'], capsys)
    assert len(found['returns']) == 3 and found['return_mean'] == evaluation['return_mean']
    assert main(['play', str(run_dir), '--max-step', '3', '--episodes', '1', '--fps', '1000']) == 0
    assert capsys.readouterr().out == 'episode 1: return 3.00, length 3, cut off\n'


@needs_window
def test_closing_the_window_ends_play(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pygame

    monkeypatch.setenv('SDL_VIDEODRIVER', 'dummy')
    flips, close = [], pygame.event.Event(pygame.QUIT)
    monkeypatch.setattr(pygame.display, 'flip', lambda: flips.append(pygame.event.post(close)))
    assert main(['play', str(run_dir), '--episodes', '1000000']) == 0
    assert len(flips) == 2 and capsys.readouterr().out == ''  # the first state, and the one that the first step reached


@needs_window
def test_play_without_a_display_is_refused(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ('SDL_VIDEODRIVER', 'DISPLAY', 'WAYLAND_DISPLAY'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr('sys.platform', 'linux')
    assert main(['play', str(run_dir)]) == 2
    said = 'zoo play opens a window, but there is no display here; write a video: zoo video RUN -o FILE.mp4'
    assert capsys.readouterr().err == f'zoo: error: {said}\n'
    assert main(['play', str(run_dir), '--fps', '0']) == 2
    assert '--fps is 0 but' in capsys.readouterr().err


@pytest.mark.soak
@needs_video
@pytest.mark.parametrize(
    ('name', 'options'),
    [('x.mp4', ''), ('x.gif', '--stochastic --best'), ('x.mp4', '--max-step 7 env.max_episode_steps=20')],
)
def test_video_has_the_episodes_of_zoo_eval(
    name: str, options: str, run_dir: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(run_dir), '--episodes', '2', '--seed', '5', *options.split()]
    found = shown(['video', *words, '-o', name], capsys)
    shown(['eval', *words, 'env.evaluator_env_num=1', '-o', 'rows.json'], capsys)
    rows = json.loads(Path('rows.json').read_text())
    assert found['returns'] == [row['return'] for row in rows]
    assert found['lengths'] == [row['length'] for row in rows]
    assert found['frames'] == len(read_video(name)[0]) == sum(found['lengths']) + 2 and found['fps'] == 50


@needs_video
def test_people_read_a_line_for_each_episode_of_a_video(
    run_dir: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(['video', str(run_dir), '-o', 'x.gif', '--episodes', '2', '--max-step', '5', '--fps', '10']) == 0
    *episodes, last = capsys.readouterr().out.splitlines()
    assert episodes == [f'episode {n}: return 5.00, length 5, cut off' for n in (1, 2)]
    assert re.fullmatch(r'x.gif: 1.2 s, 12 pictures, policy of env step \d+', last)


@needs_video
@pytest.mark.parametrize(
    ('words', 'said'),
    [
        ('-o x.avi', 'x.avi must end in .mp4 or .gif'),
        ('-o none/x.mp4', 'there is no folder none'),
        ('-o x.mp4 --episodes 0', '--episodes is 0'),
        ('-o x.mp4 --max-step 0', '--max-step is 0'),
        ('-o x.gif --fps 99', 'fps is 99 but must be more than 0 and at most 50'),
        ('-o x.mp4 --set none', 'there is no evaluation'),
        ('-o x.mp4 env.id=torch env.game=CartPole-v1', 'draws nothing; name an env that does: env.id=CartPole-v1'),
        ('', 'the following arguments are required: --output/-o'),
    ],
)
def test_video_that_is_refused_leaves_no_file(
    words: str, said: str, run_dir: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(['video', str(run_dir), *words.split()]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and '\n' not in error and os.listdir(in_tmp) == []


@needs_video
def test_own_env_of_a_file_needs_consent_like_zoo_eval(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = serial_pipeline(job_config(in_tmp / 'runs', f'{OWN}:LineEnv', max_env_step=64))
    words = ['video', str(result.run_dir), '-o', 'x.mp4']
    refused = run_in(*words, cwd=in_tmp)  # in a new process: this one has loaded its code
    assert refused.returncode == 2 and 'loaded only with your consent' in refused.stderr and not Path('x.mp4').exists()
    found = shown([*words, '--import', str(OWN)], capsys)
    assert found['frames'] == found['lengths'][0] + 1 and found['fps'] == 12


@needs_video
@pytest.mark.soak
@pytest.mark.parametrize(('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_of_a_video_leaves_nothing(number: int, code: int, run_dir: Path, in_tmp: Path) -> None:
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
