"""Envs written in JAX as simulators: one compiled program steps B envs, and its arrays are read by torch in place (DLPack)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Obs
from zoo.core.spaces import (
    ACTION_MASK,
    Box,
    Discrete,
    Leaf,
    MultiBinary,
    MultiDiscrete,
    Raw,
    Space,
    leaves_by_path,
    map_spaces,
    mask_space,
    n_values,
)
from zoo.env.errors import EnvContractError
from zoo.env.families.family import EnvRequest
from zoo.env.masks import choice_slices
from zoo.env.tensor.program import NO_LIMIT, State, StepOutcome
from zoo.env.tensor.simulator import BadValues, Simulator

JaxValue = Any  # an array of JAX, a traced one, or a number
NEVER = np.iinfo(np.int32).max  # as a step
LONGEST = NEVER - 1
RENEWED_PART = 8  # a pass begins episodes in this part of the envs; most steps end fewer
CACHED = 400_000  # bytes of the states that a CPU steps together: with what is computed from them they fit its L2 cache
for QUIET in ('jax', 'absl'):  # each env says which devices there are, and which are not
    logging.getLogger(QUIET).setLevel(logging.WARNING)


class JaxStep(NamedTuple):
    """The result of a step of one env. obs: a nested dict of arrays, or one array, as the space says."""

    state: State
    obs: Raw
    reward: JaxValue
    terminated: JaxValue
    truncated: JaxValue = False


class JaxTask(ABC):
    """One env written in JAX as two pure functions, without new episodes: `JaxSimulator` begins these.

    Attributes: obs_space, action_space: as of zoo. max_episode_steps: after which zoo truncates an episode; None: no limit, or
      the env's own one, which its steps report.
    """

    obs_space: Space
    action_space: Leaf
    max_episode_steps: int | None = None
    source: object = None

    @abstractmethod
    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """The state and the observation of a new episode."""

    @abstractmethod
    def step(self, key: jax.Array, state: State, action: jax.Array) -> JaxStep:
        """Takes a step. Args: action: an int32, int32 [K] or f32 [*A]."""


class _Carry(NamedTuple):
    """What a step passes to the next one. keys: of the envs, which never change; the n-th step folds n into them."""

    state: State
    age: jax.Array  # [B] int32, steps of the running episode
    keys: jax.Array
    n_step: jax.Array  # int32, steps since the reset
    bad_step: jax.Array  # [B] int32, the first step with an invalid value; NEVER: none


class JaxSimulator(Simulator):
    """B copies of a JaxTask. Rows are envs: each has random numbers of its own, whatever the others do.

    Attributes: program: the compiled step of all envs with their new episodes, (carry, action) -> (carry, results).
    """

    def __init__(self, task: JaxTask, n_env: int, limit: int | None, device: str = 'cpu', first: int = 0) -> None:
        """Args: limit: env.max_episode_steps; None: that of the task. first: index of its first env over all envs of the run."""
        self.obs_space = task.obs_space
        self.action_space = task.action_space
        self.n_env = n_env
        self.source = task.source
        self._task = task
        self._first = first
        self._limit = min(limit or task.max_episode_steps or NO_LIMIT, LONGEST)
        self._n_renewed = max(n_env // RENEWED_PART, min(n_env, RENEWED_PART))
        self._choices: list[slice] = []
        if mask_space(task.obs_space) is not None:
            self._choices = choice_slices(task.action_space)
        self._leaves = leaves_by_path(task.obs_space)
        self._jax_device = _device_of(device)
        self.device = torch.device('cpu')
        if self._jax_device.platform != 'cpu':
            self.device = torch.device('cuda', self._jax_device.id)
        self._begin = jax.jit(self._begin_all)
        self.program = jax.jit(self._advance_all)

    @classmethod
    def of_request(cls, task: JaxTask, request: EnvRequest) -> JaxSimulator:
        """The copies of a task that a request asks for."""
        return cls(task, request.n_env, request.max_episode_steps, request.device, request.first)

    def reset(self, seed: int) -> Obs:
        words = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
        key = jax.random.wrap_key_data(jax.device_put(words, self._jax_device), impl='threefry2x32')
        self._carry, obs = self._begin(key)
        return self._to_torch(obs)

    def step(self, action: Tensor) -> StepOutcome:
        self._carry, out = self.program(self._carry, in_jax(action))
        obs, next_obs, *flags = out
        return StepOutcome(self._to_torch(obs), self._to_torch(next_obs), *map(torch.from_dlpack, flags))

    def find_bad(self) -> BadValues | None:
        steps = np.asarray(self._carry.bad_step)
        index = int(steps.argmin())
        if steps[index] == NEVER:
            return None
        return BadValues(index, int(steps[index]))

    def _to_torch(self, leaves: tuple[jax.Array, ...]) -> Obs:
        tensors = iter([_as_tensor(x) for x in leaves])
        return map_spaces(lambda _: next(tensors), self.obs_space)

    def _begin_all(self, key: jax.Array) -> tuple[_Carry, tuple[jax.Array, ...]]:
        numbers = jnp.arange(self._first, self._first + self.n_env, dtype=jnp.uint32)
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(numbers)
        state, obs = jax.vmap(self._task.reset)(jax.vmap(lambda k: jax.random.fold_in(k, 0))(keys))
        state = self._as_after_a_step(keys, state)
        leaves = self._observed(obs)
        zeros = jnp.zeros(self.n_env, jnp.int32)
        bad_step = jnp.where(self._is_valid(leaves), NEVER, zeros)
        return _Carry(state, zeros, keys, jnp.zeros((), jnp.int32), bad_step), leaves

    def _as_after_a_step(self, keys: jax.Array, state: State) -> Any:
        """A state in the number types that a step gives: else the second step would compile the program again."""
        action = jax.vmap(lambda _: self._some_action())(keys)
        done = jax.eval_shape(jax.vmap(self._task.step), keys, state, action)
        self._check_step(done)
        return jax.tree.map(_cast, state, done.state)

    def _some_action(self) -> jax.Array:
        if isinstance(self.action_space, Box):
            return jnp.zeros(self.action_space.shape, jnp.float32)
        return jnp.zeros(self.action_space.shape, jnp.int32)

    def _advance_all(self, carry: _Carry, action: jax.Array) -> tuple[_Carry, tuple[Any, ...]]:
        now = carry.n_step + 1
        keys = jax.vmap(lambda k: jax.random.fold_in(k, 2 * now))(carry.keys)
        done = self._stepped(keys, carry.state, action)
        state = jax.tree.map(_cast, done.state, carry.state)
        next_leaves = self._observed(done.obs)
        age = carry.age + 1
        terminated = done.terminated.astype(bool)
        truncated = (age >= self._limit) | jnp.broadcast_to(done.truncated, terminated.shape)
        ended = terminated | truncated
        state, leaves = self._renewed(ended, state, next_leaves, carry.keys, 2 * now + 1)
        reward = done.reward.astype(jnp.float32)
        is_valid = self._is_valid(leaves) & self._are_finite(next_leaves) & jnp.isfinite(reward)
        bad_step = jnp.minimum(carry.bad_step, jnp.where(is_valid, NEVER, now))
        after = _Carry(state, jnp.where(ended, 0, age), carry.keys, now, bad_step)
        return after, (leaves, next_leaves, reward, terminated, truncated)

    def _stepped(self, keys: jax.Array, state: State, action: jax.Array) -> JaxStep:
        """The step of all envs: on a CPU some rows after others, if the states of all are large."""
        step = jax.vmap(self._task.step)
        n_row = self.n_env
        if self._jax_device.platform == 'cpu':
            n_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
            n_row = rows_together(self.n_env, CACHED * self.n_env // max(n_bytes, 1))
        if n_row == self.n_env:
            return step(keys, state, action)
        n_part = self.n_env // n_row
        parts = jax.tree.map(lambda x: x.reshape(n_part, n_row, *x.shape[1:]), (keys, state, action))
        done = jax.lax.map(lambda part: step(*part), parts)
        return jax.tree.map(lambda x: x.reshape(self.n_env, *x.shape[2:]), done)

    def _renewed(
        self, ended: jax.Array, state: State, leaves: JaxValue, keys: jax.Array, number: jax.Array
    ) -> tuple[Any, Any]:
        """States and observations with new episodes where one ended: some rows in a pass, as many passes as it takes.

        Args: number: that is folded into the keys.
        """
        reset = jax.vmap(lambda key: self._task.reset(jax.random.fold_in(key, number)))

        def renew(loop: tuple[jax.Array, Any, Any]) -> tuple[jax.Array, Any, Any]:
            rest, state, leaves = loop
            (rows,) = jnp.nonzero(rest, size=self._n_renewed, fill_value=self.n_env)  # behind the last row: is dropped
            new_state, new_obs = reset(keys[jnp.minimum(rows, self.n_env - 1)])
            state = jax.tree.map(lambda old, new: old.at[rows].set(_cast(new, old), mode='drop'), state, new_state)
            new_leaves = self._observed(new_obs)
            leaves = jax.tree.map(lambda old, new: old.at[rows].set(new, mode='drop'), leaves, new_leaves)
            return rest.at[rows].set(False, mode='drop'), state, leaves

        _, state, leaves = jax.lax.while_loop(lambda loop: loop[0].any(), renew, (ended, state, leaves))
        return state, leaves

    def _observed(self, obs: Raw) -> tuple[jax.Array, ...]:
        """The leaves of observations [B, ...] in the order of the space, in the number types of zoo.

        Raises: EnvContractError, while the program is traced, for one of another shape.
        """
        found = []
        for path, leaf in self._leaves.items():
            x = _at(obs, path)
            if x.shape[1:] != leaf.shape:
                place = '.'.join(path) or 'observation'
                raise self._error(f'{place!r} of shape {x.shape[1:]}', f'{leaf.shape}, as obs_space has it')
            found.append(x.astype(_dtype_of(leaf)))
        return tuple(found)

    def _check_step(self, done: object) -> None:
        """Raises: EnvContractError if the steps of all envs are no JaxStep, or their rewards and flags no single numbers."""
        if not isinstance(done, JaxStep):
            raise self._error(f'a {type(done).__name__} from step', 'a JaxStep(state, obs, reward, terminated)')
        for name in ('reward', 'terminated', 'truncated'):
            shape = getattr(done, name).shape[1:]
            if shape:
                raise self._error(f'{name!r} of shape {shape}', 'one number for each env')

    def _error(self, got: str, wanted: str) -> EnvContractError:
        return EnvContractError(f'{type(self._task).__name__} gave {got}, wanted {wanted}; correct the task.')

    def _are_finite(self, leaves: tuple[jax.Array, ...]) -> jax.Array:
        """[B], whether all numbers are finite, and indices are inside of their spaces."""
        is_valid = jnp.ones(len(leaves[0]), bool)
        for x, leaf in zip(leaves, self._leaves.values(), strict=True):
            rows = x.reshape(len(x), -1)
            if isinstance(leaf, Discrete | MultiDiscrete):
                is_valid &= ((rows >= 0) & (rows < jnp.asarray(n_values(leaf)))).all(1)
            elif jnp.issubdtype(x.dtype, jnp.floating):
                is_valid &= jnp.isfinite(rows).all(1)
        return is_valid

    def _is_valid(self, leaves: tuple[jax.Array, ...]) -> jax.Array:
        """[B], as `_are_finite`, and whether masks allow something in each choice."""
        is_valid = self._are_finite(leaves)
        if self._choices:
            mask = leaves[list(self._leaves).index((ACTION_MASK,))]
            for choice in self._choices:
                is_valid &= mask[:, choice].any(1)
        return is_valid


def rows_together(n_env: int, n_most: int) -> int:
    """The largest divisor of n_env up to n_most; n_env if that is less than a quarter of n_most, and so no good."""
    divisors = [n for n in range(1, min(n_env, n_most) + 1) if n_env % n == 0]
    if not divisors or 4 * divisors[-1] < min(n_env, n_most):
        return n_env
    return divisors[-1]


def in_jax(action: Tensor) -> jax.Array:
    """Actions as an array of JAX in the same memory; those of 64 bits become int32, which JAX has."""
    if action.dtype == torch.int64:
        action = action.int()
    if action.dtype == torch.float64:
        action = action.float()
    return jax.dlpack.from_dlpack(action.contiguous())


def _as_tensor(x: jax.Array) -> Tensor:
    """A tensor in the memory of an array, but for indices, which are int64 in zoo."""
    tensor = torch.from_dlpack(x)
    if tensor.dtype == torch.int32:
        return tensor.long()
    return tensor


def _device_of(device: str) -> Any:
    """The device of JAX for a policy on `device`: the GPU of that number if JAX has it, else the CPU."""
    if device.startswith('cuda'):
        try:
            return jax.devices('cuda')[torch.device(device).index or 0]
        except RuntimeError:  # this JAX is for CPUs only
            pass
    return jax.devices('cpu')[0]


def _cast(new: JaxValue, like: JaxValue) -> Any:
    """An array in the number type of another one; random keys stay what they are."""
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return new
    return jax.lax.convert_element_type(new, like.dtype)


def _at(obs: Raw, path: tuple[str, ...]) -> Any:
    for name in path:
        obs = obs[name]
    return obs


def _dtype_of(leaf: Leaf) -> Any:
    """The number type of a leaf as of `zoo.core.spaces.obs_dtype`, with int32 in place of int64."""
    if isinstance(leaf, Discrete | MultiDiscrete):
        return jnp.int32
    if isinstance(leaf, MultiBinary):
        return jnp.bool_
    if leaf.dtype == 'uint8' and len(leaf.shape) == 3:
        return jnp.uint8
    return jnp.float32
