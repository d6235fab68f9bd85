"""Distribution 'composite': its parts, the order of their parameters, and sums over the parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.rl_utils.distribution_cases import BOX, CPU, N_FEATURE, draw, generator
from zoo.core.action_map import ActionMap
from zoo.core.errors import UserError
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from zoo.rl_utils import Composite, make_dist

ALL = Dict(
    {
        'move': Discrete(4, 2),
        'aim': Dict({'0': BOX, '1': MultiBinary((2,))}, is_tuple=True),
        'tools': MultiDiscrete((2, 3), (0, 5), (2,)),
        'scalar': Box(np.array(-1.0), np.array(1.0)),
    }
)


def make(space: Dict = ALL, name: str = 'auto') -> Composite:
    dist = make_dist(space, name, {'n_feature': N_FEATURE})
    assert isinstance(dist, Composite)
    return dist


def param_of(dist: Composite, *lead: int, seed: int = 0) -> torch.Tensor:
    """Parameters as a head returns them: those of every part are in their range."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = dist.make_head(N_FEATURE, {})
    for p in head.parameters():
        torch.nn.init.normal_(p, generator=generator(seed))
    return head(draw(*lead, N_FEATURE, seed=seed).float()).detach()


def test_parts_follow_the_leaves_and_their_sizes_add_up():
    dist = make()
    assert dist.names == ['move', 'aim.0', 'aim.1', 'tools', 'scalar']
    kinds = ['categorical', 'gaussian', 'bernoulli', 'multi_categorical', 'gaussian']
    assert [part.name for part in dist.parts] == kinds
    assert dist.n_param == 4 + 6 + 2 + 5 + 2 and dist.n_noise == 4 + 3 + 2 + 5 + 1
    assert dist.n_action == 1 + 3 + 2 + 2 + 1 and not dist.is_index
    assert dist.n_mask == 4 + 2 + 5  # real-valued parts take no mask


@pytest.mark.parametrize(
    ('name', 'real'),
    [
        *((name, name) for name in ('beta', 'squashed_gaussian', 'gsde')),
        *((name, 'gaussian') for name in ('bernoulli', 'composite')),
    ],
)
def test_a_name_serves_in_the_leaves_that_it_fits(name, real):
    kinds = ['categorical', real, 'bernoulli', 'multi_categorical', real]
    assert [part.name for part in make(name=name).parts] == kinds


def test_a_name_that_fits_one_of_two_boxes_leaves_the_other_to_the_default():
    space = Dict({'bounded': BOX, 'unbounded': Box(np.array([-np.inf]), np.array([np.inf]))})
    assert [part.name for part in make(space, 'beta').parts] == ['beta', 'gaussian']


BITS = Dict({'a': Discrete(3), 'b': MultiBinary((2,))})
TOO_MANY = "part 'b.c' of the actions has 16777216 choices, but .* fewer than 16777216 are"


@pytest.mark.parametrize(
    'space, name, sentence',
    [
        (BITS, 'beta', r"'beta', which can draw no part of the actions; use .*\(a: categorical, b: bernoulli\)"),
        (BITS, 'betta', "unknown distribution 'betta': did you mean 'beta'"),
        # as many choices as float32 has integers
        (Dict({'a': BOX, 'b': Dict({'c': Discrete(2**24)})}), 'auto', TOO_MANY),
        (Dict({'a': BOX, 'b': Dict({'c': MultiDiscrete((3, 2**24), (0, 0), (2,))})}), 'auto', TOO_MANY),
        (Dict({}), 'auto', 'an empty Dict or Tuple; a policy needs something to choose'),
    ],
)
def test_spaces_and_names_that_do_not_fit_are_refused(space, name, sentence):
    with pytest.raises(UserError, match=sentence):
        make_dist(space, name)


@pytest.mark.parametrize('name', ['auto', 'beta', 'squashed_gaussian', 'gsde'])
def test_numbers_are_the_sums_of_the_parts(name):
    dist = make(name=name)
    p, q = param_of(dist, 20), param_of(dist, 20, seed=1)
    noise = dist.noise((20,), generator(0), CPU)
    action = dist.sample(p, noise)
    assert action.dtype == torch.float32
    sizes = [[getattr(part, key) for part in dist.parts] for key in ('n_param', 'n_noise')]
    ps, qs, noises = p.split(sizes[0], -1), q.split(sizes[0], -1), noise.split(sizes[1], -1)
    own = [part.sample(x, z) for part, x, z in zip(dist.parts, ps, noises, strict=True)]
    columns = [x.unsqueeze(-1).float() if x.dim() == 1 else x.float() for x in own]
    assert torch.equal(action, torch.cat(columns, -1))
    for got, each in (
        (dist.log_prob(p, action), [part.log_prob(x, a) for part, x, a in zip(dist.parts, ps, own, strict=True)]),
        (dist.entropy(p), [part.entropy(x) for part, x in zip(dist.parts, ps, strict=True)]),
        (dist.kl(p, q), [part.kl(x, y) for part, x, y in zip(dist.parts, ps, qs, strict=True)]),
    ):
        torch.testing.assert_close(got, sum(each))
    assert all(torch.equal(x, y) for x, y in zip(dist.split(p).values(), ps, strict=True))


@pytest.mark.slow
def test_indices_up_to_the_limit_survive_as_numbers():
    dist = make(Dict({'a': Discrete(2**24 - 1), 'b': BOX}))
    param = torch.zeros(1, 2**24 - 1 + 6)
    param[0, 2**24 - 2], param[0, -3:] = 100.0, 1.0  # the last three are standard deviations
    action = dist.mode(param)
    assert action[0, 0] == 2**24 - 2 and dist.log_prob(param, action) > -50  # any other index has a log_prob 100 lower


def test_masks_go_to_the_parts_that_take_them_in_their_order():
    dist, p = make(), param_of(make(), 2)
    mask = torch.ones(2, 11, dtype=torch.bool)
    # choice 1 of move, the second bit of aim.1, and choice 1 of entry 1 of tools (4 + 2 + 2 + 1)
    mask[0, [1, 5, 9]] = False
    found = dist.masked(p, mask)
    assert (found == -torch.inf).nonzero().tolist() == [[0, 1], [0, 11], [0, 15]]  # 4 + 6 + 1, 4 + 6 + 2 + 2 + 1
    assert torch.equal(found[1], p[1])
    numbers = make(Dict({'a': BOX}))
    with pytest.raises(UserError, match='take no mask; set env.action_mask=off'):
        numbers.masked(torch.zeros(6), torch.ones(numbers.n_mask, dtype=torch.bool))


@pytest.mark.parametrize('name', ['auto', 'beta', 'squashed_gaussian'])
def test_env_actions_of_bounded_parts_are_in_the_units_of_the_env(name):
    dist = make(name=name)
    p = param_of(dist, 50)
    action = dist.sample(p, dist.noise((50,), generator(0), CPU))
    assert dist.is_bounded == (name != 'auto')
    found = dist.env_action(action)
    assert torch.equal(found[:, [0, 4, 5, 6, 7]], action[:, [0, 4, 5, 6, 7]])
    low, high = torch.tensor(BOX.low).float(), torch.tensor(BOX.high).float()
    if name == 'auto':
        assert torch.equal(found, action)
    else:
        assert (found[:, 1:4] >= low).all() and (found[:, 1:4] <= high).all()
    # the way back moves squashed numbers near a bound to the nearest one that is kept, so both are compared in env units
    torch.testing.assert_close(dist.env_action(dist.from_env_action(found)), found, rtol=0, atol=1e-3)
    torch.testing.assert_close(dist.from_env_action(found)[:, [0, 4, 5, 6, 7]], action[:, [0, 4, 5, 6, 7]])
    env = ActionMap(ALL)(found)  # the result is an action of the space
    assert env['move'].min() >= 2 and env['move'].max() <= 5 and env['aim'][1].shape == (50, 2)
    assert env['tools'].min(0).tolist()[1] >= 5 and env['scalar'].shape == (50,)


def test_a_problem_names_its_part():
    param = torch.zeros(19)
    wanted = "in the part 'aim.0' a sigma that is not above 0; the second half"
    assert make().problem_of(param).startswith(wanted)
    param[7:10], param[18] = 1.0, 1.0
    assert not make().problem_of(param)


def test_an_index_outside_its_part_is_refused():
    action = torch.zeros(2, 9)
    action[1, 0] = 4.0
    with pytest.raises(ValueError, match='action holds 0 to 4 but logit_new has 4 choices'):
        make().log_prob(param_of(make(), 2), action)


def test_actions_of_choices_alone_are_real_numbers_too():
    dist = make(Dict({'a': Discrete(4), 'b': Discrete(3)}))
    with pytest.raises(ValueError, match='action has dtype torch.int64 but must be floating'):
        dist.check_action(torch.zeros(2, 2, dtype=torch.int64), torch.Size((2,)))
