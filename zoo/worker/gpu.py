"""Rollouts of a policy on a GPU: actions that envs of the host need are fetched; with tensor envs a rollout is one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.backend.graph import GraphActing
from zoo.backend.trace import CapturedCall, logger

MAX_STEPS = 256  # of a rollout that is captured, or its graph would be too large
MAX_ROWS = 1 << 22  # of new episodes that are drawn for it at once


class CapturedRollout:
    """In place of a collector's `in_turns`: all steps of a rollout in tensor envs by one launch, not by some 20 for each step.

    Random numbers are drawn before it. What cannot be captured is taken step by step, after one warning; so is a rollout
    whose acting is not compiled, or that would make too large a graph.
    Args: collector: a Collector of one group, over a TensorVectorEnv.
    """

    def __init__(self, collector: Any) -> None:
        self._in_turns, self._n_step = collector.in_turns, len(collector.block.rows)
        self._group, self._env = collector.groups[0], collector.groups[0].env
        self._is_small = self._n_step <= MAX_STEPS and self._n_step * collector.n_env <= MAX_ROWS
        self._places: list[Tensor] = []  # where the graph reads and leaves the state of the envs
        self._call: CapturedCall | None = None

    def __call__(self) -> None:
        acting, env = self._group.acting, self._env
        if not self._is_small or not isinstance(acting, GraphActing):
            self._in_turns()
            return
        self._places = self._places or [x.clone() for x in env.carried]
        self._settle()  # a reset has put the state elsewhere
        fixed = [*acting.tensors, *self._places]
        inputs = [*fixed, acting.noise, *env.draw(self._n_step)]
        if acting.captures:
            acting.captures, self._call = False, CapturedCall(self._steps, len(fixed))  # no graph holds another
        if self._call is not None:
            try:
                self._call(inputs)
                return
            except Exception as error:  # one of the env's own comes again below
                self._call = None
                why = f'{type(error).__name__}: {error}'.splitlines()[0]
                logger.warning('a rollout could not be captured; its steps are taken one by one: %s', why)
                env.carried = self._places  # which nothing has written
        self._steps(inputs)

    def _steps(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """All steps, on tensors as in `__call__`; what they give is in the blocks of policy and envs."""
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
    """Brings CUDA tensors of one form to the host, one after another.

    The host waits for the one that it asks for, not for the work that the device was given after it.
    """

    def __init__(self) -> None:
        self._place: Tensor | None = None  # the next `start` writes it
        self._event: torch.cuda.Event | None = None

    def start(self, x: Tensor) -> Callable[[], Tensor]:
        """Has x brought over once the device has made it; returns what waits for it and gives it, on the host.

        Its memory is overwritten by the next `start`.
        """
        if self._place is None or self._event is None:
            self._place, self._event = torch.empty(x.shape, dtype=x.dtype, pin_memory=True), torch.cuda.Event()
        self._place.copy_(x, non_blocking=True)
        self._event.record(torch.cuda.current_stream(x.device))
        return self._result

    def _result(self) -> Tensor:
        assert self._place is not None and self._event is not None
        self._event.synchronize()
        return self._place
