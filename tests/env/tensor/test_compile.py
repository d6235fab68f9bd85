"""Compiled steps: those of the eager env, new episodes included."""
from __future__ import annotations

import pytest
import torch

from zoo import compiler
from zoo.env import EnvConfig, make_vector_env
from zoo.spaces import Discrete

GAMES = ('CartPole-v1', 'Pendulum-v1', 'MountainCar-v0', 'MountainCarContinuous-v0', 'Acrobot-v1')


@pytest.mark.parametrize('game', GAMES)
def test_compiled_steps_are_the_eager_ones_from_the_next_reset_on(game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n_graph = []
    monkeypatch.setattr(compiler, 'inductor', lambda graph, inputs: n_graph.append(1) or graph)
    eager, compiled = (make_vector_env(EnvConfig(id='torch', game=game, max_episode_steps=30), 4) for _ in range(2))
    compiled.compile()
    assert torch.equal(eager.reset(1), compiled.reset(1))
    generator, n_end = torch.Generator().manual_seed(0), 0
    space = eager.action_space
    for _ in range(100):
        action = (torch.randint(space.n, (4,), generator=generator) if isinstance(space, Discrete)
                  else torch.randn((4, *space.shape), generator=generator))
        want, got = eager.step(action), compiled.step(action)
        for name in ('obs', 'next_obs', 'reward', 'terminated', 'truncated'):
            torch.testing.assert_close(getattr(got, name), getattr(want, name))
        n_end += int((want.terminated | want.truncated).sum())
    assert n_graph == [1] and n_end >= 12  # of 4 envs, at most 30 steps each
    compiled.check()
