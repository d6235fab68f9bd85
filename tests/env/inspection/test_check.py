"""check_env: one env for each way to break the contract, all derived from envs that keep it."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit

from tests.env.inspection.checked_envs import NoSeedEnv, RandomEnv, shows, step_env
from tests.envs import LimitEnv, LimitVectorEnv, limit_env, play
from tests.policy_envs import job_config
from zoo import serial_pipeline
from zoo.config.section import ConfigError
from zoo.core.errors import UserError, env_failure
from zoo.env import EnvConfig, EnvContractError, check_env, make_env, make_vector_env
from zoo.env.config import env_config
from zoo.env.inspection.inspect import inspect_env


class ResetEnv(LimitEnv):
    """Returns `change(obs, info)` from reset."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return self.change(*super().reset(seed=seed))


class NestedEnv(LimitEnv):
    """Returns `change(observation)` from its 2nd step on; draws its random numbers from np_random."""

    def __init__(self, change: Any = lambda obs: obs) -> None:
        super().__init__()
        own = Tuple((Discrete(3, start=1), Box(0.0, 1.0, (), np.float32)))
        places = MultiDiscrete([3, 4], start=[0, 2])
        self.observation_space = Dict({'own': own, 'bits': MultiBinary(2), 'places': places})
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


def nan_reward(o: Any, r: Any, *v: Any) -> Any:
    return (o, float('nan'), *v)


FROM_1, BYTES, UNIT = Discrete(3, start=1), Box(0, 255, (2, 2, 3), np.uint8), Box(0, 1, (2, 2, 3), np.float32)
IMAGE, DOT = np.zeros((2, 2, 3), np.uint8), np.zeros((2, 2, 3), np.float32)
DOT[1, 0, 2] = 1.5

DARK, DARK_BYTES = np.zeros((2, 2, 3), np.uint8), Box(0, 8, (2, 2, 3), np.uint8)

OBS, AS = 'the observation of step ', 'as in observation_space; return obs.astype(np.'
STEP_BREAKS = {
    'four values': (lambda o, r, te, tr, i: (o, r, te or tr, i), 'step returned a tuple of 4, wanted a tuple of 5'),
    'a list': (lambda *v: list(v), 'step returned a list, wanted a tuple of 5'),
    'obs list': (lambda o, *v: ([2.0], *v), OBS + 'is [2.0] (list), wanted a numpy array'),
    'obs shape': (lambda o, *v: (o[None], *v), OBS + 'has shape (1, 1), wanted (1,) as in'),
    'obs dtype': (lambda o, *v: (o.astype(float), *v), f'{OBS}has dtype float64, wanted float32 {AS}float32)'),
    'obs nan': (lambda o, *v: (o * np.nan, *v), OBS + 'has nan at [0], wanted finite numbers'),
    'obs inf': (lambda o, *v: (o * np.inf, *v), OBS + 'has inf at [0], wanted finite numbers'),
    'reward nan': (nan_reward, 'the reward is nan, wanted a finite number'),
    'reward array': (lambda o, r, *v: (o, np.ones(1), *v), 'the reward is array([1.]) (ndarray), wanted a number'),
    'reward none': (lambda o, r, *v: (o, None, *v), 'the reward is None (NoneType), wanted a number; return'),
    'terminated int': (lambda o, r, te, *v: (o, r, 0, *v), 'terminated is 0 (int), wanted a bool'),
    'truncated none': (
        lambda o, r, te, tr, i: (o, r, te, None, i),
        'truncated is None (NoneType), wanted a bool; return bool(truncated)',
    ),
    'info none': (lambda *v: (*v[:4], None), 'info is None (NoneType), wanted a dict'),
}
RESET_BREAKS = {
    'reset alone': (
        lambda o, i: o,
        'reset returned array([0.], dtype=float32) (ndarray), wanted a tuple (obs, info); '
        'write `def reset(self, *, seed=None, options=None)` that returns `obs, info`',
    ),
    'reset info': (lambda o, i: (o, None), 'info is None (NoneType), wanted a dict'),
    'reset shape': (lambda o, i: (np.zeros(3, np.float32), i), 'the observation of reset has shape (3,), wanted (1,)'),
    'reset nan': (lambda o, i: (o + np.nan, i), 'the observation of reset has nan at [0], wanted finite numbers'),
}
SHOWN_BREAKS = {
    'index above': (4, FROM_1, 'is 4, wanted 1 to 3'),
    'index below': (0, FROM_1, 'is 0, wanted 1 to 3'),
    'index float': (1.0, FROM_1, 'is 1.0 (float), wanted an int'),
    'index bool': (True, FROM_1, 'is True (bool), wanted an int'),
    'index array': (np.ones(1, int), FROM_1, 'is array([1]) (ndarray), wanted an int'),
    'image shape': (IMAGE[0], BYTES, 'has shape (2, 3), wanted (2, 2, 3) as in'),
    'image dtype': (IMAGE / 255, BYTES, f'has dtype float64, wanted uint8 {AS}'),
    'byte bound': (DARK + 9, DARK_BYTES, 'has 9 at [0, 0, 0], wanted 0 to 8 as in observation_space'),
    'image inf': (DOT + np.inf, UNIT, 'has inf at [0, 0, 0], wanted finite numbers'),
}
LEAF_BREAKS = {
    'more': (lambda o: {**o, 'more': 1}, ' of step has the entries '),
    'no dict': (lambda o: 3, " of step is 3 (int), wanted a dict with 'bits', 'own', 'places' as in "),
    'no tuple': (lambda o: {**o, 'own': [1, 2]}, " 'own' of step is [1, 2] (list), wanted a tuple of 2"),
    'int': (lambda o: {**o, 'own': (0.5, o['own'][1])}, " 'own.0' of step is 0.5 (float), wanted an int"),
    'start': (lambda o: {**o, 'own': (0, o['own'][1])}, " 'own.0' of step is 0, wanted 1 to 3 as in "),
    'dtype': (lambda o: {**o, 'own': (1, np.zeros(()))}, " 'own.1' of step has dtype float64, wanted "),
    'bits': (lambda o: {**o, 'bits': o['bits'] + 1}, " 'bits' of step has 2 at [1], wanted 0 to 1 as in "),
    'floats': (lambda o: {**o, 'bits': o['bits'] / 1}, " 'bits' of step has dtype float64, wanted integ"),
    'places': (lambda o: {**o, 'places': np.array([2, 6])}, " 'places' of step has 6 at [1], wanted 2 to"),
    'shape': (lambda o: {**o, 'places': np.array([2])}, " 'places' of step has shape (1,), wanted (2,)"),
}
BREAKS = {
    **{k: (step_env(change), f'step 2: {said}') for k, (change, said) in STEP_BREAKS.items()},
    **{k: (dict(id=ResetEnv, kwargs={'change': x}), f'step 0: {said}') for k, (x, said) in RESET_BREAKS.items()},
    **{k: (shows(*x), f'step 0: the observation of reset {said}') for k, (*x, said) in SHOWN_BREAKS.items()},
    **{
        f'leaf {k}': (dict(id=NestedEnv, kwargs={'change': x}), f'step 2: the observation{said}')
        for k, (x, said) in LEAF_BREAKS.items()
    },
}


def takes_12_steps(cfg: EnvConfig) -> bool:
    """Whether a vector env, as a run has it, takes 12 steps without an EnvContractError."""
    with closing(make_vector_env(cfg, 1)) as env:
        try:
            env.reset(0)
            for _ in range(12):
                env.step(torch.zeros(1, dtype=torch.int64))
        except EnvContractError:
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize('case', BREAKS)
def test_check_env_break_names_env_step_and_value_and_what_env_check_false_would_do(case: str) -> None:
    """env.check=false would train with the env if 12 steps without the check succeed; else it only moves the error."""
    fields, message = BREAKS[case]
    with pytest.raises(EnvContractError) as raised:
        check_env(EnvConfig(**fields))
    said = str(raised.value)
    assert said.startswith(f"env '{fields['id'].__module__}:{fields['id'].__name__}', index 0, {message}")
    takes = all(takes_12_steps(EnvConfig(**fields, check=False, vectorization=how)) for how in ('sync', 'async'))
    assert ('(env.check=false only moves this error into the run).' in said) == (not takes), said
    assert said.endswith(', or set env.check=false to train with it.') == takes, said


class NoOptionsEnv(LimitEnv):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


class MaskEnv(LimitEnv):
    """Its info has the mask `masks(number of steps)`; None: no mask."""

    def __init__(self, masks: Any, action: Any = 'discrete') -> None:
        super().__init__(action=action)
        self.masks = masks

    def _info(self) -> dict[str, Any]:
        mask = self.masks(self._n_step)
        return {} if mask is None else {'action_mask': np.array(mask)}

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0], self._info()

    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], self._info())


class RandomBreakEnv(RandomEnv):
    def step(self, action: Any) -> Any:
        result = super().step(action)
        return nan_reward(*result) if self._n_step == 4 else result


EMPTY_MASK = {'masks': lambda t: [t not in (3, 5)] * 2}  # the 5th step ends the episode
LATE_MASK, NO_MASK = {'masks': lambda t: [1, 0] if t else None}, {'masks': lambda t: None if t else [1, 1]}


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        (dict(id=NoSeedEnv), 'step 0: reset has no argument seed or options, wanted reset(*, seed=None'),
        (
            dict(step_env(STEP_BREAKS['four values'][0], n_good=0), max_episode_steps=5),
            'step 1: step returned another number of values',  # though a time limit is around it
        ),
        (step_env(nan_reward, n_good=3), 'step 4: the reward is nan'),
        (dict(id=RandomBreakEnv), 'step 4: the reward is nan'),  # a warning does not end the check
        (dict(id=MaskEnv, kwargs=EMPTY_MASK), 'step 3: the action mask allows no action, wanted at least'),
        (dict(id=MaskEnv, kwargs=NO_MASK), "step 1: the info of step has no 'action_mask', wanted"),
        (
            dict(id=MaskEnv, kwargs=LATE_MASK),
            "step 1: the info of step has 'action_mask' but that of the first reset had none, wanted it in both, or in "
            "neither; put 'action_mask' into the info of every reset too, or set env.action_mask=off.",
        ),
    ],
)
def test_check_env_fault_that_shows_later_is_named_with_its_step(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvContractError) as raised:
        check_env(EnvConfig(**fields))
    assert str(raised.value).startswith(f"env '{fields['id'].__module__}:{fields['id'].__name__}', index 0, {message}")


# --- envs whose wrappers do a part of the work: what is inside them cannot be called alone


class TaskCore(LimitEnv):
    """Cannot be reset before its wrapper has set a task, which may be in the options; takes actions in a dict."""

    task: int | None = None

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        assert self.task is not None or 'task' in (options or {}), 'no task'
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        assert isinstance(action, dict)
        return super().step(action['move'])


class TakesMoves(gymnasium.ActionWrapper):
    """The declared action space stays the same, the values that the core gets are of another type."""

    def action(self, action: Any) -> Any:
        return {'move': int(np.max(action))}


class SetsTask(gymnasium.Wrapper):
    def reset(self, **kwargs: Any) -> Any:
        self.unwrapped.task = 1  # type: ignore[attr-defined]
        return self.env.reset(**kwargs)


class GivesOptions(gymnasium.Wrapper):
    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return self.env.reset(seed=seed, options={'task': 2})


class NoSeedCore(TaskCore):
    """Its reset has no arguments at all, which its wrapper knows."""

    task = 3

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class KeepsArguments(gymnasium.Wrapper):
    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return self.env.reset()


class ForeignCore(gymnasium.Wrapper):
    """`unwrapped` is an object of another library, with other methods."""

    @property
    def unwrapped(self) -> Any:
        return object()


WRAPPED = {
    'a wrapper that sets the task': lambda: SetsTask(TakesMoves(TaskCore())),
    'a wrapper that adds options': lambda: GivesOptions(TakesMoves(TaskCore())),
    'a wrapper that keeps the arguments': lambda: TakesMoves(KeepsArguments(NoSeedCore())),
    'a core of another library': lambda: ForeignCore(SetsTask(TakesMoves(TaskCore()))),
}


@pytest.mark.many
@pytest.mark.parametrize(
    'limit', [pytest.param(None, id='bare'), pytest.param(5, id='in a time limit', marks=pytest.mark.long)]
)
@pytest.mark.parametrize('action', ['discrete', 'box'])
@pytest.mark.parametrize('case', WRAPPED)
def test_check_env_takes_its_steps_through_the_outermost_wrapper(case: str, action: str, limit: int | None) -> None:
    def make() -> gymnasium.Env:
        env: Any = WRAPPED[case]()
        if action == 'box':  # has no action mask, so that nothing else resets the env before
            env.action_space = Box(-1, 1, (1,), np.float32)
        return env

    cfg = EnvConfig(id=make, max_episode_steps=limit)
    assert check_env(cfg) == []
    assert inspect_env(cfg, n_step=20).problems == []


class WritesEnv(LimitEnv):
    """Writes every observation into one array, that of the class or one of its own: a random number, and 1 more in each step."""

    state = np.zeros(1, np.float32)

    def __init__(self, is_shared: bool) -> None:
        super().__init__()
        self.state = WritesEnv.state if is_shared else np.zeros(1, np.float32)

    def reset(self, **kwargs: Any) -> Any:
        _, info = super().reset(**kwargs)
        self.start = 10 * self.np_random.integers(1000)
        self.state[:] = self.start
        return self.state, info

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        self.state[:] = self.start + self._n_step
        return (self.state, *rest)


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['same_step', 'next_step', 'disabled'])
@pytest.mark.parametrize('how', ['sync', 'async'])
@pytest.mark.parametrize('is_shared', [False, True])
def test_env_that_reuses_its_array_is_taken_with_its_true_last_observation(
    is_shared: bool, how: Any, mode: Any
) -> None:
    cfg = EnvConfig(id=WritesEnv, kwargs={'is_shared': is_shared}, vectorization=how, autoreset=mode)
    assert check_env(cfg) == []
    with closing(make_vector_env(cfg, 2)) as env:
        start = env.reset(0)[:, 0]
        steps = [env.step(torch.zeros(2, dtype=torch.int64)) for _ in range(5)]
    assert start[0] != start[1]
    shown = [step.obs[:, 0] - start for step in steps]
    last = shown[4] if mode == 'next_step' else steps[4].final_obs[:, 0] - start
    assert [x.tolist() for x in shown[:4]] == [[1, 1], [2, 2], [3, 3], [4, 4]] and last.tolist() == [5, 5]


class SeedNumberEnv(LimitEnv):
    """Writes the seed into its action space, in the place of the method `seed`."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Discrete(2, seed=1)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.action_space.seed = seed
        return super().reset(seed=seed)


def test_check_env_takes_an_action_space_whose_seed_is_a_number() -> None:
    assert check_env(EnvConfig(id=SeedNumberEnv)) == []


class OtherArray:
    """An array of another library, which numpy can read."""

    def __init__(self, values: Any, dtype: Any) -> None:
        self._array = np.array(values, dtype)
        self.dtype, self.shape = self._array.dtype, self._array.shape

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._array.astype(dtype or self.dtype)

    def __float__(self) -> float:
        return float(self._array)


class OtherArraysEnv(LimitEnv):
    """Its observations, rewards and flags are such arrays."""

    def __init__(self, dtype: Any = np.float32) -> None:
        super().__init__()
        self.dtype = dtype

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return OtherArray(obs, self.dtype), info

    def step(self, action: Any) -> Any:
        obs, reward, *flags, info = super().step(action)
        return OtherArray(obs, self.dtype), OtherArray(reward, np.float32), *(OtherArray(x, bool) for x in flags), info


@pytest.mark.parametrize('how', ['sync', pytest.param('async', marks=pytest.mark.slow)])
def test_arrays_of_another_library_are_read_as_those_of_numpy(how: Any) -> None:
    cfg = EnvConfig(id=OtherArraysEnv, vectorization=how)
    assert check_env(cfg) == []
    steps = play(make_vector_env(cfg, 1), *[[0]] * 5)
    assert [step.obs.item() for step in steps] == [1, 2, 3, 4, 0] and steps[4].final_obs.item() == 5
    assert [step.reward.item() for step in steps] == [1] * 5 and steps[4].truncated.item()


def test_array_of_another_library_with_another_dtype_is_named() -> None:
    with pytest.raises(
        EnvContractError, match=r'is <.*OtherArray.* \(OtherArray\), wanted a numpy array; return np.asarray'
    ):
        check_env(EnvConfig(id=OtherArraysEnv, kwargs={'dtype': np.float64}))


class SelfResetEnv(LimitEnv):
    """Resets itself at the end of an episode: returns the next first observation, and the last one in the info."""

    key = 'final_observation'

    def step(self, action: Any) -> Any:
        last, *rest, _ = super().step(action)
        if not any(rest[1:]):
            return (last, *rest, {})
        return (super().reset()[0], *rest, {self.key: last})


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['same_step', 'next_step', 'disabled'])
@pytest.mark.parametrize('how', ['sync', 'async'])
@pytest.mark.parametrize('key', ['final_obs', 'final_observation', 'terminal_observation'])
def test_single_env_that_resets_itself_is_named_and_taken_with_its_true_last_observation(
    key: str, how: Any, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SelfResetEnv, 'key', key)
    cfg = EnvConfig(id=SelfResetEnv, vectorization=how, autoreset=mode)
    (sentence,) = check_env(cfg)
    assert sentence.startswith(
        f"env '{__name__}:SelfResetEnv', index 0, step 5: the env has reset itself at the end of an"
    )
    steps = play(make_vector_env(cfg, 2), *[[0, 0]] * 7)
    shown = [step.obs[:, 0].tolist() for step in steps]
    last = shown[4] if mode == 'next_step' else steps[4].final_obs[:, 0].tolist()
    assert last == [5, 5] and shown[:4] == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert shown[5] == ([0, 0] if mode == 'next_step' else [1, 1])  # the next episode has all its steps


class OnceEnv(LimitEnv):
    """A process can have one at a time."""

    is_open = False

    def __init__(self) -> None:
        if OnceEnv.is_open:
            raise RuntimeError('cannot create multiple instances')
        super().__init__()
        OnceEnv.is_open = True

    def close(self) -> None:
        OnceEnv.is_open = False


def test_env_of_which_a_process_can_have_one_is_a_problem_that_names_async() -> None:
    report = inspect_env(OnceEnv, n_step=10)
    (problem,) = report.problems
    assert 'a second one cannot (RuntimeError: cannot create multiple instances at ' in problem
    assert 'set env.vectorization=async' in problem and report.facts['vectorization'] == 'async'
    assert inspect_env({'id': OnceEnv, 'vectorization': 'async'}, n_step=10).problems == []


@pytest.mark.parametrize('n_env', [1, 2])
def test_env_that_cannot_be_made_beside_another_gets_the_hint_of_async(n_env: int) -> None:
    """With one env in each vector the second vector, as that of evaluation, cannot be made."""
    cfg = EnvConfig(id=OnceEnv, vectorization='sync')
    with ExitStack() as opened, pytest.raises(RuntimeError, match='multiple instances') as raised:
        for _ in range(2):
            opened.enter_context(closing(make_vector_env(cfg, n_env)))
    said = env_failure(raised.value)
    assert said is not None and f', index {n_env - 1}, while it was made: its code raised RuntimeError' in said
    assert (
        '; another env of this kind is open in the process: if there can be only one, set env.vectorization=async'
        in said
    )
    with closing(make_vector_env(EnvConfig(id=OnceEnv, vectorization='async'), 2)) as env:
        assert env.reset(0).tolist() == [[0], [0]]


def test_env_that_cannot_be_made_at_all_gets_no_hint_of_async() -> None:
    def make() -> gymnasium.Env:
        raise RuntimeError('no licence')

    with pytest.raises(RuntimeError) as raised:
        make_vector_env(EnvConfig(id=make, vectorization='sync'), 2)
    assert 'env.vectorization' not in str(env_failure(raised.value))


class ZeroSeedEnv(LimitEnv):
    """Ignores the seed 0 alone: `if seed:`."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(7)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        if seed:
            self.rng = np.random.default_rng(seed)
        super().reset()
        return self.rng.random(1, np.float32), {}


@pytest.mark.long
def test_seeds_are_judged_as_runs_use_them_and_the_seed_0_is_named() -> None:
    assert check_env(EnvConfig(id=ZeroSeedEnv, check='strict')) == []
    report = inspect_env(ZeroSeedEnv, n_step=20)
    said = f"env '{__name__}:ZeroSeedEnv': the seed 0 is not honoured, though others are: two resets with seed=0 returned array"
    assert report.facts['repeats'] and any(sentence.startswith(said) for sentence in report.warnings)
    assert not any('the seed 0' in sentence for sentence in inspect_env(SeededEnv, n_step=20).warnings)


@pytest.mark.parametrize(
    ('obs', 'shape', 'do'),
    [
        (0.5, (1,), 'return np.array([x], dtype=np.float32) for the number x'),
        (np.float32(0.5), (1,), 'return np.array([x], dtype=np.float32) for the number x'),
        (np.zeros((2, 1), np.float32), (2,), 'return np.reshape(obs, (2,))'),
        (np.zeros(1, np.float32), (), 'return np.reshape(obs, ())'),
        (np.zeros(3, np.float32), (2,), 'correct one of the two'),
    ],
)
def test_right_number_of_values_in_another_shape_is_told_how_to_reshape(obs: Any, shape: Any, do: str) -> None:
    cfg = EnvConfig(**shows(obs, Box(-1, 1, shape, np.float32)))
    with pytest.raises(EnvContractError, match=re.escape(f'; {do}')):
        check_env(cfg)
    with pytest.raises(EnvContractError, match=re.escape(f'; {do}')):
        play(make_vector_env(cfg, 1))


@pytest.mark.parametrize('limit', [None, 5], ids=['bare', 'in a wrapper'])
def test_check_env_reset_without_options_is_refused_though_a_run_may_take_it(limit: int | None) -> None:
    """Wrappers pass options on, so a wrapped env without that argument cannot run; a bare env can."""
    cfg = EnvConfig(id=NoOptionsEnv, max_episode_steps=limit)
    with pytest.raises(EnvContractError, match='reset has no argument options') as raised:
        check_env(cfg)
    assert ('or set env.check=false to train with it' in str(raised.value)) == takes_12_steps(cfg) == (limit is None)


@pytest.mark.parametrize('n_step', [0, -3])
def test_check_env_without_a_step_or_of_another_word_is_refused(n_step: int) -> None:
    with pytest.raises(UserError, match=f'check_env got n_step={n_step}, wanted 1 or more; leave it out for 10 steps'):
        check_env(EnvConfig(id=limit_env), n_step=n_step)
    with pytest.raises(ConfigError, match="env.check is 'hard' .*'strict'"):
        env_config({'id': limit_env, 'check': 'hard'})


# --- envs without a fault


class SeededEnv(LimitEnv):
    """Draws all that it returns from np_random."""

    def reset(self, **kwargs: Any) -> Any:
        _, info = super().reset(**kwargs)
        return self.np_random.random(1, np.float32), info

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, self.np_random.random(), *rest)


class MethodWrapper(gymnasium.Wrapper):
    def action_masks(self) -> np.ndarray:
        return self.unwrapped.mask  # type: ignore[attr-defined]


def masked_by_a_wrapper() -> gymnasium.Env:
    inner: Any = make_env(EnvConfig(id='random_masks', action_mask='off'))
    return MethodWrapper(inner)


def endless_env(limit: int | None = None) -> gymnasium.Env:
    env = LimitEnv(limit=10**9)
    return env if limit is None else TimeLimit(env, limit)


def endless_vector(num_envs: int) -> gymnasium.vector.VectorEnv:
    return LimitVectorEnv(num_envs, limit=10**9)


SIMULATORS = {
    **dict.fromkeys(('LunarLander-v3', 'BipedalWalker-v3'), 'Box2D'),
    **dict.fromkeys(('HalfCheetah-v5', 'Ant-v5', 'Hopper-v5'), 'mujoco'),
}


@pytest.mark.many
@pytest.mark.parametrize(
    ('fields', 'n_step'),
    [
        *((dict(id=name), 100) for name in SIMULATORS),
        (dict(id='CartPole-v1'), 100),
        (dict(id='Acrobot-v1'), 520),  # beyond its limit of 500 steps
        (dict(id='Pendulum-v1'), 250),
        (dict(id='MountainCarContinuous-v0'), 20),
        (dict(id='FrozenLake-v1'), 100),
        (dict(id=limit_env, check='strict'), 30),
        (dict(id=SeededEnv), 30),
        (dict(id=NestedEnv), 30),
        *((shows(obs, FROM_1), 10) for obs in (1, 3, np.int64(2), np.array(2))),  # integers of any type
        (shows(IMAGE + 255, BYTES), 10),
        (step_env(nan_reward, n_good=3), 3),  # the fault comes after the checked steps
        # the env raises on illegal actions, and its masks change at every step
        *((dict(id='random_masks', kwargs={'source': source}), 50) for source in ('info', 'obs', 'method')),
        (dict(id='random_masks', kwargs={'action': 'multi_discrete'}), 50),
        (dict(id=masked_by_a_wrapper, action_mask='method'), 50),
        (dict(id='envpool', game='Snake-v1'), 20),
        (dict(id=MaskEnv, kwargs=EMPTY_MASK), 2),
        (dict(id=MaskEnv, kwargs=LATE_MASK, action_mask='off'), 10),
        (dict(id=MaskEnv, kwargs={**LATE_MASK, 'action': 'box'}), 10),  # a Box has no mask
        (dict(id=endless_env), 999),  # too short to tell, as the check at the start of a run
        (dict(id=endless_env, max_episode_steps=10_000), 1000),
        (dict(id=endless_env, kwargs={'limit': 10_000}), 1000),
        (dict(id=limit_env, kwargs={'limit': 1000}), 1000),  # its episodes end
        (dict(id=endless_vector), 999),
    ],
)
def test_check_env_finds_nothing_in_an_env_that_keeps_the_contract(fields: dict[str, Any], n_step: int) -> None:
    pytest.importorskip(SIMULATORS.get(str(fields['id']), 'gymnasium'), reason='an extra is not installed')
    if fields['id'] == 'envpool':
        pytest.importorskip('envpool')
    assert check_env(EnvConfig(**fields), n_step=n_step) == []


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


# --- warnings: a policy can learn from random numbers that no seed repeats; only two runs with one seed differ


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


class DrawNextEnv(RandomEnv):
    """Only resets without a seed draw their first observation, from a stream that no seed reaches."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        drawn, info = super().reset(seed=seed)
        return (drawn if seed is None else np.zeros(1, np.float32)), info


class DrawEndEnv(LimitEnv):
    """Its 2nd step ends the episode only in the replay, which starts at reset number 4, counted from 0.

    Resets: the warm-up, two for the first observation, the first run, the replay.
    """

    n_reset = -1

    def __init__(self, flag: str) -> None:
        super().__init__()
        self.flag = flag

    def reset(self, **kwargs: Any) -> Any:
        self.n_reset += 1
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, *_, info = super().step(action)
        ends = {'terminated': False, 'truncated': False, self.flag: self.n_reset == 4 and self._n_step == 2}
        return obs, reward, ends['terminated'], ends['truncated'], info


class OneArrayEnv(RandomEnv):
    """Every drawn observation is written into the same array."""

    state = np.zeros(1, np.float32)

    def reset(self, **kwargs: Any) -> Any:
        drawn, info = super().reset(**kwargs)
        self.state[:] = drawn
        return self.state, info


class NormObs(gymnasium.ObservationWrapper):
    n = 0

    def observation(self, observation: Any) -> Any:
        self.n += 1
        return observation / np.float32(self.n)


def normalised_env() -> gymnasium.Env:
    return NormalizeObservation(LimitEnv())


def normalised_vector(num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.wrappers.vector.NormalizeReward(LimitVectorEnv(num_envs))


def drawn(obs: dict[str, Any]) -> dict[str, Any]:
    return {**obs, 'own': (1, np.float32(RNG.random()))}


RNG = np.random.default_rng(0)
SEED = 1878776328  # that of the first env of a run with seed=0
DIFFER = f'two episodes with seed={SEED} and the same actions differ: '
NORMALISES = 'the wrapper Normalize{}, which normalises .*set {}=true'
ENDLESS = (
    'no episode ended in 1000 random steps and it has no time limit, so an evaluation may never end; '
    'set env.max_episode_steps, or end the episodes in step.'
)


@pytest.mark.slow(first=True)
@pytest.mark.parametrize(
    ('fields', 'n_step', 'said'),
    [
        (dict(id=OneArrayEnv), 10, f'step 0: two resets with seed={SEED}'),
        (dict(id=DrawEnv, kwargs={'what': 'observation'}), 10, f'step 3: {DIFFER}observation '),
        (dict(id=DrawEnv, kwargs={'what': 'reward'}), 10, f'step 3: {DIFFER}reward '),
        # masks are off, since the search for a mask would be one more reset
        *(
            (
                dict(id=DrawEndEnv, kwargs={'flag': flag}, action_mask='off'),
                10,
                rf'step 2: {DIFFER}{flag} False \(bool\) and True',
            )
            for flag in ('terminated', 'truncated')
        ),
        (dict(id=DrawNextEnv), 10, f'step 5: {DIFFER}first observation of the next episode'),
        (dict(id=NestedEnv, kwargs={'change': drawn}), 10, f"step 2: {DIFFER}observation 'own.1' "),
        (dict(id=lambda: NormObs(LimitEnv())), 10, 'has the wrapper NormObs, which normalises observations'),
        (dict(id=normalised_env), 10, NORMALISES.format('Observation', 'policy.model.obs_norm')),
        (dict(id=lambda: NormalizeReward(LimitEnv())), 10, NORMALISES.format('Reward', 'policy.learn.reward_norm')),
        (dict(id=normalised_vector), 10, NORMALISES.format('Reward', 'policy.learn.reward_norm')),
        (dict(id=endless_env), 1000, f"env '{__name__}:endless_env': {ENDLESS}"),
        (dict(id=endless_vector), 1000, 'no episode ended in 1000 random steps'),
    ],
)
def test_check_env_warns_once_and_says_where(fields: dict[str, Any], n_step: int, said: str) -> None:
    (sentence,) = check_env(EnvConfig(**fields), n_step=n_step)
    assert re.search(said, sentence) and ('np_random' in sentence) == (DIFFER in sentence or 'two resets' in sentence)


def test_check_env_unseeded_env_is_a_warning_that_names_the_switch(caplog: pytest.LogCaptureFixture) -> None:
    (sentence,) = check_env(EnvConfig(id=RandomEnv))
    assert sentence.startswith(
        f"env '{RandomEnv.__module__}:RandomEnv', index 0, step 0: two resets with seed={SEED} returned array"
    )
    assert sentence.endswith(
        'so no run with this env can be repeated; call super().reset(seed=seed) and draw all random numbers from '
        'self.np_random, or set env.check=false.'
    )
    assert caplog.messages == [sentence]


def test_check_env_wrapper_with_running_statistics_hides_no_other_chance() -> None:
    class Env(LimitEnv):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return (obs, RNG.random(), *rest)

    wrapper, chance = check_env(EnvConfig(id=lambda: NormalizeObservation(Env())))
    assert 'NormalizeObservation' in wrapper and 'the same actions differ: reward' in chance


@pytest.mark.parametrize(
    ('make', 'said'),
    [
        (normalised_env, 'set policy.model.obs_norm=true'),
        (lambda: NormalizeReward(LimitEnv()), 'set policy.learn.reward_norm=true'),
        (
            RandomEnv,
            r'no run with this env can be repeated.*\(env.check=strict refuses this; env.check=true only warns of it.\)$',
        ),
    ],
)
def test_check_strict_refuses_what_is_else_a_warning_and_names_the_switch(make: Any, said: str) -> None:
    with pytest.raises(EnvContractError, match=said):
        check_env(EnvConfig(id=make, check='strict'))


def test_run_with_an_unseeded_env_trains_with_one_warning_and_not_where_the_check_is_strict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = serial_pipeline(job_config(tmp_path, RandomEnv, max_env_step=128, env=dict(check=True)))
    assert result.train_iter > 0
    assert len([text for text in caplog.messages if 'no run with this env can be repeated' in text]) == 1
    with pytest.raises(EnvContractError, match='no run with this env can be repeated'):
        serial_pipeline(job_config(tmp_path, RandomEnv, max_env_step=128, env=dict(check='strict')))
