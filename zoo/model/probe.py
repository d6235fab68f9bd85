"""Checks a network against the contract of a model with one small batch, before a run begins."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.core.errors import UserError
from zoo.core.spaces import Space, obs_dtype
from zoo.rl_utils.distribution import ActionDist

_N = 3  # rows of the probe; no size of a space is likely to be taken for it


@torch.no_grad()
def probe(model: Any, obs_space: Space, dist: ActionDist, device: torch.device) -> None:
    """Runs the methods of a model on zero observations and checks what they return.

    These are compute_actor, compute_critic, compute_actor_critic and, where there is one, compute_aux.
    Raises: UserError that names the method, what it gave and what is wanted; errors inside the model pass through.
    """
    name = type(model).__name__
    for method in ('compute_actor', 'compute_critic', 'compute_actor_critic'):
        if not callable(getattr(model, method, None)):
            raise UserError(
                f'model {name} has no method {method}(obs); a model needs compute_actor, compute_critic '
                'and compute_actor_critic'
            )
    obs = torch.zeros(_N, *getattr(obs_space, 'shape', ()), dtype=obs_dtype(obs_space), device=device)
    both = model.compute_actor_critic(obs)
    if not (isinstance(both, dict) and {'logit', 'value'} <= both.keys()):
        raise UserError(f"{name}.compute_actor_critic gave {_show(both)}; return {{'logit': ..., 'value': ...}}")
    _check_logit(f'{name}.compute_actor', model.compute_actor(obs), dist)
    _check_logit(f"{name}.compute_actor_critic['logit']", both['logit'], dist)
    _check(f'{name}.compute_critic', model.compute_critic(obs), (_N,))
    _check(f"{name}.compute_actor_critic['value']", both['value'], (_N,))
    if callable(getattr(model, 'compute_aux', None)):
        _check_aux(f'{name}.compute_aux', model.compute_aux(obs), dist)


def _check_aux(what: str, aux: Any, dist: ActionDist) -> None:
    if not (isinstance(aux, dict) and {'logit', 'aux_value', 'value'} <= aux.keys()):
        raise UserError(f"{what} gave {_show(aux)}; return {{'logit': ..., 'aux_value': ..., 'value': ...}}")
    _check_logit(f"{what}['logit']", aux['logit'], dist)
    for key in ('aux_value', 'value'):
        _check(f'{what}[{key!r}]', aux[key], (_N,))


def _check_logit(what: str, logit: Any, dist: ActionDist) -> None:
    if isinstance(logit, dict):
        raise UserError(
            f'{what} gave {_show(logit)} but must give one tensor (..., {dist.n_param}): the parameters of a '
            f'{dist.name} distribution side by side; return torch.cat((mu, sigma), -1), or use make_policy_head'
        )
    _check(what, logit, (_N, dist.n_param))
    if logit.device.type != 'meta' and (problem := dist.problem_of(logit)):
        raise UserError(f'{what} gave {problem}')


def _check(what: str, got: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(got, Tensor) or tuple(got.shape) != shape or not got.is_floating_point():
        raise UserError(
            f'{what} gave {_show(got)} for {_N} observations but must give a float tensor of shape '
            f'{shape}; keep the leading dimensions of obs'
        )


def _show(value: Any) -> str:
    if isinstance(value, Tensor):
        return f'a tensor of shape {tuple(value.shape)} and type {str(value.dtype).removeprefix("torch.")}'
    return f'a dict with the keys {sorted(value)}' if isinstance(value, dict) else f'a {type(value).__name__}'
