"""Names of user code: their forms, the objects that they refer to, and the messages if an object is not found."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run.processes import without_override
from zoo.config.section import ConfigError
from zoo.config.user_code import (
    absolute_name,
    installed_files,
    is_in_file,
    load_code,
    load_home,
    member,
    members,
    names_code,
    shown_name,
    split_name,
    with_absolute_names,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with Python files that are not modules on the import path."""
    (tmp_path / 'broken_code_of_test.py').write_text('x = 1\nraise KeyError("mine")\n')
    (tmp_path / 'code_of_test.py').write_text('class Outer:\n    inner = len\n\ndef make():\n    return 1\n')
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    sys.modules.pop('code_of_test', None)
    sys.path[:] = path


@pytest.mark.parametrize(
    ('name', 'home', 'attribute'),
    [
        ('a.b:c.d', 'a.b', 'c.d'),
        ('./x/file.py:make', './x/file.py', 'make'),
        (r'C:\x\file.py:make', r'C:\x\file.py', 'make'),
        ('package:ALE/Pong-v5', 'package', 'ALE/Pong-v5'),
        ('file.py', 'file.py', ''),
    ],
)
def test_split_name_parts_home_and_attribute(name: str, home: str, attribute: str) -> None:
    assert split_name(name) == (home, attribute)
    assert is_in_file(name) == (home.endswith('.py') and bool(attribute))


@pytest.mark.parametrize(
    ('text', 'is_code'),
    [('a.b:c', True), ('f.py:c', True), ('/x y/f.py:C', True), ('cuda:0', False), ('a: b', False), ('http://a', False)],
)
def test_names_code_takes_names_of_modules_and_files_only(text: str, is_code: bool) -> None:
    assert names_code(text) == is_code


def test_absolute_name_is_found_from_another_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    name = absolute_name('./code_of_test.py:make')
    assert name == f'{folder}/code_of_test.py:make' == absolute_name(name)
    assert absolute_name('tests.envs:limit_env') == 'tests.envs:limit_env'
    assert shown_name(name) == 'code_of_test.py:make'  # relative to the current folder
    assert shown_name('tests.envs:limit_env') == 'tests.envs:limit_env'
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.chdir(tmp_path_factory.mktemp('other'))
        assert shown_name(name) == name
        assert load_code(name, 'env.id')() == 1


def test_load_code_of_a_file_finds_nested_names_and_runs_it_once(folder: Path) -> None:
    assert load_code('code_of_test.py:Outer.inner', 'key')('ab') == 2
    assert load_code('code_of_test.py:make', 'key') is load_code(f'{folder}/code_of_test.py:make', 'key')


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        (
            'code_of_test.py:mkae',
            "key is 'code_of_test.py:mkae' but code_of_test.py has no 'mkae': did you mean 'make'?",
        ),
        ('code_of_test.py:qqq', "code_of_test.py has no 'qqq'; it has Outer, make."),
        ('broken_code_of_test.py:make', 'broken_code_of_test.py failed in line 2 with KeyError'),
        ('no_file.py:make', "key names the file '{folder}/no_file.py', which is not there; check the path"),
        ('no_module_x:make', "key names the module 'no_module_x', which is not found; check the spelling"),
        (
            'gymnasium.wrappers:FlatenObservation',
            "'gymnasium.wrappers' has no 'FlatenObservation': did you mean 'Flatten",
        ),
    ],
)
def test_load_code_of_nothing_says_what_there_is(folder: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message.format(folder=folder))):
        load_code(name, 'key')


def test_member_is_none_where_a_part_is_missing(folder: Path) -> None:
    home = load_home('code_of_test.py:Outer', 'key')
    assert member(home, 'Outer.inner') is len and members(home, 'Outer.inner') == [home.Outer, len]
    assert member(home, 'Outer.none.x') is None and members(home, 'Outer.none.x') == [home.Outer]


def test_with_absolute_names_changes_names_of_files_only(folder: Path) -> None:
    value = {'type': './f.py:C', 'more': ['f.py:g', 3, 'text', None], 'module': 'a.b:c'}
    assert with_absolute_names(value) == {
        'type': f'{folder}/f.py:C',
        'more': [f'{folder}/f.py:g', 3, 'text', None],
        'module': 'a.b:c',
    }


def test_file_in_a_folder_that_may_not_be_looked_into_is_refused_in_a_sentence(folder: Path) -> None:
    (folder / 'closed').mkdir(mode=0o600)
    with (
        without_override(),
        pytest.raises(ConfigError, match="my.py', which is not there; check the path"),
    ):
        load_code('closed/my.py:Env', 'key')


def test_files_of_an_installed_module_are_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [
        tmp_path / name for name in ('pack_of_test/__init__.py', 'pack_of_test/env.py', 'pack_of_test/more/__init__.py')
    ]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text('raise SystemExit("it was imported")')
    (tmp_path / 'single_of_test.py').write_text('raise SystemExit("it was imported")')
    (tmp_path / 'machine_of_test.so').write_bytes(b'no machine code')
    (tmp_path / 'without_init_of_test').mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    folders = [str(tmp_path)]
    assert installed_files('pack_of_test', folders) == files[:1]
    assert installed_files('pack_of_test.env', folders) == files[:2]
    assert installed_files('pack_of_test.more', folders) == [files[0], files[2]]
    assert installed_files('single_of_test', folders) == [tmp_path / 'single_of_test.py']
    assert installed_files('machine_of_test', folders) == [tmp_path / 'machine_of_test.so']
    for none in (
        'machine_of_test.env',
        'pack_of_test.other',
        'single_of_test.env',
        'without_init_of_test',
        'no_module_of_test',
        'math',
        '',
        'a..b',
    ):
        assert installed_files(none, folders) == []
    assert installed_files('pack_of_test') == []  # it is on the path, but not where packages are installed
