"""simple_spread as a tensor env, beside mpe2's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

mpe2 = pytest.importorskip('mpe2', reason='the extra agents')

from mpe2 import simple_spread_v3  # noqa: E402

from zoo.env.tensor.spread import Particles, SimpleSpread  # noqa: E402


def places(entities):
    return torch.tensor(np.array([[each.state.p_pos for each in entities]]), dtype=torch.float64)


@pytest.mark.long
@pytest.mark.parametrize('n_agent', [2, 3])
def test_simple_spread_equals_mpe2_step_by_step(n_agent):
    """40 episodes of 25 steps: observations and rewards to 1e-5, the state of all, and the end by the limit."""
    env = simple_spread_v3.parallel_env(N=n_agent, max_cycles=25)
    mine = SimpleSpread(n_agent)
    rng = np.random.default_rng(0)
    n_touch = 0
    for episode in range(40):
        seen, _ = env.reset(seed=episode)
        world = env.unwrapped.world
        state = Particles(
            places(world.agents), torch.zeros(1, n_agent, 2, dtype=torch.float64), places(world.landmarks)
        )
        for _ in range(mine.max_episode_steps):
            np.testing.assert_allclose(mine.observe(state)[0].numpy(), np.stack(list(seen.values())), atol=1e-5)
            np.testing.assert_allclose(mine.world(state)[0].numpy(), env.state(), atol=1e-5)
            # towards the middle, where agents collide, as often as anywhere
            inwards = [1 if world.agents[i].state.p_pos[0] > 0 else 2 for i in range(n_agent)]
            action = np.where(rng.random(n_agent) < 0.5, inwards, rng.integers(5, size=n_agent))
            seen, reward, terminated, truncated, _ = env.step(dict(zip(env.agents, action.tolist(), strict=True)))
            state, got, is_over = mine.step(state, torch.from_numpy(action).unsqueeze(0), torch.zeros(1, 0))
            np.testing.assert_allclose(got[0].numpy(), list(reward.values()), atol=1e-5)
            n_touch += int(max(reward.values()) - min(reward.values()) > 0.1)
            assert not bool(is_over) and not any(terminated.values())
        assert all(truncated.values())
    assert n_touch > 0 or n_agent == 2  # of two agents both touch


def test_simple_spread_of_two_that_touch_by_hand():
    """Distances from landmarks 1 and 0.1, agents 0.2 apart: reward .5 * -(1 + .1) - .5 * 1 = -1.05 for both."""
    place = torch.tensor([[[0.0, 0.0], [0.2, 0.0]]], dtype=torch.float64)
    landmark = torch.tensor([[[-1.0, 0.0], [0.3, 0.0]]], dtype=torch.float64)
    env = SimpleSpread(2)
    _, reward, _ = env.step(
        Particles(place, torch.zeros_like(place), landmark), torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 0)
    )
    np.testing.assert_allclose(reward.numpy(), [[-1.05, -1.05]], atol=1e-6)


def test_simple_spread_agents_begin_inside_of_the_square():
    state = SimpleSpread().reset(torch.rand(1000, 12, generator=torch.Generator().manual_seed(0)))
    for x in (state.place, state.landmark):
        assert float(x.min()) < -0.99 and float(x.max()) > 0.99 and float(x.abs().max()) <= 1
    assert not state.speed.any()
