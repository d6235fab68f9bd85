"""`Policy.with_updates`: new methods and defaults under a new name; names that nothing calls are refused."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import Field

from tests.policy.updates import N_STEP, OBS, samples_of
from tests.policy_envs import differing, job_config
from zoo import POLICY_REGISTRY, load_policy, serial_pipeline
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.core.spaces import Box, Discrete
from zoo.policy import Linear, Policy, PPGPolicy, PPOConfig, PPOLearnConfig, PPOPolicy, ScheduleOrZero
from zoo.policy.ppo import ppo_step
from zoo.run.config import resolve_config, resolve_policy

pytestmark = pytest.mark.usefixtures('forgets_policies')


def resolved(name: str, **policy: Any) -> Any:
    return resolve_config({'env': {'id': 'CartPole-v1'}, 'policy': {'type': name, **policy}}).policy


@pytest.mark.slow
def test_methods_are_called_in_place_of_those_of_the_class(tmp_path: Path) -> None:
    n_call = 0

    def forward_learn(self: Any, batch: Any) -> Any:
        nonlocal n_call
        n_call += 1
        return PPOPolicy._forward_learn(self, batch)

    new = PPOPolicy.with_updates('counted', _forward_learn=forward_learn)
    result = serial_pipeline(job_config(tmp_path, policy=dict(type='counted')))
    assert type(result.policy) is new and issubclass(new, PPOPolicy) and n_call == 4
    plain = serial_pipeline(job_config(tmp_path / 'b'))
    a, b = (each.policy.state_dict()['model'] for each in (result, plain))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert type(load_policy(result.run_dir)) is new


def test_own_step_is_called_once_for_each_gradient_step(tmp_path: Path) -> None:
    sizes = []

    def step(*args: Any) -> Any:  # (model, dist, optimizers, minibatch, loss, numbers)
        sizes.append(len(args[3]['adv']))
        return ppo_step(*args)

    new = PPOPolicy.with_updates('stepping', {'learn': {'executor': 'eager'}}, step=step)
    assert isinstance(vars(new)['step'], staticmethod)
    result = serial_pipeline(job_config(tmp_path, policy=dict(type='stepping')))
    assert len(sizes) == result.train_iter == 16 and set(sizes) == {32}  # 256 / 64 rollouts x 2 epochs x 2 minibatches


def test_defaults_of_a_dict_are_those_of_the_name_alone() -> None:
    PPOPolicy.with_updates('calm', {'learn': {'clip_ratio': 0.1, 'learning_rate': {'start': 1e-3, 'end': 0.0}}})
    calm, plain = resolved('calm'), resolved('ppo')
    assert calm.learn.clip_ratio == 0.1 and calm.learn.learning_rate == {'start': 1e-3, 'end': 0.0, 'over': 100_000}
    assert plain.learn.clip_ratio == 0.2
    changed = {'type': 'calm', 'learn': {**calm.learn, 'clip_ratio': 0.2, 'learning_rate': plain.learn.learning_rate}}
    assert {**calm, **changed, 'type': 'ppo'} == plain
    assert resolved('calm', learn={'clip_ratio': 0.3, 'entropy_weight': 0.01}).learn.clip_ratio == 0.3


def test_updates_of_updates_add_up() -> None:
    first = PPOPolicy.with_updates('first', {'learn': {'clip_ratio': 0.1}})
    first.with_updates('second', {'learn': {'epoch_per_collect': 7}})
    assert (resolved('second').learn.clip_ratio, resolved('second').learn.epoch_per_collect) == (0.1, 7)
    assert resolved('first').learn.epoch_per_collect == 4


class OwnLearn(PPOLearnConfig):
    end_penalty: float = Field(0.5, ge=0, description='subtracted at the end')
    bonus: ScheduleOrZero = Field(Linear(start=1.0, end=0.0), description='what an own loss is weighted by')


class OwnConfig(PPOConfig):
    learn: OwnLearn = OwnLearn()


def test_section_class_gives_fields_of_its_own_and_defaults_stay_checked() -> None:
    PPOPolicy.with_updates('penalised', OwnConfig)
    assert resolved('penalised').learn.end_penalty == 0.5
    PPOPolicy.with_updates('calm', {'learn': {'epoch_per_collect': 2}})
    with pytest.raises(ConfigError, match='policy.learn.epoch_per_collect is 0'):
        resolved('calm', learn={'epoch_per_collect': 0})


def test_own_field_that_is_named_in_scheduled_follows_the_env_steps_and_is_logged() -> None:
    PPOPolicy.with_updates('tapered', OwnConfig, scheduled=(*PPOPolicy.scheduled, 'bonus'))
    learn = {'batch_size': None, 'bonus': {'start': 1.0, 'end': 0.0, 'over': 1024}}
    cfg = resolve_policy({'type': 'tapered', 'learn': learn, 'collect': {'n_step': N_STEP}})
    policy = POLICY_REGISTRY.build('tapered', cfg, OBS, Discrete(2))
    for env_step, bonus in ((0, 1.0), (256, 0.75), (1024, 0.0)):
        policy.learn_mode.set_env_step(env_step)
        assert policy.learn_mode.forward(samples_of(policy))['bonus'].item() == bonus
        assert 'bonus' in policy.learn_mode.monitor_vars()


def test_class_method_property_and_plain_attribute_keep_their_kind() -> None:
    new = PPOPolicy.with_updates(
        'kinds', default_model=lambda cls: 'ppg', executor_name=property(lambda self: 'mine'), takes_separate_draws=True
    )
    assert (
        new.default_model() == 'ppg' and new.takes_separate_draws and isinstance(vars(new)['executor_name'], property)
    )
    assert resolved('kinds').model.type == 'ppg'


def test_policy_from_scratch_is_made_of_functions(tmp_path: Path) -> None:
    new = Policy.with_updates(
        'still',
        default_model=lambda cls: None,
        _init_learn=lambda self: None,
        _forward_learn=lambda self, batch: {'reward': batch['reward'].mean()},
        _monitor_vars_learn=lambda self: ['reward'],
        _init_collect=lambda self: None,
        _forward_collect=lambda self, obs, state=None: {'action': torch.zeros(len(obs), dtype=torch.int64)},
        _process_transition=lambda self, obs, output, timestep: {'reward': timestep.reward},
        _get_train_sample=lambda self, rollout: {'reward': rollout.data['reward'].flatten()},
        _forward_eval=lambda self, obs, state=None: {'action': torch.zeros(len(obs), dtype=torch.int64)},
    )
    cfg = dict(
        max_env_step=128,
        env=dict(id='CartPole-v1', collector_env_num=4),
        policy=dict(type='still', collect=dict(n_step=16), learn=dict(batch_size=None), eval=dict(n_episode=2)),
        logger=dict(root=str(tmp_path), console='off', tensorboard=False),
    )
    result = serial_pipeline(cfg)
    assert type(result.policy) is new and result.last_return is not None
    assert 8 <= result.last_return <= 11  # always left: the pole falls at once


CalmPPO = PPOPolicy.with_updates('calm_at_module_level', {'learn': {'clip_ratio': 0.1}}, learn_aux=lambda self: {})


class CalmerPPO(CalmPPO):  # type: ignore[misc,valid-type]
    """A subclass of a class made by `with_updates`."""


@pytest.mark.parametrize('copied', [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=['deepcopy', 'pickle'])
@pytest.mark.parametrize('cls', [CalmPPO, CalmerPPO])
def test_copy_of_a_policy_is_of_its_class_and_has_its_state(cls: Any, copied: Any) -> None:
    cfg = resolve_policy({'type': 'calm_at_module_level', 'model': {'hidden_sizes': [8]}})
    policy = cls(cfg, Box(np.full(2, -np.inf), np.full(2, np.inf)), Discrete(2), seed=3)
    other = copied(policy)
    assert type(other) is cls and other.cfg.learn.clip_ratio == 0.1
    assert not differing(other.state_dict(), policy.state_dict())


@pytest.mark.long
def test_pickled_policy_is_found_where_the_module_is_not_imported_yet() -> None:
    cfg = resolve_policy({'type': 'spo', 'model': {'hidden_sizes': [8]}})
    policy = POLICY_REGISTRY.get('spo')(cfg, Box(np.full(2, -np.inf), np.full(2, np.inf)), Discrete(2))
    code = 'import pickle, sys; print(type(pickle.load(sys.stdin.buffer)))'
    run = subprocess.run([sys.executable, '-c', code], input=pickle.dumps(policy), capture_output=True, check=True)
    assert run.stdout.decode().strip() == "<class 'zoo.policy.variants.published.spo'>"


def test_class_and_type_of_its_section_have_the_name_and_say_where_they_come_from() -> None:
    for new in (PPOPolicy.with_updates('mine'), PPOPolicy.with_updates('calm', {'learn': {'clip_ratio': 0.1}})):
        assert new.config().type == new.__name__ in ('mine', 'calm') and new.__module__ == __name__
        assert POLICY_REGISTRY.where(new.__name__).startswith(f'{__name__}:')


@pytest.mark.parametrize(
    ('methods', 'words'),
    [
        (dict(_forward_lern=lambda self: None), "PPOPolicy has no method '_forward_lern', so nothing would call it: did you "
         "mean '_forward_learn'"),
        (dict(zzz=1), "PPOPolicy has no method 'zzz', so nothing would call it: there are .*_forward_learn"),
        (dict(__init__=lambda self: None), "no method '__init__'"),
        (dict(_forward_learn=3), '_forward_learn is 3 but PPOPolicy._forward_learn is a function; give one'),
        (dict(takes_separate_draws=print), 'takes_separate_draws is <built-in.* but PPOPolicy.takes_separate_draws is a value '
         'like False; give one'),
        (dict(with_updates=print), "no method 'with_updates'"),
        (dict(config=3), 'config is 3 but must be a dict of defaults, or a class derived from PPOConfig'),
        (dict(config=PPGPolicy.config), 'must be a dict of defaults, or a class derived from PPOConfig'),
        (dict(config={'model': {'hidden_sizes': [8]}}), 'config has defaults for model'),
        (dict(config={'learn': {'clip_ration': 0.1}}), 'unknown key policy.learn.clip_ration: did you mean'),
        (dict(config={'learn': {'clip_ratio': 'x'}}), "policy.learn.clip_ratio is 'x'"),
    ],
)  # fmt: skip
def test_what_nothing_would_read_is_refused(methods: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        PPOPolicy.with_updates('refused', **methods)
    assert 'refused' not in POLICY_REGISTRY


@pytest.mark.parametrize(
    ('name', 'said'),
    [
        ('ppo', "policy 'ppo' is registered at zoo.policy.ppo"),
        *((name, 'with_updates got .* as a name') for name in ('', 3, None)),
    ],
)
def test_name_that_is_taken_or_no_text_is_refused(name: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        PPOPolicy.with_updates(name)
