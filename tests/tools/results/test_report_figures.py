"""The film in a report: which file it is, and what is refused."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

pytest.importorskip('matplotlib')

from tests.real_runs import made_run, write_run
from tests.tools.results.test_report import whole_run
from zoo.core.errors import UserError
from zoo.tools.results import report_figures
from zoo.tools.results.read import read_run
from zoo.tools.results.report import report
from zoo.tools.results.report_figures import newest_video, read_video, step_of

GIF = b'GIF89a\x01\x00\x01\x00\x00\x00\x00;'
MP4 = b'\x00\x00\x00\x18ftypmp42' + bytes(16)


def test_newest_video_is_that_of_the_highest_env_step_and_whole(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / 'a', made_run([1, 2], [1, 2])))
    assert newest_video(run) is None
    (run.path / 'videos').mkdir()
    for name in ('step_900.mp4', 'step_000001000.mp4', '.step_2000.1.tmp.mp4', 'notes.txt'):
        (run.path / 'videos' / name).write_bytes(MP4)
    path = newest_video(run)
    assert path is not None and path.name == 'step_000001000.mp4' and step_of(path) == 1000


@pytest.mark.parametrize(('name', 'data', 'tag'), [('a.mp4', MP4, 'video'), ('a.GIF', GIF, 'img')])
def test_read_video_is_shown_by_the_element_of_its_kind_with_its_bytes(
    tmp_path: Path, name: str, data: bytes, tag: str
) -> None:
    (tmp_path / name).write_bytes(data)
    pytest.importorskip('matplotlib')
    (tmp_path / name).rename(tmp_path / f'a "film"{name}')
    page = report([whole_run()], video=tmp_path / f'a "film"{name}')
    shown = page.partition('<figure class="video">')[2].strip()
    assert shown.startswith(f'<{tag} ') and f'="a &#34;film&#34;{name}"' in shown
    assert base64.b64decode(shown.partition('base64,')[2].partition('"')[0]) == data


def test_read_video_refuses_what_no_page_can_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, data: bytes | None = None) -> str:
        if data is not None:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError) as error:
            read_video(tmp_path / name)
        return str(error.value)

    assert 'must end in .mp4, .webm, .gif' in refused('a.avi', MP4)
    assert 'cannot be read (No such file' in refused('no.mp4')
    assert 'is no mp4 file' in refused('a.mp4', GIF)
    assert 'is no gif file' in refused('a.gif', b'')
    monkeypatch.setattr(report_figures, 'MAX_BYTE', 1 << 20)
    assert 'has 2 MB but a page takes 1 MB' in refused('b.mp4', MP4 + bytes(2 << 20))
