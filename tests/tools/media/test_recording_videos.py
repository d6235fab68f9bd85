"""logger.video_freq: videos of a run, which change nothing else of it. A run without them loads nothing of them: test_package.py."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import differing, job_config
from tests.video_files import read_video
from zoo import ConfigError, serial_pipeline
from zoo.run.result import TrainResult

pytest.importorskip('imageio_ffmpeg')

LINE = 'tests.film_envs:LineEnv'


def train(root: Path, env_id: str = LINE, **logger: Any) -> TrainResult:
    """4 rounds of 64 env steps, each followed by an evaluation."""
    config = job_config(root, env_id, logger=logger, policy=dict(eval=dict(eval_freq=64)))
    return serial_pipeline(config)


def numbers(result: TrainResult) -> list[dict[str, Any]]:
    """The lines of the log without times."""
    lines = [json.loads(line) for line in (result.run_dir / 'metrics.jsonl').read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(('time/', 'wall_s'))} for line in lines]


@pytest.mark.slow
def test_run_is_the_same_bits_with_videos_and_without_and_tensorboard_shows_them(tmp_path: Path) -> None:
    accumulator = pytest.importorskip('tensorboard.backend.event_processing.event_accumulator').EventAccumulator
    plain, filmed = train(tmp_path / 'plain'), train(tmp_path / 'filmed', video_freq=2, tensorboard=True)
    ours, others = (result.policy.state_dict() for result in (plain, filmed))
    assert differing(ours, others) == []
    assert numbers(plain) == numbers(filmed) and len(numbers(plain)) == 8
    assert plain.last_return == filmed.last_return and not (plain.run_dir / 'videos').exists()
    events = accumulator(str(filmed.run_dir / 'tb'), size_guidance={'images': 0})
    events.Reload()
    images = events.Images('eval/video')
    assert [image.step for image in images] == [128, 256]
    assert images[0].encoded_image_string[:6] == b'GIF89a' and (images[0].width, images[0].height) == (256, 70)


@pytest.mark.slow
def test_each_second_evaluation_has_a_video_of_its_first_episode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One evaluation env and one episode: the video is of the episode whose return is logged."""
    evaluation = dict(env=dict(evaluator_env_num=1), policy=dict(eval=dict(eval_freq=64, n_episode=1)))
    config = job_config(tmp_path, LINE, logger=dict(video_freq=2), **evaluation)
    with caplog.at_level(logging.INFO, 'zoo.tools.media.recording'):
        result = serial_pipeline(config)
    assert sorted(path.name for path in (result.run_dir / 'videos').iterdir()) == ['step_128.mp4', 'step_256.mp4']
    evaluations = {row['env_step']: row for row in numbers(result) if 'eval/return_mean' in row}
    for step in (128, 256):
        pictures, fps = read_video(result.run_dir / 'videos' / f'step_{step}.mp4')
        assert len(pictures) == evaluations[step]['eval/episode_len_mean'] + 1 and fps == 12
    said = re.findall(r'video of env step (\d+): return (-?[\d.]+), length (\d+)', caplog.text)
    want = [(str(s), evaluations[s]['eval/return_mean'], evaluations[s]['eval/episode_len_mean']) for s in (128, 256)]
    assert [(step, float(return_), float(length)) for step, return_, length in said] == want


@pytest.mark.slow
@pytest.mark.parametrize('first', [128, 192])
def test_run_that_continues_has_the_videos_of_one_that_was_not_ended(first: int, tmp_path: Path) -> None:
    config = job_config(tmp_path, LINE, logger=dict(video_freq=2), policy=dict(eval=dict(eval_freq=64)))
    begun = serial_pipeline(config, max_env_step=first)
    result = serial_pipeline(resume=begun.run_dir, max_env_step=256)
    assert result.run_dir == begun.run_dir
    assert sorted(path.name for path in (result.run_dir / 'videos').iterdir()) == ['step_128.mp4', 'step_256.mp4']


@pytest.mark.slow
def test_evaluations_after_each_round_are_counted_by_rounds(tmp_path: Path) -> None:
    """Rounds of 64 steps pass an eval_freq of 16 four times, and are evaluated once."""
    config = job_config(tmp_path, LINE, logger=dict(video_freq=3), policy=dict(eval=dict(eval_freq=16)))
    begun = serial_pipeline(config, max_env_step=128)
    result = serial_pipeline(resume=begun.run_dir, max_env_step=256)
    assert [path.name for path in (result.run_dir / 'videos').iterdir()] == ['step_192.mp4']


def test_env_without_pictures_is_refused_before_there_is_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'logger.video_freq is 3 but no video can be made: env .* it has no render'):
        train(tmp_path, 'tests.film_envs:BlindEnv', video_freq=3)
    assert not list(tmp_path.iterdir())


def test_missing_extra_is_refused_before_there_is_a_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    said = r"needs imageio_ffmpeg, .* '\.\[video\]' in the checkout of zoo; or leave it 0"
    with pytest.raises(ConfigError, match=said):
        train(tmp_path, video_freq=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_video_that_fails_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file where the folder should be."""
    config = job_config(tmp_path, LINE, policy=dict(eval=dict(eval_freq=64)), callbacks=[_Blocker])
    config['logger']['video_freq'] = 1
    result = serial_pipeline(config)
    assert result.env_step == 256
    assert 'no video of env step 64: FileExistsError' in caplog.text and 'training continues' in caplog.text


class _Blocker:
    def on_start(self, job: Any) -> None:
        (job.run_dir / 'videos').write_text('')
