"""One env for each way to break the contract, all made from one that keeps it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from tests.envs import LimitEnv, LimitVectorEnv, limit_env
from tests.policy_envs import job_config
from zoo import serial_pipeline
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.env import EnvConfig, EnvContractError, check_env, make_env, make_vector_env
from zoo.env.config import env_config


class StepEnv(LimitEnv):
    """Returns `change(obs, reward, terminated, truncated, info)` from its 2nd step on."""

    def __init__(self, change: Any, n_good: int = 1, **spaces: Any) -> None:
        super().__init__()
        self.change, self.n_good = change, n_good
        vars(self).update(spaces)

    def step(self, action: Any) -> Any:
        result = super().step(action)
        return result if self._n_step <= self.n_good else self.change(*result)


class ResetEnv(LimitEnv):
    """Returns `change(obs, info)` from reset."""

    def __init__(self, change: Any, **spaces: Any) -> None:
        super().__init__()
        self.change = change
        vars(self).update(spaces)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return self.change(*super().reset(seed=seed))


class DiscreteObsEnv(LimitEnv):
    """The observation is `obs` from a Discrete(3, start=1)."""

    def __init__(self, obs: Any) -> None:
        super().__init__()
        self.observation_space = Discrete(3, start=1)
        self.obs = obs

    def reset(self, **kwargs: Any) -> Any:
        return self.obs, super().reset(**kwargs)[1]

    def step(self, action: Any) -> Any:
        return (self.obs, *super().step(action)[1:])


STEP_BREAKS = {
    'four values': (lambda o, r, te, tr, i: (o, r, te or tr, i), 'step returned a tuple of 4, wanted a tuple of 5'),
    'a list': (lambda *v: list(v), 'step returned a list, wanted a tuple of 5'),
    'obs list': (lambda o, *v: ([2.0], *v), 'the observation of step is [2.0] (list), wanted a numpy array'),
    'obs shape': (lambda o, *v: (o[None], *v), 'the observation of step has shape (1, 1), wanted (1,) as in'),
    'obs dtype': (
        lambda o, *v: (o.astype(float), *v),
        'the observation of step has dtype float64, wanted float32 as '
        'in observation_space; return obs.astype(np.float32)',
    ),
    'obs nan': (lambda o, *v: (o * np.nan, *v), 'the observation of step has nan at [0], wanted finite numbers'),
    'obs inf': (lambda o, *v: (o * np.inf, *v), 'the observation of step has inf at [0], wanted finite numbers'),
    'obs bound': (lambda o, *v: (-o, *v), 'the observation of step has -2.0 at [0], wanted 0 to inf as in '),
    'reward nan': (lambda o, r, *v: (o, float('nan'), *v), 'the reward is nan, wanted a finite number'),
    'reward array': (lambda o, r, *v: (o, np.ones(1), *v), 'the reward is array([1.]) (ndarray), wanted a number'),
    'reward none': (lambda o, r, *v: (o, None, *v), 'the reward is None (NoneType), wanted a number; return'),
    'terminated int': (lambda o, r, te, tr, i: (o, r, 0, tr, i), 'terminated is 0 (int), wanted a bool'),
    'truncated none': (
        lambda o, r, te, tr, i: (o, r, te, None, i),
        'truncated is None (NoneType), wanted a bool; return bool(truncated)',
    ),
    'info none': (lambda *v: (*v[:4], None), 'info is None (NoneType), wanted a dict'),
}


@pytest.mark.parametrize('case', STEP_BREAKS)
def test_check_env_step_break_names_env_index_step_and_value(case: str) -> None:
    change, message = STEP_BREAKS[case]
    with pytest.raises(EnvContractError) as raised:
        check_env(EnvConfig(id=StepEnv, kwargs={'change': change}))
    assert str(raised.value).startswith(f"env '{__name__}:StepEnv', index 0, step 2: {message}")


RESET_BREAKS = {
    'obs alone': (
        lambda o, i: o,
        'reset returned array([0.], dtype=float32) (ndarray), wanted a tuple (obs, info); '
        'write `def reset(self, *, seed=None, options=None)` that returns `obs, info`',
    ),
    'info none': (lambda o, i: (o, None), 'info is None (NoneType), wanted a dict'),
    'obs shape': (lambda o, i: (np.zeros(3, np.float32), i), 'the observation of reset has shape (3,), wanted (1,)'),
    'obs nan': (lambda o, i: (o + np.nan, i), 'the observation of reset has nan at [0], wanted finite numbers'),
}


@pytest.mark.parametrize('case', RESET_BREAKS)
def test_check_env_reset_break_is_named_as_step_0(case: str) -> None:
    change, message = RESET_BREAKS[case]
    with pytest.raises(EnvContractError) as raised:
        check_env(EnvConfig(id=ResetEnv, kwargs={'change': change}))
    assert str(raised.value).startswith(f"env '{__name__}:ResetEnv', index 0, step 0: {message}")


@pytest.mark.parametrize(
    ('obs', 'message'),
    [
        (4, 'is 4, wanted 1 to 3'),
        (0, 'is 0, wanted 1 to 3'),
        (1.0, 'is 1.0 (float), wanted an int'),
        (True, 'is True (bool), wanted an int'),
        (np.ones(1, int), 'is array([1]) (ndarray), wanted an int'),
    ],
    ids=str,
)
def test_check_env_discrete_obs_outside_of_its_space_raises(obs: Any, message: str) -> None:
    with pytest.raises(EnvContractError) as raised:
        check_env(EnvConfig(id=DiscreteObsEnv, kwargs={'obs': obs}))
    assert f'step 0: the observation of reset {message}' in str(raised.value)


@pytest.mark.parametrize('obs', [1, 3, np.int64(2), np.array(2)], ids=repr)
def test_check_env_discrete_obs_of_any_int_type_passes(obs: Any) -> None:
    check_env(EnvConfig(id=DiscreteObsEnv, kwargs={'obs': obs}))


IMAGE = np.zeros((2, 2, 3), np.uint8)
DOT = np.zeros((2, 2, 3), np.float32)
DOT[1, 0, 2] = 1.5


@pytest.mark.parametrize(
    ('image', 'dtype', 'message'),
    [
        (IMAGE[0], np.uint8, 'has shape (2, 3), wanted (2, 2, 3) as in'),
        (IMAGE / 255, np.uint8, 'has dtype float64, wanted uint8 as in observation_space; return obs.astype(np.uint8)'),
        (DOT, np.float32, 'has 1.5 at [1, 0, 2], wanted 0 to 1 as in observation_space'),
        (DOT + np.inf, np.float32, 'has inf at [0, 0, 0], wanted finite numbers'),
    ],
    ids=['shape', 'dtype', 'bound', 'inf'],
)
def test_check_env_image_break_names_the_pixel(image: np.ndarray, dtype: Any, message: str) -> None:
    space = Box(0, 255 if dtype == np.uint8 else 1, (2, 2, 3), dtype)
    with pytest.raises(EnvContractError) as raised:
        check_env(EnvConfig(id=ResetEnv, kwargs={'change': lambda o, i: (image, i), 'observation_space': space}))
    assert f'index 0, step 0: the observation of reset {message}' in str(raised.value)


def test_check_env_image_that_keeps_the_contract_passes() -> None:
    class Env(LimitEnv):
        def reset(self, **kwargs: Any) -> Any:
            return IMAGE, super().reset(**kwargs)[1]

        def step(self, action: Any) -> Any:
            return (IMAGE + 255, *super().step(action)[1:])

    def make_one() -> Env:
        env = Env()
        env.observation_space = Box(0, 255, (2, 2, 3), np.uint8)
        return env

    check_env(EnvConfig(id=make_one))


def warning_of(*args: Any, **kwargs: Any) -> str:
    """The one warning of a check."""
    (sentence,) = check_env(EnvConfig(*args, **kwargs))
    return sentence


def test_check_env_unseeded_env_is_a_warning_that_names_the_switch(caplog: pytest.LogCaptureFixture) -> None:
    """To a policy it is chance like any other; only runs with one seed differ."""
    rng = np.random.default_rng(0)
    sentence = warning_of(id=ResetEnv, kwargs={'change': lambda o, i: (rng.random(1, np.float32), i)})
    assert sentence.startswith(f"env '{__name__}:ResetEnv', index 0, step 0: two resets with seed=0 returned array")
    assert sentence.endswith(
        'so no run with this env can be repeated; call super().reset(seed=seed) and draw all random numbers from '
        'self.np_random, or set env.check=false.'
    )
    assert caplog.messages == [sentence]


class RandomEnv(LimitEnv):
    """Its first observation is drawn from a stream that no seed reaches."""

    rng = np.random.default_rng(0)

    def reset(self, **kwargs: Any) -> Any:
        return self.rng.random(1, np.float32), super().reset(**kwargs)[1]


def test_run_with_an_unseeded_env_trains_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = serial_pipeline(job_config(tmp_path, RandomEnv, max_env_step=128, env=dict(check=True)))
    assert result.train_iter > 0
    assert len([text for text in caplog.messages if 'no run with this env can be repeated' in text]) == 1


def test_check_env_unseeded_env_is_still_checked_to_the_end() -> None:
    class Env(StepEnv):
        def reset(self, **kwargs: Any) -> Any:
            return rng.random(1, np.float32), super().reset(**kwargs)[1]

    rng = np.random.default_rng(0)
    with pytest.raises(EnvContractError, match='step 4: the reward is nan'):
        check_env(EnvConfig(id=Env, kwargs={'change': STEP_BREAKS['reward nan'][0], 'n_good': 3}))


def test_check_env_unseeded_env_that_reuses_its_array_is_a_warning() -> None:
    rng, state = np.random.default_rng(0), np.zeros(1, np.float32)

    def draw(obs: np.ndarray, info: dict) -> tuple[np.ndarray, dict]:
        state[:] = rng.random()
        return state, info

    assert 'two resets with seed=0' in warning_of(id=ResetEnv, kwargs={'change': draw})


def test_check_env_seeded_env_passes() -> None:
    class Env(LimitEnv):
        def reset(self, **kwargs: Any) -> Any:
            _, info = super().reset(**kwargs)
            return self.np_random.random(1, np.float32), info

    check_env(EnvConfig(id=Env))


def test_check_env_reset_without_seed_argument_raises() -> None:
    class Env(LimitEnv):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    with pytest.raises(EnvContractError, match=r'reset has no argument seed or options, wanted reset\(\*, seed=None'):
        check_env(EnvConfig(id=Env))


def test_check_env_reset_that_writes_into_the_final_obs_raises() -> None:
    """Such an env would make the bootstrap value of a truncated episode that of the next one's start."""

    class Env(LimitEnv):
        state = np.zeros(1, np.float32)

        def reset(self, **kwargs: Any) -> Any:
            self.state[:] = 0
            return self.state, super().reset(**kwargs)[1]

        def step(self, action: Any) -> Any:
            self.state += 1
            return (self.state, *super().step(action)[1:])

    with pytest.raises(
        EnvContractError, match=r'step 5: the next reset turns .*5.* into .*0.*, wanted an unchanged one'
    ):
        check_env(EnvConfig(id=Env))


def test_check_env_four_values_inside_a_time_limit_are_still_named() -> None:
    kwargs = {'change': STEP_BREAKS['four values'][0], 'n_good': 0}
    with pytest.raises(EnvContractError, match='step 1: step returned a tuple of 4'):
        check_env(EnvConfig(id=StepEnv, kwargs=kwargs, max_episode_steps=5))


def test_check_env_break_after_n_step_is_not_found() -> None:
    kwargs = {'change': STEP_BREAKS['reward nan'][0], 'n_good': 3}
    check_env(EnvConfig(id=StepEnv, kwargs=kwargs), n_step=3)
    with pytest.raises(EnvContractError, match='step 4: the reward is nan'):
        check_env(EnvConfig(id=StepEnv, kwargs=kwargs), n_step=4)


def test_check_env_closes_every_env_that_it_made() -> None:
    made, closed = [], []

    class Env(LimitEnv):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    check_env(EnvConfig(id=Env))
    assert made and sorted(map(id, closed)) == sorted(map(id, made))


@pytest.mark.parametrize(
    'env_id', ['CartPole-v1', 'Acrobot-v1', 'Pendulum-v1', 'MountainCarContinuous-v0', limit_env, 'FrozenLake-v1']
)
def test_check_env_good_envs_pass_500_steps(env_id: Any) -> None:
    check_env(EnvConfig(id=env_id), n_step=500)


def test_check_env_samples_actions_of_the_space_with_its_start() -> None:
    seen = set()

    class Env(gymnasium.Env):
        action_space = Discrete(2, start=7)
        observation_space = Box(0, 1, (1,), np.float32)

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            seen.add(int(action))
            return np.zeros(1, np.float32), 0, False, False, {}

    check_env(EnvConfig(id=Env), n_step=20)
    assert seen == {7, 8}


class DrawEnv(LimitEnv):
    """Seeded at reset; from its 3rd step on, one of the values comes from a stream that no seed reaches."""

    def __init__(self, what: str) -> None:
        super().__init__(limit=100)
        self.what = what
        self.rng = np.random.default_rng(0)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        draw = self.rng.random() if self._n_step >= 3 else 0.0
        obs = obs + np.float32(draw) * (self.what == 'observation')
        return obs, reward + draw * (self.what == 'reward'), terminated, truncated, info


@pytest.mark.parametrize('what', ['observation', 'reward'])
def test_check_env_step_that_no_seed_reaches_is_a_warning(what: str) -> None:
    sentence = warning_of(id=DrawEnv, kwargs={'what': what})
    assert sentence.startswith(
        f"env '{__name__}:DrawEnv', index 0, step 3: two episodes with seed=0 and the same actions differ: {what} "
    )


@pytest.mark.parametrize('flag', ['terminated', 'truncated'])
def test_check_env_episode_end_that_no_seed_reaches_is_a_warning(flag: str) -> None:
    class Env(LimitEnv):
        n_reset = 0

        def reset(self, **kwargs: Any) -> Any:
            self.n_reset += 1
            return super().reset(**kwargs)

        def step(self, action: Any) -> Any:
            obs, reward, *_, info = super().step(action)
            ends = {'terminated': False, 'truncated': False, flag: self.n_reset == 5 and self._n_step == 2}
            return obs, reward, ends['terminated'], ends['truncated'], info

    # resets: the core, two for the first observation, the first run and its last step, the replay
    Env.n_reset = -1  # so that the replay is the 5th
    sentence = warning_of(id=Env, action_mask='off')  # which needs no reset to look for a mask
    assert f'step 2: two episodes with seed=0 and the same actions differ: {flag} False (bool) and True' in sentence


def test_check_env_second_episode_that_no_seed_reaches_is_a_warning() -> None:
    class Env(LimitEnv):
        def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
            obs, info = super().reset(seed=seed)
            return (obs if seed is not None else rng.random(1, np.float32)), info

    rng = np.random.default_rng(0)
    sentence = warning_of(id=Env)
    assert 'step 5: two episodes' in sentence and 'differ: first observation of the next episode' in sentence


def test_check_env_steps_drawn_from_np_random_pass() -> None:
    class Env(LimitEnv):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return (obs, self.np_random.random(), *rest)

    check_env(EnvConfig(id=Env), n_step=30)


SIMULATORS = {
    'LunarLander-v3': 'Box2D',
    'BipedalWalker-v3': 'Box2D',
    **dict.fromkeys(('HalfCheetah-v5', 'Ant-v5', 'Hopper-v5'), 'mujoco'),
}


@pytest.mark.parametrize(
    'env_id',
    [
        'LunarLander-v3',
        'BipedalWalker-v3',
        'HalfCheetah-v5',
        'Ant-v5',
        'Hopper-v5',
        'Acrobot-v1',
        'Pendulum-v1',
        'FrozenLake-v1',
    ],
)
def test_check_env_good_simulators_pass_100_steps(env_id: str) -> None:
    pytest.importorskip(SIMULATORS.get(env_id, 'gymnasium'), reason='an extra is not installed')
    check_env(EnvConfig(id=env_id), n_step=100)


@pytest.mark.parametrize('n_step', [0, -3])
def test_check_env_without_a_step_raises(n_step: int) -> None:
    with pytest.raises(UserError, match=f'check_env got n_step={n_step}, wanted 1 or more; leave it out for 10 steps'):
        check_env(EnvConfig(id=limit_env), n_step=n_step)


# --- nested observations and masks


class NestedEnv(LimitEnv):
    """Returns `change` of its observation from its 2nd step on; what it draws comes from its own stream."""

    def __init__(self, change: Any = lambda obs: obs) -> None:
        super().__init__()
        self.observation_space = Dict(
            {
                'own': Tuple((Discrete(3, start=1), Box(0.0, 1.0, (), np.float32))),
                'bits': MultiBinary(2),
                'places': MultiDiscrete([3, 4], start=[0, 2]),
            }
        )
        self.change = change

    def reset(self, **kwargs: Any) -> Any:
        _, info = super().reset(**kwargs)
        return self.shown(), info

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return (self.shown() if self._n_step < 2 else self.change(self.shown()), *rest)

    def shown(self) -> Any:
        number = np.array(self.np_random.random(), np.float32)
        return {'own': (2, number), 'bits': np.array([0, 1], np.int8), 'places': np.array([2, 5])}


def test_check_env_nested_env_that_keeps_the_contract_passes() -> None:
    check_env(EnvConfig(id=NestedEnv), n_step=30)


NESTED_BREAKS = {
    'entry': (lambda o: {**o, 'more': 1}, 'the observation of step has the entries '),
    'no dict': (lambda o: 3, "the observation of step is 3 (int), wanted a dict with 'bits', 'own', 'places' as in "),
    'no tuple': (lambda o: {**o, 'own': [1, 2]}, "the observation 'own' of step is [1, 2] (list), wanted a tuple of 2"),
    'int': (
        lambda o: {**o, 'own': (0.5, o['own'][1])},
        "the observation 'own.0' of step is 0.5 (float), wanted an int",
    ),
    'start': (lambda o: {**o, 'own': (0, o['own'][1])}, "the observation 'own.0' of step is 0, wanted 1 to 3 as in "),
    'dtype': (lambda o: {**o, 'own': (1, np.zeros(()))}, "the observation 'own.1' of step has dtype float64, wanted "),
    'bound': (
        lambda o: {**o, 'own': (1, np.float32(2))},
        "the observation 'own.1' of step is 2.0, wanted 0 to 1 as in",
    ),
    'bits': (
        lambda o: {**o, 'bits': o['bits'] + 1},
        "the observation 'bits' of step has 2 at [1], wanted 0 to 1 as in ",
    ),
    'floats': (
        lambda o: {**o, 'bits': o['bits'] / 1},
        "the observation 'bits' of step has dtype float64, wanted integ",
    ),
    'places': (
        lambda o: {**o, 'places': np.array([2, 6])},
        "the observation 'places' of step has 6 at [1], wanted 2 to",
    ),
    'shape': (lambda o: {**o, 'places': np.array([2])}, "the observation 'places' of step has shape (1,), wanted (2,)"),
}


@pytest.mark.parametrize('case', NESTED_BREAKS)
def test_check_env_leaf_that_breaks_the_contract_is_named(case: str) -> None:
    change, message = NESTED_BREAKS[case]
    with pytest.raises(EnvContractError) as raised:
        check_env(EnvConfig(id=NestedEnv, kwargs={'change': change}))
    assert str(raised.value).startswith(f"env '{__name__}:NestedEnv', index 0, step 2: {message}")


def test_check_env_leaf_that_no_seed_reaches_is_named() -> None:
    rng = np.random.default_rng(0)
    kwargs = {'change': lambda o: {**o, 'own': (1, np.float32(rng.random()))}}
    assert "step 2: two episodes with seed=0 and the same actions differ: observation 'own.1' " in warning_of(
        id=NestedEnv, kwargs=kwargs
    )


def test_check_env_reset_that_writes_into_a_leaf_of_the_final_obs_raises() -> None:
    class Env(NestedEnv):
        array = np.zeros((), np.float32)

        def shown(self) -> Any:
            self.array[...] = self._n_step / 10
            return {**super().shown(), 'own': (1, self.array)}

    with pytest.raises(EnvContractError, match="step 5: the next reset turns the observation 'own.1' of this step"):
        check_env(EnvConfig(id=Env))


@pytest.mark.parametrize('source', ['info', 'obs', 'method'])
@pytest.mark.parametrize('action', ['discrete', 'multi_discrete'])
def test_check_env_takes_only_legal_actions(source: str, action: str) -> None:
    """The env raises on others, and its masks change at every step."""
    check_env(EnvConfig(id='random_masks', kwargs={'source': source, 'action': action}), n_step=50)


def test_check_env_takes_only_legal_actions_of_a_batched_family() -> None:
    pytest.importorskip('envpool')
    check_env(EnvConfig(id='envpool', game='Snake-v1'), n_step=20)


def test_check_env_mask_that_a_wrapper_has_is_legal_too() -> None:
    class Masked(gymnasium.Wrapper):
        def action_masks(self) -> np.ndarray:
            return self.unwrapped._mask  # type: ignore[attr-defined]

    def make_one() -> gymnasium.Env:
        inner: Any = make_env(EnvConfig(id='random_masks', action_mask='off'))
        return Masked(inner)

    check_env(EnvConfig(id=make_one, action_mask='method'), n_step=50)


def test_check_env_mask_that_is_all_false_raises() -> None:
    class Env(LimitEnv):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], {'action_mask': np.ones(2)}

        def step(self, action: Any) -> Any:
            *values, _ = super().step(action)
            return (*values, {'action_mask': np.full(2, self._n_step not in (3, 5))})  # the 5th ends the episode

    with pytest.raises(EnvContractError, match='index 0, step 3: the action mask allows no action, wanted at least'):
        check_env(EnvConfig(id=Env))
    check_env(EnvConfig(id=Env), n_step=2)


def test_check_env_mask_that_is_missing_at_one_step_raises() -> None:
    class Env(LimitEnv):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], {'action_mask': np.ones(2)}

    with pytest.raises(EnvContractError, match="index 0, step 1: the info of step has no 'action_mask', wanted"):
        check_env(EnvConfig(id=Env))


# --- episodes without an end, and masks that a reset does not show


def endless_env(limit: int | None = None) -> gymnasium.Env:
    env = LimitEnv(limit=10**9)
    return env if limit is None else gymnasium.wrappers.TimeLimit(env, limit)


def test_check_env_long_check_without_an_end_or_a_limit_is_a_warning() -> None:
    (sentence,) = check_env(EnvConfig(id=endless_env), n_step=1000)
    assert sentence == (
        f"env '{__name__}:endless_env': no episode ended in 1000 random steps and it has no time limit, so an "
        'evaluation may never end; set env.max_episode_steps, or end the episodes in step.'
    )


@pytest.mark.parametrize(
    ('fields', 'n_step'),
    [
        ({'id': endless_env}, 999),  # too short a check to tell, as that at the start of a run is
        ({'id': endless_env, 'max_episode_steps': 10_000}, 1000),
        ({'id': endless_env, 'kwargs': {'limit': 10_000}}, 1000),
        ({'id': limit_env, 'kwargs': {'limit': 1000}}, 1000),  # its episodes end
    ],
    ids=['short', 'limit of the config', 'limit of its own', 'ends'],
)
def test_check_env_with_a_limit_or_an_end_has_no_warning(fields: dict[str, Any], n_step: int) -> None:
    assert check_env(EnvConfig(**fields), n_step=n_step) == []


class LateMaskEnv(LimitEnv):
    """The info of a reset has no mask, that of a step has one."""

    def step(self, action: Any) -> Any:
        *values, info = super().step(action)
        return (*values, {'action_mask': np.array([1, 0], np.int8)})


def test_check_env_mask_that_only_steps_have_is_refused() -> None:
    with pytest.raises(EnvContractError) as raised:
        check_env(EnvConfig(id=LateMaskEnv))
    assert str(raised.value) == (
        f"env '{__name__}:LateMaskEnv', index 0, step 1: the info of step has 'action_mask' but that of the first reset "
        "had none, wanted it in both, or in neither; put 'action_mask' into the info of every reset too, or set "
        'env.action_mask=off.'
    )
    assert check_env(EnvConfig(id=LateMaskEnv, action_mask='off')) == []


def test_check_env_entry_of_that_name_in_infos_of_box_actions_is_no_mask() -> None:
    assert check_env(EnvConfig(id=LateMaskEnv, kwargs={'action': 'box'})) == []


# --- env.check=strict, running statistics, and the switch that each refusal names


def normalised_env() -> gymnasium.Env:
    return gymnasium.wrappers.NormalizeObservation(LimitEnv())


def normalised_reward_env() -> gymnasium.Env:
    return gymnasium.wrappers.NormalizeReward(LimitEnv())


@pytest.mark.parametrize(
    ('make', 'wrapper', 'key'),
    [
        (normalised_env, 'NormalizeObservation', 'policy.model.obs_norm'),
        (normalised_reward_env, 'NormalizeReward', 'policy.learn.reward_norm'),
    ],
)
def test_check_env_wrapper_with_running_statistics_is_a_warning_that_names_the_key(
    make: Any, wrapper: str, key: str
) -> None:
    sentence = warning_of(id=make)
    assert f'has the wrapper {wrapper}, which normalises' in sentence and f'set {key}=true.' in sentence
    assert 'np_random' not in sentence
    with pytest.raises(EnvContractError, match=f'set {key}=true'):
        check_env(EnvConfig(id=make, check='strict'))


def test_check_env_wrapper_with_running_statistics_hides_no_other_chance() -> None:
    class Env(LimitEnv):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return (obs, rng.random(), *rest)

    rng = np.random.default_rng(0)
    wrapper, chance = check_env(EnvConfig(id=lambda: gymnasium.wrappers.NormalizeObservation(Env())))
    assert 'NormalizeObservation' in wrapper and 'the same actions differ: reward' in chance


def test_check_env_difference_below_a_wrapper_named_so_is_put_down_to_it() -> None:
    class NormObs(gymnasium.ObservationWrapper):
        n = 0

        def observation(self, observation: Any) -> Any:
            self.n += 1
            return observation / np.float32(self.n)

    assert 'has the wrapper NormObs, which normalises observations' in warning_of(id=lambda: NormObs(LimitEnv()))


def test_run_with_running_statistics_trains_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = serial_pipeline(job_config(tmp_path, normalised_env, max_env_step=128, env=dict(check=True)))
    assert result.train_iter > 0
    assert len([text for text in caplog.messages if 'policy.model.obs_norm=true' in text]) == 1


def test_run_with_check_strict_refuses_an_unseeded_env_and_names_the_switch(tmp_path: Path) -> None:
    with pytest.raises(EnvContractError) as raised:
        serial_pipeline(job_config(tmp_path, RandomEnv, max_env_step=128, env=dict(check='strict')))
    assert 'no run with this env can be repeated' in str(raised.value)
    assert str(raised.value).endswith('(env.check=strict refuses this; env.check=true only warns of it.)')


def test_check_strict_passes_an_env_whose_seed_repeats_its_episodes() -> None:
    assert check_env(EnvConfig(id=limit_env, check='strict'), n_step=30) == []


def test_config_check_of_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="env.check is 'hard' .*'strict'"):
        env_config({'id': limit_env, 'check': 'hard'})


REFUSALS = {
    **{f'step {k}': dict(id=StepEnv, kwargs={'change': change}) for k, (change, _) in STEP_BREAKS.items()},
    **{f'reset {k}': dict(id=ResetEnv, kwargs={'change': change}) for k, (change, _) in RESET_BREAKS.items()},
    **{f'leaf {k}': dict(id=NestedEnv, kwargs={'change': change}) for k, (change, _) in NESTED_BREAKS.items()},
    **{f'int {obs!r}': dict(id=DiscreteObsEnv, kwargs={'obs': obs}) for obs in (4, 1.0, True)},
}


def takes_12_steps(cfg: EnvConfig) -> bool:
    """Whether envs can be stepped as a run does it."""
    with closing(make_vector_env(cfg, 1)) as env:
        try:
            env.reset(0)
            for _ in range(12):
                env.step(torch.zeros(1, dtype=torch.int64))
        except EnvContractError:
            return False
    return True


@pytest.mark.long
@pytest.mark.parametrize('case', REFUSALS)
def test_check_env_refusal_says_what_env_check_false_would_do(case: str) -> None:
    """To train with it, where 12 steps without the check take it; else to move the error."""
    fields = REFUSALS[case]
    with pytest.raises(EnvContractError) as raised:
        check_env(EnvConfig(**fields))
    takes = all(takes_12_steps(EnvConfig(**fields, check=False, vectorization=how)) for how in ('sync', 'async'))
    switch = ', or set env.check=false to train with it.'
    assert ('(env.check=false only moves this error into the run).' in str(raised.value)) == (not takes), raised.value
    assert str(raised.value).endswith(switch) == takes, raised.value


class NoOptionsEnv(LimitEnv):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


@pytest.mark.parametrize('limit', [None, 5], ids=['bare', 'in a wrapper'])
def test_check_env_reset_without_options_is_refused_though_a_run_may_take_it(limit: int | None) -> None:
    """Wrappers pass options on."""
    cfg = EnvConfig(id=NoOptionsEnv, max_episode_steps=limit)
    with pytest.raises(EnvContractError, match='reset has no argument options') as raised:
        check_env(cfg)
    assert ('or set env.check=false to train with it' in str(raised.value)) == takes_12_steps(cfg) == (limit is None)


# --- vectors of envs


def endless_vector(num_envs: int) -> gymnasium.vector.VectorEnv:
    return LimitVectorEnv(num_envs, limit=10**9)


def normalised_vector(num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.wrappers.vector.NormalizeReward(LimitVectorEnv(num_envs))


def test_check_env_own_vector_without_an_end_is_a_warning() -> None:
    assert check_env(EnvConfig(id=endless_vector), n_step=999) == []
    assert 'no episode ended in 1000 random steps' in check_env(EnvConfig(id=endless_vector), n_step=1000)[0]


def test_check_env_own_vector_with_running_statistics_is_a_warning() -> None:
    sentence = warning_of(id=normalised_vector)
    assert 'NormalizeReward' in sentence and 'set policy.learn.reward_norm=true' in sentence
