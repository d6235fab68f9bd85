"""Figures and videos of a report: the newest whole video of a run, and the videos that no page can show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_runs import made_run, write_run
from zoo.core.errors import UserError
from zoo.tools.results import report_figures
from zoo.tools.results.read import read_run
from zoo.tools.results.report_figures import newest_video, read_video, step_of

MP4 = b'\x00\x00\x00\x18ftypmp42' + bytes(16)
GIF = b'GIF89a\x01\x00\x01\x00\x00\x00\x00;'


def test_newest_video_is_that_of_the_highest_env_step_and_whole(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / 'a', made_run([1, 2], [1, 2])))
    assert newest_video(run) is None
    (run.path / 'videos').mkdir()
    for name in ('step_900.mp4', 'step_000001000.mp4', '.step_2000.1.tmp.mp4', 'notes.txt'):
        (run.path / 'videos' / name).write_bytes(MP4)
    path = newest_video(run)
    assert path is not None and path.name == 'step_000001000.mp4' and step_of(path) == 1000


def test_read_video_refuses_what_no_page_can_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_figures, 'MAX_BYTE', 1 << 20)
    for name, data, said in (
        ('a.mp4', GIF, 'is no mp4 file'),
        ('a.gif', b'', 'is no gif file'),
        ('b.mp4', MP4 + bytes(2 << 20), 'has 2 MB but a page takes 1 MB'),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=said):
            read_video(tmp_path / name)
