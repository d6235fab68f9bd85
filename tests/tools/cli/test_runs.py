"""`zoo runs` as typed."""

import io
import json
from pathlib import Path

import pytest

from tests.real_runs import made_run, write_run
from tests.tools.cli.processes import run_in
from zoo.tools.cli.command import main


@pytest.mark.slow
def test_runs_are_listed(tmp_path: Path) -> None:
    write_run(tmp_path / 'runs' / 'x' / 'first', made_run([10], [2.0], name='x'))
    write_run(tmp_path / 'runs' / 'x' / 'second', made_run([10], [4.0], name='x', seed=1))
    listed = run_in('runs', '--sort', 'return', cwd=tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in listed] == ['run', 'runs/x/second', 'runs/x/first']
    found = json.loads(run_in('runs', 'runs/x/first', '--json', cwd=tmp_path).stdout)['runs']
    assert [(run['last'], run['seed']) for run in found] == [(2.0, 0)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_is_shown_less_than_all_columns(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = 'with_a_name_that_is_longer_than_any_column_of_a_table_should_ever_be'
    for kind in ('first', 'other'):
        write_run(in_tmp / 'runs' / kind, made_run([10], [2.0], name=f'{kind}_{long}'))
    assert main(['runs']) == 0
    printed = capsys.readouterr().out
    assert f'first_{long}  ' in printed and f'other_{long}  ' in printed
    monkeypatch.setenv('COLUMNS', '80')
    monkeypatch.setattr('sys.stdout', terminal := Terminal())
    assert main(['runs']) == 0
    lines = terminal.getvalue().splitlines()
    assert lines[0].split()[:2] == ['run', 'seed'] and all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    'words, message',
    [
        (['rums'], 'no run at rums; did you mean runs'),
        (['--sort', 'retrun'], 'must be one of time, return, steps, name'),
        (['runs/other'], 'is no config of a run'),
    ],
)
def test_mistakes_are_answered(
    words: list[str], message: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(in_tmp / 'runs' / 'x', made_run([10], [2.0]))
    foreign(in_tmp / 'runs' / 'other')
    assert main(['runs', *words]) == 2
    assert message in capsys.readouterr().err


def test_folder_of_something_else_hides_no_run(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    write_run(in_tmp / 'runs' / 'x', made_run([10], [2.0]))
    foreign(in_tmp / 'runs' / 'other')
    assert main(['runs']) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 and 'other/config.yaml is no config of a run' in caplog.text


def test_without_a_folder_it_says_how_to_train(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['runs']) == 2
    assert 'there is no folder runs here; train something' in capsys.readouterr().err


def foreign(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / 'config.yaml').write_text('database: here\n')
