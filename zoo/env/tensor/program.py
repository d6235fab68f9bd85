"""One step of B tensor envs as a pure function: physics, time limit, new episodes, a check for NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from zoo.core.action_map import ActionMap
from zoo.core.spaces import Box, Discrete, obs_dtype
from zoo.env.errors import BrokenContractError
from zoo.env.tensor.base import State, TensorEnv, choose, leaves, rebuild

TensorFunction = Callable[..., Sequence[Tensor]]
Compile = Callable[[TensorFunction, str], TensorFunction]  # of a function and its name in messages
NO_LIMIT = 2**62  # env steps


class Carry(NamedTuple):
    """What a step hands to the next one."""

    state: State
    age: Tensor  # [B] int64, steps of the running episode
    nan_mark: Tensor  # [B] f32, 0 while all observations and rewards were finite, nan ever after
    n_finite_step: Tensor  # [B] int64, steps before that


class Fresh(NamedTuple):
    """Begun episodes, for the rows that end next."""

    state: State
    obs: Tensor


class Outcome(NamedTuple):
    """What a step returns."""

    obs: Tensor  # [B, *O], the first of the next episode where one ended
    next_obs: Tensor  # [B, *O], of the reached state
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


class StepProgram:
    """The functions of an env put together, as a pure function with static shapes that reads no values from Python."""

    def __init__(
        self,
        env: TensorEnv,
        n_env: int,
        max_episode_steps: int | None,
        action_mode: Literal['clip', 'rescale'],
        device: torch.device,
    ) -> None:
        self.env, self._n_env, self._device = env, n_env, device
        self._limit = NO_LIMIT if max_episode_steps is None else max_episode_steps
        self._action_map = ActionMap(env.action_space, action_mode, device)
        self._obs_dtype = obs_dtype(env.obs_space)
        self._obs_shape = env.obs_space.shape if isinstance(env.obs_space, Box) else ()

    def begin(self, noise: Tensor) -> Fresh:
        """New episodes of N rows. noise: [N, n_noise]. Raises: BrokenContractError."""
        state = self.env.reset(noise)
        if not isinstance(state, (Tensor, tuple, dict)):
            raise BrokenContractError(
                f'the state of reset is {_form(state)}',
                'a tensor, or a tuple or dict of tensors',
                'return one of these',
            )
        for leaf in leaves(state):
            _check_is_tensor('the state of reset', leaf)
            self._check('the state of reset', leaf, (len(noise), *leaf.shape[1:]), leaf.dtype)
        return Fresh(state, self._observe(state, len(noise)))

    def carry(self, fresh: Fresh) -> Carry:
        """The start of all B envs."""
        zero = torch.zeros(self._n_env, dtype=torch.int64, device=self._device)
        return Carry(
            fresh.state, zero, zero.float(), zero.clone()
        )  # one tensor in two places would need a second graph

    def __call__(self, carry: Carry, action: Tensor, fresh: Fresh, noise: Tensor) -> tuple[Carry, Outcome]:
        """
        Args:
          action: [B] int64 or [B, *A] f32, as the policy made it.
          fresh: B rows; those of envs whose episode ends are used.   noise: [B, n_step_noise].
        Raises: BrokenContractError.
        """
        sent = self._action_map.map(action)
        sent = sent.float() if sent.dtype == torch.float64 else sent
        returned = self.env.step(carry.state, sent, noise)
        _check_is_triple(returned)
        state, reward, terminated = returned
        self._check_step(carry.state, state, reward, terminated)
        next_obs = self._observe(state, self._n_env)
        age = carry.age + 1
        truncated = age >= self._limit
        ended = terminated | truncated
        after = choose(ended, fresh.state, state)
        obs = after if next_obs is state else choose(ended, fresh.obs, next_obs)
        # 0 * x is nan where x is not finite; obs is included for the first observations of new episodes
        nan_mark = torch.add(carry.nan_mark, self._watch(obs, self._watch(next_obs, reward)), alpha=0)
        carry = Carry(after, age.masked_fill(ended, 0), nan_mark, carry.n_finite_step + (nan_mark == 0))
        return carry, Outcome(obs, next_obs, reward, terminated, truncated)

    def _watch(self, obs: Tensor, seen: Tensor) -> Tensor:
        """[B], finite where the observation and `seen` are, and a Discrete observation is in its space."""
        space = self.env.obs_space
        if isinstance(space, Discrete):
            return torch.where((obs >= 0) & (obs < space.n), seen, torch.nan)
        return seen if obs.dtype == torch.uint8 else torch.add(seen, obs.flatten(1).sum(1), alpha=0)

    def _observe(self, state: State, n: int) -> Tensor:
        obs = self.env.observe(state)
        self._check('the observation', obs, (n, *self._obs_shape), self._obs_dtype)
        return obs

    def _check_step(self, before: State, state: State, reward: Tensor, terminated: Tensor) -> None:
        if (
            type(state) is not type(before)
            or (isinstance(state, dict) and list(state) != list(before))
            or (isinstance(state, tuple) and len(state) != len(before))
        ):
            raise BrokenContractError(
                f'the state of step is {_form(state)}', f'{_form(before)} as of reset', 'return the same form'
            )
        for old, new in zip(leaves(before), leaves(state), strict=True):
            self._check('the state of step', new, old.shape, old.dtype)
        self._check('the reward', reward, (self._n_env,), torch.float32)
        self._check('terminated', terminated, (self._n_env,), torch.bool)

    def _check(self, what: str, value: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Reads no values, so that the host does not wait for the device."""
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
    """A StepProgram as one compiled call, for a carry and fresh states of the structure given."""

    def __init__(self, program: StepProgram, carry: Carry, fresh: Fresh, name: str, compile: Compile) -> None:
        self._program = program
        self._states = carry.state, fresh.state
        self._n_leaf = len(leaves(carry.state))
        self._run = compile(self._flat, f'the step of {name}')

    def __call__(self, carry: Carry, action: Tensor, fresh: Fresh, noise: Tensor) -> tuple[Carry, Outcome]:
        out = self._run(*leaves(carry.state), *leaves(fresh.state), fresh.obs, *carry[1:], action, noise)
        n = self._n_leaf
        return Carry(rebuild(self._states[0], out[:n]), *out[n : n + 3]), Outcome(*out[n + 3 :])

    def _flat(self, *inputs: Tensor) -> list[Tensor]:
        n = self._n_leaf
        state, fresh_state = (rebuild(like, list(inputs[i * n : (i + 1) * n])) for i, like in enumerate(self._states))
        fresh_obs, age, nan_mark, n_finite_step, action, noise = inputs[2 * n :]
        carry, out = self._program(
            Carry(state, age, nan_mark, n_finite_step), action, Fresh(fresh_state, fresh_obs), noise
        )
        return [*leaves(carry.state), *carry[1:], *out]


def _check_is_tensor(what: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise BrokenContractError(f'{what} is a {type(value).__name__}', 'a tensor', 'compute it with torch')


def _check_is_triple(returned: Any) -> None:
    if not isinstance(returned, tuple) or len(returned) != 3:
        raise BrokenContractError(
            f'step returned {_form(returned)}',
            'a tuple of 3: state, reward, terminated',
            'leave time limits, infos and new episodes to zoo',
        )


def _form(value: Any) -> str:
    if isinstance(value, dict):
        return f'a dict of {", ".join(map(str, value))}'
    return f'a tuple of {len(value)}' if type(value) is tuple else f'a {type(value).__name__}'
