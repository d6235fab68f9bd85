"""What only watches a run changes no bit of its parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import differing, job_config, rows
from zoo import Callback, serial_pipeline


class Reads(Callback):
    def on_samples(self, job: Any, samples: Any) -> None:
        samples['adv'].mean()


class Nowhere:
    """A sink that keeps nothing."""

    open: Callable[..., None] = lambda self, cfg, run_dir: None  # noqa: E731
    write: Callable[..., None] = lambda self, env_step, metrics: None  # noqa: E731
    close: Callable[..., None] = lambda self: None  # noqa: E731


def never(metrics: Any) -> bool:
    return False


TRACKERS = [{'type': 'wandb', 'mode': 'offline'}, {'type': 'mlflow', 'uri': 'sqlite:///mlflow.db'}]
WATCHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    'a callback without on_gradient': ({}, {'callbacks': [Reads]}),
    'stop rules': ({'stop': [{'type': 'patience', 'n': 50}, f'{__name__}:never']}, {}),
    'sinks': ({'logger': {'sinks': ['csv', 'tensorboard', f'{__name__}:Nowhere']}}, {}),
    'a profile': ({}, {'profile': 2}),
    'trackers': ({'logger': {'sinks': TRACKERS}}, {}),
}


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')  # MLflow uses what SQLAlchemy deprecates
@pytest.mark.parametrize(
    'name', [pytest.param(name, marks=[pytest.mark.long] * (name == 'trackers')) for name in WATCHERS]
)
def test_run_that_is_watched_has_the_bits_and_the_log_of_one_that_is_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == 'trackers':
        pytest.importorskip('wandb'), pytest.importorskip('mlflow.tracking')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    monkeypatch.chdir(tmp_path)
    sections, options = WATCHERS[name]
    base = dict(max_env_step=640, env=dict(vectorization='sync'), policy=dict(eval=dict(eval_freq=64)))
    plain = serial_pipeline(job_config(tmp_path / 'plain', 'CartPole-v1', **base))
    watched = serial_pipeline(job_config(tmp_path / 'watched', 'CartPole-v1', **base, **sections), **options)
    assert not differing(plain.policy.state_dict(), watched.policy.state_dict())
    assert rows(plain.run_dir) == rows(watched.run_dir)
