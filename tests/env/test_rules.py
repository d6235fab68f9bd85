"""Rules that change rows of a rollout: env.ends, which decides the ends of episodes that are terminal; broken episodes."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from tests.envs import LimitEnv, play
from tests.policy.hand import EPISODE, MODES, collect, hand_policy
from zoo.config.section import ConfigError
from zoo.env import EnvConfig, UnsupportedEnvError, make_vector_env
from zoo.env.config import env_config
from zoo.env.infos import BROKEN
from zoo.env.interface import StepBlock
from zoo.env.rules import BrokenEpisodes

NO_ENVS: Any = None  # the rule does not use them


@pytest.mark.slow(first=True)
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize(
    ('end', 'ends', 'taken_as'),
    [
        ('terminated', {'terminated': 'bootstrap'}, 'truncated'),
        ('truncated', {'truncated': 'terminal'}, 'terminated'),
        ('truncated', {'terminated': 'bootstrap'}, 'truncated'),
    ],
)
def test_ends_decide_whether_the_last_value_is_bootstrapped(
    mode: str, end: str, ends: dict[str, Any], taken_as: str
) -> None:
    policy = hand_policy(lambda s: 10 + s, 5, 0.5)
    rollout = collect(policy, {**MODES[mode], 'kwargs': {'end': end}, 'ends': ends}, 1)
    samples = policy.collect_mode.get_train_sample(rollout)
    torch.testing.assert_close(samples['adv'], torch.tensor(EPISODE[taken_as]))


class FlagsEnv(LimitEnv):
    """Episodes of two steps; the end has given flags and a given info."""

    def __init__(self, terminated: bool, truncated: bool, info: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.flags, self.info = (terminated, truncated), info or {}

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        ends = self._n_step == 2
        terminated, truncated = self.flags
        return obs, reward, terminated and ends, truncated and ends, self.info


def flags_of(kwargs: dict[str, Any], **fields: Any) -> list[tuple[bool, bool]]:
    """(terminated, truncated) of four steps of one env."""
    vector = make_vector_env(EnvConfig(id=FlagsEnv, kwargs=kwargs, **fields), 1)
    steps = play(vector, *[[0]] * 4)
    return [(bool(step.terminated[0]), bool(step.truncated[0])) for step in steps]


DEATH, LIMIT, BOTH = (True, False), (False, True), (True, True)


@pytest.mark.parametrize(
    ('flags', 'info', 'ends', 'taken_as'),
    [
        (DEATH, {}, {'truncated': 'terminal'}, DEATH),
        (DEATH, {}, {'terminated': 'bootstrap'}, LIMIT),
        (LIMIT, {}, {'truncated': 'terminal'}, DEATH),
        (BOTH, {}, {'truncated': 'terminal'}, DEATH),
        (BOTH, {}, {'terminated': 'bootstrap'}, LIMIT),  # both: as terminated
        (BOTH, {}, {'both': 'bootstrap'}, LIMIT),
        (DEATH, {}, {'both': 'bootstrap'}, DEATH),
        (BOTH, {}, {'terminated': 'bootstrap', 'both': 'terminal'}, DEATH),
        (DEATH, {'aborted': True}, {'bootstrap_if': {'aborted': True}}, LIMIT),
        (DEATH, {'aborted': False}, {'bootstrap_if': {'aborted': True}}, DEATH),
        (DEATH, {'end_status': -1}, {'bootstrap_if': {'end_status': -1}}, LIMIT),
        (DEATH, {'end_status': 2}, {'bootstrap_if': {'end_status': -1}}, DEATH),
        (DEATH, {}, {'bootstrap_if': {'end_status': -1}}, DEATH),
        (LIMIT, {'illegal': 1}, {'terminal_if': {'illegal': True}}, DEATH),
        (LIMIT, {'illegal': 0}, {'terminal_if': {'illegal': True}}, LIMIT),
        (LIMIT, {'a': 1, 'b': 1}, {'terminal_if': {'a': 1}, 'bootstrap_if': {'b': 1}}, DEATH),  # terminal_if comes last
    ],
)
def test_ends_follow_the_flags_and_the_last_info(
    flags: tuple[bool, bool],
    info: dict[str, Any],
    ends: dict[str, Any],
    taken_as: tuple[bool, bool],
) -> None:
    kwargs = {'terminated': flags[0], 'truncated': flags[1], 'info': info}
    middle = (False, False)
    assert flags_of(kwargs, ends=ends) == [middle, taken_as, middle, taken_as]


def test_ends_read_the_infos_of_worker_processes_too() -> None:
    kwargs = {'terminated': True, 'truncated': False, 'info': {'end_status': -1}}
    flags = flags_of(kwargs, ends={'bootstrap_if': {'end_status': -1}}, vectorization='async')
    assert flags == [(False, False), LIMIT, (False, False), LIMIT]


def test_ends_named_entry_that_no_info_has_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    cfg = EnvConfig(
        id=FlagsEnv,
        kwargs={'terminated': True, 'truncated': False, 'info': {'aborted': True, 'other': 'text'}},
        ends={'bootstrap_if': {'abborted': True}, 'terminal_if': {'aborted': False}},
    )
    with caplog.at_level(logging.WARNING):
        play(make_vector_env(cfg, 4), *[[0] * 4] * 200)  # 100 ends in each of 4 envs
    (text,) = caplog.messages
    assert "env.ends looks for 'abborted' in the infos, but at none of the first 100 ends" in text
    assert "the last one had 'aborted'. Correct the name" in text


class RaisingEnv(LimitEnv):
    """Raises in the third step of each episode."""

    def step(self, action: Any) -> Any:
        if self._n_step == 2:
            raise ValueError('a fault of the env')
        return super().step(action)


@pytest.mark.parametrize('autoreset', ['same_step', 'next_step'])
def test_ends_leave_an_episode_that_broke_off_without_a_terminal_state(autoreset: str) -> None:
    cfg = EnvConfig(id=RaisingEnv, on_error='restart', autoreset=autoreset, ends={'truncated': 'terminal'})
    *_, broken = play(make_vector_env(cfg, 1), [0], [0], [0])
    assert (bool(broken.terminated), bool(broken.truncated), bool(broken.is_reset)) == (False, True, True)


def test_ends_of_a_tensor_program_are_refused() -> None:
    with pytest.raises(UnsupportedEnvError, match='env.ends is set but .* is a tensor program'):
        make_vector_env(EnvConfig(id='torch', game='CartPole-v1', ends={'truncated': 'terminal'}), 2)


@pytest.mark.parametrize(
    'ends', [{'truncated': 'end'}, {'terminal': True}, {'bootstrap_if': {'a': 'text'}}, {'terminal_if': ['a']}]
)
def test_ends_with_another_word_or_value_are_refused(ends: Any) -> None:
    with pytest.raises(ConfigError, match='env.ends'):
        env_config({'id': FlagsEnv, 'ends': ends})


@pytest.mark.parametrize('resets_are_marked', [False, True])
def test_env_that_failed_is_in_a_column_of_its_own_and_an_env_that_only_resets_is_not(resets_are_marked: bool) -> None:
    rule = BrokenEpisodes(resets_are_marked)
    columns = [*rule.columns, *(['is_reset'] if resets_are_marked else [])]
    block = StepBlock(1, torch.zeros(3, 1), columns, arrays=True)
    row = block.rows[0]
    row.is_reset[:] = [True, False, False]  # of autoreset next_step
    row.terminated[:] = False
    row.truncated[:] = [False, True, False]  # env 1 reached its time limit
    rule.on_step(NO_ENVS, block, 0, {BROKEN: np.array([False, False, True])})  # env 2 failed
    assert block.steps.is_broken.tolist() == [[False, False, True]]
    assert block.steps.truncated.tolist() == [[False, True, True]]
    assert block.steps.is_reset.tolist() == [[resets_are_marked, False, True]]
    begins = [True, False, True] if resets_are_marked else [False, True, True]
    assert block.steps.begins.tolist() == [begins]
