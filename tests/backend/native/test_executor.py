"""Steps and models that C does not know run in the fallback of the native executor."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.backend.problems import (
    CLIP,
    CPU,
    KL,
    Case,
    OwnAdam,
    Problem,
    assert_equal_parameters,
    space_of,
    with_optimizers,
)
from tests.step_parts import PolicyNumbers, ValueNumbers
from zoo.backend.choose import ExecutorRequest, choose_executor
from zoo.backend.executor import Eager, StepPlan
from zoo.backend.native import NativeExecutor
from zoo.config.components import make_component
from zoo.config.section import validate
from zoo.core.data import map_tensors
from zoo.core.registry import PENALTY_REGISTRY, SURROGATE_REGISTRY, VALUE_LOSS_REGISTRY
from zoo.core.spaces import Box, Dict, Discrete
from zoo.model import PPG, PPGConfig
from zoo.policy.options.off_policy_correction import ProximalLoss
from zoo.policy.ppo import ppo_step
from zoo.rl_utils import FlatAdam


def recorder(called: list[Any]) -> Callable[[Any, Any], Eager]:
    """Makes a native executor whose eager fallback appends loss and numbers of each call to `called`."""

    class Noting(Eager):
        def run(self, step: Any, optimizers: Any, data: Any, loss: Any, numbers: Any) -> Any:
            called.append((loss, numbers))
            return super().run(step, optimizers, data, loss, numbers)

    return lambda model, dist: NativeExecutor(model, dist, Noting(model, dist))


def own_step(model: Any, dist: Any, optimizers: Any, minibatch: Any, loss: Any, numbers: Any) -> Any:
    assert minibatch['mine'].shape == (16,)
    return ppo_step(model, dist, optimizers, {**minibatch, 'adv': 2 * minibatch['adv']}, loss, numbers)


@functools.wraps(ppo_step)
def wrapped(model: Any, dist: Any, optimizers: Any, minibatch: Any, loss: Any, numbers: Any) -> Any:
    return own_step(model, dist, optimizers, minibatch, loss, numbers)


def with_step(step: Any) -> Callable[[Problem], None]:
    def change(problem: Problem) -> None:
        problem.columns['mine'], problem.step = torch.arange(64), step

    return change


def configured(**options: Any) -> Callable[[Problem], None]:
    def make(named: list[Any]) -> list[FlatAdam]:
        optimizer = FlatAdam(named)
        optimizer.configure(**options)
        return [optimizer]

    return with_optimizers(make)


def as_it_is(problem: Problem) -> None:
    pass


def in_sequences(problem: Problem) -> None:
    problem.columns = {name: x.unflatten(0, (16, 4)) for name, x in problem.columns.items()}
    problem.order = torch.arange(16).unsqueeze(0)


def with_proximal(problem: Problem) -> None:
    problem.columns['logit_proximal'] = problem.columns['logit'] + 0.1


DPO, REVERSE = make_component(SURROGATE_REGISTRY, 'dpo'), make_component(PENALTY_REGISTRY, 'reverse_kl')
SHORT = make_component(VALUE_LOSS_REGISTRY, {'type': 'huber', 'range': 2.0})
OWN_CLIP = CLIP.__class__('surrogate', 'clip', lambda log_ratio, ratio, adv, clip_ratio: ratio * adv)
PLAIN = PolicyNumbers()
NOT_IN_C: dict[str, tuple[str, Any, Callable[[Problem], object]]] = {
    'a surrogate': ('POLICY', PolicyNumbers(surrogate=DPO), as_it_is),
    'a surrogate in place of one of zoo': ('PPO', PolicyNumbers(surrogate=OWN_CLIP), as_it_is),
    'an option': ('VALUE', ValueNumbers(value_loss=SHORT), as_it_is),
    'a penalty': ('PPO', PolicyNumbers(terms=(REVERSE,), term_weights=(0.1,)), as_it_is),
    'two penalties': ('PPO', PolicyNumbers(terms=(KL, KL), term_weights=(0.1, 0.1)), as_it_is),
    'a proximal policy': ('PPO', PolicyNumbers(policy_loss=ProximalLoss(None)), with_proximal),
    'a step of a user': ('PPO', PLAIN, with_step(own_step)),
    'a wrapped step': ('PPO', PLAIN, with_step(wrapped)),
    'an optimizer of a user': ('PPO', PLAIN, with_optimizers(lambda named: [OwnAdam(named)])),
    'three optimizers': ('PPO', PLAIN, with_optimizers(lambda named: [FlatAdam(named[i::3]) for i in range(3)])),
    'an average': ('PPO', PLAIN, configured(average_decay=0.9)),
    'accumulation': ('PPO', PLAIN, configured(accumulate=2)),
    'clipped values': ('PPO', PLAIN, configured(grad_clip_value=0.1)),
    'sequences': ('PPO', PLAIN, in_sequences),
}


@pytest.mark.parametrize('name', NOT_IN_C)
def test_what_native_does_not_know_runs_in_its_fallback(name: str) -> None:
    kind, numbers, change = NOT_IN_C[name]
    problem, called = Problem(Case(kind, batch_size=4 if name == 'sequences' else 16, numbers=numbers), n_step=4), []
    change(problem)
    found, want = problem.run(recorder(called)), problem.run(Eager)
    assert called == [tuple(numbers)]
    assert_equal_parameters(found, want)
    assert_equal_parameters(problem.run(NativeExecutor), want)  # the default fallback is eager too


def test_each_call_decides_again_and_reads_only_what_its_step_does() -> None:
    """For example, a step of the policy alone does not read the value loss."""
    numbers = [PolicyNumbers(value_loss=SHORT), PolicyNumbers(surrogate=DPO), PLAIN]
    called: list[Any] = []
    Problem(Case('POLICY', numbers=numbers), n_step=4).run(recorder(called))
    assert called == [tuple(numbers[1])]


def test_columns_and_entries_that_no_step_reads_keep_native_from_nothing() -> None:
    problem, called = Problem(Case('PPO', numbers=PLAIN), n_step=4), []  # type: ignore[var-annotated]
    want = problem.run(NativeExecutor)
    problem.columns |= {'flag': torch.ones(64, dtype=torch.bool), 'part': {'deep': torch.zeros(64, 2)}}  # type: ignore
    assert_equal_parameters(problem.run(recorder(called)), want)
    space = Dict({'more': Box(np.zeros((2, 2, 2)), np.ones((2, 2, 2))), 'seen': space_of('vector')})
    fields = dict(hidden_sizes=[16, 16], actor_obs=['seen'], critic_obs=['seen'])
    model = PPG(validate(PPGConfig, fields), space, Discrete(3))
    model.load_state_dict(problem.model.state_dict())
    problem.model = model
    problem.columns['obs'] = {'more': torch.zeros(64, 2, 2, 2, dtype=torch.float64), 'seen': problem.columns['obs']}
    assert choose_executor(model, problem.dist, CPU, ExecutorRequest('auto', 'auto', None)).name == 'native'
    assert_equal_parameters(problem.run(recorder(called)), want)
    assert not called


def test_a_call_reads_only_the_entries_of_its_networks_the_others_may_be_missing() -> None:
    """The actor sees obs, the critic state, obs and agent."""
    problem = Problem(Case('PPO', input='central critic', numbers=PLAIN), n_step=4)
    executor, obs = NativeExecutor(problem.model, problem.dist), problem.columns['obs']

    def logit_of(obs: Any) -> Any:
        acting: Any = executor.start_acting(obs, lambda n: torch.zeros(1, n, 3), False)
        acting.begin()
        acting.step(0)
        return acting.output['logit'][0]

    rows = map_tensors(lambda x: x.unflatten(0, (2, 32)), obs)
    assert torch.equal(logit_of({'obs': rows['obs']}), logit_of(rows))
    assert executor.compute_critic(obs).shape == (64,)
    for missing in ('state', 'agent'):
        with pytest.raises(ValueError, match='cannot run this model: a layer, width, entry or column'):
            executor.compute_critic({name: x for name, x in obs.items() if name != missing})


def test_entries_in_another_order_are_told_apart_by_name() -> None:
    problem = Problem(Case('PPO', input='normalised entries', numbers=PLAIN), n_step=4)
    want = problem.run(NativeExecutor)
    problem.columns['obs'] = dict(reversed(problem.columns['obs'].items()))
    assert_equal_parameters(problem.run(NativeExecutor), want)


def of_one_vector(problem: Problem, vector: Any) -> Problem:
    """A problem with the same networks whose observations are one vector [N, n], for those networks that see n numbers."""
    n = vector.shape[1]
    space = Box(np.full(n, -np.inf), np.full(n, np.inf))
    other = copy.copy(problem)
    other.model = PPG(validate(PPGConfig, dict(hidden_sizes=[16, 16])), space, Discrete(3))
    own = other.model.state_dict()
    state = {name.replace('.join', ''): x for name, x in problem.model.state_dict().items()}
    other.model.load_state_dict({name: x if x.shape == own[name].shape else own[name] for name, x in state.items()})
    other.columns = {**problem.columns, 'obs': vector}
    return other


@pytest.mark.parametrize(
    ('kind', 'stage', 'trained'),
    [
        ('PPO', 'entries', ('actor_encoder', 'policy_head', 'critic_encoder', 'value_head')),
        ('AUX', 'entries', ('actor_encoder', 'policy_head', 'critic_encoder', 'value_head', 'aux_head')),
        ('POLICY', 'central critic', ('actor_encoder', 'policy_head')),
        ('VALUE', 'central critic', ('critic_encoder', 'value_head')),
    ],
)
def test_entries_side_by_side_are_one_vector_to_the_bit(kind: str, stage: str, trained: tuple[str, ...]) -> None:
    """All entries are agent (one-hot of 3), obs (5 numbers), state.map (2 x 3) and state.doors (4 bits), in this order."""
    problem = Problem(
        Case(kind, input=stage, numbers=PLAIN if kind in ('PPO', 'POLICY') else ValueNumbers()), n_step=12
    )
    obs = problem.columns['obs']
    vector = obs['obs']
    if kind != 'POLICY':
        bits = obs['state']['doors'].float()
        vector = torch.cat([torch.eye(3)[obs['agent']], vector, obs['state']['map'].flatten(1), bits], 1)
    found = problem.run(NativeExecutor)
    want = of_one_vector(problem, vector).run(NativeExecutor)
    by_name = {name.replace('.join', ''): p for name, p in found.parameters.items()}
    before = {name.replace('.join', ''): p for name, p in problem.model.named_parameters()}
    for name, p in want.parameters.items():
        if name.startswith(trained):
            assert torch.equal(by_name[name], p), name
            assert not torch.equal(before[name], p), name
    assert all(torch.equal(found.metrics[name], x) for name, x in want.metrics.items())


def test_parameters_that_are_frozen_in_the_middle_of_a_run_stay() -> None:
    problem = Problem(Case('PPO', numbers=PLAIN), n_step=4)
    model = copy.deepcopy(problem.model)
    executor, data = NativeExecutor(model, problem.dist), StepPlan(problem.columns, problem.order, 16, CPU)
    executor.run(ppo_step, problem.optimizers(model), data, *PLAIN)
    model.actor_encoder.requires_grad_(False)
    before = {name: p.clone() for name, p in model.named_parameters()}
    moving = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    executor.run(ppo_step, [FlatAdam(moving)], data, *PLAIN)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]) == name.startswith(('actor_encoder', 'aux_head')), name
