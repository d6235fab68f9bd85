"""Ids whose batched version is another task than their single env: refused where nobody asked for it, else named."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from tests.envs import LimitEnv, LimitVectorEnv
from zoo.env import EnvConfig, EnvContractError, check_env, inspect_env


class OtherVectorEnv(LimitVectorEnv):
    """A batched LimitEnv with other observations, actions or rewards, as `how` says."""

    def __init__(self, num_envs: int = 1, how: str = '', reward_clipping: bool = False) -> None:
        super().__init__(num_envs, action='box' if how == 'actions' else 'discrete')
        self.how = how
        if how == 'observations':
            space = Box(0.0, np.inf, (2,), np.float32)
            self.single_observation_space = space
            self.observation_space = gymnasium.vector.utils.batch_space(space, num_envs)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return self._shown(obs), info

    def step(self, actions: Any) -> Any:
        obs, reward, *rest = super().step(actions)
        # in the rows of a reset the reward is 0
        return (self._shown(obs), reward * (10 if self.how.startswith('rewards') else 1), *rest)

    def _shown(self, obs: np.ndarray) -> np.ndarray:
        if self.how == 'observations':
            return np.repeat(obs, 2, axis=1)
        return obs + 3 if self.how == 'rewards, other states' else obs


class SingleEnv(LimitEnv):
    def __init__(self, how: str = '') -> None:
        super().__init__()


gymnasium.register('Other-v0', entry_point=SingleEnv, vector_entry_point=OtherVectorEnv)
DIFFERENCES = {
    'actions': 'its actions are Box (1,) float32, not Discrete(2)',
    'rewards': 'a step from the same state with the same action gives the reward 10, not 1',
    'rewards, other states': 'its rewards are 10, not 1',
}


def other(how: str, **fields: Any) -> EnvConfig:
    return EnvConfig(id='Other-v0', kwargs={'how': how}, **fields)


@pytest.mark.parametrize('how', DIFFERENCES)
def test_batched_version_that_is_another_task_is_refused_unless_it_was_asked_for(how: str) -> None:
    said = f"env 'Other-v0': its batched version, which env.vectorization={{}} uses, is another task than the single env: {DIFFERENCES[how]}; "
    with pytest.raises(EnvContractError) as raised:
        check_env(other(how))
    assert str(raised.value).startswith(
        said.format('auto') + 'set env.vectorization=sync to train in the env of this id'
    )
    (sentence,) = check_env(other(how, vectorization='batched'))
    assert sentence == said.format('batched') + 'compare its returns only with those of the same version.'
    assert check_env(other(how, vectorization='sync')) == []


def test_report_of_an_env_is_about_the_version_that_the_run_uses() -> None:
    report = inspect_env(other('observations'), n_step=30)
    (problem,) = report.problems
    assert 'its observations are Box (2,) float32, not Box (1,) float32;' in problem
    assert report.facts['obs_space'] == 'Box (2,) float32 in 0 .. inf' and report.facts['vectorization'] == 'batched'
    report = inspect_env(other('observations', vectorization='sync'), n_step=30)
    assert report.problems == [] and report.facts['obs_space'] == 'Box (1,) float32 in 0 .. inf'


@pytest.mark.parametrize('env_id', ['CartPole-v1', 'tests.envs:Limit-v0', 'Other-v0'])
@pytest.mark.parametrize('how', ['auto', 'batched'])
def test_batched_version_of_the_same_task_is_not_spoken_of(env_id: str, how: Any) -> None:
    assert check_env(EnvConfig(id=env_id, vectorization=how), n_step=30) == []


def test_clipped_rewards_of_a_batched_version_are_named_with_the_key_for_evaluation() -> None:
    # the single env has no such argument, so that the two cannot be compared
    cfg = EnvConfig(id='Other-v0', kwargs={'reward_clipping': True}, vectorization='batched')
    (sentence,) = check_env(cfg)
    assert sentence.startswith("env 'Other-v0': its batched version clips rewards (env.kwargs.reward_clipping is true)")
    assert 'policy.eval.env.kwargs.reward_clipping=false evaluates' in sentence
    assert check_env(cfg.model_copy(update={'kwargs': {'reward_clipping': False}})) == []


@pytest.mark.long
def test_batched_version_of_a_game_of_ale_is_another_task_with_clipped_rewards() -> None:
    pytest.importorskip('ale_py')
    task, clipped = check_env(EnvConfig(id='ale_py:ALE/MsPacman-v5', vectorization='batched'))
    assert 'its observations are Box (4, 84, 84) uint8, not Box (210, 160, 3) uint8' in task
    assert 'clips rewards (env.kwargs.reward_clipping is true)' in clipped
