"""Test problems for executors: models of every kind, samples and step numbers, and a run over them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.backend.executor import Eager, StepPlan
from zoo.config.components import make_component
from zoo.config.section import validate
from zoo.core.data import map_tensors
from zoo.core.registry import PENALTY_REGISTRY, SURROGATE_REGISTRY, VALUE_LOSS_REGISTRY
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, map_spaces
from zoo.model import PPG, VAC, PPGConfig, VACConfig
from zoo.policy.ppg import aux_step, value_step
from zoo.policy.ppo import policy_step, ppo_step
from zoo.rl_utils import FlatAdam, make_dist

CPU = torch.device('cpu')
KL = make_component(PENALTY_REGISTRY, 'kl')
SURROGATES = [
    make_component(SURROGATE_REGISTRY, spec)
    for spec in ('clip', {'type': 'asymmetric_clip', 'high': 0.4}, 'none', 'spo')
]
OPTIONS = ({'type': 'clip', 'range': 0.9}, {'type': 'error_clip', 'range': 1.5}, {'type': 'huber', 'delta': 0.7})
VALUE_LOSSES = [make_component(VALUE_LOSS_REGISTRY, spec) for spec in ('mse', 'clip', *OPTIONS)]
CLIP, _, UNCLIPPED, SPO = SURROGATES
VALUE_CLIP, HUBER = VALUE_LOSSES[1], VALUE_LOSSES[4]
STEPS: dict[str, Any] = {'PPO': ppo_step, 'POLICY': policy_step, 'VALUE': value_step, 'AUX': aux_step}
DISTS = ['categorical', 'several choices', 'free std', 'state-dependent std']
NVEC = {'categorical': (3,), 'several choices': (3, 1, 4)}
INPUTS = ['vector', 'normalised', 'index', 'matrix', 'normalised matrix', 'bits', 'entries', 'normalised entries']
VIEWS = {
    'central critic': dict(actor_obs=['obs'], critic_obs=['state', 'obs', 'agent']),
    'normalised central critic': dict(actor_obs=['obs', 'agent'], critic_obs=['state', 'agent']),
    'critic of an index': dict(actor_obs=['obs'], critic_obs=['agent']),
}
"""Inputs of which actor and critic see different entries, so that each must have its own encoder."""
OWN_CRITIC = {
    'separate': ('critic_encoder', 'value_head'),
    'one trunk': (),
    'stopped': ('value_head',),
    'dual': ('critic_encoder', 'value_head'),
    'detach': ('value_head',),
    'shared': (),
}


SHARED = {'separate': 'off', 'one trunk': 'both', 'stopped': 'detach'}


class Case(NamedTuple):
    """A model, samples and options.

    masked: actions have a mask; critic_rate: PPO's critic has its own optimiser; numbers: if a list, one entry for each of
    several passes in sequence.
    """

    kind: str
    dist: str = 'categorical'
    arch: str = 'dual'
    hidden_sizes: tuple[int, ...] = (16, 16)
    activation: str = 'tanh'
    input: str = 'vector'
    masked: bool = False
    critic_rate: bool = False
    std_bounds: tuple[float, float] = (-10.0, 2.0)
    n_row: int = 64
    batch_size: int = 16
    weighted: bool = False
    normalize_adv: bool = False
    numbers: Any = None
    seed: int = 0


class Adam64(FlatAdam):
    """Adam as published, in float64, which torch's fused Adam does not take."""

    @torch.no_grad()
    def step(self, grad_clip: Any = None) -> Tensor:
        norm = self.grad.norm()
        self.note_step(norm)
        if not norm.isfinite():
            return norm
        grad = self.grad if grad_clip is None else self.grad / (norm / grad_clip).clamp(min=1)
        self.step_count.add_(1)
        lr, beta1, beta2, eps = self.rates
        self.exp_avg.mul_(beta1).add_(grad * (1 - beta1))
        self.exp_avg_sq.mul_(beta2).add_(grad * grad * (1 - beta2))
        m = self.exp_avg / (1 - beta1 ** self.step_count.double())
        v = self.exp_avg_sq / (1 - beta2 ** self.step_count.double())
        self.param -= lr * m / (v.sqrt() + eps)
        return norm


class Problem:
    """A case with its tensors: a float32 model moved from its initial state, columns that differ from its outputs, row orders."""

    def __init__(self, case: Case, n_step: int = 50) -> None:
        self.case, self.step = case, STEPS[case.kind]
        self.generator = torch.Generator().manual_seed(case.seed)
        nvec = NVEC.get(case.dist, ())
        obs_space, action_space = space_of(case.input), action_space_of(case.dist)
        if case.masked:
            parts = obs_space.spaces if isinstance(obs_space, Dict) else {'seen': obs_space}
            obs_space = Dict({**parts, ACTION_MASK: MultiBinary((sum(nvec),))})
        fields: dict[str, Any] = dict(
            hidden_sizes=list(case.hidden_sizes),
            activation=case.activation,
            obs_norm=case.input.startswith('normalised'),
            state_dependent_std=case.dist == 'state-dependent std',
            log_std_init=-0.5,
            log_std_min=case.std_bounds[0],
            log_std_max=case.std_bounds[1],
            **VIEWS.get(case.input, {}),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case.seed)
            if case.arch in SHARED:
                fields |= dict(shared_encoder=SHARED[case.arch])
                self.model: Any = VAC(validate(VACConfig, fields), obs_space, action_space)
            else:
                self.model = PPG(validate(PPGConfig, {**fields, 'arch': case.arch}), obs_space, action_space)
        self.dist, n = make_dist(action_space), case.n_row
        obs = self.observations(n)
        if case.masked:
            parts = obs if isinstance(obs, dict) else {'seen': obs}
            obs = {**parts, ACTION_MASK: self.masks(n, nvec)}
        with torch.no_grad():
            for p in self.model.parameters():
                p += 0.1 * self.normal(*p.shape)
            self.model.update_normalizer(obs)
            logit, value = self.model.compute_actor_critic(obs).values()
            logit = logit + 0.3 * self.normal(*logit.shape)
            if not nvec:
                logit[:, 2:].clamp_(min=0.1)
        noise = self.dist.noise((n,), self.generator, CPU)
        self.columns: dict[str, Any] = {'obs': obs, 'action': self.dist.sample(logit, noise), 'logit': logit}
        self.columns |= {'value': value + self.normal(n), 'adv': self.normal(n), 'return_': value + self.normal(n)}
        if case.weighted:
            self.columns['weight'] = (torch.rand(n, generator=self.generator) < 0.7) * 1.4
        n_pass = math.ceil(n_step / math.ceil(n / case.batch_size))
        self.order = torch.stack([torch.randperm(n, generator=self.generator) for _ in range(n_pass)])

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def observations(self, n: int) -> Any:
        return map_spaces(lambda space: self.values(space, n), space_of(self.case.input))

    def values(self, space: Space, n: int) -> Tensor:
        """Random values of a leaf."""
        if isinstance(space, Discrete):
            return torch.randint(space.n, (n,), generator=self.generator)
        if isinstance(space, MultiBinary):
            return self.normal(n, *space.shape) > 0
        return 2 * self.normal(n, *space.shape) + 1

    def masks(self, n: int, nvec: tuple[int, ...]) -> Tensor:
        """Random masks [n, sum(nvec)] that allow at least one option of each choice."""
        parts = [torch.rand(n, size, generator=self.generator) < 0.6 for size in nvec]
        kept = [torch.randint(size, (n, 1), generator=self.generator) for size in nvec]
        return torch.cat([part.scatter_(1, index, True) for part, index in zip(parts, kept, strict=True)], 1)

    def optimizers(self, model: Any, kind: type[FlatAdam] = FlatAdam) -> list[FlatAdam]:
        """The optimisers that the policies have: one for all parameters, or a separate one for the critic."""
        named, own = list(model.named_parameters()), OWN_CRITIC[self.case.arch]
        if self.case.kind == 'PPO' and not self.case.critic_rate:
            return [kind(named)]
        groups = [[(name, p) for name, p in named if (name.split('.')[0] in own) == mine] for mine in (False, True)]
        found = [kind(group) for group in groups if group]
        if len(found) > 1:
            found[1].lr = 3e-3
        return {'PPO': found, 'POLICY': found[:1], 'VALUE': found[-1:], 'AUX': found}[self.case.kind]

    def run(self, make: Callable[[Any, Any], Eager], dtype: torch.dtype = torch.float32) -> Result:
        """Runs all passes on a copy of the model."""
        model = copy.deepcopy(self.model).to(dtype)
        if dtype == torch.float64:
            model.input.register_forward_hook(  # one-hot rows are float32
                lambda module, args, inputs: map_tensors(lambda x: x.to(dtype), inputs)
            )
        optimizers = self.optimizers(model, FlatAdam if dtype == torch.float32 else Adam64)
        columns = map_tensors(lambda x: x.to(dtype) if x.is_floating_point() else x, self.columns)
        data = StepPlan(columns, self.order, self.case.batch_size, CPU, self.case.normalize_adv)
        executor, numbers = make(model, self.dist), self.case.numbers
        passes = numbers if isinstance(numbers, list) else [numbers]
        found = [executor.run(self.step, optimizers, data, *each) for each in passes]
        metrics = {name: torch.cat([each[name] for each in found]) for name in found[0]}
        return Result(dict(model.named_parameters()), optimizers, metrics)


def space_of(name: str) -> Space:
    """Observation space of an input name."""
    if name == 'index':
        return Discrete(7)
    if name == 'bits':
        return MultiBinary((5,))
    if 'entries' in name or name in VIEWS:
        state = Dict({'map': space_of('matrix'), 'doors': MultiBinary((4,))})
        return Dict({'agent': Discrete(3), 'obs': space_of('vector'), 'state': state})
    shape = (2, 3) if 'matrix' in name else (5,)
    return Box(np.full(shape, -np.inf), np.full(shape, np.inf))


def action_space_of(dist: str) -> Space:
    if dist not in NVEC:
        return Box(np.full(2, -1.0), np.full(2, 1.0))
    nvec = NVEC[dist]
    return Discrete(nvec[0]) if dist == 'categorical' else MultiDiscrete(nvec, (0,) * len(nvec), (len(nvec),))


class Result(NamedTuple):
    """The state after a run: parameters, optimisers and metrics."""

    parameters: dict[str, Tensor]
    optimizers: list[FlatAdam]
    metrics: dict[str, Tensor]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, detached."""
        found = {name: p.detach() for name, p in self.parameters.items()}
        for i, optimizer in enumerate(self.optimizers):
            found |= {f'{name} {i}': x for name, x in optimizer.buffers.items()}
            found[f'skipped {i}'] = torch.tensor(optimizer.count_skipped(99))
        return {**found, **self.metrics}


def assert_equal_parameters(found: Result, want: Result) -> None:
    assert not [name for name, p in want.parameters.items() if not torch.equal(found.parameters[name], p)]


class OwnAdam(FlatAdam):
    """A user's optimiser: half as fast as Adam."""

    def step(self, grad_clip: Any = None) -> Tensor:
        before = self.param.clone()
        norm = super().step(grad_clip)
        self.param.lerp_(before, 0.5)
        return norm


def with_optimizers(make: Callable[[list[Any]], list[FlatAdam]]) -> Callable[[Problem], None]:
    """Returns a change that replaces a problem's optimisers by those made from the model's named parameters."""

    def change(problem: Problem) -> None:
        problem.optimizers = lambda model, kind=FlatAdam: make(list(model.named_parameters()))  # type: ignore

    return change
