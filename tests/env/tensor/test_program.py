"""The whole step as one graph: nothing in it depends on values, so that no step waits for a device."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_map

from tests.gpu import needs_gpu, no_waiting
from zoo.core.spaces import Discrete
from zoo.env import TENSOR_ENV_REGISTRY, EnvConfig, make_vector_env
from zoo.env.tensor.program import StepProgram

GAMES = ['Acrobot-v1', 'CartPole-v1', 'MountainCar-v0', 'MountainCarContinuous-v0', 'Pendulum-v1']


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['clip', 'rescale'])
@pytest.mark.parametrize('game', GAMES)
def test_step_traces_as_one_graph_once_with_equal_results(game: str, mode: str) -> None:
    torch._dynamo.reset()
    config = EnvConfig(id='torch', game=game, action_mode=mode, max_episode_steps=7)
    eager, traced = make_vector_env(config, 5), make_vector_env(config, 5)
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    traced.run = torch.compile(traced.program, backend=backend, fullgraph=True, dynamic=False)
    space, rng = eager.action_space, torch.Generator().manual_seed(0)
    assert torch.equal(eager.reset(0), traced.reset(0))
    for _ in range(20):
        action = (
            torch.randint(space.n, (5,), generator=rng)
            if isinstance(space, Discrete)
            else torch.randn((5, *space.shape), generator=rng)
        )
        want, got = eager.step(action), traced.step(action)
        for name in ('obs', 'next_obs', 'reward', 'terminated', 'truncated'):
            assert torch.equal(getattr(want, name), getattr(got, name)), name
    assert len(graphs) == 1


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
    assert tree_map(lambda t: (t.shape, t.dtype, t.device), after) == form  # it can go on
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
