"""Messages between a learner and its runners: requests, rollouts, exceptions; plain values and arrays of numpy, no tensors."""

from __future__ import annotations

import pickle
import socket
import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from zoo.core.data import leaves
from zoo.core.errors import RunError, UserError, show_error
from zoo.env.attributes import EnvCommand


class Request(NamedTuple):
    """One rollout that a runner is asked for; its reply is accepted once, by (run_id, group, collect_iter, attempt)."""

    run_id: str
    group: int  # of the runner
    collect_iter: int  # rollouts before this one
    version: int | None  # of the weights to act with; None: the newest when the runner begins
    env_step: int  # of the run when it was asked
    reset_seed: tuple[int, ...] | None = None  # entropy of the seed that its envs are reset with before; None: go on
    attempt: int = 0  # how often the runner's requests were lost before
    commands: tuple[EnvCommand, ...] = ()  # for the envs, before the reset: what was set in those of a lost runner
    reset_options: Mapping[str, Any] | None = None  # of the resets from this one on; None: as they are


class Reply(NamedTuple):
    """One rollout of a runner's b envs.

    blocks: by dotted name: 'obs' or 'obs.<leaf>' [T + 1, b, ...]; 'steps.reward' and the other fields of `StepBlock`
      [T, b, ...]; 'output.action' and what else acting gave [T, b, ...]; 'state' or 'state.<leaf>', the recurrent state
      before row 0, [b, ...]; 'info.<entry>' [T, b, ...] of env.info_columns.
    """

    run_id: str
    group: int
    collect_iter: int
    version: int  # of the weights that acted
    blocks: dict[str, np.ndarray]
    finals: list[tuple[int, np.ndarray, Any]]  # (t, which of the b envs, their true last observations), see `StepBlock`
    episodes: list[tuple[int, dict[str, float]]]  # (t, the env's own numbers), in the order in which they came
    time: dict[str, float]  # seconds: env, act
    attempt: int = 0  # of the request
    n_restart: int = 0  # envs that this runner made anew so far (env.on_error)

    @property
    def n_byte(self) -> int:
        return sum(block.nbytes for block in self.blocks.values())

    def copied(self) -> Reply:
        """The same with copies of its blocks, which may be an engine's memory."""
        return self._replace(blocks={name: block.copy() for name, block in self.blocks.items()})


class Lost(NamedTuple):
    """A runner that ended, or was ended; the engine makes another, and its outstanding requests are forgotten."""

    group: int
    cause: str  # a clause: 'its process was ended by signal 9 (SIGKILL)'


def flat(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree of tensors by dotted path; of tensors on the CPU they are views."""
    return {path: x.detach().numpy(force=True) for path, x in leaves(tree)}


def nested(blocks: Mapping[str, Any]) -> dict[str, Any]:
    """The nested dict of what stands under dotted names, the inverse of `flat`."""
    found: dict[str, Any] = {}
    for path, x in blocks.items():
        *folders, leaf = path.split('.')
        place = found
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = x
    return found


class Failure(NamedTuple):
    """What a runner raised. error: the exception pickled; None if it cannot be; who: raised it, if it was no runner."""

    host: str
    words: str  # the exception's type and message
    trace: str  # its traceback as text
    is_user_error: bool = False
    error: bytes | None = None
    who: str = 'a runner'

    def raise_(self) -> NoReturn:
        """Raises the exception of the runner; one that cannot be sent as a RunError, or a UserError, with its words."""
        try:
            error = None if self.error is None else pickle.loads(self.error)
        except Exception:  # its class may not be found here, or need other arguments
            error = None
        if not isinstance(error, BaseException):
            error = (UserError if self.is_user_error else RunError)(f'{self.who} on {self.host} raised {self.words}')
        if hasattr(error, 'add_note'):  # from Python 3.11 on
            error.add_note(f'in {self.who} on {self.host}; its traceback:\n{self.trace}')
        if (place := getattr(error, 'env_place', None)) is not None:  # of which the command line makes a sentence
            error.env_place = f'{place[0]}, in {self.who} on {self.host}', place[1]  # type: ignore[attr-defined]
        raise error


def failure_of(error: BaseException, who: str = 'a runner') -> Failure:
    """An exception of this process as a Failure."""
    trace = ''.join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # an __init__ with other arguments fails here, not at the learner
    except Exception:  # whatever its class raises
        pickled = None
    return Failure(socket.gethostname(), show_error(error), trace, isinstance(error, UserError), pickled, who)


class RunnerLostError(RunError):
    """A runner was lost before it had answered a call; `wait` gives its `Lost` too."""
