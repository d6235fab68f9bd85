"""Contract of every policy: modes that can be built separately, `act`, one state dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu import needs_gpu
from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, differing, make_policy
from zoo.core.seeding import restore_generator, stream, torch_generator
from zoo.core.spaces import Box, Discrete
from zoo.policy.ppo import PPOPolicy
from zoo.run.config import resolve_policy

OBS = Box(np.full(2, -np.inf), np.full(2, np.inf))


@pytest.mark.parametrize('wanted', ['single', 'batch'])
@pytest.mark.parametrize(
    ('space', 'mode', 'want'),
    [
        (Discrete(3), 'clip', 2),
        (Discrete(3, start=5), 'clip', 7),
        (Box(np.array([-1.0]), np.array([1.0])), 'clip', [1.0]),
        (Box(np.array([0.0]), np.array([np.inf])), 'clip', [4.0]),
        (Box(np.array([0.0]), np.array([10.0])), 'rescale', [10.0]),
    ],
    ids=str,
)
def test_act_gives_actions_as_the_env_takes_them(space: Any, mode: Any, want: Any, wanted: str) -> None:
    cfg = resolve_policy(dict(model=dict(hidden_sizes=[8])))
    policy = PPOPolicy(cfg, OBS, space, enable_field=['eval'], action_mode=mode)
    with torch.no_grad():  # the mode is the last choice, or 4 in a Box
        for p in policy.model.policy_head.parameters():
            p.zero_()
        getattr(policy.model.policy_head, 'mu', policy.model.policy_head).bias[-1] = 4.0
    obs = np.ones(2, np.float32)
    action = policy.act(obs) if wanted == 'single' else policy.act(np.stack([obs] * 3))
    np.testing.assert_array_equal(action, want if wanted == 'single' else [want] * 3)
    if isinstance(space, Box):
        assert action.dtype == space.dtype


def test_act_takes_discrete_observations() -> None:
    policy = make_policy(Discrete(4, start=1), TWO_ACTIONS, enable_field=['eval'])
    with torch.no_grad():
        policy.model.policy_head.weight.normal_(generator=torch.Generator().manual_seed(0))
    logit = policy.model.compute_actor(torch.arange(4))
    assert [policy.act(obs) for obs in (1, 2, 3, 4)] == logit.argmax(-1).tolist()
    assert policy.act(np.array([1, 4])).tolist() == logit.argmax(-1)[[0, 3]].tolist()


def test_seed_decides_the_network_and_leaves_the_global_stream_alone() -> None:
    torch.manual_seed(0)
    want = torch.rand(3)
    torch.manual_seed(0)
    a, b, other = (make_policy(OBS, ONE_NUMBER, seed=seed).state_dict() for seed in (4, 4, 5))
    assert torch.equal(torch.rand(3), want)
    assert not differing(a, b)
    assert 'model/policy_head.mu.weight' in differing(a, other)


def test_noise_of_a_rollout_is_the_same_whatever_a_policy_drew_before() -> None:
    def draw(policy: Any, collect_iter: int) -> torch.Tensor:
        policy.collect_mode.begin(collect_iter)
        return torch.stack([policy.collect_mode.forward(torch.zeros(5, 2), None)['action'] for _ in range(8)])

    a, b = (make_policy(OBS, ONE_NUMBER, collect=dict(n_step=4)) for _ in range(2))
    first = draw(a, 0)
    b.collect_mode.forward(torch.zeros(5, 2), None)  # noise that this call drew in advance must not be used
    b.load_state_dict(a.state_dict())
    assert torch.equal(draw(a, 7), draw(b, 7)) and torch.equal(draw(b, 0), first) and not torch.equal(draw(a, 7), first)


def test_state_dict_of_a_trained_policy_is_no_view_of_the_next_one() -> None:
    """load_state_dict copies: two policies share nothing afterwards."""
    a, b = make_policy(OBS, TWO_ACTIONS), make_policy(OBS, TWO_ACTIONS, seed=1)
    b.load_state_dict(a.state_dict())
    with torch.no_grad():
        a.optimizers['all'].param.add_(1)
    assert torch.equal(b.optimizers['all'].param + 1, a.optimizers['all'].param)
    assert torch.equal(a.model.policy_head.bias, torch.ones(2))  # the parameters are still views of the flat buffer


def test_streams_are_distinguished_by_name_number_and_seed() -> None:
    names: list[tuple[Any, ...]] = [(seed, name) for seed in (0, 1) for name in ('collect', 'evaluate')]
    names += [(0, 'collect', 64), (0, 'evaluate', 64)]
    assert len({stream(*name).generate_state(4).tobytes() for name in names}) == len(names)
    assert stream(3, 'collect', 5).generate_state(2).tolist() == stream(3, 'collect', 5).generate_state(2).tolist()
    a, b, again = (torch.rand(4, generator=torch_generator(0, name)) for name in ('collect', 'learn', 'collect'))
    assert torch.equal(a, again) and not torch.equal(a, b)


def test_generator_continues_from_its_state() -> None:
    one, other = torch_generator(0, 'a'), torch_generator(1, 'a')
    torch.randn(5, generator=one)
    restore_generator(other, one.get_state())
    assert torch.equal(torch.randn(5, generator=other), torch.randn(5, generator=one))


def test_state_of_another_device_begins_a_stream_that_depends_on_it_alone() -> None:
    """The state of a GPU generator has 16 bytes: its seed and its offset."""
    states = [torch.tensor([seed, *[0] * 7, 4, *[0] * 7], dtype=torch.uint8) for seed in (7, 7, 8)]
    drawn = []
    for i, state in enumerate(states):
        generator = torch_generator(i, 'a')
        restore_generator(generator, state)
        drawn.append(torch.randn(5, generator=generator))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@needs_gpu
def test_random_numbers_of_a_gpu_come_from_it() -> None:
    generator = torch_generator(0, 'a', torch.device('cuda'))
    assert generator.device.type == 'cuda'
    torch.randn(5, generator=generator, device='cuda')
    state = generator.get_state()
    want = torch.randn(5, generator=generator, device='cuda')
    restore_generator(generator, state)
    assert torch.equal(torch.randn(5, generator=generator, device='cuda'), want)
    restore_generator(generator, torch_generator(0, 'a').get_state())
