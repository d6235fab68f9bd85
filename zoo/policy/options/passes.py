"""Options of the passes over a batch.

'draw' chooses their minibatches: 'in_order', 'prioritized', or a user's own. 'target_kl' stops them, and 'recompute_adv'
computes advantages again between them. 'accumulate', 'grad_clip_value' and 'precision' are settings of the optimisers, around
their update rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.backend.choose import Named
from zoo.config.components import make_component
from zoo.core.data import Columns, Metrics, Rollout, first_leaf, map_tensors, send
from zoo.core.errors import UserError
from zoo.core.ranks import Ranks, mean_over
from zoo.core.registry import DRAW_REGISTRY
from zoo.policy.options import PLAIN, Estimated, Owner, UpdateOption
from zoo.policy.slots import StopAfter
from zoo.rl_utils.check import check_pair, check_returned

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots

KL_FACTOR = 1.5  # an update stops at this multiple of target_kl
DTYPES = {'bf16': torch.bfloat16, 'fp16': torch.float16}


class ChosenDraw(UpdateOption):
    """`policy.learn.draw` orders the entries of each pass, in place of 'shuffle'."""

    key = 'policy.learn.draw'

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        draw = make_component(DRAW_REGISTRY, policy.cfg.learn.draw)
        update.draw.fill(self, partial(checked_draw, draw))


class EarlyStop(UpdateOption):
    """Passes end once KL(old || new) exceeds 1.5 times `policy.learn.target_kl`."""

    key = 'policy.learn.target_kl'

    def problems(self, policy: Owner) -> Iterator[str]:
        learn = policy.cfg.learn
        if learn.target_kl_at == 'minibatch' and learn.accumulate > 1:
            yield (
                f"policy.learn.target_kl_at is 'minibatch' but accumulate is {learn.accumulate}: no minibatch makes a step of "
                "its own; use target_kl_at 'epoch', or accumulate 1"
            )

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        learn = policy.cfg.learn
        assert learn.target_kl is not None, 'the option is chosen by it'
        is_over = partial(is_far, limit=KL_FACTOR * learn.target_kl, ranks=policy.run.ranks)
        update.stop_after.fill(self, StopAfter(learn.target_kl_at, is_over))
        update.measure_kl()


def is_far(metrics: Metrics, limit: float, ranks: Ranks) -> bool:
    """Whether the mean KL of steps, [n], over all ranks is above the limit; False for steps without it, of a critic."""
    if 'kl' not in metrics:
        return False
    return bool(mean_over(metrics['kl'].mean(), ranks) > limit)


class RecomputedAdvantages(UpdateOption):
    """Values, advantages and returns are computed again before every pass but the first (arXiv:2006.05990, sec. 3.5)."""

    key = 'policy.learn.recompute_adv'

    def problems(self, policy: Owner) -> Iterator[str]:
        if policy.cfg.learn.baseline == 'none':
            yield "policy.learn.recompute_adv is true but baseline is 'none': no critic enters the advantages; use false"
        if policy.has_state and policy.learns:
            yield (
                'policy.learn.recompute_adv is true but the model has a recurrent state, whose rollouts are cut into '
                'sequences; use recompute_adv=false'
            )

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        update.renew.fill(self, partial(recomputed, policy))

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> Mapping[str, Any]:
        return transition_columns(rollout, estimated)


def transition_columns(rollout: Rollout, estimated: Estimated) -> dict[str, Any]:
    """Returns the columns that `recomputed` needs, [T, B, ...]."""
    ends = {name: rollout.data[name] for name in ('done', 'traj_flag')}
    return {'reward': estimated.reward, **ends, 'next_obs': rollout.next_obs()}


@torch.no_grad()
def recomputed(policy: Owner, batch: Columns) -> dict[str, Any]:
    """Returns a batch of a whole rollout with values, advantages and returns by the current critic."""
    n_step = policy.cfg.collect.n_step

    def by_step(x: Tensor) -> Tensor:
        return x.view(n_step, -1)

    value = by_step(policy.compute_critic(batch['obs']))
    next_value = by_step(policy.compute_critic(batch['next_obs']))
    log_ratio = []
    if policy.samples.by_ratios:
        now = policy.dist.log_prob(policy.logit_of(batch), batch['action'])
        then = policy.dist.log_prob(batch['logit'], batch['action'])
        log_ratio.append(by_step(now - then))
    return policy.samples.estimate_again(batch, (value, next_value), *log_ratio)


class OptimizerMechanics(UpdateOption):
    """Sets up gradient accumulation, clipping of each element of the gradient, and the number format inside the networks."""

    def problems(self, policy: Owner) -> Iterator[str]:
        if policy.cfg.learn.precision == 'fp16' and policy.device.type != 'cuda':
            yield (
                f"policy.learn.precision is 'fp16' but the device is {policy.device.type}, and fp16 is for CUDA GPUs; "
                "use 'bf16' or 'fp32', or policy.device=cuda"
            )

    key = 'policy.learn.precision'

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        learn = policy.cfg.learn
        self._settings = {name: learn[name] for name, plain in PLAIN.items() if learn[name] != plain}
        self.components = tuple(Named('option', f'policy.learn.{name}') for name in self._settings)
        if learn.precision != 'fp32':
            update.around_forward.append(partial(ForwardInPrecision, learn.precision))

    def mechanics(self) -> Mapping[str, Any]:
        return self._settings


@dataclass(frozen=True)
class ForwardInPrecision:
    """Runs a method of a model on a minibatch by `forward`, which computes in a number format; the output is float32."""

    precision: Literal['bf16', 'fp16']
    forward: Callable[..., Any]

    def __call__(self, model: nn.Module, method: str, minibatch: Columns) -> Any:
        if not torch.is_grad_enabled():  # no step: passes that only measure the policy stay in float32
            return self.forward(model, method, minibatch)
        device = next(iter(model.parameters())).device
        with torch.autocast(device.type, DTYPES[self.precision]):  # only forward passes belong in it
            output, rows = self.forward(model, method, minibatch)
        return map_tensors(lambda x: x.float() if x is not None and x.is_floating_point() else x, output), rows


Drawn = tuple[Tensor, Tensor | None]
_FLOOR = 1e-6
"""Least priority, as a share of the largest: every entry may be drawn, and a batch without advantages is drawn evenly."""


def checked_draw(
    draw: Callable[..., Drawn], columns: Columns, n_pass: int, generator: torch.Generator
) -> tuple[Tensor, Columns]:
    """Calls a component of DRAW_REGISTRY; returns its order, and the columns with its weights in 'weight'.

    It does not check that the indices are below the number of entries.
    Raises: UserError if the draw, which may be a user's own, does not return an order and weights.
    """
    n = len(first_leaf(columns))
    order, weight = check_pair('the draw', draw(columns, n_pass, generator), ': the order, and weights or None')
    is_index = isinstance(order, Tensor) and order.dtype in (torch.int64, torch.int32) and order.dim() == 2
    if not is_index or len(order) != n_pass or not order.shape[1]:
        if isinstance(order, Tensor):
            got = f'{order.dtype} {tuple(order.shape)}'
        else:
            got = type(order).__name__
        raise UserError(
            f'the draw returned {got} as the order but must return indices, torch.int64 of shape ({n_pass}, {n})'
        )
    if weight is None:
        return order, columns
    check_returned('the draw, as weights,', weight, (n,), 'one number for each entry, or None')
    return order, {**columns, 'weight': weighted(columns, send(weight, first_leaf(columns).device))}


@DRAW_REGISTRY.register('in_order')
def in_order(columns: Columns, n_pass: int, generator: torch.Generator) -> Drawn:
    """Every entry once in each pass, in the order of collection: step by step, at each step all envs."""
    return torch.arange(len(first_leaf(columns)), device=generator.device).repeat(n_pass, 1), None


@DRAW_REGISTRY.register('prioritized')
@torch.no_grad()
def prioritized(
    columns: Columns,
    n_pass: int,
    generator: torch.Generator,
    *,
    alpha: Annotated[
        float, Field(ge=0, description='0: all entries are equally likely; 1: in proportion to their advantages')
    ] = 0.8,
    beta: Annotated[
        float, Field(ge=0, le=1, description='1: weights make up for all of the preference; 0: none')
    ] = 0.2,
) -> Drawn:
    """Draws entries with large advantages more often, with replacement, and gives them smaller weights.

    p_i = s_i^alpha / sum_j s_j^alpha, s_i = sum of |adv| over the entry's samples;   weight_i = (n p_i)^-beta / z
    z scales the weights so that sum_i p_i weight_i m_i = 1, with m_i the mean of the column 'weight' in the entry (1 if
    there is none): drawn entries have mean weight 1, and the loss keeps its scale (unlike with a largest weight of 1).
    With beta 1 the expected loss is that of 'shuffle'. Samples of weight 0 add nothing to s. Entries of such samples alone
    are drawn only if there are no others: then all are equally likely, with weight 0.
    adv is the column that the steps read, so it is normalised if policy.learn.adv_norm is 'batch'.
    Source: Schaul et al. 2016, arXiv:1511.05952, sec. 3.3; for segments of rollouts by |adv|: PufferLib 3. Departs: the
      weights' scale; beta is constant.
    Raises: UserError if the batch has no column 'adv'.
    """
    if 'adv' not in columns:
        raise UserError(
            "the draw 'prioritized' needs the column 'adv', which these samples lack; use the draw 'shuffle'"
        )
    n = len(first_leaf(columns))
    device = generator.device
    adv = columns['adv'].to(device, torch.float64)
    given = columns.get('weight')
    if given is None:
        share = torch.ones_like(adv)
    else:
        share = given.to(device, torch.float64)
    size = torch.where(share > 0, adv.abs(), 0.0).view(n, -1).sum(-1)
    mean_weight = share.view(n, -1).mean(-1)
    size = size.clamp(min=size.max().clamp(min=torch.finfo(size.dtype).tiny) * _FLOOR)
    priority = torch.where(mean_weight > 0, (size / size.max()).pow(alpha), 0.0)
    total = priority.sum()
    p = torch.where(total > 0, priority / total, 1 / n)
    order = torch.multinomial(p, n_pass * n, replacement=True, generator=generator).view(n_pass, n)
    weight = torch.where(priority > 0, (n * p).pow(-beta), 0.0)
    scale = (p * weight * mean_weight).sum()
    return order, torch.where(scale > 0, weight / scale, 0.0).float()


def weighted(columns: Columns, weight: Tensor) -> Tensor:
    """Multiplies the column 'weight' of a batch, 1 if there is none, by one weight [n] for each entry."""
    like = columns['adv' if 'adv' in columns else 'return_']
    rows = weight.view(-1, *(1,) * (like.dim() - 1)).expand_as(like)
    if 'weight' in columns:
        return rows * columns['weight']
    return rows.contiguous()
