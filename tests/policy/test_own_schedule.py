"""A field of policy.learn of the user's own that follows the env steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from zoo import POLICY_REGISTRY, read_run, serial_pipeline
from zoo.core.registry import Registry
from zoo.policy import Linear, PPOConfig, PPOLearnConfig, PPOPolicy, ScheduleOrZero


class TaperLearnConfig(PPOLearnConfig):
    bonus: ScheduleOrZero = Field(Linear(start=1.0, end=0.0), description='what an own loss is weighted by')


class TaperConfig(PPOConfig):
    learn: TaperLearnConfig = TaperLearnConfig()


class TaperPolicy(PPOPolicy):
    config = TaperConfig
    scheduled = (*PPOPolicy.scheduled, 'bonus')


@pytest.fixture
def taper(monkeypatch: pytest.MonkeyPatch) -> Registry[Any]:
    monkeypatch.setitem(POLICY_REGISTRY._items, 'taper_test', TaperPolicy)
    return POLICY_REGISTRY


@pytest.mark.slow
@pytest.mark.usefixtures('taper')
def test_a_field_named_in_scheduled_follows_the_env_steps_and_is_logged(tmp_path: Path) -> None:
    config = {
        'max_env_step': 1_024,
        'env': {'id': 'CartPole-v1', 'collector_env_num': 8},
        'policy': {'type': 'taper_test', 'collect': {'n_step': 32}},
        'logger': {'root': str(tmp_path), 'console': 'off', 'tensorboard': False, 'freq': 1},
    }
    result = serial_pipeline(config)
    steps, bonus = read_run(result.run_dir).curve('learn/bonus')
    # the value of an update is that at the env step where its rollout began, which is the step of the line before
    assert bonus.tolist() == pytest.approx([1.0, *(1 - steps[:-1] / 1_024)], abs=1e-6)
    assert bonus[-1] == pytest.approx(result.policy.rates['bonus'], abs=1e-6)
