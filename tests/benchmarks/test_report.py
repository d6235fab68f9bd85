"""benchmarks/report.py: the functions that all benchmark tables share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import report
from report import holds, last_json_line, last_words, one_thread_env, results_folder, settings, table, without_folders
from zoo import __version__


def test_last_json_line_ignores_what_a_library_printed():
    assert last_json_line('banner\n{"a": 1}\n\n{"a": 2}\n') == {'a': 2}
    assert last_json_line('Traceback') is None


def test_table_has_a_header_a_rule_and_the_rows():
    assert table(['x', 'y'], [[1, 2]]) == '| x | y |\n| --- | --- |\n| 1 | 2 |\n'


def test_holds_sees_changed_values_but_no_keys_that_are_new():
    assert holds({'a': {'b': 1, 'new': 2}, 'c': [1]}, {'a': {'b': 1}, 'c': [1]})
    assert not holds({'a': {'b': 2}}, {'a': {'b': 1}})
    assert not holds({'a': {}}, {'a': {'b': 1}})
    assert not holds({'a': 1}, {'a': {'b': 1}})
    assert not holds({'kwargs': {'new': 1}}, {'kwargs': {}})


def test_settings_are_the_same_with_another_log_folder_or_number_of_threads():
    one, other = (
        {'logger': {'root': root}, 'policy': {'n_thread': n, 'type': 'ppo'}, 'seed': 3}
        for root, n in (('here', 1), ('there', None))
    )
    assert settings(one) == settings(other) == {'policy': {'type': 'ppo'}, 'seed': 3}


def test_results_name_no_folder_of_the_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, 'REPO', Path('/a/checkout'))
    monkeypatch.setenv('HOME', '/a')
    said = '/a/checkout/.venv/x.py:3: UserWarning: see /a/cache and /b/a/c\n'
    assert without_folders(said) == '.venv/x.py:3: UserWarning: see ~/cache and /b/a/c\n'


def test_last_words_are_the_error_without_its_traceback():
    said = 'Traceback (most recent call last):\n  File "x"\nValueError: 3 is odd\n\n'
    assert last_words(said) == 'ValueError: 3 is odd'
    assert last_words(' \n') == 'it said nothing'


def test_results_go_to_the_chosen_folder_else_to_that_of_the_place_else_for_a_look_to_a_temporary_one(tmp_path: Path):
    assert results_folder(tmp_path, quick=True) == tmp_path
    assert results_folder(None, quick=False) == report.REPO / 'benchmarks' / 'results'
    assert report.REPO not in results_folder(None, quick=True).parents


def test_children_find_this_checkout_but_not_the_folder_of_an_installed_zoo(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv('PYTHONPATH', 'mine')
    assert one_thread_env(Path('more'))['PYTHONPATH'].split(':') == ['more', str(report.REPO), 'mine']
    monkeypatch.setattr(report, 'IN_CHECKOUT', False)
    assert one_thread_env()['PYTHONPATH'] == 'mine'


def test_commit_of_an_installed_zoo_is_its_version(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, 'IN_CHECKOUT', False)
    assert report.git_commit() == f'zoo {__version__}'


@pytest.mark.slow
def test_commit_of_sources_inside_another_projects_checkout_is_not_the_commit_of_that(tmp_path: Path):
    git = ['git', '-c', 'user.name=x', '-c', 'user.email=x@y', '-C', str(tmp_path)]
    subprocess.run([*git, 'init', '-q'], check=True)
    subprocess.run([*git, 'commit', '-q', '--allow-empty', '-m', 'theirs'], check=True)
    sources = tmp_path / 'policy_zoo-0.1.0'
    (sources / 'benchmarks').mkdir(parents=True)
    (sources / 'setup.py').touch()
    (sources / 'benchmarks' / 'report.py').write_text(Path(report.__file__).read_text())
    code = f'import sys; sys.path[:0] = ["benchmarks", {str(report.REPO)!r}]; import report; print(report.git_commit())'
    done = subprocess.run([sys.executable, '-c', code], cwd=sources, capture_output=True, text=True, check=True)
    assert done.stdout == f'zoo {__version__}\n'
