"""Passwords in URIs of the config are used and never shown; those of sinks are in no file of the run, those of envs are kept."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import gymnasium
import pytest

from tests.policy_envs import job_config
from zoo.core.errors import UserError
from zoo.core.registry import SINK_REGISTRY
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint import consent
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.config import resolve_config
from zoo.tools.cli.command import main

URI = 'http://me:s3cret@localhost:1'
used: list[str] = []


class Remote:
    """A sink with an address."""

    def __init__(self, *, uri: str = '') -> None:
        used.append(uri)

    def open(self, cfg: object, run_dir: Path) -> None:
        logging.getLogger('zoo').warning('cannot be reached: %s', used[-1])

    def write(self, env_step: int, metrics: object) -> None: ...

    def close(self) -> None: ...


def remote_env(url: str, sinks: list[str]) -> gymnasium.Env:
    used.extend([url, *sinks])
    return gymnasium.make('CartPole-v1')


@pytest.mark.long
@pytest.mark.slow
def test_password_is_used_and_is_in_no_file_of_the_run_and_in_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip('matplotlib')  # zoo report
    used.clear()
    monkeypatch.setattr(consent, 'given', set())
    monkeypatch.setattr(sys, 'argv', ['zoo', 'train', f'logger.sinks=[{{type: mine, uri: {URI}}}]'])
    config = job_config(tmp_path, 'CartPole-v1', policy={'eval': {'n_episode': 1}})
    config['logger']['sinks'] = [{'type': f'{__name__}:Remote', 'uri': URI}]
    run = serial_pipeline(config).run_dir
    assert used == [URI]
    assert main(['report', str(run), '-o', str(run / 'report.html')]) == 0
    assert main(['runs', str(run), '--json']) == 0
    files = [file for file in run.rglob('*') if file.is_file()]
    assert {'config.yaml', 'result.json', 'report.html'} <= {file.name for file in files}
    assert [file.name for file in files if b's3cret' in file.read_bytes()] == []
    assert load_checkpoint(run).meta['config']['logger']['sinks'][0]['uri'] == 'http://***@localhost:1'
    said = capsys.readouterr()
    assert 's3cret' not in said.out + said.err


@pytest.mark.long
@pytest.mark.slow
def test_password_of_an_env_continues_with_the_run_and_is_in_no_page_as_those_of_an_older_run(tmp_path: Path) -> None:
    """The env needs its password at a resume: with stars instead it would fail, or read something else."""
    pytest.importorskip('matplotlib')  # zoo report
    config = job_config(tmp_path, 'tests.pipeline.test_secrets:remote_env', policy={'eval': {'n_episode': 1}})
    config['env']['kwargs'] = {'url': URI, 'sinks': [URI]}
    used.clear()
    run = serial_pipeline(config).run_dir
    more = [f'max_env_step={load_checkpoint(run).meta["env_step"] + 1}', 'logger.console=off']
    serial_pipeline(resume=run, overrides=more, trust=True)
    assert set(used) == {URI}
    older = {
        run / 'config.yaml': ('sinks: []', f'sinks: [{{type: mlflow, uri: "{URI}"}}]'),
        run / 'result.json': ('"command": [', f'"command": ["zoo", "{URI}", '),
    }
    for file, (now, then) in older.items():
        text = file.read_text()
        file.write_text(text.replace(now, then))
        assert file.read_text() != text
    assert main(['report', str(run), '-o', str(tmp_path / 'report.html')]) == 0
    assert 's3cret' not in (tmp_path / 'report.html').read_text()


@pytest.mark.long
@pytest.mark.slow
def test_tracker_of_a_run_that_continues_is_named_without_stars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def client(tracking_uri: str) -> None:
        asked.append(tracking_uri)
        raise ConnectionError

    monkeypatch.setattr(pytest.importorskip('mlflow.tracking'), 'MlflowClient', client)
    for uri in (URI, 'http://***@localhost:1'):
        sink = SINK_REGISTRY.get('mlflow')(SINK_REGISTRY.get('mlflow').config(uri=uri))
        sink.open(resolve_config(job_config(tmp_path)), tmp_path), sink.close()
    # each URI is asked at open and again at close; without a user in it, MLflow reads MLFLOW_TRACKING_USERNAME and _PASSWORD
    assert asked == [URI, URI, 'http://localhost:1', 'http://localhost:1']


def test_error_of_a_config_shows_no_password(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        serial_pipeline(job_config(tmp_path, env={'id': 'CartPole-v1', 'game': URI}))
    assert 's3cret' not in str(error.value)


EVIL = 'a\x1b]0;title\x07b\x1b[2Jc\u202ed'


def test_terminal_codes_of_a_run_folder_are_shown_as_text(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished
    text = (run / 'config.yaml').read_text()
    evil = EVIL.encode('unicode_escape').decode()
    for old, new in (
        ('exp_name: ', f'exp_name: "{evil}"  #'),
        ('  id: ', f'  id: "{evil}"  #'),
        ('seed: ', 'seed: 1 #'),
    ):
        text = text.replace(old, new, 1)
    (run / 'config.yaml').write_text(text)
    for words in (['runs', str(tmp_path)], ['compare', str(run), str(run)], ['runs', str(tmp_path / EVIL)]):
        main(words)
    said = capsys.readouterr()
    assert not {'\x1b', '\x07', '\u202e'} & set(said.out + said.err)
    assert r'a\x1b]0;title\x07b\x1b[2Jc' in said.out + said.err
