"""The executor of a policy's gradient steps and acting, and what it is chosen by."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.backend.choose import Named, Wish, choose_executor, env_compiler, executor_label
from zoo.backend.executor import Compile
from zoo.core.data import RunInfo
from zoo.core.errors import UserError
from zoo.policy.checks import name_of
from zoo.policy.objective import Objective
from zoo.rl_utils.distribution import ActionDist


class Execution:
    """The executor that a wish leads to. A copy or an unpickled one chooses anew, and takes another if it has to.

    Attributes: executor: it runs steps and acts.
    """

    def __init__(self, model: nn.Module, dist: ActionDist, device: torch.device, wish: Wish) -> None:
        self._model, self._dist, self._device, self._wish = model, dist, device, wish
        self.executor = choose_executor(model, dist, device, wish)

    @property
    def name(self) -> str:
        """For the records of a run."""
        return executor_label(self.executor)

    @property
    def compile_env(self) -> Compile | None:
        """What compiles the step of envs that are tensor programs, where the run is worth it."""
        return env_compiler(self._wish, self._device)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != 'executor'}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._wish = self._wish._replace(is_quiet=True)
        try:
            self.executor = choose_executor(self._model, self._dist, self._device, self._wish)
        except UserError:  # of another machine
            self._wish = self._wish._replace(executor='auto', compile='auto')
            self.executor = choose_executor(self._model, self._dist, self._device, self._wish)


def wish_of(
    cfg: Any, objective: Objective, run: RunInfo, n_step: float | None, only_evaluates: bool, exploration: str
) -> Wish:
    """What a policy asks of its executor; one that only evaluates asks for nothing.

    Args: cfg: the resolved section `policy.learn`; n_step: gradient steps of the run; exploration: its name.
    """
    if only_evaluates:
        return Wish('eager', cfg.compile, n_step)
    parts = [
        *objective.parts,
        Named('proximal policy', objective.proximal),
        Named('optimizer', name_of(cfg.optimizer)),
    ]
    options = {
        'accumulate': cfg.accumulate != 1,
        'grad_clip_value': cfg.grad_clip_value,
        'precision': cfg.precision != 'fp32',
    }
    parts += [Named('option', f'policy.learn.{name}') for name, is_set in options.items() if is_set]
    is_summed = f'gradients are summed over {run.ranks.size} ranks' if run.ranks.size > 1 else ''
    why = ' and '.join(filter(None, (run.eager_only, is_summed)))
    return Wish(cfg.executor, cfg.compile, n_step, parts=tuple(parts), eager_only=why, exploration=exploration)
