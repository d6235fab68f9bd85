"""MLflow against its real local store: metrics, parameters, best checkpoint, resume, failures."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import job_config
from zoo.config.section import Config, ConfigError
from zoo.pipeline import serial_pipeline
from zoo.run.base_config import LoggerConfig
from zoo.run.log.logger import Logger
from zoo.run.log.trackers import MlflowConfig, MlflowSink

pytestmark = pytest.mark.filterwarnings('ignore')  # MLflow uses what SQLAlchemy deprecates


def client_of(folder: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(f'sqlite:///{folder}/mlflow.db')


@pytest.fixture(scope='module', autouse=True)
def mlflow() -> None:
    for name in ('mlflow.tracking', 'sqlalchemy'):  # only when a test needs them: their import takes a second
        pytest.importorskip(name)


@pytest.fixture(scope='module')
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables; it is shared, since MLflow takes seconds to make them."""
    folder = tmp_path_factory.mktemp('mlflow')
    client_of(folder).search_experiments()
    return folder / 'mlflow.db'


@pytest.fixture
def store(empty_store: Path, tmp_path: Path) -> Path:
    shutil.copy(empty_store, tmp_path / 'mlflow.db')
    return tmp_path


def sink(folder: Path, **options: Any) -> dict[str, Any]:
    return {'type': 'mlflow', 'uri': f'sqlite:///{folder}/mlflow.db', **options}


def runs_of(folder: Path, experiment: str) -> tuple[Any, list[Any]]:
    client = client_of(folder)
    return client, client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


@pytest.mark.soak
def test_run_and_its_resume_are_one_run_with_all_metrics(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store)  # MLflow keeps artifacts in the current folder
    sinks = [sink(store, tags={'who': 'me'})]
    config = job_config(store, exp_name='tracked', seed=3, policy={'eval': {'eval_freq': 64}})
    config['logger']['sinks'] = sinks
    first = serial_pipeline(config)
    second = serial_pipeline(resume=first.run_dir, max_env_step=512)
    assert second.run_dir == first.run_dir
    client, (run,) = runs_of(store, 'tracked')
    assert (run.info.run_name, run.info.status) == (first.run_dir.name, 'FINISHED')
    assert (run.data.params['seed'], run.data.params['policy.learn.batch_size']) == ('3', '32')
    assert run.data.tags['who'] == 'me'
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, 'learn/train_iter')]
    assert steps == sorted(set(steps)) and steps[-1] > 256
    assert [metric.key for metric in client.get_metric_history(run.info.run_id, 'eval/return_mean')]
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {'config.yaml', 'checkpoints'}
    (best,) = client.list_artifacts(run.info.run_id, 'checkpoints')
    assert best.path == 'checkpoints/best.safetensors'


def logger_of(folder: Path, run_dir: Path, **options: Any) -> Logger:
    cfg = LoggerConfig(console='off', tensorboard=False, sinks=[sink(folder, upload=False, **options)])
    run_dir.mkdir(exist_ok=True)
    return Logger(run_dir, cfg, 'exp', 100, run_cfg=Config({'exp_name': 'exp', 'seed': 1}))


def log_some(folder: Path, run_dir: Path, **options: Any) -> None:
    with logger_of(folder, run_dir, **options) as log:
        log.write(8, {'learn/kl [nats]': 0.5, 'bad': math.nan})


@pytest.mark.long
@pytest.mark.slow
def test_names_and_numbers_that_mlflow_does_not_take(store: Path) -> None:
    log_some(store, store / 'run', experiment='mine', name='called so')
    _, (run,) = runs_of(store, 'mine')
    assert run.info.run_name == 'called so'
    assert run.data.metrics['learn/kl _nats_'] == 0.5 and math.isnan(run.data.metrics['bad'])


@pytest.mark.long
@pytest.mark.slow
def test_run_that_is_gone_is_recreated_with_a_warning(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    (store / 'run').mkdir()
    (store / 'run' / 'mlflow_run.json').write_text('{"id": "0123456789abcdef0123456789abcdef"}')
    log_some(store, store / 'run')
    _, runs = runs_of(store, 'exp')
    assert len(runs) == 1 and 'MLflow has no run 0123456789abcdef0123456789abcdef any more' in caplog.text


@pytest.mark.long
@pytest.mark.slow
def test_store_that_fails_warns_once_and_the_run_continues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / 'mlflow.db').write_text('no database at all, and longer than a header of one would be')
    log_some(tmp_path, tmp_path / 'run')
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith('zoo.')]
    assert len(warnings) == 1 and warnings[0].startswith('MLflow cannot be written (')
    assert (tmp_path / 'run' / 'metrics.jsonl').read_text().count('\n') == 1


@pytest.mark.long
@pytest.mark.slow
def test_line_that_mlflow_refuses_does_not_hold_up_those_after_it(
    store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logger_of(store, store / 'run') as log:
        for step in (1, 2, 3):
            with monkeypatch.context() as patch:
                if step == 2:
                    patch.setattr(time, 'time', lambda: -1.0)  # MLflow refuses times before 1970
                log.write(step, {'a': 1.0})
    client, (run,) = runs_of(store, 'exp')
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, 'a')]
    assert (steps, run.info.status) == ([1, 3], 'FINISHED')
    assert caplog.text.count('MLflow cannot be written (') == 1


@pytest.mark.long
@pytest.mark.slow
def test_names_that_are_no_path_below_a_folder_are_made_such(store: Path) -> None:
    names = {
        'learn/a//b': 'learn/a/b',
        'learn/../c': 'c',
        '../d': 'd',
        '/e/': 'e',
        '..': '_',
        'learn/kl': 'learn/kl',
    }
    with logger_of(store, store / 'run') as log:
        log.write(1, dict.fromkeys(names, 1.0))
    _, (run,) = runs_of(store, 'exp')
    assert {*run.data.metrics} == {'wall_s', *names.values()}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('how', ['uri', 'environment'])
def test_place_that_mlflow_never_takes_is_refused_before_the_run(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip('mlflow')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv('MLFLOW_ALLOW_FILE_STORE', raising=False)
    if how == 'environment':
        monkeypatch.setenv('MLFLOW_TRACKING_URI', './mlr')
    with pytest.raises(ConfigError, match=r"logger.sinks: MLflow does not take '.*mlr'.*MLFLOW_ALLOW_FILE_STORE=true"):
        MlflowSink(MlflowConfig(uri='file:./mlr' if how == 'uri' else None))
