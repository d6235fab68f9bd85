"""The native executor against a float64 reference; skipped steps, reproducible bits, refused input."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor

from tests.backend.native import reference
from tests.backend.native.reference import LEVELS, Case, Net, rows
from zoo.backend.native.bindings import (
    ActingBlocks,
    Activation,
    Column,
    Dist,
    Input,
    Kind,
    Level,
    Library,
    Output,
    StepSpec,
    Surrogate,
    ValueLoss,
)

GAUSSIAN = dict(dist=Dist.GAUSSIAN)


RANGES: dict[str, Any] = dict(clip_low=0.1, clip_high=0.1, value_loss=ValueLoss.CLIPPED_VALUE, value_range=0.1)
WEIGHTS = dict(value_weight=0.7, entropy_weight=0.05, dual_clip=1.5, grad_clip=0.3)
ALL_OPTIONS: dict[str, Any] = dict(RANGES, **WEIGHTS, measure_kl=True)
CHOICES_10 = Case(4, (16,), (16,), 10, nvec=(4, 1, 5))
CENTRAL = Case(6, (17,), (9,), 5, input=Input.NORMALIZED, state=20)


def ppo(*options: Any, **more: Any) -> StepSpec:
    return StepSpec(Kind.PPO, *options, **more)


CASES: list[tuple[str, Any, StepSpec, int, dict[str, bool]]] = [  # the sweep below tries more of each kind
    ('all options', Case(5, (33, 7), (9,), 5), StepSpec(Kind.PPO, True, **ALL_OPTIONS), 77, {'weighted': True}),
    ('one of all', Case(1, (1,), (1,), 1), StepSpec(Kind.PPO), 1, {}),
    ('impossible', Case(4, (16,), (16,), 4), ppo(entropy_weight=0.05, kl_penalty=0.5), 64, {'impossible': True}),
    ('aux impossible', Case(4, (16, 16), None, 3), StepSpec(Kind.AUX), 64, {'impossible': True}),
    (
        'relu, one trunk',
        Case(3, (20, 18, 5), None, 2, activation=Activation.RELU),
        ppo(entropy_weight=0.02, grad_clip=None),
        130,
        {},
    ),
    (
        'gaussian',
        Case(17, (31, 64), (64, 8), 6, **GAUSSIAN),
        ppo(True, entropy_weight=0.01, measure_kl=True),
        100,
        {'weighted': True},
    ),
    (
        'bounds of the deviation',
        Case(6, (17,), (9,), 5, log_std=(-0.25, 0.25), **GAUSSIAN),
        ppo(entropy_weight=0.01, kl_penalty=0.3),
        70,
        {},
    ),
    ('masked choices', CHOICES_10, ppo(True, **ALL_OPTIONS, kl_penalty=0.5), 177, {'mask': True, 'weighted': True}),
    ('wide', Case(70, (130, 65), (100,), 40), ppo(entropy_weight=0.01), 300, {}),
    ('many lanes', Case(), StepSpec(Kind.PPO, True), 1111, {'weighted': True}),
    (
        'spo, clipped error',
        Case(6, (17,), (9,), 5, **GAUSSIAN),
        StepSpec(Kind.PPO, surrogate=Surrogate.SPO, value_loss=ValueLoss.CLIPPED_ERROR, value_range=0.9),
        130,
        {'weighted': True},
    ),
    ('policy, unclipped', Case(), StepSpec(Kind.POLICY, True, Surrogate.UNCLIPPED, dual_clip=1.2), 70, {}),
    ('value, huber', Case(), StepSpec(Kind.VALUE, value_loss=ValueLoss.HUBER, value_range=1.0), 70, {}),
    ('aux, dual', Case(4, (16, 16), (20, 16), 3), StepSpec(Kind.AUX, bc_weight=1.5), 90, {'weighted': True}),
    ('aux, clipped', Case(4, (16, 16), None, 3, stop=True), StepSpec(Kind.AUX, grad_clip=0.05), 90, {}),
    ('central critic', CENTRAL, ppo(True, **ALL_OPTIONS), 150, {'weighted': True}),
    ('value, central critic', CENTRAL._replace(input=Input.INDEX), StepSpec(Kind.VALUE), 70, {}),
    ('aux, central critic', CENTRAL._replace(input=Input.BOOL), StepSpec(Kind.AUX), 70, {}),
]


def name_of(x: Any) -> str:
    return x if isinstance(x, str) else ''


def _buffers(case: Any, step: StepSpec) -> int:
    """Returns 2 for the auxiliary phase, which keeps the critic's parameters in a buffer of their own, else 1."""
    return 2 if step.kind == Kind.AUX else 1


def _run(lib: Library, net: Any, step: StepSpec, batch: Any, index: Tensor, n: int, n_thread: int = 1) -> Tensor:
    return lib.epoch(lib.workspace(), net.model, step, batch, net.states, index, n, n_thread)


def _assert_close(found: Tensor, wanted: Tensor, tolerance: float, name: str) -> None:
    error = (found.double() - wanted).norm() / wanted.norm().clamp(min=1e-3)
    assert float(error) <= tolerance, f'{name}: {float(error):.2e}'


@pytest.mark.slow(first=True)
@pytest.mark.parametrize(('name', 'case', 'step', 'n', 'how'), CASES, ids=name_of)
def test_epoch_one_step_has_gradients_and_metrics_of_float64(
    leveled: Library, name: str, case: Any, step: StepSpec, n: int, how: dict[str, bool]
) -> None:
    net, batch = Net(case, _buffers(case, step)), rows(case, n, **how)
    if how.get('impossible'):  # the new policy cannot take that choice either
        net.params['policy.bias'].data[0] = -torch.inf
        batch['logit'][:, 0] = -torch.inf
        batch['action'][:] = case.action - 1
    grads, metrics = reference.gradients(net, step, net.params, batch)
    found = _run(leveled, net, step, batch, torch.arange(n), n)[0]
    for key, wanted in metrics.items():
        assert float(found[Column[key]]) == pytest.approx(wanted, rel=2e-5, abs=2e-6), key
    total = sum(float(g.square().sum()) for g in grads.values()) ** 0.5
    assert float(found[Column.GRAD_NORM]) == pytest.approx(total, rel=1e-5)
    for key, p in net.params.items():
        assert p.grad is not None
        # float32 sums over n rows: a small gradient is the difference of larger numbers
        assert float((p.grad.double() - grads[key]).norm()) <= 3e-6 * total + 3e-6 * float(grads[key].norm()), key


def _snapshot(net: Any) -> list[Tensor]:
    return [x.clone() for s in net.states for x in (s.param, s.exp_avg, s.exp_avg_sq, s.step_count)]


@pytest.mark.parametrize('dist', list(Dist))
def test_epoch_gradient_not_finite_changes_nothing_and_the_next_step_is_taken(leveled: Library, dist: Dist) -> None:
    case, everything = Case(4, (16, 12), (7,), 3, dist=dist), torch.arange(40)
    for column, bad in (('obs', torch.nan), ('adv', torch.inf), ('return_', torch.nan), ('action', torch.inf)):
        net, batch = Net(case), rows(case, 40)
        _run(leveled, net, StepSpec(Kind.PPO), batch, everything, 40)
        before = _snapshot(net)
        if batch[column].is_floating_point():
            batch[column][17] = bad
        else:  # an integer action cannot be infinite
            batch['logit'][17] = torch.nan
        metrics = _run(leveled, net, StepSpec(Kind.PPO, True), batch, everything, 40)
        assert not metrics[0, Column.GRAD_NORM].isfinite()
        assert all(torch.equal(a, b) for a, b in zip(before, _snapshot(net), strict=True)), column
        metrics = _run(leveled, net, StepSpec(Kind.PPO), batch, everything, 10)
        assert metrics[:, Column.GRAD_NORM].isfinite().tolist() == [True, False, True, True]
        assert float(net.states[0].step_count) == 1 + 3 and net.states[0].param.isfinite().all()


@st.composite
def _problems(draw: st.DrawFn) -> tuple[Any, StepSpec, int, dict[str, bool]]:
    widths = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)
    gaussian, critic = draw(st.booleans()), draw(st.none() | widths)
    nvec = None if gaussian else draw(st.none() | st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple))
    case = Case(
        draw(st.integers(1, 40)),
        draw(widths),
        critic,
        draw(st.integers(1, 20)) if nvec is None else sum(nvec),
        Dist.GAUSSIAN if gaussian else Dist.CATEGORICAL,
        gaussian and draw(st.booleans()),
        draw(st.sampled_from(Input)),
        draw(st.sampled_from(Activation)),
        critic is None and draw(st.booleans()),
        nvec,
    )
    step = StepSpec(
        draw(st.sampled_from(Kind)),
        draw(st.booleans()),
        draw(st.sampled_from(Surrogate)),
        draw(st.sampled_from([0.05, 0.2, 0.5])),
        draw(st.sampled_from([0.2, 0.4])),
        draw(st.sampled_from(ValueLoss)),
        draw(st.sampled_from([0.05, 0.2, 1.5])),
        draw(st.sampled_from([0.0, 0.5, 1.0])),
        draw(st.sampled_from([0.0, 0.03])),
        draw(st.none() | st.just(1.5)),
        None,
        draw(st.booleans()),
        draw(st.sampled_from([None, 0.0, 0.6])),
    )
    how = {'weighted': draw(st.booleans()), 'mask': not gaussian and draw(st.booleans())}
    return case, step, draw(st.integers(1, 200)), how


@pytest.mark.slow
@given(_problems(), st.sampled_from(LEVELS))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_epoch_any_network_and_options_have_gradients_of_float64(
    lib: Library, problem: tuple[Any, StepSpec, int, dict[str, bool]], level: Level
) -> None:
    case, step, n, how = problem
    lib.set_level(level)
    net, batch = Net(case), rows(case, n, **how)
    if 'weight' in batch:
        batch['weight'][0] = 1.0  # without a valid row the float64 reference has no mean
    grads, metrics = reference.gradients(net, step, net.params, batch)
    found = _run(lib, net, step, batch, torch.arange(n), n)[0]
    total = sum(float(g.square().sum()) for g in grads.values()) ** 0.5
    for key, wanted in metrics.items():
        if key != 'CLIPFRAC':  # a ratio may lie exactly at the bound
            assert float(found[Column[key]]) == pytest.approx(wanted, rel=1e-4, abs=1e-5), key
    # equal advantages normalise to exactly 0 in float32, so a relative tolerance alone would not do
    assert float(found[Column.GRAD_NORM]) == pytest.approx(total, rel=2e-5, abs=1e-6)
    for key, p in net.params.items():
        assert p.grad is not None
        assert float((p.grad.double() - grads[key]).norm()) <= 1e-5 * total + 1e-6, key


def test_epoch_equal_advantages_normalise_to_exactly_zero(leveled: Library) -> None:
    case = Case()
    net, batch = Net(case), rows(case, 33)
    batch['adv'][:] = 0.1
    metrics = _run(leveled, net, StepSpec(Kind.POLICY, True), batch, torch.arange(33), 33)
    assert float(metrics[0, Column.POLICY_LOSS]) == 0
    assert float(metrics[0, Column.GRAD_NORM]) == 0


def test_epoch_row_without_weight_may_overflow(leveled: Library) -> None:
    case = Case(4, (16,), (16,), 2, **GAUSSIAN)
    net, batch = Net(case), rows(case, 40)
    batch['weight'] = torch.ones(40)
    batch['weight'][7] = 0
    batch['logit'][7] = torch.tensor([1e3, 1e3, 1e-3, 1e-3])  # log-ratio of about 5e11
    metrics = _run(leveled, net, StepSpec(Kind.PPO, measure_kl=True), batch, torch.arange(40), 40)
    assert metrics[0, Column.GRAD_NORM].isfinite() and metrics[0, Column.KL].isfinite()


@pytest.mark.parametrize('bad', [math.nan, math.inf])
def test_epoch_normalised_takes_nothing_from_the_advantage_of_a_row_without_weight(
    leveled: Library, bad: float
) -> None:
    case, found = Case(), []
    for adv in (1.0, bad):
        net, batch = Net(case), rows(case, 40)
        batch['weight'], batch['adv'][7] = torch.ones(40), adv
        batch['weight'][7] = 0
        metrics = _run(leveled, net, StepSpec(Kind.PPO, True), batch, torch.arange(40), 40)
        found.append([metrics[0, Column.POLICY_LOSS], metrics[0, Column.GRAD_NORM], *net.params.values()])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize(('kind', 'n'), [(Kind.PPO, 100), (Kind.PPO, 3000), (Kind.VALUE, 1000), (Kind.AUX, 1000)])
def test_epoch_bits_depend_neither_on_threads_nor_on_the_run(leveled: Library, kind: Kind, n: int) -> None:
    case, step, found = Case(6, (24, 24), (24, 24), 5, nvec=(3, 2)), StepSpec(kind, entropy_weight=0.01), []
    for n_thread in (1, 1, 2, 3):
        net, batch = Net(case, 2 if kind == Kind.AUX else 1), rows(case, n, mask=True)
        metrics = _run(leveled, net, step, batch, torch.arange(n).repeat(3), n, n_thread)
        found.append((metrics.nan_to_num(), *_snapshot(net)))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_levels_agree_to_rounding(lib: Library) -> None:
    """The levels agree after 20 steps. test_executor.py compares the best level with eager steps in float64."""
    case, ends = Case(6, (24, 24), (24, 24), 5, nvec=(3, 2)), []
    for level in LEVELS:
        lib.set_level(level)
        net, batch = Net(case), rows(case, 100, mask=True)
        _run(lib, net, StepSpec(Kind.PPO), batch, torch.arange(100).repeat(20), 100)
        ends.append(net.states[0].param.double())
    for end in ends[1:]:
        _assert_close(end, ends[0], 2e-5, 'param')


NETWORKS = [
    Case(),
    Case(5, (33, 7), None, 5),
    Case(9, (20,), (8,), 2, input=Input.INDEX),
    Case(6, (40,), None, 3, state_std=True, input=Input.NORMALIZED, **GAUSSIAN),
    Case(6, (17,), (9,), 19, **GAUSSIAN),
    Case(6, (17,), (9,), 9, nvec=(4, 1, 4)),
    Case(11, (20,), None, 2, input=Input.BOOL),
    Case(6, (17,), (9,), 5, log_std=(-0.25, 0.25), **GAUSSIAN),
    CENTRAL,
    CENTRAL._replace(input=Input.INDEX),
]


@pytest.mark.parametrize('case', NETWORKS)
@pytest.mark.parametrize('n', [1, 8, 150])
def test_forward_equals_float64(leveled: Library, case: Any, n: int) -> None:
    net, batch = Net(case), rows(case, n, mask=case.dist == Dist.CATEGORICAL)
    mask, everything = batch.get('mask'), Output.LOGIT | Output.VALUE | Output.AUX
    wanted = reference.outputs(net, {k: p.detach().double() for k, p in net.params.items()}, batch['obs'], False, mask)
    found = leveled.forward(leveled.workspace(), net.model, batch['obs'], everything, 2, mask)
    for name, x in zip(('logit', 'value', 'aux_value'), wanted, strict=True):
        torch.testing.assert_close(found[name].double(), x, rtol=1e-5, atol=3e-6)
    value = leveled.forward(leveled.workspace(), net.model, batch['obs'], Output.VALUE)
    assert list(value) == ['value'] and torch.equal(value['value'], found['value'])


@pytest.mark.parametrize(
    ('case', 'masked'),
    [(case, masked) for case in NETWORKS for masked in (False, True) if case.dist == Dist.CATEGORICAL or not masked],
)
@pytest.mark.parametrize('greedy', [False, True])
def test_act_equals_float64(leveled: Library, case: Any, greedy: bool, masked: bool) -> None:
    n_step, n = 3, 7
    net, batch = Net(case), rows(case, (n_step + 1) * n, mask=masked)
    obs = reference.each_entry(lambda x: x.unflatten(0, (n_step + 1, n)), batch['obs'])
    noise = torch.randn(n_step, n, case.action, generator=torch.Generator().manual_seed(5))
    mask = batch['mask'].view(n_step + 1, n, -1) if masked else None
    action = torch.full((n_step, n, *net.model.action_shape), -1, dtype=net.model.action_dtype)
    logit, value = torch.zeros(n_step, n, net.model.n_logit), torch.zeros(n_step, n) if case.critic is None else None
    rollout = ActingBlocks(net.model, obs, None if greedy else noise, action, logit, value, mask)
    workspace = leveled.workspace()
    leveled.act_begin(workspace, rollout)
    for t in range(n_step):
        leveled.act(workspace, t)
    params = {k: p.detach().double() for k, p in net.params.items()}
    for t in range(n_step):
        row = reference.each_entry(lambda x: x[t], obs)  # noqa: B023
        wanted, wanted_value, _ = reference.outputs(net, params, row, False, mask[t] if masked else None)
        torch.testing.assert_close(logit[t].double(), wanted, rtol=1e-5, atol=3e-6)
        if value is not None:
            torch.testing.assert_close(value[t].double(), wanted_value, rtol=1e-5, atol=3e-6)
        drawn = torch.zeros_like(noise[t]) if greedy else noise[t]
        if case.dist == Dist.GAUSSIAN:
            mu, sigma = logit[t].chunk(2, -1)
            torch.testing.assert_close(action[t], mu + sigma * drawn, rtol=1e-6, atol=1e-6)
        else:
            parts = (logit[t] + drawn).split(case.nvec or case.action, -1)
            found = torch.stack([x.argmax(-1) for x in parts], -1)
            assert torch.equal(action[t].view_as(found), found)
            assert not masked or all(
                m.gather(1, found[:, i, None]).all() for i, m in enumerate(mask[t].split(case.nvec or case.action, -1))
            )


def test_one_of_several_choices_has_the_bits_of_one_choice(leveled: Library) -> None:
    """The same network over Discrete(5) and over MultiDiscrete([5]) gives the same bits."""
    found = []
    for nvec in (None, (5,)):
        case = Case(6, (24, 24), (24,), 5, nvec=nvec)
        net, batch = Net(case), rows(case, 150, mask=True)
        step = StepSpec(Kind.PPO, True, entropy_weight=0.01, measure_kl=True, kl_penalty=0.3)
        metrics = _run(leveled, net, step, batch, torch.arange(150).repeat(5), 150)
        _run(leveled, net, StepSpec(Kind.AUX), batch, torch.arange(150), 50)
        obs, mask = (batch[name][:40].view(5, 8, -1) for name in ('obs', 'mask'))
        noise, logit = torch.randn(4, 8, 5, generator=torch.Generator().manual_seed(1)), torch.zeros(4, 8, 5)
        action = torch.full((4, 8, *net.model.action_shape), -1)
        rollout, workspace = ActingBlocks(net.model, obs, noise, action, logit, None, mask), leveled.workspace()
        leveled.act_begin(workspace, rollout)
        for t in range(4):
            leveled.act(workspace, t)
        found.append((metrics.nan_to_num(), *_snapshot(net), action.view(4, 8), logit))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize('kind', [Kind.PPO, Kind.POLICY, Kind.AUX])
def test_gradient_of_an_option_that_no_row_allows_is_exactly_zero(leveled: Library, kind: Kind) -> None:
    case = Case(6, (24,), (24,), 6, nvec=(4, 2))
    net, batch = Net(case), rows(case, 100, mask=True)
    batch['mask'][:, 1], batch['mask'][:, 0] = False, True
    old = batch['logit'].nan_to_num(neginf=0.0)  # the old policy allowed the masked option: KL(old || new) is infinite
    batch['logit'], batch['action'][:, 0] = old, 0
    step = StepSpec(kind, entropy_weight=0.05, kl_penalty=0.5, measure_kl=True)
    _run(leveled, net, step, batch, torch.arange(100), 100)
    for name in ('policy.weight', 'policy.bias'):
        grad = net.params[name].grad
        assert grad is not None and (grad[1] == 0).all() and grad[0].isfinite().all() and (grad[0] != 0).any()


def test_row_that_allows_nothing_moves_nothing_if_it_has_no_weight(leveled: Library) -> None:
    """Such a row only resets its env: the policy terms of its loss are NaN, but its gradient is 0."""
    case = Case(6, (24,), (24,), 4)
    net, batch = Net(case), rows(case, 40, mask=True)
    batch['weight'] = torch.ones(40)
    batch['weight'][7], batch['mask'][7], batch['logit'][7] = 0, False, -torch.inf
    metrics = _run(leveled, net, StepSpec(Kind.POLICY), batch, torch.arange(40), 40)
    assert metrics[0, Column.GRAD_NORM].isfinite() and net.states[0].step_count == 1


def test_mask_of_real_numbers_is_refused(lib: Library) -> None:
    case = Case(4, (8,), (8,), 3, **GAUSSIAN)
    net, batch = Net(case), rows(case, 10)
    batch['mask'] = torch.ones(10, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match='cannot run this model'):
        _run(lib, net, StepSpec(Kind.PPO), batch, torch.arange(10), 10)
    with pytest.raises(ValueError, match='cannot run this model'):
        lib.forward(lib.workspace(), net.model, batch['obs'], Output.LOGIT, mask=batch['mask'])


def test_observations_of_several_dimensions_are_rows_as_they_lie_in_memory(lib: Library) -> None:
    case = Case(6, (8,), (8,), 2)
    net, batch = Net(case), rows(case, 10)
    found = [
        lib.forward(lib.workspace(), net.model, batch['obs'].view(10, *shape), Output.VALUE) for shape in ((6,), (2, 3))
    ]
    assert torch.equal(found[0]['value'], found[1]['value'])
    with pytest.raises(ValueError, match=r'obs is .*\(10, 5\).*takes contiguous torch.float32 \(10, 6\)'):
        lib.forward(lib.workspace(), net.model, torch.zeros(10, 5), Output.VALUE)


def test_act_tie_takes_the_first_choice_and_nan_counts_as_largest(lib: Library) -> None:
    case = Case(2, (4,), (4,), 3)
    net = Net(case)
    net.params['policy.weight'].data.zero_()
    net.params['policy.bias'].data.copy_(torch.tensor([0.0, 1.0, 1.0]))
    noise = torch.zeros(2, 1, 3)
    noise[1, 0, 2] = torch.nan
    action = torch.full((2, 1), -1)
    rollout = ActingBlocks(net.model, torch.zeros(2, 1, 2), noise, action, torch.zeros(2, 1, 3), None)
    workspace = lib.workspace()
    lib.act_begin(workspace, rollout)
    lib.act(workspace, 0)
    lib.act(workspace, 1)
    assert action.tolist() == [[1], [2]]


@pytest.mark.parametrize('bad', [torch.inf, -torch.inf, torch.nan])
def test_forward_of_saturated_and_broken_inputs(leveled: Library, bad: float) -> None:
    case = Case(1, (1,), (1,), 1)
    net = Net(case)
    for name, p in net.params.items():
        p.data.fill_(1.0 if 'weight' in name else 0.0)
    logit = leveled.forward(leveled.workspace(), net.model, torch.tensor([[bad]]), Output.LOGIT)['logit']
    torch.testing.assert_close(logit, torch.tensor([[bad]]).tanh(), equal_nan=True, rtol=0, atol=0)


PPO, INDEXED, CHOICES = (
    StepSpec(Kind.PPO),
    Case(9, (8,), (8,), 3, input=Input.INDEX),
    Case(4, (8,), (8,), 9, nvec=(4, 2, 3)),
)
NO_STEP = 'cannot run this model'


@pytest.mark.parametrize(
    ('case', 'step', 'column', 'at', 'value', 'error', 'words'),
    [
        (INDEXED, PPO, 'index', 30, 40, IndexError, '.'),
        (INDEXED, PPO, 'index', 30, -1, IndexError, '.'),
        (INDEXED, PPO, 'action', 30, 3, ValueError, '.'),
        (INDEXED, PPO, 'obs', 30, 9, ValueError, '.'),
        (CHOICES, PPO, 'action', (3, 1), -1, ValueError, 'an action is outside its options'),
        (CHOICES, PPO, 'action', (3, 1), 2, ValueError, 'an action is outside its options'),
        (Case(), PPO, 'adv', None, None, ValueError, 'adv is torch.float32'),
        (Case(), StepSpec(Kind.PPO, surrogate=3), '', 0, 0, ValueError, NO_STEP),  # type: ignore[arg-type]
        (Case(), StepSpec(Kind.PPO, value_loss=4), '', 0, 0, ValueError, NO_STEP),  # type: ignore[arg-type]
        (Case(), StepSpec(Kind.PPO, value_loss=ValueLoss.HUBER, value_range=0.0), '', 0, 0, ValueError, NO_STEP),
        (Case(), ppo(value_loss=ValueLoss.CLIPPED_VALUE, value_range=torch.nan), '', 0, 0, ValueError, NO_STEP),
        (Case(), StepSpec(Kind.PPO, surrogate=Surrogate.SPO, clip_low=0.0), '', 0, 0, ValueError, NO_STEP),
    ],
)
def test_epoch_row_or_step_that_does_not_exist_is_refused_and_changes_nothing(
    lib: Library, case: Any, step: StepSpec, column: str, at: Any, value: Any, error: type, words: str
) -> None:
    net, batch, index = Net(case), rows(case, 40), torch.arange(40)
    if value is None:
        batch[column] = batch[column].unsqueeze(1)
    elif column:
        (index if column == 'index' else batch[column])[at] = value
    before = _snapshot(net)
    with pytest.raises(error, match=words):
        _run(lib, net, step, batch, index, 10)
    assert all(torch.equal(a, b) for a, b in zip(before, _snapshot(net), strict=True))


@pytest.mark.parametrize('seen', [(2, 0), (-1, 0), (1,), ()])
def test_entries_that_are_not_there_or_do_not_fit_the_first_layer_are_refused(lib: Library, seen: Any) -> None:
    """There are the entries 0 and 1; the critic's first layer takes the numbers of both."""
    net, batch = Net(CENTRAL), rows(CENTRAL, 10)
    net.model.struct.critic.n_entry = len(seen)
    net.model.struct.critic.entry[: len(seen)] = seen
    before = _snapshot(net)
    with pytest.raises(ValueError, match=NO_STEP):
        _run(lib, net, PPO, batch, torch.arange(10), 10)
    assert all(torch.equal(a, b) for a, b in zip(before, _snapshot(net), strict=True))
    _run(lib, net, StepSpec(Kind.POLICY), batch, torch.arange(10), 10)  # which does not read the critic


def test_index_outside_its_space_is_refused_in_any_entry_that_is_read(lib: Library) -> None:
    case = CENTRAL._replace(input=Input.INDEX)
    net, batch = Net(case), rows(case, 10)
    batch['obs'][0][3] = 6
    for output in (Output.LOGIT, Output.VALUE):
        with pytest.raises(ValueError, match='an index in the observations is outside its space'):
            lib.forward(lib.workspace(), net.model, batch['obs'], output)
    with pytest.raises(ValueError, match='an index in the observations is outside its space'):
        _run(lib, net, PPO, batch, torch.arange(10), 10)


def test_spo_and_error_clip_of_one_row_are_those_worked_by_hand(leveled: Library) -> None:
    """ratio 1.5, adv -2, e = 0.25: gain = -3 - 2 * 0.25 / 0.5 = -4; V = 1, R = 3: 0.5 * min(4, 2.5) = 1.25."""
    case = Case(1, (1,), (1,), 2)
    net = Net(case)
    for p in net.params.values():
        p.data.zero_()
    net.params['value.bias'].data.fill_(1.0)  # the logits are 0: the new policy takes each choice with probability 1/2
    batch = {'obs': torch.zeros(1, 1), 'action': torch.tensor([0]), 'adv': torch.tensor([-2.0])}
    batch |= {'return_': torch.tensor([3.0]), 'logit': torch.tensor([[1 / 3, 2 / 3]]).log()}
    step = StepSpec(Kind.PPO, False, Surrogate.SPO, 0.25, 0.25, ValueLoss.CLIPPED_ERROR, 2.5, kl_penalty=0.0)
    metrics = _run(leveled, net, step, batch, torch.tensor([0]), 1)[0]
    assert float(metrics[Column.POLICY_LOSS]) == pytest.approx(4.0, rel=1e-6)
    assert float(metrics[Column.VALUE_LOSS]) == pytest.approx(1.25, rel=1e-6)
    # 1/3 log(2/3) + 2/3 log(4/3)
    assert float(metrics[Column.PENALTY_KL]) == pytest.approx(0.0566330, rel=1e-5)
    # d loss / d logit_0 = -slope * (1 - 1/2), where slope of the gain = 1.5 * -2 - 1.5 * 2 * 0.5 / 0.25 = -9
    assert net.params['policy.bias'].grad.tolist() == pytest.approx([4.5, -4.5], rel=1e-5)
    assert float(net.params['value.bias'].grad) == 0.0
