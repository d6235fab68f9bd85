"""Compiled acting: what it says and does is what the eager policy says and does."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu import needs_gpu, no_waiting
from tests.policy_envs import make_policy
from zoo.backend import trace as compiler
from zoo.backend.actor import Acting, CompiledActing
from zoo.core.spaces import Box, Discrete
from zoo.policy.base import Policy
from zoo.policy.ppo import PPOPolicy

N_STEP = 4
OBS = Box(np.full(3, -np.inf), np.full(3, np.inf))
ACTIONS = {'discrete': Discrete(4), 'box': Box(np.full(2, -1.0), np.full(2, 1.0))}


def pair(space: str, **model: Any) -> tuple[Policy, Policy]:
    return tuple(
        make_policy(OBS, ACTIONS[space], seed=3, learn=dict(compile=compile_), model=model, collect=dict(n_step=N_STEP))
        for compile_ in ('on', 'off')
    )  # type: ignore[return-value]


@pytest.mark.parametrize(
    'model',
    [{}, {'shared_encoder': True}, {'obs_norm': True}, {'state_dependent_std': True}],
    ids=['two', 'one_trunk', 'obs_norm', 'std'],
)
@pytest.mark.parametrize('space', ACTIONS)
def test_compiled_acting_equals_eager_acting_over_rollouts(
    space: str, model: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The graph that was traced, run as it is."""
    if space == 'discrete' and 'state_dependent_std' in model:
        pytest.skip('has no deviation')
    monkeypatch.setattr(compiler, 'inductor', lambda graph, inputs: graph)
    assert_same_acting(space, model, caplog)


@pytest.mark.skipif(bool(compiler.missing_compiler(torch.device('cpu'))), reason='there is no C++ compiler')
def test_acting_through_inductor_equals_eager_acting(caplog: pytest.LogCaptureFixture) -> None:
    assert_same_acting('box', {'obs_norm': True}, caplog)


def assert_same_acting(space: str, model: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    policies = pair(space, **model)
    for n_env in (5, 2):
        obs = torch.randn(N_STEP + 1, n_env, 3, generator=torch.Generator().manual_seed(n_env))
        compiled, eager = (policy.collect_mode.start(obs) for policy in policies)
        assert isinstance(compiled, CompiledActing) and not isinstance(eager, CompiledActing)
        for policy in policies:
            policy.collect_mode.reset()
        for _ in range(3):
            for policy in policies:  # as an update does
                with torch.no_grad():
                    for p in policy._model.parameters():
                        p.add_(0.01)
                policy._model.update_normalizer(obs.flatten(0, 1) * 3 + 1)  # type: ignore[operator]
            act(compiled), act(eager)
            assert compiled.output.keys() == eager.output.keys()
            assert ('value' in eager.output) == ('shared_encoder' in model)
            torch.testing.assert_close(compiled.output, eager.output)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize('model', [{}, {'shared_encoder': True}], ids=['two', 'one_trunk'])
@pytest.mark.parametrize('space', ACTIONS)
def test_acting_by_way_of_one_place_for_each_tensor_is_the_same(
    space: str, model: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a CUDA graph needs it, which reads and writes the same addresses at every step."""
    seen: set[tuple[int, ...]] = set()

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*tensors: torch.Tensor) -> Any:
            seen.add(tuple(x.data_ptr() for x in tensors))
            return graph(*tensors)

        return run

    monkeypatch.setattr(compiler, 'inductor', backend)
    policies = pair(space, **model)
    obs = torch.randn(N_STEP + 1, 5, 3)
    policy = policies[0]
    compiled = CompiledActing(
        policy._model,
        policy._one_trunk,
        obs,
        policy.device,  # type: ignore[attr-defined]
        policy._draw_noise,
        in_place=False,
    )
    eager = policies[1].collect_mode.start(obs)
    for _ in range(3):
        act(compiled), act(eager)
        torch.testing.assert_close(compiled.output, eager.output)
        obs.normal_()
    assert len(seen) == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@needs_gpu
@pytest.mark.parametrize('pinned', [True, False], ids=['obs of the host', 'obs of the device'])
@pytest.mark.parametrize('space', ACTIONS)
@torch.no_grad()
def test_captured_acting_equals_eager_acting_and_waits_for_nothing(
    space: str, pinned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    policies = [
        make_policy(
            OBS, ACTIONS[space], seed=3, device='cuda', learn=dict(compile=compile_), collect=dict(n_step=N_STEP)
        )
        for compile_ in ('on', 'off')
    ]
    obs = torch.randn(N_STEP + 1, 5, 3)
    obs = obs.pin_memory() if pinned else obs.cuda()
    compiled, eager = (policy.collect_mode.start(obs) for policy in policies)
    for i in range(3):
        with no_waiting() if i == 2 else nullcontext():  # the first calls compile and capture
            compiled.begin()
            for t in range(N_STEP):
                compiled.step(t)
        act(eager)
        torch.testing.assert_close(compiled.output, eager.output, rtol=1e-4, atol=1e-5)
        torch.cuda.synchronize()
        obs.normal_()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize('change', ['new buffer', 'new storage', 'another dtype'])
def test_compiled_acting_follows_a_model_whose_tensors_are_replaced(
    change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiler, 'inductor', lambda graph, inputs: graph)
    policies = pair('discrete', obs_norm=True)
    obs = torch.randn(N_STEP + 1, 5, 3)
    compiled, eager = (policy.collect_mode.start(obs) for policy in policies)
    for _ in range(2):
        act(compiled), act(eager)
        torch.testing.assert_close(compiled.output, eager.output)
        for model in (policy._model for policy in policies):
            if change == 'new buffer':
                model.input.register_buffer('extra', torch.ones(1))
            elif change == 'new storage':
                for p in model.parameters():
                    p.data = p.data * 2
            else:
                model.input.mean = model.input.mean.double() + 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_compiled_acting_keeps_no_more_than_the_policy_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other outputs of a model with one trunk are not written, so they are not shown either."""
    monkeypatch.setattr(compiler, 'inductor', lambda graph, inputs: graph)
    policy = pair('discrete', shared_encoder=True)[0]
    both = policy._model.compute_actor_critic
    policy._model.compute_actor_critic = lambda obs: {**both(obs), 'feature': obs}
    acting = policy.collect_mode.start(torch.randn(N_STEP + 1, 5, 3))
    act(acting)
    assert acting.output.keys() == {'action', 'logit', 'value'}


def act(acting: Acting) -> None:
    acting.begin()
    with torch.no_grad():
        for t in range(N_STEP):
            assert torch.equal(acting.step(t), acting.output['action'][t])


def test_compiled_acting_that_fails_halfway_goes_on_as_eager_acting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    n_call = 0

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*tensors: torch.Tensor) -> Any:
            nonlocal n_call
            n_call += 1
            if n_call == 3:
                raise RuntimeError('out of luck')
            return graph(*tensors)

        return run

    monkeypatch.setattr(compiler, 'inductor', backend)
    policies = pair('discrete')
    obs = torch.randn(N_STEP + 1, 5, 3)
    compiled, eager = (policy.collect_mode.start(obs) for policy in policies)
    for _ in range(2):
        act(compiled), act(eager)
        torch.testing.assert_close(compiled.output, eager.output)
    assert n_call == 3  # it is not tried again
    messages = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert messages == ['acting could not be compiled and runs as it stands: RuntimeError: out of luck']


def test_forward_collect_of_ones_own_is_what_acts() -> None:
    class Greedy(PPOPolicy):
        def _forward_collect(self, obs: torch.Tensor, state: Any = None) -> dict[str, Any]:
            logit = self._model.compute_actor(obs)
            return {'action': logit.argmax(-1), 'logit': logit}

    cfg = pair('discrete')[0].cfg
    assert cfg.learn.compile == 'on'
    policy = Greedy(cfg, OBS, ACTIONS['discrete'])
    acting = policy.collect_mode.start(torch.randn(N_STEP + 1, 5, 3))
    act(acting)
    assert torch.equal(acting.output['action'], acting.output['logit'].argmax(-1))
