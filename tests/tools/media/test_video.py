"""Video files hold the pictures that were written to them, and exist completely or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.video_files import read_video
from zoo.core.errors import UserError
from zoo.tools.media import video as video_module
from zoo.tools.media.video import VideoError, VideoFile, preview, write_video

pytest.importorskip('imageio_ffmpeg')
pytestmark = pytest.mark.slow

RAMP = [np.full((400, 600, 3), 20 * i, np.uint8) for i in range(12)]


@pytest.mark.parametrize(('suffix', 'fps', 'error'), [('mp4', 24.0, 3), ('gif', 25.0, 0)])
def test_pictures_come_back_in_order(suffix: str, fps: float, error: int, tmp_path: Path) -> None:
    """Picture i has the grey level i * 20. H.264 changes levels by up to 3, a GIF not at all."""
    path = tmp_path / f'ramp.{suffix}'
    assert write_video(path, RAMP, fps) == 12
    pictures, found_fps = read_video(path)
    assert found_fps == fps and len(pictures) == 12 and pictures[0].shape == (400, 600, 3)
    for i, picture in enumerate(pictures):
        assert np.abs(picture.astype(int) - 20 * i).max() <= error
    assert os.listdir(tmp_path) == [path.name]


def test_small_and_odd_pictures_are_enlarged_by_a_whole_number(tmp_path: Path) -> None:
    """A 7 x 9 picture with one white pixel becomes 252 x 324, 36 times as large; 401 x 601 gets one more row and column."""
    small = np.zeros((7, 9, 3), np.uint8)
    small[2, 3] = 255
    write_video(tmp_path / 'small.gif', [small], 10)
    (picture,), _ = read_video(tmp_path / 'small.gif')
    assert picture.shape == (252, 324, 3)
    assert np.array_equal(picture[18::36, 18::36], small)
    write_video(tmp_path / 'odd.mp4', [np.zeros((401, 601, 3), np.uint8)], 10)
    assert read_video(tmp_path / 'odd.mp4')[0][0].shape == (402, 602, 3)


def test_fps_is_that_of_the_env_and_of_a_gif_50_at_most(tmp_path: Path) -> None:
    for name, fps, want in (('a.mp4', 125.0, 125.0), ('a.gif', 125.0, 50.0), ('b.gif', 20.0, 20.0)):
        with VideoFile(tmp_path / name) as video:
            for image in RAMP:
                video.add(image, fps)
        assert video.fps == want and read_video(tmp_path / name)[1] == want


@pytest.mark.parametrize('error', [ValueError, KeyboardInterrupt])
def test_error_leaves_the_file_before_it_and_nothing_else(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / 'a.mp4'
    path.write_bytes(b'old')
    with pytest.raises(error), VideoFile(path, 10) as video:
        for image in RAMP:
            video.add(image, 10)
        raise error
    assert os.listdir(tmp_path) == ['a.mp4'] and path.read_bytes() == b'old'
    with VideoFile(path, 10) as video:
        video.add(RAMP[0], 10)
        video.discard()
    assert os.listdir(tmp_path) == ['a.mp4'] and path.read_bytes() == b'old'


def test_what_cannot_become_a_video_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / 'folder.mp4').mkdir()
    for path, fps, words in [
        ('folder.mp4', None, 'it is a folder'),
        ('a.mp4', 0.0, 'fps is 0 but must be more than 0 and at most 240'),
        ('a.mp4', float('nan'), 'fps is nan but'),
        ('a.gif', 60.0, 'at most 50 for a .gif file'),
    ]:
        with pytest.raises(UserError, match=words):
            VideoFile(tmp_path / path, fps)
    with pytest.raises(VideoError, match='has no picture'):
        write_video(tmp_path / 'a.mp4', [], 10)
    with pytest.raises(UserError, match='a picture of 3x2 pixels came after one of 600x400'):
        write_video(tmp_path / 'a.mp4', [RAMP[0], np.zeros((2, 3, 3), np.uint8)], 10)
    assert os.listdir(tmp_path) == ['folder.mp4']


def test_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'imageio_ffmpeg', None)
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with pytest.raises(UserError, match=r"a video needs imageio_ffmpeg, .* pip install '\.\[video\]'"):
        VideoFile(tmp_path / 'a.mp4')


def test_ffmpeg_that_fails_is_told_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(video_module.CODECS, '.mp4', ['-c:v', 'nonsense'])
    with pytest.raises(VideoError, match=r'a.mp4 cannot be written \(ffmpeg: '):
        write_video(tmp_path / 'a.mp4', RAMP * 20, 10)
    assert os.listdir(tmp_path) == []


@pytest.mark.long
def test_preview_is_a_small_gif_of_the_first_seconds(tmp_path: Path) -> None:
    """300 pictures at 10 per second are 30 s; the preview shows 15 s of them: 150 pictures, 256 pixels wide."""
    path = tmp_path / 'long.mp4'
    write_video(path, RAMP * 25, 10)
    (tmp_path / 'small.gif').write_bytes(preview(path))
    pictures, fps = read_video(tmp_path / 'small.gif')
    assert fps == 10 and len(pictures) == 150 and pictures[0].shape[1] == 256
    (tmp_path / 'bad.mp4').write_bytes(b'no video')
    with pytest.raises(VideoError, match=r'bad.mp4 cannot be read'):
        preview(tmp_path / 'bad.mp4')
