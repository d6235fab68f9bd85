"""Messages between a learner and its runners, of plain values and arrays: requests, rollouts, exceptions, and weights as bytes."""

from __future__ import annotations

import hashlib
import socket
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from zoo.config.section import put_at
from zoo.core import VERSION
from zoo.core.data import leaves
from zoo.core.errors import RunError, UserError, pickled_error, show_error, unpickled_error
from zoo.env.interface import EnvCommand
from zoo.worker.own_numbers import Logged


class Request(NamedTuple):
    """A request for one rollout. Its reply is accepted once; (run_id, group, collect_iter, attempt) identifies it."""

    run_id: str
    group: int  # index of the runner
    collect_iter: int  # number of rollouts before this one
    version: int | None  # of the weights to act with; None: the newest when the runner begins
    env_step: int  # env steps of the run when the request was made
    reset_seed: tuple[int, ...] | None = None  # entropy of the seed of a reset before the rollout; None: no reset
    attempt: int = 0  # number of times that this runner's requests were repeated before
    commands: tuple[EnvCommand, ...] = ()  # for the envs, before the reset: what was set in the envs of a lost runner
    reset_options: Mapping[str, Any] | None = None  # options of this reset and of all later ones; None: no change


class Reply(NamedTuple):
    """One rollout of a runner's b envs.

    blocks: by dotted name: 'obs' or 'obs.<leaf>' [T + 1, b, ...]; 'steps.reward' and the other fields of `StepBlock`
      [T, b, ...]; 'output.action' and other outputs of acting [T, b, ...]; 'state' or 'state.<leaf>', the recurrent state
      before step 0, [b, ...]; 'info.<entry>' [T, b, ...] of env.info_columns.
    """

    run_id: str
    group: int
    collect_iter: int
    version: int  # of the weights that acted
    blocks: dict[str, np.ndarray]
    finals: list[tuple[int, np.ndarray, Any]]  # (t, env indices, their true last observations), see `StepBlock`
    episodes: list[tuple[int, dict[str, float]]]  # (t, the env's own numbers of an episode), by time
    time: dict[str, float]  # seconds: env, act
    attempt: int = 0  # of the request
    n_restart: int = 0  # envs that this runner has restarted so far (env.on_error)
    numbers: Sequence[Logged] = ()  # that callbacks logged, see `RunnerView.log`

    @property
    def n_byte(self) -> int:
        return sum(block.nbytes for block in self.blocks.values())

    def copied(self) -> Reply:
        """Returns this reply with copies of its blocks; the originals may be memory of an engine."""
        return self._replace(blocks={name: block.copy() for name, block in self.blocks.items()})


class Lost(NamedTuple):
    """The loss of a runner that ended or was ended. The engine creates another one and forgets the outstanding requests."""

    group: int
    cause: str  # a clause: 'its process was ended by signal 9 (SIGKILL)'


def flat(tree: Any) -> dict[str, np.ndarray]:
    """Returns the arrays of a tree of tensors by dotted path; arrays of CPU tensors are views."""
    return {path: x.detach().numpy(force=True) for path, x in leaves(tree)}


def nested(blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values with dotted names as a nested dict, the inverse of `flat`."""
    found: dict[str, Any] = {}
    for path, x in blocks.items():
        put_at(found, path, x)
    return found


class Failure(NamedTuple):
    """An exception of a runner or rank. error: pickled, None if that fails; who: the name, in messages, of what raised it."""

    host: str
    words: str  # the exception's type and message
    trace: str  # its traceback as text
    is_user_error: bool = False
    error: bytes | None = None
    who: str = 'a runner'

    def raise_(self) -> NoReturn:
        """Raises the exception; if it could not be sent, a RunError or UserError with its type and message."""
        error = unpickled_error(self.error)
        if error is None:
            error = (UserError if self.is_user_error else RunError)(f'{self.who} on {self.host} raised {self.words}')
        if hasattr(error, 'add_note'):  # from Python 3.11 on
            error.add_note(f'in {self.who} on {self.host}; its traceback:\n{self.trace}')
        place = getattr(error, 'env_place', None)
        if place is not None:  # the command line shows it in a sentence
            error.env_place = f'{place[0]}, in {self.who} on {self.host}', place[1]  # type: ignore[attr-defined]
        raise error


def failure_of(error: BaseException, who: str = 'a runner') -> Failure:
    trace = ''.join(traceback.format_exception(type(error), error, error.__traceback__))
    words = show_error(error)
    is_user_error = isinstance(error, UserError)
    return Failure(socket.gethostname(), words, trace, is_user_error, pickled_error(error), who)


class RunnerLostError(RunError):
    """A runner was lost before it had answered a call; `wait` returns its `Lost` too."""


ALIGNMENT = 8  # bytes: of every tensor's start, so that a view of the vector can be read as its dtype
CACHE_LINE = 64  # bytes; on a CPU, the order of sums in a matrix product depends on the address within a cache line


class Placement(NamedTuple):
    """The position of a tensor in memory. offset: bytes from a multiple of CACHE_LINE to its start; stride: in elements."""

    offset: int
    stride: tuple[int, ...]


def placements(tensors: Mapping[str, Tensor]) -> dict[str, Placement]:
    """Returns the position of each tensor in memory."""
    return {name: Placement(x.data_ptr() % CACHE_LINE, x.stride()) for name, x in tensors.items()}


def place(tensors: Mapping[str, Tensor], wanted: Mapping[str, Placement]) -> None:
    """Moves tensors on the CPU to the wanted positions, so that acting gives bitwise equal results; values stay.

    The parameters of a learner are parts of one buffer. Those of a policy that only acts have memory of their own.
    """
    for name, (offset, stride) in wanted.items():
        x = tensors[name]
        if not x.is_cpu or not x.numel() or placements({'': x})[''] == (offset, stride):
            continue
        extent = 1 + sum((n - 1) * step for n, step in zip(x.shape, stride, strict=True))  # elements
        memory = torch.empty(CACHE_LINE + extent * x.element_size(), dtype=torch.uint8)
        start = (offset - memory.data_ptr()) % CACHE_LINE
        flat = memory[start : start + extent * x.element_size()].view(x.dtype)
        x.data = flat.as_strided(x.shape, stride).copy_(x.detach())


class WeightLayout:
    """The layout of tensors in a vector of bytes: tensors with the largest elements first, then by name.

    Args: tensors: views of live memory, which `pack` reads and `unpack` writes.
    Attributes: n_byte: size of the vector; digest: the same for all layouts that give a vector the same meaning.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])))
        self._places: dict[str, tuple[int, int]] = {}
        n = 0
        for name, x in self._tensors.items():
            self._places[name] = n, n + x.numel() * x.element_size()
            n = -(-self._places[name][1] // ALIGNMENT) * ALIGNMENT
        self.n_byte = n
        words = [VERSION, *(f'{name} {tuple(x.shape)} {x.dtype}' for name, x in self._tensors.items())]
        self.digest = hashlib.sha256('\n'.join(words).encode()).hexdigest()[:16]

    @torch.no_grad()
    def pack(self) -> np.ndarray:
        """Copies the values of the tensors into a new vector [n_byte] u8."""
        out = np.zeros(self.n_byte, dtype=np.uint8)
        for name, view in self._split(torch.from_numpy(out)):
            view.copy_(self._tensors[name])
        return out

    @torch.no_grad()
    def unpack(self, flat: np.ndarray) -> None:
        """Copies a vector [n_byte] u8 into the tensors, in place. Raises: ValueError for another size."""
        if flat.nbytes != self.n_byte:
            raise ValueError(
                f'weights of {flat.nbytes} bytes were sent but this policy acts with {self.n_byte}; build both from one config'
            )
        if not flat.flags.writeable:  # torch warns of read-only arrays; nothing is written into this one here
            there = {**flat.__array_interface__, 'data': (flat.__array_interface__['data'][0], False)}
            # a view of the same memory that is not marked as read-only
            view = type('Memory', (), {'__array_interface__': there, 'base': flat})()
            if flat.nbytes < 1 << 16:
                flat = flat.copy()
            else:
                flat = np.asarray(view)
        for name, view in self._split(torch.from_numpy(flat)):
            self._tensors[name].copy_(view)

    def _split(self, flat: Tensor) -> list[tuple[str, Tensor]]:
        return [
            (name, flat[start:stop].view(x.dtype).view(x.shape))
            for (name, x), (start, stop) in zip(self._tensors.items(), self._places.values(), strict=True)
        ]
