"""The text shown for errors, without control characters and passwords; a missing package and its extra."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import zoo
from zoo.core.errors import (
    UserError,
    around,
    closest,
    listed,
    missing_extra,
    need,
    pickled_error,
    place_of,
    show_error,
    unpickled_error,
)
from zoo.core.streams import LogFormat, say, visible, without_passwords, write_line


@pytest.mark.parametrize(
    ('error', 'n_max', 'text'),
    [
        (ValueError('two\n  lines'), None, 'ValueError: two lines'),
        (ValueError(), None, 'ValueError'),
        (ValueError(' \n'), None, 'ValueError'),
        (KeyError('long' * 9), 5, "KeyError: 'long"),
        (KeyboardInterrupt(), 5, 'KeyboardInterrupt'),
    ],
)
def test_show_error_is_type_and_message_on_one_line(error: BaseException, n_max: int | None, text: str) -> None:
    assert show_error(error, n_max) == text


def test_place_of_an_error_is_its_last_line() -> None:
    with pytest.raises(ZeroDivisionError) as error:
        1 // 0  # noqa: B018
    assert place_of(error.value).startswith('test_errors.py:')


class TwoWordsError(Exception):
    """Can be pickled, but not be made again: pickle passes the message alone."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f'{one} {two}')


def test_error_comes_back_from_its_pickled_form() -> None:
    found = unpickled_error(pickled_error(KeyError('a')))
    assert isinstance(found, KeyError) and found.args == ('a',)
    local = type('LocalError', (Exception,), {})
    assert pickled_error(local()) is None and pickled_error(TwoWordsError('a', 'b')) is None
    assert unpickled_error(None) is None and unpickled_error(b'') is None and unpickled_error(pickle.dumps(1)) is None


def test_package_that_is_there_is_found_and_not_imported() -> None:
    before = set(sys.modules)
    need('wsgiref', 'plot', 'zoo plot')
    need('json', 'plot', 'zoo plot')
    assert 'wsgiref' not in set(sys.modules) - before


@pytest.mark.parametrize('module', ['no_such_package', 'no_such_package.part', 'colorsys'])
def test_package_that_is_not_there_is_named_with_its_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'colorsys', None)  # importing it raises ImportError
    with pytest.raises(UserError) as caught:
        need(module, 'plot', 'zoo plot')
    words = f"zoo plot needs {module}, which is not installed; run: pip install '.[plot]' in the checkout of zoo"
    assert str(caught.value) == words


def test_missing_extra_of_an_installed_wheel_names_the_packages(tmp_path: Path) -> None:
    """A folder like site-packages, with the package and its METADATA but no setup.py."""
    (tmp_path / 'zoo').symlink_to(Path(zoo.__file__).parent)
    stated = tmp_path / 'policy_zoo-9.0.dist-info'
    stated.mkdir()
    (stated / 'METADATA').write_text(
        'Metadata-Version: 2.1\nName: policy-zoo\nVersion: 9.0\n'
        'Requires-Dist: numpy>=1.26\n'
        'Requires-Dist: matplotlib>=3.8; extra == "plot"\n'
        'Requires-Dist: envpool>=1.2; (python_version >= "3.11" and platform_system == "Linux") and extra == "envpool"\n'
        "Requires-Dist: gymnasium[mujoco]>=1.1 ; extra == 'mujoco'\n"
        "Requires-Dist: mujoco>=3.1.3 ; extra == 'mujoco'\n"
    )
    code = """
from zoo.core.errors import install_extra
for extra in ('plot', 'envpool', 'mujoco', 'other'):
    print(install_extra(extra))
"""
    env = {**os.environ, 'PYTHONPATH': str(tmp_path)}
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "pip install 'matplotlib>=3.8'",
        "pip install 'envpool>=1.2'",
        "pip install 'gymnasium[mujoco]>=1.1' 'mujoco>=3.1.3'",
        "pip install '.[other]' in the checkout of zoo",
    ], done.stderr


def test_missing_extra_says_what_to_install() -> None:
    words = (
        "env 'atari' needs the atari extra, which is not installed; run: pip install '.[atari]' in the checkout of zoo"
    )
    assert missing_extra("env 'atari'", 'atari') == words


@pytest.mark.parametrize(
    ('n', 'wanted', 'text'),
    [(8, 3, '2 or 4'), (8, 100, '8'), (7, 2, '1 or 7'), (12, 4, '4'), (1, 1, '1'), (256, 100, '64 or 128')],
)
def test_nearest_divisors_on_both_sides(n: int, wanted: int, text: str) -> None:
    assert around(n, wanted) == text


# --- text for a terminal or a file ---


EVIL = 'a\x1b]0;title\x07b\x1b[2Jc\u202ed\r\x9be'
SHOWN = r'a\x1b]0;title\x07b\x1b[2Jc\u202ed\r\x9be'


def test_control_characters_are_visible_wherever_a_line_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    write_line(f'{EVIL}\n\tmore')
    say(EVIL)
    record = logging.LogRecord('zoo', logging.WARNING, '', 0, '%s', (EVIL,), None)
    assert LogFormat().format(record) == f'zoo: {SHOWN}'
    out, err = capsys.readouterr()
    assert out == f'{SHOWN}\n\tmore\n' and err == f'{SHOWN}\n'


def test_own_colors_stay_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
    monkeypatch.delenv('NO_COLOR', raising=False)
    monkeypatch.setenv('TERM', 'xterm')
    record = logging.LogRecord('zoo', logging.WARNING, '', 0, 'x\x1b[31m', None, None)
    assert LogFormat().format(record) == '\x1b[33mzoo:\x1b[0m x\\x1b[31m'
    say('wrong\x1b[2J', '\x1b[31mzoo: error:\x1b[0m ')
    assert capsys.readouterr().err == '\x1b[31mzoo: error:\x1b[0m wrong\\x1b[2J\n'


@pytest.mark.parametrize(
    ('text', 'shown'),
    [
        ('http://me:s3cret@host:5000/x', 'http://***@host:5000/x'),
        ("['postgresql://u:p%40ss@h/db', 'x@y']", "['postgresql://***@h/db', 'x@y']"),
        ('https://token@host and https://a:b@c', 'https://***@host and https://***@c'),
        ('http://me:p@ss@host', 'http://***@host'),
        ('http://host/a@b http://host?who=a@b', 'http://host/a@b http://host?who=a@b'),
        ('http:/me:s3cret@host/x of a Path', 'http:/***@host/x of a Path'),
        ('C:/me@home and /a:/b@c', 'C:/me@home and /a:/b@c'),
        ('sqlite:////tmp/a@b.db, mail me@home', 'sqlite:////tmp/a@b.db, mail me@home'),
    ],
)
def test_user_and_password_of_a_uri_are_left_out(text: str, shown: str) -> None:
    assert without_passwords(text) == shown == visible(text)


def test_line_is_written_to_an_stdout_that_has_no_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(sys, 'stdout', SimpleNamespace(write=lines.append, flush=lambda: None))
    write_line('käse')
    assert lines == ['käse\n']


@pytest.mark.parametrize(
    ('name', 'found'),
    [
        ('cartpol_ppo', ['cartpole_ppo']),
        ('CARTPOLE_PPO', ['cartpole_ppo']),
        ('pendulum', ['pendulum_ppo']),
        ('xyz', []),
        ('walker1d_ppo', ['walker2d_ppo', 'walker3d_ppo']),  # equally close: both, in order of names
    ],
)
def test_closest_names_only_those_about_as_close_as_the_best(name: str, found: list[str]) -> None:
    assert closest(name, ['walker3d_ppo', 'walker2d_ppo', 'pendulum_ppo', 'acrobot_ppo', 'cartpole_ppo']) == found


def test_listed_names_are_the_first_ones_and_how_many_more():
    assert listed(['a', 'b'], 2) == 'a, b'
    assert listed(('a', 'b', 'c'), 2) == 'a, b and 1 more'
