"""Tensor envs: base class, registry, and one step of B envs as a pure function: physics, time limit, resets, check for NaN."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from zoo.core.action_map import ActionMap
from zoo.core.data import Obs, Path, leaf_items
from zoo.core.errors import of_entry
from zoo.core.registry import Registry
from zoo.core.spaces import (
    ACTION_MASK,
    Dict,
    Space,
    leaf_names,
    leaves_by_path,
    map_spaces,
    mask_space,
    n_values,
    obs_dtype,
)
from zoo.env.config import EndsConfig, EnvConfig
from zoo.env.errors import BrokenContractError, UnsupportedEnvError
from zoo.env.masks import choice_slices

State = Any  # a tensor, or a tuple, NamedTuple or dict of tensors, all of them [N, ...]


class TensorEnv(ABC):
    """Many envs of one kind as three pure functions of tensors.

    Rows are envs. A row must not depend on other rows, and no function may read values from Python (`.item()`,
    `if tensor:`, boolean indexing): use torch.where to choose between values. Then a step never waits for the device,
    and can be compiled. Functions return new tensors on the device of their inputs. Tensors that are made in the
    constructor are on that device too.
    """

    obs_space: Space
    action_space: Space
    max_episode_steps: int | None = None  # if env.max_episode_steps is not set; None: no limit
    n_noise: int = 0  # random numbers that a reset uses
    n_step_noise: int = 0  # random numbers that a step uses

    @abstractmethod
    def reset(self, noise: Tensor) -> State:
        """States of N new episodes; N may differ from the number of envs.

        Args:
          noise: [N, n_noise] f32, uniform in [0, 1); the only source of randomness.
        """

    @abstractmethod
    def step(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        """The next states, the rewards [B] f32, and whether those states are terminal [B] bool.

        The env does not handle time limits and new episodes.

        Args:
          action: of action_space: [B] int64 (Discrete), [B, *A] int64 (MultiDiscrete, MultiBinary) or [B, *A] f32 (Box).
          noise: [B, n_step_noise] f32, uniform in [0, 1).
        """

    def observe(self, state: State) -> Obs:
        """The observations of N states: [N, *O] f32 (Box; uint8 for an image of bytes), int64 (Discrete, MultiDiscrete:
        indices from 0) or bool (MultiBinary); of a Dict a dict of these. An entry 'action_mask' is a MultiBinary."""
        return state


def check_tensor_config(cfg: EnvConfig, name: str) -> None:
    """Raises: UnsupportedEnvError for settings that need more than a tensor program gives."""
    if cfg.ends != EndsConfig():
        raise UnsupportedEnvError(
            f'env.ends is set but {name!r} is a tensor program, whose flags are taken as they are; change them in its '
            'step, or leave env.ends out.'
        )
    if cfg.drop_obs:
        raise UnsupportedEnvError(
            f'env.drop_obs is set but {name!r} is a tensor program, whose observations are taken whole; let the networks '
            'see a part of them by policy.model.actor_obs and critic_obs.'
        )


NO_LIMIT = 2**62  # env steps
TENSOR_ENV_REGISTRY: Registry[Callable[..., Any]] = Registry(
    'tensor_env', 'zoo.tensor_envs', ('zoo.env.tensor.classic', 'zoo.env.tensor.games', 'zoo.env.tensor.spread')
)

TensorFunction = Callable[..., Sequence[Tensor]]
Compile = Callable[[TensorFunction, str], TensorFunction]  # of a function and its name in messages


class Carry(NamedTuple):
    """The state that a step passes to the next one."""

    state: State
    age: Tensor  # [B] int64, steps of the running episode
    nan_mark: Tensor  # [B] f32, 0 while all observations and rewards were finite, then nan for ever
    n_finite_step: Tensor  # [B] int64, steps before nan_mark became nan


class NewEpisodes(NamedTuple):
    """Starts of new episodes, for the rows whose episode ends in the next step."""

    state: State
    obs: Obs


class StepOutcome(NamedTuple):
    """The results of a step."""

    obs: Obs  # [B, *O], the first of the next episode where one ended
    next_obs: Obs  # [B, *O], of the reached state
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


class StepProgram:
    """One step of B envs as a pure function with static shapes, in which Python reads no tensor values."""

    def __init__(
        self,
        env: TensorEnv,
        n_env: int,
        max_episode_steps: int | None,
        action_mode: Literal['clip', 'rescale'],
        device: torch.device,
    ) -> None:
        self.env = env
        self._n_env = n_env
        self._device = device
        if max_episode_steps is None:
            self._limit = NO_LIMIT
        else:
            self._limit = max_episode_steps
        self._action_map = ActionMap(env.action_space, action_mode, device)
        self._names = leaf_names(env.obs_space)
        self._dtypes = {path: obs_dtype(leaf) for path, leaf in leaves_by_path(env.obs_space).items()}
        sizes = {path: n_values(leaf) for path, leaf in leaves_by_path(env.obs_space).items()}
        self._n_value = {path: torch.tensor(n, device=device) for path, n in sizes.items() if n}
        if mask_space(env.obs_space) is None:
            self._choices = []
        else:
            self._choices = choice_slices(env.action_space)

    def begin(self, noise: Tensor) -> NewEpisodes:
        """New episodes of N rows. noise: [N, n_noise]. Raises: BrokenContractError."""
        state = self.env.reset(noise)
        if not isinstance(state, (Tensor, tuple, dict)):
            raise BrokenContractError(
                f'the state of reset is {_form(state)}',
                'a tensor, or a tuple or dict of tensors',
                'return one of these',
            )
        for leaf in state_leaves(state):
            _check_is_tensor('the state of reset', leaf)
            self._check('the state of reset', leaf, (len(noise), *leaf.shape[1:]), leaf.dtype)
        return NewEpisodes(state, self._observed(self.env.obs_space, self.env.observe(state), len(noise)))

    def carry(self, fresh: NewEpisodes) -> Carry:
        """The carry before the first step of all B envs."""
        zero = torch.zeros(self._n_env, dtype=torch.int64, device=self._device)
        # a clone: one tensor in two places would need a second graph
        return Carry(fresh.state, zero, zero.float(), zero.clone())

    def __call__(self, carry: Carry, action: Tensor, fresh: NewEpisodes, noise: Tensor) -> tuple[Carry, StepOutcome]:
        """
        Args:
          action: as the policy made it, see `ActionMap`.
          fresh: B rows; those of envs whose episode ends are used.   noise: [B, n_step_noise].
        Raises: BrokenContractError.
        """
        sent = self._action_map.map(action)
        if sent.dtype == torch.float64:
            sent = sent.float()
        returned = self.env.step(carry.state, sent, noise)
        if not isinstance(returned, tuple) or len(returned) != 3:
            raise BrokenContractError(
                f'step returned {_form(returned)}',
                'a tuple of 3: state, reward, terminated',
                'leave time limits, infos and new episodes to zoo',
            )
        state, reward, terminated = returned
        self._check_step(carry.state, state, reward, terminated)
        next_obs = self._observed(self.env.obs_space, self.env.observe(state), self._n_env)
        age = carry.age + 1
        truncated = age >= self._limit
        ended = terminated | truncated
        after = choose(ended, fresh.state, state)
        if next_obs is state:
            obs = after
        else:
            obs = choose(ended, fresh.obs, next_obs)
        # 0 * x is nan where x is not finite; obs is included for the first observations of new episodes
        seen = self._mark_not_finite(obs, self._mark_not_finite(next_obs, reward))
        if self._choices:
            seen = self._watch_mask(obs[ACTION_MASK], seen)
        nan_mark = torch.add(carry.nan_mark, seen, alpha=0)
        carry = Carry(after, age.masked_fill(ended, 0), nan_mark, carry.n_finite_step + (nan_mark == 0))
        return carry, StepOutcome(obs, next_obs, reward, terminated, truncated)

    def _mark_not_finite(self, obs: Obs, seen: Tensor) -> Tensor:
        """[B], finite where the observation and `seen` are, and indices are in their space."""
        for path, x in leaf_items(obs):
            seen = self._watch_leaf(path, x, seen)
        return seen

    def watch_first(self, path: Path, x: Tensor) -> Tensor:
        """[N], finite where a leaf of first observations is valid."""
        seen = self._watch_leaf(path, x, torch.zeros(len(x), device=self._device))
        if path == (ACTION_MASK,):
            return self._watch_mask(x, seen)
        return seen

    def _watch_mask(self, mask: Tensor, seen: Tensor) -> Tensor:
        """[B], finite where `seen` is and the action mask allows something in each choice."""
        for choice in self._choices:
            seen = torch.where(mask[:, choice].any(1), seen, torch.nan)
        return seen

    def _watch_leaf(self, path: Path, x: Tensor, seen: Tensor) -> Tensor:
        if x.dim() > 1:
            x = x.flatten(1)
        else:
            x = x.unsqueeze(1)
        if path in self._n_value:
            return torch.where(((x >= 0) & (x < self._n_value[path])).all(1), seen, torch.nan)
        if x.is_floating_point():
            return torch.add(seen, x.sum(1), alpha=0)
        return seen

    def _observed(self, space: Space, obs: Any, n: int, path: Path = ()) -> Any:
        """Checks the observations of n states; returns them in the order of the space. Raises: BrokenContractError."""
        what = f'the observation{of_entry(self._names.get(path, ".".join(path)))}'
        if not isinstance(space, Dict):
            self._check(what, obs, (n, *space.shape), self._dtypes[path])
            return obs
        if not isinstance(obs, dict) or set(obs) != set(space.spaces):
            got = f'is {_form(obs)}'
            if isinstance(obs, dict):
                got = f'has the entries {", ".join(map(str, obs))}'
            wanted = f'a dict with {", ".join(space.spaces)}'
            raise BrokenContractError(f'{what} {got}', wanted, 'return what obs_space says')
        return {name: self._observed(part, obs[name], n, (*path, name)) for name, part in space.spaces.items()}

    def _check_step(self, before: State, state: State, reward: Tensor, terminated: Tensor) -> None:
        if (
            type(state) is not type(before)
            or (isinstance(state, dict) and list(state) != list(before))
            or (isinstance(state, tuple) and len(state) != len(before))
        ):
            raise BrokenContractError(
                f'the state of step is {_form(state)}', f'{_form(before)} as of reset', 'return the same form'
            )
        for old, new in zip(state_leaves(before), state_leaves(state), strict=True):
            self._check('the state of step', new, old.shape, old.dtype)
        self._check('the reward', reward, (self._n_env,), torch.float32)
        self._check('terminated', terminated, (self._n_env,), torch.bool)

    def _check(self, what: str, value: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Checks shape, dtype and device, but no values, so that the host does not wait for the device."""
        _check_is_tensor(what, value)
        if value.shape != shape:
            raise BrokenContractError(
                f'{what} has shape {tuple(value.shape)}', str(tuple(shape)), 'see zoo.env.TensorEnv for the shapes'
            )
        if value.dtype != dtype:
            raise BrokenContractError(f'{what} is of {value.dtype}', str(dtype), f'convert it with .to({dtype})')
        if value.device != self._device:
            raise BrokenContractError(
                f'{what} is on {value.device}',
                f'{self._device} as the action',
                'make tensors on the device of the state, or in the constructor',
            )


class CompiledProgram:
    """A StepProgram as one compiled call, for carries and fresh states with the same structure as `carry` and `fresh`."""

    def __init__(self, program: StepProgram, carry: Carry, fresh: NewEpisodes, name: str, compile: Compile) -> None:
        self._program = program
        self._states = carry.state, fresh.state
        self._n_leaf = len(state_leaves(carry.state))
        self._obs_space = program.env.obs_space
        self._run = compile(self._flat, f'the step of {name}')

    def __call__(self, carry: Carry, action: Tensor, fresh: NewEpisodes, noise: Tensor) -> tuple[Carry, StepOutcome]:
        n = self._n_leaf
        states = (*state_leaves(carry.state), *state_leaves(fresh.state))
        out = self._run(*states, *_tensors(fresh.obs), *carry[1:], action, noise)
        rest = iter(out[n + 3 :])
        obs, next_obs = (map_spaces(lambda _: next(rest), self._obs_space) for _ in range(2))
        return Carry(rebuild(self._states[0], out[:n]), *out[n : n + 3]), StepOutcome(obs, next_obs, *rest)

    def _flat(self, *inputs: Tensor) -> list[Tensor]:
        n = self._n_leaf
        state, fresh_state = (rebuild(like, list(inputs[i * n : (i + 1) * n])) for i, like in enumerate(self._states))
        rest = iter(inputs[2 * n :])
        fresh_obs = map_spaces(lambda _: next(rest), self._obs_space)
        age, nan_mark, n_finite_step, action, noise = rest
        carry, out = self._program(
            Carry(state, age, nan_mark, n_finite_step), action, NewEpisodes(fresh_state, fresh_obs), noise
        )
        return [*state_leaves(carry.state), *carry[1:], *_tensors(out.obs), *_tensors(out.next_obs), *out[2:]]


def _tensors(obs: Obs) -> list[Tensor]:
    return [x for _, x in leaf_items(obs)]


def _check_is_tensor(what: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise BrokenContractError(f'{what} is a {type(value).__name__}', 'a tensor', 'compute it with torch')


def _form(value: object) -> str:
    if isinstance(value, dict):
        return f'a dict of {", ".join(map(str, value))}'
    if type(value) is tuple:
        return f'a tuple of {len(value)}'
    return f'a {type(value).__name__}'


def state_leaves(state: State) -> list[Tensor]:
    """The tensors of a state, in order."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, dict):
        return list(state.values())
    return list(state)


def rebuild(like: State, tensors: Sequence[Tensor]) -> State:
    """A state with the structure of `like`; the inverse of `state_leaves`."""
    if isinstance(like, Tensor):
        return tensors[0]
    if isinstance(like, dict):
        return dict(zip(like, tensors, strict=True))
    if hasattr(like, '_fields'):
        return type(like)(*tensors)
    return tuple(tensors)


def choose(mask: Tensor, new: State, old: State) -> State:
    """Rows of `new` where mask [B] is true, of `old` elsewhere."""
    if isinstance(old, Tensor):
        return torch.where(mask.view(-1, *[1] * (old.dim() - 1)), new, old)
    return rebuild(old, [choose(mask, *pair) for pair in zip(state_leaves(new), state_leaves(old), strict=True)])
