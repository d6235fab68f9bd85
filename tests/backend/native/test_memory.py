"""Memories in C: steps over sequences, acting and values against a float64 reference; whole executors and runs against eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor

from tests.backend.native import reference
from tests.backend.native.reference import Case, Net, sequences
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

LEVELS = [Level.V4, Level.V3, Level.BASE]
LSTM, GRU, MINGRU = CellKind
KINDS: Any = list(CellKind)


@pytest.fixture
def lib(native: Library) -> Iterator[Library]:
    yield native
    native.set_level(-1)


@pytest.fixture(params=LEVELS, ids=lambda level: level.name.lower())
def leveled(lib: Library, request: pytest.FixtureRequest) -> Library:
    if lib.set_level(request.param) != request.param:
        pytest.skip(f'this CPU has no {request.param.name}')
    return lib


def recurrent(*kinds: CellKind, size: int = 16, **fields: Any) -> Case:
    return Case(**{'hidden': (20,), 'critic': (9,), **fields}, cells=tuple((kind, size) for kind in kinds))


ALL: dict[str, Any] = dict(normalize_adv=True, entropy_weight=0.05, dual_clip=1.5, grad_clip=0.3, measure_kl=True)
GAUSSIAN: dict[str, Any] = dict(dist=Dist.GAUSSIAN)
PPO = StepSpec(Kind.PPO)
# name -> (network, step, sequences: their number, steps of each, steps of the burn-in, more options)
CASES: dict[str, tuple[Case, StepSpec, tuple[int, int, int], dict[str, bool]]] = {
    'lstm': (recurrent(LSTM), StepSpec(Kind.PPO, **ALL), (13, 7, 0), {'weighted': True}),
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


@pytest.mark.slow
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
    rollout = ActingBlocks(net.model, obs, noise, action, logit, value, None, now, after)
    workspace = leveled.workspace()
    leveled.act_begin(workspace, rollout)
    for t in range(9):
        for x in now.values():
            leveled.zero_rows(x, batch['is_first'][:, t].contiguous())
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
