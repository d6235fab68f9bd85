"""Files that are written completely or stay unchanged; safe opening of files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.run.processes import fill, small_disk
from zoo.config.source import load_config
from zoo.config.yaml_io import save_yaml
from zoo.core.files import is_in_place, open_without_link, read_small, synced_together, whole_file


def test_whole_file_that_is_not_finished_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / 'file'
    path.write_text('old')
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(b'ne')
        file.flush()
        _ = 1 / 0
    assert path.read_text() == 'old' and os.listdir(tmp_path) == ['file']
    with whole_file(path) as file:
        file.write(b'new')
    assert path.read_text() == 'new' and os.listdir(tmp_path) == ['file']


def test_files_that_are_synced_together_are_there_at_once_and_no_file_need_stay(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), synced_together():
        with synced_together(), whole_file(tmp_path / 'first') as file:
            file.write(b'1')
        with whole_file(tmp_path / 'second') as file:
            file.write(b'2')
        assert sorted(os.listdir(tmp_path)) == ['first', 'second'] and (tmp_path / 'first').read_bytes() == b'1'
        (tmp_path / 'second').unlink()  # as an older checkpoint
        _ = 1 / 0
    assert os.listdir(tmp_path) == ['first']


def test_config_on_a_full_disk_stays_as_it_was(tmp_path: Path) -> None:
    with small_disk(tmp_path / 'disk', '32k') as disk:
        save_yaml({'seed': 1}, disk / 'config.yaml')
        fill(disk)
        with pytest.raises(OSError, match='No space left'):
            save_yaml({'seed': 2, 'text': 'x' * 10_000}, disk / 'config.yaml')
        assert load_config(str(disk / 'config.yaml'))[0] == {'seed': 1}
        assert sorted(os.listdir(disk)) == ['config.yaml', 'other']


def test_file_is_in_place_until_it_or_its_folder_is_removed_moved_or_replaced(tmp_path: Path) -> None:
    folder = tmp_path / 'a' / 'b'
    folder.mkdir(parents=True)
    with open(folder / 'file', 'w') as file:
        opened = os.fstat(file.fileno())
        assert is_in_place(folder / 'file', opened)
        (tmp_path / 'a').rename(tmp_path / 'c')
        assert not is_in_place(folder / 'file', opened)
        folder.mkdir(parents=True)
        (folder / 'file').touch()
        assert not is_in_place(folder / 'file', opened)
        assert is_in_place(tmp_path / 'c/b/file', opened)
        shutil.rmtree(tmp_path / 'c')
        assert not is_in_place(tmp_path / 'c/b/file', opened)


def test_only_a_regular_file_of_a_run_folder_is_opened(tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('text')
    (tmp_path / 'link').symlink_to(tmp_path / 'file')
    (tmp_path / 'zeros').symlink_to('/dev/zero')
    os.mkfifo(tmp_path / 'pipe')
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
        os.close(open_without_link(tmp_path / 'file', flags))
        for name in ('link', 'zeros', 'pipe'):
            with pytest.raises(OSError, match=r'symbolic links|no regular file'):
                open_without_link(tmp_path / name, flags)
    with pytest.raises(OSError, match='no regular file'):
        open_without_link('/dev/zero', os.O_RDONLY)
    with pytest.raises(OSError):
        open_without_link(tmp_path / 'pipe', os.O_WRONLY)  # no process reads from it


def test_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / 'file').write_bytes(b'x' * 100)
    assert read_small(tmp_path / 'file', 100) == b'x' * 100
    with pytest.raises(OSError, match='more than 99 bytes'):
        read_small(tmp_path / 'file', 99)


def test_whole_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / 'precious').write_text('text')
    (tmp_path / f'file.{os.getpid()}.tmp').symlink_to(tmp_path / 'precious')
    with pytest.raises(OSError, match='symbolic links'), whole_file(tmp_path / 'file') as file:
        file.write(b'new')
    assert (tmp_path / 'precious').read_text() == 'text'
