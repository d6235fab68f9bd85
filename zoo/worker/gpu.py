"""Rollouts of a policy on a GPU: actions are fetched for envs on the host; a rollout of tensor envs is one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.backend.graph import GraphActing
from zoo.backend.trace import CapturedCall, logger

MAX_STEPS = 256  # of a captured rollout: the graph of a longer one would be too large
MAX_ROWS = 1 << 22  # of new episodes that are drawn at once for a captured rollout


class CapturedRollout:
    """Replaces a collector's `in_turns` for tensor envs: takes all steps of a rollout in one launch, not 20 or so a step.

    Random numbers are drawn before the launch. If the capture fails, steps are taken one by one, after one warning. Steps
    are also taken one by one if acting is not compiled, or the graph would be too large.
    Args: collector: a Collector of one group, over a TensorVectorEnv.
    """

    def __init__(self, collector: Any) -> None:
        self._in_turns = collector.in_turns
        self._n_step = len(collector.block.rows)
        self._group = collector.groups[0]
        self._env = collector.groups[0].env
        self._is_small = self._n_step <= MAX_STEPS and self._n_step * collector.n_env <= MAX_ROWS
        self._places: list[Tensor] = []  # where the graph reads and writes the state of the envs
        self._call: CapturedCall | None = None
        self._code: tuple[object, ...] | None = None  # of the model, when the rollout was captured

    def __call__(self) -> None:
        acting = self._group.acting
        env = self._env
        if not self._is_small or not isinstance(acting, GraphActing):
            self._in_turns()
            return
        self._places = self._places or [x.clone() for x in env.carried]
        self._settle()  # a reset has put the state into other tensors
        fixed = [*acting.tensors, *self._places]
        inputs = [*fixed, acting.noise, *env.draw(self._n_step)]
        is_outdated = self._call is not None and acting.code != self._code
        if acting.captures or is_outdated:
            acting.captures = False  # a graph has no graphs in it
            self._code = acting.code
            self._call = CapturedCall(self._steps, len(fixed))
        if self._call is not None:
            try:
                self._call(inputs)
                return
            except Exception as error:  # an exception of the env's own code is raised again below
                self._call = None
                why = f'{type(error).__name__}: {error}'.splitlines()[0]
                logger.warning('a rollout could not be captured; its steps are taken one by one: %s', why)
                env.carried = self._places  # these are unchanged
        self._steps(inputs)

    def _steps(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Takes all steps with the inputs that `__call__` makes; the results are in the blocks of policy and envs."""
        acting: Any = self._group.acting
        noise, *drawn = inputs[len(acting.tensors) + len(self._places) :]
        acting.follow(noise)
        self._env.follow(drawn)
        self._in_turns()
        self._settle()
        return []

    def _settle(self) -> None:
        for place, x in zip(self._places, self._env.carried, strict=True):
            if place is not x:
                place.copy_(x)
        self._env.carried = self._places


class Fetch:
    """Copies CUDA tensors of one shape and dtype to the host, one after another.

    The host waits for the tensor that it asks for, not for work that the device was given later.
    """

    def __init__(self) -> None:
        self._place: Tensor | None = None  # pinned memory on the host; every `start` overwrites it
        self._event: torch.cuda.Event | None = None

    def start(self, x: Tensor) -> Callable[[], Tensor]:
        """Starts the copy of x, for when the device has computed it. Returns: a function that waits and returns the copy.

        The next `start` overwrites the copy.
        """
        if self._place is None or self._event is None:
            self._place = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
            self._event = torch.cuda.Event()
        self._place.copy_(x, non_blocking=True)
        self._event.record(torch.cuda.current_stream(x.device))
        return self._result

    def _result(self) -> Tensor:
        assert self._place is not None and self._event is not None
        self._event.synchronize()
        return self._place
