"""Terms of an actor-critic's loss: the components that the config names, and the numbers that move between updates."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.config.components import make_part, name_of
from zoo.config.schedule import adaptive_rate, schedule_value
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks, mean_over
from zoo.core.registry import PENALTY_REGISTRY, PROXIMAL_REGISTRY, SURROGATE_REGISTRY, VALUE_LOSS_REGISTRY
from zoo.policy.config import ActorCriticLearnConfig, LearnConfig, PenaltyConfig
from zoo.policy.gradient_steps import MSE, AuxNumbers, PolicyNumbers, ValueNumbers, n_output_of
from zoo.policy.options.off_policy_correction import proximal_of

logger = logging.getLogger(__name__)


class Rates(dict[str, float]):
    """Present values by name.

    Args: cfg: the resolved section `policy.learn`; names: its fields that move.
    """

    def __init__(self, cfg: LearnConfig, names: Sequence[str]) -> None:
        super().__init__()
        self._cfg, self._names, self._warned = cfg, names, False
        found = {name: adaptive_rate(cfg[name]) for name in names}
        self._rules = {name: rule for name, rule in found.items() if rule is not None}
        self._adapted = {name: rule.start for name, rule in self._rules.items()}

    @property
    def follow_kl(self) -> bool:
        """Whether any of them follows the KL of updates."""
        return bool(self._rules)

    def set_env_step(self, env_step: int) -> None:
        """Takes the values at an env step."""
        for name in self._names:
            self[name] = schedule_value(self._cfg[name], env_step)
        self.refresh()
        if self['learning_rate'] == 0 and not self._warned:
            self._warned = True
            logger.warning(
                'policy.learn.learning_rate is 0 from env step %d on: nothing more is learned; resume with '
                'another, e.g. policy.learn.learning_rate=1e-4',
                env_step,
            )

    def refresh(self) -> None:
        """Takes what `adapt` has moved: called as an update begins."""
        self.update(self._adapted)

    def adapt(self, kl: float) -> None:
        """Moves what follows the KL, after an update that had this one; it counts from the next update on."""
        for name, rule in self._rules.items():
            self._adapted[name] = rule.next(self._adapted[name], kl)

    def state_dict(self) -> dict[str, float]:
        """What the KL has moved, and where it began."""
        return {**self._adapted, **{f'{name}_start': rule.start for name, rule in self._rules.items()}}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Copies a `state_dict` in, within the limits of the config; what it lacks, or now begins elsewhere, stays."""
        for name, rule in self._rules.items():
            if state.get(f'{name}_start') == rule.start:
                self._adapted[name] = min(max(state[name], rule.min), rule.max)


GROWS, SHRINKS, BAND = 1.5, 0.5, 2.0
"""Factors of a weight with a target where the penalty is off by more than the third; RLlib's, after arXiv:1707.06347, sec. 4."""
KEEP_NO_OLD_VALUE = ('mse', 'huber', 'error_clip', 'hl_gauss', 'two_hot', 'kl', 'reverse_kl')
"""Value losses and penalties that do not read the stored value; of one's own it is not known."""
MIN_CLIP = 1e-6  # a schedule may end at 0, the loss needs a range


class Objective:
    """The losses of a policy, and their numbers at an env step.

    Args: cfg: the resolved section `policy.learn`.
    """

    def __init__(self, cfg: ActorCriticLearnConfig) -> None:
        self._cfg = cfg
        surrogate, penalties = _policy_specs(cfg)
        self.surrogate = make_part(SURROGATE_REGISTRY, surrogate)
        self.value_loss = make_part(VALUE_LOSS_REGISTRY, _value_loss_spec(cfg))
        self.penalties = tuple(make_part(PENALTY_REGISTRY, spec, common=PenaltyConfig) for spec in penalties)
        self._common = [_common_of(spec) for spec in penalties]
        if len(names := [penalty.name for penalty in self.penalties]) != len(set(names)):
            raise UserError(
                f'policy.learn.penalties has {", ".join(names)} but each may be there once; drop the others'
            )
        self.weights = [schedule_value(common.weight, 0) for common in self._common]
        proximal = make_part(PROXIMAL_REGISTRY, proximal_of(cfg))
        self.proximal: str = proximal.name
        self._rho_max = dict(proximal.options).get('rho_max')

    @property
    def parts(self) -> list[Any]:
        """All parts of the losses, for the choice of an executor."""
        return [self.surrogate, self.value_loss, *self.penalties]

    @property
    def n_value(self) -> int:
        """Numbers that the critic predicts: 1, or more for a distribution of returns."""
        return n_output_of(self.value_loss)

    @property
    def reads_old_value(self) -> bool:
        """Whether a loss compares the critic's output with what it was before the update."""
        parts = [self.value_loss, *self.penalties]
        return any(part.name not in KEEP_NO_OLD_VALUE for part in parts)

    @property
    def names(self) -> list[str]:
        """Of the metrics: each penalty's mean and weight; the share of returns outside of a histogram of them."""
        names = [name for penalty in self.penalties for name in (f'penalty_{penalty.name}', f'{penalty.name}_weight')]
        return names + (['return_outside'] if self.n_value > 1 else [])

    def set_env_step(self, env_step: int) -> None:
        """Weights without a target follow their schedules."""
        for i, common in enumerate(self._common):
            if common.target is None:
                self.weights[i] = schedule_value(common.weight, env_step)

    def adapt(self, last: Mapping[str, Any], ranks: Ranks = ALONE) -> None:
        """Weights with a target follow the penalties of the last pass of an update, on all ranks. Waits for the device."""
        for i, (penalty, common) in enumerate(zip(self.penalties, self._common, strict=True)):
            if common.target is None:
                continue
            found, weight = float(mean_over(last[f'penalty_{penalty.name}'], ranks)), self.weights[i]
            if found > BAND * common.target:
                weight *= GROWS
            elif found < common.target / BAND:
                weight *= SHRINKS
            self.weights[i] = min(max(weight, common.min_weight), common.max_weight)

    def policy_numbers(self, rates: Mapping[str, float], value_weight: float, measure_kl: bool) -> PolicyNumbers:
        """The numbers of a step on the policy. rates: clip_ratio and entropy_weight at present."""
        cfg = self._cfg
        return PolicyNumbers(
            max(rates['clip_ratio'], MIN_CLIP),
            rates['entropy_weight'],
            cfg.dual_clip,
            cfg.grad_clip,
            measure_kl,
            value_weight,
            self.surrogate,
            self.value_loss,
            self.penalties,
            tuple(self.weights),
            self.proximal,
            cfg.precision,
            self._rho_max,
        )

    def value_numbers(self, rates: Mapping[str, float], value_weight: float) -> ValueNumbers:
        """The numbers of a step of the critic alone."""
        cfg = self._cfg
        return ValueNumbers(
            max(rates['clip_ratio'], MIN_CLIP), cfg.grad_clip, self.value_loss, value_weight, cfg.precision
        )

    def aux_numbers(self, bc_weight: float, value_weight: float) -> AuxNumbers:
        """The numbers of a step of an auxiliary phase."""
        value_loss = self.value_loss if self.n_value > 1 else MSE
        return AuxNumbers(bc_weight, self._cfg.grad_clip, value_loss, value_weight, self._cfg.precision)

    def metrics(self) -> dict[str, float]:
        """The weights of the penalties."""
        return {f'{penalty.name}_weight': weight for penalty, weight in zip(self.penalties, self.weights, strict=True)}

    @property
    def follows_target(self) -> bool:
        """Whether a weight follows its penalty."""
        return any(common.target is not None for common in self._common)

    def state_dict(self) -> dict[str, float]:
        """The weights that a target moves, by penalty, and where they began."""
        state: dict[str, float] = {}
        for penalty, weight, common in zip(self.penalties, self.weights, self._common, strict=True):
            if common.target is not None:
                state |= {penalty.name: weight, f'{penalty.name}_start': schedule_value(common.weight, 0)}
        return state

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Copies a `state_dict` in, within the limits of the config; what it lacks, or now begins elsewhere, stays."""
        for i, (penalty, common) in enumerate(zip(self.penalties, self._common, strict=True)):
            is_same = state.get(f'{penalty.name}_start') == schedule_value(common.weight, 0)
            if common.target is not None and is_same:
                self.weights[i] = min(max(state[penalty.name], common.min_weight), common.max_weight)


def _policy_specs(cfg: ActorCriticLearnConfig) -> tuple[Any, list[Any]]:
    """Surrogate and penalties; policy_loss 'kl' of ppg is a name for a pair of these."""
    if cfg.get('policy_loss') != 'kl':
        return cfg.surrogate, list(cfg.penalties)
    if name_of(cfg.surrogate) != 'clip':
        raise UserError(
            f"policy.learn.policy_loss is 'kl', which is surrogate 'none' and the penalty kl, but surrogate is "
            f'{cfg.surrogate!r}; drop one of the two'
        )
    return 'none', [{'type': 'kl', 'weight': cfg['kl_weight']}, *cfg.penalties]


def _value_loss_spec(cfg: ActorCriticLearnConfig) -> Any:
    if not cfg.value_clip:
        return cfg.value_loss
    if cfg.value_loss not in (MSE.name, 'clip', {'type': MSE.name}):
        raise UserError(
            f"policy.learn.value_clip is true, which is value_loss 'clip', but value_loss is {cfg.value_loss!r}; drop one"
        )
    return 'clip'


def _common_of(spec: Any) -> PenaltyConfig:
    given = {} if isinstance(spec, str) else spec
    return PenaltyConfig(**{name: given[name] for name in PenaltyConfig.model_fields if name in given})
