"""Every executor against the eager one in float64; what they skip and drop alike; and the rule that chooses one."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import zoo.backend.native.executor
from tests.policy.test_ppo import N_STEP, OBS, N, samples_of
from tests.policy_envs import TWO_ACTIONS, make_policy
from zoo.backend.choose import Wish, choose_executor
from zoo.backend.executor import Eager, ForwardActing, Pass, forward_for_acting, minibatches
from zoo.backend.graph import GraphExecutor
from zoo.backend.native import NativeExecutor, bindings, build
from zoo.config.components import make_part
from zoo.config.section import validate
from zoo.core.data import first_leaf, leaves, map_tensors
from zoo.core.errors import UserError
from zoo.core.registry import PENALTY_REGISTRY, SURROGATE_REGISTRY, VALUE_LOSS_REGISTRY
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from zoo.model import PPG, VAC, PPGConfig, VACConfig
from zoo.policy.gradient_steps import PolicyNumbers, policy_step, ppo_step
from zoo.policy.ppg import AuxNumbers, ValueNumbers, aux_step, value_step
from zoo.rl_utils import Categorical, FlatAdam, Gaussian, make_dist

pytestmark = pytest.mark.usefixtures('native')
CPU = torch.device('cpu')
KL = make_part(PENALTY_REGISTRY, 'kl')
SURROGATES = [
    make_part(SURROGATE_REGISTRY, spec) for spec in ('clip', {'type': 'asymmetric_clip', 'high': 0.4}, 'none', 'spo')
]
VALUE_LOSSES = [
    make_part(VALUE_LOSS_REGISTRY, spec)
    for spec in (
        'mse',
        'clip',
        {'type': 'clip', 'range': 0.9},
        {'type': 'error_clip', 'range': 1.5},
        {'type': 'huber', 'delta': 0.7},
    )
]
CLIP, _, UNCLIPPED, SPO = SURROGATES
VALUE_CLIP, WIDE_VALUE_CLIP, ERROR_CLIP, HUBER = VALUE_LOSSES[1:]
STEPS = {'PPO': ppo_step, 'POLICY': policy_step, 'VALUE': value_step, 'AUX': aux_step}
DISTS = ['categorical', 'several choices', 'free std', 'state-dependent std']
NVEC = {'categorical': (3,), 'several choices': (3, 1, 4)}
INPUTS = ['vector', 'normalised', 'index', 'matrix', 'normalised matrix', 'bits']
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

    masked: actions have a mask; critic_rate: PPO's critic has an optimiser of its own; numbers: a list is of several
    passes, one after the other.
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
    """Adam as published, in float64, which torch's fused one does not take."""

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
    """A case made: a float32 model that is not at its start, columns that stray from it, and orders of rows."""

    def __init__(self, case: Case, n_step: int = 50) -> None:
        self.case, self.step = case, STEPS[case.kind]
        self.generator = torch.Generator().manual_seed(case.seed)
        nvec = NVEC.get(case.dist, ())
        obs_space, action_space = space_of(case.input), action_space_of(case.dist)
        if case.masked:
            obs_space = Dict({'seen': obs_space, ACTION_MASK: MultiBinary((sum(nvec),))})
        fields = dict(
            hidden_sizes=list(case.hidden_sizes),
            activation=case.activation,
            obs_norm=case.input.startswith('normalised'),
            state_dependent_std=case.dist == 'state-dependent std',
            log_std_init=-0.5,
            log_std_min=case.std_bounds[0],
            log_std_max=case.std_bounds[1],
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
            obs = {'seen': obs, ACTION_MASK: self.masks(n, nvec)}
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

    def observations(self, n: int) -> Tensor:
        if self.case.input == 'index':
            return torch.randint(7, (n,), generator=self.generator)
        if self.case.input == 'bits':
            return self.normal(n, 5) > 0
        return 2 * (self.normal(n, 2, 3) if 'matrix' in self.case.input else self.normal(n, 5)) + 1

    def masks(self, n: int, nvec: tuple[int, ...]) -> Tensor:
        """Random masks [n, sum(nvec)] that allow an option of each choice."""
        parts = [torch.rand(n, size, generator=self.generator) < 0.6 for size in nvec]
        kept = [torch.randint(size, (n, 1), generator=self.generator) for size in nvec]
        return torch.cat([part.scatter_(1, index, True) for part, index in zip(parts, kept, strict=True)], 1)

    def optimizers(self, model: Any, kind: type[FlatAdam] = FlatAdam) -> list[FlatAdam]:
        """As the policies have them: one for all parameters, or the critic's own apart."""
        named, own = list(model.named_parameters()), OWN_CRITIC[self.case.arch]
        if self.case.kind == 'PPO' and not self.case.critic_rate:
            return [kind(named)]
        groups = [[(name, p) for name, p in named if (name.split('.')[0] in own) == mine] for mine in (False, True)]
        found = [kind(group) for group in groups if group]
        if len(found) > 1:
            found[1].lr = 3e-3
        return {'PPO': found, 'POLICY': found[:1], 'VALUE': found[-1:], 'AUX': found}[self.case.kind]

    def run(self, make: Callable[[Any, Any], Eager], dtype: torch.dtype = torch.float32) -> Result:
        """The whole pass on a copy of the model."""
        model = copy.deepcopy(self.model).to(dtype)
        if dtype == torch.float64:
            model.input.register_forward_hook(lambda module, args, x: x.to(dtype))  # one-hot rows are float32
        optimizers = self.optimizers(model, FlatAdam if dtype == torch.float32 else Adam64)
        columns = map_tensors(lambda x: x.to(dtype) if x.is_floating_point() else x, self.columns)
        data = Pass(columns, self.order, self.case.batch_size, CPU, self.case.normalize_adv)
        executor, numbers = make(model, self.dist), self.case.numbers
        passes = numbers if isinstance(numbers, list) else [numbers]
        found = [executor.run(self.step, optimizers, data, each) for each in passes]
        metrics = {name: torch.cat([each[name] for each in found]) for name in found[0]}
        return Result(dict(model.named_parameters()), optimizers, metrics)


def space_of(name: str) -> Space:
    """Of observations."""
    if name == 'index':
        return Discrete(7)
    if name == 'bits':
        return MultiBinary((5,))
    shape = (2, 3) if 'matrix' in name else (5,)
    return Box(np.full(shape, -np.inf), np.full(shape, np.inf))


def action_space_of(dist: str) -> Space:
    if dist not in NVEC:
        return Box(np.full(2, -1.0), np.full(2, 1.0))
    nvec = NVEC[dist]
    return Discrete(nvec[0]) if dist == 'categorical' else MultiDiscrete(nvec, (0,) * len(nvec), (len(nvec),))


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
            found[f'norms {i}'] = torch.cat([norm.reshape(-1) for norm in optimizer._norms])
        return {**found, **self.metrics}


@st.composite
def cases(draw: Any, kind: str, dist: str) -> Case:
    archs = ('dual', 'detach', 'shared') if kind == 'AUX' else tuple(OWN_CRITIC)
    batch_size = draw(st.integers(4, 40))
    penalty_weights = draw(st.sampled_from([(), (), (0.0,), (0.1,), (0.7,)]))
    policy = PolicyNumbers(
        draw(st.sampled_from([0.05, 0.2, 0.5])),
        draw(st.sampled_from([0.0, 0.01])),
        draw(st.sampled_from([None, 1.5, 3.0])),
        draw(st.sampled_from([None, 0.5, 0.01])),
        draw(st.booleans()),
        draw(st.sampled_from([0.0, 0.5, 1.0])),
        draw(st.sampled_from(SURROGATES)),
        draw(st.sampled_from(VALUE_LOSSES)),
        (KL,) * len(penalty_weights),
        penalty_weights,
    )
    value = ValueNumbers(policy.clip_ratio, policy.grad_clip, policy.value_loss)
    aux = AuxNumbers(draw(st.sampled_from([0.0, 1.0, 2.5])), policy.grad_clip)
    return Case(
        kind,
        dist,
        draw(st.sampled_from(archs)),
        draw(st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)),
        draw(st.sampled_from(['tanh', 'relu'])),
        draw(st.sampled_from(INPUTS)),
        dist in NVEC and draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([(-10.0, 2.0), (-0.55, -0.45)])),
        draw(st.integers(8, 5 * batch_size)),
        batch_size,
        draw(st.booleans()),
        kind in ('PPO', 'POLICY') and draw(st.booleans()),
        {'VALUE': value, 'AUX': aux}.get(kind, policy),
        draw(st.integers(0, 1000)),
    )


def sweep(n: int) -> Any:
    return settings(
        max_examples=n, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )


kinds = pytest.mark.parametrize('kind', STEPS)
dists = pytest.mark.parametrize('dist', DISTS)


def assert_near(found: Tensor, want: Tensor, name: str, bound: float = 1e-5) -> None:
    """By the norms of error and value; a tenth of the bound is allowed to what is 0."""
    error, size = (found.double() - want.double()).norm().item(), want.double().norm().item()
    assert error <= bound * (size + 0.1), f'{name}: {error} of {size}'


@pytest.mark.slow
@kinds
@dists
@given(data=st.data())
@sweep(8)
def test_native_ends_where_eager_in_float64_does(kind: str, dist: str, data: Any) -> None:
    problem = Problem(data.draw(cases(kind, dist)))
    found, want = problem.run(NativeExecutor), problem.run(Eager, torch.float64)
    for name, p in want.parameters.items():
        assert_near(found.parameters[name], p, name)
    assert found.metrics.keys() == want.metrics.keys()
    for name, x in want.metrics.items():
        if name == 'clipfrac':  # a ratio may lie at the bound
            assert ((found.metrics[name] - x).abs() > 1e-5).sum() <= 1
        else:
            assert_near(found.metrics[name], x, name, 1e-3)


@pytest.mark.parametrize('surrogate', SURROGATES, ids=lambda part: part.name)
@dists
def test_native_has_the_gradient_of_eager_with_every_part(dist: str, surrogate: Any) -> None:
    """Of one step, some rows without weight; the moments of Adam after it say what the gradient was."""
    for i, (value_loss, weights) in enumerate(itertools.product(VALUE_LOSSES, [(), (0.7,)])):
        parts = dict(surrogate=surrogate, value_loss=value_loss, penalties=(KL,) * len(weights))
        numbers = PolicyNumbers(0.2, 0.01, 1.5 if i % 3 else None, penalty_weights=weights, **parts)  # type: ignore
        problem = Problem(Case('PPO', dist, weighted=True, batch_size=64, numbers=numbers, seed=i), n_step=1)
        found, want = problem.run(NativeExecutor), problem.run(Eager, torch.float64)
        assert_near(found.optimizers[0].exp_avg, want.optimizers[0].exp_avg, f'{numbers}', 3e-5)
        assert found.metrics.keys() == want.metrics.keys()
        for name, x in want.metrics.items():
            assert_near(found.metrics[name], x, f'{name} of {numbers}', 3e-5)


@pytest.mark.slow
@pytest.mark.parametrize('executor', ['native', 'graph'])
def test_numbers_that_move_from_pass_to_pass_are_those_of_each_pass(executor: str) -> None:
    """As schedules and adaptive penalties move them."""
    numbers = [
        PolicyNumbers(
            0.3 - 0.1 * i, 0.01 * i, 3.5 - i, 0.5 + i, False, 0.5 + i, SPO, VALUE_CLIP, (KL,), (0.1 * (1 + i),)
        )
        for i in range(3)
    ]
    problem = Problem(Case('PPO', weighted=True, numbers=numbers), n_step=8)
    found, want = problem.run(maker(executor)), problem.run(Eager, torch.float64)
    for name, p in want.parameters.items():
        assert_near(found.parameters[name], p, name)
    for name, x in want.metrics.items():
        assert_near(found.metrics[name], x, name, 1e-3)
    still = Problem(Case('PPO', weighted=True, numbers=[numbers[0]] * 3), n_step=8).run(Eager, torch.float64)
    for name in ('policy_head.weight', 'value_head.layer.weight'):  # it matters that they move
        assert (still.parameters[name] - want.parameters[name]).norm() > 1e-3


COLUMNS = ('obs', 'action', 'logit', 'value', 'adv', 'return_')


@pytest.mark.slow
@kinds
@dists
@given(data=st.data())
@sweep(8)
def test_native_skips_what_eager_skips_at_nan_and_infinity(kind: str, dist: str, data: Any) -> None:
    problem = Problem(data.draw(cases(kind, dist)), n_step=8)
    floats = [x for name in COLUMNS for _, x in leaves(problem.columns[name]) if x.is_floating_point()]
    column = data.draw(st.sampled_from(floats))
    row, place = data.draw(st.integers(0, len(column) - 1)), data.draw(st.integers(0, 3))
    if 'weight' in problem.columns:  # what stands in a row without weight has to be finite
        problem.columns['weight'][row] = 1.4
    numbers = column.view(len(column), -1)
    numbers[row, place % numbers.shape[1]] = data.draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
    found, want = problem.run(NativeExecutor), problem.run(Eager)
    a, b = found.tensors(), want.tensors()
    for name in b.keys() - want.metrics.keys():
        if not name.startswith('grad '):  # of a step that is skipped no number of the gradient is used
            assert torch.equal(a[name].isfinite(), b[name].isfinite()), name
            assert_near(a[name].where(b[name].isfinite(), 0.0), b[name].where(b[name].isfinite(), 0.0), name, 1e-3)
    assert all(torch.equal(a[name], x) for name, x in b.items() if name.startswith('step_count'))
    (norm,) = (x for name, x in want.metrics.items() if name.endswith('grad_norm'))
    for name, x in want.metrics.items():
        taken = norm.isfinite() & (norm < 1e30)  # close to the largest float32 a sum overflows in one order of terms
        assert torch.equal(found.metrics[name][taken].isfinite(), x[taken].isfinite()), name
        if name != 'clipfrac':
            taken &= x.isfinite()
            assert_near(found.metrics[name][taken], x[taken], name, 1e-3)


# 'graph' runs its programs as traced, 'compiled' through torch's inductor
EXECUTORS = ['eager', 'native', 'graph', pytest.param('compiled', marks=pytest.mark.long)]
executors = pytest.mark.parametrize('executor', EXECUTORS)


def maker(name: str) -> Callable[[Any, Any], Eager]:
    if name in ('graph', 'compiled'):
        from zoo.backend.graph import GraphExecutor

        return GraphExecutor
    return {'eager': Eager, 'native': NativeExecutor}[name]


@pytest.fixture(autouse=True)
def nothing_falls_back(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What cannot be traced or compiled runs eagerly, after a warning."""
    executor = getattr(request.node, 'callspec', None) and request.node.callspec.params.get('executor')
    if executor == 'graph':
        request.getfixturevalue('graphs')
    yield
    if executor in ('graph', 'compiled') or 'compiled' in request.node.name:
        assert not [each for each in caplog.get_records('call') if each.levelname == 'WARNING']


@pytest.mark.slow
@executors
def test_step_that_is_not_finite_changes_nothing_and_its_norm_says_so(executor: str) -> None:
    """The second of four steps; the moments and the count of steps are those of the other three."""
    problem = Problem(Case('PPO', numbers=PolicyNumbers()), n_step=4)
    bad = problem.order[0, 16:32]
    problem.columns['adv'][bad[3]] = torch.nan
    found = problem.run(maker(executor))
    assert found.metrics['grad_norm'].isfinite().tolist() == [True, False, True, True]
    (optimizer,) = found.optimizers
    assert optimizer.step_count == 3 and optimizer.count_skipped(10) == 1
    problem.order = torch.cat((problem.order[:, :16], problem.order[:, 32:]), 1)  # without that step
    want = problem.run(maker(executor))
    for name, x in want.parameters.items():
        torch.testing.assert_close(found.parameters[name], x, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(optimizer.exp_avg, want.optimizers[0].exp_avg, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('executor', ['eager', 'native', 'graph'])
def test_in_the_auxiliary_phase_each_network_skips_for_itself(executor: str) -> None:
    """A row that is too much for the critic's gradient alone."""
    problem = Problem(Case('AUX', numbers=AuxNumbers()), n_step=1)
    problem.model.value_head.layer.bias.data.fill_(torch.inf)
    found = problem.run(maker(executor))
    assert [optimizer.step_count.item() for optimizer in found.optimizers] == [4, 0]
    assert not found.metrics['aux_grad_norm'].isfinite().any()
    before, actor = dict(problem.model.named_parameters()), OWN_CRITIC['dual']
    for name, p in found.parameters.items():
        assert torch.equal(p, before[name]) == (name.split('.')[0] in actor), name


@executors
@pytest.mark.parametrize(
    ('kind', 'numbers', 'metric'),
    [
        ('PPO', PolicyNumbers(value_weight=0.0), 'value_loss'),
        ('AUX', AuxNumbers(bc_weight=0.0), 'behavioral_cloning_loss'),
        ('POLICY', PolicyNumbers(surrogate=UNCLIPPED, penalties=(KL,), penalty_weights=(0.0,)), 'penalty_kl'),
    ],
)
def test_factor_of_exactly_zero_drops_an_infinite_term(executor: str, kind: str, numbers: Any, metric: str) -> None:
    problem = Problem(Case(kind, 'free std', numbers=numbers), n_step=4)
    if metric == 'value_loss':
        problem.columns['return_'][:] = torch.inf
    else:
        problem.columns['logit'][:, 2] = 1e20  # a deviation, whose square is infinite in float32
        problem.columns['adv'] *= 1e-20  # the ratio is some 1e20
    found = problem.run(maker(executor))
    norm = found.metrics['aux_grad_norm' if kind == 'AUX' else 'grad_norm']
    assert norm.isfinite().all() and found.optimizers[0].step_count == 4
    assert found.metrics[metric].isinf().all()


@pytest.mark.long
@pytest.mark.parametrize(
    'case',
    [
        Case(
            'PPO',
            'categorical',
            'one trunk',
            input='index',
            weighted=True,
            normalize_adv=True,
            numbers=PolicyNumbers(0.2, 0.01, 3.0, 0.5, True, 0.5, CLIP, VALUE_CLIP),
        ),
        Case(
            'PPO',
            'free std',
            'shared',
            (13, 7),
            'relu',
            n_row=50,
            numbers=PolicyNumbers(surrogate=UNCLIPPED, value_loss=HUBER, penalties=(KL,), penalty_weights=(0.7,)),
        ),
        Case(
            'PPO',
            'several choices',
            weighted=True,
            numbers=PolicyNumbers(surrogate=SURROGATES[1], value_loss=ERROR_CLIP),
        ),
        Case('POLICY', 'free std', weighted=True, numbers=PolicyNumbers(dual_clip=1.5, surrogate=SPO)),
        Case(
            'POLICY', 'state-dependent std', 'detach', input='normalised', numbers=PolicyNumbers(0.05, grad_clip=None)
        ),
        Case('VALUE', 'free std', 'dual', weighted=True, numbers=ValueNumbers(0.05, 0.5, WIDE_VALUE_CLIP)),
        Case(
            'PPO',
            'several choices',
            masked=True,
            critic_rate=True,
            numbers=PolicyNumbers(0.2, 0.01, measure_kl=True, penalties=(KL,), penalty_weights=(0.1,)),
        ),
        Case('AUX', 'categorical', 'dual', masked=True, n_row=50, numbers=AuxNumbers(2.5, 0.5)),
        Case('AUX', 'state-dependent std', 'shared', weighted=True, numbers=AuxNumbers(0.0)),
    ],
    ids=lambda case: f'{case.kind} {case.dist}',
)
def test_compiled_steps_end_where_eager_in_float64_does(case: Case) -> None:
    problem = Problem(case)
    found, want = problem.run(maker('compiled')), problem.run(Eager, torch.float64)
    for name, p in want.parameters.items():
        assert_near(found.parameters[name], p, name)
    assert found.metrics.keys() == want.metrics.keys()
    for name, x in want.metrics.items():
        assert_near(found.metrics[name], x, name, 1e-3)


@kinds
def test_native_gives_the_same_bits_again_and_with_two_threads(kind: str) -> None:
    """Enough rows that two threads share them."""
    numbers = {'VALUE': ValueNumbers(), 'AUX': AuxNumbers()}.get(kind, PolicyNumbers(0.2, 0.01))
    problem = Problem(Case(kind, n_row=1024, batch_size=256, normalize_adv=kind == 'PPO', numbers=numbers), n_step=12)
    found, n_thread = [], torch.get_num_threads()
    try:
        for n in (1, 1, 2, 2):
            torch.set_num_threads(n)
            found.append(problem.run(NativeExecutor).tensors())
    finally:
        torch.set_num_threads(n_thread)
    for other in found[1:]:
        assert not [name for name, x in found[0].items() if not torch.equal(other[name], x)]


@pytest.mark.parametrize('n_group', [1, 2])
@pytest.mark.parametrize('arch', ['separate', 'one trunk'])
@pytest.mark.parametrize('stage', INPUTS)
@pytest.mark.parametrize('dist', [*DISTS, 'categorical masked', 'several choices masked'])
def test_native_acts_as_eager_does(dist: str, stage: str, arch: str, n_group: int) -> None:
    """Over two rollouts of six envs, between which the model moves; several groups are parts of one block."""
    dist, masked = dist.removesuffix(' masked'), dist.endswith('masked')
    problem = Problem(Case('PPO', dist, arch, input=stage, masked=masked, n_row=7 * 6, numbers=PolicyNumbers()))
    model, one_trunk = problem.model, arch == 'one trunk'
    obs = map_tensors(lambda x: x.unflatten(0, (7, 6)), problem.columns['obs'])
    blocks = [map_tensors(lambda x: x.chunk(n_group, 1)[i], obs) for i in range(n_group)]  # noqa: B023

    def draw(seed: int) -> Callable[[int], Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return lambda n_env: problem.dist.noise((6, n_env), generator, CPU)

    def eager(block: Any, noise: Callable[[int], Tensor]) -> ForwardActing:
        left: list[Tensor] = []

        def forward(x: Tensor, state: Any) -> dict[str, Any]:
            if not left:
                left.extend(noise(len(first_leaf(x))).unbind(0))
            output = forward_for_acting(model, x, one_trunk)
            return {'action': problem.dist.sample(output['logit'], left.pop(0)), **output}

        return ForwardActing(forward, block)

    executor = NativeExecutor(model, problem.dist)
    pairs = [(executor.start_acting(x, draw(i), one_trunk), eager(x, draw(i))) for i, x in enumerate(blocks)]
    for rollout in range(2):
        for native, _ in pairs:
            assert native is not None
            native.begin()
        for t in range(6):
            for native, by_hand in pairs:  # in turns, as the collector has them
                assert native is not None
                with torch.no_grad():
                    a, b = native.step(t), by_hand.step(t)
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # indices: equal
        for native, by_hand in pairs:
            assert native is not None and native.output.keys() == by_hand.output.keys()
            assert ('value' in native.output) == one_trunk
            for name, x in by_hand.output.items():
                torch.testing.assert_close(native.output[name], x, rtol=1e-5, atol=1e-6)
            if masked:
                assert native.output['logit'].isneginf().any()
        if rollout == 0:
            with torch.no_grad():
                model.policy_head.requires_grad_(True)
                for p in model.parameters():
                    p.add_(0.05)


def test_forward_sees_rows_as_they_lie_in_new_memory() -> None:
    """Since the bits of a product depend on the address: the envs of a runner lie elsewhere than in the run's own block."""
    obs = {'x': torch.rand(4, 6, 5)[:, 1:3], 'image': torch.ones(4, 6, 5, dtype=torch.uint8)[:, 1:3]}
    seen: list[dict[str, Tensor]] = []

    def forward(row: dict[str, Tensor], state: Any) -> dict[str, Any]:
        seen.append(row)
        return {'action': row['x'][:, 0]}

    acting = ForwardActing(forward, obs)
    for t in range(3):
        acting.step(t)
        assert torch.equal(seen[t]['x'], obs['x'][t]) and seen[t]['x'].data_ptr() % 64 == 0
        assert seen[t]['image'].data_ptr() == obs['image'][t].data_ptr()  # a network converts integers first


def test_native_values_are_those_of_the_critic() -> None:
    for arch, stage in itertools.product(OWN_CRITIC, INPUTS):
        problem = Problem(Case('PPO', arch=arch, input=stage, masked=arch == 'dual'))
        found = NativeExecutor(problem.model, problem.dist).compute_critic(problem.columns['obs'])
        torch.testing.assert_close(found, problem.model.compute_critic(problem.columns['obs']), rtol=1e-5, atol=1e-6)
        assert not found.requires_grad


def test_native_follows_parameters_that_were_moved_to_other_memory() -> None:
    problem = Problem(Case('PPO', numbers=PolicyNumbers()), n_step=4)
    executor = NativeExecutor(problem.model, problem.dist)
    before = executor.compute_critic(problem.columns['obs'])
    for p in problem.model.parameters():
        p.data = p.data * 2
    after, want = executor.compute_critic(problem.columns['obs']), problem.model.compute_critic(problem.columns['obs'])
    torch.testing.assert_close(after, want, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(after, before)


# --- minibatches ---


def test_minibatches_hold_each_row_once_in_the_order_given() -> None:
    columns = {'row': torch.arange(12)}
    order = torch.stack([torch.randperm(12, generator=torch.Generator().manual_seed(i)) for i in range(2)])
    for gather in (True, False):
        found = list(minibatches(Pass(columns, order, 4, CPU, gather=gather)))
        assert [each['row'].tolist() for each in found] == [x.tolist() for o in order for x in o.split(4)]


@pytest.mark.parametrize('gather', [True, False])
def test_last_minibatch_of_a_pass_has_the_rest(gather: bool) -> None:
    columns, order = {'row': torch.arange(10)}, torch.arange(10).flip(0).expand(2, 10)
    found = [each['row'].tolist() for each in minibatches(Pass(columns, order, 4, CPU, gather=gather))]
    assert found == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]] * 2


@pytest.mark.parametrize('gather', [True, False])
@pytest.mark.parametrize('weighted', [False, True])
def test_minibatches_normalise_advantages_over_the_valid_rows_of_each(weighted: bool, gather: bool) -> None:
    columns = Problem(Case('PPO', n_row=16, weighted=weighted)).columns
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0)).unsqueeze(0)
    raw, normal = (list(minibatches(Pass(columns, order, 8, CPU, flag, gather))) for flag in (False, True))
    assert len(raw) == len(normal) == 2
    for a, b in zip(raw, normal, strict=True):
        valid = a['weight'] > 0 if weighted else torch.ones(8, dtype=torch.bool)
        mean, std = a['adv'][valid].mean(), a['adv'][valid].std(correction=0)
        torch.testing.assert_close(b['adv'][valid], (a['adv'][valid] - mean) / std)
        assert torch.equal(a['obs'], b['obs']) and torch.equal(a['return_'], b['return_'])


def test_minibatches_of_sequences_normalise_over_all_their_rows() -> None:
    columns = {'adv': torch.tensor([[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]])}
    (found,) = minibatches(Pass(columns, torch.tensor([[0, 1]]), 2, CPU, True, gather=False))
    # of 1, 2, 3, 4: mean 2.5, deviation sqrt((2.25 + .25) / 2)
    torch.testing.assert_close(found['adv'], torch.tensor([[-1.5, -0.5], [0.5, 1.5]]) / 1.25**0.5)


def test_minibatches_of_one_row_are_only_centred() -> None:
    columns = {'adv': torch.arange(6.0)}
    found = list(minibatches(Pass(columns, torch.arange(6).unsqueeze(0), 1, CPU, True)))
    assert [each['adv'].item() for each in found] == [0.0] * 6


# --- the rule ---

AUTO = Wish('auto', 'auto', None)
NATIVE = Wish('native', 'auto', None)


def model_of(obs_space: Space | None = None, **fields: Any) -> Any:
    obs_space = obs_space or Box(-np.ones(3), np.ones(3))
    return VAC(validate(VACConfig, {'hidden_sizes': [8, 8], **fields}), obs_space, Discrete(2))


class Mine(VAC):
    """As a user's, that may compute anything."""


class Other(nn.Linear):
    """As a user's, that may compute anything."""


class Named(Categorical):
    """Of the same name as its parent, with one choice that is never drawn."""

    def sample(self, param: Tensor, noise: Tensor) -> Tensor:
        return param[..., 1:].argmax(-1)


def with_own_class() -> Any:
    return Mine(validate(VACConfig, {'hidden_sizes': [8]}), Box(-np.ones(3), np.ones(3)), Discrete(2))


def changed(change: Callable[[Any], Any], **fields: Any) -> Callable[[], Any]:
    def make() -> Any:
        model = model_of(**fields)
        change(model)
        return model

    return make


REPLACED = 'a part of the model was replaced or has a hook, which the native executor does not run'
NOT_NATIVE: dict[str, tuple[Callable[[], Any], str]] = {
    'a subclass': (with_own_class, 'the native executor runs the models VAC and PPG of zoo, not Mine'),
    'another encoder': (
        changed(lambda m: setattr(m, 'actor_encoder', nn.Sequential(nn.Linear(3, 8)))),
        'the native executor has no Sequential as actor_encoder',
    ),
    'another head': (changed(lambda m: setattr(m, 'policy_head', Other(8, 2))), 'has no Other as policy_head'),
    'a layer of a subclass': (changed(lambda m: m.actor_encoder.layers.__setitem__(0, Other(3, 8))), REPLACED),
    'a layer without bias': (
        changed(lambda m: m.actor_encoder.layers.__setitem__(0, nn.Linear(3, 8, bias=False))),
        REPLACED,
    ),
    'a forward hook': (changed(lambda m: m.value_head.register_forward_hook(lambda *args: None)), REPLACED),
    'a hook before': (changed(lambda m: m.register_forward_pre_hook(lambda *args: None)), REPLACED),
    'a backward hook': (changed(lambda m: m.actor_encoder.register_full_backward_hook(lambda *args: None)), REPLACED),
    'a hook of a parameter': (changed(lambda m: m.policy_head.weight.register_hook(lambda grad: grad)), REPLACED),
    'a method of its own': (changed(lambda m: setattr(m, 'compute_critic', lambda obs: obs[:, 0])), REPLACED),
    'a forward of its own': (changed(lambda m: setattr(m.value_head, 'forward', lambda x: x[..., 0])), REPLACED),
    'one layer in two parts': (
        changed(lambda m: m.critic_encoder.layers.__setitem__(0, m.actor_encoder.layers[0])),
        REPLACED,
    ),
    'two activations': (changed(lambda m: setattr(m.critic_encoder, 'activation', 'relu')), REPLACED),
    'float64': (changed(lambda m: m.double()), 'computes in float32 and a parameter of the model is of another type'),
    'another distribution of the model': (changed(lambda m: setattr(m, 'dist', Named(2))), REPLACED),
    'a method of the distribution': (changed(lambda m: setattr(m.dist, 'masked', lambda logit, mask: logit)), REPLACED),
    'a wider head': (changed(lambda m: setattr(m, 'policy_head', nn.Linear(8, 3))), REPLACED),
    'one encoder for both': (changed(lambda m: setattr(m, 'critic_encoder', m.actor_encoder)), REPLACED),
    'another activation': (
        lambda: model_of(activation='gelu'),
        'the native executor has the activations tanh and relu, not gelu',
    ),
    'layer norm': (lambda: model_of(layer_norm=True), 'has no layer normalisation, as in actor_encoder'),
    'layers of the actor': (lambda: model_of(actor_head=[8]), 'has no hidden layers in policy_head'),
    'layers of the critic': (lambda: model_of(critic_head=[8]), 'has no hidden layers in value_head'),
    'a memory': (
        lambda: model_of(recurrent={'cell': 'gru'}),
        'the native executor runs the models VAC and PPG of zoo, not RecurrentVAC',
    ),
    'simba': (lambda: model_of(encoder='simba'), 'the native executor has no Simba as actor_encoder'),
    'no network': (lambda: model_of(encoder='flat'), 'the native executor has no Flat as actor_encoder'),
    'a critic of distributions': (
        changed(lambda m: m.predict_distribution(3, lambda logits: logits[..., 0])),
        'the native executor has no WideValueHead as value_head',
    ),
    'images': (
        lambda: model_of(Box(np.zeros((8, 8, 3)), np.full((8, 8, 3), 255.0), 'uint8'), encoder='mlp'),
        'the native executor takes a vector or an index as input, not images',
    ),
    'several indices': (
        lambda: model_of(MultiDiscrete((2, 3), (0, 0), (2,))),
        'the native executor takes a vector or an index as input, not several indices',
    ),
    'several entries': (
        lambda: model_of(Dict({'a': Discrete(2), 'b': Discrete(3)})),
        'the native executor takes a vector or an index as input, not several entries',
    ),
    'entries of actor and critic': (
        lambda: model_of(Dict({'a': Discrete(2), 'b': Discrete(3)}), actor_obs=['a'], critic_obs=['b']),
        'the native executor takes a vector or an index as input, not several entries',
    ),
    'nine layers': (
        changed(lambda m: None, hidden_sizes=[4] * 9),
        'the native executor takes up to 8 layers and actor_encoder has 9',
    ),
}


@pytest.mark.parametrize('name', NOT_NATIVE)
def test_model_that_may_compute_something_else_runs_eagerly_and_the_log_says_why(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, why = NOT_NATIVE[name]
    with caplog.at_level('INFO'):
        executor = choose_executor(make(), make_dist(Discrete(2)), CPU, AUTO)
    assert executor.name == 'eager'
    (record,) = caplog.records
    assert record.getMessage().startswith('updates and acting run eagerly: ') and why in record.getMessage()
    with pytest.raises(UserError, match="executor is 'native' but .*; use 'auto', 'eager' or 'graph'") as error:
        choose_executor(make(), make_dist(Discrete(2)), CPU, NATIVE)
    assert why in str(error.value)


@pytest.mark.slow
def test_unmodified_models_run_natively(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level('INFO'):
        for wish in (AUTO, NATIVE):
            for arch, dist, stage in itertools.product(OWN_CRITIC, DISTS, INPUTS):
                problem = Problem(Case('PPO', dist, arch, (4,) * 8, input=stage, masked=dist in NVEC))
                assert choose_executor(problem.model, problem.dist, CPU, wish).name == 'native'
    assert {record.getMessage().split('(')[0] for record in caplog.records} == {
        "zoo's own updates and acting run in C "
    }


def test_eager_that_is_asked_for_runs_eagerly() -> None:
    assert choose_executor(model_of(), make_dist(Discrete(2)), CPU, Wish('eager', 'auto', 1e9)).name == 'eager'


def test_distribution_of_a_subclass_runs_eagerly() -> None:
    assert choose_executor(model_of(), Named(2), CPU, AUTO).name == 'eager'


def test_gaussian_whose_head_is_one_layer_runs_eagerly() -> None:
    space = Box(-np.ones(2), np.ones(2))
    model = VAC(validate(VACConfig, {'hidden_sizes': [8]}), Box(-np.ones(3), np.ones(3)), space)
    model.policy_head = nn.Linear(8, 4)
    assert choose_executor(model, Gaussian(2), CPU, AUTO).name == 'eager'


def test_another_device_runs_eagerly() -> None:
    meta = torch.device('meta')
    with pytest.raises(UserError, match="'native' but the native executor runs on a CPU and the policy is on meta"):
        choose_executor(model_of().to(meta), make_dist(Discrete(2)), meta, NATIVE)


def test_hook_on_all_modules_runs_eagerly() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *args: None)
    try:
        assert choose_executor(model_of(), make_dist(Discrete(2)), CPU, AUTO).name == 'eager'
    finally:
        handle.remove()


def broken(folder: Path) -> None:
    (folder / '_native.so').write_bytes(b'no library')


def foreign(folder: Path) -> None:
    try:
        build.build(folder, ('-UZOO_SOURCE', '-DZOO_SOURCE=5u'))
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.mark.long
@pytest.mark.parametrize(
    ('prepare', 'words'),
    [
        (lambda folder: None, 'is not built'),
        (broken, 'cannot be opened'),
        pytest.param(foreign, 'was compiled from other sources', marks=pytest.mark.slow),  # compiles one
    ],
    ids=['missing', 'broken', 'foreign'],
)
def test_library_that_cannot_serve_is_one_sentence_of_the_log(
    prepare: Callable[[Path], None], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    prepare(tmp_path)
    monkeypatch.setattr(zoo.backend.native.executor, 'load', lambda: bindings.load(tmp_path))
    with caplog.at_level('INFO'):
        policy = make_policy(Box(-np.ones(3), np.ones(3)), Discrete(2))
    assert policy.executor_name.startswith('eager')
    (record,) = [each for each in caplog.records if 'C' in each.getMessage() or 'eager' in each.getMessage()]
    message = record.getMessage()
    assert record.levelname == 'WARNING' and '\n' not in message
    assert message.startswith('nothing runs in C, which would be several times as fast: ')
    assert f'the native executor {words}' in message and "run 'python -m zoo.backend.native.build'" in message
    with pytest.raises(UserError, match=f"policy.learn.executor is 'native' but the native executor {words}"):
        make_policy(Box(-np.ones(3), np.ones(3)), Discrete(2), learn=dict(executor='native'))


def test_step_that_native_does_not_know_runs_eagerly() -> None:
    problem, seen = Problem(Case('PPO', numbers=PolicyNumbers()), n_step=4), []

    def own_step(model: Any, dist: Any, optimizers: Any, minibatch: dict[str, Tensor], numbers: Any) -> Any:
        seen.append(minibatch['mine'].tolist())
        return ppo_step(model, dist, optimizers, minibatch, numbers)

    problem.columns['mine'] = torch.arange(64)
    want = Eager(problem.model, problem.dist)
    problem.step = own_step
    found = problem.run(NativeExecutor)
    assert seen == [rows.tolist() for rows in problem.order[0].split(16)]
    problem.step = ppo_step
    want = problem.run(Eager)
    assert all(torch.equal(found.parameters[name], p) for name, p in want.parameters.items())


def recorder(called: list[Any]) -> Callable[[Any, Any], Eager]:
    """Makes a native executor whose fallback, an eager one, notes the numbers that it is called with."""

    class Noting(Eager):
        def run(self, step: Any, optimizers: Any, data: Any, numbers: Any) -> Any:
            called.append(numbers)
            return super().run(step, optimizers, data, numbers)

    return lambda model, dist: NativeExecutor(model, dist, Noting(model, dist))


DPO, REVERSE = make_part(SURROGATE_REGISTRY, 'dpo'), make_part(PENALTY_REGISTRY, 'reverse_kl')
SHORT = make_part(VALUE_LOSS_REGISTRY, {'type': 'huber', 'range': 2.0})
OWN_CLIP = CLIP.__class__('surrogate', 'clip', lambda log_ratio, ratio, adv, clip_ratio: ratio * adv)
NOT_IN_C = {
    'a surrogate': ('POLICY', PolicyNumbers(surrogate=DPO)),
    'a surrogate in place of one of zoo': ('PPO', PolicyNumbers(surrogate=OWN_CLIP)),
    'an option': ('VALUE', ValueNumbers(value_loss=SHORT)),
    'a penalty': ('PPO', PolicyNumbers(penalties=(REVERSE,), penalty_weights=(0.1,))),
    'two penalties': ('PPO', PolicyNumbers(penalties=(KL, KL), penalty_weights=(0.1, 0.1))),
}


@pytest.mark.parametrize('name', NOT_IN_C)
def test_parts_that_native_does_not_know_run_in_its_fallback(name: str) -> None:
    kind, numbers = NOT_IN_C[name]
    problem, called = Problem(Case(kind, numbers=numbers), n_step=4), []  # type: ignore[var-annotated]
    found, want = problem.run(recorder(called)), problem.run(Eager)
    assert called == [numbers]
    assert all(torch.equal(found.parameters[name], p) for name, p in want.parameters.items())
    assert problem.run(NativeExecutor).metrics.keys() == want.metrics.keys()  # the fallback of its own: eager


def test_each_call_decides_anew_and_reads_only_what_its_step_does() -> None:
    """A step of the policy alone reads no value loss."""
    numbers = [PolicyNumbers(value_loss=SHORT), PolicyNumbers(surrogate=DPO), PolicyNumbers()]
    problem, called = Problem(Case('POLICY', numbers=numbers), n_step=4), []  # type: ignore[var-annotated]
    problem.run(recorder(called))
    assert called == numbers[1:2]


def test_proximal_policy_runs_in_the_fallback() -> None:
    numbers = PolicyNumbers(proximal='recent')
    problem, called = Problem(Case('PPO', numbers=numbers), n_step=4), []  # type: ignore[var-annotated]
    problem.columns['logit_proximal'] = problem.columns['logit'] + 0.1
    found, want = problem.run(recorder(called)), problem.run(Eager)
    assert called == [numbers]
    assert all(torch.equal(found.parameters[name], p) for name, p in want.parameters.items())


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('entropy_weight', [0.0, 0.01])
def test_metrics_of_many_minibatches_at_once_are_those_of_each(
    weighted: bool, entropy_weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: rows of one block are summed in the order in which a single row is."""
    generator, model = torch.Generator().manual_seed(0), VAC(VACConfig(), Box(-np.ones(3), np.ones(3)), Discrete(4))
    n, found = 96, []
    random = functools.partial(torch.randn, generator=generator)
    columns = {'obs': random(n, 3), 'logit': random(n, 4), 'adv': random(n), 'return_': random(n), 'value': random(n)}
    columns['action'] = torch.randint(4, (n,), generator=generator)
    if weighted:
        columns['weight'] = torch.randint(3, (n,), generator=generator).float()
    data = Pass(columns, torch.randperm(n, generator=generator).view(1, n).repeat(3, 1), 8, CPU)
    for kept in (8, 40, 1 << 14):  # minibatches: 1, 5 (the last have fewer), all
        monkeypatch.setattr('zoo.backend.executor.KEPT_ROWS', kept)
        own = copy.deepcopy(model)
        optimizers = [FlatAdam(own.named_parameters())]
        numbers = PolicyNumbers(entropy_weight=entropy_weight, measure_kl=True)
        found.append(Eager(own, own.dist).run(ppo_step, optimizers, data, numbers))
    assert {'entropy', 'approx_kl', 'clipfrac', 'kl', 'ratio_max'} <= set(found[0])
    for other in found[1:]:
        assert set(other) == set(found[0])
        assert all(torch.equal(x, other[name]) and x.shape == (36,) for name, x in found[0].items())


@pytest.mark.parametrize(('name', 'value'), [('average_decay', 0.9), ('accumulate', 2), ('grad_clip_value', 0.1)])
def test_optimizer_that_does_more_than_adam_runs_in_the_fallback(name: str, value: Any) -> None:
    problem, called = Problem(Case('PPO', numbers=PolicyNumbers()), n_step=4), []  # type: ignore[var-annotated]
    optimizers = problem.optimizers

    def with_more(model: Any, kind: type[FlatAdam] = FlatAdam) -> list[FlatAdam]:
        found = optimizers(model, kind)
        found[0].configure(**{name: value})
        return found

    problem.optimizers = with_more  # type: ignore[method-assign]
    problem.run(recorder(called))
    assert called == [problem.case.numbers]


def test_columns_that_no_step_reads_keep_native_from_nothing() -> None:
    problem = Problem(Case('PPO', numbers=PolicyNumbers()), n_step=4)
    want = problem.run(NativeExecutor)
    problem.columns |= {'flag': torch.ones(64, dtype=torch.bool), 'part': {'deep': torch.zeros(64, 2)}}  # type: ignore
    found = problem.run(NativeExecutor)
    assert all(torch.equal(found.parameters[name], p) for name, p in want.parameters.items())


def test_sequences_run_eagerly_whatever_the_step() -> None:
    problem = Problem(Case('PPO', numbers=PolicyNumbers(), batch_size=4), n_step=4)
    problem.columns = {name: x.unflatten(0, (16, 4)) for name, x in problem.columns.items()}
    problem.order = torch.arange(16).unsqueeze(0)
    found, want = problem.run(NativeExecutor), problem.run(Eager)
    assert all(torch.equal(found.parameters[name], p) for name, p in want.parameters.items())


def test_one_entry_of_a_dict_runs_natively_beside_others_that_nothing_sees() -> None:
    """Of which the executor reads no more than the network does."""
    problem = Problem(Case('PPO', numbers=PolicyNumbers()), n_step=4)
    want = problem.run(NativeExecutor)
    space = Dict({'more': Box(np.zeros((2, 2, 2)), np.ones((2, 2, 2))), 'seen': space_of('vector')})
    fields = dict(hidden_sizes=[16, 16], actor_obs=['seen'], critic_obs=['seen'])
    model = PPG(validate(PPGConfig, fields), space, Discrete(3))
    model.load_state_dict(problem.model.state_dict())
    problem.model = model
    problem.columns['obs'] = {'more': torch.zeros(64, 2, 2, 2, dtype=torch.float64), 'seen': problem.columns['obs']}
    assert choose_executor(model, problem.dist, CPU, AUTO).name == 'native'
    found = problem.run(NativeExecutor)
    assert all(torch.equal(found.parameters[name], p) for name, p in want.parameters.items())


def test_three_optimizers_run_eagerly() -> None:
    problem = Problem(Case('PPO', numbers=PolicyNumbers()), n_step=4)

    def three(model: Any, kind: type[FlatAdam] = FlatAdam) -> list[FlatAdam]:
        named = list(model.named_parameters())
        return [kind(named[i::3]) for i in range(3)]

    problem.optimizers = three  # type: ignore[method-assign]
    found, want = problem.run(NativeExecutor), problem.run(Eager)
    assert all(torch.equal(found.parameters[name], p) for name, p in want.parameters.items())


@pytest.mark.usefixtures('native')
def test_a_hook_put_on_the_model_later_is_refused_by_name_not_ignored() -> None:
    policy = make_policy(OBS, TWO_ACTIONS, collect=dict(n_step=N_STEP), learn=dict(batch_size=N, executor='native'))
    policy._model.actor_encoder.register_forward_hook(lambda module, args, output: 2 * output)
    with pytest.raises(UserError, match='has a hook.*came after the policy was made: use policy.learn.executor=eager'):
        policy.learn_mode.forward(samples_of(policy))


@pytest.mark.parametrize('executor', [NativeExecutor, GraphExecutor])
def test_step_of_an_optimizer_of_a_users_own_is_called(executor: Any) -> None:
    called = []

    class Own(FlatAdam):
        def step(self, grad_clip: Any = None) -> Tensor:
            called.append(grad_clip)
            return super().step(grad_clip)

    problem = Problem(Case('PPO', numbers=PolicyNumbers(grad_clip=0.5)), n_step=4)
    optimizer = Own(problem.model.named_parameters())
    data = Pass(problem.columns, problem.order, 16, CPU)
    executor(problem.model, problem.dist).run(ppo_step, [optimizer], data, problem.case.numbers)
    assert called == [0.5] * 4


def test_wrapped_step_runs_as_it_is_wrapped() -> None:
    called = []

    @functools.wraps(ppo_step)
    def wrapped(*args: Any) -> Any:
        called.append(1)
        return ppo_step(*args)

    problem = Problem(Case('PPO', numbers=PolicyNumbers()), n_step=4)
    problem.step = wrapped
    problem.run(NativeExecutor)
    assert len(called) == 4


@pytest.mark.usefixtures('native')
def test_parameters_that_are_frozen_in_the_middle_of_a_run_stay() -> None:
    policy = make_policy(OBS, TWO_ACTIONS, collect=dict(n_step=N_STEP), learn=dict(batch_size=N, executor='native'))
    policy.learn_mode.forward(samples_of(policy))
    encoder = policy._model.actor_encoder.requires_grad_(False)
    policy.optimizers = policy._make_optimizers()
    before = [p.clone() for p in encoder.parameters()]
    policy.learn_mode.forward(samples_of(policy))
    assert all(torch.equal(p, q) for p, q in zip(encoder.parameters(), before, strict=True))


def test_policy_that_only_evaluates_needs_no_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(zoo.backend.native.executor, 'load', lambda: bindings.load(tmp_path))
    monkeypatch.setenv('CXX', 'no-such-compiler')
    for learn in (dict(executor='native'), dict(executor='graph'), dict(compile='on')):
        policy = make_policy(OBS, TWO_ACTIONS, learn=learn, enable_field=['eval'])
        assert policy.act(np.zeros(2, np.float32)) in (0, 1)
    assert not caplog.records


@pytest.mark.usefixtures('native')
def test_copy_where_there_is_no_library_takes_another_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy(OBS, TWO_ACTIONS, learn=dict(executor='native'))
    monkeypatch.setattr(zoo.backend.native.executor, 'load', lambda: bindings.load(tmp_path))
    assert copy.deepcopy(policy).executor_name == 'eager'


def test_unknown_level_is_a_sentence_that_names_the_three(monkeypatch: pytest.MonkeyPatch, native: Any) -> None:
    monkeypatch.setenv('ZOO_NATIVE_LEVEL', 'bogus')
    with pytest.raises(UserError, match="ZOO_NATIVE_LEVEL is 'bogus'; use base, v3 or v4"):
        bindings.load.__wrapped__()
