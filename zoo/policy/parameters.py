"""Parameters of a policy: those that its optimisers train, those that are frozen, those copied from another network."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import nn

from zoo.config.components import make_component
from zoo.config.section import Section
from zoo.core.errors import UserError, closest
from zoo.core.ranks import Ranks
from zoo.core.registry import OPTIMIZER_REGISTRY
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.rl_utils.optimizer import FlatOptimizer

logger = logging.getLogger(__name__)


def freeze(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Freezes the parameters and running statistics whose names match a pattern: nothing trains or updates them.

    The names are those of `model.named_parameters()`, such as 'actor_encoder.layers.0.weight'; statistics have the name of
    their module, 'input'. A pattern that names a module, such as 'actor_encoder', matches everything in it. Frozen parameters
    have no gradient, so they count in no norm, and weight decay does not change them.
    Returns: the frozen names. Raises: UserError for a pattern that matches nothing, and if no parameter is left to train.
    """
    if not patterns:
        return []
    parameters = dict(model.named_parameters(remove_duplicate=False))  # a shared module has several names
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


NOTHING_OF_ACTOR = (
    'policy.learn.freeze leaves nothing to train of the actor, which is all that policy {!r} trains; freeze fewer'
)
NOTHING_OF_ONE = (
    'policy.learn.freeze leaves nothing to train of the actor, or nothing of the critic, and each has gradient steps of its own '
    'here; freeze fewer, or use policy.type=ppo with one learning rate, which trains both together'
)


def make_optimizer(
    learn: Section, named: Iterable[tuple[str, nn.Parameter]], all_frozen: str, ranks: Ranks
) -> FlatOptimizer:
    """The optimiser that a resolved section `policy.learn` names, over named parameters.

    Raises: UserError with the message `all_frozen` if none of them is to be trained.
    """
    named = list(named)
    if not any(p.requires_grad for _, p in named):
        raise UserError(all_frozen)
    # only some sections have adam_eps
    eps = []
    if learn.get('adam_eps') is not None:
        eps = [learn['adam_eps']]
    optimizer: FlatOptimizer = make_component(OPTIMIZER_REGISTRY, learn['optimizer'])(named, *eps)
    optimizer.ranks = ranks
    return optimizer


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f'{pattern}.*')


def _unmatched(pattern: str, names: Sequence[str]) -> str:
    """Returns a sentence about a pattern that matches none of the names, with the closest names or modules."""
    parts = list(dict.fromkeys(name.partition('.')[0] for name in names))
    near = closest(pattern, names) or [f'{part}.*' for part in closest(pattern.partition('.')[0], parts)]
    if near:
        guess = f'did you mean {" or ".join(near)}?'
    else:
        guess = f'its parts are {", ".join(parts)}'
    return f'policy.learn.freeze has {pattern!r}, which matches no parameter of the model; {guess}'


class PartialLoad(NamedTuple):
    """Result of a partial load of a state: names of parameters and statistics."""

    loaded: list[str]
    misfits: list[str]  # 'name: [64, 4] in the state, [64, 6] here'
    missing: list[str]  # asked for, but not in the state
    unused: list[str]  # in the state, but this policy lacks them or they were not asked for

    def text(self) -> str:
        """A line for each kind."""
        return '\n'.join(
            f'{kind}: {", ".join(names[:8])}{f" and {len(names) - 8} more" if len(names) > 8 else ""}'
            for kind, names in zip(('loaded', 'of another shape', 'not in the state', 'not used'), self, strict=True)
            if names
        )


@torch.no_grad()
def load_partly(model: nn.Module, normalizers: nn.Module, state: Mapping[str, Any], only: Sequence[str]) -> PartialLoad:
    """Copies the entries of 'model' and 'normalizer' that fit and whose names match one of the patterns `only`.

    Raises: UserError if none does.
    """
    report = PartialLoad([], [], [], [])
    for module, key in ((model, 'model'), (normalizers, 'normalizer')):
        own = module.state_dict()
        given = state.get(key, {})
        wanted = [name for name in own if any(fnmatchcase(name, each) for each in only)]
        report.unused.extend(name for name in given if name not in wanted)
        for name in wanted:
            value = own[name]
            found = given.get(name)
            if found is None:
                report.missing.append(name)
            elif not isinstance(found, torch.Tensor) or found.shape != value.shape:
                if isinstance(found, torch.Tensor):
                    shape = str(list(found.shape))
                else:
                    shape = type(found).__name__
                report.misfits.append(f'{name}: {shape} in the state, {list(value.shape)} here')
            else:
                value.copy_(found)
                report.loaded.append(name)
    if not report.loaded:
        names = ', '.join(only)
        raise UserError(
            f'nothing of the state fits this policy (asked for: {names}): {report.text()}; give names that it has'
        )
    return report
