"""Head of the Gaussian distribution: its first deviation, its bounds, the names of its parameters."""

from __future__ import annotations

import math

import pytest
import torch

from zoo.core.errors import UserError
from zoo.rl_utils import Gaussian
from zoo.rl_utils.distributions.gaussian import LOG_STD_MAX, LOG_STD_MIN, bounded_log_std


@pytest.mark.parametrize('state_dependent_std', [False, True])
@pytest.mark.parametrize('low, high', [(LOG_STD_MIN, LOG_STD_MAX), (-3.0, -0.5)])
def test_gaussian_head_starts_with_the_given_deviation_and_keeps_it_in_bounds(state_dependent_std, low, high):
    options = {'state_dependent_std': state_dependent_std, 'log_std_init': -1.0}
    if (low, high) != (LOG_STD_MIN, LOG_STD_MAX):  # else the defaults
        options |= {'log_std_min': low, 'log_std_max': high}
    head = Gaussian(2).make_head(4, options)
    sigma = Gaussian(2).split(head(torch.zeros(3, 4)))['sigma']
    torch.testing.assert_close(sigma, torch.full((3, 2), math.exp(-1)))
    free = head.log_std_layer.bias if state_dependent_std else head.log_std
    for value, bound in ((-99.0, low), (99.0, high)):
        torch.nn.init.constant_(free, value)
        sigma = Gaussian(2).split(head(torch.zeros(3, 4)))['sigma']
        torch.testing.assert_close(sigma, torch.full((3, 2), math.exp(bound)))


def test_log_std_has_a_gradient_on_its_bounds_and_none_beyond_them():
    log_std = torch.tensor([-3.5, -3.0, -1.0, 0.5, 0.75], requires_grad=True)
    bounded = bounded_log_std(log_std, -3.0, 0.5)
    bounded.sum().backward()
    assert bounded.tolist() == [-3.0, -3.0, -1.0, 0.5, 0.5] and log_std.grad.tolist() == [0, 1, 1, 1, 0]


@pytest.mark.parametrize('log_std_min, log_std_max', [(-1.0, 2.0), (-10.0, -3.0), (1.0, 0.0)])
def test_gaussian_head_that_would_start_outside_its_bounds_is_refused(log_std_min, log_std_max):
    options = {'log_std_init': -2.0, 'log_std_min': log_std_min, 'log_std_max': log_std_max}
    wanted = (
        f'log_std_init is -2.0 but must lie between log_std_min {log_std_min} and log_std_max {log_std_max}; change'
    )
    with pytest.raises(UserError, match=wanted):
        Gaussian(2).make_head(4, options)


def test_gaussian_head_has_the_parameter_names_of_old_checkpoints():
    names = {name for name, _ in Gaussian(2).make_head(4, {}).named_parameters()}
    assert names == {'mu.weight', 'mu.bias', 'log_std'}
    names = {name for name, _ in Gaussian(2).make_head(4, {'state_dependent_std': True}).named_parameters()}
    assert names == {'mu.weight', 'mu.bias', 'log_std_layer.weight', 'log_std_layer.bias'}
