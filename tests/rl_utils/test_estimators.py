"""Estimators by hand on six steps with a terminal state and a time limit, against plain loops, and where two are equal."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from zoo.config.components import make_component
from zoo.core.registry import ESTIMATOR_REGISTRY
from zoo.rl_utils import estimators
from zoo.rl_utils.estimators import vtrace
from zoo.rl_utils.gae import gae, gae_data

NAMES = ESTIMATOR_REGISTRY.names()
SHAPES = [(1,), (7, 3), (7, 3, 2)]


def estimate(
    name: str, data: gae_data, gamma: float = 0.9, lambda_: float = 0.7, **options: Any
) -> tuple[Tensor, Tensor]:
    return make_component(ESTIMATOR_REGISTRY, {'type': name, **options})(data, gamma, lambda_)


def tensor(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def six_steps() -> gae_data:
    """Rewards 1..6; row 1 is terminal, row 3 ends by a time limit in a state worth 8, the rollout ends at one worth 4."""
    return gae_data(
        value=tensor(1, 1, 1, 1, 1, 1),
        next_value=tensor(1, 50, 1, 8, 1, 4),  # the 50 must not count
        reward=tensor(1, 2, 3, 4, 5, 6),
        done=torch.tensor([0, 1, 0, 0, 0, 0], dtype=torch.bool),
        traj_flag=torch.tensor([0, 1, 0, 1, 0, 0], dtype=torch.bool),
    )


def random_data(shape: tuple[int, ...], seed: int = 0) -> gae_data:
    """Random data whose next values are the values of the next rows, except at ends, as in a rollout."""
    generator = torch.Generator().manual_seed(seed)
    value, beyond = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    reward, end, terminal = (torch.randn(shape[:2], generator=generator, dtype=torch.float64) for _ in range(3))
    traj_flag = end > 0.5
    cut = (traj_flag if len(shape) < 3 else traj_flag.unsqueeze(-1)).expand(shape)
    next_value = torch.where(cut, beyond, torch.cat((value[1:], beyond[-1:])))
    return gae_data(value, next_value, reward, traj_flag & (terminal > 0), traj_flag)


def loop_returns(data: gae_data, gamma: float, n: int) -> Tensor:
    """Returns by the sum in the docstring of `n_step`, row by row; [T] data."""
    found = torch.zeros_like(data.value)
    for t in range(len(data.value)):
        for k in range(n):
            row = t + k
            found[t] += gamma**k * data.reward[row]
            if k == n - 1 or data.traj_flag[row] or row == len(data.value) - 1:
                found[t] += gamma ** (k + 1) * data.next_value[row] * (1 - data.done[row].double())
                break
    return found


RETURNS = [2.0, 2.0, 7.0, 8.0, 9.0, 8.0]
NO_CRITIC = six_steps()._replace(value=torch.zeros(6).double(), next_value=torch.zeros(6).double())
RISING = gae_data(tensor(0, 10, 20), tensor(10, 20, 30), tensor(1, 1, 1))


@pytest.mark.parametrize(
    'spec, data, adv, return_',
    [
        # gamma .5: row 5: 6 + .5 * 4 = 8; row 4: 5 + .5 * 8 = 9; row 3: 4 + .5 * 8 = 8; row 2: 3 + .5 * 8 = 7; row 1: 2
        ({'type': 'returns'}, six_steps(), tensor(1, 1, 6, 7, 8, 7), tensor(*RETURNS)),
        # without a critic: row 4: 5 + .5 * 6; row 2: 3 + .5 * 4
        ({'type': 'returns'}, NO_CRITIC, tensor(2, 2, 5, 4, 8, 6), tensor(2, 2, 5, 4, 8, 6)),
        # row 0: 1 + .5 * 1; row 1: 2, terminal; row 2: 3 + .5; row 3: 4 + .5 * 8; row 4: 5 + .5; row 5: 6 + .5 * 4
        ({'type': 'n_step', 'n': 1}, six_steps(), tensor(0.5, 1, 2.5, 7, 4.5, 7), tensor(1.5, 2, 3.5, 8, 5.5, 8)),
        # row 0: 1 + .5 * 2 + 0; row 1: 2; row 2: 3 + .5 * 4 + .25 * 8; row 3: 4 + .5 * 8; row 4: 5 + .5 * 6 + .25 * 4
        ({'type': 'n_step', 'n': 2}, six_steps(), tensor(1, 1, 6, 7, 8, 7), tensor(*RETURNS)),
        # values 0, 10, 20, 30 of the next states: row 0: 1 + .5 + .25 * 20; row 1: 1 + .5 + .25 * 30; row 2: 1 + .5 * 30
        ({'type': 'n_step', 'n': 2}, RISING, tensor(6.5, -1, -4), tensor(6.5, 9, 16)),
    ],
    ids=['returns', 'without a critic', 'one step', 'two steps', 'a value in between'],
)
def test_advantages_and_returns_by_hand(spec, data, adv, return_):
    torch.testing.assert_close(make_component(ESTIMATOR_REGISTRY, spec)(data, 0.5, 0.7), (adv, return_))


@pytest.mark.parametrize('n', [1, 2, 3, 7, 50])
def test_n_step_equals_the_loop(n):
    for seed in range(3):
        data = random_data((40,), seed)
        torch.testing.assert_close(estimate('n_step', data, n=n)[1], loop_returns(data, 0.9, n), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('shape', SHAPES)
def test_estimators_coincide(shape):
    data, zero = random_data(shape), torch.zeros(shape[:2], dtype=torch.float64)
    advs = {lambda_: gae(data, 0.9, lambda_) for lambda_ in (0.0, 0.7, 0.8, 0.95, 1.0)}
    for found, lambda_, value_lambda in (
        (estimate('returns', data), 1.0, 1.0),
        (estimate('n_step', data, n=1), 0.0, 0.0),
        *((estimate('n_step', data, n=n), 1.0, 1.0) for n in (shape[0], 8, 100)),
        (vtrace(data, 0.9, 0.7, None), 0.7, 0.7),
        (vtrace(data, 0.9, 0.7, zero), 0.7, 0.7),  # data of the policy itself
        (estimate('gae', data), 0.7, 0.7),
        (estimate('gae', data, 0.9, 0.8, value_lambda=0.95), 0.8, 0.95),
    ):
        wanted = advs[lambda_], advs[value_lambda] + data.value
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


# gamma .5, values 1, rewards 1..3, next values 1, 1, 5: deltas .5, 1.5, 3 + 2.5 - 1 = 4.5
@pytest.mark.parametrize(
    'lambda_, ratios, bounds, adv, return_',
    [
        # 2 is clipped to 1: adv_2 = .25 * 4.5 = 1.125; adv_1 = .5 * 1.5 + .5 * .5 * 1.125 = 1.03125
        # adv_0 = .5 + .5 * 1.03125 = 1.015625
        (1.0, (2.0, 0.5, 0.25), {}, [1.015625, 1.03125, 1.125], [2.015625, 2.03125, 2.125]),
        # adv_1 = 1.5 + .5 * 4.5 = 3.75, return_1 = 4.75; adv_0 = 3 (1 + .5 * 4.75 - 1) = 7.125, and not the trace,
        # 3 * .5 + .5 * 2 * 3.75 = 5.25
        (1.0, (8.0, 1.0, 1.0), dict(rho_max=3.0, c_max=2.0), [7.125, 3.75, 4.5], [6.25, 4.75, 5.5]),
        # trace_2 = .25 * 4.5 = 1.125; trace_1 = .5 * 1.5 + .25 * .5 * 1.125 = .890625
        # trace_0 = 2 * .5 + .25 * 1 * .890625 = 1.22265625
        # adv_2 = 1.125; adv_1 = .5 (1.5 + .25 * 1.125) = .890625; adv_0 = 2 (.5 + .25 * .890625) = 1.4453125
        (0.5, (2.0, 0.5, 0.25), dict(rho_max=3.0), [1.4453125, 0.890625, 1.125], [2.22265625, 1.890625, 2.125]),
    ],
    ids=['plain', 'bounds', 'lambda'],
)
def test_vtrace_by_hand(lambda_, ratios, bounds, adv, return_):
    data = gae_data(tensor(1, 1, 1), tensor(1, 1, 5), tensor(1, 2, 3))
    found = vtrace(data, 0.5, lambda_, tensor(*ratios).log(), **bounds)
    torch.testing.assert_close(found, (tensor(*adv), tensor(*return_)))


@pytest.mark.parametrize('bounds', [(1.0, 1.0), (3.0, 1.0), (1.5, 2.0)])
def test_vtrace_advantage_is_the_papers(bounds):
    # arXiv:1802.01561, sec. 4.2: rho_t (r_t + gamma vs_{t+1} - V_t), where vs_{t+1} is V' at an end, and 0 where terminal
    data, generator = random_data((40,)), torch.Generator().manual_seed(1)
    log_ratio = torch.randn(40, generator=generator, dtype=torch.float64)
    adv, return_ = vtrace(data, 0.9, 1.0, log_ratio, rho_max=bounds[0], c_max=bounds[1])
    after = torch.where(data.traj_flag, data.next_value * ~data.done, torch.cat((return_[1:], data.next_value[-1:])))
    after[-1] = data.next_value[-1] * ~data.done[-1]
    rho = log_ratio.exp().clamp(max=bounds[0])
    torch.testing.assert_close(adv, rho * (data.reward + 0.9 * after - data.value), rtol=1e-12, atol=1e-12)


def test_vtrace_of_extreme_ratios_is_finite():
    log_ratio = torch.tensor([1000.0, -1000.0, math.inf, -math.inf, 0.0, 89.0], dtype=torch.float64)
    adv, _ = vtrace(six_steps(), 0.9, 0.95, log_ratio, rho_max=5.0)
    assert adv.isfinite().all()
    assert adv[1] == adv[3] == 0.0  # the policy would never take these actions


def test_vtrace_with_ratios_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r'log_ratio has shape \(5,\) but reward \(6,\)'):
        vtrace(six_steps(), 0.9, 0.95, torch.zeros(5))


@pytest.mark.parametrize('name', NAMES)
def test_nothing_below_an_end_reaches_the_rows_above(name):
    data = six_steps()
    below = [x.clone() for x in data]
    for x in below[:3]:
        x[4:] = 1000.0  # after the time limit
    for found, wanted in zip(estimate(name, gae_data(*below)), estimate(name, data), strict=True):
        assert torch.equal(found[:4], wanted[:4]) and not torch.equal(found[4:], wanted[4:])


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('shape', SHAPES)
def test_flags_may_be_numbers_or_none_and_the_value_after_a_terminal_counts_for_nothing(name, shape):
    data, no = random_data(shape), torch.zeros(shape[:2], dtype=torch.bool)
    adv, return_ = wanted = estimate(name, data)
    torch.testing.assert_close(adv, return_ - data.value, rtol=1e-12, atol=1e-12)
    numbers = data._replace(done=data.done.double(), traj_flag=data.traj_flag.double())
    done = data.done.view(*data.done.shape, *[1] * (data.value.dim() - data.done.dim()))
    terminal = data._replace(next_value=torch.where(done, -7.0, data.next_value))
    without = estimate(name, data._replace(done=no, traj_flag=no))
    for other, result in (
        (numbers, wanted),
        (terminal, wanted),
        (data._replace(done=None, traj_flag=None), without),
        (data._replace(done=no, traj_flag=None), without),
        (data._replace(done=None, traj_flag=no), without),
    ):
        assert all(map(torch.equal, estimate(name, other), result))


@pytest.mark.parametrize('name', NAMES)
def test_agents_that_share_rewards_are_as_each_alone(name):
    data = random_data((7, 3, 2))
    together = estimate(name, data)
    for agent in range(2):
        alone = data._replace(value=data.value[..., agent], next_value=data.next_value[..., agent])
        for found, wanted in zip(together, estimate(name, alone), strict=True):
            torch.testing.assert_close(found[..., agent], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_inputs_are_unchanged_and_the_result_is_new(name, dtype):
    data = random_data((7, 3))
    data = gae_data(*(x.to(dtype) for x in data[:3]), *data[3:])
    data = data._replace(value=data.value.requires_grad_())
    before = [x.detach().clone() for x in data]
    found = estimate(name, data)
    assert all(torch.equal(x, y) for x, y in zip(data, before, strict=True))
    assert all(x.shape == data.value.shape and x.dtype == dtype and not x.requires_grad for x in found)
    assert not {x.data_ptr() for x in found} & {x.data_ptr() for x in data}
    assert found[0].data_ptr() != found[1].data_ptr()


@pytest.mark.parametrize('name', NAMES)
def test_shapes_that_differ_are_refused(name):
    # the registered 'gae' does not check its inputs, the public function does
    checked = estimators.gae_return if name == 'gae' else ESTIMATOR_REGISTRY.get(name)
    with pytest.raises(ValueError, match='reward has shape'):
        checked(six_steps()._replace(reward=torch.zeros(5)), 0.9, 0.7)
    with pytest.raises(ValueError, match='next_value has shape'):
        checked(six_steps()._replace(next_value=torch.zeros(6, 6)), 0.9, 0.7)
