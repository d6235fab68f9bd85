"""Actions of agents as their envs get them: clipped, rescaled, of several parts."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from tests.agents.envs import Clockwork
from zoo import SerialJob


class Pushes(Clockwork):
    """Clockwork whose agents push with a number from 10 to 20, b with two of them; it records what it gets."""

    got: ClassVar[list[tuple[str, Any]]] = []

    def action_space(self, agent: str) -> gymnasium.Space:
        n = 2 if agent == 'b' else 1
        return gymnasium.spaces.Box(10.0, 20.0, (n,), np.float32)

    def step(self, actions: dict[str, Any]) -> Any:
        self.got.extend(actions.items())
        return super().step(actions)


class Mixed(Pushes):
    """Actions of two parts: a choice of 3 from 5 on, and a number."""

    def action_space(self, agent: str) -> gymnasium.Space:
        parts = (gymnasium.spaces.Discrete(3, start=5), gymnasium.spaces.Box(10.0, 20.0, (1,), np.float32))
        if agent == 'b':
            return gymnasium.spaces.Dict(which=parts[0], much=parts[1])
        return gymnasium.spaces.Tuple(parts)


def rollout(root, env_id, mode):
    """The actions that the env got from copy 0, by agent, and the raw ones of the policies in the rollout."""
    config = dict(
        max_env_step=1_000,
        logger=dict(root=str(root), console='off', tensorboard=False),
        env=dict(
            id=env_id, collector_env_num=1, evaluator_env_num=1, vectorization='sync', action_mode=mode, check=False
        ),
        policy=dict(type='ppo', model=dict(hidden_sizes=[8]), collect=dict(n_step=5), learn=dict(batch_size=5)),
        agents=dict(policies=dict(b={}, other={}), mapping={'b': 'b', '*': 'other'}),
    )
    with SerialJob(config) as job:
        Pushes.got.clear()
        rollouts = job.collector.collect_by_name()
    raw = {'b': rollouts['b'].data['action'][:, 0], 'a': rollouts['other'].data['action'][:, 0]}
    raw['c'] = rollouts['other'].data['action'][:, 1]
    return {agent: [x for name, x in Pushes.got if name == agent] for agent in 'abc'}, raw


@pytest.mark.parametrize('mode', ['clip', 'rescale'])
def test_numbers_are_clipped_or_rescaled_to_the_bounds_of_the_agent(mode, tmp_path):
    """By hand: clip(x, 10, 20); or 15 + 5 x for x in [-1, 1]. a acts twice, b four times, c three times."""
    got, raw = rollout(tmp_path, Pushes, mode)
    assert [len(got[agent]) for agent in 'abc'] == [2, 4, 3]
    for agent, actions in got.items():
        for k, action in enumerate(actions):
            x = raw[agent][k].numpy()
            wanted = np.clip(x, 10, 20) if mode == 'clip' else 15 + 5 * np.clip(x, -1, 1)
            assert action.shape == ((2,) if agent == 'b' else (1,))
            np.testing.assert_allclose(action, wanted, rtol=1e-6)


def test_actions_of_parts_have_the_form_of_the_env(tmp_path):
    got, raw = rollout(tmp_path, Mixed, 'rescale')
    for k, (which, much) in enumerate(got['a'] + got['c']):
        choice, x = (raw['a'] if k < 2 else raw['c'])[k if k < 2 else k - 2].tolist()
        assert which == 5 + choice
        np.testing.assert_allclose(much, [15 + 5 * np.clip(x, -1, 1)], rtol=1e-6)
    for k, action in enumerate(got['b']):
        choice, x = raw['b'][k].tolist()
        assert action['which'] == 5 + choice
        np.testing.assert_allclose(action['much'], [15 + 5 * np.clip(x, -1, 1)], rtol=1e-6)


class Uneven(Pushes):
    """Agents with other numbers of choices and observations: a 1 and 2, b 2 and 3, c 3 and 4."""

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(-np.inf, np.inf, ('abc'.index(agent) + 1,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete('abc'.index(agent) + 2)

    def observed(self, agent: str) -> np.ndarray:
        return np.full('abc'.index(agent) + 1, 1.0 + self._t, np.float32)


@pytest.mark.parametrize('kind', ['ppo', 'random'])
def test_padded_choices_are_never_taken(kind, tmp_path):
    """By hand: after its own numbers an agent observes zeros; the mask allows its own choices."""
    policies = dict(all={})
    mapping = {'*': 'all'}
    if kind == 'random':
        policies['dice'] = dict(type='random')
        mapping = {'a': 'dice', 'b': 'dice', '*': 'all'}
    config = dict(
        max_env_step=1_000,
        logger=dict(root=str(tmp_path), console='off', tensorboard=False),
        env=dict(id=Uneven, collector_env_num=4, evaluator_env_num=1, vectorization='sync', check=False),
        policy=dict(type='ppo', model=dict(hidden_sizes=[8]), collect=dict(n_step=50), learn=dict(batch_size=50)),
        agents=dict(pad=True, policies=policies, mapping=mapping),
    )
    with SerialJob(config) as job:
        Pushes.got.clear()
        rollouts = job.collector.collect_by_name()
        job.evaluate()
    for i, agent in enumerate('abc'):
        assert {int(x) for name, x in Pushes.got if name == agent} == set(range(i + 2))
    if kind == 'ppo':
        (rollout,) = rollouts.values()
        obs = rollout.data['obs']
        assert obs['obs'][1, 1].tolist() == [2, 2, 0]  # b in step 1
        assert obs['agent'][1, 1].tolist() == [0, 1, 0]
        assert obs['action_mask'][1, 1].tolist() == [1, 1, 1, 0]
        assert (rollout.data['logit'][1, 1] < -1e30).tolist() == [False, False, False, True]
