"""Compiled acting: what it says and does is what the eager policy says and does."""
from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from tests.policy_envs import make_policy
from zoo import compiler
from zoo.policy.base import Policy
from zoo.spaces import Box, Discrete

OBS = Box(np.full(3, -np.inf), np.full(3, np.inf))
ACTIONS = {'discrete': Discrete(4), 'box': Box(np.full(2, -1.0), np.full(2, 1.0))}


def pair(space: str, **model: Any) -> tuple[Policy, Policy]:
    return tuple(make_policy(OBS, ACTIONS[space], seed=3, learn=dict(compile=compile_), model=model)
                 for compile_ in ('on', 'off'))  # type: ignore[return-value]


@pytest.mark.parametrize('model', [{}, {'shared_encoder': True}, {'obs_norm': True}, {'state_dependent_std': True}],
                         ids=['two', 'one_trunk', 'obs_norm', 'std'])
@pytest.mark.parametrize('space', ACTIONS)
def test_compiled_acting_equals_eager_acting_over_rollouts(
        space: str, model: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The graph that was traced, run as it is."""
    if space == 'discrete' and 'state_dependent_std' in model:
        pytest.skip('has no deviation')
    monkeypatch.setattr(compiler, 'inductor', lambda graph, inputs: graph)
    assert_same_acting(space, model, caplog)


@pytest.mark.skipif(bool(compiler.missing_compiler(torch.device('cpu'))), reason='there is no C++ compiler')
def test_acting_through_inductor_equals_eager_acting(caplog: pytest.LogCaptureFixture) -> None:
    assert_same_acting('box', {'obs_norm': True}, caplog)


def assert_same_acting(space: str, model: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    compiled, eager = pair(space, **model)
    for n_env in (5, 5, 2):  # another number of envs is another graph
        obs = torch.randn(n_env, 3, generator=torch.Generator().manual_seed(n_env))
        for policy in (compiled, eager):  # as an update does
            with torch.no_grad():
                for p in policy._model.parameters():
                    p.add_(0.01)
            policy._model.update_normalizer(obs * 3 + 1)  # type: ignore[operator]
            policy.collect_mode.reset()
        for _ in range(3):
            got, want = (policy.collect_mode.forward(obs, None) for policy in (compiled, eager))
            assert got.keys() == want.keys() and ('value' in got) == ('shared_encoder' in model)
            torch.testing.assert_close(got, want)
    assert compiled._acting is not None and eager._acting is None
    assert not compiled._acting._run._failed and len(compiled._acting._run._graphs) == 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
