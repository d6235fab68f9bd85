"""Options of the passes over a batch.

'target_kl' stops them, and 'recompute_adv' computes advantages again between them. 'accumulate', 'grad_clip_value' and
'precision' are settings of the optimisers, around their update rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from zoo.backend.choose import Named
from zoo.backend.executor import Numbers, Step
from zoo.core.data import Columns, Metrics, Rollout, map_tensors
from zoo.core.ranks import mean_over
from zoo.policy.gradient_steps import Passes, Trained
from zoo.policy.metrics import summaries
from zoo.policy.options import PLAIN, Estimated, Owner, UpdateOption
from zoo.rl_utils.optimizer import FlatOptimizer

KL_FACTOR = 1.5  # an update stops at this multiple of target_kl
DTYPES = {'bf16': torch.bfloat16, 'fp16': torch.float16}


class InterruptedPasses(Passes):
    """Passes that may stop early by target_kl, and may recompute columns of the batch in between."""

    renew: Callable[[Columns], Columns] | None = None

    @classmethod
    def like(cls, other: Passes) -> InterruptedPasses:
        """The passes of a policy, which may now be interrupted."""
        new = cls.__new__(cls)
        vars(new).update(vars(other))
        return new

    def run(
        self,
        step: Step,
        optimizers: Sequence[FlatOptimizer],
        numbers: Numbers,
        n_pass: int,
        batch: Columns,
        batch_size: int | None = None,
    ) -> Trained:
        target_kl = self._cfg.target_kl
        by_minibatch = target_kl is not None and self._cfg.target_kl_at == 'minibatch'
        found: list[Metrics] = []
        n_done, n_last, is_over = 0, 0, False
        columns, stream = self._samples.read_by_steps(batch), self._order_stream()
        while n_done < n_pass and not is_over:
            if n_done and self.renew is not None:
                columns = self._samples.read_by_steps(self.renew(batch))
            plan, n_last = self._plan(columns, 1, batch_size, stream), 0
            for order in plan.order.split(plan.batch_size if by_minibatch else plan.order.shape[1], dim=1):
                found.append(self.steps(step, optimizers, plan._replace(order=order), numbers))
                n_last += len(next(iter(found[-1].values())))
                is_over = (
                    target_kl is not None
                    and 'kl' in found[-1]
                    and bool(mean_over(found[-1]['kl'].mean(), self._ranks) > KL_FACTOR * target_kl)
                )
                if is_over:
                    break
            n_done += 1
        metrics = {name: torch.cat([each[name] for each in found]) for name in found[0]}
        return Trained(summaries(metrics), n_done, metrics, n_last)


class EarlyStop(UpdateOption):
    """Passes end once KL(old || new) exceeds 1.5 times `policy.learn.target_kl`."""

    def problems(self, policy: Owner) -> Iterator[str]:
        learn = policy.cfg.learn
        if learn.target_kl_at == 'minibatch' and learn.accumulate > 1:
            yield (
                f"policy.learn.target_kl_at is 'minibatch' but accumulate is {learn.accumulate}: no minibatch makes a step of "
                "its own; use target_kl_at 'epoch', or accumulate 1"
            )

    def attach_learn(self, policy: Owner) -> None:
        policy.passes = InterruptedPasses.like(policy.passes)
        policy.objective.fixed = policy.objective.fixed._replace(measure_kl=True)


class RecomputedAdvantages(UpdateOption):
    """Values, advantages and returns are computed again before every pass but the first (arXiv:2006.05990, sec. 3.5)."""

    def problems(self, policy: Owner) -> Iterator[str]:
        if policy.cfg.learn.baseline == 'none':
            yield "policy.learn.recompute_adv is true but baseline is 'none': no critic enters the advantages; use false"
        if policy.has_state and policy.learns:
            yield (
                'policy.learn.recompute_adv is true but the model has a recurrent state, whose rollouts are cut into '
                'sequences; use recompute_adv=false'
            )

    def attach_learn(self, policy: Owner) -> None:
        policy.passes = InterruptedPasses.like(policy.passes)
        policy.passes.renew = partial(recomputed, policy)

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> Mapping[str, Any]:
        return transition_columns(rollout, estimated)


def transition_columns(rollout: Rollout, estimated: Estimated) -> dict[str, Any]:
    """Returns the columns that `recomputed` needs, [T, B, ...]."""
    ends = {name: rollout.data[name] for name in ('done', 'traj_flag')}
    return {'reward': estimated.reward, **ends, 'next_obs': rollout.next_obs()}


@torch.no_grad()
def recomputed(policy: Owner, batch: Columns) -> dict[str, Any]:
    """Returns a batch of a whole rollout with values, advantages and returns by the current critic."""
    n_step, samples = policy.cfg.collect.n_step, policy.samples

    def by_step(x: Tensor) -> Tensor:
        return x.view(n_step, -1)

    outputs = by_step(policy.compute_critic(batch['obs'])), by_step(policy.compute_critic(batch['next_obs']))
    log_ratio = []
    if samples.by_ratios:
        now, then = (policy.dist.log_prob(x, batch['action']) for x in (policy.logit_of(batch), batch['logit']))
        log_ratio = [by_step(now - then)]
    ends = (by_step(batch[key]) for key in ('reward', 'done', 'traj_flag'))
    found = samples.estimate(outputs, *ends, *log_ratio)
    if 'value_output' in batch:
        found['value_output'] = outputs[0]
    columns = {name: x.flatten() for name, x in found.items()}
    for option in samples.options:
        columns['adv'] = option.advantage({**batch, **columns})
    return {**batch, **columns}


class OptimizerMechanics(UpdateOption):
    """Sets up gradient accumulation, clipping of each element of the gradient, and the number format inside the networks."""

    def problems(self, policy: Owner) -> Iterator[str]:
        if policy.cfg.learn.precision == 'fp16' and policy.device.type != 'cuda':
            yield (
                f"policy.learn.precision is 'fp16' but the device is {policy.device.type}, and fp16 is for CUDA GPUs; "
                "use 'bf16' or 'fp32', or policy.device=cuda"
            )

    def attach(self, policy: Owner) -> None:
        learn = policy.cfg.learn
        self._settings = {name: learn[name] for name, plain in PLAIN.items() if learn[name] != plain}
        self.components = tuple(Named('option', f'policy.learn.{name}') for name in self._settings)
        if 'precision' in self._settings:
            fixed = policy.objective.fixed
            policy.objective.fixed = fixed._replace(forward=ForwardInPrecision(learn.precision, fixed.forward))

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
