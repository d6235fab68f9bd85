"""The interface of all vector envs: one step of B envs is a Timestep, or a row of a StepBlock, the memory of a rollout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from zoo.core.data import Finals, Obs, Timestep, Tree, first_leaf, leaves, map_tensors, unbind_rows
from zoo.core.spaces import Space
from zoo.env.errors import EnvError

Autoreset = Literal['same_step', 'next_step', 'disabled']


def autoreset_name(mode: object) -> Autoreset:
    """The name of an autoreset mode of gymnasium in the config. Raises: EnvError if `mode` is not an AutoresetMode."""
    if not isinstance(mode, AutoresetMode):
        raise EnvError(
            f"metadata['autoreset_mode'] of the vector env is {mode!r}, so that it does not say when it resets an ended episode; "
            'set it to one of gymnasium.vector.AutoresetMode, or where it is missing set env.autoreset to same_step, next_step '
            'or disabled.'
        )
    return mode.name.lower()  # type: ignore[return-value]


def autoreset_of(env: VectorEnv, declared: str = 'auto') -> Autoreset:
    """The autoreset mode of a vector env; gymnasium's own tell it by an attribute, since in 1.1 envs share their metadata.

    Args: declared: env.autoreset, which counts where the env itself does not say.
    """
    is_own = type(env.unwrapped).__module__.startswith('gymnasium.vector.')
    mode = None
    if is_own:
        mode = getattr(env.unwrapped, 'autoreset_mode', None)
    mode = mode or (env.metadata or {}).get('autoreset_mode')
    if mode is None and declared != 'auto':
        return declared  # type: ignore[return-value]
    return autoreset_name(mode)


BlockField = Literal['is_reset', 'raw_reward', 'raw_end', 'next_obs', 'begins', 'is_broken']


class StepRow(NamedTuple):
    """The rows of a StepBlock that one step writes to; tensors or arrays."""

    obs: Obs  # [B, *O], the observations after the step
    reward: Tree
    terminated: Tree
    truncated: Tree
    is_reset: Tree = None
    raw_reward: Tree = None
    raw_end: Tree = None
    next_obs: Obs = None
    begins: Tree = None
    is_broken: Tree = None


class StepBlock:
    """The memory for the results of T steps of B envs.

    Args: like: an observation of all envs, [B, *O]; also: the optional fields of Timestep that these envs give;
      arrays: whether the rows are numpy arrays, not tensors; reader: the GPU that reads the block, if any: the block is
      then in pinned memory, which is read without waiting.
    Attributes: obs: [T + 1, B, *O]; step t writes row t + 1, the caller writes row 0. steps: a Timestep of blocks
      [T, B, ...], its obs are those after each step. rows: T StepRows, views of `steps`. finals: (t, env indices, true
      last observations), for steps that ended episodes whose last observation is not in `obs`.
    """

    def __init__(
        self,
        n_step: int,
        like: Obs,
        also: Sequence[BlockField] = (),
        arrays: bool = False,
        reader: torch.device | None = None,
    ) -> None:
        self._arrays = arrays
        self._reader = reader
        first = first_leaf(like)

        def empty(n_row: int, like: Tensor) -> Tensor:
            return torch.empty(
                (n_row, *like.shape), dtype=like.dtype, device=like.device, pin_memory=reader is not None
            )

        self.obs = map_tensors(lambda x: empty(n_step + 1, x), like)
        steps = {'obs': map_tensors(lambda x: x[1:], self.obs)}
        for name in ('reward', 'terminated', 'truncated', *also):
            dtype = torch.bool
            if name.endswith('reward'):
                dtype = torch.float32
            row = first.new_empty(len(first), dtype=dtype)
            if name == 'next_obs':
                row = like
            steps[name] = map_tensors(lambda x: empty(n_step, x), row)
        self._place(steps)

    def _place(self, steps: dict[str, Any]) -> None:
        self.steps = Timestep(**steps, final_obs=None, final_index=None, info={})
        self.rows = [StepRow(**row) for row in unbind_rows(steps, self._arrays)]
        self.finals: Finals = []

    def part(self, start: int, stop: int) -> StepBlock:
        """The block of the envs from start to stop, in the same memory, with finals of its own."""
        part = copy(self)
        part.obs = map_tensors(lambda x: x[:, start:stop], self.obs)
        part._place({name: map_tensors(lambda x: x[:, start:stop], tree) for name, tree in self.columns().items()})
        return part

    def columns(self) -> dict[str, Any]:
        """The fields of `steps` that are not None, each a tensor [T, B, ...] or a nested dict of tensors."""
        return {name: x for name, x in self.steps._asdict().items() if x is not None and name != 'info'}

    def restart(self) -> None:
        """Prepares the next rollout: the last observations become its first ones, and `finals` is cleared."""
        if self._reader is not None:
            torch.cuda.synchronize(self._reader)  # the GPU may still read the last rollout
        map_tensors(lambda x: x[0].copy_(x[-1]), self.obs)
        self.finals.clear()


SINGLE_STEPS = 32  # in one block of memory
SINGLE_STEPS_BYTES = 1 << 18  # at most: a result that is kept keeps the memory of its whole block


class SingleSteps:
    """Memory for the results of single steps, each in memory of its own; a block of it serves several steps.

    Args: make: makes a StepBlock of the env, given the number of steps.
    """

    def __init__(self, make: Callable[[int], StepBlock]) -> None:
        self._make = make
        self._block: StepBlock | None = None
        self._rows: Iterator[tuple[int, dict[str, Any]]] = iter(())
        self._n_step = 1

    def next(self) -> tuple[StepBlock, int, dict[str, Any]]:
        """A block without `finals`, the number of its row that is to be written, and the fields of that row, views of it."""
        found = next(self._rows, None)
        if self._block is None or found is None:
            self._block = self._make(self._n_step)
            columns = self._block.columns()
            n_byte = sum(x.numel() * x.element_size() for _, x in leaves(columns)) // self._n_step
            self._n_step = max(1, min(SINGLE_STEPS, SINGLE_STEPS_BYTES // n_byte))
            self._rows = enumerate(unbind_rows(columns))
            found = next(self._rows)
        self._block.finals.clear()
        return self._block, *found


class EnvCommand(NamedTuple):
    """A command to one env. name: of an attribute or method; 'a.b.c' is the attribute c of its attribute a.b."""

    kind: Literal['get', 'set', 'call']
    name: str
    args: tuple[Any, ...] = ()  # of a call; for 'set' only the value
    kwargs: Mapping[str, Any] = {}


class AnyVectorEnv(ABC):
    """B envs that step together: tensors in, Timesteps out.

    Attributes: n_env: B. steps_async: `send` begins a step that continues while other code runs. requested_infos, info_columns:
      entries of single envs' infos, see `request_infos` and env.info_columns.
    """

    name: str
    n_env: int
    obs_space: Space
    action_space: Space
    autoreset: Autoreset
    is_tensor_program: ClassVar[bool] = False  # written in PyTorch: has no infos, and steps on the policy's device
    steps_async: bool = False
    requested_infos: tuple[str, ...] = ()
    info_columns: tuple[str, ...] = ()
    _steps: SingleSteps | None = None

    @abstractmethod
    def reset(self, seed: np.random.SeedSequence | int) -> Obs:
        """Start new episodes; returns their first observations [B, *O]. The same seed gives the same episodes."""

    def step(self, action: Tensor) -> Timestep:
        """Takes one step. action: as the policy made it; the env gets a copy converted by `ActionMap`.

        Raises: EnvContractError if an env returns an invalid result, such as an observation of another shape; EnvError if a
          worker died or hung. Exceptions of the env's own code pass through, with a note.
        """
        if self._steps is None:
            self._steps = SingleSteps(self.block)
        block, t, row = self._steps.next()
        self.send(action)
        info = self.receive(block, t) or {}
        final_obs = final_index = None
        for _, index, obs in block.finals:
            final_obs = map_tensors(torch.from_numpy, obs)
            final_index = torch.from_numpy(index)
        return Timestep(**row, final_obs=final_obs, final_index=final_index, info=info)

    @abstractmethod
    def block(self, n_step: int, n_env: int | None = None) -> StepBlock:
        """Storage for n_step steps of `receive`. n_env: envs in the block, if these envs are only a part of them."""

    @abstractmethod
    def send(self, action: Tensor) -> None:
        """Begins a step that `receive` ends. The argument and the exceptions are those of `step`."""

    @abstractmethod
    def receive(self, block: StepBlock, t: int) -> dict[str, Any] | None:
        """Writes the results of the step into row t of a block; returns the info of the vector env, see `zoo.env.infos`."""

    @abstractmethod
    def request_infos(self, keys: Sequence[str]) -> None:
        """Adds these entries of single envs' infos to the info of every step from now on. Raises: UnsupportedEnvError."""

    @abstractmethod
    def command(self, command: EnvCommand) -> list[Any]:
        """Applies a command to each env and returns their results; envs that step as one batch give one result.

        Raises: UserError, see `zoo.env.settings.apply`.
        """

    @abstractmethod
    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        """Sets the options of all resets from now on. Raises: UnsupportedEnvError if the envs take none."""

    def check(self, block: StepBlock | None = None) -> None:
        """Checks the values that the steps themselves did not check. Called once per rollout.

        Args: block: of a rollout for training, whose observations are compared with their bounds. Raises: EnvContractError.
        """

    def compile(self, compile: Callable[..., Any]) -> None:
        """Compiles the step of tensor programs into one program; does nothing for other envs."""

    def close(self) -> None:
        """Ends the envs and their processes; only warns of one that raises or hangs. May be called more than once."""


class RowObserver:
    """Observer of a vector env: gets the info of each step, and the row of the `StepBlock` with its other results.

    Attributes: reads_all: whether it must see every step, also one whose info is empty.
    """

    reads_all = False

    def begin(self) -> None:
        """Called when a rollout begins."""

    def see(self, t: int, info: dict[str, Any], row: StepRow) -> None:
        """Called after step t of the rollout."""

    def restart(self) -> None:
        """Called when all envs begin new episodes."""
