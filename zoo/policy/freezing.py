"""Parameters and statistics that a run keeps as they are: policy.learn.freeze."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from zoo.core.errors import UserError
from zoo.core.registry import closest
from zoo.rl_utils.normalizer import RunningMeanStd

NOTHING_LEFT = (
    'policy.learn.freeze leaves nothing to train of the actor, or nothing of the critic, and each has gradient steps of its own '
    'here; freeze fewer, or use policy.type=ppo with one learning rate, which trains both together'
)

logger = logging.getLogger(__name__)


def freeze(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Keeps parameters whose names match a pattern from being trained, and running statistics from being updated.

    The names are those of `model.named_parameters()`, such as 'actor_encoder.layers.0.weight'; statistics have the name of
    their module, 'input'. A pattern that names a module, as 'actor_encoder', stands for all in it. What is frozen has no
    gradient, so it counts in no norm, and no weight decay moves it.
    Returns: what was frozen. Raises: UserError for a pattern that matches nothing, and if no parameter is left to train.
    """
    if not patterns:
        return []
    parameters = dict(model.named_parameters(remove_duplicate=False))  # a shared part may be named either way
    statistics = {name: module for name, module in model.named_modules() if isinstance(module, RunningMeanStd)}
    names = [*parameters, *statistics]
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in names):
            raise UserError(_unmatched(pattern, names))
    found = [name for name in names if any(_matches(name, pattern) for pattern in patterns)]
    kept = {id(parameters[name]) for name in found if name in parameters}
    if not any(p.requires_grad and id(p) not in kept for p in parameters.values()):
        raise UserError(f'policy.learn.freeze is {list(patterns)}, which leaves no parameter to train; freeze fewer')
    for name in found:
        if name in parameters:
            parameters[name].requires_grad_(False)
        else:
            statistics[name].is_frozen = True
    moving = [name for name, module in statistics.items() if not module.is_frozen]
    if moving and kept:
        logger.info(
            'frozen layers see observations whose normalisation moves on; policy.learn.freeze=[..., %s] stops that',
            moving[0],
        )
    return found


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f'{pattern}.*')


def _unmatched(pattern: str, names: Sequence[str]) -> str:
    """A sentence about a pattern that matches none of the names, with the nearest of these, or of the parts that have them."""
    parts = list(dict.fromkeys(name.partition('.')[0] for name in names))
    near = closest(pattern, names) or [f'{part}.*' for part in closest(pattern.partition('.')[0], parts)]
    guess = f'did you mean {" or ".join(near)}?' if near else f'its parts are {", ".join(parts)}'
    return f'policy.learn.freeze has {pattern!r}, which matches no parameter of the model; {guess}'
