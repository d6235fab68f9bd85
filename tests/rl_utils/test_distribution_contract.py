"""Contract of every registered distribution, against torch.distributions, finite differences and its own draws."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tests.rl_utils.distribution_cases import BOX, CASES, CPU, N_FEATURE, Case, action_of, draw, each_case, generator
from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.rl_utils import FlatAdam, make_dist, ppo_policy_data, ppo_policy_error
from zoo.rl_utils.distribution import fitting

MASKED = [name for name, case in CASES.items() if case.dist.n_mask]
each_masked_case = pytest.mark.parametrize('case', [CASES[name] for name in MASKED], ids=MASKED)


def test_every_registered_distribution_has_a_case():
    assert DISTRIBUTION_REGISTRY.names() == sorted(CASES)


def functions_of(case: Case, p: Tensor, q: Tensor, action: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """The results (ours, torch's) of each function; torch has no entropy of a squashed Gaussian."""
    dist = case.dist
    found = {
        'log_prob': (dist.log_prob(p, action), case.log_prob(p, action)),
        'kl': (dist.kl(p, q), case.kl(p, q)),
    }
    if dist.name != 'squashed_gaussian':
        found['entropy'] = dist.entropy(p), case.entropy(p)
    return found


# ---- values and gradients


@each_case
def test_values_of_1000_rows_in_float32_equal_torch_distributions(case):
    # against float64: float32 rounds numbers up to 100 (a divergence between distant peaks) by 7.6e-6
    p, q, action = (x.float() for x in (case.param(1000), case.param(1000, seed=1), action_of(case, 1000)))
    action = action.long() if case.dist.is_index else action
    real = action if case.dist.is_index else action.double()
    wanted = functions_of(case, p.double(), q.double(), real)
    for name, (got, _) in functions_of(case, p, q, action).items():
        assert got.dtype == torch.float32
        torch.testing.assert_close(
            got.double(), wanted[name][1], rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f'{n}: {m}'
        )


@each_case
@pytest.mark.parametrize('lead', [(), (200,), (2, 3, 2)], ids=str)
def test_values_and_gradients_equal_those_of_torch_distributions(case, lead):
    p, q = case.param(*lead).requires_grad_(), case.param(*lead, seed=1).requires_grad_()
    for got, want in functions_of(case, p, q, action_of(case, *lead)).values():
        assert got.shape == lead
        torch.testing.assert_close(got, want)
        factor = draw(*lead, seed=9)
        grads = [
            torch.autograd.grad(
                (factor * x).sum(), (p, q), materialize_grads=True, allow_unused=True, retain_graph=True
            )
            for x in (got, want)
        ]
        torch.testing.assert_close(*grads)


@each_case
def test_kl_is_zero_to_itself_and_positive_elsewhere(case):
    p, q = case.param(200), case.param(200, seed=1)
    assert case.dist.kl(p, p).abs().max() < 1e-12
    assert case.dist.kl(p, q).min() > 0


@each_case
def test_kl_is_the_mean_log_ratio_of_draws(case):
    n = 20_000
    p, q = case.param(seed=4).expand(n, -1), case.param(seed=5).expand(n, -1)
    action = case.dist.sample(p, case.dist.noise((n,), generator(0), CPU))
    found = case.dist.log_prob(p, action) - case.dist.log_prob(q, action)
    assert (found.mean() - case.dist.kl(p[0], q[0])).abs() < 5 * found.std() / math.sqrt(n)


@each_case
def test_the_ratio_of_equal_parameters_is_exactly_1(case):
    param = case.param(64).float()
    action = case.dist.sample(param, case.dist.noise((64,), generator(0), CPU))
    data = ppo_policy_data(param.clone().requires_grad_(), param, action, draw(64).float())
    loss, info = ppo_policy_error(data, dist=case.dist)
    assert info.approx_kl == 0 and info.clipfrac == 0
    assert loss.policy_loss == -data.adv.mean()


@each_case
def test_half_precision_parameters_are_computed_in_float32(case):
    half, other, action = case.param(5).bfloat16(), case.param(5, seed=1).bfloat16(), action_of(case, 5)
    action = action if case.dist.is_index else action.float()
    for function in (lambda x, _: case.dist.log_prob(x, action), lambda x, _: case.dist.entropy(x), case.dist.kl):
        got, want = function(half, other), function(half.float(), other.float())
        assert got.dtype == torch.float32 and torch.equal(got, want)


# ---- draws


@each_case
@pytest.mark.parametrize('lead', [(3,), (2, 3, 4)], ids=str)
def test_noise_and_draws_have_shape_dtype_and_a_reproducible_stream(case, lead):
    first, second, other = (case.dist.noise(lead, generator(seed), CPU) for seed in (1, 1, 2))
    assert first.shape == (*lead, case.dist.n_noise) and first.dtype == torch.float32 and first.isfinite().all()
    assert torch.equal(first, second) and not torch.equal(first, other)
    with torch.random.fork_rng(devices=[]):  # without a generator the noise follows torch's own
        own = [torch.manual_seed(3) and case.dist.noise(lead, None, CPU) for _ in range(2)]
        assert torch.equal(*own) and not torch.equal(own[0], first)
    param = case.param(*lead).float()
    for action in (case.dist.sample(param, first), case.dist.mode(param)):
        assert action.dtype == (torch.int64 if case.dist.is_index else torch.float32)
        case.dist.check_action(action, torch.Size(lead))  # raises if the shape or dtype is wrong
        assert case.dist.log_prob(param, action).shape == lead


@pytest.mark.parametrize('name', sorted(set(CASES) - {'squashed_gaussian'}))  # its mode is the median
def test_the_mode_is_the_most_likely_action(name):
    case = CASES[name]
    param = case.param(50)
    best = case.dist.log_prob(param, case.dist.mode(param))
    for seed in range(5):
        noise = case.dist.noise((50,), generator(seed), CPU)
        assert (case.dist.log_prob(param, case.dist.sample(param, noise)) <= best + 1e-12).all()


@each_case
def test_actions_of_an_env_lie_within_bounds_that_the_distribution_knows(case):
    if not case.dist.is_bounded:
        action = action_of(case, 10)
        assert torch.equal(case.dist.env_action(action), action)
        return
    low, high = (torch.tensor(x).float() for x in (BOX.low, BOX.high))
    param = torch.cat((case.param(200), 50 * case.param(200, seed=1).abs() + 1)).float()  # half of them extreme
    action = case.dist.sample(param, case.dist.noise((400,), generator(0), CPU))
    for each in (action, case.dist.mode(param)):
        found = case.dist.env_action(each)
        assert (found >= low).all() and (found <= high).all()
    assert case.dist.log_prob(param, action).isfinite().all()


@each_case
def test_nothing_is_changed_in_place(case):
    p, q, action, noise = case.param(5), case.param(5, seed=1), action_of(case, 5), case.dist.noise((5,), None, CPU)
    before = [x.clone() for x in (p, q, action, noise)]
    dist = case.dist
    dist.sample(p, noise), dist.mode(p), dist.log_prob(p, action), dist.entropy(p), dist.kl(p, q), dist.split(p)
    dist.env_action(action)
    assert all(torch.equal(x, y) for x, y in zip((p, q, action, noise), before, strict=True))


# ---- masks


SIZES = {'categorical': [4], 'multi_categorical': [3, 3, 5, 2], 'composite': [4, 2, 3], 'bernoulli': []}  # options


def starts(case: Case) -> list[int]:
    """The position in a mask at which each choice begins."""
    sizes = SIZES[case.dist.name]
    return [sum(sizes[:k]) for k in range(len(sizes))]


def random_mask(case: Case, n: int) -> Tensor:
    """Random masks [n, n_mask] that allow at least one option of each choice."""
    mask = torch.rand((n, case.dist.n_mask), generator=generator(7)) < 0.5
    for start, size in zip(starts(case), SIZES[case.dist.name], strict=True):
        mask.scatter_(1, torch.randint(start, start + size, (n, 1), generator=generator(start)), True)
    return mask


def choices_taken(case: Case, action: Tensor) -> Tensor:
    """[n, n_mask], true for each option that was taken; for bits, where the bit is 1."""
    parts = [x for x in case.parts(action) if case.dist.name != 'composite' or x.dim() == 1]  # no real numbers
    if case.dist.name == 'bernoulli':
        return parts[0].bool()
    one_hots = (torch.nn.functional.one_hot(x.long(), n) for x, n in zip(parts, SIZES[case.dist.name], strict=True))
    return torch.cat(list(one_hots), -1).bool()


@each_masked_case
def test_no_masked_choice_in_20k_draws(case):
    n = 20_000
    mask = random_mask(case, n)
    param = case.dist.masked(case.param(n).float(), mask)
    for action in (case.dist.sample(param, case.dist.noise((n,), generator(0), CPU)), case.dist.mode(param)):
        assert not (choices_taken(case, action) & ~mask).any()


@each_masked_case
def test_with_masks_all_is_finite_and_masked_logits_have_no_gradient(case):
    mask = random_mask(case, 300)
    p, q = (case.dist.masked(case.param(300, seed=seed), mask).requires_grad_() for seed in (0, 1))
    action = case.dist.sample(p.detach(), case.dist.noise((300,), generator(0), CPU))
    for result in (case.dist.log_prob(p, action), case.dist.entropy(p), case.dist.kl(p, q), case.dist.kl(q, p)):
        assert result.isfinite().all()
        for scale in (1.0, 64.0):  # 64: a loss that is scaled up, e.g. for half precision
            grads = torch.autograd.grad(scale * result.sum(), (p, q), allow_unused=True, retain_graph=True)
            for grad in (each for each in grads if each is not None):
                assert grad.isfinite().all() and grad[~(p == -torch.inf)].any()
                assert (grad[(p == -torch.inf)] == 0).all()


@each_masked_case
def test_masks_do_as_probabilities_near_zero_in_the_limit(case):
    mask = random_mask(case, 300)
    p, q = case.param(300), case.param(300, seed=1)
    masked = [case.dist.masked(x, mask) for x in (p, q)]
    near = [torch.where(x == -torch.inf, -60.0, x) for x in masked]  # e^-60 = 9e-27
    action = case.dist.sample(masked[0], case.dist.noise((300,), generator(0), CPU))
    torch.testing.assert_close(case.dist.log_prob(masked[0], action), case.dist.log_prob(near[0], action))
    torch.testing.assert_close(case.dist.entropy(masked[0]), case.dist.entropy(near[0]))
    torch.testing.assert_close(case.dist.kl(*masked), case.dist.kl(*near))


@each_masked_case
def test_where_one_choice_is_left_it_is_certain(case):
    mask = random_mask(case, 50)
    first = mask.new_zeros(mask.shape)
    first[:, starts(case)] = True
    param = case.dist.masked(case.param(50).float(), first)
    action = case.dist.sample(param, case.dist.noise((50,), generator(0), CPU))
    if case.dist.name == 'composite':  # its real numbers are free
        assert not action[:, [0, 4, 5]].any()
    else:
        assert not action.any() and not case.dist.entropy(param).any() and not case.dist.log_prob(param, action).any()


@pytest.mark.parametrize('name', sorted(set(CASES) - set(MASKED)))
def test_a_distribution_without_choices_takes_no_mask(name):
    dist, param = CASES[name].dist, CASES[name].param(2)
    with pytest.raises(UserError, match=f'actions of a {name} distribution take no mask; set env.action_mask=off'):
        dist.masked(param, torch.ones(2, dist.n_param, dtype=torch.bool))


# ---- shapes, heads, copies, compilers


@each_case
@pytest.mark.parametrize('lead', [(), (0, 3), (2, 3, 2)], ids=str)
def test_leading_dimensions_are_free(case, lead):
    p, q = case.param(*lead).float(), case.param(*lead, seed=1).float()
    dist, noise = case.dist, case.dist.noise((*lead, 2), None, CPU)[..., 0, :]
    action = dist.sample(p, noise)
    rows = [dist.log_prob(p, action), dist.entropy(p), dist.kl(p, q)]
    flat = [x.reshape(-1, x.shape[-1]) for x in (p, q)]
    actions = action.reshape(-1, dist.n_action) if dist.n_action else action.reshape(-1)
    same = [dist.log_prob(flat[0], actions), dist.entropy(flat[0]), dist.kl(*flat)]
    for x, y in zip(rows, same, strict=True):
        assert x.shape == lead
        torch.testing.assert_close(x.reshape(-1), y)
    dist.check_action(action, torch.Size(lead))


@each_case
def test_actions_of_another_shape_or_dtype_are_refused(case):
    action = action_of(case, 4, 3)
    lead = torch.Size((4, 3))
    with pytest.raises(ValueError, match=r'action has shape \(3.* but what logit_new asks for \(4, 3'):
        case.dist.check_action(action[0], lead)
    other = action.float() if case.dist.is_index else action.long()
    with pytest.raises(ValueError, match='action has dtype torch.* but .* convert it'):
        case.dist.check_action(other, lead)


@each_case
def test_a_head_gives_parameters_of_its_features_and_starts_near_indifference(case):
    head = case.dist.make_head(N_FEATURE, {'log_std_init': -0.5, 'unknown': 3})
    param = head(draw(7, N_FEATURE).float())
    assert param.shape == (7, case.dist.n_param) and not case.dist.problem_of(param)
    assert head(draw(2, 7, N_FEATURE).float()).shape == (2, 7, case.dist.n_param)
    # POLICY_GAIN is .01 and features have a norm of about 2.2, so that logits and means are near 0
    low = case.dist.mode(param) if not case.dist.is_index and case.dist.name != 'composite' else param[:, :4]
    assert (low - (0.5 if case.dist.name == 'beta' else 0)).abs().max() < 0.1 and param.requires_grad
    loss = case.dist.log_prob(param, case.dist.mode(param).detach()).sum() - case.dist.entropy(param).sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.slow
@each_case
def test_it_is_traced_with_its_gradients_on_tensors_without_data(case):
    """The executor 'graph' traces a distribution like this; constant tensors made outside the trace would be refused."""
    dist = case.dist
    p, q, noise = case.param(6).float(), case.param(6, seed=1).float(), dist.noise((6,), generator(0), CPU)

    def function(p: Tensor, q: Tensor, noise: Tensor) -> list[Tensor]:
        param = p.detach().requires_grad_()
        action = dist.sample(q, noise)
        dist.check_action(action, param.shape[:-1])
        results = [dist.log_prob(param, action), dist.entropy(param), dist.kl(param, q), dist.kl(q, param)]
        return [action, dist.mode(q), *results, *torch.autograd.grad(sum(x.sum() for x in results), param)]

    traced = make_fx(function, tracing_mode='fake')(p, q, noise)
    inputs = case.param(6, seed=3).float(), case.param(6, seed=4).float(), dist.noise((6,), generator(1), CPU)
    for got, want in zip(traced(*inputs), function(*inputs), strict=True):
        assert torch.equal(got, want)


@each_case
def test_make_dist_finds_it_by_name_and_it_survives_copy_and_pickle(case):
    assert case.dist.name in fitting(case.space, {})
    made = make_dist(case.space, case.dist.name, {'n_feature': N_FEATURE})
    for other in (made, copy.deepcopy(case.dist), pickle.loads(pickle.dumps(case.dist))):
        assert type(other) is type(case.dist) and other.n_param == case.dist.n_param
        assert torch.equal(other.entropy(case.param(3)), case.dist.entropy(case.param(3)))


# ---- learning


REWARDS = {
    'bernoulli': lambda a: (a == torch.tensor([1, 0, 1])).float().mean(-1),
    'categorical': lambda a: (a == 2).float(),
    'composite': lambda a: 1 - ((a - torch.tensor([2, 0.5, 1.0, -1.0, 1, 2])).square().sum(-1) / 8),
    'multi_categorical': lambda a: (a == torch.tensor([0, 2, 4, 1])).float().mean(-1),
}


@pytest.mark.slow
@each_case
def test_it_learns_a_one_step_env_in_10k_steps(case):
    # the best reward is 1, that of the first policy is below .9
    dist, near = case.dist, torch.tensor([0.6, 1.0, 2.0])
    reward_of = REWARDS.get(dist.name, lambda a: 1 - (a - near).square().sum(-1) / 3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = dist.make_head(N_FEATURE, {'log_std_init': -1.0})
    optimizer, feature, stream = FlatAdam(head.named_parameters(), lr=0.03), torch.ones(256, N_FEATURE), generator(0)
    first = reward_of(dist.env_action(dist.mode(head(feature))))
    for _ in range(40):  # 40 * 256 = 10,240 steps
        with torch.no_grad():
            old = head(feature)
            action = dist.sample(old, dist.noise((256,), stream, CPU))
        reward = reward_of(dist.env_action(action))
        adv = (reward - reward.mean()) / (reward.std() + 1e-8)
        for _ in range(4):
            optimizer.zero_grad()
            losses, _ = ppo_policy_error(ppo_policy_data(head(feature), old, action, adv), dist=dist)
            losses.policy_loss.backward()
            optimizer.step(0.5)
    assert first.mean() < 0.9 and reward_of(dist.env_action(dist.mode(head(feature)))).mean() > 0.95


@each_case
def test_split_gives_each_row_its_own_parameters(case):
    if case.dist.name == 'gsde':
        pytest.skip('its sigma is computed from several parameters')
    p = case.param(6)
    found = case.dist.split(p)
    parts = list(found.values()) if isinstance(found, dict) else [found]
    assert all(part.shape[0] == 6 for part in parts)
    torch.testing.assert_close(torch.cat([part.flatten(1) for part in parts], -1), p, equal_nan=True)


def test_distribution_that_changes_actions_for_the_env_is_bounded_unless_it_says_otherwise():
    class Halved(type(CASES['gaussian'].dist)):
        def env_action(self, action: Tensor) -> Tensor:
            return action / 2

    class Unbounded(Halved):
        is_bounded = False

    class Renamed(type(CASES['gaussian'].dist)):
        pass

    assert (Halved.is_bounded, Unbounded.is_bounded, Renamed.is_bounded) == (True, False, False)
