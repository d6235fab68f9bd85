"""Categorical and Gaussian action distributions, against hand-worked numbers, torch.distributions and autograd."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, kl_divergence

from zoo.rl_utils.distribution import Categorical, Gaussian, distribution_of, lead_shape, logit_parts

LEADS = [(), (5,), (3, 4), (2, 3, 2)]


def log(*p: float) -> Tensor:
    """Logits of the probabilities p, off by a constant that must not matter."""
    return torch.tensor(p, dtype=torch.float64).log() + 0.7


def normal(mu: list[float], sigma: list[float]) -> dict[str, Tensor]:
    return {'mu': torch.tensor(mu, dtype=torch.float64), 'sigma': torch.tensor(sigma, dtype=torch.float64)}


def random_categorical(lead: tuple[int, ...], seed: int = 0, n_choice: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        2 * torch.randn(*lead, n_choice, generator=generator, dtype=torch.float64),
        torch.randint(n_choice, lead, generator=generator),
    )


def random_gaussian(lead: tuple[int, ...], seed: int = 0, n_dim: int = 3) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mu, log_sigma, action = (torch.randn(*lead, n_dim, generator=generator, dtype=torch.float64) for _ in range(3))
    return {'mu': mu, 'sigma': (0.5 * log_sigma).exp()}, action


def torch_gaussian(logit: dict[str, Tensor]) -> Independent:
    return Independent(Normal(logit['mu'], logit['sigma']), 1)


# ---- categorical


def test_categorical_numbers_by_hand():
    logit = log(0.25, 0.75)
    assert Categorical.log_prob(logit, torch.tensor(0)).item() == pytest.approx(-math.log(4))
    # -(.25 ln .25 + .75 ln .75) = .346574 + .215762
    assert Categorical.entropy(logit).item() == pytest.approx(0.562335, abs=1e-6)
    # KL((.5, .5) || (.25, .75)) = .5 ln 2 + .5 ln(2/3) = .5 ln(4/3); the other way .25 ln .5 + .75 ln 1.5 = .130812
    assert Categorical.kl(log(0.5, 0.5), logit).item() == pytest.approx(0.5 * math.log(4 / 3))
    assert Categorical.kl(logit, log(0.5, 0.5)).item() == pytest.approx(0.130812, abs=1e-6)


@pytest.mark.parametrize('lead', LEADS)
def test_categorical_equals_torch_distributions(lead):
    (logit, action), (other, _) = random_categorical(lead), random_categorical(lead, seed=1)
    want, want_other = TorchCategorical(logits=logit), TorchCategorical(logits=other)
    torch.testing.assert_close(Categorical.log_prob(logit, action), want.log_prob(action))
    torch.testing.assert_close(Categorical.entropy(logit), want.entropy())
    torch.testing.assert_close(Categorical.kl(logit, other), kl_divergence(want, want_other))


def test_categorical_mode_is_the_likeliest_choice():
    assert Categorical.mode(torch.tensor([[0.1, 3.0, 2.0], [5.0, -torch.inf, 4.0]])).tolist() == [1, 0]


def test_categorical_sample_frequencies_match_the_probabilities():
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.01, 0.0, 0.09, 0.9]])
    n = 40_000
    noise = Categorical.noise(p.log() + 3, n, torch.Generator().manual_seed(3))
    action = Categorical.sample(p.log() + 3, noise)
    assert action.shape == (n, 2) and action.dtype == torch.int64
    for row in range(2):
        count = torch.bincount(action[:, row], minlength=4)
        possible = p[row] > 0
        assert count[~possible].sum() == 0  # a logit of -inf is never drawn
        chi_square = ((count - n * p[row]).square() / (n * p[row]))[possible].sum()
        assert chi_square < 25  # 3 degrees of freedom (2 in the second row): exceeded once in 60,000 seeds


def test_categorical_rows_and_steps_are_drawn_independently():
    # of two fair coins over n steps, and of one coin at successive steps, half agree: n/2 +- 5 * sqrt(n)/2
    n = 20_000
    logit = torch.zeros(2, 2)
    action = Categorical.sample(logit, Categorical.noise(logit, n, torch.Generator().manual_seed(0)))
    bound = 2.5 * math.sqrt(n)
    assert abs(int((action[:, 0] == action[:, 1]).sum()) - n / 2) < bound
    assert abs(int((action[1:, 0] == action[:-1, 0]).sum()) - n / 2) < bound


@pytest.mark.parametrize('logit', [torch.zeros(3, 4), torch.zeros(2, 3, 4, dtype=torch.float64)])
def test_categorical_noise_has_shape_dtype_and_a_reproducible_stream(logit):
    first, second, other = (Categorical.noise(logit, 6, torch.Generator().manual_seed(k)) for k in (1, 1, 2))
    assert first.shape == (6, *logit.shape) and first.dtype == logit.dtype
    assert torch.equal(first, second) and not torch.equal(first, other)
    assert first.isfinite().all()


def test_categorical_masked_choice_counts_for_nothing():
    # with a choice at -inf everything is as without that choice
    (logit, action), (other, _) = random_categorical((6,), n_choice=3), random_categorical((6,), seed=1, n_choice=3)
    never = torch.full((6, 1), -torch.inf, dtype=torch.float64)
    masked, masked_other = torch.cat((logit, never), -1), torch.cat((other, never), -1)
    torch.testing.assert_close(Categorical.log_prob(masked, action), Categorical.log_prob(logit, action))
    torch.testing.assert_close(Categorical.entropy(masked), Categorical.entropy(logit))
    torch.testing.assert_close(Categorical.kl(masked, masked_other), Categorical.kl(logit, other))


def test_categorical_kl_of_logits_far_apart_is_not_cut_off():
    # q = (1, e^-50000): KL((.5, .5) || q) = .5 ln .5 + .5 (ln .5 + 50000) = 25000 - ln 2
    p, q = torch.tensor([0.0, 0.0]), torch.tensor([0.0, -50_000.0])
    assert Categorical.kl(p, q).item() == pytest.approx(25_000 - math.log(2))


@pytest.mark.parametrize('scale', [1.0, 64.0])  # 64: a loss that is scaled up, e.g. for half precision
def test_categorical_entropy_and_kl_have_finite_gradients_at_masked_choices(scale):
    logit = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    other = torch.tensor([[0.5, -1.0, -torch.inf]])
    for result in (Categorical.entropy(logit), Categorical.kl(logit, other)):
        (grad,) = torch.autograd.grad(scale * result.sum(), logit)
        assert grad.isfinite().all() and grad[0, 2] == 0 and grad[0, 0] != 0


def test_categorical_kl_is_infinite_where_the_second_cannot_take_what_the_first_may():
    possible, masked = log(0.5, 0.5), torch.tensor([0.0, -torch.inf], dtype=torch.float64)
    kl, (grad,) = Categorical.kl_terms(possible, (masked,))
    assert kl == torch.inf and grad.tolist() == pytest.approx([0.5, -0.5])
    # the other way: 1 * (ln 1 - ln .5)
    assert Categorical.kl(masked, possible).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize('dtype', [torch.uint8, torch.int32])
def test_categorical_log_prob_takes_any_integer_dtype(dtype):
    logit, action = random_categorical((5,))
    assert torch.equal(Categorical.log_prob(logit, action.to(dtype)), Categorical.log_prob(logit, action))


# ---- Gaussian


def test_gaussian_numbers_by_hand():
    logit, action = normal([0.0, 1.0], [1.0, 2.0]), torch.tensor([1.0, -1.0], dtype=torch.float64)
    # z = (1, -1): -.5 - .5 - ln 1 - ln 2 - ln(2 pi) = -1 - .693147 - 1.837877
    assert Gaussian.log_prob(logit, action).item() == pytest.approx(-3.531024, abs=1e-6)
    # .5 ln(2 pi e) = 1.418939 each, and ln 2
    assert Gaussian.entropy(logit).item() == pytest.approx(3.531024, abs=1e-6)
    # one dimension: ln(2/1) + (1 + (0 - 1)^2) / (2 * 4) - 1/2 = .443147; back: -ln 2 + (4 + 1) / 2 - 1/2 = 1.306853
    p, q = normal([0.0], [1.0]), normal([1.0], [2.0])
    assert Gaussian.kl(p, q).item() == pytest.approx(0.443147, abs=1e-6)
    assert Gaussian.kl(q, p).item() == pytest.approx(1.306853, abs=1e-6)
    # dimensions are independent: two copies have twice the divergence
    twice = Gaussian.kl(normal([0.0, 0.0], [1.0, 1.0]), normal([1.0, 1.0], [2.0, 2.0]))
    assert twice.item() == pytest.approx(0.886294, abs=1e-6)


@pytest.mark.parametrize('lead', LEADS)
def test_gaussian_equals_torch_distributions(lead):
    (logit, action), (other, _) = random_gaussian(lead), random_gaussian(lead, seed=1)
    want, want_other = torch_gaussian(logit), torch_gaussian(other)
    torch.testing.assert_close(Gaussian.log_prob(logit, action), want.log_prob(action))
    torch.testing.assert_close(Gaussian.entropy(logit), want.entropy())
    torch.testing.assert_close(Gaussian.kl(logit, other), kl_divergence(want, want_other))


def test_gaussian_mode_is_the_mean():
    logit, _ = random_gaussian((4,))
    assert torch.equal(Gaussian.mode(logit), logit['mu'])


def test_gaussian_samples_have_the_mean_and_deviation():
    logit, n = normal([0.5, -2.0], [0.1, 3.0]), 40_000
    noise = Gaussian.noise(logit, n, torch.Generator().manual_seed(0))
    action = Gaussian.sample(logit, noise)
    assert action.shape == (n, 2) and action.dtype == torch.float64
    z = (action - logit['mu']) / logit['sigma']
    assert z.mean(0).abs().max() < 5 / math.sqrt(n)  # deviation of a mean: 1 / sqrt(n)
    assert (z.square().mean(0) - 1).abs().max() < 5 * math.sqrt(2 / n)  # of a mean square: sqrt(2 / n)
    assert abs((z[:, 0] * z[:, 1]).mean()) < 5 / math.sqrt(n)


def test_gaussian_noise_has_shape_dtype_and_a_reproducible_stream():
    logit = {'mu': torch.zeros(3, 2), 'sigma': torch.ones(3, 2)}
    first, second, other = (Gaussian.noise(logit, 6, torch.Generator().manual_seed(k)) for k in (1, 1, 2))
    assert first.shape == (6, 3, 2) and first.dtype == torch.float32
    assert torch.equal(first, second) and not torch.equal(first, other)


# ---- both


@pytest.mark.parametrize('dist, make', [(Categorical, random_categorical), (Gaussian, random_gaussian)])
def test_kl_is_zero_to_itself_and_positive_elsewhere(dist, make):
    (p, _), (q, _) = make((200,)), make((200,), seed=1)
    assert dist.kl(p, p).abs().max() < 1e-12
    assert dist.kl(p, q).min() > 0


@pytest.mark.parametrize('dist, make', [(Categorical, random_categorical), (Gaussian, random_gaussian)])
def test_nothing_is_changed_in_place(dist, make):
    logit, action = make((5,))
    other, _ = make((5,), seed=1)
    tensors = (*logit_parts(logit), *logit_parts(other), action, noise := dist.noise(logit, 1, None)[0])
    before = [x.clone() for x in tensors]
    dist.sample(logit, noise), dist.log_prob(logit, action)
    dist.mode(logit), dist.entropy(logit), dist.kl(logit, other)
    saved = dist.terms(logit_parts(logit), other, action)[2]
    kept = [x.clone() for x in saved]
    dist.kl_terms(logit, logit_parts(other))
    dist.pullback(saved, torch.ones(1, 5, dtype=torch.float64), torch.ones((), dtype=torch.float64))
    assert all(torch.equal(x, y) for x, y in zip((*tensors, *saved), (*before, *kept), strict=True))


@pytest.mark.parametrize('dist, make', [(Categorical, random_categorical), (Gaussian, random_gaussian)])
@pytest.mark.parametrize('lead', LEADS)
def test_terms_and_pullback_equal_autograd(dist, make, lead):
    logit, action = make(lead)
    parts = tuple(x.requires_grad_() for x in logit_parts(logit))
    other, _ = make(lead, seed=1)
    logp, entropy = dist.log_prob(logit, action), dist.entropy(logit)
    generator = torch.Generator().manual_seed(5)
    grad_logp, grad_entropy = (torch.randn(lead, generator=generator, dtype=torch.float64) for _ in range(2))
    want = torch.autograd.grad((grad_logp * logp + grad_entropy * entropy).sum(), parts)
    with torch.no_grad():
        log_ratio, got_entropy, saved = dist.terms(parts, other, action)
        got = dist.pullback(saved, grad_logp.reshape(1, -1), grad_entropy.reshape(1, -1))
        wanted_ratio = logp - dist.log_prob(other, action)
    torch.testing.assert_close((log_ratio, got_entropy), (wanted_ratio.reshape(1, -1), entropy.reshape(1, -1)))
    torch.testing.assert_close(tuple(x.view(lead + x.shape[1:]) for x in got), want)
    # a number for all rows, and no gradient in the entropy
    for number in (0.25, None):
        want = torch.autograd.grad(
            (grad_logp * dist.log_prob(logit, action) + (number or 0.0) * dist.entropy(logit)).sum(), parts
        )
        with torch.no_grad():
            got = dist.pullback(saved, grad_logp.reshape(1, -1), number)
        torch.testing.assert_close(tuple(x.view(lead + x.shape[1:]) for x in got), want)


@pytest.mark.parametrize('dist, make', [(Categorical, random_categorical), (Gaussian, random_gaussian)])
@pytest.mark.parametrize('lead', LEADS)
def test_kl_terms_equal_autograd_of_torch_distributions(dist, make, lead):
    (p, _), (q, _) = make(lead), make(lead, seed=1)
    parts = tuple(x.requires_grad_() for x in logit_parts(q))
    as_torch = torch_gaussian if dist is Gaussian else lambda logit: TorchCategorical(logits=logit)
    kl = kl_divergence(as_torch(p), as_torch(q))
    want = torch.autograd.grad(kl.sum(), parts)
    with torch.no_grad():
        got_kl, got = dist.kl_terms(p, parts)
    torch.testing.assert_close(got_kl, kl)
    torch.testing.assert_close(got, want)


def test_categorical_pullback_by_hand():
    # p = (.25, .75), action 0, H = .562335. d logp / d logit = (1 - .25, -.75);
    # d H / d logit_j = -p_j (ln p_j + H): -.25 * (-1.386294 + .562335) = .205990 and
    # -.75 * (-.287682 + .562335) = -.205990
    _, _, saved = Categorical.terms((log(0.25, 0.75),), log(0.5, 0.5), torch.tensor(0))
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    assert Categorical.pullback(saved, one, None)[0][0].tolist() == pytest.approx([0.75, -0.75])
    assert Categorical.pullback(saved, zero, 1.0)[0][0].tolist() == pytest.approx([0.205990, -0.205990], abs=1e-6)


def test_distribution_of_parts_and_lead_shape_follow_the_form_of_the_logit():
    logit = {'mu': torch.zeros(5, 2), 'sigma': torch.ones(5, 2)}
    block = TensorDict(logit, batch_size=[5])  # how a rollout holds it
    assert distribution_of(torch.zeros(5, 3)) is Categorical
    assert distribution_of(logit) is Gaussian and distribution_of(block) is Gaussian
    assert lead_shape(torch.zeros(5, 3)) == lead_shape(logit) == lead_shape(block) == (5,)
    assert [x.mean().item() for x in logit_parts(block)] == [0.0, 1.0]
    assert Gaussian.log_prob(block, torch.zeros(5, 2)).tolist() == pytest.approx([-math.log(2 * math.pi)] * 5)
