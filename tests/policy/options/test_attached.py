"""Options of the older form: what `attach` and `attach_learn` set fills a slot, with a warning that names it."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch

from tests.policy.updates import parameters, ppo, samples_of
from zoo.config.section import Section
from zoo.core.errors import UserError
from zoo.core.registry import OPTION_REGISTRY
from zoo.policy.options import UpdateOption


def halved(data: Any, weight: Any) -> Any:
    return data['reward'] / 2


def sharper(forward: Any, model: Any, method: str, minibatch: Any) -> Any:
    output, rows = forward(model, method, minibatch)
    return {**output, 'logit': 3 * output['logit']}, rows


def first_half(columns: Any, n_pass: int, generator: Any) -> Any:
    n = len(columns['adv'])
    return torch.arange(n).remainder(n // 2).expand(n_pass, n).contiguous(), columns


def flipped(columns: Any) -> Any:
    return {**columns, 'adv': -columns['adv']}


class Base(UpdateOption):
    config = Section

    def __init__(self, cfg: Any) -> None:
        pass


@OPTION_REGISTRY.register('old_reward', force=True)
class OldReward(Base):
    def attach(self, policy: Any) -> None:
        policy.samples.scaled_reward = halved


@OPTION_REGISTRY.register('new_reward', force=True)
class NewReward(Base):
    def fill(self, update: Any, policy: Any) -> None:
        update.reward_scale.fill(self, halved)


@OPTION_REGISTRY.register('old_inputs', force=True)
class OldInputs(Base):
    def attach(self, policy: Any) -> None:
        policy.samples.inputs.append(flipped)


@OPTION_REGISTRY.register('rebuilt_inputs', force=True)
class RebuiltInputs(Base):
    def attach(self, policy: Any) -> None:
        before = policy.samples.inputs
        policy.samples.inputs = [*before, flipped]
        policy.samples.inputs = list(policy.samples.inputs)


@OPTION_REGISTRY.register('new_inputs', force=True)
class NewInputs(Base):
    def fill(self, update: Any, policy: Any) -> None:
        update.inputs.append(flipped)


@OPTION_REGISTRY.register('old_forward', force=True)
class OldForward(Base):
    def attach(self, policy: Any) -> None:
        fixed = policy.objective.fixed
        policy.objective.fixed = fixed._replace(forward=partial(sharper, fixed.forward))


@OPTION_REGISTRY.register('late_forward', force=True)
class LateForward(Base):
    def attach_learn(self, policy: Any) -> None:
        fixed = policy.objective.fixed
        policy.objective.fixed = fixed._replace(forward=partial(sharper, fixed.forward))


@OPTION_REGISTRY.register('new_forward', force=True)
class NewForward(Base):
    def fill(self, update: Any, policy: Any) -> None:
        update.around_forward.append(lambda forward: partial(sharper, forward))


@OPTION_REGISTRY.register('late_draw', force=True)
class LateDraw(Base):
    def attach_learn(self, policy: Any) -> None:
        policy.passes.order_entries = first_half


@OPTION_REGISTRY.register('late_steps', force=True)
class LateSteps(Base):
    def attach_learn(self, policy: Any) -> None:
        policy.passes.steps = partial(self.steps, policy.passes.steps)

    def steps(self, steps: Any, step: Any, optimizers: Any, plan: Any, numbers: Any) -> Any:
        return steps(step, optimizers, plan._replace(columns=flipped(plan.columns)), numbers)


@OPTION_REGISTRY.register('new_draw', force=True)
class NewDraw(Base):
    def fill(self, update: Any, policy: Any) -> None:
        update.draw.fill(self, first_half)


@OPTION_REGISTRY.register('new_each_pass', force=True)
class NewEachPass(Base):
    def fill(self, update: Any, policy: Any) -> None:
        update.each_pass.fill(self, lambda columns, train_iter: flipped(columns))


def trained(*options: str) -> dict[str, torch.Tensor]:
    policy = ppo(dict(executor='eager', epoch_per_collect=2, batch_size=16, options=list(options)))
    for k in range(2):
        policy.learn_mode.forward(samples_of(policy, k))
    return parameters(policy)


@pytest.mark.parametrize(
    ('old', 'new', 'slot'),
    [
        ('old_reward', 'new_reward', 'reward_scale'),
        ('old_inputs', 'new_inputs', 'inputs'),
        ('rebuilt_inputs', 'new_inputs', 'inputs'),
        ('old_forward', 'new_forward', 'around_forward'),
        ('late_forward', 'new_forward', 'around_forward'),
        ('late_draw', 'new_draw', 'draw'),
        ('late_steps', 'new_each_pass', 'each_pass'),
    ],
)
def test_an_option_of_the_older_form_trains_as_one_that_fills_the_slot_of_its_warning(
    old: str, new: str, slot: str
) -> None:
    with pytest.warns(DeprecationWarning, match=rf'use update\.{slot}'):
        found = trained(old)
    want, plain = trained(new), trained()
    assert all(torch.equal(found[name], want[name]) for name in want)
    assert any(not torch.equal(want[name], plain[name]) for name in want)


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_a_slot_that_an_option_of_the_older_form_fills_again_is_refused_with_both_names() -> None:
    with pytest.raises(UserError, match='option NewReward and option OldReward both choose how rewards count'):
        ppo(dict(options=['new_reward', 'old_reward']))


@OPTION_REGISTRY.register('old_keeps', force=True)
class OldKeeps(Base):
    def attach(self, policy: Any) -> None:
        self.policy = policy
        self.samples = policy.samples
        self.before = policy.samples.scaled_reward
        policy.samples.scaled_reward = self.scaled

    def scaled(self, data: Any, weight: Any) -> Any:
        return self.before(data, weight) / 2


def pickled(policy: Any) -> Any:
    return pickle.loads(pickle.dumps(policy))


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.parametrize('copied', [copy.deepcopy, pickled])
@pytest.mark.parametrize('option', ['old_keeps', 'old_forward', 'late_steps'])
def test_a_copy_of_a_policy_with_an_option_of_the_older_form_trains_alone(option: str, copied: Any) -> None:
    policy = ppo(dict(executor='eager', options=[option]))
    other = copied(policy)
    before = parameters(policy)
    samples = samples_of(policy)
    other.learn_mode.forward(copy.deepcopy(samples))
    assert all(torch.equal(x, before[name]) for name, x in parameters(policy).items())
    policy.learn_mode.forward(samples)
    assert all(torch.equal(x, parameters(other)[name]) for name, x in parameters(policy).items())


@pytest.mark.parametrize(
    'option',
    ['old_reward', 'old_inputs', 'rebuilt_inputs', 'old_forward', 'late_forward', 'late_draw', 'late_steps'],
)
def test_a_warning_of_the_older_form_is_of_the_line_of_the_option(option: str) -> None:
    # Python shows a DeprecationWarning only if it is of a line of the script that runs, such as the user's own
    with pytest.warns(DeprecationWarning, match='sets policy') as found:
        ppo(dict(executor='eager', options=[option]))
    assert [w.filename for w in found if 'sets policy' in str(w.message)] == [__file__]
