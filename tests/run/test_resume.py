"""The messages of a resume."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import job_config
from zoo.pipeline import serial_pipeline


def resumed(caplog: pytest.LogCaptureFixture, run_dir: Path, *overrides: str, **kwargs: Any) -> list[str]:
    """Resumes a run; returns the messages after the line that says where it continues."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        serial_pipeline(resume=run_dir, overrides=overrides, **kwargs)
    at = next(i for i, message in enumerate(caplog.messages) if message.startswith('resuming at'))
    return caplog.messages[at + 1 :]


@pytest.mark.slow
def test_resume_says_which_values_differ_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    learn = dict(learning_rate={'start': 1e-3, 'end': 0.0})  # as long as the run
    first = serial_pipeline(job_config(tmp_path, policy=dict(learn=learn), env=dict(kwargs=dict(limit=5))))
    overrides = ['policy.learn.entropy_weight=0.5', 'env.collector_env_num=8', 'env.kwargs.limit=7']
    (message,) = resumed(caplog, first.run_dir, *overrides, max_env_step=512)
    assert message == (
        'changed since it was saved: max_env_step 256 -> 512, '
        "env.kwargs {'limit': 5} -> {'limit': 7}, env.collector_env_num 4 -> 8, policy.learn.entropy_weight 0.0 -> 0.5"
    )


@pytest.mark.parametrize(
    ('limit', 'changed'), [(256, []), (128, ['changed since it was saved: max_env_step 256 -> 128'])]
)
def test_resume_of_a_run_that_is_long_enough_says_that_nothing_is_left(
    finished: Path, caplog: pytest.LogCaptureFixture, limit: int, changed: list[str]
) -> None:
    assert resumed(caplog, finished, max_env_step=limit) == [
        *changed,
        f'nothing is left to train: the run has 256 env steps, a rollout 64, and max_env_step is {limit}; raise that',
    ]


def test_resume_with_many_changes_cuts_the_list(finished: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = ['learning_rate', 'clip_ratio', 'value_weight', 'entropy_weight', 'grad_clip', 'adam_eps']
    learn = [f'policy.learn.{key}=0.123' for key in keys]
    learn += ['policy.collect.gae_lambda=0.9', 'policy.collect.discount_factor=0.9']
    others = ['policy.eval.n_episode=3', 'env.step_timeout=7', 'checkpoint.keep_last=7', 'checkpoint.freq=77']
    (message,) = resumed(caplog, finished, *learn, *others, max_env_step=320)
    assert message.count(' -> ') == 10 and message.endswith(' and 3 more') and len(message) < 1000
