"""Action masks from every source. The env random_masks raises on an illegal action and rewards the lowest legal one."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

import zoo.core.spaces as plain
from tests.envs import LimitEnv, LimitVectorEnv, play
from zoo.core.spaces import mask_size, mask_space
from zoo.env import EnvConfig, EnvContractError, EnvError, UnsupportedEnvError, VectorEnv, make_env, make_vector_env
from zoo.env.errors import BrokenContractError
from zoo.env.make_vector import vectorization_of
from zoo.env.masks import ChoiceCheck, flat_mask

MODES = ['same_step', 'next_step', 'disabled']
HOWS = ['sync', 'async']
HYBRID = plain.Dict(
    {'kind': plain.Discrete(3), 'size': plain.Box(np.zeros(2), np.ones(2)), 'bits': plain.MultiBinary((2,))}
)


def make(env_id: Any, n_env: int = 2, **fields: Any) -> VectorEnv:
    return make_vector_env(EnvConfig(id=env_id, **fields), n_env)


# --- the mask of one env


@pytest.mark.parametrize(
    ('space', 'mask', 'want'),
    [
        (plain.Discrete(3, 5), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (plain.Discrete(3), [True, False, True], [1, 0, 1]),
        (plain.Discrete(3), np.array([0.0, 1.0, 1.0]), [0, 1, 1]),
        (plain.MultiDiscrete((2, 3), (0, 0), (2,)), np.array([1, 0, 0, 1, 1], bool), [1, 0, 0, 1, 1]),
        (plain.MultiDiscrete((2, 3), (0, 0), (2,)), (np.array([1, 0]), np.array([0, 1, 1])), [1, 0, 0, 1, 1]),
        (plain.MultiDiscrete((2, 3), (0, 0), (2,)), [[1, 0], [0, 1, 1]], [1, 0, 0, 1, 1]),
        (plain.MultiDiscrete((2, 2), (0, 0), (2,)), np.array([[1, 0], [1, 1]]), [1, 0, 1, 1]),
        (plain.MultiDiscrete((2, 1, 1, 2), (0,) * 4, (2, 2)), (([1, 0], [1]), ([1], [0, 1])), [1, 0, 1, 1, 0, 1]),
        (plain.MultiBinary((2, 2)), np.array([[1, 0], [1, 1]]), [1, 0, 1, 1]),
        (HYBRID, {'bits': np.array([0, 1]), 'kind': np.array([1, 0, 1])}, [1, 0, 1, 0, 1]),
        (HYBRID, np.array([1, 0, 1, 0, 1]), [1, 0, 1, 0, 1]),
        (plain.Dict(HYBRID.spaces, True), (np.array([1, 0, 1]), None, np.array([0, 1])), [1, 0, 1, 0, 1]),
        (plain.Dict(HYBRID.spaces, True), [[1, 0, 1], None, np.array([0, 1])], [1, 0, 1, 0, 1]),
        (HYBRID, [1, 0, 1, 0, 1], [1, 0, 1, 0, 1]),
        # one mask for each entry with choices
        (plain.Dict({**HYBRID.spaces, 'kind': plain.Discrete(2)}), [[1, 0], [1, 1]], [1, 0, 1, 1]),
    ],
)
def test_flat_mask_lays_the_parts_side_by_side(space: Any, mask: Any, want: list) -> None:
    found = flat_mask(space, mask)
    assert found.dtype == np.bool_ and found.astype(int).tolist() == want


@pytest.mark.parametrize(
    ('space', 'mask', 'got', 'wanted'),
    [
        (plain.Discrete(3), np.ones(4), 'has 4 bits', '3, one for each action of Discrete'),
        (plain.Discrete(3), None, 'is None (NoneType)', 'an array of 3 zeros and ones'),
        (plain.Discrete(3), 'all', "is 'all' (str)", 'an array of 3 zeros and ones'),
        (plain.Discrete(3), np.array([0, 1, 2]), 'has the value 2', 'zeros and ones'),
        (plain.Discrete(2), np.array([0.5, 1]), 'has the value 0.5', 'zeros and ones'),
        (plain.Discrete(2), np.array([np.nan, 1]), 'has the value nan', 'zeros and ones'),
        (plain.MultiDiscrete((2, 3), (0, 0), (2,)), ([1, 1, 1], [1, 1]), 'of entry 0 has 3 bits', '2, one for each of'),
        (plain.MultiDiscrete((2, 3), (0, 0), (2,)), ([1, 1],), 'has 2 bits', '5, one for each action of'),
        (HYBRID, {'kind': np.ones(3)}, "has no entry 'bits'", 'one each for kind, bits'),
        (HYBRID, np.ones(7), 'has 7 bits', '5, one for each action of'),
    ],
)
def test_flat_mask_of_another_form_says_what_it_has(space: Any, mask: Any, got: str, wanted: str) -> None:
    with pytest.raises(BrokenContractError) as raised:
        flat_mask(space, mask)
    assert got in raised.value.args[0] and wanted in raised.value.args[1]


@pytest.mark.parametrize(
    ('space', 'size'),
    [
        (plain.Discrete(4, -1), 4),
        (plain.MultiDiscrete((2, 3), (0, 0), (2,)), 5),
        (plain.MultiBinary((2, 2)), 4),
        (plain.Box(np.zeros(3), np.ones(3)), 0),
        (HYBRID, 5),
    ],
)
def test_mask_size_counts_the_choices_and_bits(space: Any, size: int) -> None:
    assert mask_size(space) == size


def test_choice_check_finds_the_rows_in_which_a_choice_has_nothing_left() -> None:
    check = ChoiceCheck(plain.Dict({'a': plain.MultiBinary((2,)), 'b': plain.MultiDiscrete((2, 3), (0, 0), (2,))}))
    # columns: two bits, which may all be 0; a choice of 2; a choice of 3
    masks = np.array([[0, 0, 1, 0, 0, 0, 1], [1, 1, 0, 0, 1, 1, 1], [0, 1, 1, 1, 0, 0, 0]], bool)
    assert check.empty(masks).tolist() == [False, True, True]
    assert check.fault(masks[1])[0] == "the action mask allows no value for entry 0 of 'b'"
    assert check.fault(masks[2])[0] == "the action mask allows no value for entry 1 of 'b'"


# --- every source, vectorization and autoreset mode


@pytest.mark.slow
@pytest.mark.parametrize(
    ('source', 'mode', 'how', 'action'),
    [
        (source, mode, HOWS[(i + k) % 2], ['discrete', 'multi_discrete'][(i + k // 2) % 2])
        for i, source in enumerate(('info', 'obs', 'method'))
        for k, mode in enumerate(MODES)
    ],
)
def test_step_the_lowest_action_that_the_mask_allows_earns_every_reward(
    source: str, mode: str, how: str, action: str
) -> None:
    kwargs = {'source': source, 'action': action, 'n_step': 4}
    env = make('random_masks', 3, kwargs=kwargs, vectorization=how, autoreset=mode)
    assert mask_space(env.obs_space) == plain.MultiBinary((8,))
    obs = env.reset(0)
    for _ in range(13):
        assert obs['action_mask'].dtype == torch.bool and obs['obs'].shape == (3, 1)
        mask = obs['action_mask'].int()
        lowest = (
            mask.argmax(1) if action == 'discrete' else torch.stack((mask[:, :3].argmax(1), mask[:, 3:].argmax(1)), 1)
        )
        step = env.step(lowest)
        is_reset = torch.zeros(3, dtype=torch.bool) if step.is_reset is None else step.is_reset
        assert step.reward.tolist() == (~is_reset).float().tolist()
        obs = step.obs
    env.close()


def test_step_an_illegal_action_is_refused_by_the_env() -> None:
    """The oracle of the test above is valid: the env does check its actions."""
    env = make('random_masks', kwargs={'source': 'obs'})
    obs = env.reset(0)
    with pytest.raises(EnvError, match='illegal under the mask'):
        env.step((~obs['action_mask']).int().argmax(1))


def test_taxi_is_masked_by_its_info() -> None:
    """A legal action is one that changes the state."""
    taxi = 'Taxi-v4' if 'Taxi-v4' in gymnasium.registry else 'Taxi-v3'
    env = make(taxi, 4)
    obs = env.reset(0)
    for _ in range(30):
        step = env.step(obs['action_mask'].int().argmax(1))
        assert (step.obs['obs'] != obs['obs']).all()
        obs = {name: x.clone() for name, x in step.obs.items()}


class MaskEnv(LimitEnv):
    """Counts its steps. `has` names its masks: 'info' allows all actions, 'method' not action 2, 'obs' not action 0.

    `change` replaces the info mask of the 2nd step if the action is 1; if it returns None, the info has no mask.
    """

    def __init__(self, has: tuple[str, ...] = ('info',), change: Any = None, limit: int = 9, **spaces: Any) -> None:
        super().__init__(limit)
        self.action_space = Discrete(3)
        vars(self).update(spaces)
        self.has, self.change = has, change
        if 'obs' in has:
            self.observation_space = Dict({'own': self.observation_space, 'action_mask': Box(0, 1, (3,), np.int8)})
        if 'method' in has:
            self.action_masks = lambda: [True, True, False]

    def reset(self, **kwargs: Any) -> Any:
        obs, _ = super().reset(**kwargs)
        return self.shown(obs, np.array([1, 1, 1], np.int8))

    def step(self, action: Any) -> Any:
        obs, *rest, _ = super().step(action)
        mask = np.array([1, 1, 1], np.int8)
        obs, info = self.shown(obs, self.change(mask) if self._n_step == 2 and action == 1 else mask)
        return (obs, *rest, info)

    def shown(self, obs: Any, mask: Any) -> Any:
        shown = {'own': obs, 'action_mask': np.array([0, 1, 1], np.int8)} if 'obs' in self.has else obs
        return shown, {'action_mask': mask} if 'info' in self.has and mask is not None else {}


COUNT = Box(0, 9, (1,))


@pytest.mark.parametrize(
    ('has', 'fields', 'mask'),
    [
        (('info', 'method', 'obs'), {}, [0, 1, 1]),
        (('info', 'method'), {}, [1, 1, 0]),
        (('info',), {}, [1, 1, 1]),
        ((), {}, None),
        (('info', 'method'), {'action_mask': 'off'}, None),
        (('info', 'method'), {'action_mask': 'info'}, [1, 1, 1]),
        (('info', 'method'), {'action_mask': 'method'}, [1, 1, 0]),
        (('obs',), {'action_mask': 'obs'}, [0, 1, 1]),
    ],
)
def test_reset_mask_comes_from_the_source_that_is_set_or_found(has: Any, fields: dict, mask: Any) -> None:
    env = make(MaskEnv, kwargs={'has': has}, **fields)
    obs = env.reset(0)
    assert (mask_space(env.obs_space) is None) == (mask is None)
    assert mask is None or obs['action_mask'].int().tolist() == [mask] * 2
    env.close()


def test_reset_off_leaves_the_entry_as_ordinary_numbers() -> None:
    env = make(MaskEnv, kwargs={'has': ('obs',)}, action_mask='off')
    obs = env.reset(0)
    assert mask_space(env.obs_space) is None and obs['action_mask'].dtype == torch.float32
    assert obs['action_mask'].tolist() == [[0, 1, 1]] * 2 and list(obs) == ['action_mask', 'own']


@pytest.mark.parametrize(
    ('space', 'show', 'entries'),
    [
        (Dict({'a': COUNT, 'b': Tuple((Discrete(2),))}), lambda o: {'a': o, 'b': (1,)}, {'a', 'action_mask', 'b'}),
        (Tuple((COUNT, Discrete(2))), lambda o: (o, 1), {'action_mask', 'obs'}),
    ],
    ids=['joins the entries of a dict', 'stands next to a tuple'],
)
def test_reset_mask_of_nested_observations(space: Any, show: Any, entries: set[str]) -> None:
    class Env(LimitEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = space

        def reset(self, **kwargs: Any) -> Any:
            return show(super().reset(**kwargs)[0]), {'action_mask': np.array([1, 0])}

    obs = make(Env).reset(0)
    assert obs.keys() == entries and (obs['b']['0'] if 'b' in obs else obs['obs']['1']).tolist() == [1, 1]


def test_reset_mask_of_a_shape_of_its_own_is_laid_out_in_a_row() -> None:
    class Env(LimitEnv):
        action_space = MultiDiscrete([2, 2])

        def __init__(self) -> None:
            super().__init__()
            self.action_space = Env.action_space
            self.observation_space = Dict({'a': COUNT, 'action_mask': MultiBinary((2, 2))})

        def reset(self, **kwargs: Any) -> Any:
            return {'a': super().reset(**kwargs)[0], 'action_mask': np.array([[1, 0], [0, 1]], np.int8)}, {}

    assert make(Env).reset(0)['action_mask'].int().tolist() == [[1, 0, 0, 1]] * 2


# --- the reset that looks for a mask


@pytest.mark.parametrize(
    ('has', 'space', 'fields', 'n_reset'),
    [
        ((), Discrete(3), {}, 1),
        (('info',), Discrete(3), {}, 1),
        (('method',), Discrete(3), {}, 0),
        (('obs',), Discrete(3), {}, 0),
        ((), Box(-1, 1, (2,)), {}, 0),  # nothing to mask
        ((), Discrete(3), {'action_mask': 'off'}, 0),
        (('info',), Discrete(3), {'action_mask': 'info'}, 0),
    ],
)
def test_make_vector_env_resets_the_first_env_only_where_it_must(
    has: Any, space: Any, fields: dict, n_reset: int
) -> None:
    made, reset = [], []

    class Env(MaskEnv):
        def __init__(self) -> None:
            super().__init__(has, action_space=space)
            made.append(self)

        def reset(self, **kwargs: Any) -> Any:
            reset.append(self)
            return super().reset(**kwargs)

    make(Env, 3, **fields)
    assert len(made) == 3 and reset == made[:1] * n_reset


# --- invalid masks


EMPTY = 'the action mask allows no action, wanted at least one; end the episode where nothing may be done'
FAULTS = {
    'length': (lambda mask: np.ones(2), 'the action mask has 2 bits, wanted 3, one for each action'),
    'type': (lambda mask: 'all', r"the action mask is 'all' \(str\), wanted an array of 3 zeros and ones"),
    'value': (lambda mask: mask * 2, 'the action mask has the value 2, wanted zeros and ones'),
    'missing': (lambda mask: None, "the info of step has no 'action_mask', wanted the action mask of 3 bits; put"),
    'all false': (lambda mask: mask * 0, EMPTY),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('case', 'mode', 'how'), [(case, MODES[(i + k) % 3], HOWS[k]) for i, case in enumerate(FAULTS) for k in range(2)]
)
def test_step_mask_that_is_none_names_env_index_and_step(case: str, mode: str, how: str) -> None:
    change, message = FAULTS[case]
    env = make(MaskEnv, 3, kwargs={'change': change}, vectorization=how, autoreset=mode)
    with pytest.raises(EnvContractError, match=r"env '.*MaskEnv', index 2, step 2: " + message):
        play(env, [0, 0, 1], [0, 0, 1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ('case', 'mode', 'how'),
    [
        (case, mode, HOWS[(i + k) % 2])
        for i, case in enumerate(('missing', 'all false'))
        for k, mode in enumerate(MODES)
    ],
)
def test_step_mask_where_the_episode_ends_may_be_none_and_becomes_all_true(case: str, mode: str, how: str) -> None:
    kwargs = {'change': FAULTS[case][0], 'limit': 2}
    _, step, after = play(make(MaskEnv, kwargs=kwargs, vectorization=how, autoreset=mode), *[[1, 1]] * 3)
    assert step.truncated.all()
    final = step.obs if mode == 'next_step' else step.final_obs
    assert final['action_mask'].all() and final['obs'].tolist() == [[2], [2]]
    assert after.obs['action_mask'].all()


def test_reset_mask_that_is_all_false_names_step_0() -> None:
    class Env(MaskEnv):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], {'action_mask': np.zeros(3)}

    with pytest.raises(EnvContractError, match='index 0, step 0: ' + EMPTY):
        make(Env).reset(0)


# --- sources of masks that are refused


BOX = Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ('kwargs', 'fields', 'message'),
    [
        ({'action_space': BOX}, {'action_mask': 'info'}, 'numbers of a Box cannot be masked, only those of Discrete'),
        ({'has': ('obs',), 'action_space': BOX}, {}, 'numbers of a Box cannot be masked.*use env.action_mask=off'),
        ({'has': ('obs',), 'action_space': Discrete(4)}, {}, "the entry 'action_mask' .* wanted 4 zeros and ones"),
        ({'has': ()}, {'action_mask': 'method'}, "action_mask is 'method' but the env has no method action_masks"),
        ({}, {'action_mask': 'obs'}, "env.action_mask is 'obs' but the observations have no entry 'action_mask'"),
        ({'has': ('obs',)}, {'action_mask': 'info'}, "the observations have an entry 'action_mask' already"),
        (
            {},
            {'id': 'tests.envs:LimitSameStep-v0', 'vectorization': 'batched', 'action_mask': 'info'},
            "env.action_mask is set but env.vectorization is 'batched'.*use env.vectorization=sync",
        ),
    ],
)
def test_make_vector_env_mask_that_cannot_be_is_refused(kwargs: dict, fields: dict, message: str) -> None:
    with pytest.raises(UnsupportedEnvError, match=message):
        make_vector_env(EnvConfig(**{'id': MaskEnv, 'kwargs': kwargs, **fields}), 2)


def test_make_vector_env_auto_takes_sync_for_masks_of_single_envs_and_batched_has_none() -> None:
    assert mask_space(make('tests.envs:LimitSameStep-v0', vectorization='batched').obs_space) is None
    env = make('CartPole-v1', action_mask='info')  # it has a batched version, which knows only next_step
    assert env.autoreset == 'same_step'
    with pytest.raises(EnvContractError, match="step 0: the info of reset has no 'action_mask'"):
        env.reset(0)


def test_make_env_has_the_mask_too() -> None:
    env = make_env(EnvConfig(id='random_masks'))
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs) and obs['action_mask'].sum() > 0
    assert isinstance(env, gymnasium.Env)


# --- masks in the infos of a batch, which are not read


class InfoMaskVectorEnv(LimitVectorEnv):
    """Its infos have masks: in resets and steps, or, if `call` is 'step', in steps only."""

    call = 'reset'

    def reset(self, **kwargs: Any) -> Any:
        obs, _ = super().reset(**kwargs)
        return obs, {'action_mask': np.ones((self.num_envs, 2))} if self.call == 'reset' else {}

    def step(self, actions: Any) -> Any:
        *values, _ = super().step(actions)
        return *values, {'action_mask': np.ones((self.num_envs, 2))}


@pytest.mark.parametrize('call', ['reset', 'step'])
def test_batched_env_whose_infos_have_masks_is_refused(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InfoMaskVectorEnv, 'call', call)
    gymnasium.register('InfoMask-v0', 'tests.envs:LimitEnv', vector_entry_point=InfoMaskVectorEnv)
    try:
        for mask in ('auto', 'off'):
            env = make('InfoMask-v0', vectorization='batched', action_mask=mask)
            with pytest.raises(UnsupportedEnvError) if mask == 'auto' else contextlib.nullcontext() as raised:
                env.reset(0)
                env.step(torch.tensor([0, 0]))
            if raised is not None:
                assert str(raised.value) == (
                    f"env 'InfoMask-v0': the info of {call} has 'action_mask', but of envs that step as one batch only "
                    "an entry 'action_mask' of the observations is read; give them one, or use env.vectorization=sync "
                    'if that env can be made alone, or env.action_mask=off.'
                )
    finally:
        gymnasium.registry.pop('InfoMask-v0')


class OneActionEnv(LimitEnv):
    """Its infos have a mask that allows action 1 alone."""

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0], {'action_mask': np.array([0, 1])}

    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], {'action_mask': np.array([0, 1])})


def test_auto_takes_single_envs_where_the_batched_version_has_masks_in_infos_alone() -> None:
    gymnasium.register('OneAction-v0', OneActionEnv, vector_entry_point=InfoMaskVectorEnv)
    try:
        cfg = EnvConfig(id='OneAction-v0')
        assert vectorization_of(cfg) == 'sync'
        assert vectorization_of(cfg.model_copy(update={'action_mask': 'off'})) == 'batched'
        env = make('OneAction-v0')
        assert env.reset(0)['action_mask'].tolist() == [[False, True]] * 2
        env.close()
    finally:
        gymnasium.registry.pop('OneAction-v0')


class BrokenResetVectorEnv(LimitVectorEnv):
    def reset(self, **kwargs: Any) -> Any:
        raise OSError('no display')


def test_batched_version_whose_reset_raises_stays_the_choice_and_raises_in_the_run() -> None:
    gymnasium.register('NoDisplay-v0', 'tests.envs:LimitEnv', vector_entry_point=BrokenResetVectorEnv)
    try:
        env = make('NoDisplay-v0')
        with pytest.raises(OSError, match='no display'):
            env.reset(0)
    finally:
        gymnasium.registry.pop('NoDisplay-v0')
