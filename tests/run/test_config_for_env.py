"""The config that is chosen for an env named without a config."""

from __future__ import annotations

import pytest

from zoo import ConfigError, Section
from zoo.core.registry import MODEL_REGISTRY, UnknownNameError
from zoo.run.config import resolve_config
from zoo.run.config_for_env import bundled_config_of, config_for_env, exp_name_of


@pytest.mark.parametrize(
    ('env_id', 'policy', 'name'),
    [
        ('CartPole-v1', 'ppo', 'cartpole_ppo'),
        ('CartPole-v1', 'ppg', 'cartpole_ppg'),
        ('LunarLander-v3', 'ppo', 'lunarlander_ppo'),
        ('Hopper-v5', 'spo', 'hopper_spo'),
        ('Hopper-v5', 'ppg', None),
        ('Nothing-v0', 'ppo', None),
        ('atari', 'ppo', None),  # its configs are for one game each
    ],
)
def test_the_bundled_config_of_an_env_is_the_plain_one(env_id: str, policy: str, name: str | None) -> None:
    assert bundled_config_of(env_id, policy) == name


def test_a_game_of_a_family_has_its_own_config() -> None:
    assert (
        bundled_config_of('atari', 'ppo', 'pong') == 'pong_ppo' and bundled_config_of('atari', 'ppo', 'Skiing') is None
    )


def test_every_config_that_is_found_resolves_to_that_env_and_policy() -> None:
    config = config_for_env('Pendulum-v1', 'ppg')
    resolved = resolve_config(config)
    assert (resolved.env.id, resolved.policy.type) == ('Pendulum-v1', 'ppg')
    resolved = resolve_config(config_for_env('Blackjack-v1'))
    assert (resolved.env.id, resolved.policy.type, resolved.exp_name) == ('Blackjack-v1', 'ppo', 'Blackjack-v1')


def test_an_override_of_the_type_chooses_the_policy() -> None:
    assert config_for_env('CartPole-v1', overrides=['policy.type=ppg'])['policy']['type'] == 'ppg'
    with pytest.raises(UnknownNameError, match="did you mean 'ppg'"):
        config_for_env('CartPole-v1', 'ppgg')


@pytest.mark.parametrize(
    ('env_id', 'name'),
    [
        ('CartPole-v1', 'CartPole-v1'),
        ('my_env.py:MyEnv', 'MyEnv'),
        ('/a/b/my_env.py:make_env', 'make_env'),
        ('package.module:make', 'make'),
        ('a/b c', 'b_c'),
        ('...', 'run'),
        ('x' * 200, 'x' * 60),
    ],
)
def test_the_name_of_the_experiment_is_a_folder_name(env_id: str, name: str) -> None:
    assert exp_name_of(env_id) == name
    resolve_config({'exp_name': name, 'env': {'id': 'CartPole-v1'}})


def test_a_callable_gives_its_name() -> None:
    def make_it() -> None: ...

    assert config_for_env(make_it)['exp_name'].startswith('test_a_callable_gives_its_name')
    with pytest.raises(ConfigError):
        resolve_config({'exp_name': 'a/b', 'env': {'id': 'CartPole-v1'}})


class NormlessConfig(Section):
    """A model without obs_norm."""

    type: str = 'normless'


def test_a_model_without_normalised_observations_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = type('Normless', (), {'config': NormlessConfig})
    monkeypatch.setitem(MODEL_REGISTRY.entries, 'normless', model)
    policy = config_for_env('MountainCar-v0', overrides=['policy.model.type=normless'])['policy']
    assert policy == {'type': 'ppo', 'learn': {'reward_norm': True}}
    assert config_for_env('MountainCar-v0')['policy']['model'] == {'obs_norm': True}
