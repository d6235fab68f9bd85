"""Output of commands: one line of strict JSON with --json, text without it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from zoo.tools.cli.output import BEST, argument, has_better, in_brackets, print_json, show


def test_json_has_null_for_nan_and_infinity_and_text_for_other_objects(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({'a': float('nan'), 'b': [float('inf'), -float('inf'), 1.5], 'c': Path('x')})
    out = capsys.readouterr().out
    assert out.count('\n') == 1
    assert json.loads(out) == {'a': None, 'b': [None, None, 1.5], 'c': 'x'}


@pytest.mark.parametrize(('as_json', 'out'), [(True, '{"n": 3}\n'), (False, 'three\n')])
def test_show_prints_json_only_if_it_is_asked_for(as_json: bool, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(argparse.Namespace(json=as_json), {'n': 3}, 'three')
    assert capsys.readouterr().out == out


def test_argument_is_a_row_for_add_argument() -> None:
    words, options = argument('-n', '--number', type=int)
    parser = argparse.ArgumentParser()
    parser.add_argument(*words, **options)
    assert parser.parse_args(['-n', '3']).number == 3


def test_better_policy_is_one_that_is_kept_and_whose_evaluation_was_better(tmp_path: Path) -> None:
    assert not has_better(tmp_path, 50.0, 2.0)  # checkpoint.keep_best was off
    (tmp_path / BEST).parent.mkdir()
    (tmp_path / BEST).touch()
    assert has_better(tmp_path, 50.0, 2.0)
    assert not has_better(tmp_path, 2.0, 2.0) and not has_better(tmp_path, None, None)


def test_words_are_in_brackets_if_there_are_any() -> None:
    assert (in_brackets('mean over 3 agents'), in_brackets('')) == (' (mean over 3 agents)', '')
