"""Recurrent models: sequences cut from rollouts, run through the model, converted back to rows; acting through episodes.

A batch of sequences has the columns of a batch of rows, but with [S, L, ...] in place of [N, ...]: S sequences of L
steps. It also has 'state' [S, ...], before the first step of each sequence; 'is_first' [S, L] bool, an episode begins with
the step; and, if sequences overlap, 'is_repeat' [S, L] bool, an earlier sequence has the step too. With a burn-in of b
steps, 'obs' and 'is_first' have b more steps at the front, and 'is_burned' [S] marks the sequences that use these steps.
The others, at the start of a rollout, begin with 'state' at the first of their L steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.backend.executor import Acting, forward_rows
from zoo.backend.step import own_forward
from zoo.config.section import Job, Section
from zoo.core.data import STATE_COLUMNS, Columns, Obs, Rollout, Sample, State, Timestep, first_leaf, map_tensors, send
from zoo.policy.slots import Entries

C = TypeVar('C', bound=Columns)


class SequenceConfig(Section):
    """Section `policy.learn.sequence`: how rollouts are cut where the model has a recurrent state."""

    len: int = Field(
        16, ge=1, description='steps through which gradients flow (8 to 64 is usual); divides policy.collect.n_step'
    )
    overlap: Literal['none', 'half', 'maximum'] = Field(
        'none', description="a new sequence starts every len steps, every len / 2, or at every step ('maximum')"
    )
    burn_in: int = Field(
        0, ge=0, description='steps before each sequence that only bring its state up to date, for samples of the past'
    )

    def problems(self, job: Job) -> Iterator[str]:
        learn = job.policy.learn
        n_step = job.policy.collect.get('n_step')
        if job.policy.model.get('recurrent') is None or n_step is None:
            return  # another model may have a state too: the policy checks that
        for key in ('batch_size', 'critic_batch_size', 'aux_batch_size'):
            batch_size = learn.get(key)
            if batch_size is None:
                batch_size = self.len
            problem = sequence_problem(self, n_step, batch_size, key)
            if problem:
                yield problem
                return
        if learn.get('recompute_adv'):
            yield (
                'policy.learn.recompute_adv is true but policy.model.recurrent is given, whose rollouts are cut into '
                'sequences; use recompute_adv=false.'
            )


def sequences(cfg: SequenceConfig) -> Entries:
    """Entries of a recurrent model: rollouts are cut into sequences, and gradient steps run the model over them."""
    return Entries(partial(as_sequences, cfg=cfg), rows_once, forward_sequences, cfg.len)


def stride_of(cfg: SequenceConfig) -> int:
    """Steps from the start of one sequence to that of the next. cfg: the resolved section."""
    return {'none': cfg.len, 'half': max(cfg.len // 2, 1), 'maximum': 1}[cfg.overlap]


def n_copy(cfg: SequenceConfig, n_step: int) -> float:
    """Average number of sequences that contain a row of a rollout of n_step steps."""
    return ((n_step - cfg.len) // stride_of(cfg) + 1) * cfg.len / n_step


def sequence_problem(cfg: SequenceConfig, n_step: int, batch_size: int, key: str = 'batch_size') -> str:
    """Returns a sentence about lengths that do not fit together; '' if they fit."""
    if n_step % cfg.len:
        nearest = min((d for d in range(1, n_step + 1) if n_step % d == 0), key=lambda d: abs(d - cfg.len))
        return (
            f'policy.learn.sequence.len is {cfg.len} but policy.collect.n_step is {n_step}: {n_step} % {cfg.len} = '
            f'{n_step % cfg.len} steps would be dropped; use a divisor, e.g. {nearest}.'
        )
    if cfg.overlap == 'half' and cfg.len % 2:
        return f"policy.learn.sequence.overlap is 'half' but len is {cfg.len}, which is odd; use an even len."
    if cfg.burn_in > n_step - cfg.len:
        return (
            f'policy.learn.sequence.burn_in is {cfg.burn_in} but a rollout of {n_step} steps has at most '
            f'{n_step - cfg.len} before a sequence of {cfg.len}; use {n_step - cfg.len} or fewer.'
        )
    if batch_size % cfg.len:
        return (
            f'policy.learn.{key} is {batch_size} but policy.learn.sequence.len is {cfg.len}: minibatches are whole '
            f'sequences; use a multiple, e.g. {max(batch_size // cfg.len, 1) * cfg.len}.'
        )
    return ''


def as_sequences(samples: dict[str, Any], rollout: Rollout, cfg: SequenceConfig) -> Sample:
    """Cuts columns [T, B, ...] of a rollout with recurrent states into sequences, ordered by their start, then by env.

    Args: cfg: the resolved section `policy.learn.sequence`.
    """
    is_first = rollout.data['is_first']
    device = is_first.device
    start = torch.arange(0, len(is_first) - cfg.len + 1, stride_of(cfg), device=device)
    steps = torch.arange(-cfg.burn_in, cfg.len, device=device)

    def window(x: Tensor, offsets: Tensor) -> Tensor:  # [T, B, ...] -> [S, L, ...]
        rows = (start.unsqueeze(1) + offsets).clamp(min=0)
        return x[rows].transpose(1, 2).flatten(0, 1)

    own = steps[cfg.burn_in :]
    n_env = is_first.shape[1]
    columns: Any = {name: map_tensors(lambda x: window(x, own), x) for name, x in samples.items() if name != 'obs'}
    is_burned = start >= cfg.burn_in
    begin = torch.where(is_burned, start - cfg.burn_in, start)
    if stride_of(cfg) < cfg.len:  # the rows that an earlier sequence has too
        is_repeat = (own < cfg.len - stride_of(cfg)) & (start > 0).unsqueeze(1)
        columns['is_repeat'] = is_repeat.repeat_interleave(n_env, 0)
    columns |= {
        'obs': map_tensors(lambda x: window(x, steps), samples['obs']),
        'is_first': window(is_first, steps),
        'state': _states_before(begin, rollout, n_env),
    }
    if cfg.burn_in:
        columns['is_burned'] = is_burned.repeat_interleave(n_env)
    return columns


def _states_before(rows: Tensor, rollout: Rollout, n_env: int) -> State:
    """The states [N * B, ...] of all envs before N rows of a rollout."""
    envs = torch.arange(n_env, device=rows.device)
    return rollout.states_after((rows - 1).repeat_interleave(n_env), envs.repeat(len(rows)))


def _lead(columns: Columns) -> torch.Size:
    """Leading shape: [N] of rows, [S, L] of sequences. A batch has advantages or returns, or both."""
    return columns['adv' if 'adv' in columns else 'return_'].shape


def rows_of(columns: C) -> C:
    """Converts a batch of sequences [S, L] to rows [S * L], without the columns of sequences; returns rows unmodified."""
    if 'state' not in columns:
        return columns
    n_step = _lead(columns)[1]
    return {  # type: ignore[return-value]
        name: map_tensors(lambda x: x[:, -n_step:].flatten(0, 1), x)
        for name, x in columns.items()
        if name not in STATE_COLUMNS and first_leaf(x).dim() > 1  # a column [S] has no value for single rows
    }


def rows_once(batch: C) -> tuple[C, Tensor | None]:
    """Returns a batch of sequences as rows, and weights [N] with which statistics count each row once; None: all equal."""
    rows = rows_of(batch)
    weight = rows.get('weight')
    is_repeat = rows.get('is_repeat')
    if is_repeat is not None:
        if weight is None:
            weight = (~is_repeat).to(torch.float32)
        else:
            weight = weight.masked_fill(is_repeat, 0.0)
    return rows, weight


@own_forward
def forward_sequences(model: nn.Module, method: str, minibatch: C) -> tuple[dict[str, Tensor], C]:
    """Runs a method of a recurrent model on a minibatch of sequences; returns its output and the minibatch, both as rows."""
    return run_model(model, method, minibatch), rows_of(minibatch)


def run_model(model: nn.Module, method: str, columns: Columns) -> dict[str, Tensor]:
    """Runs a method of a model on a batch; returns its output by name ('logit', 'value', ..), as rows ordered like `rows_of`.

    Each sequence begins with its state, which is reset where an episode begins. Gradients stop at the start of a sequence.
    """
    if 'state' not in columns:
        return forward_rows(model, method, columns)[0]
    obs = map_tensors(lambda x: x.transpose(0, 1), columns['obs'])  # [L, S, *O]
    is_first = columns['is_first'].transpose(0, 1)
    state = columns['state']
    n_burn = len(is_first) - _lead(columns)[1]
    if n_burn:
        state = _burned(model, method, obs, is_first, state, columns['is_burned'], n_burn)
        obs = map_tensors(lambda x: x[n_burn:], obs)
        is_first = is_first[n_burn:]
    found = getattr(model, method)(obs, state, is_first)
    if not isinstance(found, dict):
        found = {'logit' if method == 'compute_actor' else 'value': found[0]}
    return {name: x.transpose(0, 1).flatten(0, 1) for name, x in found.items() if name != 'state'}


@torch.no_grad()
def _burned(
    model: nn.Module, method: str, obs: Obs, is_first: Tensor, state: State, is_burned: Tensor, n_burn: int
) -> State:
    """Returns the state after n_burn steps; sequences without burn-in keep theirs. Updates only what the method reads."""
    found = getattr(model, method)(map_tensors(lambda x: x[:n_burn], obs), state, is_first[:n_burn])
    return replace_rows(is_burned, found['state'] if isinstance(found, dict) else found[1], state)


def first_rows(timestep: Timestep) -> Tensor:
    """Marks rows with which an episode begins, [T, B] bool. Row 0 is False here, since only the collector knows it."""
    begins = begins_of(timestep)
    return torch.cat((torch.zeros_like(begins[:1]), begins[:-1]))


def begins_of(steps: Timestep, t: Any = ...) -> Tensor:
    """Whether an episode begins with the obs that the step returned, [B] or [T, B] bool. Args: t: one of the T steps."""
    first, *second = marks_of(steps)
    if second:
        return first[t] | second[0][t]
    return first[t]


def marks_of(steps: Timestep) -> list[Tensor]:
    """Columns of the steps, one or two, of which either marks that an episode begins with the obs that the step returned."""
    if steps.begins is not None:
        return [steps.begins]
    if steps.is_reset is None:
        return [steps.terminated, steps.truncated]
    return [steps.is_reset]


def replace_rows(rows: Tensor, new: State, old: State) -> State:
    """The state [B, ...] that is `new` in the rows where `rows` [B] bool is true, and `old` elsewhere."""

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(send(rows, b.device).view(-1, *[1] * (b.dim() - 1)), a, b)

    return map_tensors(choose, new, old)


class EpisodicActing:
    """Acting that finds the beginnings of episodes in the rows of its envs, and resets the state of these envs.

    Args: acting: of a model with a state; its `state` must be that of new episodes. steps: the rows [T, B] that envs write.
    """

    def __init__(self, acting: Acting, steps: Timestep) -> None:
        self._acting = acting
        self._steps = steps
        self._initial = acting.state
        self._restart = getattr(acting, 'restart', self._replace)
        restarts_after = getattr(acting, 'restarts_after', None)
        self._restarts_itself = restarts_after is not None
        if restarts_after is not None:
            restarts_after(marks_of(steps))
        self._is_new = True  # all envs begin episodes with the next row

    @property
    def output(self) -> dict[str, Any]:
        return self._acting.output

    @property
    def state(self) -> State:
        return self._acting.state

    def begin(self) -> None:
        """Called before each rollout; row 0 follows the last row of the rollout before."""
        self._acting.begin()
        if not self._is_new:
            self._restart(begins_of(self._steps, -1))
        self._is_new = False

    def step(self, t: int) -> Tensor:
        if t and not self._restarts_itself:
            self._restart(begins_of(self._steps, t - 1))
        return self._acting.step(t)

    def restart_all(self) -> None:
        """Resets the state of all envs; called after a reset of all envs."""
        self._restart(torch.ones(self._steps.reward.shape[1], dtype=torch.bool))
        self._is_new = True

    def _replace(self, begins: Tensor) -> None:
        """Resets the state of the envs whose episode begins with the next row, [B] bool."""
        self._acting.state = replace_rows(begins, self._initial, self._acting.state)
