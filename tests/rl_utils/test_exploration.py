"""Behaviour policies: probabilities by hand, masks, and which distributions each exploration is for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from zoo.config.components import make_part, summary_of
from zoo.config.section import ConfigError
from zoo.core.registry import EXPLORATION_REGISTRY
from zoo.rl_utils.distribution import Bounds
from zoo.rl_utils.distributions.bernoulli import Bernoulli
from zoo.rl_utils.distributions.beta import Beta
from zoo.rl_utils.distributions.categorical import Categorical, MultiCategorical
from zoo.rl_utils.distributions.composite import Composite
from zoo.rl_utils.distributions.gaussian import GSDE, Gaussian, SquashedGaussian
from zoo.rl_utils.exploration import exploration_problem

NAMES = EXPLORATION_REGISTRY.names()
BOUNDS = Bounds((-1.0, -1.0), (1.0, 1.0))
DISCRETE = [Categorical(4), MultiCategorical((2, 3, 2)), Bernoulli(3)]
REAL = [Gaussian(2), SquashedGaussian(BOUNDS), GSDE(2, 5), Beta(BOUNDS)]
MIXED = Composite([('walk', Gaussian(2)), ('jump', Categorical(3))])
BITS = Composite([('turn', MultiCategorical((2, 3))), ('jump', Categorical(3)), ('keys', Bernoulli(2))])


def explore(name: str, dist, logit: Tensor, **options) -> Tensor:
    return make_part(EXPLORATION_REGISTRY, {'type': name, **options})(dist, logit)


def log(*p: float) -> Tensor:
    return torch.tensor(p, dtype=torch.float64).log()


def draws(dist, n: int = 6) -> Tensor:
    """Parameters of n rows; of real ones all above 1, as Beta wants them."""
    x = torch.randn(n, dist.n_param, generator=torch.Generator().manual_seed(0))
    return x if isinstance(dist, (Categorical, MultiCategorical, Bernoulli)) or dist is BITS else 1 + x.exp()


def name_of(dist) -> str:
    return dist.name


def test_sample_is_the_policy_itself():
    logit = log(0.5, 0.5)
    assert explore('sample', Categorical(2), logit) is logit


def test_temperature_of_choices_by_hand():
    # (.8, .2)^(1/2) = (.8944, .4472): two to one
    found = explore('temperature', Categorical(2), log(0.8, 0.2), temperature=2.0)
    torch.testing.assert_close(found.softmax(-1), torch.tensor([2 / 3, 1 / 3], dtype=torch.float64))


def test_temperature_of_bits_by_hand():
    # odds of 4 to 1 at temperature 2 are 2 to 1
    found = explore('temperature', Bernoulli(1), torch.tensor([math.log(4.0)]), temperature=2.0)
    assert found.sigmoid().item() == pytest.approx(2 / 3)


def test_temperature_of_a_gaussian_widens_sigma_alone():
    logit = torch.tensor([1.0, -2.0, 0.5, 3.0])
    for dist in (Gaussian(2), SquashedGaussian(BOUNDS)):
        assert explore('temperature', dist, logit, temperature=2.0).tolist() == [1.0, -2.0, 1.0, 6.0]


def test_temperature_of_gsde_widens_sigma_alone():
    dist, logit = GSDE(2, 5), draws(GSDE(2, 5))
    (mu, sigma), (mu_new, sigma_new) = (
        dist.mu_sigma(logit),
        dist.mu_sigma(explore('temperature', dist, logit, temperature=3.0)),
    )
    assert torch.equal(mu_new, mu)
    torch.testing.assert_close(sigma_new, 3 * sigma)


def test_temperature_of_beta_is_a_power_of_the_density():
    # x^2 (1 - x)^4 has the root x^1 (1 - x)^2
    dist = Beta(Bounds((0.0,), (1.0,)))
    assert explore('temperature', dist, torch.tensor([3.0, 5.0]), temperature=2.0).tolist() == [2.0, 3.0]


@pytest.mark.parametrize('dist', [*DISCRETE, *REAL, MIXED, BITS], ids=name_of)
def test_temperature_1_is_the_policy(dist):
    logit = draws(dist)
    torch.testing.assert_close(explore('temperature', dist, logit), logit)


@pytest.mark.parametrize('dist', [*DISCRETE, *REAL, MIXED, BITS], ids=name_of)
def test_temperature_orders_entropies(dist):
    # rather sharp policies; a squashed Gaussian is most random near sigma .9 and less so beyond
    logit = draws(dist) if dist in DISCRETE or dist is BITS else torch.full((4, dist.n_param), 0.3)
    if isinstance(dist, Beta):
        logit = draws(dist)
    cold, warm = (dist.entropy(explore('temperature', dist, logit, temperature=t)) for t in (0.5, 1.5))
    assert (cold < dist.entropy(logit)).all() and (dist.entropy(logit) < warm).all()


def test_epsilon_by_hand():
    # .9 * (.5, .3, .2) + .1 / 3
    found = explore('epsilon', Categorical(3), log(0.5, 0.3, 0.2), epsilon=0.1)
    wanted = torch.tensor([0.45, 0.27, 0.18], dtype=torch.float64) + 0.1 / 3
    torch.testing.assert_close(found.exp(), wanted)


def test_epsilon_greedy_by_hand():
    # .9 of the best, the first of two equal ones, and .1 / 4 of each
    found = explore('epsilon_greedy', Categorical(4), torch.tensor([1.0, 5.0, 5.0, -3.0]), epsilon=0.1)
    torch.testing.assert_close(found.exp(), torch.tensor([0.025, 0.925, 0.025, 0.025]))


@pytest.mark.parametrize('name', ['epsilon', 'epsilon_greedy'])
def test_epsilon_draws_evenly_from_what_a_mask_allows(name):
    logit = torch.tensor([[0.0, -math.inf, 50.0, -math.inf]])
    found = explore(name, Categorical(4), logit, epsilon=0.1)
    torch.testing.assert_close(found.exp(), torch.tensor([[0.05, 0.0, 0.95, 0.0]]))
    assert found[0, 1] == found[0, 3] == -math.inf


@pytest.mark.parametrize('name', ['epsilon', 'epsilon_greedy'])
def test_epsilon_of_several_choices_is_that_of_each(name):
    dist, logit = MultiCategorical((2, 3, 2)), draws(MultiCategorical((2, 3, 2)))
    found = explore(name, dist, logit, epsilon=0.2)
    each = [explore(name, Categorical(x.shape[-1]), x, epsilon=0.2) for x in logit.split((2, 3, 2), -1)]
    assert torch.equal(found, torch.cat(each, -1))


def test_epsilon_of_bits_by_hand():
    # .9 * .8 + .05 = .77; a bit that may not be 1 stays 0
    found = explore('epsilon', Bernoulli(2), torch.tensor([math.log(4.0), -math.inf]), epsilon=0.1)
    assert found[0].sigmoid().item() == pytest.approx(0.77) and found[1] == -math.inf


def test_epsilon_greedy_of_bits_by_hand():
    found = explore('epsilon_greedy', Bernoulli(3), torch.tensor([2.0, -3.0, 0.0]), epsilon=0.1)
    torch.testing.assert_close(found.sigmoid(), torch.tensor([0.95, 0.05, 0.05]))  # the mode at 0 is 0


@pytest.mark.parametrize('dist', [*DISCRETE, BITS], ids=name_of)
def test_epsilon_greedy_has_the_mode_of_the_policy(dist):
    logit = draws(dist)
    assert torch.equal(dist.mode(explore('epsilon_greedy', dist, logit)), dist.mode(logit))


@pytest.mark.parametrize('name', ['epsilon', 'epsilon_greedy'])
@pytest.mark.parametrize('dist', [*DISCRETE, BITS], ids=name_of)
def test_epsilon_of_huge_logits_stays_finite(name, dist):
    action = dist.mode(-draws(dist))  # the least likely ones
    logp = dist.log_prob(explore(name, dist, draws(dist) * 1e4, epsilon=0.1), action)
    assert logp.isfinite().all() and (logp < 0).all()


@pytest.mark.parametrize('name', ['epsilon', 'epsilon_greedy'])
def test_epsilon_1_is_uniform(name):
    for dist in DISCRETE:
        uniform = dist.entropy(torch.zeros(6, dist.n_param))
        torch.testing.assert_close(dist.entropy(explore(name, dist, draws(dist), epsilon=1.0)), uniform)


def test_a_composite_explores_in_each_part():
    logit = torch.tensor([[1.0, -2.0, 0.5, 3.0, 2.0, 4.0, 6.0]])
    found = explore('temperature', MIXED, logit, temperature=2.0)
    assert found.tolist() == [[1.0, -2.0, 1.0, 6.0, 1.0, 2.0, 3.0]]


@pytest.mark.parametrize('name', ['epsilon', 'epsilon_greedy'])
@pytest.mark.parametrize('dist', [*REAL, MIXED], ids=name_of)
def test_epsilon_of_real_actions_is_refused(name, dist):
    problem = exploration_problem(make_part(EXPLORATION_REGISTRY, name), dist)
    wrong = 'gaussian' if dist is MIXED else dist.name
    assert f"policy.collect.exploration is '{name}'" in problem and f'are of a {wrong} distribution' in problem
    assert problem.endswith("use 'sample' or 'temperature'")


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('dist', [*DISCRETE, BITS], ids=name_of)
def test_every_exploration_is_for_discrete_actions(name, dist):
    assert exploration_problem(EXPLORATION_REGISTRY.get(name), dist) == ''


@pytest.mark.parametrize('dist', [*REAL, MIXED], ids=name_of)
def test_sample_and_temperature_are_for_all_built_in_distributions(dist):
    for name in ('sample', 'temperature'):
        assert exploration_problem(make_part(EXPLORATION_REGISTRY, name), dist) == ''


def test_an_own_distribution_is_refused_but_for_sample_and_own_explorations():
    class Own(Gaussian):  # may hold its parameters in another way
        name = 'own'

    assert "use 'sample'" in exploration_problem(make_part(EXPLORATION_REGISTRY, 'temperature'), Own(2))
    assert exploration_problem(make_part(EXPLORATION_REGISTRY, 'sample'), Own(2)) == ''
    assert exploration_problem(lambda dist, logit: logit + 1, Own(2)) == ''


@pytest.mark.parametrize('spec', [{'type': 'epsilon', 'epsilon': 0.0}, {'type': 'temperature', 'temperature': 0.0}])
def test_options_out_of_range_are_refused(spec):
    with pytest.raises(ConfigError):
        make_part(EXPLORATION_REGISTRY, spec)


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('dist', [*DISCRETE, BITS], ids=name_of)
def test_can_be_traced_and_changes_no_input(name, dist):
    torch._dynamo.reset()
    part, logit = make_part(EXPLORATION_REGISTRY, name), draws(dist)
    before = logit.clone()
    traced = torch.compile(lambda x: part(dist, x), backend='eager', fullgraph=True, dynamic=False)
    assert torch.equal(traced(logit), part(dist, logit)) and torch.equal(logit, before)


@pytest.mark.parametrize('name', NAMES)
def test_has_a_summary(name):
    assert summary_of(EXPLORATION_REGISTRY.get(name)).endswith('.')
