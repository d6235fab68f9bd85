"""Behaviour policies: probabilities by hand, masks, and the distributions that each exploration accepts."""

from __future__ import annotations

import math
import re
from typing import Annotated

import pytest
import torch
from pydantic import Field
from torch import Tensor

from zoo.config.components import checked_spec, component_at, make_component, moves
from zoo.config.section import ConfigError
from zoo.core.registry import EXPLORATION_REGISTRY
from zoo.rl_utils.distribution import Bounds
from zoo.rl_utils.distributions.beta import Beta
from zoo.rl_utils.distributions.categorical import Categorical, MultiCategorical
from zoo.rl_utils.distributions.composite import Bernoulli, Composite
from zoo.rl_utils.distributions.gaussian import GSDE, Gaussian, SquashedGaussian
from zoo.rl_utils.exploration import exploration_problem

NAMES = EXPLORATION_REGISTRY.names()
BOUNDS = Bounds((-1.0, -1.0), (1.0, 1.0))
DISCRETE = [Categorical(4), MultiCategorical((2, 3, 2)), Bernoulli(3)]
REAL = [Gaussian(2), SquashedGaussian(BOUNDS), GSDE(2, 5), Beta(BOUNDS)]
MIXED = Composite([('walk', Gaussian(2)), ('jump', Categorical(3))])
BITS = Composite([('turn', MultiCategorical((2, 3))), ('jump', Categorical(3)), ('keys', Bernoulli(2))])


def explore(name: str, dist, logit: Tensor, **options) -> Tensor:
    return make_component(EXPLORATION_REGISTRY, {'type': name, **options})(dist, logit)


def log(*p: float) -> Tensor:
    return torch.tensor(p, dtype=torch.float64).log()


def draws(dist, n: int = 6) -> Tensor:
    """Random parameters of n rows; those of real-valued actions are above 1, as Beta requires."""
    x = torch.randn(n, dist.n_param, generator=torch.Generator().manual_seed(0))
    return x if isinstance(dist, (Categorical, MultiCategorical, Bernoulli)) or dist is BITS else 1 + x.exp()


def name_of(dist) -> str:
    return dist.name


def bit(p: float) -> float:
    return math.log(p / (1 - p))


UNIT, NEVER = Bounds((0.0,), (1.0,)), -math.inf


@pytest.mark.parametrize(
    'name, option, dist, logit, wanted',
    [
        # (.8, .2)^(1/2) = (.8944, .4472): two to one
        ('temperature', 2.0, Categorical(2), log(0.8, 0.2), log(2 / 3, 1 / 3)),
        # odds of 4 to 1 at temperature 2 are 2 to 1
        ('temperature', 2.0, Bernoulli(1), [bit(0.8)], [bit(2 / 3)]),
        # only sigma changes
        ('temperature', 2.0, Gaussian(2), [1.0, -2.0, 0.5, 3.0], [1.0, -2.0, 1.0, 6.0]),
        ('temperature', 2.0, SquashedGaussian(BOUNDS), [1.0, -2.0, 0.5, 3.0], [1.0, -2.0, 1.0, 6.0]),
        # x^2 (1 - x)^4 has the root x^1 (1 - x)^2
        ('temperature', 2.0, Beta(UNIT), [3.0, 5.0], [2.0, 3.0]),
        ('temperature', 2.0, MIXED, [1.0, -2.0, 0.5, 3.0, 2.0, 4.0, 6.0], [1.0, -2.0, 1.0, 6.0, 1.0, 2.0, 3.0]),
        # .9 * (.5, .3, .2) + .1 / 3
        ('epsilon', 0.1, Categorical(3), log(0.5, 0.3, 0.2), log(0.45 + 1 / 30, 0.27 + 1 / 30, 0.18 + 1 / 30)),
        # .9 for the best choice, the first of two equal ones, and .1 / 4 for each
        ('epsilon_greedy', 0.1, Categorical(4), [1.0, 5.0, 5.0, -3.0], log(0.025, 0.925, 0.025, 0.025)),
        # uniform over the choices that a mask allows
        ('epsilon', 0.1, Categorical(4), [0.0, NEVER, 50.0, NEVER], log(0.05, 0.0, 0.95, 0.0)),
        ('epsilon_greedy', 0.1, Categorical(4), [0.0, NEVER, 50.0, NEVER], log(0.05, 0.0, 0.95, 0.0)),
        # .9 * .8 + .05 = .77; a masked bit stays 0
        ('epsilon', 0.1, Bernoulli(2), [bit(0.8), NEVER], [bit(0.77), NEVER]),
        # a bit with logit 0 has the mode 0
        ('epsilon_greedy', 0.1, Bernoulli(3), [2.0, -3.0, 0.0], [bit(0.95), bit(0.05), bit(0.05)]),
    ],
    ids=lambda x: x if isinstance(x, str) else x.name if hasattr(x, 'name') else '',
)
def test_exploration_by_hand(name, option, dist, logit, wanted):
    options = {'temperature' if name == 'temperature' else 'epsilon': option}
    logit, wanted = (torch.as_tensor(x, dtype=torch.float64) for x in (logit, wanted))
    found = explore(name, dist, logit, **options)
    if isinstance(dist, Categorical):  # up to a constant
        found = found.log_softmax(-1)
    torch.testing.assert_close(found, wanted)


def test_temperature_of_gsde_widens_sigma_alone():
    dist, logit = GSDE(2, 5), draws(GSDE(2, 5))
    warm = explore('temperature', dist, logit, temperature=3.0)
    (mu, sigma), (mu_new, sigma_new) = dist.mu_sigma(logit), dist.mu_sigma(warm)
    assert torch.equal(mu_new, mu)
    torch.testing.assert_close(sigma_new, 3 * sigma)


@pytest.mark.parametrize('dist', [*DISCRETE, *REAL, MIXED, BITS], ids=name_of)
def test_temperature_1_and_sample_are_the_policy(dist):
    logit = draws(dist)
    assert explore('sample', dist, logit) is logit
    torch.testing.assert_close(explore('temperature', dist, logit), logit)


@pytest.mark.parametrize('dist', [*DISCRETE, *REAL, MIXED, BITS], ids=name_of)
def test_temperature_orders_entropies(dist):
    # the policies are rather sharp: a squashed Gaussian is most random near sigma .9 and less so beyond
    logit = draws(dist) if dist in DISCRETE or dist is BITS else torch.full((4, dist.n_param), 0.3)
    if isinstance(dist, Beta):
        logit = draws(dist)
    cold, warm = (dist.entropy(explore('temperature', dist, logit, temperature=t)) for t in (0.5, 1.5))
    assert (cold < dist.entropy(logit)).all() and (dist.entropy(logit) < warm).all()


@pytest.mark.parametrize('name', ['epsilon', 'epsilon_greedy'])
def test_epsilon_of_several_choices_is_that_of_each(name):
    dist, logit = MultiCategorical((2, 3, 2)), draws(MultiCategorical((2, 3, 2)))
    found = explore(name, dist, logit, epsilon=0.2)
    each = [explore(name, Categorical(x.shape[-1]), x, epsilon=0.2) for x in logit.split((2, 3, 2), -1)]
    assert torch.equal(found, torch.cat(each, -1))


@pytest.mark.parametrize('name', ['epsilon', 'epsilon_greedy'])
@pytest.mark.parametrize('dist', [*DISCRETE, BITS], ids=name_of)
def test_epsilon_keeps_the_mode_is_uniform_at_1_and_finite_for_huge_logits(name, dist):
    logit = draws(dist)
    assert torch.equal(dist.mode(explore('epsilon_greedy', dist, logit)), dist.mode(logit))
    uniform = dist.entropy(torch.zeros(6, dist.n_param))
    torch.testing.assert_close(dist.entropy(explore(name, dist, logit, epsilon=1.0)), uniform)
    action = dist.mode(-logit)  # the least likely ones
    logp = dist.log_prob(explore(name, dist, logit * 1e4, epsilon=0.1), action)
    assert logp.isfinite().all() and (logp < 0).all()


@pytest.mark.parametrize('name', ['epsilon', 'epsilon_greedy'])
@pytest.mark.parametrize('dist', [*REAL, MIXED], ids=name_of)
def test_epsilon_of_real_actions_is_refused(name, dist):
    problem = exploration_problem(make_component(EXPLORATION_REGISTRY, name), dist)
    wrong = 'gaussian' if dist is MIXED else dist.name
    assert f"policy.collect.exploration is '{name}'" in problem and f'are of a {wrong} distribution' in problem
    assert problem.endswith("use 'sample' or 'temperature'")


@pytest.mark.parametrize('name', NAMES)
def test_every_exploration_is_for_discrete_actions_and_some_are_for_all(name):
    for dist in [*DISCRETE, BITS, *([*REAL, MIXED] if name in ('sample', 'temperature') else [])]:
        assert exploration_problem(make_component(EXPLORATION_REGISTRY, name), dist) == ''


def test_an_own_distribution_is_refused_but_for_sample_and_own_explorations():
    class Own(Gaussian):  # may hold its parameters in another way
        name = 'own'

    assert "use 'sample'" in exploration_problem(make_component(EXPLORATION_REGISTRY, 'temperature'), Own(2))
    assert exploration_problem(make_component(EXPLORATION_REGISTRY, 'sample'), Own(2)) == ''
    assert exploration_problem(lambda dist, logit: logit + 1, Own(2)) == ''


@pytest.mark.parametrize(
    ('name', 'refused', 'taken'),
    [
        ('epsilon', (0.0, 1.1), (0.001, 1.0)),
        ('epsilon_greedy', (0.0, 1.1), (0.001, 1.0)),
        ('temperature', (0.0,), (0.1, 9.0)),
    ],
)
def test_options_out_of_range_are_refused(name, refused, taken):
    key = name.partition('_')[0]
    for value in refused:
        with pytest.raises(ConfigError, match=f'{key} is {value}'):
            make_component(EXPLORATION_REGISTRY, {'type': name, key: value})
    for value in taken:
        make_component(EXPLORATION_REGISTRY, {'type': name, key: value})


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('dist', [Bernoulli(3), BITS], ids=name_of)  # BITS also has parts of one and of several choices
def test_can_be_traced_and_changes_no_input(name, dist):
    torch.compiler.reset()
    part, logit = make_component(EXPLORATION_REGISTRY, name), draws(dist)
    before = logit.clone()
    traced = torch.compile(lambda x: part(dist, x), backend='eager', fullgraph=True, dynamic=False)
    assert torch.equal(traced(logit), part(dist, logit)) and torch.equal(logit, before)


def spec(**options) -> dict:
    return checked_spec(EXPLORATION_REGISTRY, options, 'policy.collect.exploration')


@pytest.fixture
def own(monkeypatch) -> None:
    def mine(dist, logit, *, share: Annotated[float, Field(ge=0, le=1)] = 0.5):
        return logit * share

    def late(dist, logit, *, env_step: int = 0):
        return logit * env_step

    monkeypatch.setitem(EXPLORATION_REGISTRY.entries, 'mine_of_test', mine)
    monkeypatch.setitem(EXPLORATION_REGISTRY.entries, 'late_of_test', late)


@pytest.mark.parametrize(
    ('schedule', 'values'),
    [  # at env steps 0, 25, 50, 1000
        ({'start': 0.5, 'end': 0.1, 'over': 50}, [0.5, 0.3, 0.1, 0.1]),
        ([[0, 1.0], [50, 0.0]], [1.0, 0.5, 0.0, 0.0]),
        ({'points': [[0, 0.4], [50, 0.2]], 'kind': 'step'}, [0.4, 0.4, 0.2, 0.2]),
    ],
)
def test_an_option_that_is_a_schedule_has_its_value_at_an_env_step(schedule, values, own) -> None:
    made = make_component(EXPLORATION_REGISTRY, spec(type='mine_of_test', share=schedule))
    assert moves(made)
    found = [component_at(made, step)(None, torch.ones(1)).item() for step in (0, 25, 50, 1000)]
    assert found == pytest.approx(values)


def test_a_number_is_no_schedule_and_an_option_env_step_is_the_env_step(own) -> None:
    made = make_component(EXPLORATION_REGISTRY, spec(type='mine_of_test', share=0.25))
    assert not moves(made) and component_at(made, 7) is made
    made = make_component(EXPLORATION_REGISTRY, 'late_of_test')
    assert moves(made) and component_at(made, 7)(None, torch.ones(1)).item() == 7


@pytest.mark.parametrize(
    ('name', 'option', 'value', 'said'),
    [
        ('epsilon', 'epsilon', {'start': 2, 'end': 0.1}, 'it reaches 2 but each of its values should be less than'),
        ('epsilon', 'epsilon', {'start': 1, 'end': 0}, 'it reaches 0 but each of its values should be greater than 0'),
        ('temperature', 'temperature', {'start': 0, 'end': 1}, 'it reaches 0 but each of its values should be greater'),
        ('epsilon', 'epsilon', 2, 'must be a number > 0 and <= 1 or {start, end, over} or {points, kind}'),
        ('temperature', 'temperature', [[0, 1.0], [9, 0.0]], 'it reaches 0 but each of its values should be greater'),
    ],
)
def test_every_value_of_a_schedule_is_in_the_range_of_the_option(name, option, value, said) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        spec(type=name, **{option: value})
