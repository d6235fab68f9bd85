"""Checks a network against the contract of a model with one small batch, before a run begins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from zoo.core.data import State, keeps_state, leaves
from zoo.core.errors import UserError
from zoo.core.spaces import Space, empty_obs
from zoo.rl_utils.distribution import ActionDist

_N = 3  # rows of the probe; no size of a space is likely to be taken for it
_LENGTH = 4  # of its sequence
_METHODS = ('compute_actor', 'compute_critic', 'compute_actor_critic')


@torch.no_grad()
def probe(model: Any, obs_space: Space, dist: ActionDist, device: torch.device) -> None:
    """Runs the methods of a model on zero observations and checks what they return.

    These are compute_actor, compute_critic, compute_actor_critic and, where there is one, compute_aux; of a model with
    `initial_state` over one step, and over a short sequence in which a state begins anew.
    Raises: UserError that names the method, what it gave and what is wanted; errors inside the model pass through.
    """
    for method in _METHODS:
        if not callable(getattr(model, method, None)):
            raise UserError(
                f'model {type(model).__name__} has no method {method}(obs); a model needs compute_actor, compute_critic '
                'and compute_actor_critic'
            )
    if not keeps_state(model):
        _refuse_hidden_state(model)
        _Probe(model, dist, (_N,)).run(empty_obs(obs_space, (_N,), device), ())
        return
    state = model.initial_state(_N)
    for path, x in leaves(state):
        if not isinstance(x, Tensor) or x.shape[:1] != (_N,):
            raise UserError(
                f'{type(model).__name__}.initial_state({_N}) gave {_show(x)}{f" as {path!r}" if path else ""} but must '
                f'give a tensor or a dict of tensors [{_N}, ..], a row for each env'
            )
    _Probe(model, dist, (_N,), state).run(empty_obs(obs_space, (_N,), device), (state,))
    first = torch.zeros(_LENGTH, _N, dtype=torch.bool, device=device)
    first[_LENGTH // 2, 0] = True
    obs = empty_obs(obs_space, (_LENGTH, _N), device)
    _Probe(model, dist, (_LENGTH, _N), state).run(obs, (state, first))


def _refuse_hidden_state(model: Any) -> None:
    """Raises: UserError if a method asks for a state that the model does not give."""
    for method in _METHODS:
        wanted = list(inspect.signature(getattr(model, method)).parameters.values())[1:]
        names = [p.name for p in wanted if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        if names:
            raise UserError(
                f'{type(model).__name__}.{method} takes {", ".join(["obs", *names])} but the model has no '
                'initial_state(n_env); define it, as the zeros [n_env, ..] that a recurrent model starts an episode '
                f'with, or take obs alone'
            )


class _Probe:
    """Calls the methods on rows of the leading shape `lead`; state: of a recurrent model, as it was given."""

    def __init__(self, model: Any, dist: ActionDist, lead: tuple[int, ...], state: State = None) -> None:
        self._model, self._dist, self._lead, self._state = model, dist, lead, state
        self._name = type(model).__name__
        self._given = '(obs)' if state is None else '(obs, state)' if len(lead) == 1 else '(obs, state, first)'

    def run(self, obs: Any, more: tuple[Any, ...]) -> None:
        """Raises: UserError."""
        both = self._call('compute_actor_critic', obs, more)
        self._check_dict('compute_actor_critic', both, ('logit', 'value'))
        self._check_logit('compute_actor', self._one('compute_actor', obs, more))
        self._check_logit("compute_actor_critic['logit']", both['logit'])
        self._check('compute_critic', self._one('compute_critic', obs, more), self._lead)
        self._check("compute_actor_critic['value']", both['value'], self._lead)
        if not callable(getattr(self._model, 'compute_aux', None)):
            return
        aux = self._call('compute_aux', obs, more)
        self._check_dict('compute_aux', aux, ('logit', 'aux_value', 'value'))
        self._check_logit("compute_aux['logit']", aux['logit'])
        for key in ('aux_value', 'value'):
            self._check(f'compute_aux[{key!r}]', aux[key], self._lead)

    def _call(self, method: str, obs: Any, more: tuple[Any, ...]) -> Any:
        call: Callable[..., Any] = getattr(self._model, method)
        try:
            inspect.signature(call).bind(obs, *more)
        except TypeError:
            raise UserError(
                f'{self._name}.{method}{inspect.signature(call)} cannot be called as {method}{self._given}; a model '
                'with initial_state takes (obs, state, first=None) in each method'
            ) from None
        return call(obs, *more)

    def _one(self, method: str, obs: Any, more: tuple[Any, ...]) -> Any:
        """What a method gives, its state taken off."""
        found = self._call(method, obs, more)
        if self._state is None:
            if isinstance(found, tuple):
                raise UserError(
                    f'{self._name}.{method} gave {_show(found)} but the model has no initial_state(n_env), so it must '
                    'give one tensor; define initial_state if the rest is a state'
                )
            return found
        if not isinstance(found, tuple) or len(found) != 2:
            what = 'logit' if method == 'compute_actor' else 'value'
            raise UserError(f'{self._name}.{method}{self._given} gave {_show(found)}; return ({what}, state)')
        self._check_state(method, found[1])
        return found[0]

    def _check_dict(self, method: str, found: Any, keys: tuple[str, ...]) -> None:
        keys = keys if self._state is None else (*keys, 'state')
        if not (isinstance(found, dict) and set(keys) <= found.keys()):
            wanted = ', '.join(f'{key!r}: ...' for key in keys)
            raise UserError(f'{self._name}.{method} gave {_show(found)}; return {{{wanted}}}')
        if self._state is not None:
            self._check_state(method, found['state'])

    def _check_state(self, method: str, state: State) -> None:
        got, wanted = dict(_forms(state)), dict(_forms(self._state))
        if got != wanted:
            raise UserError(
                f'{self._name}.{method}{self._given} gave a state of {_show_forms(got)} but initial_state one of '
                f'{_show_forms(wanted)}; return the state after the last row in the same form'
            )

    def _check_logit(self, what: str, logit: Any) -> None:
        dist = self._dist
        if isinstance(logit, dict):
            raise UserError(
                f'{self._name}.{what} gave {_show(logit)} but must give one tensor (..., {dist.n_param}): the '
                f'parameters of a {dist.name} distribution side by side; return torch.cat((mu, sigma), -1), or use '
                'make_policy_head'
            )
        self._check(what, logit, (*self._lead, dist.n_param))
        if logit.device.type != 'meta' and (problem := dist.problem_of(logit)):
            raise UserError(f'{self._name}.{what} gave {problem}')

    def _check(self, what: str, got: Any, shape: tuple[int, ...]) -> None:
        if not isinstance(got, Tensor) or tuple(got.shape) != shape or not got.is_floating_point():
            rows = f'{_N} observations' if len(self._lead) == 1 else f'{_LENGTH} x {_N} observations, time first,'
            raise UserError(
                f'{self._name}.{what} gave {_show(got)} for {rows} but must give a float tensor of shape '
                f'{shape}; keep the leading dimensions of obs'
            )


def _forms(state: State) -> Iterator[tuple[str, Any]]:
    for path, x in leaves(state):
        yield path, (tuple(x.shape), x.dtype) if isinstance(x, Tensor) else type(x).__name__


def _show_forms(forms: dict[str, Any]) -> str:
    return ', '.join(
        f'{path}{" " if path else ""}{form if isinstance(form, str) else form[0]}' for path, form in forms.items()
    )


def _show(value: Any) -> str:
    if isinstance(value, Tensor):
        return f'a tensor of shape {tuple(value.shape)} and type {str(value.dtype).removeprefix("torch.")}'
    if isinstance(value, tuple):
        return f'a tuple of {len(value)}'
    return f'a dict with the keys {sorted(value)}' if isinstance(value, dict) else f'a {type(value).__name__}'
