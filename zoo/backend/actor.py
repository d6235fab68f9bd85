"""Acting through a rollout: by a policy's `_forward_collect`, or as one compiled call a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from zoo.backend.trace import MAX_GRAPHS, CompiledCall, form_of, named_tensors, replaced
from zoo.rl_utils.distribution import Logit, distribution_of, logit_parts


class Acting(Protocol):
    """A policy on its way through rollouts, each of T rows of observations in one block [T + 1, B, *O]."""

    output: dict[str, Any]
    """What it gave for each row, in blocks [T, B, ...]; there once the first rollout has begun, and reused."""

    def begin(self) -> None:
        """Before each rollout, whose first row is there."""

    def step(self, t: int) -> Tensor:
        """Acts on row t and returns the action [B, ...]; called without gradient, t counts up from 0."""


class ForwardActing:
    """Acting by a function of observations, whose outputs [B, ...] are copied into blocks.

    What it returns may be overwritten by the next call, which with several groups comes before the action is used.
    """

    def __init__(self, forward: Callable[[Tensor, Any], dict[str, Any]], obs: Tensor) -> None:
        self._forward, self._n_step, self._obs_rows = forward, len(obs) - 1, obs.unbind(0)
        self.output: dict[str, Any] = {}
        self._rows: list[tuple[str, str | None, tuple[Tensor, ...]]] = []

    def begin(self) -> None:
        """Nothing to do."""

    def step(self, t: int) -> Tensor:
        output = self._forward(self._obs_rows[t], None)
        if not self._rows:
            _check_lead(output, len(self._obs_rows[t]))
            self.output = blocks_like(output, self._n_step)
            self._rows = [
                (key, part, block.unbind(0))
                for key, value in self.output.items()
                for part, block in (value.items() if isinstance(value, dict) else [(None, value)])
            ]
            self._actions = self.output['action'].unbind(0)
        for key, part, rows in self._rows:
            rows[t].copy_(output[key] if part is None else output[key][part])
        return self._actions[t]


class CompiledActing:
    """Network, noise and action as one program, which writes its outputs where they stay.

    On a GPU it reads and writes one place for each instead, as a CUDA graph must, and rows are copied there and back.
    Args: one_trunk: see `judge`; obs: the block; device: of the model; draw: noise for the T steps of a rollout,
      [T, B, ...], whose logits are like the one given; in_place: None: as the device asks for.
    """

    def __init__(
        self,
        model: nn.Module,
        one_trunk: bool,
        obs: Tensor,
        device: torch.device,
        draw: Callable[[Logit], Tensor],
        in_place: bool | None = None,
    ) -> None:
        self._model, self._one_trunk, self._draw = model, one_trunk, draw
        self._obs_rows, self._n_step = obs.unbind(0), len(obs) - 1
        self._in_place = device.type == 'cpu' if in_place is None else in_place
        self._seen = obs[0] if self._in_place else torch.empty_like(obs[0], device=device)
        self.output: dict[str, Any] = {}
        self._like: Logit | None = None
        self._names: list[str] = []
        self._programs: dict[Any, CompiledCall] = {}  # by names and forms of the model's tensors
        self._places: Any = None  # where these were
        self._calls: list[list[Tensor]] = []

    @torch.no_grad()
    def begin(self) -> None:
        """Draws the noise, and looks the model's tensors up again: they may be others than before."""
        if self._like is None:
            self._like = self._allocate()
        self._noise.copy_(self._draw(self._like))
        tensors = named_tensors(self._model)
        fixed = [x.detach() for x in tensors.values()]
        key = tuple(tensors), form_of(fixed)
        places = key, [x.data_ptr() for x in fixed]
        if places == self._places:
            return
        self._places, self._names = places, list(tensors)
        if key not in self._programs:
            self._programs[key] = CompiledCall(self._write, 'acting', len(self._programs) < MAX_GRAPHS)
        self._run = self._programs[key]
        rows = zip(self._obs_rows[:-1], self._noise_rows, *self._output_rows, strict=True)
        if self._in_place:
            self._calls = [[*row, *fixed] for row in rows]
        else:
            self._calls = [[self._seen, self._drawn, *self._made, *fixed]] * self._n_step

    def step(self, t: int) -> Tensor:
        if self._in_place:
            self._run(self._calls[t])
        else:
            self._seen.copy_(self._obs_rows[t], non_blocking=True)
            self._drawn.copy_(self._noise_rows[t])
            self._run(self._calls[t])
            for rows, x in zip(self._output_rows, self._made, strict=True):
                rows[t].copy_(x)
        return self._output_rows[0][t]

    def _allocate(self) -> Logit:
        seen = judge(self._model, self._seen.copy_(self._obs_rows[0]), self._one_trunk)
        logit = seen['logit']
        parts: Logit = logit if isinstance(logit, Tensor) else {name: logit[name] for name in ('mu', 'sigma')}
        value = {'value': seen['value']} if self._one_trunk else {}
        self.output = blocks_like({'action': distribution_of(logit).mode(logit), 'logit': parts, **value}, self._n_step)
        blocks = [self.output['action'], *logit_parts(self.output['logit']), *(self.output[name] for name in value)]
        self._output_rows = [x.unbind(0) for x in blocks]
        self._noise = torch.empty_like(blocks[1])  # as the logit's first part
        self._noise_rows = self._noise.unbind(0)
        if not self._in_place:
            self._drawn, *self._made = (torch.empty_like(x[0]) for x in (self._noise, *blocks))
        return logit

    def _write(self, *inputs: Tensor) -> list[Tensor]:
        """obs [B, *O], noise, places of the outputs, tensors of the model."""
        n = len(self._output_rows)
        (obs, noise), places, fixed = inputs[:2], inputs[2 : 2 + n], inputs[2 + n :]
        with replaced(self._model, dict(zip(self._names, fixed, strict=True))):
            seen = judge(self._model, obs, self._one_trunk)
        logit = seen['logit']
        outputs = [
            distribution_of(logit).sample(logit, noise),
            *logit_parts(logit),
            *([seen['value']] if self._one_trunk else []),
        ]
        for place, x in zip(places, outputs, strict=True):
            place.copy_(x)
        return []


def judge(model: Any, obs: Tensor, one_trunk: bool) -> dict[str, Any]:
    """{logit}, and value (in the critic's unit) where it comes from the trunk that the logit comes from."""
    return model.compute_actor_critic(obs) if one_trunk else {'logit': model.compute_actor(obs)}


def _check_lead(output: Mapping[str, Any], n_env: int) -> None:
    for key, x in output.items():
        if isinstance(x, Mapping):
            _check_lead(x, n_env)
        elif x.shape[:1] != (n_env,):
            raise ValueError(
                f"the policy's output {key!r} has shape {tuple(x.shape)} but must begin with the {n_env} "
                'envs that it acted for; keep what belongs to no env in the policy'
            )


def blocks_like(output: Mapping[str, Any], n_step: int) -> dict[str, Any]:
    """Storage [T, B, ...] for n_step outputs [B, ...] like this one, one level of nesting allowed."""
    return {
        key: blocks_like(x, n_step) if isinstance(x, Mapping) else x.new_empty((n_step, *x.shape))
        for key, x in output.items()
    }
