"""Simulators of other libraries that step B envs at once, whose results torch reads where they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core.action_map import ActionMap
from zoo.core.data import Obs, Timestep, map_tensors
from zoo.core.spaces import Leaf, Space, empty_obs, mask_space
from zoo.env.adapter import space_fault
from zoo.env.config import EnvConfig
from zoo.env.errors import EnvError, Place, UnsupportedEnvError
from zoo.env.interface import AnyVectorEnv, EnvCommand, StepBlock
from zoo.env.settings import apply
from zoo.env.tensor.program import StepOutcome, check_tensor_config


class BadValues(NamedTuple):
    """The first env and step at which a value of an observation or reward was no valid one."""

    env: int
    step: int


class Simulator(ABC):
    """B envs of another library that step together on one device, as a program that zoo does not look into.

    Attributes: obs_space, action_space: of one env. device: of all tensors. source: the object that attributes are read from
      and written to by `env.schedule`, None if it has none.
    """

    obs_space: Space
    action_space: Leaf
    n_env: int
    device: torch.device
    source: object = None

    @abstractmethod
    def reset(self, seed: int) -> Obs:
        """Begins new episodes; returns their first observations [B, *O]. seed: 64 bits; the same one gives the same episodes."""

    @abstractmethod
    def step(self, action: Tensor) -> StepOutcome:
        """Takes one step, and begins new episodes where one ended.

        Args: action: as the env takes it: [B] or [B, K] int64, or [B, *A] f32.
        Returns: tensors that nobody may change. `next_obs` is the observation that was reached, also at the end of an episode.
        """

    @abstractmethod
    def find_bad(self) -> BadValues | None:
        """Waits for the device; the first value since the reset that was not finite, or an index outside of its space."""


class SimulatorVectorEnv(AnyVectorEnv):
    """B envs of a simulator: tensors in, Timesteps out, with the true observation of each step.

    Where the simulator is on the CPU and the policy on a GPU, rollouts lie in pinned memory.
    """

    autoreset = 'same_step'

    def __init__(self, simulator: Simulator, cfg: EnvConfig, name: str, device: str = 'cpu') -> None:
        """Args: device: of the policy."""
        self.name = name
        self.n_env = simulator.n_env
        self.simulator = simulator
        self.obs_space = simulator.obs_space
        self.action_space = simulator.action_space
        self.device = simulator.device
        self._place = Place(name)
        self.request_infos(cfg.info_columns)
        check_tensor_config(cfg, name)
        for role, leaf in (('observation', self.obs_space), ('action', self.action_space)):
            fault = isinstance(leaf, Leaf) and space_fault(leaf)
            if fault:
                raise UnsupportedEnvError(f'env {name!r}: the {role} space {fault}.')
        if cfg.action_mask not in ('auto', 'obs') or (cfg.action_mask == 'obs' and mask_space(self.obs_space) is None):
            raise UnsupportedEnvError(
                f'env.action_mask is {cfg.action_mask!r} but {name!r} has its masks, if any, in its observations; leave it out.'
            )
        self._map = ActionMap(self.action_space, cfg.action_mode, self.device)
        self._reader = None
        if self.device.type == 'cpu' and device.startswith('cuda'):
            self._reader = torch.device(device)
        self._is_reset = False

    def reset(self, seed: np.random.SeedSequence | int) -> Obs:
        """Starts new episodes; returns their first observations [B, *O]. Raises: EnvContractError if one is not finite."""
        sequence = seed
        if not isinstance(sequence, np.random.SeedSequence):
            sequence = np.random.SeedSequence(sequence)
        self._place.step = 0
        obs = self.simulator.reset(int(sequence.generate_state(1, np.uint64)[0]))
        self._is_reset = True
        self.check()
        return obs

    def request_infos(self, keys: Sequence[str]) -> None:
        """Raises: UnsupportedEnvError if there are keys: the infos of simulators are not read."""
        if keys:
            raise UnsupportedEnvError(
                f'env {self.name!r} steps all its envs as one program, whose infos are not read, but the entries {list(keys)} of '
                'them are wanted (env.info_columns, logger.info_step_keys); leave these out.'
            )

    def command(self, command: EnvCommand) -> list[Any]:
        if command.kind != 'get' or self.simulator.source is None:
            raise UnsupportedEnvError(
                f'{command.kind} of {command.name!r}: env {self.name!r} is compiled into one program, which keeps the numbers '
                'that it was made with; use env.kwargs.'
            )
        return [apply(self.simulator.source, command)]

    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        raise UnsupportedEnvError(
            f'env.reset_options is set but the resets of {self.name!r} take no options; use env.kwargs.'
        )

    def block(self, n_step: int, n_env: int | None = None) -> StepBlock:
        like = empty_obs(self.obs_space, (n_env or self.n_env,), self.device)
        return StepBlock(n_step, like, ['next_obs'], reader=self._reader)

    def send(self, action: Tensor) -> None:
        self._action = action

    def receive(self, block: StepBlock, t: int) -> None:
        out = self._take_step(self._action)
        row = block.rows[t]
        map_tensors(Tensor.copy_, row.obs, out.obs)
        map_tensors(Tensor.copy_, row.next_obs, out.next_obs)
        row.reward.copy_(out.reward)
        row.terminated.copy_(out.terminated)
        row.truncated.copy_(out.truncated)

    def step(self, action: Tensor) -> Timestep:
        """Takes one step. action: on the device of the simulator. The tensors of the result must not be changed."""
        out = self._take_step(action)
        return Timestep(out.obs, out.reward, out.terminated, out.truncated, None, None, {}, next_obs=out.next_obs)

    def check(self, block: StepBlock | None = None) -> None:
        """Waits for the device and tests whether all values since the reset were valid.

        Raises: EnvContractError that names the first env and step where one was not.
        """
        if not self._is_reset:
            return
        bad = self.simulator.find_bad()
        if bad is None:
            return
        raise Place(self.name, bad.step).error(
            bad.env,
            'the observation or the reward is not finite, an index is outside of its space, or the action mask allows nothing',
            'finite numbers inside of the spaces',
            'report it to the authors of the env; if its actions are continuous, look at the policy too',
        )

    def _take_step(self, action: Tensor) -> StepOutcome:
        if not self._is_reset:
            raise EnvError(f'env {self.name!r}: step was called before the first reset; call reset first.')
        self._place.step += 1
        return self.simulator.step(self._map.map(action))
