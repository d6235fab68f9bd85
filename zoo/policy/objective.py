"""Losses that the config names: surrogate, value loss, and penalties with their present weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from zoo.backend.step import MSE, n_output_of
from zoo.config.components import make_component, name_of, section_of
from zoo.config.schedule import schedule_value
from zoo.core.errors import UserError
from zoo.core.registry import PENALTY_REGISTRY, SURROGATE_REGISTRY, VALUE_LOSS_REGISTRY
from zoo.policy.config import ActorCriticLearnConfig, PenaltyConfig

KEEP_NO_OLD_VALUE = ('mse', 'huber', 'error_clip', 'hl_gauss', 'two_hot', 'kl', 'reverse_kl', 'magnet')
"""Value losses and penalties of zoo that do not read the stored value; a user's own may read it."""


class Objective:
    """The losses of a policy, and the current weights of its penalties.

    Args: cfg: the resolved section `policy.learn`.
    Attributes: weights: of the penalties now; common: for each penalty, the options that all penalties have; surrogate_label:
      the surrogate, in words of the config.
    """

    def __init__(self, cfg: ActorCriticLearnConfig) -> None:
        surrogate, penalties = _policy_specs(cfg)
        self.surrogate = make_component(SURROGATE_REGISTRY, surrogate)
        is_kl = cfg.get('policy_loss') == 'kl'
        if is_kl:
            self.surrogate_label = "policy_loss 'kl'"
        else:
            self.surrogate_label = f'surrogate {self.surrogate.name!r}'
        self._changes_value = cfg.value_norm or cfg.baseline == 'none'
        self.value_loss = make_component(VALUE_LOSS_REGISTRY, cfg.value_loss)
        self.penalties = tuple(make_component(PENALTY_REGISTRY, spec, common=PenaltyConfig) for spec in penalties)
        self.common = [section_of(PENALTY_REGISTRY, spec, 'penalty', common=PenaltyConfig) for spec in penalties]
        if len(names := [penalty.name for penalty in self.penalties]) != len(set(names)):
            raise UserError(
                f'policy.learn.penalties has {", ".join(names)} but each may be there once; drop the others'
            )
        self.weights = [schedule_value(common.weight, 0) for common in self.common]

    @property
    def components(self) -> list[Any]:
        """All components of the losses, for the choice of an executor."""
        return [self.surrogate, self.value_loss, *self.penalties]

    @property
    def n_value(self) -> int:
        """Numbers that the critic predicts: 1, or more for a distribution of returns."""
        return n_output_of(self.value_loss)

    @property
    def keeps_output(self) -> bool:
        """Whether a loss compares with the critic's output before the update, which the column 'value' does not have."""
        components = [self.value_loss, *self.penalties]
        return self._changes_value and any(component.name not in KEEP_NO_OLD_VALUE for component in components)

    def metrics_of(self, policy_step: object, value_step: object, measures_kl: bool) -> list[str]:
        """Names of the metrics that depend on the losses; a user's own steps choose theirs themselves."""
        names = []
        if hasattr(policy_step, 'kind'):
            names = ['total_loss']
        if self.value_loss != MSE and hasattr(value_step, 'kind'):
            from zoo.rl_utils.value_losses import clips_values

            if clips_values(self.value_loss):
                names += ['value_clipfrac']
            else:
                names += []
        if measures_kl:
            names += ['kl', 'ratio_max']
        return names

    def shape_critic(self, model: nn.Module) -> None:
        """Makes the critic of a model predict what its loss reads. Raises: UserError if the model cannot."""
        if self.n_value == 1:
            return
        predict = getattr(model, 'predict_distribution', None)
        if predict is None:
            raise UserError(
                f'policy.learn.value_loss is {self.value_loss.name!r}, for a critic that predicts a distribution of '
                f'returns, but model {type(model).__name__} has no predict_distribution(); use mse'
            )
        predict(self.n_value, self.value_loss.decode)

    def set_weight(self, i: int, weight: float) -> None:
        """Sets the present weight of penalty i."""
        self.weights[i] = weight

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Sets the present weights of penalties by their names. Raises: UserError for a name that no penalty has."""
        names = [penalty.name for penalty in self.penalties]
        for name, weight in weights.items():
            if name not in names:
                raise UserError(
                    f'an option chooses the weight of the penalty {name!r}, which policy.learn.penalties does not have; '
                    f'it has {", ".join(names) or "none"}'
                )
            self.weights[names.index(name)] = weight


def _policy_specs(cfg: ActorCriticLearnConfig) -> tuple[Any, list[Any]]:
    """Returns surrogate and penalties; policy_loss 'kl' of ppg means surrogate 'none' with penalty 'kl'."""
    if cfg.get('policy_loss') != 'kl':
        return cfg.surrogate, list(cfg.penalties)
    if name_of(cfg.surrogate) != 'clip':
        raise UserError(
            f"policy.learn.policy_loss is 'kl', which is surrogate 'none' and the penalty kl, but surrogate is "
            f'{cfg.surrogate!r}; drop one of the two'
        )
    return 'none', [{'type': 'kl', 'weight': cfg['kl_weight']}, *cfg.penalties]
