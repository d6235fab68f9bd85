"""Every executor against the eager one in float64; what they skip and drop alike; and the rule that chooses one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import zoo.backend.native.executor
from tests.policy_envs import make_policy
from zoo.backend.choose import Wish, choose_executor
from zoo.backend.executor import Eager, Executor, ForwardActing, Pass, forward_for_acting, minibatches
from zoo.backend.native import NativeExecutor, build, library
from zoo.config.section import validate
from zoo.core.errors import UserError
from zoo.core.spaces import Box, Discrete, Space
from zoo.model import PPG, VAC, PPGConfig, VACConfig
from zoo.policy.updates import AuxNumbers, PolicyNumbers, ValueNumbers, aux_step, policy_step, ppo_step, value_step
from zoo.rl_utils import Categorical, FlatAdam, Gaussian, make_dist

pytestmark = pytest.mark.usefixtures('native')
CPU = torch.device('cpu')
STEPS = {'PPO': ppo_step, 'POLICY': policy_step, 'VALUE': value_step, 'AUX': aux_step}
DISTS = ['categorical', 'free std', 'state-dependent std']
ARCHS = {'separate': 'separate', 'one trunk': None, 'dual': 'dual', 'detach': 'detach', 'shared': 'shared'}
OWN_CRITIC = {
    'separate': ('critic_encoder', 'value_head'),
    'one trunk': (),
    'dual': ('critic_encoder', 'value_head'),
    'detach': ('value_head',),
    'shared': (),
}


class Case(NamedTuple):
    """A model, samples and options."""

    kind: str
    dist: str = 'categorical'
    arch: str = 'dual'
    hidden_sizes: tuple[int, ...] = (16, 16)
    activation: str = 'tanh'
    input: str = 'vector'
    n_row: int = 64
    batch_size: int = 16
    weighted: bool = False
    normalize_adv: bool = False
    numbers: Any = None
    seed: int = 0


class Adam64(FlatAdam):
    """Adam as published, in float64, which torch's fused one does not take."""

    @torch.no_grad()
    def step(self, grad_clip: Any = None) -> Tensor:
        norm = self.grad.norm()
        self.note_step(norm)
        if not norm.isfinite():
            return norm
        grad = self.grad if grad_clip is None else self.grad / (norm / grad_clip).clamp(min=1)
        self.step_count += 1
        lr, beta1, beta2, eps = self.rates
        self.exp_avg.mul_(beta1).add_(grad * (1 - beta1))
        self.exp_avg_sq.mul_(beta2).add_(grad * grad * (1 - beta2))
        m = self.exp_avg / (1 - beta1 ** self.step_count.double())
        v = self.exp_avg_sq / (1 - beta2 ** self.step_count.double())
        self.param -= lr * m / (v.sqrt() + eps)
        return norm


class Problem:
    """A case made: a float32 model that is not at its start, columns that stray from it, and orders of rows."""

    def __init__(self, case: Case, n_step: int = 50) -> None:
        self.case, self.step = case, STEPS[case.kind]
        self.generator = torch.Generator().manual_seed(case.seed)
        obs_space: Space = Discrete(7) if case.input == 'index' else Box(np.full(5, -np.inf), np.full(5, np.inf))
        action_space: Space = Discrete(3) if case.dist == 'categorical' else Box(np.full(2, -1.0), np.full(2, 1.0))
        fields = dict(
            hidden_sizes=list(case.hidden_sizes),
            activation=case.activation,
            obs_norm=case.input == 'normalised',
            state_dependent_std=case.dist == 'state-dependent std',
            log_std_init=-0.5,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case.seed)
            if case.arch in ('separate', 'one trunk'):
                fields |= dict(shared_encoder=case.arch == 'one trunk')
                self.model: Any = VAC(validate(VACConfig, fields), obs_space, action_space)
            else:
                self.model = PPG(validate(PPGConfig, {**fields, 'arch': case.arch}), obs_space, action_space)
        self.dist, n = make_dist(action_space), case.n_row
        obs = torch.randint(7, (n,), generator=self.generator) if case.input == 'index' else 2 * self.normal(n, 5) + 1
        with torch.no_grad():
            for p in self.model.parameters():
                p += 0.1 * self.normal(*p.shape)
            self.model.update_normalizer(obs)
            logit, value = self.model.compute_actor_critic(obs).values()
            logit = logit + 0.3 * self.normal(*logit.shape)
            if case.dist != 'categorical':
                logit[:, 2:].clamp_(min=0.1)
        noise = self.dist.noise((n,), self.generator, CPU)
        self.columns = {'obs': obs, 'action': self.dist.sample(logit, noise), 'logit': logit}
        self.columns |= {'value': value + self.normal(n), 'adv': self.normal(n), 'return_': value + self.normal(n)}
        if case.weighted:
            self.columns['weight'] = (torch.rand(n, generator=self.generator) < 0.7) * 1.4
        n_pass = math.ceil(n_step / math.ceil(n / case.batch_size))
        self.order = torch.stack([torch.randperm(n, generator=self.generator) for _ in range(n_pass)])

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def optimizers(self, model: Any, kind: type[FlatAdam] = FlatAdam) -> list[FlatAdam]:
        """As the policies have them: one for all parameters, or the critic's own apart."""
        named, own = list(model.named_parameters()), OWN_CRITIC[self.case.arch]
        if self.case.kind == 'PPO':
            return [kind(named)]
        groups = [[(name, p) for name, p in named if (name.split('.')[0] in own) == mine] for mine in (False, True)]
        found = [kind(group) for group in groups if group]
        return {'POLICY': found[:1], 'VALUE': found[-1:], 'AUX': found}[self.case.kind]

    def run(self, make: Callable[[Any, Any], Executor], dtype: torch.dtype = torch.float32) -> Result:
        """The whole pass on a copy of the model."""
        model = copy.deepcopy(self.model).to(dtype)
        if dtype == torch.float64:
            model.input.register_forward_hook(lambda module, args, x: x.to(dtype))  # one-hot rows are float32
        optimizers = self.optimizers(model, FlatAdam if dtype == torch.float32 else Adam64)
        columns = {name: x.to(dtype) if x.is_floating_point() else x for name, x in self.columns.items()}
        data = Pass(columns, self.order, self.case.batch_size, CPU, self.case.normalize_adv)
        metrics = make(model, self.dist).run(self.step, optimizers, data, self.case.numbers)
        return Result(dict(model.named_parameters()), optimizers, metrics)


class Result(NamedTuple):
    """What a run leaves."""

    parameters: dict[str, Tensor]
    optimizers: list[FlatAdam]
    metrics: dict[str, Tensor]

    def tensors(self) -> dict[str, Tensor]:
        """Everything, detached, by name."""
        found = {name: p.detach() for name, p in self.parameters.items()}
        for i, optimizer in enumerate(self.optimizers):
            found |= {f'{name} {i}': x for name, x in optimizer.state._asdict().items()}
            found[f'norms {i}'] = torch.cat(optimizer._norms)
        return {**found, **self.metrics}


@st.composite
def cases(draw: Any, kind: str, dist: str) -> Case:
    archs = ('dual', 'detach', 'shared') if kind == 'AUX' else tuple(OWN_CRITIC)
    batch_size = draw(st.integers(1, 40))
    policy = PolicyNumbers(
        draw(st.sampled_from([0.05, 0.2, 0.5])),
        draw(st.sampled_from([0.0, 0.01])),
        draw(st.sampled_from([None, 1.5, 3.0])),
        draw(st.sampled_from([None, None, 0.0, 0.7])),
        draw(st.sampled_from([None, 0.5, 0.01])),
        draw(st.booleans()),
        draw(st.sampled_from([0.0, 0.5, 1.0])),
        draw(st.booleans()),
    )
    value = ValueNumbers(policy.clip_ratio, policy.value_clip, policy.grad_clip)
    aux = AuxNumbers(draw(st.sampled_from([0.0, 1.0, 2.5])), policy.grad_clip)
    return Case(
        kind,
        dist,
        draw(st.sampled_from(archs)),
        draw(st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)),
        draw(st.sampled_from(['tanh', 'relu'])),
        draw(st.sampled_from(['vector', 'normalised', 'index'])),
        draw(st.integers(1, 5 * batch_size)),
        batch_size,
        draw(st.booleans()),
        kind in ('PPO', 'POLICY') and draw(st.booleans()),
        {'VALUE': value, 'AUX': aux}.get(kind, policy),
        draw(st.integers(0, 1000)),
    )


def sweep(n: int) -> Any:
    return settings(
        max_examples=n, deadline=None, derandomize=False, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )


kinds = pytest.mark.parametrize('kind', STEPS)
dists = pytest.mark.parametrize('dist', DISTS)


def assert_near(found: Tensor, want: Tensor, name: str) -> None:
    """Within 1e-5 of the norm, of float32's rounding where that is larger."""
    error, size = (found.double() - want).norm().item(), want.norm().item()
    assert error <= 1e-5 * size + 1e-6, f'{name}: {error} of {size}'


@kinds
@dists
@given(data=st.data())
@sweep(120)
def test_native_ends_where_eager_in_float64_does(kind: str, dist: str, data: Any) -> None:
    problem = Problem(data.draw(cases(kind, dist)))
    found, want = problem.run(NativeExecutor), problem.run(Eager, torch.float64)
    for name, p in want.parameters.items():
        assert_near(found.parameters[name], p, name)
    assert found.metrics.keys() == want.metrics.keys()
    for name, x in want.metrics.items():
        torch.testing.assert_close(found.metrics[name].double(), x, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f'{n}: {m}')
