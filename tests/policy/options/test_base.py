"""User-defined options from `policy.learn.options`: config keys, checks, columns, metrics and state; none by default."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from pydantic import Field
from torch import Tensor

from tests.policy.updates import parameters, ppg, ppo, samples_of
from tests.policy_envs import differing
from zoo.config.section import ConfigError, Section
from zoo.core.data import Columns, Metrics, Rollout
from zoo.core.errors import UserError
from zoo.core.registry import OPTION_REGISTRY
from zoo.policy.options.base import Estimated, Owner, UpdateOption
from zoo.policy.options.reward_norm import RewardNorm
from zoo.run.config import resolve_policy


class ScaledConfig(Section):
    factor: float = Field(2.0, gt=0, description='factor of the advantages')


@OPTION_REGISTRY.register('scaled_of_test', force=True)
class Scaled(UpdateOption):
    """Multiplies advantages by factor^k in the k-th update, k from 0; adds the sign of the reward as a column."""

    config = ScaledConfig
    names = ('advantage_scale',)

    def __init__(self, cfg: Any) -> None:
        self.factor, self.n_update = cfg.factor, 0

    def problems(self, policy: Owner) -> Iterator[str]:
        if policy.cfg.learn.adv_norm == 'batch':
            yield "option 'scaled_of_test' has no effect with adv_norm 'batch'; use 'off'"

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> Mapping[str, Any]:
        return {'reward_sign': estimated.reward.sign()}

    def before_update(self, batch: Columns) -> Columns:
        return {**batch, 'adv': batch['adv'] * self.factor**self.n_update}

    def after_update(self, batch: Columns) -> Metrics:
        self.n_update += 1
        return {'advantage_scale': torch.tensor(self.factor ** (self.n_update - 1))}

    def state_dict(self) -> dict[str, Any]:
        return {'scaled_of_test': {'n_update': self.n_update}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.n_update = state.get('scaled_of_test', {}).get('n_update', 0)


THREE = {'type': 'scaled_of_test', 'factor': 3.0}


def scaled(**learn: Any) -> Any:
    return ppo(dict(options=[THREE], **learn))


def test_a_plain_policy_has_no_options() -> None:
    assert ppo().options == ()


def test_own_option_has_its_keys_or_their_defaults_and_comes_after_the_built_in_ones() -> None:
    for spec, factor in ((THREE, 3.0), ('scaled_of_test', 2.0)):
        built_in, own = ppo(dict(options=[spec], reward_norm=True)).options
        assert isinstance(built_in, RewardNorm) and isinstance(own, Scaled) and own.factor == factor


@pytest.mark.parametrize(
    ('spec', 'words'),
    [
        ('scaled_of_tests', "did you mean 'scaled_of_test'"),
        ({**THREE, 'facto': 1.0}, r'policy.learn.options.*facto'),
        ({**THREE, 'factor': -1.0}, r'policy.learn.options.*factor'),
    ],
)
def test_own_option_of_another_name_or_key_is_refused_at_the_door(spec: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_policy({'type': 'ppo', 'learn': {'options': [spec]}})


def test_problem_of_an_own_option_is_the_error() -> None:
    with pytest.raises(UserError, match=r"^option 'scaled_of_test' has no effect with adv_norm 'batch'; use 'off'$"):
        scaled(adv_norm='batch')


def test_column_of_an_own_option_is_in_the_samples() -> None:
    samples = samples_of(scaled())
    assert samples['reward_sign'].shape == samples['adv'].shape and samples['reward_sign'].abs().eq(1).all()


def test_batch_of_an_own_option_is_what_the_update_learns_from() -> None:
    """The first update uses the advantages unchanged, the second 3 times the advantages."""
    plain, own = ppo(), scaled()
    for k in range(2):
        samples = samples_of(plain, k)
        metrics = own.learn_mode.forward(samples)
        plain.learn_mode.forward({**samples, 'adv': samples['adv'] * 3.0**k})
        assert metrics.keys() == set(own.learn_mode.monitor_vars()) and metrics['advantage_scale'] == 3.0**k
    assert not differing(parameters(plain), parameters(own))


@pytest.mark.parametrize('way', ['state', 'deepcopy'])
def test_own_option_continues_the_same_after_a_resume_and_in_a_copy(way: str) -> None:
    policy = scaled()
    policy.learn_mode.forward(samples_of(policy))
    if way == 'state':
        other = scaled()
        other.load_state_dict(copy.deepcopy(policy.state_dict()))
    else:
        other = copy.deepcopy(policy)
    samples: dict[str, Tensor] = samples_of(policy, 1)
    found = [each.learn_mode.forward(samples)['advantage_scale'].item() for each in (policy, other)]
    assert found == [3.0, 3.0] and not differing(policy.state_dict(), other.state_dict())


def test_own_option_begins_with_a_state_that_lacks_it() -> None:
    plain, own = ppo(), scaled()
    plain.learn_mode.forward(samples_of(plain))
    own.load_state_dict(plain.state_dict())
    assert own.options[0].n_update == 0 and not differing(parameters(plain), parameters(own))


@OPTION_REGISTRY.register('slower_of_test', force=True)
class Slower(UpdateOption):
    """In the k-th update, k from 1, the learning rate is 2^-k, and the weight of the penalty kl is k."""

    config = Section

    def __init__(self, cfg: Any) -> None:
        self.n_update = 0

    def begin_update(self) -> None:
        self.n_update += 1

    def choose_rates(self) -> dict[str, float]:
        return {'learning_rate': 0.5**self.n_update}

    def choose_weights(self) -> dict[str, float]:
        return {'kl': float(self.n_update)}


def test_rates_and_weights_that_an_own_option_chooses_are_those_of_the_update_that_begins() -> None:
    policy = ppo(dict(options=['slower_of_test'], penalties=['kl'], learning_rate=1e-3))
    for k in (1, 2):
        policy.learn_mode.set_env_step(100 * k)  # the schedules alone give 1e-3, and weight 1
        metrics = policy.learn_mode.forward(samples_of(policy))
        assert (metrics['learning_rate'], metrics['kl_weight']) == (0.5**k, k)
        assert policy.optimizers['all'].lr == 0.5**k


@OPTION_REGISTRY.register('weighing_of_test', force=True)
class Weighing(Scaled):
    """Sets the weight of the first penalty by hand, to 7."""

    def fill(self, update: Any, policy: Owner) -> None:
        self.objective: Any = policy.objective

    def before_update(self, batch: Columns) -> Columns:
        self.objective.set_weight(0, 7.0)
        return batch


def test_weight_that_an_option_sets_by_hand_before_an_update_holds_in_it() -> None:
    policy = ppo(dict(options=['weighing_of_test'], penalties=['kl']))
    policy.learn_mode.set_env_step(100)
    assert policy.learn_mode.forward(samples_of(policy))['kl_weight'] == 7


def test_weight_of_a_penalty_that_the_loss_lacks_is_refused() -> None:
    with pytest.raises(
        UserError, match="the weight of the penalty 'kl', which policy.learn.penalties does not have; it"
    ):
        ppo(dict(options=['slower_of_test'], penalties=['reverse_kl']))


@OPTION_REGISTRY.register('told_of_test', force=True)
class Told(UpdateOption):
    """Counts how often it was told that the policy moved."""

    config = Section
    n_move = 0

    def __init__(self, cfg: Any) -> None:
        pass

    def policy_moved(self) -> None:
        self.n_move += 1


def test_options_are_told_of_moves_by_others_and_not_of_updates() -> None:
    policy: Any = ppo(dict(options=['told_of_test'], plasticity={'type': 'l2_init', 'every': 2}))
    counts = []
    for seed in range(4):
        policy.learn_mode.forward(samples_of(policy, seed))
        counts.append(policy.options[-1].n_move)
    assert counts == [0, 1, 1, 2]
    policy.policy_moved()
    assert policy.options[-1].n_move == 3


@OPTION_REGISTRY.register('sharper_of_test', force=True)
class Sharper(UpdateOption):
    """Steps see the logits times 3."""

    config = Section

    def __init__(self, cfg: Any) -> None:
        pass

    def fill(self, update: Any, policy: Owner) -> None:
        update.around_forward.append(lambda forward: partial(self.forward, forward))

    def forward(self, forward: Any, model: Any, method: str, minibatch: Any) -> tuple[dict[str, Tensor], Any]:
        output, rows = forward(model, method, minibatch)
        return ({**output, 'logit': 3 * output['logit']} if 'logit' in output else output), rows


@pytest.mark.parametrize('precision', ['fp32', 'bf16'])
def test_the_auxiliary_phase_holds_the_policy_that_its_steps_see(precision: str) -> None:
    """KL(old || new) before the first step: 0 up to rounding; to the unscaled logits of an unscaled head it is above .01."""
    policy = ppg(dict(options=['sharper_of_test'], aux_freq=1, precision=precision))
    with torch.no_grad():
        policy.model.policy_head.weight.mul_(100)
    metrics = policy.learn_mode.forward(samples_of(policy))
    assert metrics['aux_kl_before'].abs() < (1e-6 if precision == 'fp32' else 1e-3)


def test_logits_of_the_policy_are_those_that_its_steps_see() -> None:
    policy: Any = ppo(dict(options=['sharper_of_test']))
    batch = samples_of(policy)
    torch.testing.assert_close(policy.logit_of(batch), 3 * policy.model.compute_actor(batch['obs']).detach())
