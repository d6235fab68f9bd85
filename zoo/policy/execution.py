"""Execution of a model: the executor of its gradient steps and acting, its training mode, and training on several ranks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from zoo.backend.choose import ExecutorRequest, Named, choose_executor
from zoo.backend.places import StepParts, why_not
from zoo.backend.step import LossSpec
from zoo.config.components import moves, name_of
from zoo.core.errors import UserError
from zoo.core.ranks import Ranks, rank_count_text
from zoo.core.registry import Component
from zoo.core.seeding import stream
from zoo.policy.modes import Owner
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.normalizer import RunningMeanStd


def join_model(model: nn.Module, ranks: Ranks) -> None:
    """Gives the model the state of rank 0; from now on its running statistics include the samples of all ranks.

    Raises: UserError for a model that cannot be trained on several ranks.
    """
    number = rank_count_text(ranks)
    if not number:
        return
    for name, module in model.named_modules():
        is_norm = isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
        if is_norm and trains_in_steps(module):
            raise UserError(
                f'the model has {name!r} ({type(module).__name__}), whose statistics would be those of the rows of one rank, '
                f'but gradients are summed over {number}; use layer norm, give it in eval mode, or use one process'
            )
    model.load_state_dict(ranks.share(model.state_dict()))
    for module in model.modules():
        if isinstance(module, RunningMeanStd):
            module.ranks = ranks


def executor_request(
    policy: Owner, option_components: Iterable[Any], loss: LossSpec, exploration: Component, step_per_env_step: float
) -> ExecutorRequest:
    """Returns what a policy requires of its executor; a policy that only evaluates gets 'eager', without requirements.

    Args: option_components: the components that an executor must know of the policy's options.
    """
    cfg = policy.cfg.learn
    run = policy.run
    if run.max_env_step is None:
        n_step = None
    else:
        n_step = run.max_env_step * step_per_env_step
    if not policy.explores:
        return ExecutorRequest('eager', cfg.compile, n_step)
    own = sorted(
        [*option_components, Named('optimizer', name_of(cfg.optimizer))], key=lambda each: each.kind == 'option'
    )
    components = (*policy.objective.components, *own)
    eager_only = run.eager_only
    is_summed = ''
    if number := rank_count_text(run.ranks):
        is_summed = f'gradients are summed over {number}'
        if eager_only or run.ranks.in_c is None:
            eager_only = ' and '.join(filter(None, (eager_only, is_summed)))
    return ExecutorRequest(
        cfg.executor,
        cfg.compile,
        n_step,
        components,
        eager_only=eager_only,
        not_compiled=is_summed,
        exploration=exploration.name,
        exploration_moves=moves(exploration),
        own_code=why_not('native', StepParts(loss=loss)),
    )


class Execution:
    """The executor that is chosen for a request. A copied or unpickled object chooses again, if necessary another executor.

    Attributes: executor: runs gradient steps and acting; request: the requirements for which it was chosen.
    """

    def __init__(self, model: nn.Module, dist: ActionDist, device: torch.device, request: ExecutorRequest) -> None:
        self._model = model
        self._dist = dist
        self._device = device
        self.request = request
        self.executor = choose_executor(model, dist, device, request)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != 'executor'}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.request = self.request._replace(is_quiet=True)
        try:
            self.executor = choose_executor(self._model, self._dist, self._device, self.request)
        except UserError:  # the object was made on another machine
            self.request = self.request._replace(executor='auto', compile='auto')
            self.executor = choose_executor(self._model, self._dist, self._device, self.request)


_MARK = '_trains_in_steps'  # on modules that a policy, not the user, put into eval mode: a second policy may get them
logger = logging.getLogger(__name__)


class ModelMode:
    """Keeps a model in eval mode, and puts it into training mode for gradient steps.

    So actions, values and evaluations depend on the observation alone, and acting does not change running statistics.
    Modules that the user gave in eval mode stay in eval mode during gradient steps too.
    Args: device: of the model. Attributes: differs: whether the model may compute something else in training mode.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._kept = [module for module in model.modules() if not trains_in_steps(module)]
        self.differs = any(module not in self._kept and _may_differ(module) for module in model.modules())
        for module in model.modules():
            if module.training:
                setattr(module, _MARK, True)
        model.eval()

    @contextmanager
    def steps(self, seed: int, train_iter: int) -> Iterator[None]:
        """Context for gradient steps; random numbers in the model, e.g. of dropout, depend on seed and train_iter alone."""
        if not self.differs:  # a change of mode would take 0.1 ms, as long as a small update
            yield
            return
        own = stream(seed, 'model steps', train_iter)
        is_cuda = self._device.type == 'cuda'
        number = int(own.generate_state(1, np.uint64)[0]) >> 1
        with torch.random.fork_rng(devices=[self._device] if is_cuda else []):
            torch.default_generator.manual_seed(number)
            if is_cuda:
                with torch.cuda.device(self._device):
                    torch.cuda.manual_seed(number)
            self._model.train()
            for module in self._kept:
                module.training = False
            try:
                yield
            finally:
                self._model.eval()

    def warn_of_difference(self) -> None:
        """Warns, with names, of modules that compute something else in gradient steps than in acting."""
        names = [
            f'{name!r} ({type(module).__name__})'
            for name, module in self._model.named_modules()
            if module not in self._kept and _differs(module)
        ]
        if names:
            logger.warning(
                'the model computes something else in gradient steps, in training mode, than in acting and evaluation, '
                'in eval mode: %s; so probability ratios are not 1 when an update begins. Give these modules in eval '
                'mode (module.eval()) if both should be the same',
                ', '.join(names[:3]) + (f' and {len(names) - 3} more' if len(names) > 3 else ''),
            )


def trains_in_steps(module: nn.Module) -> bool:
    """Whether a module is in training mode during gradient steps, because the user gave it in that mode."""
    return module.training or hasattr(module, _MARK)


def _differs(module: nn.Module) -> bool:
    """Whether a module is a torch layer that computes something else in training mode."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RReLU):
        return True
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return module.track_running_stats
    return isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and module.dropout > 0


def _may_differ(module: nn.Module) -> bool:
    """Whether a module may compute something else in training mode; True for unknown classes and hooks, e.g. spectral norm."""
    is_known = type(module).__module__.startswith(('torch.nn.modules.', 'zoo.'))
    return _differs(module) or not is_known or bool(module._forward_hooks or module._forward_pre_hooks)
