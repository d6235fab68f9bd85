"""Generalised advantages and discounted sums, against numbers worked by hand and plain loops."""
from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zoo.rl_utils.gae import discounted_sum, gae, gae_data, linear_scan


def loop_gae(data: gae_data, gamma: float, lambda_: float) -> Tensor:
    """The recursion of the docstring, row by row in float64; all five fields have one shape."""
    value, next_value, reward, done, traj_flag = (x.double() for x in data)
    adv, following = torch.zeros_like(value), torch.zeros_like(value[0])
    for t in reversed(range(len(value))):
        delta = reward[t] + gamma * next_value[t] * (1 - done[t]) - value[t]
        adv[t] = following = delta + gamma * lambda_ * (1 - traj_flag[t]) * following
    return adv


def random_data(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> gae_data:
    """Values, rewards and ends: a third of the rows end a trace, half of these by termination."""
    generator = torch.Generator().manual_seed(seed)
    value, next_value, reward, end, terminal = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(5))
    traj_flag = end > 0.43
    return gae_data(value, next_value, reward, traj_flag & (terminal > 0), traj_flag)


def test_gae_six_steps_with_an_end_after_the_third():
    # rewards 1, V 0 but 10 after the last step, gamma .9, lambda 1, the third step terminal.
    # adv_2 = 1, adv_1 = 1 + .9 * 1 = 1.9, adv_0 = 1 + .9 * 1.9 = 2.71; adv_5 = 1 + .9 * 10 = 10, and so adv_4, adv_3
    next_value, done = torch.tensor([0., 0., 0., 0., 0., 10.]), torch.tensor([0, 0, 1, 0, 0, 0], dtype=torch.bool)
    adv = gae(gae_data(torch.zeros(6), next_value, torch.ones(6), done), gamma=0.9, lambda_=1.0)
    torch.testing.assert_close(adv, torch.tensor([2.71, 1.9, 1., 10., 10., 10.]))


def test_gae_by_hand_over_two_steps():
    # gamma .5, lambda .5: delta_1 = 2 + .5 * 4 - 1 = 3; delta_0 = 1 + .5 * 1 - 3 = -1.5; adv_0 = -1.5 + .25 * 3 = -.75
    adv = gae(gae_data(torch.tensor([3., 1.]), torch.tensor([1., 4.]), torch.tensor([1., 2.])), 0.5, 0.5)
    assert adv.tolist() == [-0.75, 3.0]


def test_gae_truncated_row_bootstraps_final_value():
    # row 0 ends by a time limit in a state worth 8: delta_0 = 1 + .5 * 8 - 2 = 3, and nothing of row 1 reaches it
    data = gae_data(torch.tensor([2., 7.]), torch.tensor([8., 100.]), torch.tensor([1., 1.]),
                    done=torch.tensor([False, False]), traj_flag=torch.tensor([True, False]))
    assert gae(data, 0.5, 1.0).tolist() == [3.0, 44.0]  # delta_1 = 1 + .5 * 100 - 7


def test_gae_terminated_row_has_no_bootstrap():
    # the same row, terminal: delta_0 = 1 - 2 = -1
    end = torch.tensor([True, False])
    data = gae_data(torch.tensor([2., 7.]), torch.tensor([8., 100.]), torch.tensor([1., 1.]), done=end, traj_flag=end)
    assert gae(data, 0.5, 1.0).tolist() == [-1.0, 44.0]


def test_gae_done_without_trace_end_keeps_the_recursion():
    # the two flags are independent: done masks the bootstrap only. adv_0 = (1 - 2) + .5 * 44
    data = gae_data(torch.tensor([2., 7.]), torch.tensor([8., 100.]), torch.tensor([1., 1.]),
                    done=torch.tensor([True, False]), traj_flag=torch.tensor([False, False]))
    assert gae(data, 0.5, 1.0).tolist() == [21.0, 44.0]


@pytest.mark.parametrize('n_step', [1, 2, 3, 4, 5, 127, 128])
@pytest.mark.parametrize('trail', [(), (3,), (3, 2)])
def test_gae_equals_the_loop(n_step, trail):
    data = random_data((n_step, *trail), seed=n_step)
    torch.testing.assert_close(gae(data, 0.99, 0.95), loop_gae(data, 0.99, 0.95), rtol=1e-12, atol=1e-12)


@given(n_step=st.integers(1, 40), n_env=st.integers(1, 4), seed=st.integers(0, 999),
       gamma=st.floats(0, 1), lambda_=st.floats(0, 1))
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


@pytest.mark.parametrize('reward_dtype', [torch.float32, torch.float64, torch.int64])
def test_gae_has_the_dtype_of_value(reward_dtype):
    value = torch.zeros(4, 2)
    assert gae(gae_data(value, value, torch.ones(4, 2, dtype=reward_dtype))).dtype == torch.float32


def test_gae_of_no_steps_is_empty():
    empty = torch.empty(0, 3)
    assert gae(gae_data(empty, empty, empty)).shape == (0, 3)


@pytest.mark.parametrize('shapes, names', [
    (dict(next_value=(4, 3)), ('next_value', '(4, 3)', 'value', '(4, 2)')),
    (dict(next_value=(4,)), ('next_value', '(4,)', 'value', '(4, 2)')),
    (dict(reward=(3, 2)), ('reward', '(3, 2)', 'value', '(4, 2)')),
    (dict(reward=(4,)), ('reward', '(4,)', 'value', '(4, 2)')),
    (dict(reward=(4, 1)), ('reward', '(4, 1)', 'value', '(4, 2)')),
    (dict(reward=(4, 2, 1)), ('reward', '(4, 2, 1)', 'value', '(4, 2)')),
    (dict(done=(4,)), ('done', '(4,)', 'reward', '(4, 2)')),
    (dict(done=(1, 2)), ('done', '(1, 2)', 'reward', '(4, 2)')),
    (dict(traj_flag=(4, 1)), ('traj_flag', '(4, 1)', 'reward', '(4, 2)')),
])
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


@pytest.mark.parametrize('gamma, lambda_', [
    (1.5, 0.9), (-0.1, 0.9), (0.9, 1.01), (0.9, -1.0), (float('nan'), 0.9), (0.9, float('nan')),
])
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
    reward, end = torch.tensor([[1.], [2.], [3.], [4.]]), torch.tensor([[False], [True], [False], [False]])
    assert discounted_sum(reward, end, torch.tensor([4.]), 0.5).flatten().tolist() == [5.0, 4.5, 3.0, 5.5]


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
