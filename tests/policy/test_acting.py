"""Compiled acting: what it says and does is what the eager policy says and does."""
from __future__ import annotations

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


@pytest.fixture(autouse=True)
def _no_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, 'inductor', lambda graph, inputs: graph)


def pair(space: str, **model: Any) -> tuple[Policy, Policy]:
    return tuple(make_policy(OBS, ACTIONS[space], seed=3, learn=dict(compile=compile_), model=model)
                 for compile_ in ('on', 'off'))  # type: ignore[return-value]


@pytest.mark.parametrize('model', [{}, {'shared_encoder': True}, {'obs_norm': True}, {'state_dependent_std': True}],
                         ids=['two', 'one_trunk', 'obs_norm', 'std'])
@pytest.mark.parametrize('space', ACTIONS)
def test_compiled_acting_equals_eager_acting_over_rollouts(space: str, model: dict[str, Any]) -> None:
    if space == 'discrete' and 'state_dependent_std' in model:
        pytest.skip('has no deviation')
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
