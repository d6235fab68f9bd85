"""Distribution 'categorical': gradients by hand, the mode, and draws."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.rl_utils.distribution_cases import CPU, generator
from zoo.rl_utils import Categorical


def log(*p: float) -> Tensor:
    """Logits of the probabilities p, shifted by a constant that must not matter."""
    return torch.tensor(p, dtype=torch.float64).log() + 0.7


def test_categorical_gradients_by_hand():
    # p = (.25, .75), action 0, H = .562335. d logp / d logit = (1 - .25, -.75);
    # d H / d logit_j = -p_j (ln p_j + H): -.25 * (-1.386294 + .562335) = .205990 and
    # -.75 * (-.287682 + .562335) = -.205990;  d KL(q || p) / d logit = p - q
    dist, logit = Categorical(2), log(0.25, 0.75).requires_grad_()
    for result, want in (
        (dist.log_prob(logit, torch.tensor(0)), [0.75, -0.75]),
        (dist.entropy(logit), [0.205990, -0.205990]),
        (dist.kl(log(0.5, 0.5), logit), [-0.25, 0.25]),
    ):
        assert torch.autograd.grad(result, logit)[0].tolist() == pytest.approx(want, abs=1e-6)


def test_categorical_mode_is_the_likeliest_choice():
    assert Categorical(3).mode(torch.tensor([[0.1, 3.0, 2.0], [5.0, -torch.inf, 4.0]])).tolist() == [1, 0]


def test_categorical_sample_frequencies_match_the_probabilities():
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.01, 0.0, 0.09, 0.9]])
    n, dist = 40_000, Categorical(4)
    action = dist.sample(p.log() + 3, dist.noise((n, 2), generator(3), CPU))
    assert action.shape == (n, 2) and action.dtype == torch.int64
    for row in range(2):
        count = torch.bincount(action[:, row], minlength=4)
        possible = p[row] > 0
        assert count[~possible].sum() == 0  # a logit of -inf is never drawn
        chi_square = ((count - n * p[row]).square() / (n * p[row]))[possible].sum()
        assert chi_square < 25  # 3 degrees of freedom (2 in the second row): exceeded once in 60,000 seeds


def test_categorical_rows_and_steps_are_drawn_independently():
    # two fair coins agree in half of n steps, and so does one coin with its next step: n/2 +- 5 * sqrt(n)/2
    n, dist = 20_000, Categorical(2)
    action = dist.sample(torch.zeros(2, 2), dist.noise((n, 2), generator(0), CPU))
    bound = 2.5 * math.sqrt(n)
    assert abs(int((action[:, 0] == action[:, 1]).sum()) - n / 2) < bound
    assert abs(int((action[1:, 0] == action[:-1, 0]).sum()) - n / 2) < bound
