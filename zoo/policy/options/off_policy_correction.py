"""Corrections for samples of older policies, and proximal policies: which one an update stays near."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from zoo.backend.choose import Named
from zoo.config.components import make_component, name_of
from zoo.config.section import Keyed, value_at
from zoo.core.data import Columns, Rollout
from zoo.core.errors import UserError
from zoo.core.registry import CORRECTION_REGISTRY, POLICY_REGISTRY, PROXIMAL_REGISTRY
from zoo.policy.options.base import Estimated, Owner, UpdateOption

RhoMax = Annotated[
    Annotated[float, Field(ge=1)] | None,
    Field(
        description='bound of the ratio p_proximal / p_behaviour that weighs a sample; null: p_new / p_behaviour <= 100'
    ),
]


@PROXIMAL_REGISTRY.register('behaviour')
def behaviour() -> None:
    """The policy that acted: the ratio of PPO as published; old samples are clipped for their age."""


@PROXIMAL_REGISTRY.register('recent')
def recent(*, rho_max: RhoMax = None) -> None:
    """The policy as the update began: one more pass of the network over the batch (decoupled clip, arXiv:2110.00641).

    With rho_max 2 it is what policy.learn.correction calls 'decoupled'.
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

    It begins anew after each auxiliary phase of ppg, and after a plasticity component has acted.
    """
    return decay


PLAIN_ESTIMATOR = ('gae', {'type': 'gae', 'value_lambda': None})
"""The estimator that a correction replaces; as it stands in a config, and completed."""
PLAIN_PROXIMAL = ('behaviour', {'type': 'behaviour'})


class Correction(NamedTuple):
    """What a correction stands for, each as a component that a config could name itself; None: no such component.

    proximal: in place of policy.learn.proximal: what the loss weighs samples by.
    estimator: in place of policy.collect.estimator. It is given the ratios of the present policy to the one that acted,
      once for the whole rollout as an update begins.
    """

    proximal: dict[str, Any] | None = None
    estimator: dict[str, Any] | None = None


@CORRECTION_REGISTRY.register('none')
def none() -> Correction:
    """Samples count as those of the policy that learns: right for weights that are at most one update old."""
    return Correction()


@CORRECTION_REGISTRY.register('decoupled')
def decoupled(
    *,
    rho_max: Annotated[
        float, Field(ge=1, description='bound of the ratio p_proximal / p_behaviour that weighs a sample')
    ] = 2.0,
) -> Correction:
    """Clips around the policy as the update began, and weighs each sample by its ratio to the one that acted.

    It is proximal {type: recent, rho_max: ..}. Source: Hilton et al. 2022, arXiv:2110.00641, eq. 3.
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
    """V-trace: advantages and returns are weighed by the ratio of the present policy to the one that acted.

    It is estimator 'vtrace', computed once as an update begins, and proximal 'recent', by whose ratios the loss weighs
    advantages. Source: Espeholt et al. 2018, arXiv:1802.01561. Departs: adv_norm comes before these ratios.
    """
    estimator = {'type': 'vtrace', 'rho_max': rho_max, 'c_max': c_max, 'weigh_adv': False}
    return Correction(proximal={'type': 'recent', 'rho_max': rho_max}, estimator=estimator)


def correction_of(learn: Keyed) -> Correction:
    """What the correction of a resolved section `policy.learn` stands for."""
    return make_component(CORRECTION_REGISTRY, learn['correction'])()


STAYS_NEAR_NOTHING = ('none', 'a2c', 'awr', 'cispo')
"""Surrogates whose gradient stops nowhere, however far the policy moves."""


class ProximalPolicy(UpdateOption):
    """Base of what weighs samples by their ratio to a policy that is nearer than the one that acted."""

    def problems(self, policy: Owner) -> Iterator[str]:
        learn, objective = policy.cfg.learn, policy.objective
        if name_of(learn.correction) != 'none':  # whose ratios weigh the samples of every surrogate
            if learn.target_kl is not None:
                yield (
                    f'policy.learn.correction is {name_of(learn.correction)!r} but target_kl is {learn.target_kl:g}, which limits '
                    'the KL from the policy that acted: the age of samples would count as a change of the policy; use target_kl '
                    'null'
                )
        elif objective.surrogate.name in STAYS_NEAR_NOTHING:
            yield (
                f'policy.learn.proximal is {name_of(learn.proximal)!r} but {objective.surrogate_said} keeps no step near '
                "that policy; use proximal 'behaviour', or a surrogate with a clip, such as clip or spo"
            )

    def attach(self, policy: Owner) -> None:
        self._policy, learn = policy, policy.cfg.learn
        meant = correction_of(learn).proximal
        if meant is not None and learn.proximal not in PLAIN_PROXIMAL:
            name = name_of(learn.proximal)
            raise UserError(
                f'policy.learn.correction is {name_of(learn.correction)!r}, which is proximal {meant["type"]!r} with a bound, but '
                f'proximal is {name!r}, which weighs old samples too; drop one of the two (the bound of the other is '
                f'proximal: {{type: {name}, rho_max: {meant["rho_max"]:g}}})'
            )
        component = make_component(PROXIMAL_REGISTRY, learn.proximal if meant is None else meant)
        self.components = [Named('proximal policy', component.name)]
        policy.objective.fixed = policy.objective.fixed._replace(
            proximal=component.name, rho_max=dict(component.options).get('rho_max')
        )


class RecentPolicy(ProximalPolicy):
    """Proximal policy 'recent': samples have the logits of the policy as the update began."""

    def before_update(self, batch: Columns) -> Columns:
        return {**batch, 'logit_proximal': self._policy.logit_of(batch)}


class AveragedPolicy(ProximalPolicy):
    """Proximal policy 'ewma': the optimiser of the policy keeps an average of its parameters, by which steps weigh samples."""

    def mechanics(self) -> Mapping[str, Any]:
        return {'average_decay': make_component(PROXIMAL_REGISTRY, self._policy.cfg.learn.proximal)()}

    def policy_moved(self) -> None:
        next(iter(self._policy.optimizers.values())).reset_average()  # of the first one, whose average steps read

    def model_replaced(self) -> None:
        for optimizer in self._policy.optimizers.values():
            optimizer.reset_average()


class ValueTrace(UpdateOption):
    """Advantages and returns of whole rollouts, weighed by the ratios of the present policy to the one that acted."""

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

    def attach(self, policy: Owner) -> None:
        self._policy, learn, given = policy, policy.cfg.learn, policy.cfg.collect.estimator
        meant = correction_of(learn).estimator
        assert meant is not None, 'the option is chosen by it'
        if given not in PLAIN_ESTIMATOR:
            raise UserError(
                f'policy.learn.correction is {name_of(learn.correction)!r}, which is estimator {meant["type"]!r} with the '
                f'ratios of each rollout, but policy.collect.estimator is {given!r}; drop one of the two'
            )
        policy.samples.estimate_by(meant)

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> Mapping[str, Any]:
        from zoo.policy.options.passes import transition_columns

        return transition_columns(rollout, estimated)

    def before_update(self, batch: Columns) -> Columns:
        from zoo.policy.options.passes import recomputed

        return recomputed(self._policy, batch)


def correction_problems(config: dict[str, Any]) -> Iterator[str]:
    """A sentence for rollouts of weights that are older than the policy expects. Args: config: a whole resolved config."""
    max_lag, learn, kind = config['cluster']['max_lag'], value_at(config, 'policy.learn'), config['policy']['type']
    if max_lag <= 1:
        return
    age = f'samples may then be up to {max_lag} updates old'
    if 'correction' not in (learn or {}):
        sections = {name: POLICY_REGISTRY.get(name).config.model_fields['learn'] for name in POLICY_REGISTRY.names()}
        has_key = (name for name, x in sections.items() if 'correction' in getattr(x.annotation, 'model_fields', {}))
        yield (
            f'cluster.max_lag is {max_lag} but policy {kind!r} has no key policy.learn.correction: {age}; use max_lag 0 or 1, '
            f'or a policy that has it: {", ".join(has_key)}.'
        )
    elif name_of(learn['correction']) == 'none' and learn['proximal'] in PLAIN_PROXIMAL:
        yield (
            f"cluster.max_lag is {max_lag} but policy.learn.correction is 'none': {age}; use decoupled or vtrace, or max_lag "
            '0 or 1.'
        )
