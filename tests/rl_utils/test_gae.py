"""Generalised advantages, their normalisation and discounted sums, by hand and against plain loops.

test_estimators.py tests that agents may share rewards and that flags may be numbers.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from zoo.rl_utils.gae import discounted_sum, gae, gae_data, gae_return, linear_scan, normalize_advantage


def loop_gae(data: gae_data, gamma: float, lambda_: float) -> Tensor:
    """The recursion in the docstring of `gae`, row by row in float64; all five fields have one shape."""
    value, next_value, reward, done, traj_flag = (x.double() for x in data)
    adv, following = torch.zeros_like(value), torch.zeros_like(value[0])
    for t in reversed(range(len(value))):
        delta = reward[t] + gamma * next_value[t] * (1 - done[t]) - value[t]
        adv[t] = following = delta + gamma * lambda_ * (1 - traj_flag[t]) * following
    return adv


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_data(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> gae_data:
    """Values, rewards and ends: a third of the rows end a trace, half of these by termination."""
    generator = torch.Generator().manual_seed(seed)
    value, next_value, reward, end, terminal = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(5))
    traj_flag = end > 0.43
    return gae_data(value, next_value, reward, traj_flag & (terminal > 0), traj_flag)


ZEROS = dict(value=[0] * 6, next_value=[0] * 5 + [10], reward=[1] * 6)
TWO = dict(value=[2, 7], next_value=[8, 100], reward=[1, 1])  # gamma .5, lambda 1: delta_1 = 1 + .5 * 100 - 7 = 44


@pytest.mark.parametrize(
    'rows, gamma, lambda_, adv',
    [
        # rewards 1, V 0 but 10 after the last step, the third step terminal. adv_2 = 1, adv_1 = 1 + .9 * 1 = 1.9,
        # adv_0 = 1 + .9 * 1.9 = 2.71; adv_5 = 1 + .9 * 10 = 10, and so adv_4, adv_3
        (dict(ZEROS, done=[0, 0, 1, 0, 0, 0]), 0.9, 1.0, [2.71, 1.9, 1.0, 10.0, 10.0, 10.0]),
        # delta_1 = 2 + .5 * 4 - 1 = 3; delta_0 = 1 + .5 * 1 - 3 = -1.5; adv_0 = -1.5 + .25 * 3 = -.75
        (dict(value=[3, 1], next_value=[1, 4], reward=[1, 2]), 0.5, 0.5, [-0.75, 3]),
        # row 0 ends by a time limit in a state worth 8: delta_0 = 1 + .5 * 8 - 2 = 3, and nothing of row 1 reaches it
        (dict(TWO, done=[0, 0], traj_flag=[1, 0]), 0.5, 1.0, [3, 44]),
        # the same row, terminal: delta_0 = 1 - 2 = -1
        (dict(TWO, done=[1, 0], traj_flag=[1, 0]), 0.5, 1.0, [-1, 44]),
        # the two flags are independent: done masks the bootstrap only. adv_0 = (1 - 2) + .5 * 44
        (dict(TWO, done=[1, 0], traj_flag=[0, 0]), 0.5, 1.0, [21, 44]),
    ],
    ids=['end after the third', 'two steps', 'truncated', 'terminated', 'done without an end'],
)
def test_gae_by_hand(rows, gamma, lambda_, adv):
    data = gae_data(**{name: torch.tensor(x, dtype=torch.float64) for name, x in rows.items()})
    torch.testing.assert_close(gae(data, gamma, lambda_), torch.tensor(adv, dtype=torch.float64))


@pytest.mark.parametrize('shape', [(1,), (2, 3), (127, 3, 2), (128,)], ids=str)
def test_gae_equals_the_loop(shape):
    data = random_data(shape)
    torch.testing.assert_close(gae(data, 0.99, 0.95), loop_gae(data, 0.99, 0.95), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@given(
    n_step=st.integers(1, 40),
    n_env=st.integers(1, 4),
    seed=st.integers(0, 999),
    gamma=st.floats(0, 1),
    lambda_=st.floats(0, 1),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_gae_equals_the_loop_for_any_discount(n_step, n_env, seed, gamma, lambda_):
    data = random_data((n_step, n_env), seed)
    # float64; at gamma = lambda = 1 some 40 terms of unit size add up
    torch.testing.assert_close(gae(data, gamma, lambda_), loop_gae(data, gamma, lambda_), rtol=1e-11, atol=1e-12)


def test_gae_in_float32_stays_close_to_the_float64_loop():
    data = random_data((128, 8), dtype=torch.float32)
    # log2(128) passes of one rounding each on sums of about ten terms of unit size
    torch.testing.assert_close(gae(data), loop_gae(data, 0.99, 0.95).float(), rtol=1e-5, atol=1e-5)


def test_gae_without_done_is_done_nowhere_and_without_traj_flag_ends_where_done():
    data = random_data((9, 3))
    nowhere = torch.zeros(9, 3, dtype=torch.bool)
    for given_, meant in (
        (dict(done=None), dict(done=nowhere)),
        (dict(done=None, traj_flag=None), dict(done=nowhere, traj_flag=nowhere)),
        (dict(traj_flag=None), dict(traj_flag=data.done)),
    ):
        assert torch.equal(gae(data._replace(**given_)), gae(data._replace(**meant)))


@pytest.mark.parametrize('flag_dtype', [torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize('reward_dtype', [torch.float16, torch.float64])
def test_gae_takes_flags_and_rewards_of_any_dtype_and_has_that_of_value(flag_dtype, reward_dtype):
    value, next_value, reward, done, traj_flag = random_data((7, 2), dtype=torch.float32)
    reward = reward.round()
    got = gae(gae_data(value, next_value, reward.to(reward_dtype), done.to(flag_dtype), traj_flag.to(flag_dtype)))
    assert got.dtype == torch.float32
    assert torch.equal(got, gae(gae_data(value, next_value, reward, done, traj_flag)))


@pytest.mark.parametrize('n_step', [1, 2, 5])
@pytest.mark.parametrize('flags', [True, False])
def test_gae_leaves_its_inputs_and_returns_a_new_tensor_without_gradient(n_step, flags):
    data = random_data((n_step, 2))
    data = data._replace(value=data.value.requires_grad_(), **({} if flags else dict(done=None, traj_flag=None)))
    before = [None if x is None else x.detach().clone() for x in data]
    for adv in (gae(data), *gae_return(data)):
        assert not adv.requires_grad
        adv.fill_(7)
    assert all(x is None or torch.equal(x, y) for x, y in zip(data, before, strict=True))


@pytest.mark.parametrize('name', gae_data._fields)
def test_gae_of_a_number_that_is_not_finite_is_not_finite_in_that_row(name):
    # also where done masks the bootstrap, and in the flag of the last row, which nothing follows: 0 * nan is nan
    value, next_value, reward, _, _ = random_data((6, 2))
    end = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    for row in (0, 3, 5):
        for wrong in (torch.nan, torch.inf):
            data = gae_data(*(x.clone() for x in (value, next_value, reward, end, end)))
            getattr(data, name)[row, 0] = wrong
            adv = gae(data)
            assert not adv[row, 0].isfinite(), (row, wrong)
            assert adv[row + 1 :].isfinite().all() and adv[:, 1].isfinite().all()


def test_gae_return_by_hand():
    # the two steps above: adv -.75 and 3, V 3 and 1; mean 1.125, both 1.875 away from it
    data = gae_data(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 4.0]), torch.tensor([1.0, 2.0]))
    adv, return_, mean, std = gae_return(data, 0.5, 0.5)
    assert (adv.tolist(), return_.tolist(), mean, std) == ([-0.75, 3.0], [2.25, 4.0], 1.125, 1.875)


@pytest.mark.parametrize('shape', [(1,), (7, 3), (7, 3, 2)])
def test_gae_return_is_gae_with_returns_and_moments(shape):
    data = random_data(shape)
    if len(shape) == 3:  # agents share reward and ends
        data = data._replace(**{name: getattr(data, name)[..., 0] for name in ('reward', 'done', 'traj_flag')})
    adv, return_, mean, std = gae_return(data, 0.9, 0.8)
    assert torch.equal(adv, gae(data, 0.9, 0.8)) and torch.equal(return_, adv + data.value)
    assert mean.shape == std.shape == ()
    torch.testing.assert_close(mean, adv.sum() / adv.numel())
    torch.testing.assert_close(std, ((adv - adv.mean()) ** 2).mean().sqrt())


def test_gae_return_of_a_mean_far_above_the_spread_keeps_the_digits_of_std():
    # gamma 0: adv = reward. In float32 sum(adv^2) / n - mean^2 would be off by 1e8 * 6e-8 = 6, against a variance of 1
    reward = 1e4 + torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    zero = torch.zeros_like(reward)
    result = gae_return(gae_data(zero, zero, reward), gamma=0.0)
    torch.testing.assert_close(result.std.double(), reward.double().std(correction=0), rtol=1e-5, atol=0)
    torch.testing.assert_close(result.mean.double(), reward.double().mean(), rtol=1e-6, atol=0)
    equal = torch.full((64, 8), 0.1)
    assert gae_return(gae_data(torch.zeros_like(equal), equal, equal), gamma=0.0).std == 0


def fault(
    *sentence: str, shape: tuple[int, ...] = (4, 2), gamma: float = 0.99, lambda_: float = 0.95, **others: Any
) -> Any:
    """A row of the table below; others: the shape or the dtype of a field."""
    rows = {name: torch.zeros(shape) for name in gae_data._fields}
    rows |= {name: torch.zeros(x) if isinstance(x, tuple) else rows[name].to(x) for name, x in others.items()}
    return pytest.param(gae_data(**rows), gamma, lambda_, sentence, id=' '.join(sentence))


@pytest.mark.parametrize(
    'data, gamma, lambda_, sentence',
    [
        fault('next_value', '(4, 3)', 'value', '(4, 2)', next_value=(4, 3)),
        fault('next_value', '(4,)', 'value', '(4, 2)', next_value=(4,)),
        fault('reward', '(3, 2)', 'value', '(4, 2)', reward=(3, 2)),
        fault('reward', '(4,)', 'value', '(4, 2)', reward=(4,)),
        fault('reward', '(4, 1)', 'value', '(4, 2)', reward=(4, 1)),
        fault('reward', '(4, 2, 1)', 'value', '(4, 2)', reward=(4, 2, 1)),
        fault('done', '(4,)', 'reward', '(4, 2)', done=(4,)),
        fault('done', '(1, 2)', 'reward', '(4, 2)', done=(1, 2)),
        fault('traj_flag', '(4, 1)', 'reward', '(4, 2)', traj_flag=(4, 1)),
        # rewards would broadcast against the last two dimensions, not the first
        fault('(2, 3)', '(2, 3, 2, 3)', shape=(2, 3), value=(2, 3, 2, 3), next_value=(2, 3, 2, 3)),
        *(fault('value has shape', 'and so no elements', shape=shape) for shape in ((0,), (0, 3), (4, 0))),
        fault('value has shape ()', 'give [T]', shape=()),
        *(
            fault(f'{name} has dtype {dtype} but must be floating', **{name: dtype})
            for name in ('value', 'next_value', 'reward')
            for dtype in (torch.int64, torch.bool)
        ),
        *(
            fault(f'{gamma}', f'{lambda_}', gamma=gamma, lambda_=lambda_)
            for gamma, lambda_ in (
                (1.5, 0.9),
                (-0.1, 0.9),
                (0.9, 1.01),
                (0.9, -1.0),
                (torch.nan, 0.9),
                (0.9, torch.nan),
            )
        ),
    ],
)
def test_gae_refuses_and_names_both(data, gamma, lambda_, sentence):
    for function in (gae, gae_return):
        with pytest.raises(ValueError, match='.*'.join(map(re.escape, sentence))):
            function(data, gamma, lambda_)


# ---- scans and sums


@pytest.mark.parametrize('n_row', [1, 2, 3, 5, 8, 127, 128])
def test_linear_scan_equals_the_loop_and_leaves_its_inputs(n_row):
    x, decay = draws(n_row, 2), draws(n_row, 2, seed=1).clamp(-1, 1)
    before = x.clone(), decay.clone()
    want, following = torch.zeros_like(x), torch.zeros(2, dtype=torch.float64)
    for t in reversed(range(n_row)):
        want[t] = following = x[t] + decay[t] * following
    got = linear_scan(x, decay)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    got.fill_(0)
    assert torch.equal(x, before[0]) and torch.equal(decay, before[1])


def test_discounted_sum_by_hand():
    # gamma .5, carry 4, end after row 1: 1 + 4 = 5; 2 + 2.5 = 4.5; a new episode: 3; 4 + 1.5 = 5.5
    reward, end = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([[False], [True], [False], [False]])
    assert discounted_sum(reward, end, torch.tensor([4.0]), 0.5).flatten().tolist() == [5.0, 4.5, 3.0, 5.5]


@pytest.mark.parametrize('n_step', [1, 2, 5, 128])
def test_discounted_sum_equals_the_loop_and_leaves_its_inputs(n_step):
    data = random_data((n_step, 3), seed=n_step)
    reward, end, carry = data.reward, data.traj_flag, data.value[0].clone()
    before = reward.clone(), end.clone(), carry.clone()
    want, total = torch.zeros_like(reward), carry
    for t in range(n_step):
        want[t] = reward[t] + total
        total = 0.97 * want[t] * (~end[t])
    got = discounted_sum(reward, end, carry, 0.97)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    got.fill_(0)
    assert all(torch.equal(x, y) for x, y in zip((reward, end, carry), before, strict=True))


# ---- normalisation


def test_normalize_advantage_by_hand():
    # 1, 2, 6: mean 3, variance (4 + 1 + 9) / 3 = 14 / 3
    adv = torch.tensor([1.0, 2.0, 6.0])
    torch.testing.assert_close(normalize_advantage(adv), torch.tensor([-2.0, -1.0, 3.0]) / (14 / 3) ** 0.5)
    assert adv.tolist() == [1.0, 2.0, 6.0]


@pytest.mark.parametrize('other', [1e6, torch.nan])
@pytest.mark.parametrize('scale', [1.0, 1.5, 0.1])
def test_normalize_advantage_leaves_rows_of_weight_zero_out(scale, other):
    valid = torch.tensor([True, False, True, False, True])
    got = normalize_advantage(torch.tensor([1.0, other, 2.0, -other, 6.0]), scale * valid.float())
    torch.testing.assert_close(got[valid], torch.tensor([-2.0, -1.0, 3.0]) / (14 / 3) ** 0.5)
    assert got.shape == (5,) and (other != other or got.isfinite().all())


@pytest.mark.parametrize('value', [0.0, 3.0, -1e6, 0.1])
def test_normalize_advantage_of_one_row_is_zero(value):
    assert normalize_advantage(torch.tensor([value])).tolist() == [0.0]
    assert normalize_advantage(torch.tensor([5.0, value]), torch.tensor([0.0, 2.0]))[1] == 0


@pytest.mark.parametrize('weighted', [False, True])
def test_normalize_advantage_of_equal_rows_is_only_centred(weighted):
    # the mean of equal float32 numbers may be off by a rounding; divided by itself the error would be an advantage of 1
    for n in (2, 3, 7, 256):
        for value in (0.1, -7.7, 1000.1):
            got = normalize_advantage(torch.full((n,), value), torch.ones(n) if weighted else None)
            torch.testing.assert_close(got, torch.zeros(n), rtol=0, atol=1e-3)


@pytest.mark.parametrize('weighted', [False, True])
def test_normalize_advantage_takes_blocks_each_by_its_own_moments(weighted):
    adv = torch.arange(1, 5).view(4, 1) * draws(4, 9)
    weight = 1.5 * (draws(4, 9, seed=1) > -0.5).float() if weighted else None
    got = normalize_advantage(adv, weight)
    for k in range(4):
        torch.testing.assert_close(got[k], normalize_advantage(adv[k], None if weight is None else weight[k]))


def test_normalize_advantage_keeps_a_small_spread_around_a_large_mean():
    # 100 +- .01 in float32 is real information: the spacing of floats there is 8e-6
    got = normalize_advantage(torch.tensor([99.99, 100.01]))
    torch.testing.assert_close(got, torch.tensor([-1.0, 1.0]), rtol=0, atol=1e-2)


def test_normalize_advantage_where_no_row_counts_is_finite():
    assert normalize_advantage(torch.tensor([1.0, 2.0]), torch.zeros(2)).isfinite().all()
