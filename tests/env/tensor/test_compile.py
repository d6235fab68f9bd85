"""Compiled steps: those of the eager env, new episodes included."""

from __future__ import annotations

import pytest
import torch

from zoo.backend import trace as compiler
from zoo.backend.trace import compile_function, missing_compiler
from zoo.core.spaces import Discrete
from zoo.env import EnvConfig, EnvContractError, TensorVectorEnv, make_vector_env
from zoo.env.tensor.program import CompiledProgram

GAMES = ('CartPole-v1', 'Pendulum-v1', 'MountainCar-v0', 'MountainCarContinuous-v0', 'Acrobot-v1')


@pytest.mark.parametrize('game', GAMES)
def test_compiled_steps_are_the_eager_ones_from_the_next_reset_on(
    game: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    n_graph = []
    monkeypatch.setattr(compiler, 'inductor', lambda graph, inputs: n_graph.append(1) or graph)
    n_end = run_both(game, 100)
    assert n_graph == [1] and n_end >= 12  # of 4 envs, at most 30 steps each
    assert not warnings_of(caplog)  # they would say that the step runs uncompiled


@pytest.mark.long
@pytest.mark.skipif(bool(missing_compiler(torch.device('cpu'))), reason='no C++ compiler')
def test_steps_by_the_real_compiler_are_the_eager_ones(caplog: pytest.LogCaptureFixture) -> None:
    assert run_both('CartPole-v1', 20, max_episode_steps=8) >= 8  # of 4 envs, at most 8 steps each
    assert not warnings_of(caplog)


def run_both(game: str, n_step: int, max_episode_steps: int = 30) -> int:
    """Compares compiled steps with eager ones, of 4 envs; returns how many episodes ended."""
    config = EnvConfig(id='torch', game=game, max_episode_steps=max_episode_steps)
    eager, compiled = make_vector_env(config, 4), make_vector_env(config, 4)
    assert isinstance(compiled, TensorVectorEnv)
    compiled.compile(compile_function)
    assert torch.equal(eager.reset(1), compiled.reset(1))
    generator, n_end = torch.Generator().manual_seed(0), 0
    space = eager.action_space
    for _ in range(n_step):
        action = (
            torch.randint(space.n, (4,), generator=generator)
            if isinstance(space, Discrete)
            else torch.randn((4, *space.shape), generator=generator)
        )
        want, got = eager.step(action), compiled.step(action)
        for name in ('obs', 'next_obs', 'reward', 'terminated', 'truncated'):
            torch.testing.assert_close(getattr(got, name), getattr(want, name))
        n_end += int((want.terminated | want.truncated).sum())
    assert isinstance(compiled.run, CompiledProgram)
    compiled.check()
    # the watch is no product by 0 that was left out
    compiled.carry.state[2, 0] = torch.nan
    compiled.step(action)
    with pytest.raises(EnvContractError, match=f'index 2, step {n_step + 1}: '):
        compiled.check()
    return n_end


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith('zoo')]
