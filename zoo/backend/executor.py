"""Takes the steps of an update: as they stand, or compiled where that is asked for or pays."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from zoo.backend.graph import CompiledStep, Step
from zoo.backend.trace import Backend, first_line, inductor, missing_compiler
from zoo.core.errors import UserError
from zoo.policy.base import Metrics
from zoo.policy.updates import Minibatch, StepConfig
from zoo.rl_utils.optimizer import FlatAdam

CompileMode = Literal['off', 'on', 'auto']
WORTH_STEPS = 20_000
"""A run of this many gradient steps, and as many more for each kind of step, pays for its compilation. That takes 14 s
for a first graph and 9 s for each other; there is one for each kind of step and one for acting, so 23 s with one kind
of step and 41 s with three (.1 s a graph where any run has compiled the same before). It saves .4 ms a step with 64,
256 or 1024 rows (two 64-64 networks, 2 cores), and in acting .1 to .4 ms more; larger networks gain more."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)  # compiled, Nature takes a tenth less time, IMPALA half as much more

logger = logging.getLogger(__name__)


class Steps:
    """Takes steps of `zoo.policy.updates` over one model: as they stand, or compiled where asked for or worth it.

    A compiled step that fails, at compile time or later, is taken again eagerly, as are all that follow; nothing is
    lost, since a graph writes only once all gradients are there.
    Args: mode: 'off'; 'on'; 'auto': as `decide` finds. backend: what compiles a graph; tests give another.
    Raises: UserError if mode is 'on' but there is no compiler.
    """

    def __init__(
        self, model: nn.Module, mode: CompileMode, device: torch.device, backend: Backend | None = None
    ) -> None:
        self._model, self._device, self._backend = model, device, backend or inductor
        self._compiled: dict[tuple[Step, tuple[int, ...]], CompiledStep] = {}
        self.active = mode == 'on'
        self._mode, self._decided_for, self._failed = mode, -1.0, False
        if self.active and (missing := missing_compiler(device)):
            raise UserError(f"policy.learn.compile is 'on' but {missing}; use 'auto' or 'off'")

    def decide(self, n_step: float | None, n_graph: int) -> None:
        """For mode 'auto': whether a run of n_step gradient steps of n_graph kinds is long enough; None: not known yet.

        By counts alone, of the whole run: so it is the same in every run of a config, and after a resume.
        """
        if self._mode != 'auto' or self._failed or n_step is None or n_step == self._decided_for:
            return
        self._decided_for, worth = n_step, WORTH_STEPS * (1 + n_graph)
        self.active = False
        if n_step < worth:
            why = f'a run of {n_step:,.0f} gradient steps is too short to gain from it; from {worth:,} on it would'
        elif self._device.type == 'cpu' and any(isinstance(module, CONVOLUTIONS) for module in self._model.modules()):
            why = 'the time goes into convolutions, which gain little from it on a CPU, or lose'
        elif missing := missing_compiler(self._device):
            why = missing
        else:
            self.active = True
            logger.info(
                'the update is compiled, for a run of %s gradient steps: the first time on a machine it takes '
                '20 to 40 s; to do without: policy.learn.compile=off',
                f'{n_step:,.0f}',
            )
            return
        logger.info('the update is not compiled: %s', why)

    def take(
        self, step: Step, optimizer: FlatAdam | Sequence[FlatAdam], config: StepConfig, minibatch: Minibatch
    ) -> Metrics:
        """One step; returns its metrics."""
        if self.active:
            optimizers = (optimizer,) if isinstance(optimizer, FlatAdam) else tuple(optimizer)
            key = step, tuple(id(o) for o in optimizers)
            compiled = self._compiled.get(key)
            if compiled is None:
                compiled = self._compiled[key] = CompiledStep(step, self._model, optimizer, self._backend)
            try:
                return compiled(minibatch, config)
            except Exception as error:  # compilers fail in many ways; an error of ours comes again below
                self.active, self._failed = False, True
                self._compiled.clear()
                logger.warning('the compiled update failed and the run goes on without it: %s', first_line(error))
        return step(self._model, optimizer, minibatch, config)
