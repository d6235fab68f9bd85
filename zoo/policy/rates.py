"""The numbers of a policy's section `learn` that move during a run: with the env steps, or with the KL of updates."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.config.schedule import adaptive_rate, schedule_value

logger = logging.getLogger(__name__)


class Rates(dict[str, float]):
    """Present values by name.

    Args: cfg: the resolved section `policy.learn`; names: its fields that move.
    """

    def __init__(self, cfg: Any, names: Sequence[str]) -> None:
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
