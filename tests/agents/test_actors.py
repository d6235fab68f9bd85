"""Policies that only act: random choices, functions, saved runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zoo.agents.actors import Actor, as_collect_mode, check_actor, function_mode, load_function, random_mode
from zoo.config.section import ConfigError
from zoo.core.action_map import ActionMap
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from zoo.policy.modes import EvalMode

N = 20_000


def drawn(space, obs, mode='clip'):
    return random_mode(space, mode).sample(obs, None, torch.Generator().manual_seed(0))['action']


def test_each_allowed_choice_has_the_same_probability():
    mask = torch.tensor([True, False, True, True]).expand(N, 4)
    action = drawn(Discrete(4), {'obs': torch.zeros(N, 1), 'action_mask': mask})
    counts = torch.bincount(action, minlength=4) / N
    assert counts[1] == 0
    assert torch.allclose(counts[[0, 2, 3]], torch.tensor(1 / 3), atol=5 * (2 / 9 / N) ** 0.5)


def test_each_choice_of_several_has_bits_of_its_own():
    space = Dict({'pair': MultiDiscrete((2, 3), (0, 0), (2,)), 'bits': MultiBinary((2,))})
    mask = torch.tensor([0, 1, 1, 0, 1, 0, 1]).bool().expand(N, 7)
    action = drawn(space, {'obs': torch.zeros(N, 1), 'action_mask': mask})
    assert set(action[:, 0].tolist()) == {1}
    assert set(action[:, 1].tolist()) == {0, 2}
    assert set(action[:, 2].tolist()) == {0}
    assert set(action[:, 3].tolist()) == {0, 1}


def test_numbers_lie_between_the_bounds():
    box = Box(np.array([0.0, -np.inf], np.float32), np.array([4.0, np.inf], np.float32))
    action = drawn(box, torch.zeros(N, 1))
    assert (action[:, 0].min() >= 0, action[:, 0].max() <= 4) == (True, True)
    assert abs(float(action[:, 0].mean()) - 2) < 0.05
    rescaled = drawn(box, torch.zeros(N, 1), 'rescale')
    assert abs(float(rescaled[:, 0].mean())) < 0.03
    assert rescaled[:, 0].max() <= 1


def test_function_gets_arrays_and_mask():
    seen = {}

    def act(obs, mask):
        seen.update(obs=obs, mask=mask)
        return mask.argmax(1)

    obs = {'obs': torch.ones(2, 3), 'action_mask': torch.tensor([[False, True], [True, True]])}
    assert function_mode(act, 'bot', Discrete(2), 'clip').forward(obs, None)['action'].tolist() == [1, 0]
    assert isinstance(seen['obs']['obs'], np.ndarray)
    with pytest.raises(
        ConfigError, match=r'act returned an array of shape \(3,\) but must return an action for each of the 2 rows'
    ):
        function_mode(lambda obs, mask: np.zeros(3), 'agents.policies.bot.act', Discrete(2), 'clip').forward(obs, None)


UNITS = {
    'choices from 1': (Discrete(3, start=1), 'clip', [1, 3], [0, 2]),
    'choices from 0': (Discrete(3), 'clip', [0, 2], [0, 2]),
    'several choices': (MultiDiscrete((2, 3), (0, 5), (2,)), 'clip', [[1, 5], [0, 7]], [[1, 0], [0, 2]]),
    'numbers between bounds': (
        Box(np.float32([0, -4]), np.float32([10, 0])),
        'rescale',
        [[5, -4], [10, -1]],
        [[0, -1], [1, 0.5]],
    ),
    'numbers that are clipped': (
        Box(np.float32([0, -4]), np.float32([10, 0])),
        'clip',
        [[5, -4], [10, -1]],
        [[5, -4], [10, -1]],
    ),
    'no bound': (Box(np.float32([0]), np.float32([np.inf])), 'rescale', [[7.0], [8.0]], [[7.0], [8.0]]),
}


@pytest.mark.parametrize('case', UNITS)
def test_function_returns_actions_of_the_env(case):
    """They come back as the same ones from the map that the env's actions go through."""
    space, mode, actions, expected = UNITS[case]
    action = function_mode(lambda obs, mask: np.array(actions), 'bot', space, mode).forward(torch.zeros(2, 1))['action']
    assert action.tolist() == expected
    assert ActionMap(space, mode)(action).tolist() == actions


def test_function_with_too_many_numbers_is_refused():
    mode = function_mode(lambda obs, mask: np.zeros((2, 2)), 'bot', Discrete(3), 'clip')
    with pytest.raises(
        ConfigError, match=r'shape \(2, 2\) but must return an action for each of the 2 rows, of 1 number[.]'
    ):
        mode.forward(torch.zeros(2, 1))


@pytest.mark.parametrize('returned', [None, 'left', [None, 1]])
def test_function_that_returns_no_numbers_is_refused(returned):
    mode = function_mode(lambda obs, mask: returned, 'my_bots:play', Discrete(2), 'clip')
    with pytest.raises(
        ConfigError, match='my_bots:play returned .* but must return an array of numbers, an action for each row'
    ):
        mode.forward({'obs': torch.ones(2, 3)}, None)


def test_draws_depend_on_seed_group_and_rollout_alone():
    def actions(seed, first, collect_iter):
        mode = as_collect_mode(Actor(random_mode(Discrete(1000), 'clip'), draws=True), 'bot', seed, 3, 1)
        acting = mode.start(torch.zeros(4, 5, 1), first)
        for i in range(collect_iter + 1):
            mode.begin(i)
        return [acting.step(t).tolist() for t in range(3)]

    base = actions(0, 0, 1)
    assert base == actions(0, 0, 1)
    others = [actions(1, 0, 1), actions(0, 5, 1), actions(0, 0, 2)]
    assert base not in others
    assert base[0] != base[1]


@pytest.mark.parametrize(
    ('differs', 'sentence'),
    [
        ({'type': 'random', 'learn': {}}, "has the key 'learn' but a policy of type 'random' has type"),
        ({'type': 'function'}, "is of type 'function' but lacks 'act'"),
        ({'type': 'saved'}, "is of type 'saved' but lacks 'path'"),
        ({'type': 'saved', 'path': None}, "is of type 'saved' but lacks 'path'"),
    ],
)
def test_wrong_keys_are_refused(differs, sentence):
    with pytest.raises(ConfigError, match=sentence):
        check_actor('bot', differs)


@pytest.mark.parametrize('name', ['evil', 'evil-mod:one', 'os'])
def test_what_is_no_name_of_code_is_never_loaded(name):
    with pytest.raises(ConfigError, match="must be 'module:function'"):
        load_function('bot', name)


def test_what_is_no_function_is_refused():
    with pytest.raises(ConfigError, match='agents.policies.bot.act is 3 but must be a function'):
        load_function('bot', 3)


@pytest.mark.long
def test_state_of_an_actor_may_be_on_another_device_than_its_rows():
    """The meta device refuses to be mixed with the CPU as a GPU does; observations and actions are on the CPU."""

    def sample(obs, state, generator):
        assert state.shape == (2, 3) and state.is_meta
        return {'action': obs[:, 0].long(), 'state': state + 1}

    mode = EvalMode(sample, lambda n: torch.zeros(n, 3, device='meta'), sample=sample)
    acting = as_collect_mode(Actor(mode, draws=True), 'bot', 0, 2, 1).start(torch.arange(12.0).view(3, 4, 1), 0)
    acting.wanted = torch.tensor([True, False, False, True])
    assert acting.step(1).flatten().tolist() == [4, 0, 0, 7]
    assert acting.state.is_meta
