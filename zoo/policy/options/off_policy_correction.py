"""Corrections for samples of older policies, and proximal policies, which an update must stay near."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field
from torch import Tensor, nn

from zoo.backend.step import LossSpec, StepNumbers
from zoo.config.components import make_component, name_of
from zoo.core.data import Columns, Rollout
from zoo.core.errors import UserError
from zoo.core.registry import CORRECTION_REGISTRY, PROXIMAL_REGISTRY
from zoo.policy.options import Estimated, Owner, UpdateOption, part_of_correction
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import FlatOptimizer
from zoo.rl_utils.ppo import policy_loss, zeroed

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots

RhoMax = Annotated[
    Annotated[float, Field(ge=1)] | None,
    Field(
        description='bound of the ratio p_proximal / p_behaviour that weighs a sample; null: p_new / p_behaviour <= 100'
    ),
]


@PROXIMAL_REGISTRY.register('behaviour')
def behaviour() -> None:
    """The policy that acted, as in published PPO; old samples are clipped because of their age."""


@PROXIMAL_REGISTRY.register('recent')
def recent(*, rho_max: RhoMax = None) -> None:
    """The policy at the start of the update; costs one more forward pass over the batch (decoupled clip, arXiv:2110.00641).

    With rho_max 2 it is the same as policy.learn.correction 'decoupled'.
    """


@PROXIMAL_REGISTRY.register('ewma')
def ewma(
    *,
    decay: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description='of the average, per gradient step; 1 - 1 / (gradient steps of the policy per rollout) is usual',
        ),
    ] = 0.889,
    rho_max: RhoMax = None,
) -> float:
    """An exponential average of the policy over gradient steps (PPO-EWMA, arXiv:2110.00641).

    It is reset to the current policy after each auxiliary phase of ppg, and after each call of a plasticity component.
    """
    return decay


PLAIN_ESTIMATOR = ('gae', {'type': 'gae', 'value_lambda': None})
"""The estimator that a correction may replace: as written in a config, and with its options filled in."""
PLAIN_PROXIMAL = ('behaviour', {'type': 'behaviour'})


class Correction(NamedTuple):
    """The components that a correction uses, in the form in which a config names them; None: no such component.

    proximal: replaces policy.learn.proximal; the loss weighs samples by its ratio to the policy that acted.
    estimator: replaces policy.collect.estimator. At the start of an update, it gets the ratios of the current policy to
      the one that acted, for the whole rollout.
    """

    proximal: dict[str, Any] | None = None
    estimator: dict[str, Any] | None = None


@CORRECTION_REGISTRY.register('none')
def none() -> Correction:
    """Treats samples as those of the current policy: right if they come from a policy that is at most one update old."""
    return Correction()


@CORRECTION_REGISTRY.register('decoupled')
def decoupled(
    *,
    rho_max: Annotated[
        float, Field(ge=1, description='bound of the ratio p_proximal / p_behaviour that weighs a sample')
    ] = 2.0,
) -> Correction:
    """Clips around the policy at the start of the update, and weighs samples by the ratio of that policy to the one that acted.

    It is the same as proximal {type: recent, rho_max: ..}. Source: Hilton et al. 2022, arXiv:2110.00641, eq. 3.
    """
    return Correction(proximal={'type': 'recent', 'rho_max': rho_max})


@CORRECTION_REGISTRY.register('vtrace')
def vtrace(
    *,
    rho_max: Annotated[
        float, Field(ge=1, description='bound of the ratio that weighs advantages and temporal differences')
    ] = 1.0,
    c_max: Annotated[float, Field(ge=1, description='bound of the ratio that carries the trace back')] = 1.0,
) -> Correction:
    """V-trace: advantages and returns are weighed by the ratio of the current policy to the one that acted.

    It uses estimator 'vtrace', once at the start of an update, and proximal 'recent', by whose ratios the loss weighs
    advantages. Source: Espeholt et al. 2018, arXiv:1802.01561. Departs: adv_norm comes before these ratios.
    """
    estimator = {'type': 'vtrace', 'rho_max': rho_max, 'c_max': c_max, 'weigh_adv': False}
    return Correction(proximal={'type': 'recent', 'rho_max': rho_max}, estimator=estimator)


UNBOUNDED_SURROGATES = ('none', 'a2c', 'awr', 'cispo')
"""Surrogates whose gradient never stops, however far the policy moves."""


class ProximalPolicy(UpdateOption):
    """Base of options whose loss stays near a proximal policy, and is weighed by its ratio to the policy that acted."""

    key = 'policy.learn.proximal'

    def problems(self, policy: Owner) -> Iterator[str]:
        learn = policy.cfg.learn
        objective = policy.objective
        if name_of(learn.correction) != 'none':  # a correction weighs the samples of every surrogate
            if learn.target_kl is not None:
                yield (
                    f'policy.learn.correction is {name_of(learn.correction)!r} but target_kl is {learn.target_kl:g}, which limits '
                    'the KL from the policy that acted: the age of samples would count as a change of the policy; use target_kl '
                    'null'
                )
        elif objective.surrogate.name in UNBOUNDED_SURROGATES:
            yield (
                f'policy.learn.proximal is {name_of(learn.proximal)!r} but {objective.surrogate_label} keeps no step near '
                "that policy; use proximal 'behaviour', or a surrogate with a clip, such as clip or spo"
            )

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        self._policy = policy
        learn = policy.cfg.learn
        meant = part_of_correction(policy, 'proximal')
        if meant is not None and learn.proximal not in PLAIN_PROXIMAL:
            name = name_of(learn.proximal)
            raise UserError(
                f'policy.learn.correction is {name_of(learn.correction)!r}, which is proximal {meant["type"]!r} with a bound, but '
                f'proximal is {name!r}, which weighs old samples too; drop one of the two (the bound of the other is '
                f'proximal: {{type: {name}, rho_max: {meant["rho_max"]:g}}})'
            )
        component = make_component(PROXIMAL_REGISTRY, learn.proximal if meant is None else meant)
        self.components = [component]
        update.proximal.fill(self, ProximalLoss(dict(component.options).get('rho_max')))


@dataclass(frozen=True)
class ProximalLoss:
    """`zoo.policy.ppo.surrogate_loss` near the proximal policy, whose logits are the column 'logit_proximal'.

    The surrogate is of p_new / p_proximal, and weighed by p_proximal / p_behaviour, at most rho_max (arXiv:2110.00641, eq. 3).
    """

    rho_max: float | None
    has_kernel: ClassVar[bool] = True

    def __call__(
        self, dist: ActionDist, logit: Tensor, minibatch: Mapping[str, Any], loss: LossSpec, numbers: StepNumbers
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from zoo.rl_utils.surrogates import gain_of, importance_of

        action = minibatch['action']
        weight = minibatch.get('weight', None)
        log_old = minibatch['log_old']
        log_new = dist.log_prob(logit, action)
        log_proximal = dist.log_prob(minibatch['logit_proximal'], action)
        importance = importance_of(log_new, log_old, log_proximal, weight, self.rho_max)
        gain = partial(gain_of, loss.surrogate, numbers.dual_clip, importance)
        error, log_ratio = policy_loss(log_new, log_proximal, minibatch['adv'], weight, numbers.clip_ratio, gain)
        return error, {'log_ratio': log_ratio, 'log_old_ratio': zeroed(log_new.detach() - log_old, weight)}


class RecentPolicy(ProximalPolicy):
    """Proximal policy 'recent': adds the logits of the policy at the start of the update to the samples."""

    def before_update(self, batch: Columns) -> Columns:
        return {**batch, 'logit_proximal': self._policy.logit_of(batch)}


def averaged_logit(
    model: nn.Module, optimizers: Sequence[FlatOptimizer], minibatch: Mapping[str, Any], loss: LossSpec
) -> dict[str, Tensor]:
    """Returns the column 'logit_proximal' by the averaged parameters of the first optimiser."""
    from zoo.backend.trace import replaced

    with replaced(model, optimizers[0].averaged):  # not in no_grad, where `forward` ignores the number format of a step
        output, _ = loss.forward(model, 'compute_actor', minibatch)
    return {'logit_proximal': output['logit'].detach()}


class AveragedPolicy(ProximalPolicy):
    """Proximal policy 'ewma': the optimiser of the policy keeps an average of its parameters, by which steps weigh samples."""

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        super().fill(update, policy)
        update.extra_columns.fill(self, averaged_logit)

    def mechanics(self) -> Mapping[str, Any]:
        return {'average_decay': make_component(PROXIMAL_REGISTRY, self._policy.cfg.learn.proximal)()}

    def policy_moved(self) -> None:
        next(iter(self._policy.optimizers.values())).reset_average()  # of the first optimiser: steps read its average

    def model_replaced(self) -> None:
        for optimizer in self._policy.optimizers.values():
            optimizer.reset_average()


class VTrace(UpdateOption):
    """Computes V-trace advantages and returns of whole rollouts, by the ratios of the current policy to the one that acted."""

    key = 'policy.learn.correction'
    phase: ClassVar[Literal['policy', 'value', 'all']] = 'all'

    def problems(self, policy: Owner) -> Iterator[str]:
        start = f'policy.learn.correction is {name_of(policy.cfg.learn.correction)!r}'
        if policy.run.n_draw is not None:
            yield (
                f'{start}, which follows the steps of whole rollouts, but the buffer yields random draws; use correction '
                "'decoupled', or buffer.type 'rollout'"
            )
        if policy.has_state:
            yield (
                f'{start} but the model has a recurrent state, whose rollouts are cut into sequences; use correction '
                "'decoupled', or leave policy.model.recurrent out"
            )
        if policy.cfg.learn.baseline == 'none':
            yield f"{start} but baseline is 'none': no critic enters the advantages; use correction 'none'"

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        self._policy = policy
        learn = policy.cfg.learn
        given = policy.cfg.collect.estimator
        meant = part_of_correction(policy, 'estimator')
        if given not in PLAIN_ESTIMATOR:
            raise UserError(
                f'policy.learn.correction is {name_of(learn.correction)!r}, which is estimator {meant["type"]!r} with the '
                f'ratios of each rollout, but policy.collect.estimator is {given!r}; drop one of the two'
            )
        update.estimator.fill(self, meant)

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> Mapping[str, Any]:
        from zoo.policy.options.passes import transition_columns

        return transition_columns(rollout, estimated)

    def before_update(self, batch: Columns) -> Columns:
        from zoo.policy.options.passes import recomputed

        return recomputed(self._policy, batch)
