"""`zoo play` with SDL's driver 'dummy', which has a window that nobody sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zoo import serial_pipeline
from zoo.tools.cli.command import main

pytest.importorskip('pygame')
pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {
        'max_env_step': 1_024,
        'env': {'id': 'CartPole-v1'},
        'policy': {'type': 'ppo', 'collect': {'n_step': 64}, 'eval': {'n_episode': 1}},
        'logger': {'console': 'off', 'tensorboard': False, 'root': str(tmp_path_factory.mktemp('runs'))},
    }
    return serial_pipeline(config).run_dir


def test_play_shows_the_episodes_of_zoo_eval(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv('SDL_VIDEODRIVER', 'dummy')
    words = [str(run_dir), '--seed', '2', '--json']
    assert main(['play', *words, '--fps', '1000']) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(['eval', *words, '--episodes', '3', 'env.evaluator_env_num=1']) == 0
    evaluation = json.loads(capsys.readouterr().out)
    assert len(found['returns']) == 3 and found['return_mean'] == evaluation['return_mean']
    assert main(['play', str(run_dir), '--max-step', '3', '--episodes', '1', '--fps', '1000']) == 0
    assert capsys.readouterr().out == 'episode 1: return 3.00, length 3, cut off\n'


def test_closing_the_window_ends_it(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pygame

    monkeypatch.setenv('SDL_VIDEODRIVER', 'dummy')
    shown = []
    monkeypatch.setattr(
        pygame.display, 'flip', lambda: shown.append(pygame.event.post(pygame.event.Event(pygame.QUIT)))
    )
    assert main(['play', str(run_dir), '--episodes', '1000000']) == 0
    assert len(shown) == 2 and capsys.readouterr().out == ''  # the first state, and the one that the first step reached


def test_without_a_display_it_is_refused_in_one_sentence(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ('SDL_VIDEODRIVER', 'DISPLAY', 'WAYLAND_DISPLAY'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr('sys.platform', 'linux')
    assert main(['play', str(run_dir)]) == 2
    assert capsys.readouterr().err == (
        'zoo: error: zoo play opens a window, but there is no display here; write a video: zoo video RUN -o FILE.mp4\n'
    )
    assert main(['play', str(run_dir), '--fps', '0']) == 2
    assert '--fps is 0 but' in capsys.readouterr().err
