"""What a policy needs to train on one of several ranks: who is told of them, and what cannot be."""

from __future__ import annotations

from typing import Any

from torch import nn

from zoo.core.errors import UserError
from zoo.core.ranks import Ranks
from zoo.policy.modes import trains_in_steps
from zoo.rl_utils.normalizer import RunningMeanStd


def join_model(model: nn.Module, ranks: Ranks) -> None:
    """A model is that of rank 0, and its running statistics are those of the rows of all ranks, from now on.

    Raises: UserError for a model that cannot be trained on several ranks.
    """
    if ranks.size == 1:
        return
    if problem := _batch_norm_problem(model, ranks.size):
        raise UserError(problem)
    model.load_state_dict(ranks.share(model.state_dict()))
    for module in model.modules():
        if isinstance(module, RunningMeanStd):
            module.ranks = ranks


def set_intrinsic_ranks(part: Any, ranks: Ranks) -> None:
    """An intrinsic reward learns from the rows of all ranks. Raises: UserError for one that cannot."""
    if hasattr(part, 'set_ranks'):
        part.set_ranks(ranks)
    elif ranks.size > 1:
        raise UserError(
            f'policy.learn.intrinsic is a {type(part).__name__}, which has no set_ranks() and so cannot learn on '
            f'{ranks.size} ranks; write one, see zoo.policy.intrinsic, or use one process'
        )


def _batch_norm_problem(model: nn.Module, n_rank: int) -> str:
    """Why a model cannot be trained on several ranks, as a sentence; '' if it can."""
    for name, module in model.named_modules():
        is_norm = isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
        if is_norm and trains_in_steps(module):
            return (
                f'the model has {name!r} ({type(module).__name__}), whose statistics would be those of the rows of one rank, '
                f'but gradients are summed over {n_rank} ranks; use layer norm, give it in eval mode, or use one process'
            )
    return ''
