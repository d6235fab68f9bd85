"""Checks of an env in a few steps: each value that it returns, leaf by leaf, and whether a seed repeats its episodes.

A fault that makes learning wrong is an error. Episodes that no seed repeats are only a warning: a policy can learn from
them, but two runs with one seed are then not equal. `env.check=strict` refuses them too.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from threading import get_ident
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from numpy.typing import ArrayLike

from zoo.config.section import own_copy
from zoo.core.action_map import Action, ActionMap
from zoo.core.data import Path
from zoo.core.errors import UserError, of_entry
from zoo.core.seeding import child_seeds
from zoo.core.spaces import (
    ACTION_MASK,
    Box,
    Dict,
    Discrete,
    Leaf,
    MultiBinary,
    MultiDiscrete,
    Space,
    leaf_names,
    mask_size,
    mask_space,
)
from zoo.env.adapter import env_spaces, takes_keyword
from zoo.env.calls import CALLS, env_call
from zoo.env.closing import close_in_time
from zoo.env.config import EnvConfig, env_config
from zoo.env.errors import STOPS, BrokenContractError, EnvContractError, Place, add_place, show_value
from zoo.env.families.family import EnvFamily
from zoo.env.infos import last_obs
from zoo.env.inspection.family import (
    MAX_REPLAY,
    N_ENV,
    SEED,
    Difference,
    Finding,
    Leaves,
    Recorder,
    check_vector,
    different_path,
    findings,
    first_difference,
    not_repeated,
    random_actions,
    running_statistics,
    seed_actions,
    step_limit,
)
from zoo.env.make import env_name, find_env, make_env, reset_kwargs
from zoo.env.make_vector import make_vector_env, vectorization_of
from zoo.env.obs_bounds import AS_IT_IS, BELOW, NARROWER, WidenedBounds, is_scaled_by_bounds, widened_bounds
from zoo.env.validation import (
    N_RETURNED,
    RAW_ERRORS,
    RESET_DO,
    RETURN_DO,
    STEP_DO,
    action_of,
    as_flag,
    bad_reward,
    entries_of,
    fits,
    raise_if_broken,
    reshaping,
)
from zoo.env.vector import seen_space

logger = logging.getLogger(__name__)
CORRECT = 'correct one of the two'
SEED_DO = 'call super().reset(seed=seed) and draw all random numbers from self.np_random'
TAKEN = 'or set env.check=false to train with it'
MOVED = '(env.check=false only moves this error into the run)'
_REFUSED_KEYWORD = re.compile(r"\breset\(\) got an unexpected keyword argument '(seed|options)'")
Report = Callable[[str, str], None]
"""Called for a fault after which the check continues: (the sentence, a key that is the same for faults of one kind)."""


def check_env(cfg: EnvConfig | Mapping[str, Any], n_step: int = 10, before_run: bool = False) -> list[str]:
    """Makes one env of the config and takes `n_step` random steps with it, starting new episodes where they end.

    The first of these steps are taken twice, with the same seed and the same actions. Of a family, or where the config uses
    a batched version, two envs step together; VectorEnv checks their results.

    Args: before_run: leaves out warnings that a run which trains in such envs gives by itself.
    Returns: warnings, one sentence each, which are also logged: episodes with the same seed differ; a wrapper normalises
      by running statistics; observations are outside of the bounds of their space; in 1,000 steps or more no episode ended,
      and nothing limits them; the batched version that the config uses is another task than the env.
    Raises: EnvContractError that names env, index, step, what was got, what was wanted and what to do; UserError if
      n_step is below 1; and what make_env raises. With env.check=strict, EnvContractError also replaces the warnings
      about episodes that no seed repeats.
    """
    if n_step < 1:
        raise UserError(f'check_env got n_step={n_step}, wanted 1 or more; leave it out for 10 steps.')
    cfg = env_config(cfg)
    if vectorization_of(cfg) == 'batched':
        with closing(make_vector_env(cfg, N_ENV)) as vector:
            findings = check_vector(vector, cfg, n_step)
        findings += version_findings(cfg)
    else:
        env = make_env(cfg)
        try:
            findings = EnvCheck(env, cfg).run(n_step)
        finally:
            close_in_time({f'env {env_name(cfg)!r}': env.close}, cfg.step_timeout)
        if 'seed' in cfg.kwargs:
            from zoo.env.inspection.copies import equal_copies

            findings += equal_copies(cfg)
    for finding in findings:
        if finding.is_chance and cfg.check == 'strict':
            raise EnvContractError(refused(finding.sentence))
    sentences = [finding.sentence for finding in findings if not (before_run and finding.is_of_runs)]
    for sentence in sentences:
        logger.warning('%s', sentence)
    return sentences


def version_findings(cfg: EnvConfig) -> list[Finding]:
    """Warnings about a batched version that is another task than the single env of its id; see `batched_findings`."""
    if isinstance(find_env(cfg.id, cfg.game), EnvFamily):
        return []
    from zoo.env.inspection.batched import batched_findings  # few ids register one

    return batched_findings(cfg)


def refused(sentence: str) -> str:
    """The error message that env.check=strict makes of a warning."""
    return f'{sentence} (env.check=strict refuses this; env.check=true only warns of it.)'


class ToleratedError(BrokenContractError):
    """A fault that only the check refuses: a run without the check accepts such a value."""


class OutsideError(ToleratedError):
    """An observation outside of its bounds, of which a run only warns."""


Note = Callable[[BrokenContractError], None]  # gets a fault after which the check could continue; may raise it


def checked_leaves(obs: object, space: Space, source: str, note: Note) -> dict[str, np.ndarray]:
    """Copies of the leaves of an observation by their names, without those with a fault that a run refuses.

    Args: source: 'reset' or 'step', for the error.
      note: gets a BrokenContractError for each leaf that is missing, or has another type, shape, dtype or range than in
        the space.
    """
    checked = {}
    try:
        names = leaf_names(space)
        for path, leaf, value in _leaves(obs, space, (), source):
            faults = list(_faults(value, leaf, f'the observation{of_entry(names[path])} of {source}'))
            for fault in faults:
                note(fault)
            if all(isinstance(fault, ToleratedError) for fault in faults):
                checked[names[path]] = np.array(value)
    except BrokenContractError as error:  # about the entries of a Dict or Tuple
        note(error)
    return checked


def _leaves(obs: object, space: Space, path: Path, source: str) -> Iterator[tuple[Path, Leaf, object]]:
    if not isinstance(space, Dict):
        yield path, space, obs
        return
    what = f'the observation{of_entry(".".join(path))} of {source}'
    entries = entries_of(obs, space.spaces, space.is_tuple, what, CORRECT)
    if set(entries) != set(space.spaces):
        has = f'{what} has the entries {", ".join(map(repr, entries))}'
        wanted = f'{", ".join(map(repr, space.spaces))} as in observation_space'
        if set(entries) > set(space.spaces):
            raise ToleratedError(has, wanted, CORRECT)
        raise BrokenContractError(has, wanted, CORRECT)
    for name, part in space.spaces.items():
        yield from _leaves(entries[name], part, (*path, name), source)


def _is_foreign_array(value: object, dtype: np.dtype) -> bool:
    """Whether this is an array of another library, such as jax, with numbers of this type; numpy reads it."""
    if isinstance(value, np.ndarray | np.generic) or not hasattr(value, '__array__'):
        return False
    return np.asarray(value).dtype == dtype


def _tolerated_if(is_tolerated: bool) -> type[BrokenContractError]:
    if is_tolerated:
        return ToleratedError
    return BrokenContractError


def _faults(obs: Any, space: Leaf, what: str) -> Iterator[BrokenContractError]:
    """Yields the faults of one leaf of an observation, up to the first that no run tolerates."""
    if isinstance(space, Discrete):
        array = np.asarray(obs)
        if isinstance(obs, bool) or array.shape != () or array.dtype.kind not in 'iu':
            kind = _tolerated_if(isinstance(obs, bool))
            yield kind(f'{what} is {show_value(obs)}', 'an int', 'return int(obs)')
        elif not 0 <= int(array) - space.start < space.n:
            wanted = f'{space.start} to {space.start + space.n - 1} as in observation_space'
            yield BrokenContractError(f'{what} is {obs}', wanted, CORRECT)
        return
    dtype = space.dtype
    kind = _tolerated_if(fits(obs, space.shape, dtype))
    if _is_foreign_array(obs, np.dtype(dtype)) and kind is ToleratedError:
        obs = np.asarray(obs)
    if not isinstance(obs, np.ndarray | np.generic):
        do = reshaping(obs, space.shape, dtype) or f'return np.asarray(obs, dtype=np.{dtype})'
        yield kind(f'{what} is {show_value(obs)}', 'a numpy array', do)
        return
    if obs.shape != space.shape:
        do = reshaping(obs, space.shape, dtype) or CORRECT
        yield BrokenContractError(f'{what} has shape {obs.shape}', f'{space.shape} as in observation_space', do)
        return
    if isinstance(space, Box):
        has_wrong_dtype = obs.dtype != dtype
        wanted = f'{dtype} as in observation_space'
    else:
        has_wrong_dtype = obs.dtype.kind not in 'biu'
        wanted = 'integers'
    if has_wrong_dtype:
        yield kind(f'{what} has dtype {obs.dtype}', wanted, f'return obs.astype(np.{dtype})')
        if kind is BrokenContractError:
            return
    fault = _fault_of_numbers(np.asarray(obs), space, what)
    if fault is not None:
        yield fault


def _fault_of_numbers(
    obs: np.ndarray, space: Box | MultiBinary | MultiDiscrete, what: str
) -> BrokenContractError | None:
    """The fault of the first number that is not finite or outside of its bounds; None if there is none."""
    low, high = _BOUNDS[type(space)](space)
    is_scaled = False
    widest = WidenedBounds(low, high)
    if isinstance(space, Box):
        is_scaled = is_scaled_by_bounds(space)
        widest = widened_bounds(space)
    is_finite = np.isfinite(obs)
    is_above = obs > high
    is_wrong = ~(is_finite & (widest.low <= obs) & (obs <= widest.high))
    if is_scaled and is_above.any():  # the fault that a run refuses comes before one of which it warns
        is_wrong = is_above
    if not is_wrong.any():
        return None
    at = tuple(map(int, np.argwhere(is_wrong)[0]))
    got = f'{what} is {obs}'
    if at:
        got = f'{what} has {obs[at]} at {list(at)}'
    if not is_finite[at]:
        return BrokenContractError(got, 'finite numbers', 'find where it comes from')
    wanted = f'{low[at]:g} to {high[at]:g} as in observation_space'
    if not isinstance(space, Box):
        return BrokenContractError(got, wanted, NARROWER)
    if not is_scaled:
        return OutsideError(got, wanted, AS_IT_IS)
    if is_above[at]:
        return ToleratedError(got, wanted, NARROWER)
    return OutsideError(got, wanted, BELOW)


_BOUNDS: dict[type, Callable[[Any], tuple[np.ndarray, np.ndarray]]] = {
    Box: lambda space: (space.low, space.high),
    MultiBinary: lambda space: (np.zeros(space.shape), np.ones(space.shape)),
    MultiDiscrete: lambda space: (
        np.reshape(space.start, space.shape),
        np.reshape(np.add(space.start, space.nvec) - 1, space.shape),
    ),
}


def _lacks(arguments: str) -> tuple[str, str, str]:
    return f'reset has no argument {arguments}', 'reset(*, seed=None, options=None)', RESET_DO


class EnvCheck:
    """The checks of one env; keeps its name and the number of steps for the messages."""

    def __init__(
        self,
        env: gymnasium.Env,
        cfg: EnvConfig,
        recorder: Recorder | None = None,
        report: Report | None = None,
        seed: int = child_seeds(SEED, 0, 1)[0],
    ) -> None:
        """
        Args: recorder: records the steps, not those taken again; report: called for faults after which the check can
          continue; None: the first fault is raised; seed: of the episodes, by default one as runs give them to envs.
        """
        self._seed = seed
        self._cfg = cfg
        self._env = env
        self._name = env_name(cfg)
        self._n_step = 0
        self._recorder = recorder or Recorder(None)
        self._report = report
        self._space, self._action_space = env_spaces(env, self._name)
        seen = seen_space(self._space, self._action_space, cfg.action_mask, self._name)
        self._choices: ChoiceCheck | None = None
        if mask_space(seen) is not None:
            from zoo.env.masks import ChoiceCheck  # few envs have masks

            self._choices = ChoiceCheck(self._action_space)
        self._finds_masks = cfg.action_mask == 'auto' and self._choices is None and mask_size(self._action_space) > 0
        self._has_limit = step_limit(env) is not None
        self._statistics = running_statistics(env)
        self._actions: list[Action] = []
        self._odd_obs: dict[str, Finding] = {}  # about observations that a run takes, the first of each kind
        self._to_env = ActionMap(self._action_space)
        self._reset_kwargs = reset_kwargs(cfg, env)
        self._rng = torch.Generator().manual_seed(SEED)

    def run(self, n_step: int) -> list[Finding]:
        """Runs the check. Returns: warnings. Raises: EnvContractError at a fault; exceptions of the env's own code."""
        try:
            with env_call(f'env {self._name!r}, index 0, in its check'):
                unlike = self._run(n_step)
        except BrokenContractError as broken:
            raise self._error(broken) from broken
        except STOPS:
            raise
        except BaseException as error:
            add_place(error, Place(self._name, self._n_step).of(0))
            raise
        return [
            *findings(self._name, self._statistics, unlike, n_step, self._recorder, self._has_limit),
            *self._odd_obs.values(),
        ]

    def _run(self, n_step: int) -> str | None:
        """Takes all steps; returns the warning about the first value that the same seed did not repeat, or None."""
        self._signature()
        self._warm_up()
        difference = self._first_difference(n_step)
        if difference is None:
            return None
        for wrapper in self._statistics:
            if wrapper.stream in difference.values:  # its name says that it normalises these values
                return wrapper.sentence(self._name)
        return not_repeated(Place(self._name, difference.step).of(0), self._words(difference), SEED_DO)

    def seed_fault(self) -> str | None:
        """The values that this seed does not repeat, in words; for a second check of an env with another seed."""
        difference = self._first_difference(MAX_REPLAY)
        if difference is None:
            return None
        return self._words(difference)

    def _first_difference(self, n_step: int) -> Difference | None:
        difference = first_difference(
            lambda: {'observation': self._reset(self._seed)}, self._rollout, n_step, self._statistics
        )
        if difference is None:
            return None
        from zoo.env.inspection.copies import repeats_if_made_again

        if repeats_if_made_again(self._cfg):
            return None
        return difference

    def _words(self, difference: Difference) -> str:
        pair = f'{of_entry(difference.path)} {show_value(difference.was)} and {show_value(difference.now)}'
        if difference.step:
            return f'two episodes with seed={self._seed} and the same actions differ: {difference.values}{pair}'
        return f'two resets with seed={self._seed} returned{pair}'

    def _sample(self, mask: object) -> Action:
        """A random action; a legal one if there is a mask."""
        if self._choices is None or mask is None:
            return self._env.action_space.sample()
        bits = torch.from_numpy(self._choices.bits(mask)[None])
        return action_of(self._to_env(random_actions(self._action_space, 1, self._rng, bits)), 0)

    def _rollout(self, n_step: int, again: bool) -> Iterator[Leaves]:
        """Yields the results of random actions, or of the same actions again; where an episode ends, another follows."""
        recorder = self._recorder
        if again:
            recorder = Recorder(None)
        if not again:
            seed_actions(self._env, SEED)
        self._n_step = 0
        obs = self._reset(self._seed, recorder)
        for self._n_step in range(1, n_step + 1):
            if not again:
                self._actions.append(self._sample(obs.get(ACTION_MASK)))
            obs, reward, terminated, truncated = self._step(self._actions[self._n_step - 1], recorder)
            values = {'reward': reward, 'terminated': terminated, 'truncated': truncated}
            seen: dict[str, Mapping[str, Any]] = {'observation': obs, **{key: {'': x} for key, x in values.items()}}
            if terminated or truncated:
                obs = seen['first observation of the next episode'] = self._reset(None, recorder)
            yield seen
            if recorder.is_over():
                return

    def _signature(self) -> None:
        """Checks the arguments of an env without wrappers; with wrappers the call itself tells, since they may give others."""
        if isinstance(self._env, gymnasium.Wrapper):
            return
        missing = [k for k in ('seed', 'options') if not takes_keyword(self._env.reset, k)]
        if missing:
            self._unusable(_lacks(' or '.join(missing)), is_tolerated='seed' not in missing)

    def _warm_up(self) -> None:
        """Takes one step before the episodes that are compared: some simulators (Box2D) keep a cache that the first steps fill."""
        obs = self._reset(self._seed)
        self._n_step = 1
        seed_actions(self._env, SEED)
        self._step(self._sample(obs.get(ACTION_MASK)), Recorder(None))
        self._n_step = 0

    def _call(self, call: Literal['reset', 'step'], method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls reset or step of the env; a wrapper may fail at what the env inside it returns, or takes."""
        try:
            return method(*args, **kwargs)
        except RAW_ERRORS as error:
            keyword = _REFUSED_KEYWORD.search(str(error))
            if call == 'reset' and keyword:
                raise BrokenContractError(*_lacks(keyword[1])) from error
            raise_if_broken(error, call)
            raise

    def _reset(self, seed: int | None, recorder: Recorder | None = None) -> dict[str, np.ndarray]:
        """Resets the env; returns the checked leaves of the first observation by their paths."""
        start = time.perf_counter()
        result = self._call('reset', self._env.reset, seed=seed, **own_copy(self._reset_kwargs))
        seconds = time.perf_counter() - start
        obs, info = self._unpacked('reset', result)
        self._check_info(info, 'reset')
        checked = checked_leaves(obs, self._space, 'reset', self._note)
        self._check_mask(checked)
        if recorder is not None:
            recorder.began(seconds, checked)
        return checked

    def _step(self, action: Action, recorder: Recorder) -> tuple[dict[str, np.ndarray], ArrayLike, bool, bool]:
        start = time.perf_counter()
        result = self._call('step', self._env.step, action)
        seconds = time.perf_counter() - start
        obs, reward, terminated, truncated, info = self._unpacked('step', result)
        checked = checked_leaves(obs, self._space, 'step', self._note)
        self._check_reward(reward)
        is_over = self._flag('terminated', terminated)
        is_cut = self._flag('truncated', truncated)
        self._check_info(info, 'step')
        if not (is_over or is_cut):
            self._check_mask(checked)
        elif isinstance(info, dict):
            self._check_last(checked, info)
        recorder.stepped(seconds, checked, reward, is_over, is_cut, info)
        return checked, reward, is_over, is_cut

    def _check_last(self, obs: dict[str, np.ndarray], info: dict[Any, Any]) -> None:
        """Notes an env that has reset itself: the info has the last observation, and `obs` begins the next episode."""
        last = last_obs(None, info)
        if last is None:
            return
        path = different_path(checked_leaves(last, self._space, 'the info', self._note), obs)
        if path is not None:
            sentence = (
                f'{Place(self._name, self._n_step).of(0)}: the env has reset itself at the end of an episode, since its info has '
                f'another last observation{of_entry(path)} than the one that it returned; zoo takes that of the info, and resets '
                'the env once more.'
            )
            self._odd_obs.setdefault('resets itself', Finding(sentence))

    def _flag(self, what: str, flag: object) -> bool:
        try:
            value = as_flag(what, flag)
        except BrokenContractError as broken:
            self._note(broken)
            return False
        if not isinstance(flag, (bool, np.bool_)) and not _is_foreign_array(flag, np.dtype(bool)):
            self._note(ToleratedError(f'{what} is {show_value(flag)}', 'a bool', f'return bool({what})'))
        return value

    def _check_info(self, info: object, call: str) -> None:
        if not isinstance(info, dict):
            self._note(BrokenContractError(f'info is {show_value(info)}', 'a dict', RETURN_DO[call]))
        elif self._finds_masks and ACTION_MASK in info:
            self._note(
                BrokenContractError(
                    f'the info of {call} has {ACTION_MASK!r} but that of the first reset had none',
                    'it in both, or in neither',
                    f'put {ACTION_MASK!r} into the info of every reset too, or set env.action_mask=off',
                )
            )

    def _check_mask(self, obs: dict[str, np.ndarray]) -> None:
        if self._choices is not None and ACTION_MASK in obs:
            mask = self._choices.bits(obs[ACTION_MASK])
            if self._choices.empty(mask[None])[0]:
                self._note(BrokenContractError(*self._choices.fault(mask)))

    def _unpacked(self, call: Literal['reset', 'step'], result: object) -> Sequence[Any]:
        CALLS[get_ident()].count += 1  # a call has ended
        n = N_RETURNED[call]
        if isinstance(result, tuple) and len(result) == n:
            return result
        size = ''
        if isinstance(result, tuple):
            size = f' of {len(result)}'
        broken = (f'step returned a {type(result).__name__}{size}', 'a tuple of 5', STEP_DO)
        if call == 'reset':
            broken = (f'reset returned {show_value(result)}', 'a tuple (obs, info)', RESET_DO)
        self._unusable(broken, is_tolerated=isinstance(result, list) and len(result) == n)
        assert isinstance(result, list)
        return result

    def _check_reward(self, reward: object) -> None:
        if np.asarray(reward).shape != () or np.asarray(reward).dtype.kind not in 'biuf':
            self._note(BrokenContractError(*bad_reward(reward)))
        elif not np.isfinite(np.asarray(reward, dtype=float)):
            self._note(BrokenContractError(f'the reward is {reward!s}', 'a finite number', 'find where it comes from'))

    def _unusable(self, broken: tuple[str, str, str], is_tolerated: bool) -> None:
        """Reports a result that a run tolerates; raises for any other, since nothing can be checked after it."""
        if not is_tolerated:
            raise BrokenContractError(*broken)
        self._note(ToleratedError(*broken))

    def _note(self, broken: BrokenContractError) -> None:
        got, wanted, do = broken.args
        kind = f'{re.sub(" of (reset|step)$", "", re.split(r" (?:is|has|turns|returned) ", got)[0])}; {do}'
        if isinstance(broken, OutsideError):
            sentence = str(Place(self._name, self._n_step).error(0, got, wanted, do))
            self._odd_obs.setdefault(kind, Finding(sentence, is_of_runs=True))
            return
        if self._report is None:
            raise broken
        self._report(str(self._error(broken)), kind)

    def _error(self, broken: BrokenContractError) -> EnvContractError:
        got, wanted, do = broken.args
        if 'set env.' not in do:
            hint = f' {MOVED}'
            if isinstance(broken, ToleratedError):
                hint = f', {TAKEN}'
            do += hint
        return Place(self._name, self._n_step).error(0, got, wanted, do)
