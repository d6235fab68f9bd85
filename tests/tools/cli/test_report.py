"""`zoo report`: as one types it, with mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_runs import made_run, train_seeds, write_run
from zoo.tools.cli.command import main

pytest.importorskip('matplotlib')


@pytest.mark.slow
def test_report_of_an_experiment_by_its_name_is_one_file_that_says_what_was_trained(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_seeds(in_tmp / 'runs', [0, 1])
    capsys.readouterr()
    assert main(['report', 'cartpole_ppo']) == 0
    assert capsys.readouterr().out.startswith('report.html: 2 runs, 0.')
    page = (in_tmp / 'report.html').read_text()
    assert 'cartpole_ppo on CartPole-v1' in page and 'in 2 runs with seeds 0 and 1' in page
    assert str(in_tmp) not in page
    assert sorted(path.name for path in in_tmp.iterdir()) == ['report.html', 'runs']


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['no'], 'no run at no'),
        (['run', '-o', 'a.pdf'], 'must end in .html'),
        (['run', '-o', 'no/a.html'], 'there is no folder no'),
        (['run', '--metric', 'eval/return'], 'did you mean eval/return_mean'),
        (['run', '--video', 'a.avi'], 'must end in .mp4, .webm, .gif'),
        (['run', '--video', 'a.mp4'], 'cannot be read'),
        (['run', '--oput', 'a.html'], 'did you mean --output'),
    ],
)
def test_mistakes_are_one_sentence_and_write_nothing(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    write_run(in_tmp / 'run', made_run([1, 2], [3, 4]))
    assert main(['report', *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count('\n') == 1
    assert [path.name for path in in_tmp.iterdir()] == ['run']


def test_missing_matplotlib_is_named_with_its_extra(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(in_tmp / 'run', made_run([1, 2], [3, 4]))
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    assert main(['report', 'run']) == 2
    assert "zoo report needs matplotlib, which is not installed; run: pip install '.[plot]' in the checkout of zoo" in (
        capsys.readouterr().err
    )
