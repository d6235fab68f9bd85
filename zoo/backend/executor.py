"""Executors of a policy: passes of gradient steps, and acting through rollouts. `Eager` runs them as written.

The other executors, native (C) and graph (compiled), do the same faster; `zoo.backend.choose` decides which one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from zoo.backend.step import (
    Found as Found,
    LossSpec,
    SplitStep as SplitStep,
    Step as Step,
    StepNumbers,
    StepPlan as StepPlan,
    as_step,
    forward_rows as forward_rows,
)
from zoo.core.data import (
    Columns,
    Metrics,
    Obs,
    State,
    StateRecorder,
    as_tensors,
    first_leaf,
    keeps_state,
    leaf_items,
    leaves,
    map_tensors,
    recorder_of,
    send,
    unbind_rows,
)
from zoo.model.cnn import ActingWeights
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.gae import normalize_advantage
from zoo.rl_utils.optimizer import FlatOptimizer

# (obs [B, *O], state) -> {action, logit, ...}, all [B, ...], and the next 'state' where the model has one
Forward = Callable[[Obs, State], dict[str, Any]]
Explore = Callable[[ActionDist, Tensor], Tensor]  # (distribution, logit [B, P]) -> the logit of the policy that acts
DrawNoise = Callable[[int], Tensor]  # number of envs B -> noise for the T steps of a rollout, [T, B, ...]

KEPT_ROWS = 1 << 14  # largest number of rows whose results are kept until metrics are computed
GATHERED_BYTES = 1 << 20  # passes are gathered together up to this size, which stays in the caches
ALIGNMENT = 64  # bytes; that of all memory that torch allocates on a CPU


class Acting(Protocol):
    """A policy acting through rollouts, each of T rows of observations in one block [T + 1, B, *O].

    Attributes:
      output: the outputs for each row, in blocks [T, B, ...]; they exist once the first rollout has begun, and are reused.
        If the model has a recurrent state, 'state' is the state after the row, or what a `StateRecorder` keeps of it.
      state: the recurrent state of the B envs before the next row; None for a model without one. It may be set.
      restart: optional, ([B] bool) -> None: sets the state of these envs to that at the start of an episode.
      restarts_after: optional, (blocks [T, B] bool) -> None: `step` does so itself after a row that one of them marks.
    """

    output: dict[str, Any]
    state: State

    def begin(self) -> None:
        """Called before each rollout, when its first row of observations is there."""

    def step(self, t: int) -> Tensor:
        """Acts on row t and returns the action [B, ...]; called without gradient, t counts up from 0."""


class Eager:
    """Calls the step for every minibatch: the reference, for any model on any device, and base of the other executors."""

    name = 'eager'
    has_memory_in_c = False

    def __init__(self, model: nn.Module, dist: ActionDist) -> None:
        self._model: Any = model
        self._dist = dist

    def run(
        self, step: Step, optimizers: Sequence[FlatOptimizer], plan: StepPlan, loss: LossSpec, numbers: StepNumbers
    ) -> Metrics:
        """One step for each minibatch; returns each metric of all steps, [n_step]."""
        for optimizer in optimizers:
            if not optimizer.is_plain:
                optimizer.expect_passes(plan.order, plan.batch_size)
        split = as_step(step)
        plan = plan._replace(columns=split.prepare(self._dist, plan.columns))
        has_rest = plan.order.shape[1] % plan.batch_size != 0
        # steps whose metrics are computed at once
        if has_rest:
            n_kept = 1
        else:
            n_kept = max(KEPT_ROWS // plan.batch_size, 1)
        kept: list[Found] = []
        metrics: list[Metrics] = []
        for minibatch in minibatches(plan):
            kept.append(split.take(self._model, self._dist, optimizers, minibatch, loss, numbers))
            if len(kept) == n_kept:
                metrics.append(split.summarise(stacked(kept), self._dist, loss, numbers))
                kept = []
        if kept:
            metrics.append(split.summarise(stacked(kept), self._dist, loss, numbers))
        return joined(metrics)

    def start_acting(
        self, obs: Obs, noise: DrawNoise, has_value: bool, explore: Explore | None = None
    ) -> Acting | None:
        """Acting on the rows of a block, see `forward_for_acting`; None: the policy's own forward function is used.

        Args: explore: turns the logits into those of the policy that acts; None: they are the same.
        """
        return None

    @torch.no_grad()
    def compute_critic(self, obs: Obs, state: State = None) -> Tensor:
        """obs [N, *O] -> value [N] in the unit of the critic's output, without gradient; state: of a model with one."""
        if state is None:
            return self._model.compute_critic(obs)
        return self._model.compute_critic(obs, state)[0]

    @torch.no_grad()
    def outputs(self, method: str, columns: Columns, loss: LossSpec) -> dict[str, Tensor]:
        """Outputs of a method of the model for a batch as rows, by name, without gradient. Args: loss: its `forward` is used."""
        found: dict[str, Tensor] = loss.forward(self._model, method, columns)[0]
        return found


def minibatches(plan: StepPlan) -> Iterator[dict[str, Tensor]]:
    """The minibatches of all passes. Those gathered at once are views of one block, and their moments are computed together.

    A block holds one pass, or several small ones that each begin as aligned as memory of their own, which keeps the bits.
    """
    n = plan.order.shape[1]
    shape = (-1, plan.batch_size)
    if n % plan.batch_size == 0 and plan.gather:
        n_byte = [n * x[:1].nbytes for _, x in leaves(plan.columns)]
        if any(size % ALIGNMENT for size in n_byte):
            n_pass = 1
        else:
            n_pass = GATHERED_BYTES // max(sum(n_byte), 1)
        for orders in plan.order.split(max(n_pass, 1)):
            blocks = map_tensors(lambda x: x.index_select(0, orders.flatten()).unflatten(0, shape), plan.columns)  # noqa: B023
            yield from unbind_rows(_normalized(blocks, plan, 1))
        return
    for index in (x for order in plan.order for x in order.split(plan.batch_size)):
        yield _normalized(map_tensors(lambda x: send(x[index], plan.device), plan.columns), plan, 0)  # noqa: B023


def _normalized(columns: dict[str, Any], plan: StepPlan, dim: int) -> dict[str, Any]:
    """Normalises 'adv' if the plan says so, over all samples of a minibatch: dimensions from `dim` on, also of sequences."""
    if plan.normalize_adv:
        weight = None
        if 'weight' in columns:
            weight = columns['weight'].flatten(dim)
        columns['adv'] = normalize_advantage(columns['adv'].flatten(dim), weight, plan.ranks).view_as(columns['adv'])
    return columns


def joined(metrics: Sequence[Metrics]) -> Metrics:
    """Metrics of several runs of steps, [n] each, one after the other."""
    if len(metrics) == 1:
        return metrics[0]
    return {name: torch.cat([each[name] for each in metrics]) for name in metrics[0]}


def stacked(found: Sequence[Found]) -> Found:
    """The results of n_step steps, stacked: {name: [...]} each -> {name: [n_step, ...]}."""
    return map_tensors(lambda *x: torch.stack(x), *found)


def forward_for_acting(model: Any, obs: Obs, with_value: bool, state: State = None) -> dict[str, Any]:
    """{'logit'}, with 'value' (in the critic's unit) if with_value, and with the next 'state' if the model has one.

    state: the state before the observation; None: that at the start of an episode. Without with_value, the critic's part of
    the state stays unchanged.
    """
    if not keeps_state(model):
        if not with_value:
            return {'logit': model.compute_actor(obs)}
        output: dict[str, Any] = model.compute_actor_critic(obs)
    else:
        if state is None:
            state = model.initial_state(len(first_leaf(obs)))
        if not with_value:
            return dict(zip(('logit', 'state'), model.compute_actor(obs, state), strict=True))
        output = model.compute_actor_critic(obs, state)
    output.pop('value_logit', None)  # of a critic that predicts a distribution of returns; 'value' is its mean
    return output


OUTPUT = "the policy's output"


class ForwardActing:
    """Acting by a forward function, whose outputs [B, ...] are copied into blocks.

    The next call, which with several groups of envs comes before the action is used, may overwrite the outputs.
    Attributes: on_begin: functions that are called before each rollout.
    """

    def __init__(self, forward: Forward, obs: Obs, initial_state: Callable[[int], State] | None = None) -> None:
        self.on_begin: list[Callable[[], None]] = []
        self._given = forward
        self._forward: Forward = self._first_forward
        self._obs_rows = unbind_rows(obs)
        self._are_aligned = [map_tensors(_is_aligned, row) for row in self._obs_rows]
        self._n_step = len(self._obs_rows) - 1
        self._n_env = first_leaf(obs).shape[1]
        self.output: dict[str, Any] = {}
        self._rows: list[tuple[Tensor, ...]] = []
        if initial_state is None:
            self.state = None
        else:
            self.state = as_tensors(initial_state(self._n_env), 'the initial state')

    def begin(self) -> None:
        for call in self.on_begin:
            call()

    def _to_keep(self, output: dict[str, Any]) -> dict[str, Any]:
        """The part of the outputs that goes to the blocks."""
        return output

    def step(self, t: int) -> Tensor:
        obs = map_tensors(lambda x, aligned: x if aligned else x.clone(), self._obs_rows[t], self._are_aligned[t])
        output = self._forward(obs, self.state)
        self.state = output.get('state')
        output = self._to_keep(output)
        if not self._rows:
            for name, x in leaves(output):
                if x.shape[:1] != (self._n_env,):
                    raise ValueError(
                        f"the policy's output {name!r} has shape {tuple(x.shape)} but must begin with the {self._n_env} "
                        'envs that it acted for; keep what belongs to no env in the policy'
                    )
            self.output = map_tensors(lambda x: x.new_empty((self._n_step, *x.shape)), output)
            self._rows = [block.unbind(0) for _, block in leaf_items(self.output)]
            self._actions = self.output['action'].unbind(0)
        for rows, (_, x) in zip(self._rows, leaf_items(output), strict=True):
            rows[t].copy_(x)
        return self._actions[t]

    def _first_forward(self, obs: Obs, state: State) -> dict[str, Any]:
        """The first call of the forward function, which says whether its outputs need to be converted to tensors."""
        forward = self._given
        output = forward(obs, state)
        if all(isinstance(x, Tensor) for _, x in leaf_items(output)):
            self._forward = forward
            return output
        found: dict[str, Any] = as_tensors(output, OUTPUT)
        self._forward = lambda obs, state: as_tensors(forward(obs, state), OUTPUT)
        return found


class RecordingActing(ForwardActing):
    """`ForwardActing` that keeps a part of the states, by a `StateRecorder`: 'state' of its output is what this recorded.

    Args: recorder: of the model; the others: of `ForwardActing`.
    """

    def __init__(
        self, forward: Forward, obs: Obs, initial_state: Callable[[int], State] | None, recorder: StateRecorder
    ) -> None:
        super().__init__(forward, obs, initial_state)
        self._recorder: StateRecorder | None = recorder

    def keep_whole_states(self) -> None:
        """Keeps the whole state after each row from now on; called before the first rollout."""
        self._recorder = None

    def _to_keep(self, output: dict[str, Any]) -> dict[str, Any]:
        if self._recorder is None:
            return output
        return {**output, 'state': self._recorder.record(output['state'])}


def acting_by(
    forward: Forward, obs: Obs, initial_state: Callable[[int], State] | None, model: nn.Module
) -> ForwardActing:
    """Acting by a forward function of a model, which keeps its states as the model says, see `recorder_of`.

    Networks for images in bfloat16 on a CPU convert their weights once for a rollout.
    """
    on_begin: list[Callable[[], None]] = []
    nets = ActingWeights.nets_of(model)
    if nets:
        forward = weights = ActingWeights(forward, nets)
        on_begin = [weights.renew]
    recorder = recorder_of(model)
    if recorder is None:
        acting = ForwardActing(forward, obs, initial_state)
    else:
        acting = RecordingActing(forward, obs, initial_state, recorder)
    acting.on_begin = on_begin
    return acting


def _is_aligned(x: Tensor) -> bool:
    """Whether a product with x gives the bits of new memory, into which integers are converted first; pinned memory is copied."""
    return not (x.is_cpu and x.is_floating_point() and x.data_ptr() % ALIGNMENT) or x.is_pinned()
