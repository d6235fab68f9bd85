"""Default spaces: each bundled policy has its own, which every bundled config takes, and which move what is trained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import differing, job_config
from zoo import POLICY_REGISTRY, make_policy, serial_pipeline
from zoo.config.source import bundled_configs
from zoo.policy.ppg import PPGPolicy
from zoo.run.config import resolve_config
from zoo.tools.sweep.plan import make_plan
from zoo.tools.sweep.spaces import DEFAULT_SPACES, Space, default_spaces, split_spaces

DOCS = Path(__file__).parents[3] / 'docs' / 'sweeps.md'
BUNDLED = [name for name in POLICY_REGISTRY.names() if POLICY_REGISTRY.get(name).__module__.startswith('zoo.')]


def spaces_of(texts: dict[str, str]) -> dict[str, Space]:
    return split_spaces([f'{key}={text}' for key, text in texts.items()])[0]


def test_every_bundled_policy_has_spaces_of_its_own() -> None:
    assert sorted(DEFAULT_SPACES) == sorted(BUNDLED)


@pytest.mark.parametrize('name', bundled_configs())
def test_every_bundled_config_takes_the_spaces_of_its_policy(name: str) -> None:
    """All of them, both ends of each, and all low or high ends at once."""
    plan = make_plan(name, [])
    cfg = resolve_config(name)
    assert list(plan.spaces) == list(default_spaces(cfg)) and len(plan.spaces) >= 3
    for i in (0, -1):
        plan.resolve({key: space.probes()[i] for key, space in plan.spaces.items()})


@pytest.mark.parametrize('name', sorted(DEFAULT_SPACES))
def test_every_policy_can_be_made_at_the_ends_of_its_spaces(name: str) -> None:
    config = {'env': {'id': 'CartPole-v1'}, 'policy': {'type': name}}
    for i in (0, 1):
        made = make_policy(config, [f'{key}={s.probes()[i]}' for key, s in spaces_of(DEFAULT_SPACES[name]).items()])
        assert made.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)


@pytest.mark.long
@pytest.mark.parametrize('name', sorted(DEFAULT_SPACES))
def test_every_key_of_a_default_space_changes_what_is_trained(name: str, tmp_path: Path) -> None:
    """A key without an effect would waste a dimension of the sweep."""

    def trained(key: str, value: str) -> dict[str, Any]:
        config = job_config(tmp_path, policy=dict(type=name, learn=_learn(name)), **_buffer(name))
        for other in {'epoch_per_collect', 'target_freq'} - set(resolved.policy.learn):
            config['policy']['learn'].pop(other, None)
        return serial_pipeline(config, max_env_step=640, overrides=[f'{key}={value}']).policy.state_dict()['model']

    resolved = resolve_config({'env': {'id': 'CartPole-v1'}, 'policy': {'type': name}})
    for key, space in spaces_of(DEFAULT_SPACES[name]).items():
        low, high = space.probes()[:2]
        assert differing(trained(key, low), trained(key, high)), f'{key} of {name} changes nothing'


def _learn(name: str) -> dict[str, Any]:
    """Steps that are large enough to be clipped; auxiliary phases after each second rollout, of 64 env steps."""
    learn: dict[str, Any] = {'learning_rate': 0.03, 'target_freq': 2}
    if not name.startswith(('ppg', 'dna')):
        return learn
    phases = {'aux_freq': 2, 'aux_batch_size': 32, **({'aux_window': 8} if name == 'ppg_reloaded' else {})}
    return {**learn, **phases, 'aux_train_epoch': 1}


def _buffer(name: str) -> dict[str, Any]:
    if name == 'ppg_offpolicy':
        return {'buffer': {'policy': {'n_sample': 64}, 'value': {'n_sample': 64}}}
    if name == 'dqn':  # 320 gradient steps
        return {'buffer': {'n_sample': 64, 'update_per_collect': 16}}
    return {'buffer': {'n_sample': 64}} if name.endswith('offpolicy') else {}


@pytest.mark.slow
def test_key_without_an_effect_is_left_out() -> None:
    def keys(**policy: Any) -> list[str]:
        config = {'env': {'id': 'CartPole-v1'}, 'policy': policy}
        return [key.rpartition('.')[2] for key in make_plan(config, []).spaces]

    assert keys(type='ppo') == ['learning_rate', 'clip_ratio', 'entropy_weight', 'gae_lambda']
    assert 'clip_ratio' not in keys(type='ppo', learn={'surrogate': 'none'})
    assert 'clip_ratio' not in keys(type='ppg', learn={'policy_loss': 'kl'})
    assert 'gae_lambda' not in keys(type='ppo', collect={'estimator': {'type': 'n_step', 'n': 3}})
    assert 'decay' not in keys(type='ppo_ewma', learn={'proximal': 'behaviour'})


def test_own_policy_has_the_spaces_of_the_bundled_one_that_it_is_derived_from() -> None:
    name = 'own_ppg_of_default_spaces_test'
    if name not in POLICY_REGISTRY:
        POLICY_REGISTRY.register(name)(type('Own', (PPGPolicy,), {}))
    cfg = resolve_config({'env': {'id': 'CartPole-v1'}, 'policy': {'type': name}})
    assert default_spaces(cfg) == DEFAULT_SPACES['ppg']


def test_documentation_names_the_keys_of_each_policy() -> None:
    rows = re.findall(r'^\| (`\w+`(?:, `\w+`)*) \| (.*) \|$', DOCS.read_text(encoding='utf-8'), flags=re.M)
    said = {name: set(re.findall(r'`(\w+)`', keys)) for names, keys in rows for name in re.findall(r'`(\w+)`', names)}
    for name, spaces in DEFAULT_SPACES.items():
        words = said[name]
        for _ in range(2):  # 'those of ppg', which are 'those of ppo' and more
            words = words.union(*(said[other] for other in words if other in said))
        assert {key.rpartition('.')[2] for key in spaces} <= words, name
