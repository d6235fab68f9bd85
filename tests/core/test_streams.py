"""Text for a terminal or a file: without control characters and passwords."""

from __future__ import annotations

import logging
import sys

import pytest

from zoo.core.streams import LogFormat, say, visible, without_passwords, write_line

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
