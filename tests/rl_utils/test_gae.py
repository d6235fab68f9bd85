"""Generalised advantages, their normalisation and discounted sums, against numbers worked by hand and plain loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zoo.rl_utils.gae import discounted_sum, gae, gae_data, gae_return, linear_scan, normalize_advantage


def loop_gae(data: gae_data, gamma: float, lambda_: float) -> Tensor:
    """The recursion of the docstring, row by row in float64; all five fields have one shape."""
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


def test_gae_six_steps_with_an_end_after_the_third():
    # rewards 1, V 0 but 10 after the last step, gamma .9, lambda 1, the third step terminal.
    # adv_2 = 1, adv_1 = 1 + .9 * 1 = 1.9, adv_0 = 1 + .9 * 1.9 = 2.71; adv_5 = 1 + .9 * 10 = 10, and so adv_4, adv_3
    next_value, done = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 10.0]), torch.tensor([0, 0, 1, 0, 0, 0], dtype=torch.bool)
    adv = gae(gae_data(torch.zeros(6), next_value, torch.ones(6), done), gamma=0.9, lambda_=1.0)
    torch.testing.assert_close(adv, torch.tensor([2.71, 1.9, 1.0, 10.0, 10.0, 10.0]))


def test_gae_by_hand_over_two_steps():
    # gamma .5, lambda .5: delta_1 = 2 + .5 * 4 - 1 = 3; delta_0 = 1 + .5 * 1 - 3 = -1.5; adv_0 = -1.5 + .25 * 3 = -.75
    adv = gae(gae_data(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 4.0]), torch.tensor([1.0, 2.0])), 0.5, 0.5)
    assert adv.tolist() == [-0.75, 3.0]


def test_gae_truncated_row_bootstraps_final_value():
    # row 0 ends by a time limit in a state worth 8: delta_0 = 1 + .5 * 8 - 2 = 3, and nothing of row 1 reaches it
    data = gae_data(
        torch.tensor([2.0, 7.0]),
        torch.tensor([8.0, 100.0]),
        torch.tensor([1.0, 1.0]),
        done=torch.tensor([False, False]),
        traj_flag=torch.tensor([True, False]),
    )
    assert gae(data, 0.5, 1.0).tolist() == [3.0, 44.0]  # delta_1 = 1 + .5 * 100 - 7


def test_gae_terminated_row_has_no_bootstrap():
    # the same row, terminal: delta_0 = 1 - 2 = -1
    end = torch.tensor([True, False])
    data = gae_data(
        torch.tensor([2.0, 7.0]), torch.tensor([8.0, 100.0]), torch.tensor([1.0, 1.0]), done=end, traj_flag=end
    )
    assert gae(data, 0.5, 1.0).tolist() == [-1.0, 44.0]


def test_gae_done_without_trace_end_keeps_the_recursion():
    # the two flags are independent: done masks the bootstrap only. adv_0 = (1 - 2) + .5 * 44
    data = gae_data(
        torch.tensor([2.0, 7.0]),
        torch.tensor([8.0, 100.0]),
        torch.tensor([1.0, 1.0]),
        done=torch.tensor([True, False]),
        traj_flag=torch.tensor([False, False]),
    )
    assert gae(data, 0.5, 1.0).tolist() == [21.0, 44.0]


@pytest.mark.parametrize('n_step', [1, 2, 3, 4, 5, 127, 128])
@pytest.mark.parametrize('trail', [(), (3,), (3, 2)])
def test_gae_equals_the_loop(n_step, trail):
    data = random_data((n_step, *trail), seed=n_step)
    torch.testing.assert_close(gae(data, 0.99, 0.95), loop_gae(data, 0.99, 0.95), rtol=1e-12, atol=1e-12)


@given(
    n_step=st.integers(1, 40),
    n_env=st.integers(1, 4),
    seed=st.integers(0, 999),
    gamma=st.floats(0, 1),
    lambda_=st.floats(0, 1),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_gae_equals_the_loop_for_any_discount(n_step, n_env, seed, gamma, lambda_):
    data = random_data((n_step, n_env), seed)
    # float64; at gamma = lambda = 1 some 40 terms of unit size add up
    torch.testing.assert_close(gae(data, gamma, lambda_), loop_gae(data, gamma, lambda_), rtol=1e-11, atol=1e-12)


def test_gae_in_float32_stays_close_to_the_float64_loop():
    data = random_data((128, 8), dtype=torch.float32)
    # log2(128) passes of one rounding each on sums of about ten terms of unit size
    torch.testing.assert_close(gae(data), loop_gae(data, 0.99, 0.95).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('shape', [(5,), (5, 3), (5, 3, 2)])
def test_gae_without_done_is_done_nowhere(shape):
    value, next_value, reward, _, traj_flag = random_data(shape)
    nowhere = torch.zeros(shape, dtype=torch.bool)
    for flag in (None, traj_flag):
        adv = gae(gae_data(value, next_value, reward, None, flag))
        assert torch.equal(adv, gae(gae_data(value, next_value, reward, nowhere, nowhere if flag is None else flag)))


def test_gae_without_traj_flag_ends_where_done():
    value, next_value, reward, done, _ = random_data((9, 3))
    both = gae_data(value, next_value, reward, done, done)
    assert torch.equal(gae(both._replace(traj_flag=None)), gae(both))


def test_gae_agents_share_reward_and_ends():
    value, next_value, *_ = random_data((6, 3, 2))
    _, _, reward, done, traj_flag = random_data((6, 3), seed=1)
    adv = gae(gae_data(value, next_value, reward, done, traj_flag))
    for agent in range(2):
        alone = gae_data(value[..., agent], next_value[..., agent], reward, done, traj_flag)
        torch.testing.assert_close(adv[..., agent], loop_gae(alone, 0.99, 0.95), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('flag_dtype', [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_gae_takes_flags_of_any_dtype(flag_dtype):
    value, next_value, reward, done, traj_flag = random_data((7, 2))
    got = gae(gae_data(value, next_value, reward, done.to(flag_dtype), traj_flag.to(flag_dtype)))
    assert torch.equal(got, gae(gae_data(value, next_value, reward, done, traj_flag)))


@pytest.mark.parametrize('n_step', [1, 2, 5])
@pytest.mark.parametrize('flags', [True, False])
def test_gae_leaves_its_inputs_and_returns_a_new_tensor(n_step, flags):
    data = random_data((n_step, 2))
    data = data if flags else data._replace(done=None, traj_flag=None)
    before = [None if x is None else x.clone() for x in data]
    adv = gae(data)
    adv.fill_(7)
    assert all(x is None or torch.equal(x, y) for x, y in zip(data, before, strict=True))


def test_gae_has_no_gradient():
    value = torch.ones(4, requires_grad=True)
    assert not gae(gae_data(value, value, torch.ones(4))).requires_grad


@pytest.mark.parametrize('reward_dtype', [torch.float32, torch.float64, torch.float16])
def test_gae_has_the_dtype_of_value(reward_dtype):
    value = torch.zeros(4, 2)
    assert gae(gae_data(value, value, torch.ones(4, 2, dtype=reward_dtype))).dtype == torch.float32


@pytest.mark.parametrize('shape', [(5,), (5, 1), (5, 1, 1)])
def test_gae_of_one_env_is_the_same_in_every_shape(shape):
    flat = random_data((5,))
    data = gae_data(*(x.view(shape) for x in flat))
    torch.testing.assert_close(gae(data).flatten(), gae(flat), rtol=1e-14, atol=1e-14)
    shared = data._replace(**{name: getattr(data, name)[..., 0] for name in ('reward', 'done', 'traj_flag')})
    if len(shape) == 3:
        torch.testing.assert_close(gae(shared).flatten(), gae(flat), rtol=1e-14, atol=1e-14)


def test_gae_does_not_mix_envs():
    data = random_data((9, 5))
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(gae(gae_data(*(x[:, order] for x in data))), gae(data)[:, order], rtol=0, atol=0)


def test_gae_is_linear_in_reward_and_values():
    value, next_value, reward, done, traj_flag = random_data((9, 2))
    scaled = gae(gae_data(4 * value, 4 * next_value, 4 * reward, done, traj_flag))
    assert torch.equal(scaled, 4 * gae(gae_data(value, next_value, reward, done, traj_flag)))  # powers of 2 are exact


@pytest.mark.parametrize('wrong', [float('nan'), float('inf')])
@pytest.mark.parametrize('row', [0, 3, 5])
@pytest.mark.parametrize('name', gae_data._fields)
def test_gae_of_a_number_that_is_not_finite_is_not_finite_in_that_row(name, row, wrong):
    # also where done masks the bootstrap and where the flag of the last row carries nothing: 0 * nan is nan
    value, next_value, reward, _, _ = random_data((6, 2))
    end = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    data = gae_data(*(x.clone() for x in (value, next_value, reward, end, end)))
    getattr(data, name)[row, 0] = wrong
    adv = gae(data)
    assert not adv[row, 0].isfinite()
    assert adv[row + 1 :].isfinite().all() and adv[:, 1].isfinite().all()


def test_gae_return_by_hand():
    # the two steps above: adv -.75 and 3, V 3 and 1; mean 1.125, both 1.875 away from it
    data = gae_data(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 4.0]), torch.tensor([1.0, 2.0]))
    result = gae_return(data, 0.5, 0.5)
    assert result.adv.tolist() == [-0.75, 3.0] and result.return_.tolist() == [2.25, 4.0]
    assert result.mean.item() == 1.125 and result.std.item() == 1.875


@pytest.mark.parametrize('shape', [(1,), (7,), (7, 3), (7, 3, 2)])
def test_gae_return_is_gae_with_returns_and_moments(shape):
    data = random_data(shape)
    if len(shape) == 3:  # agents share reward and ends
        data = data._replace(**{name: getattr(data, name)[..., 0] for name in ('reward', 'done', 'traj_flag')})
    before = [x.clone() for x in data]
    adv, return_, mean, std = gae_return(data, 0.9, 0.8)
    assert torch.equal(adv, gae(data, 0.9, 0.8)) and torch.equal(return_, adv + data.value)
    assert mean.shape == std.shape == ()
    torch.testing.assert_close(mean, adv.sum() / adv.numel())
    torch.testing.assert_close(std, ((adv - adv.mean()) ** 2).mean().sqrt())
    for x in (adv, return_):
        x.fill_(7)
    assert all(torch.equal(x, y) for x, y in zip(data, before, strict=True))


def test_gae_return_of_a_mean_far_above_the_spread_keeps_the_digits_of_std():
    # gamma 0: adv = reward. In float32 sum(adv^2) / n - mean^2 would be off by 1e8 * 6e-8 = 6, against a variance of 1
    reward = 1e4 + torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    zero = torch.zeros_like(reward)
    result = gae_return(gae_data(zero, zero, reward), gamma=0.0)
    torch.testing.assert_close(result.std.double(), reward.double().std(correction=0), rtol=1e-5, atol=0)
    torch.testing.assert_close(result.mean.double(), reward.double().mean(), rtol=1e-6, atol=0)


def test_gae_return_of_equal_advantages_has_no_spread():
    x = torch.full((64, 8), 0.1)
    assert gae_return(gae_data(torch.zeros_like(x), x, x), gamma=0.0).std == 0


def test_gae_return_has_no_gradient():
    value = torch.ones(4, requires_grad=True)
    assert not any(x.requires_grad for x in gae_return(gae_data(value, value, torch.ones(4))))


@pytest.mark.parametrize('shape', [(0,), (0, 3), (4, 0)])
def test_gae_refuses_empty_tensors(shape):
    x = torch.empty(shape)
    with pytest.raises(ValueError, match='value has shape .* and so no elements'):
        gae(gae_data(x, x, x))


def test_gae_refuses_values_without_time():
    x = torch.zeros(())
    with pytest.raises(ValueError, match=r'value has shape \(\).*give \[T\]'):
        gae(gae_data(x, x, x))


@pytest.mark.parametrize('name', ['value', 'next_value', 'reward'])
@pytest.mark.parametrize('dtype', [torch.int64, torch.bool])
def test_gae_refuses_a_dtype_that_is_not_floating(name, dtype):
    data = random_data((4, 2))
    with pytest.raises(ValueError, match=f'^{name} has dtype {dtype} but must be floating'):
        gae(data._replace(**{name: getattr(data, name).to(dtype)}))


def test_gae_return_refuses_what_gae_refuses():
    x = torch.zeros(4)
    with pytest.raises(ValueError, match=r'next_value has shape \(3,\) but value \(4,\)'):
        gae_return(gae_data(x, x[:3], x))
    with pytest.raises(ValueError, match='gamma is 1.5'):
        gae_return(gae_data(x, x, x), gamma=1.5)


@pytest.mark.parametrize(
    'shapes, names',
    [
        (dict(next_value=(4, 3)), ('next_value', '(4, 3)', 'value', '(4, 2)')),
        (dict(next_value=(4,)), ('next_value', '(4,)', 'value', '(4, 2)')),
        (dict(reward=(3, 2)), ('reward', '(3, 2)', 'value', '(4, 2)')),
        (dict(reward=(4,)), ('reward', '(4,)', 'value', '(4, 2)')),
        (dict(reward=(4, 1)), ('reward', '(4, 1)', 'value', '(4, 2)')),
        (dict(reward=(4, 2, 1)), ('reward', '(4, 2, 1)', 'value', '(4, 2)')),
        (dict(done=(4,)), ('done', '(4,)', 'reward', '(4, 2)')),
        (dict(done=(1, 2)), ('done', '(1, 2)', 'reward', '(4, 2)')),
        (dict(traj_flag=(4, 1)), ('traj_flag', '(4, 1)', 'reward', '(4, 2)')),
    ],
)
def test_gae_shape_errors_name_both(shapes, names):
    want = dict.fromkeys(gae_data._fields, (4, 2)) | shapes
    with pytest.raises(ValueError) as error:
        gae(gae_data(**{name: torch.zeros(shape) for name, shape in want.items()}))
    assert all(name in str(error.value) for name in names)


def test_gae_refuses_values_with_two_more_dimensions_than_rewards():
    # [2, 3] rewards would broadcast against the last two dimensions of [2, 3, 2, 3] values, not the first
    value = torch.zeros(2, 3, 2, 3)
    with pytest.raises(ValueError, match=r'\(2, 3\).*\(2, 3, 2, 3\)'):
        gae(gae_data(value, value, torch.zeros(2, 3)))


@pytest.mark.parametrize(
    'gamma, lambda_',
    [
        (1.5, 0.9),
        (-0.1, 0.9),
        (0.9, 1.01),
        (0.9, -1.0),
        (float('nan'), 0.9),
        (0.9, float('nan')),
    ],
)
def test_gae_refuses_factors_outside_0_to_1(gamma, lambda_):
    x = torch.zeros(3)
    with pytest.raises(ValueError) as error:
        gae(gae_data(x, x, x), gamma, lambda_)
    assert str(gamma) in str(error.value) and str(lambda_) in str(error.value)


@pytest.mark.parametrize('n_row', [1, 2, 3, 4, 5, 8, 9, 127, 128])
def test_linear_scan_equals_the_loop_and_leaves_its_inputs(n_row):
    generator = torch.Generator().manual_seed(n_row)
    x, decay = (torch.randn(n_row, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    decay = decay.clamp(-1, 1)
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


@pytest.mark.parametrize('n_step', [1, 2, 3, 4, 5, 127, 128])
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


def test_discounted_sum_of_two_halves_is_that_of_the_whole():
    data = random_data((20, 3))
    reward, end = data.reward, data.traj_flag
    nothing = torch.zeros(3, dtype=torch.float64)
    whole = discounted_sum(reward, end, nothing, 0.9)
    first = discounted_sum(reward[:8], end[:8], nothing, 0.9)
    second = discounted_sum(reward[8:], end[8:], 0.9 * first[-1] * (~end[7]), 0.9)
    torch.testing.assert_close(torch.cat((first, second)), whole, rtol=1e-12, atol=1e-12)


# ---- normalisation


def test_normalize_advantage_by_hand():
    # 1, 2, 6: mean 3, variance (4 + 1 + 9) / 3 = 14 / 3
    adv = torch.tensor([1.0, 2.0, 6.0])
    torch.testing.assert_close(normalize_advantage(adv), torch.tensor([-2.0, -1.0, 3.0]) / (14 / 3) ** 0.5)
    assert adv.tolist() == [1.0, 2.0, 6.0]


def test_normalize_advantage_has_mean_zero_and_deviation_one():
    adv = normalize_advantage(5 + 3 * draws(1000))
    assert abs(adv.mean()) < 1e-12 and adv.std(correction=0).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize('scale', [1.0, 1.5, 0.1])
def test_normalize_advantage_leaves_rows_of_weight_zero_out(scale):
    valid = torch.tensor([True, False, True, False, True])
    adv = torch.tensor([1.0, 1e6, 2.0, -1e6, 6.0])
    got = normalize_advantage(adv, scale * valid.float())
    torch.testing.assert_close(got[valid], normalize_advantage(adv[valid]))
    assert got.shape == (5,) and got.isfinite().all()


def test_normalize_advantage_with_equal_weights_is_without():
    adv = draws(9)
    torch.testing.assert_close(normalize_advantage(adv, torch.full((9,), 0.3)), normalize_advantage(adv))


@pytest.mark.parametrize('value', [0.0, 3.0, -1e6, 0.1])
def test_normalize_advantage_of_one_row_is_zero(value):
    assert normalize_advantage(torch.tensor([value])).tolist() == [0.0]
    assert normalize_advantage(torch.tensor([5.0, value]), torch.tensor([0.0, 2.0]))[1] == 0


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('value', [0.1, -7.7, 1000.1])
@pytest.mark.parametrize('n', [2, 3, 7, 256])
def test_normalize_advantage_of_equal_rows_is_only_centred(value, n, weighted):
    # the mean of equal float32 numbers may be off by a rounding; divided by itself that would be an advantage of 1
    adv = torch.full((n,), value)
    got = normalize_advantage(adv, torch.ones(n) if weighted else None)
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


def test_normalize_advantage_takes_nothing_from_a_row_without_weight() -> None:
    # of 1 and 3: mean 2, std 1
    adv, weight = torch.tensor([1.0, torch.nan, 3.0]), torch.tensor([1.5, 0.0, 1.5])
    assert normalize_advantage(adv, weight)[[0, 2]].tolist() == pytest.approx([-1.0, 1.0])
