"""The step as one graph: compiled and eager results are equal, also in new episodes; no step waits for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from tests.gpu import needs_gpu, no_waiting
from zoo.backend.choose import missing_compiler
from zoo.backend.trace import compile_function
from zoo.core.spaces import Discrete
from zoo.env import TENSOR_ENV_REGISTRY, EnvConfig, EnvContractError, TensorVectorEnv, make_vector_env
from zoo.env.tensor.program import CompiledProgram, StepProgram

GAMES = ['Acrobot-v1', 'CartPole-v1', 'MountainCar-v0', 'MountainCarContinuous-v0', 'Pendulum-v1']


@pytest.mark.slow
@pytest.mark.parametrize(('game', 'mode'), [(game, ('clip', 'rescale')[i % 2]) for i, game in enumerate(GAMES)])
def test_compiled_steps_are_the_eager_ones_from_the_next_reset_on(
    game: str, mode: str, graphs: list[torch.fx.GraphModule], caplog: pytest.LogCaptureFixture
) -> None:
    n_end = run_both(game, 40, max_episode_steps=12, action_mode=mode)
    assert len(graphs) == 1 and n_end >= 12  # 4 envs, each 40 // 12 = 3 times or more
    assert not warnings_of(caplog)  # they would say that the step runs uncompiled


@pytest.mark.long
@pytest.mark.skipif(bool(missing_compiler(torch.device('cpu'))), reason='no C++ compiler')
def test_steps_by_the_real_compiler_are_the_eager_ones(caplog: pytest.LogCaptureFixture) -> None:
    assert run_both('CartPole-v1', 20, max_episode_steps=8) >= 8  # 4 envs, each 20 // 8 = 2 times or more
    assert not warnings_of(caplog)


def run_both(game: str, n_step: int, **fields: Any) -> int:
    """Compares compiled steps with eager ones, of 4 envs; returns how many episodes ended."""
    config = EnvConfig(id='torch', game=game, **fields)
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
    # `check` sums all values times 0, in which nan stays nan: the compiler must not have removed these products
    compiled.carry.state[2, 0] = torch.nan
    compiled.step(action)
    with pytest.raises(EnvContractError, match=f'index 2, step {n_step + 1}: '):
        compiled.check()
    return n_end


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith('zoo')]


@pytest.mark.parametrize('game', GAMES)
def test_step_runs_on_tensors_without_values(game: str) -> None:
    device = torch.device('meta')
    with device:
        program = StepProgram(TENSOR_ENV_REGISTRY.get(game)(), 5, 7, 'rescale', device)
        space = program.env.action_space
        fresh = program.begin(torch.empty(5, program.env.n_noise))
        carry = program.carry(fresh)
        action = torch.empty(5, dtype=torch.int64) if isinstance(space, Discrete) else torch.empty(5, *space.shape)
        after, out = program(carry, action, fresh, torch.empty(5, 0))
    form = tree_map(lambda t: (t.shape, t.dtype, t.device), carry)
    assert tree_map(lambda t: (t.shape, t.dtype, t.device), after) == form  # the next step can continue from it
    assert out.obs.shape == out.next_obs.shape == (5, *program.env.obs_space.shape)


@needs_gpu
@pytest.mark.parametrize('game', GAMES)
def test_step_on_a_gpu_does_not_wait_and_equals_the_cpu(game: str) -> None:
    envs = [make_vector_env(EnvConfig(id='torch', game=game), 64, device=device) for device in ('cpu', 'cuda')]
    cpu, gpu = envs
    cpu.reset(0)
    assert gpu.reset(0).device == gpu.device
    space, rng = cpu.action_space, torch.Generator().manual_seed(0)
    actions = (
        torch.randint(space.n, (200, 64), generator=rng)
        if isinstance(space, Discrete)
        else torch.rand((200, 64, *space.shape), generator=rng) * 2 - 1
    )
    for action, on_gpu in zip(actions, actions.to(gpu.device), strict=True):
        gpu.carry = gpu.carry._replace(state=cpu.carry.state.to(gpu.device), age=cpu.carry.age.to(gpu.device))
        with no_waiting():
            got = gpu.step(on_gpu)
        want = cpu.step(action)
        torch.testing.assert_close(got.next_obs.cpu(), want.next_obs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got.reward.cpu(), want.reward, rtol=1e-5, atol=1e-5)
        assert torch.equal(got.truncated.cpu(), want.truncated)
    gpu.check()
