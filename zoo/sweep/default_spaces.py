"""What a sweep tries where no key has a space: for each bundled policy the keys that matter most for it."""

from __future__ import annotations

from zoo.config.section import Config, value_at
from zoo.core.registry import POLICY_REGISTRY

RATE, ENTROPY = 'policy.learn.learning_rate', 'policy.learn.entropy_weight'
CLIP, LAMBDA = 'policy.learn.clip_ratio', 'policy.collect.gae_lambda'
_STEP = {RATE: 'log(1e-5,1e-2)', ENTROPY: 'log(1e-5,.1)'}
_PPO = {RATE: _STEP[RATE], CLIP: 'uniform(.1,.4)', ENTROPY: _STEP[ENTROPY], LAMBDA: 'uniform(.8,1)'}
_PPG = {**_PPO, 'policy.learn.aux_train_epoch': 'int(1,9)', 'policy.learn.aux_bc_weight': 'log(.1,10)'}
_EWMA = {'policy.learn.proximal.decay': 'uniform(.7,.99)'}
_REUSE = {'buffer.update_per_collect': 'int(1,16)'}
_GAMMA = {'policy.collect.discount_factor': 'uniform(.95,.999)'}
_A2C = {**_STEP, LAMBDA: 'uniform(.8,1)', **_GAMMA}

DEFAULT_SPACES: dict[str, dict[str, str]] = {
    'ppo': _PPO,
    'ppo_offpolicy': {**_PPO, **_REUSE},
    'ppo_ewma': {**_PPO, **_EWMA},
    'ppo_ewma_offpolicy': {**_PPO, **_EWMA, **_REUSE},
    'spo': {**_PPO, 'policy.learn.epoch_per_collect': 'int(1,10)'},
    'ppg': _PPG,
    'ppg_offpolicy': {
        **_PPG,
        'policy.learn.aux_train_epoch': 'int(1,3)',
        'buffer.policy.update_per_collect': 'int(1,16)',
        'buffer.value.update_per_collect': 'int(1,16)',
    },
    'ppg_ewma': {**_PPG, **_EWMA},
    'ppg_reloaded': {**_PPG, 'policy.learn.aux_train_epoch': 'int(1,3)', 'policy.learn.aux_freq': 'choice(1,2,4,8)'},
    'dna': {
        **_STEP,
        LAMBDA: 'uniform(.6,1)',
        'policy.learn.actor_epoch_per_collect': 'int(1,4)',
        'policy.learn.critic_epoch_per_collect': 'int(1,4)',
        'policy.learn.aux_train_epoch': 'int(1,4)',
    },
    'a2c': _A2C,
    'impala': _A2C,
    'pg': {**_STEP, **_GAMMA},
    'dqn': {
        RATE: _STEP[RATE],
        **_GAMMA,
        'policy.learn.target_freq': 'choice(50,100,200,500,1000)',
        'policy.collect.n_return': 'choice(1,3)',
    },
}
"""By policy.type. A policy of the user's has those of the nearest bundled class that it is derived from, else those of ppo."""

_WITHOUT_CLIP = ('a2c', 'none', 'awr', 'dpo')  # surrogates that read no clip_ratio
_WITHOUT_LAMBDA = ('returns', 'n_step')  # estimators that read no gae_lambda


def default_spaces(cfg: Config) -> dict[str, str]:
    """The spaces for the policy of a config, as texts by key, without keys that have no effect with its other values."""
    spaces = DEFAULT_SPACES[_bundled(cfg.policy.type)]
    return {key: text for key, text in spaces.items() if _has_effect(cfg, key)}


def _bundled(name: str) -> str:
    """The name of the nearest bundled policy that a policy is, or is derived from; 'ppo' if there is none."""
    names = {POLICY_REGISTRY.get(one): one for one in DEFAULT_SPACES}
    return next((names[one] for one in POLICY_REGISTRY.get(name).__mro__ if one in names), 'ppo')


def _has_effect(cfg: Config, key: str) -> bool:
    if key == CLIP:
        return (
            _type_of(cfg, 'policy.learn.surrogate') not in _WITHOUT_CLIP and cfg.policy.learn.get('policy_loss') != 'kl'
        )
    if key == LAMBDA:
        return _type_of(cfg, 'policy.collect.estimator') not in _WITHOUT_LAMBDA
    return True


def _type_of(cfg: Config, key: str) -> str | None:
    """The name of a part, given by its name or as {type: name, its options}."""
    value = value_at(cfg, key)
    return value.get('type') if isinstance(value, dict) else value
