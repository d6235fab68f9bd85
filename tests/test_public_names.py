"""zoo at a Python prompt: its public names, suggestions for wrong names, and short texts for objects."""

from __future__ import annotations

from pathlib import Path

import pytest

import zoo
from zoo import TrainResult, make_policy


def test_dir_has_the_public_names_alone() -> None:
    assert sorted([*zoo.__all__, '__version__']) == dir(zoo)


@pytest.mark.parametrize(
    ('name', 'words'),
    [
        ('train', "did you mean zoo.serial_pipeline('cartpole_ppo')"),
        ('PPO', "did you mean zoo.serial_pipeline({'policy': {'type': 'ppo'}})"),
        ('make', "did you mean zoo.serial_pipeline({'env': {'id': 'CartPole-v1'}})"),
        ('predict', r"did you mean zoo.load_policy('runs/...').act(obs)"),
        ('serial_pipline', 'did you mean serial_pipeline?'),
        ('zzz', 'it has evaluate, inspect_env, load_policy'),
    ],
)
def test_a_name_that_zoo_does_not_have_names_what_is_meant(name: str, words: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(zoo, name)
    assert f'module zoo has no attribute {name!r}; {words}' in str(caught.value)


def test_objects_are_shown_in_a_few_lines() -> None:
    policy = make_policy('cartpole_ppo', ['policy.model.hidden_sizes=[8]'])
    # actor 4 * 8 + 8, 8 * 2 + 2; critic 4 * 8 + 8, 8 + 1: 58 + 49
    assert repr(policy).startswith("<PPOPolicy 'ppo': VAC of 107 parameters on cpu\n  observations Box(")
    assert repr(policy).endswith('\n  actions Discrete(n=2, start=0)>')
    assert repr(policy.cfg.model) == 'VACConfig(hidden_sizes=[8])'
    result = TrainResult(policy, Path('runs/x'), 51_200, 800, 500.0, None, 4.25, 12_000.0, 'enough')
    assert repr(result) == (
        "TrainResult(policy='ppo', env_step=51,200, best_return=500, last_return=none,\n"
        "  wall_s=4.2, env_step_per_s=12,000, stop_reason='enough',\n  run_dir='runs/x')"
    )
