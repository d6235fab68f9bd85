"""Envs that step together, and the policy that acts for them; several such groups take turns."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from zoo.core.transfer import Fetch
from zoo.env import AnyVectorEnv, StepBlock
from zoo.policy.base import CollectMode


class EnvGroup:
    """Takes each step in two halves, between which another group has its turn.

    Attributes: env_time: seconds in the env so far; of envs that step by themselves, those that they were waited for.
    """

    def __init__(self, env: AnyVectorEnv, block: StepBlock, mode: CollectMode) -> None:
        self.env, self.block, self.acting = env, block, mode.start(block.obs)
        self.env_time = 0.0
        self._fetch = Fetch() if block.obs.device.type == 'cpu' else None  # else the actions stay where they are
        self._action: Any = None

    def act(self, t: int) -> None:
        """Begins step t: the policy's actions are asked for, and awaited only if the envs then step by themselves."""
        self._action = self.acting.step(t)
        if self._fetch is not None:
            self._fetch.start(self._action)
        if self.env.steps_beside:
            self._send()

    def step(self, t: int) -> None:
        """Ends step t: the envs have taken it."""
        if not self.env.steps_beside:
            self._send()
        start = perf_counter()
        self.env.receive(self.block, t)
        self.env_time += perf_counter() - start

    def _send(self) -> None:
        action = self._action if self._fetch is None else self._fetch.result()
        start = perf_counter()
        self.env.send(action)
        self.env_time += perf_counter() - start


def side_by_side(outputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Blocks [T, B, ...] of each group -> those of all envs, one level of nesting allowed."""
    if len(outputs) == 1:
        return outputs[0]
    return {
        key: side_by_side([output[key] for output in outputs])
        if isinstance(x, dict)
        else torch.cat([output[key] for output in outputs], dim=1)
        for key, x in outputs[0].items()
    }
