"""Memories in C: steps over sequences, acting and values against a float64 reference; whole executors and runs against eager."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor

from tests.backend.native import reference
from tests.backend.native.reference import LEVELS, Case, Net, sequences
from tests.backend.problems import Adam64
from tests.step_parts import PolicyNumbers, ValueNumbers
from zoo.backend.executor import Eager, ForwardActing, StepPlan, forward_for_acting
from zoo.backend.native import NativeExecutor
from zoo.backend.native.bindings import (
    ActingBlocks,
    CellKind,
    Column,
    Dist,
    Input,
    Kind,
    Level,
    Library,
    Output,
    StepSpec,
    ValueLoss,
)
from zoo.backend.step import LossSpec
from zoo.config.section import validate
from zoo.core.data import Timestep, map_tensors
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, MultiBinary
from zoo.model import PPG, VAC, PPGConfig, VACConfig
from zoo.pipeline import serial_pipeline
from zoo.policy.ppg import aux_step, value_step
from zoo.policy.ppo import policy_step, ppo_step
from zoo.policy.sequences import EpisodicActing, forward_sequences
from zoo.rl_utils import FlatAdam

LSTM, GRU, MINGRU = CellKind
KINDS: Any = list(CellKind)


def recurrent(*kinds: CellKind, size: int = 16, **fields: Any) -> Case:
    return Case(**{'hidden': (20,), 'critic': (9,), **fields}, cells=tuple((kind, size) for kind in kinds))


ALL: dict[str, Any] = dict(normalize_adv=True, entropy_weight=0.05, dual_clip=1.5, grad_clip=0.3, measure_kl=True)
GAUSSIAN: dict[str, Any] = dict(dist=Dist.GAUSSIAN)
PPO = StepSpec(Kind.PPO)
# name -> (network, step, sequences: their number, steps of each, steps of the burn-in, more options)
CASES: dict[str, tuple[Case, StepSpec, tuple[int, int, int], dict[str, bool]]] = {
    'lstm': (recurrent(LSTM), StepSpec(Kind.PPO, **ALL), (13, 7, 0), {'weighted': True}),
    'lstm with two biases': (
        recurrent(LSTM, two_biases=True),
        StepSpec(Kind.PPO, **ALL),
        (13, 7, 2),
        {'weighted': True},
    ),
    'gru': (recurrent(GRU), StepSpec(Kind.PPO, **ALL), (13, 7, 0), {'weighted': True}),
    'mingru': (recurrent(MINGRU), StepSpec(Kind.PPO, **ALL), (13, 7, 0), {'weighted': True}),
    'one step': (recurrent(LSTM), PPO, (9, 1, 0), {}),
    'one sequence': (recurrent(GRU), PPO, (1, 19, 0), {}),
    'many lanes': (recurrent(LSTM, size=32), StepSpec(Kind.PPO, True), (75, 16, 0), {'weighted': True}),
    'more lanes than blocks': (recurrent(MINGRU), PPO, (9, 130, 0), {}),
    'long': (recurrent(LSTM), PPO, (5, 150, 3), {}),
    'one trunk': (recurrent(LSTM, critic=None), StepSpec(Kind.PPO, **ALL), (11, 9, 0), {}),
    'stopped': (recurrent(GRU, critic=None, stop=True), StepSpec(Kind.PPO, **ALL), (11, 9, 0), {}),
    'two layers': (recurrent(LSTM, GRU), StepSpec(Kind.PPO, **ALL), (11, 9, 0), {}),
    'two equal layers': (recurrent(LSTM, LSTM, size=48), PPO, (11, 9, 4), {}),
    'critic without memory': (recurrent(LSTM, critic_cells=False), PPO, (11, 9, 4), {}),
    'lstm, burn-in': (recurrent(LSTM), PPO, (19, 8, 5), {'weighted': True}),
    'gru, long burn-in': (recurrent(GRU), PPO, (19, 4, 11), {}),
    'mingru, burn-in': (recurrent(MINGRU), PPO, (19, 8, 16), {}),
    'masks': (recurrent(LSTM, action=10, nvec=(4, 1, 5)), StepSpec(Kind.PPO, **ALL), (11, 9, 3), {'mask': True}),
    'index': (recurrent(GRU, obs=9, input=Input.INDEX), PPO, (11, 9, 3), {}),
    'normalised, central critic': (recurrent(LSTM, obs=6, state=20, input=Input.NORMALIZED), PPO, (11, 9, 3), {}),
    'gaussian': (recurrent(LSTM, action=3, **GAUSSIAN), StepSpec(Kind.PPO, **ALL), (11, 30, 0), {'weighted': True}),
    'policy': (recurrent(LSTM), StepSpec(Kind.POLICY, True), (11, 9, 3), {}),
    'value': (recurrent(LSTM), StepSpec(Kind.VALUE, value_loss=ValueLoss.CLIPPED_VALUE), (11, 9, 3), {}),
    'value without memory': (recurrent(LSTM, critic_cells=False), StepSpec(Kind.VALUE), (11, 9, 3), {}),
    'aux': (recurrent(LSTM), StepSpec(Kind.AUX, bc_weight=1.5), (11, 9, 3), {'mask': True}),
    'aux, one trunk': (recurrent(GRU, critic=None), StepSpec(Kind.AUX), (11, 9, 3), {}),
    'aux, stopped': (recurrent(MINGRU, critic=None, stop=True), StepSpec(Kind.AUX), (11, 9, 3), {}),
}


def run(lib: Library, net: Net, step: StepSpec, batch: Any, index: Tensor, n: int, n_thread: int = 1) -> Tensor:
    return lib.epoch(lib.workspace(), net.model, step, batch, net.states, index, n, n_thread)


def n_buffer(step: StepSpec) -> int:
    return 2 if step.kind == Kind.AUX else 1


def assert_step_of_float64(lib: Library, net: Net, step: StepSpec, batch: Any) -> None:
    grads, metrics = reference.gradients(net, step, net.params, batch)
    n = len(batch['is_first'])
    found = run(lib, net, step, batch, torch.arange(n), n)[0]
    for key, wanted in metrics.items():
        if key != 'CLIPFRAC':  # a ratio may lie exactly at the bound
            assert float(found[Column[key]]) == pytest.approx(wanted, rel=1e-4, abs=1e-5), key
    total = sum(float(g.square().sum()) for g in grads.values()) ** 0.5
    assert float(found[Column.GRAD_NORM]) == pytest.approx(total, rel=2e-5, abs=1e-6)
    for key, p in net.params.items():
        assert p.grad is not None
        assert float((p.grad.double() - grads[key]).norm()) <= 5e-6 * total + 3e-6 * float(grads[key].norm()), key


@pytest.mark.slow(first=True)
@pytest.mark.parametrize('name', CASES)
def test_step_over_sequences_has_gradients_and_metrics_of_float64(leveled: Library, name: str) -> None:
    case, step, shape, how = CASES[name]
    net = Net(case, n_buffer(step))
    assert_step_of_float64(leveled, net, step, sequences(case, *shape, **how))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Case, StepSpec, Any]:
    critic = draw(st.sampled_from([None, (9,), (17, 5)]))
    case = Case(
        obs=draw(st.integers(1, 20)),
        hidden=draw(st.sampled_from([(16,), (7, 20), (33,)])),
        critic=critic,
        action=draw(st.integers(1, 9)),
        dist=draw(st.sampled_from(Dist)),
        input=draw(st.sampled_from(Input)),
        stop=critic is None and draw(st.booleans()),
        cells=tuple(
            (kind, draw(st.sampled_from([16, 32, 80])))
            for kind in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2))
        ),
        critic_cells=draw(st.booleans()),
    )
    step = StepSpec(draw(st.sampled_from(Kind)), draw(st.booleans()), entropy_weight=0.03, grad_clip=None)
    masked = case.dist == Dist.CATEGORICAL and draw(st.booleans())
    batch = sequences(
        case,
        draw(st.integers(1, 40)),
        draw(st.integers(1, 40)),
        draw(st.integers(0, 50)),
        draw(st.integers(0, 9)),
        draw(st.sampled_from([0.0, 0.1, 0.7])),
        weighted=draw(st.booleans()),
        mask=masked,
    )
    if 'weight' in batch:
        batch['weight'][0] = 1.0  # without a valid row the float64 reference has no mean
    return case, step, batch


@pytest.mark.long
@given(problems(), st.sampled_from(LEVELS))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_step_over_any_sequences_has_gradients_of_float64(
    lib: Library, problem: tuple[Case, StepSpec, Any], level: Level
) -> None:
    case, step, batch = problem
    lib.set_level(level)
    assert_step_of_float64(lib, Net(case, n_buffer(step)), step, batch)


@pytest.mark.parametrize(('kind', 'shape'), [(Kind.PPO, (20, 9, 3)), (Kind.PPO, (70, 32, 0)), (Kind.AUX, (40, 16, 8))])
def test_step_over_sequences_has_bits_that_depend_neither_on_threads_nor_on_the_run(
    leveled: Library, kind: Kind, shape: tuple[int, int, int]
) -> None:
    case, step, found = recurrent(LSTM, GRU), StepSpec(kind, entropy_weight=0.01), []
    batch, index = sequences(case, *shape), torch.arange(shape[0]).repeat(3)
    for n_thread in (1, 1, 2, 3):
        net = Net(case, n_buffer(step))
        metrics = run(leveled, net, step, batch, index, shape[0], n_thread)
        found.append([metrics.nan_to_num(), *(x for s in net.states for x in (s.param, s.exp_avg, s.exp_avg_sq))])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_minibatch_of_some_sequences_has_the_gradient_of_these_alone(leveled: Library) -> None:
    case = recurrent(LSTM)
    batch, chosen = sequences(case, 12, 5, 3, weighted=True), torch.tensor([7, 2, 11])
    net, alone = Net(case), Net(case)
    run(leveled, net, PPO._replace(normalize_adv=True), batch, torch.cat([torch.tensor([4, 0, 2]), chosen]), 3)
    for x in ('param', 'exp_avg', 'exp_avg_sq', 'step_count'):  # the same first step
        getattr(alone.states[0], x)[...] = 0
    first = Net(case)
    run(leveled, first, PPO._replace(normalize_adv=True), batch, torch.tensor([4, 0, 2]), 3)
    for x in ('param', 'exp_avg', 'exp_avg_sq', 'step_count'):
        getattr(alone.states[0], x).copy_(getattr(first.states[0], x))
    some = {
        name: {key: s[chosen] for key, s in x.items()} if name == 'state' else x[chosen] for name, x in batch.items()
    }
    run(leveled, alone, PPO._replace(normalize_adv=True), some, torch.arange(3), 3)
    assert torch.equal(net.states[0].grad, alone.states[0].grad) and torch.equal(
        net.states[0].param, alone.states[0].param
    )


@pytest.mark.parametrize(
    'case', [recurrent(LSTM), recurrent(GRU, critic=None), recurrent(MINGRU, LSTM, critic_cells=False)]
)
def test_acting_gives_the_logits_values_and_states_of_float64_and_those_of_an_update(
    leveled: Library, case: Case
) -> None:
    """Acts 9 steps in 7 envs, whose episodes begin where is_first says so; then the same steps are sequences of an update."""
    batch = sequences(case, 7, 9, resets=0.3)
    net = Net(case)
    obs = torch.cat([batch['obs'].transpose(0, 1), torch.zeros(1, 7, case.obs)])  # [T + 1, B, O]
    action, noise = (
        torch.zeros(9, 7, dtype=torch.int64),
        torch.randn(9, 7, 3, generator=torch.Generator().manual_seed(3)),
    )
    logit, value = torch.zeros(9, 7, 3), torch.zeros(9, 7)
    now = {name: x.clone() for name, x in batch['state'].items()}
    after = {name: torch.zeros(9, *x.shape) for name, x in now.items()}
    begins = batch['is_first'].t()[1:].contiguous()  # with the row after
    ended, cut = begins & (torch.arange(7) < 4), begins & (torch.arange(7) > 2)
    rollout = ActingBlocks(net.model, obs, noise, action, logit, value, None, now, after, (ended, cut))
    workspace = leveled.workspace()
    leveled.act_begin(workspace, rollout)
    for x in now.values():
        leveled.zero_rows(x, batch['is_first'][:, 0].contiguous())
    for t in range(9):
        leveled.act(workspace, t)
        assert all(torch.equal(now[name], x[t]) for name, x in after.items())
    params = {k: p.detach().double() for k, p in net.params.items()}
    memory = {'state': batch['state'], 'is_first': batch['is_first'], 'n_step': 9}
    wanted, wanted_value, _ = reference.outputs(net, params, batch['obs'], False, None, memory)
    torch.testing.assert_close(logit.transpose(0, 1).flatten(0, 1).double(), wanted, rtol=1e-5, atol=3e-6)
    torch.testing.assert_close(value.t().flatten().double(), wanted_value, rtol=1e-5, atol=3e-6)
    features = reference.trunk_of(net, params, 'actor', batch['obs'])
    _, state = reference.remember(case, params, 'actor', features, batch['state']['actor'].double(), batch['is_first'])
    torch.testing.assert_close(now['actor'].double(), state, rtol=1e-5, atol=3e-6)
    # an update over the same rows computes the same logits: every ratio of its first step is 1
    batch |= {'logit': logit.transpose(0, 1).contiguous(), 'action': action.t().contiguous()}
    metrics = run(leveled, net, StepSpec(Kind.POLICY, measure_kl=True), batch, torch.arange(7), 7)[0]
    assert float(metrics[Column.RATIO_MAX]) == pytest.approx(1, abs=1e-6)
    assert abs(float(metrics[Column.APPROX_KL])) < 1e-7


@pytest.mark.parametrize(
    'case', [recurrent(LSTM), recurrent(GRU, MINGRU, critic=None), recurrent(LSTM, critic_cells=False)]
)
@pytest.mark.parametrize('n', [1, 150])
def test_values_of_rows_with_their_states_are_those_of_float64(leveled: Library, case: Case, n: int) -> None:
    batch, net = sequences(case, n, 1, resets=0.0), Net(case)
    params = {k: p.detach().double() for k, p in net.params.items()}
    memory = {'state': batch['state'], 'is_first': batch['is_first'], 'n_step': 1}
    wanted = reference.outputs(net, params, batch['obs'], False, None, memory)
    everything = Output.LOGIT | Output.VALUE | Output.AUX
    obs = batch['obs'][:, 0].contiguous()
    found = leveled.forward(leveled.workspace(), net.model, obs, everything, 2, state=batch['state'])
    for name, x in zip(('logit', 'value', 'aux_value'), wanted, strict=True):
        torch.testing.assert_close(found[name].double(), x, rtol=1e-5, atol=3e-6)


OUTPUTS = {
    'burn-in, masks': (recurrent(LSTM, action=10, nvec=(4, 1, 5)), (19, 9, 3), {'mask': True}),
    'one trunk': (recurrent(GRU, critic=None), (11, 9, 0), {}),
    'two layers, long': (recurrent(MINGRU, LSTM, size=32), (13, 70, 80), {}),
    'critic without memory': (recurrent(LSTM, critic_cells=False, obs=9, input=Input.INDEX), (9, 5, 4), {}),
    'gaussian': (recurrent(LSTM, action=3, **GAUSSIAN), (300, 4, 0), {}),
}


@pytest.mark.parametrize('name', OUTPUTS)
def test_outputs_of_sequences_are_those_of_float64_with_any_number_of_threads(leveled: Library, name: str) -> None:
    case, shape, how = OUTPUTS[name]
    batch, net = sequences(case, *shape, **how), Net(case)
    memory = {key: x for key, x in batch.items() if key in ('state', 'is_first', 'is_burned')} | {'n_step': shape[1]}
    params = {k: p.detach().double() for k, p in net.params.items()}
    logit, value, _ = reference.outputs(net, params, batch['obs'], False, batch.get('mask'), memory)
    found = leveled.outputs(leveled.workspace(), net.model, batch, Output.LOGIT | Output.VALUE)
    torch.testing.assert_close(found['logit'].double(), logit, rtol=1e-5, atol=3e-6)
    torch.testing.assert_close(found['value'].double(), value, rtol=1e-5, atol=3e-6)
    for which in (Output.LOGIT, Output.VALUE):  # each alone, by threads
        alone = leveled.outputs(leveled.workspace(), net.model, batch, which, 3)
        assert alone.keys() == {which.name.lower()}
        assert all(torch.equal(alone[key], found[key]) for key in alone)


@pytest.mark.parametrize('missing', ['is_first', 'is_burned', 'critic'])
def test_outputs_of_sequences_without_what_they_need_are_refused(lib: Library, missing: str) -> None:
    case = recurrent(LSTM)
    batch = sequences(case, 5, 4, 2)
    batch.pop(missing, None)
    batch['state'].pop(missing, None)
    with pytest.raises((ValueError, KeyError)):
        lib.outputs(lib.workspace(), Net(case).model, batch, Output.VALUE)


def test_zero_rows_are_those_that_are_marked(lib: Library) -> None:
    x = torch.ones(3, 5)
    lib.zero_rows(x, torch.tensor([True, False, True]))
    assert x.tolist() == [[0.0] * 5, [1.0] * 5, [0.0] * 5]


@pytest.mark.parametrize(
    ('column', 'at', 'bad', 'error'),
    [
        ('action', (3, 4), 3, ValueError),
        ('obs', (3, 0), -1, ValueError),  # in the burn-in
        ('obs', (3, 6), 9, ValueError),
        ('index', (2,), 12, IndexError),
    ],
)
def test_sequence_that_cannot_be_is_refused_and_changes_nothing(
    lib: Library, column: str, at: Any, bad: int, error: type
) -> None:
    case = recurrent(LSTM, obs=9, input=Input.INDEX)
    net, batch, index = Net(case), sequences(case, 12, 5, 2), torch.arange(12)
    (index if column == 'index' else batch[column])[at] = bad
    before = net.states[0].param.clone()
    with pytest.raises(error):
        run(lib, net, PPO, batch, index, 4)
    assert torch.equal(net.states[0].param, before) and not net.states[0].exp_avg.any()


@pytest.mark.parametrize(
    'missing', ['state', 'is_first', 'is_burned', 'critic', 'hidden size', 'kind', 'layers', 'bias']
)
def test_memory_without_all_that_it_needs_is_refused(lib: Library, missing: str) -> None:
    case = recurrent(GRU)
    net, batch = Net(case), sequences(case, 6, 4, 2)
    if missing == 'state':
        batch['state'] = {}
    elif missing == 'critic':
        del batch['state']['critic']
    elif missing == 'is_first':  # then these would be rows
        batch = {
            name: x.flatten(0, 1) for name, x in sequences(case, 6, 4).items() if name not in ('state', 'is_first')
        }
    elif missing == 'is_burned':
        del batch['is_burned']
    elif missing == 'layers':
        net.model.struct.actor_core.n_layer = 3
    elif missing == 'bias':
        net.model.struct.actor_core.layer[0].h.bias = None
    else:
        setattr(net.model.struct.actor_core.layer[0], {'kind': 'kind', 'hidden size': 'n_hidden'}[missing], 20)
    with pytest.raises((ValueError, KeyError), match='cannot run this model|is_burned'):
        run(lib, net, PPO, batch, torch.arange(6), 3)


def test_network_without_memory_takes_sequences_as_their_rows(leveled: Library) -> None:
    """A critic without memory in a phase of its own: its gradient is that over the same rows, in another order."""
    case = recurrent(LSTM, critic_cells=False)
    batch, net, other = sequences(case, 8, 8), Net(case), Net(case)
    run(leveled, net, StepSpec(Kind.VALUE), batch, torch.arange(8), 8)
    rows = {name: x.flatten(0, 1) for name, x in batch.items() if name not in ('state', 'is_first')}
    run(leveled, other, StepSpec(Kind.VALUE), rows, torch.arange(64), 64)
    torch.testing.assert_close(net.states[0].grad, other.states[0].grad, rtol=1e-5, atol=1e-7)


# --- executors and runs

SPACE: Any = Box(np.full(3, -1.0), np.ones(3))
ENTRIES: Any = Dict({'agent': Discrete(3), 'place': SPACE, ACTION_MASK: MultiBinary((4,))})
ARCHS = {'separate': 'off', 'one trunk': 'both', 'stopped': 'detach'}
STEPS: dict[str, Any] = {'PPO': ppo_step, 'POLICY': policy_step, 'VALUE': value_step, 'AUX': aux_step}


class Setting(NamedTuple):
    """A recurrent model and sequences for it; arch: of `ARCHS`, or one of PPG."""

    kind: str = 'PPO'
    cell: Any = 'lstm'
    arch: str = 'separate'
    n_layer: int = 1
    critic: bool = True
    masked: bool = False
    n_burn: int = 0
    length: int = 5
    n: int = 22
    weighted: bool = False


class Sequences:
    """The model and the columns of a setting, and a run of 12 steps over minibatches of 8 sequences: the last has 6 of 22."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        g = torch.Generator().manual_seed(3)
        memory = dict(cell=setting.cell, hidden_size=16, n_layer=setting.n_layer, critic=setting.critic)
        fields: dict[str, Any] = dict(hidden_sizes=[12], recurrent=memory)
        space, action_space = (ENTRIES, Discrete(4)) if setting.masked else (SPACE, Discrete(4))
        torch.manual_seed(5)
        if setting.arch in ARCHS:
            fields['shared_encoder'] = ARCHS[setting.arch]
            self.model: Any = VAC(validate(VACConfig, fields), space, action_space)
        else:
            self.model = PPG(validate(PPGConfig, {**fields, 'arch': setting.arch}), space, action_space)
        n, length = setting.n, setting.n_burn + setting.length
        obs: Any = torch.randn(n, length, 3, generator=g)
        mask = torch.ones(n, length, 4, dtype=torch.bool)
        if setting.masked:
            mask = (torch.rand(n, length, 4, generator=g) < 0.5) | (torch.arange(4) == 2)
            obs = {'agent': torch.randint(3, (n, length), generator=g), 'place': obs, ACTION_MASK: mask}
        own = mask[:, setting.n_burn :]
        logit = torch.randn(n, setting.length, 4, generator=g).masked_fill(~own, -torch.inf)
        action = logit.flatten(0, 1).softmax(-1).multinomial(1, generator=g).view(n, setting.length)
        self.columns: dict[str, Any] = {'obs': obs, 'logit': logit, 'action': action}
        for name in ('value', 'adv', 'return_'):
            self.columns[name] = torch.randn(n, setting.length, generator=g)
        if setting.weighted:
            self.columns['weight'] = (torch.rand(n, setting.length, generator=g) < 0.7) * 1.4
        self.columns['is_first'] = torch.rand(n, length, generator=g) < 0.15
        if setting.n_burn:
            self.columns['is_burned'] = torch.arange(n) >= 6
        state = self.model.initial_state(n)
        self.columns['state'] = {name: 0.5 * torch.randn(x.shape, generator=g) for name, x in state.items()}
        self.order = torch.stack([torch.randperm(n, generator=g) for _ in range(4)])

    def run(self, make: Any, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """The parameters after the run, and its metrics, by name."""
        model = copy.deepcopy(self.model).to(dtype)
        kind = {torch.float32: FlatAdam, torch.float64: Adam64}[dtype]
        own = {'dual': ('critic_encoder', 'critic_core', 'value_head'), 'detach': ('value_head',)}
        critic = own.get(self.setting.arch, own['dual'] if self.setting.arch == 'separate' else ())
        groups = [
            [(name, p) for name, p in model.named_parameters() if (name.split('.')[0] in critic) == of_critic]
            for of_critic in (False, True)
        ]
        optimizers: Any = [kind(group) for group in groups if group]
        wanted = {'POLICY': optimizers[:1], 'VALUE': optimizers[-1:]}.get(self.setting.kind, optimizers)
        loss: Any = ValueNumbers() if self.setting.kind in ('VALUE', 'AUX') else PolicyNumbers(entropy_weight=0.01)
        columns = map_tensors(lambda x: x.to(dtype) if x.is_floating_point() else x, self.columns)
        plan = StepPlan(columns, self.order, 8, torch.device('cpu'), True)
        numbers = loss._replace(forward=forward_sequences)
        metrics = make(model, model.dist).run(STEPS[self.setting.kind], wanted, plan, *numbers)
        return {**{name: p.detach() for name, p in model.named_parameters()}, **metrics}


class Refusing(Eager):
    """A fallback that no step may need."""

    def run(self, *args: Any) -> Any:
        raise AssertionError('a step ran eagerly')

    def outputs(self, *args: Any) -> Any:
        raise AssertionError('outputs were computed eagerly')


def native_alone(model: Any, dist: Any) -> NativeExecutor:
    return NativeExecutor(model, dist, Refusing(model, dist))


SETTINGS: dict[str, Setting] = {
    **{f'{cell}, {arch}': Setting(cell=cell, arch=arch) for cell in ('lstm', 'gru', 'mingru') for arch in ARCHS},
    **{
        f'{cell}, {kind}, {arch}': Setting(kind, cell, arch, n_burn=2)
        for cell, arch in (
            ('lstm', 'dual'),
            ('gru', 'detach'),
            ('mingru', 'shared'),
            ('lstm', 'shared'),
            ('gru', 'dual'),
        )
        for kind in (('AUX', 'PPO') if arch == 'shared' else ('POLICY', 'VALUE', 'AUX'))
    },
    'masks': Setting(masked=True, n_burn=3, weighted=True),
    'masks, aux': Setting('AUX', 'gru', 'detach', masked=True, n_burn=3),
    'two layers': Setting(n_layer=2, n_burn=7, length=3),
    'critic without memory': Setting(critic=False, n_burn=2),
    'value without memory': Setting('VALUE', arch='dual', critic=False, n_burn=2),
    'one step': Setting(length=1, n_burn=1),
}


@pytest.mark.slow(first=True)
@pytest.mark.usefixtures('native')
@pytest.mark.parametrize('name', SETTINGS)
def test_native_steps_over_sequences_are_those_of_eager_in_float64(name: str) -> None:
    problem = Sequences(SETTINGS[name])
    found, eager, want = problem.run(native_alone), problem.run(Eager), problem.run(Eager, torch.float64)
    assert found.keys() == want.keys() == eager.keys()
    before = dict(problem.model.named_parameters())
    moved = [key for key, p in before.items() if not torch.equal(p, eager[key])]
    assert moved and all(torch.equal(found[key], p) == (key not in moved) for key, p in before.items())
    for key, x in want.items():
        bound = 1e-5 if key in before else 1e-3
        if key != 'clipfrac':  # a ratio may lie exactly at the bound
            torch.testing.assert_close(found[key].double(), x.double(), rtol=bound, atol=bound, msg=key)


@pytest.mark.usefixtures('native')
@pytest.mark.parametrize('method', ['compute_actor', 'compute_critic'])
@pytest.mark.parametrize('name', ['masks, aux', 'two layers', 'value without memory', 'mingru, AUX, shared'])
def test_native_outputs_of_sequences_are_those_of_eager_in_float64(name: str, method: str) -> None:
    problem = Sequences(SETTINGS[name])
    model = problem.model
    loss = LossSpec(forward=forward_sequences)
    found = native_alone(model, model.dist).outputs(method, problem.columns, loss)
    exact: Any = map_tensors(lambda x: x.double() if x.is_floating_point() else x, problem.columns)
    want = Eager(copy.deepcopy(model).double(), model.dist).outputs(method, exact, loss)
    assert found.keys() == want.keys() and len(found) == 1
    for key, x in want.items():
        torch.testing.assert_close(found[key].double(), x, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures('native')
def test_outputs_that_c_does_not_have_are_those_of_the_fallback() -> None:
    problem = Sequences(Setting('AUX', arch='dual'))
    native = NativeExecutor(problem.model, problem.model.dist)
    eager = Eager(problem.model, problem.model.dist)
    sequences_loss = LossSpec(forward=forward_sequences)
    found, want = (x.outputs('compute_aux', problem.columns, sequences_loss) for x in (native, eager))
    assert {'logit', 'value', 'aux_value'} <= found.keys() and all(torch.equal(found[key], want[key]) for key in want)
    of_users = sequences_loss._replace(forward=lambda *args: ({'logit': torch.ones(3)}, None))
    assert torch.equal(native.outputs('compute_actor', problem.columns, of_users)['logit'], torch.ones(3))


@pytest.mark.usefixtures('native')
@pytest.mark.parametrize('change', ['rows', 'proximal', 'int32', 'single column'])
def test_columns_that_c_does_not_read_run_in_the_fallback(change: str) -> None:
    """Rows without a state; logits of a proximal policy; actions of 32 bits; a column with one number for each sequence."""
    problem = Sequences(Setting())
    if change == 'rows':
        del problem.columns['state'], problem.columns['is_first']
    elif change == 'proximal':
        problem.columns['logit_proximal'] = problem.columns['logit']
    elif change == 'int32':
        problem.columns['action'] = problem.columns['action'].int()
    else:
        problem.columns['weight'] = torch.ones(22)
    with pytest.raises(AssertionError, match='ran eagerly'):
        problem.run(native_alone)


@pytest.mark.usefixtures('native')
def test_sequences_that_are_views_across_rows_run_in_c() -> None:
    problem = Sequences(Setting())
    want = problem.run(native_alone)
    columns = {name: x for name, x in problem.columns.items() if name != 'state'}
    problem.columns |= {name: x.transpose(0, 1).contiguous().transpose(0, 1) for name, x in columns.items()}
    assert not problem.columns['adv'].is_contiguous()
    found = problem.run(native_alone)
    assert all(torch.equal(found[name], x) for name, x in want.items())


@pytest.mark.usefixtures('native')
@pytest.mark.parametrize(
    'setting',
    [
        Setting(),
        Setting(cell='gru', arch='one trunk', masked=True),
        Setting(cell='mingru', arch='dual', n_layer=2),
        Setting(critic=False),
    ],
)
@pytest.mark.parametrize('marks', ['ends', 'begins', 'is_reset'])
def test_native_acts_with_a_memory_as_eager_does_through_episodes(setting: Setting, marks: str) -> None:
    """Two rollouts of 6 steps in two groups of 3 envs; then all envs begin again, in the middle of nothing."""
    problem = Sequences(setting._replace(n=7, length=6))
    model = problem.model
    g = torch.Generator().manual_seed(8)
    obs = map_tensors(lambda x: x.contiguous(), problem.columns['obs'])  # as [T + 1, B, ..]
    ends = [torch.rand(6, 6, generator=g) < 0.3 for _ in range(2)]
    steps: Any = Timestep(obs, torch.zeros(6, 6), *ends, None, None, {})
    if marks != 'ends':
        steps = steps._replace(**{marks: torch.rand(6, 6, generator=g) < 0.3})
    executor = native_alone(model, model.dist)
    pairs = []
    for group in (slice(0, 3), slice(3, 6)):
        own = map_tensors(lambda x: x[:, group], obs)  # noqa: B023
        own_steps: Any = Timestep(*(x[:, group] if isinstance(x, Tensor) else x for x in steps))
        noise = model.dist.noise((6, 3), g, torch.device('cpu'))
        acting = executor.start_acting(own, lambda n, noise=noise: noise, True)
        assert acting is not None
        by_hand = ForwardActing(eager_forward(model, noise), own, model.initial_state)
        pairs.append([EpisodicActing(acting, own_steps), EpisodicActing(by_hand, own_steps)])
    for rollout in range(3):
        if rollout == 2:
            for acting in (*pairs[0], *pairs[1]):
                acting.restart_all()
        for acting in (*pairs[0], *pairs[1]):
            acting.begin()
        before = [[acting.state for acting in pair] for pair in pairs]
        for found, want in before:
            torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)
            assert rollout < 2 or not any(x.any() for x in found.values())
        kept = copy.deepcopy(before)
        for t in range(6):
            for native, eager in pairs:
                with torch.no_grad():
                    torch.testing.assert_close(native.step(t), eager.step(t), rtol=1e-5, atol=1e-6)
        for native, eager in pairs:
            torch.testing.assert_close(native.output, eager.output, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(native.state, eager.state, rtol=1e-5, atol=1e-6)
        for (found, _), (wanted, _) in zip(before, kept, strict=True):  # what was read does not move with the steps
            assert all(torch.equal(found[name], x) for name, x in wanted.items())


def eager_forward(model: Any, noise: Tensor) -> Any:
    n_call = 0

    def forward(obs: Any, state: Any) -> dict[str, Any]:
        nonlocal n_call
        output = forward_for_acting(model, obs, True, state)
        n_call += 1
        return {'action': model.dist.sample(output['logit'], noise[(n_call - 1) % len(noise)]), **output}

    return forward


@pytest.mark.usefixtures('native')
def test_state_of_native_acting_can_be_set_and_read_as_a_copy() -> None:
    problem = Sequences(Setting(n=3, length=4))
    acting: Any = native_alone(problem.model, problem.model.dist).start_acting(
        problem.columns['obs'], lambda n: torch.zeros(2, n, 4), True
    )
    state = {name: torch.randn_like(x) for name, x in acting.state.items()}
    acting.state = state
    found = acting.state
    assert all(torch.equal(x, state[name]) for name, x in found.items())
    found['actor'].zero_()
    assert torch.equal(acting.state['actor'], state['actor'])


@pytest.mark.usefixtures('native')
@pytest.mark.parametrize('critic', [True, False])
def test_native_values_of_a_memory_are_those_of_the_critic(critic: bool) -> None:
    problem = Sequences(Setting(critic=critic, masked=True))
    obs = map_tensors(lambda x: x[:, 0], problem.columns['obs'])
    state = problem.columns['state']
    with torch.no_grad():
        want = problem.model.compute_critic(obs, state)[0]
    found = native_alone(problem.model, problem.model.dist).compute_critic(obs, state)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)


RUN: dict[str, Any] = {
    'seed': 3,
    'max_env_step': 3 * 64,
    'env': {
        'id': 'remember_cue',
        'kwargs': {'delay': 4},
        'collector_env_num': 4,
        'evaluator_env_num': 2,
        'check': False,
    },
    'logger': {'console': 'off', 'tensorboard': False},
}
# name -> type of the policy, policy.model, policy.learn.sequence
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    'ppo': ('ppo', {}, {'len': 8}),
    'ppg': ('ppg', {}, {'len': 8}),
    'ppg shared': ('ppg', {'arch': 'shared'}, {'len': 8}),
    'ppg detach': ('ppg', {'arch': 'detach'}, {'len': 8, 'burn_in': 3}),
    'ppo_offpolicy': ('ppo_offpolicy', {}, {'len': 4, 'burn_in': 6}),
    'overlap': ('ppo', {'shared_encoder': 'both'}, {'len': 8, 'overlap': 'half'}),
    'one sequence': ('ppo', {}, {'len': 16}),
}


@pytest.mark.slow
@pytest.mark.usefixtures('native')
@pytest.mark.parametrize('cell', ['lstm', 'gru', 'mingru'])
@pytest.mark.parametrize('name', RUNS)
def test_run_of_three_rounds_ends_with_the_parameters_of_eager(name: str, cell: str, tmp_path: Path) -> None:
    kind, model, sequence = RUNS[name]
    found = []
    for executor in ('eager', 'native'):
        learn: dict[str, Any] = {'executor': executor, 'batch_size': 32, 'learning_rate': 3e-4, 'sequence': sequence}
        if kind == 'ppg':
            learn |= {'aux_freq': 2, 'aux_train_epoch': 2, 'aux_batch_size': 32}
        policy = {
            'type': kind,
            'n_thread': 1,
            'device': 'cpu',
            'model': {'hidden_sizes': [8], 'recurrent': {'cell': cell, 'hidden_size': 16}, **model},
            'learn': learn,
            'collect': {'n_step': 16},
            'eval': {'eval_freq': 10**6},
        }
        config = copy.deepcopy({**RUN, 'policy': policy})
        config['logger']['root'] = str(tmp_path / executor)
        if kind == 'ppo_offpolicy':
            config['buffer'] = {'size': 160, 'n_sample': 64, 'update_per_collect': 2}
        trained = serial_pipeline(config).policy
        assert trained.executor_name.startswith(executor)
        found.append(trained.model.state_dict())
    for key, x in found[0].items():
        torch.testing.assert_close(found[1][key], x, rtol=0, atol=1e-5, msg=key)


@pytest.mark.usefixtures('native')
@pytest.mark.parametrize('kind', ['ppo', 'ppg'])
def test_run_resumed_in_the_middle_is_bit_equal_to_the_run(kind: str, tmp_path: Path) -> None:
    """All envs begin new episodes after each rollout, as they do after a resume."""
    learn: dict[str, Any] = {'executor': 'native', 'batch_size': 32, 'sequence': {'len': 8}}
    if kind == 'ppg':
        learn |= {'aux_freq': 2, 'aux_batch_size': 32}
    model = {'hidden_sizes': [8], 'recurrent': {'cell': 'lstm', 'hidden_size': 16}}
    policy = {'type': kind, 'n_thread': 1, 'device': 'cpu', 'model': model, 'learn': learn, 'collect': {'n_step': 16}}
    config = copy.deepcopy({**RUN, 'policy': {**policy, 'eval': {'eval_freq': 10**6}}})
    config['max_env_step'] = 64
    config['env']['reset_every'] = 1
    run_dir = str(tmp_path / 'run')
    serial_pipeline(config, run_dir=run_dir)
    found = [
        serial_pipeline(config, max_env_step=192, run_dir=str(tmp_path / 'whole')),
        serial_pipeline(config, max_env_step=192, run_dir=run_dir),
    ]
    assert found[0].env_step == found[1].env_step == 192
    states = [each.policy.state_dict() for each in found]
    assert_equal_trees(*states)


def assert_equal_trees(one: Any, other: Any) -> None:
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name, x in one.items():
            assert_equal_trees(x, other[name])
    else:
        assert one == other


def test_memory_of_an_earlier_call_does_not_reach_a_step_with_fewer_blocks_than_lanes(leveled: Library) -> None:
    """9 sequences in blocks of 2 are 5 blocks, fewer than the 8 lanes that 1,170 rows would have."""
    case, found = recurrent(GRU), []
    batch, other = sequences(case, 9, 130), sequences(case, 9, 400)
    for is_used in (False, True):
        net, workspace = Net(case), leveled.workspace()
        if is_used:
            before = Net(case)  # its rows fill the memory in which the lanes of the next call lie
            leveled.epoch(workspace, before.model, PPO, other, before.states, torch.arange(9), 9)
        leveled.epoch(workspace, net.model, PPO, batch, net.states, torch.arange(9), 9)
        found.append(net.states[0].grad)
    assert torch.equal(*found)


def test_hidden_size_that_is_no_multiple_of_16_is_refused(lib: Library) -> None:
    case = recurrent(GRU, size=24)
    net, batch = Net(case), sequences(case, 6, 4)
    with pytest.raises(ValueError, match='cannot run this model'):
        run(lib, net, PPO, batch, torch.arange(6), 3)
