"""Distribution 'multi_categorical': bit-equal to 'categorical' with one entry, a sum of it with several."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.rl_utils.distribution_cases import CPU, draw, generator
from zoo.core.spaces import Discrete, MultiDiscrete
from zoo.rl_utils import Categorical, MultiCategorical, make_dist

NVECS = [(4,), (3, 3), (2, 2, 5), (3, 5, 2, 7), (2, 3, 3, 2, 3, 3), (1, 4), (6, 4, 4, 7) * 3]
each_nvec = pytest.mark.parametrize('nvec', NVECS, ids=str)


def categoricals(nvec: tuple[int, ...]) -> list[Categorical]:
    return [Categorical(n) for n in nvec]


def total(function: str, nvec: tuple[int, ...], *columns: Tensor) -> Tensor:
    """The sum of a function over all entries, each with its own Categorical."""
    cut = [x.split(nvec, -1) if x.is_floating_point() else x.unbind(-1) for x in columns]
    return sum(getattr(dist, function)(*each) for dist, *each in zip(categoricals(nvec), *cut, strict=True))


@pytest.mark.parametrize('n, lead', [(2, ()), (3, (7,)), (130, (5, 3))], ids=str)
def test_one_entry_is_bit_equal_to_discrete(n, lead):
    one, many = make_dist(Discrete(n)), make_dist(MultiDiscrete((n,), (0,), (1,)))
    noise, others = (dist.noise(lead, generator(0), CPU) for dist in (one, many))
    assert torch.equal(noise, others)
    leaves = [draw(*lead, n, seed=0).float().requires_grad_() for _ in range(2)]
    q, action = draw(*lead, n, seed=1).float(), one.sample(leaves[0], noise)
    assert torch.equal(many.sample(leaves[1], noise), action.unsqueeze(-1))
    assert torch.equal(many.mode(leaves[1]), one.mode(leaves[0]).unsqueeze(-1))
    for x, y in (
        (one.log_prob(leaves[0], action), many.log_prob(leaves[1], action.unsqueeze(-1))),
        (one.entropy(leaves[0]), many.entropy(leaves[1])),
        (one.kl(leaves[0], q), many.kl(leaves[1], q)),
        (one.kl(q, leaves[0]), many.kl(q, leaves[1])),
    ):
        assert torch.equal(x, y)
        assert torch.equal(torch.autograd.grad(x.sum(), leaves[0])[0], torch.autograd.grad(y.sum(), leaves[1])[0])
    heads = []
    for dist in (one, many):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            heads.append(dist.make_head(8, {}))
    assert type(heads[0]) is type(heads[1]) and torch.equal(heads[0].weight, heads[1].weight)


@each_nvec
def test_entries_are_independent_categoricals(nvec):
    dist, n = MultiCategorical(nvec), sum(nvec)
    p, q, noise = draw(50, n), draw(50, n, seed=1), dist.noise((50,), generator(0), CPU)
    action = dist.sample(p, noise)
    pairs = zip(categoricals(nvec), p.split(nvec, -1), noise.split(nvec, -1), strict=True)
    assert torch.equal(action, torch.stack([each.sample(x, y) for each, x, y in pairs], -1))
    torch.testing.assert_close(dist.log_prob(p, action), total('log_prob', nvec, p, action))
    torch.testing.assert_close(dist.entropy(p), total('entropy', nvec, p))
    torch.testing.assert_close(dist.kl(p, q), total('kl', nvec, p, q))


def test_sample_frequencies_match_the_probabilities():
    # one entry with 3 choices and one with 2: chi square with 2 and 1 degrees of freedom
    p, n, dist = [torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.9, 0.1])], 40_000, MultiCategorical((3, 2))
    action = dist.sample(torch.cat(p).log(), dist.noise((n,), generator(1), CPU))
    for k, each in enumerate(p):
        count = torch.bincount(action[:, k], minlength=len(each))
        assert ((count - n * each).square() / (n * each)).sum() < 20  # exceeded once in 20,000 seeds
    both = torch.bincount(action[:, 0] * 2 + action[:, 1], minlength=6)
    expected = n * (p[0].unsqueeze(-1) * p[1]).flatten()
    assert ((both - expected).square() / expected).sum() < 28  # 5 degrees of freedom; the entries are independent too


def test_memory_that_is_no_block_of_its_own_is_taken():
    # parameters inside a wider row, as in a part of a composite distribution
    dist, row = MultiCategorical((2, 3, 2, 3)), draw(6, 14)
    p, action = row[:, 2:12], torch.zeros(6, 5, dtype=torch.int64)[:, :4]
    assert torch.equal(dist.log_prob(p, action), dist.log_prob(p.contiguous(), action.contiguous()))
    assert torch.equal(dist.mode(p), dist.mode(p.contiguous()))


@pytest.mark.parametrize('nvec', [(2, 3), (3, 3)], ids=str)
def test_an_index_outside_is_refused_and_names_the_entry(nvec):
    dist, action = MultiCategorical(nvec), torch.tensor([[1, 0], [0, 3]])
    with pytest.raises(ValueError, match=r'entry 1 of action holds 0 to 3 but has 3 choices; give indices in 0\.\.2'):
        dist.log_prob(torch.zeros(2, sum(nvec)), action)
