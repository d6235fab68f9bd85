"""The vector env of B tensor envs, and their family 'torch'; no data leaves the device, and no step waits for the device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.core.action_map import action_width
from zoo.core.data import Obs, Timestep, leaf_items, map_tensors
from zoo.core.errors import UserError, of_entry
from zoo.core.registry import ENV_REGISTRY
from zoo.core.spaces import (
    ACTION_MASK,
    Box,
    Dict,
    Discrete,
    Leaf,
    MultiBinary,
    MultiDiscrete,
    Space,
    empty_obs,
    leaf_names,
    leaf_spaces,
    mask_size,
    mask_space,
)
from zoo.env.adapter import space_fault
from zoo.env.config import EnvConfig
from zoo.env.errors import (
    BrokenContractError,
    EnvContractError,
    EnvError,
    Place,
    SeveralAgentsError,
    UnsupportedEnvError,
)
from zoo.env.families.family import EnvRequest, env_family
from zoo.env.interface import AnyVectorEnv, EnvCommand, StepBlock
from zoo.env.make import explaining
from zoo.env.settings import apply
from zoo.env.tensor.agents import AgentTensorEnv
from zoo.env.tensor.program import (
    TENSOR_ENV_REGISTRY,
    Carry,
    Compile,
    CompiledProgram,
    NewEpisodes,
    State,
    StepProgram,
    TensorEnv,
    check_tensor_config,
    rebuild,
    state_leaves,
)

# rows of new episodes that are begun at once, for several steps
BLOCK_ROWS = 8192
BLOCK_ROWS_GPU = 1 << 20
BLOCK_STEPS = 64  # at most


class TensorVectorEnv(AnyVectorEnv):
    """B envs that step together on a device: tensors in, Timesteps out, with the observations of ended episodes.

    Every step gets a new episode for each row and uses it only in rows whose episode ended: same-step autoreset without
    reading values from Python. `check` finds out whether all returned values are finite.
    """

    autoreset = 'same_step'
    is_tensor_program = True

    def __init__(
        self, env: TensorEnv, cfg: EnvConfig, name: str, n_env: int, device: torch.device | str = 'cpu', first: int = 0
    ) -> None:
        """
        Args: first: index of its first env, if other processes have envs too: it makes the episodes differ.
        """
        self.name = name
        self.n_env = n_env
        self._first = first
        self._place = Place(name)
        self.request_infos(cfg.info_columns)
        check_tensor_config(cfg, name)
        self.device = torch.empty(0, device=device).device  # 'cuda' becomes 'cuda:0', as tensors say it
        self.obs_space, action_space = _spaces(env, name, cfg.action_mask)
        self.action_space = action_space
        limit = cfg.max_episode_steps
        if limit is None:
            limit = env.max_episode_steps
        self.program = StepProgram(env, n_env, limit, cfg.action_mode, self.device)
        self.run: StepProgram | CompiledProgram = self.program
        self._generator = torch.Generator(self.device)
        n_row = BLOCK_ROWS_GPU
        if self.device.type == 'cpu':
            n_row = BLOCK_ROWS
        self._n_block = min(max(n_row // n_env, 1), BLOCK_STEPS)
        self._action_shape: tuple[int, ...] = (n_env,)
        if not isinstance(action_space, Discrete):
            self._action_shape = (n_env, action_width(action_space))
        self._takes_float = isinstance(action_space, Box)
        self._noise: Iterator[tuple[NewEpisodes, Tensor]] = iter(())
        self._is_reset = False
        self._compile: Compile | None = None

    def reset(self, seed: np.random.SeedSequence | int) -> Obs:
        """Starts new episodes; returns their first observations [B, *O].

        Args:
          seed: all envs draw from one generator on the device. The same seed gives the same episodes on the same kind
            of device with the same number of envs and the same `first`.
        Raises: EnvContractError if the env's reset returns an invalid result, such as values that are not finite.
        """
        if isinstance(seed, np.random.SeedSequence):
            sequence = seed
        else:
            sequence = np.random.SeedSequence(seed)
        if self._first:
            sequence = np.random.SeedSequence(sequence.entropy, spawn_key=(*sequence.spawn_key, self._first))
        self._generator.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
        self._place.step = 0
        self._noise = self._blocks()
        fresh, _ = next(self._noise)
        self.carry = self.program.carry(fresh)
        self._check_first(fresh.obs)
        if self._compile is not None:
            self.run = CompiledProgram(self.program, self.carry, fresh, self.name, self._compile)
            self._compile = None
        self._is_reset = True
        return fresh.obs

    def request_infos(self, keys: Sequence[str]) -> None:
        """Raises: UnsupportedEnvError if there are keys: tensor programs have no infos."""
        if keys:
            raise UnsupportedEnvError(
                f'env {self.name!r} is a tensor program and has no infos, but the entries {list(keys)} of them are wanted '
                '(env.info_columns, logger.info_step_keys); leave these out, or put the numbers into the observations.'
            )

    def command(self, command: EnvCommand) -> list[Any]:
        is_compiled = self._compile is not None or self.run is not self.program
        if command.kind != 'get' and is_compiled:
            raise UserError(
                f'{command.kind} of {command.name!r}: env {self.name!r} is compiled into one program, which keeps the numbers '
                'that it was made with; use policy.learn.compile=off'
            )
        return [apply(self.program.env, command)]

    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        raise UnsupportedEnvError(
            f'env.reset_options is set but {self.name!r} is a tensor program, whose resets take no options; use env.kwargs, or '
            'env.schedule for an attribute of it.'
        )

    def block(self, n_step: int, n_env: int | None = None) -> StepBlock:
        return StepBlock(n_step, empty_obs(self.obs_space, (n_env or self.n_env,), self.device), ['next_obs'])

    def send(self, action: Tensor) -> None:
        self._action = action

    def receive(self, block: StepBlock, t: int) -> None:
        step = self.step(self._action)
        row = block.rows[t]
        if isinstance(step.obs, Tensor):  # `map_tensors` would take 1 microsecond, a step of 64 envs takes 70
            row.obs.copy_(step.obs)
            row.next_obs.copy_(step.next_obs)
        else:
            map_tensors(Tensor.copy_, row.obs, step.obs)
            map_tensors(Tensor.copy_, row.next_obs, step.next_obs)
        row.reward.copy_(step.reward)
        row.terminated.copy_(step.terminated)
        row.truncated.copy_(step.truncated)

    def step(self, action: Tensor) -> Timestep:
        """Takes one step. action: on the device. The Timestep's tensors are read-only and valid until the next step.

        Raises: EnvContractError if a tensor of the env has a wrong shape, type or device; `check` checks the values.
        """
        if not self._is_reset:
            raise EnvError(f'env {self.name!r}: step was called before the first reset; call reset first.')
        if (
            action.shape != self._action_shape
            or action.device != self.device
            or action.is_floating_point() != self._takes_float
        ):
            if self._takes_float:
                kind = 'floats'
            else:
                kind = 'integers'
            raise EnvError(
                f'{Place(self.name, self._place.step + 1).of(None)}: the actions are {action.dtype} of shape '
                f'{tuple(action.shape)} on {action.device}, wanted {kind} of shape {self._action_shape} on '
                f"{self.device}; pass the policy's output unchanged, and make both for the same device."
            )
        self._place.step += 1
        fresh, noise = next(self._noise)
        try:
            self.carry, out = self.run(self.carry, action, fresh, noise)
        except BrokenContractError as error:
            raise self._place.error(None, *error.args) from error
        return Timestep(out.obs, out.reward, out.terminated, out.truncated, None, None, {}, next_obs=out.next_obs)

    def draw(self, n_step: int) -> list[Tensor]:
        """Draws the tensors for n_step steps: a new episode for each row and step, and the noise of the steps."""

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=self._generator, device=self.device)

        try:
            fresh = self.program.begin(uniform(n_step * self.n_env, self.program.env.n_noise))
        except BrokenContractError as error:
            raise self._place.error(None, *error.args) from error
        self._drawn = fresh
        noise = uniform(n_step, self.n_env, self.program.env.n_step_noise)
        return [*state_leaves(fresh.state), *(x for _, x in leaf_items(fresh.obs)), noise]

    def follow(self, drawn: Sequence[Tensor]) -> None:
        """Makes the next steps use these tensors, which have the structure of the last `draw`."""
        self._noise = iter(self._rows(drawn))

    def _rows(self, drawn: Sequence[Tensor]) -> list[tuple[NewEpisodes, Tensor]]:
        n = len(state_leaves(self._drawn.state))
        *parts, noise = drawn
        of_obs = iter(parts[n:])
        states = _by_step(rebuild(self._drawn.state, parts[:n]), len(noise))
        obs = _by_step(map_tensors(lambda _: next(of_obs), self._drawn.obs), len(noise))
        return [(NewEpisodes(*pair), row) for *pair, row in zip(states, obs, noise.unbind(0), strict=True)]

    @property
    def carried(self) -> list[Tensor]:
        """The tensors from which the next step continues."""
        return [*state_leaves(self.carry.state), *self.carry[1:]]

    @carried.setter
    def carried(self, tensors: Sequence[Tensor]) -> None:
        self.carry = Carry(rebuild(self.carry.state, tensors[:-3]), *tensors[-3:])

    def _blocks(self) -> Iterator[tuple[NewEpisodes, Tensor]]:
        while True:
            yield from self._rows(self.draw(self._n_block))

    def check(self, block: StepBlock | None = None) -> None:
        """Waits for the device and tests whether all observations and rewards since the reset were finite.

        Raises: EnvContractError that names the first env and step where they were not.
        """
        if not self._is_reset or not math.isnan(float(self.carry.nan_mark.sum())):
            return
        is_finite = self.carry.nan_mark == 0
        n_finite_step = self.carry.n_finite_step.masked_fill(is_finite, torch.iinfo(torch.int64).max).cpu().numpy()
        index = int(n_finite_step.argmin())  # the first of several
        has_index = any(isinstance(leaf, Discrete | MultiDiscrete) for _, leaf in leaf_spaces(self.obs_space))
        others = ''
        if has_index:
            others = ', or the observation is outside of its space'
        if mask_space(self.obs_space) is not None:
            others += ', or the action mask allows nothing'
        raise Place(self.name, int(n_finite_step[index]) + 1).error(
            index,
            f'the observation or the reward is not finite{others}',
            'finite numbers',
            'fix the env; if its actions are continuous, look at the policy too',
        )

    def compile(self, compile: Compile) -> None:
        """Compiles the step into one program from the next reset on; results are equal up to rounding.

        Args: compile: takes a pure function of tensors and its name in messages, returns the compiled function.
        """
        self._compile = compile

    def _check_first(self, obs: Obs) -> None:
        names = leaf_names(self.obs_space)
        for path, x in leaf_items(obs):
            is_bad = self.program.watch_first(path, x).isnan()
            if is_bad.any():
                index = int(is_bad.nonzero()[0])
                got = f'the observation{of_entry(names[path])} of reset is {x[index].tolist()}'
                is_mask = path == (ACTION_MASK,)
                if is_mask:
                    wanted = 'an action mask that allows something'
                else:
                    wanted = 'finite numbers inside of obs_space'
                raise self._place.error(index, got, wanted, 'fix reset, or the space')


def _by_step(state: State, n_step: int) -> list[State]:
    """Splits a state of all rows into one state of B rows for each step."""
    if isinstance(state, Tensor):
        return list(state.view(n_step, len(state) // n_step, *state.shape[1:]).unbind(0))
    parts = [_by_step(leaf, n_step) for leaf in state_leaves(state)]
    return [rebuild(state, list(row)) for row in zip(*parts, strict=True)]


def _spaces(env: TensorEnv, name: str, action_mask: str) -> tuple[Space, Leaf]:
    """The env's spaces. Raises: EnvContractError if one is missing; UnsupportedEnvError if zoo does not support it."""
    for role, kinds in (('obs', Leaf | Dict), ('action', Leaf)):
        space = getattr(env, f'{role}_space', None)
        if not isinstance(space, Leaf | Dict):
            raise EnvContractError(
                f'env {name!r}: {type(env).__name__}.{role}_space is {space!r}, wanted a zoo.env.Box, '
                'Discrete, MultiDiscrete, MultiBinary or Dict; set it on the class or in the constructor.'
            )
        if not isinstance(space, kinds):
            raise UnsupportedEnvError(
                f'env {name!r}: the action_space of a tensor env is {space}, wanted Box, Discrete, MultiDiscrete or '
                'MultiBinary; make it one of these.'
            )
        for path, leaf in leaf_spaces(space):
            fault = space_fault(leaf)
            if fault:
                raise UnsupportedEnvError(f'env {name!r}: {role}_space{of_entry(path)} {fault}.')
    _check_mask_space(env, name, action_mask)
    assert isinstance(env.action_space, Leaf)
    return env.obs_space, env.action_space


def _check_mask_space(env: TensorEnv, name: str, action_mask: str) -> None:
    entry = None
    if isinstance(env.obs_space, Dict):
        entry = env.obs_space.spaces.get(ACTION_MASK)
    n = mask_size(env.action_space)
    if entry is None and action_mask == 'obs':
        got = "env.action_mask is 'obs' but the observations"
        wanted = f'an entry {ACTION_MASK!r}'
    elif entry is None or (action_mask != 'off' and n and entry == MultiBinary((n,))):
        return
    elif action_mask == 'off':
        got = "env.action_mask is 'off' but the observations"
        wanted = f'no entry {ACTION_MASK!r}'
    else:
        got = f'the entry {ACTION_MASK!r} is {entry} but the actions'
        wanted = f'a MultiBinary of {n} bits'
    raise UnsupportedEnvError(f'env {name!r}: {got} of a tensor env want {wanted}; correct its obs_space.')


@ENV_REGISTRY.register('torch')
@env_family(
    games=TENSOR_ENV_REGISTRY.names,
    summary='Envs written in PyTorch, which step on the device of the policy; env.game names one.',
)
def make_tensor_env(request: EnvRequest, /, **kwargs: Any) -> TensorEnv:
    """The env that is registered as `request.game`, made with env.kwargs on the device of the request.

    Raises: SeveralAgentsError for an env of several agents.
    """
    env = tensor_env_of(request, kwargs)
    if isinstance(env, AgentTensorEnv):
        raise SeveralAgentsError(
            f'env {request.name!r}: {type(env).__name__} is an env of several agents, and this takes one of a single agent; train '
            'in it by `zoo train` or serial_pipeline, whose section agents says which policies act (docs/agents.md).'
        )
    return env


def tensor_env_of(request: EnvRequest, kwargs: Mapping[str, Any]) -> TensorEnv | AgentTensorEnv:
    """The tensor env of a game, of one agent or of several. Raises: EnvContractError if another object was made."""
    source = TENSOR_ENV_REGISTRY.get(request.game)
    with explaining(source, {}, kwargs, request.name), torch.device(request.device):
        env = source(**kwargs)
    if not isinstance(env, TensorEnv | AgentTensorEnv):
        raise EnvContractError(
            f'env {request.name!r} made a {type(env).__name__}, wanted a zoo.env.TensorEnv; derive the class from it.'
        )
    return env
