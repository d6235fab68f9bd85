"""Checks of a model before a run: its memory, its contract on one small batch, unread fields, parameters that a loss reaches."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from zoo.config.section import Section, plain
from zoo.core.data import Obs, State, keeps_state, leaves
from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY, MODEL_REGISTRY
from zoo.core.spaces import Space, empty_obs
from zoo.model.config import OF_DISTRIBUTION, ActorCriticConfig
from zoo.rl_utils.distribution import ActionDist, fitting

_N = 3  # rows of the probe; unlikely to be confused with a size of a space
_LENGTH = 4  # steps of the probe's sequence
_METHODS = ('compute_actor', 'compute_critic', 'compute_actor_critic')


def set_fields(cfg: Section, default_type: str | None) -> list[str]:
    """The names of the fields of a resolved section `policy.model` that differ from their defaults.

    Args: default_type: the model type of the policy if the section names none.
    """
    values = plain(cfg)
    if 'type' not in values:  # a policy without a network
        return []
    fields = MODEL_REGISTRY.get(values['type']).config.model_fields
    default = {name: plain(field.get_default(call_default_factory=True)) for name, field in fields.items()}
    default['type'] = default_type
    return [name for name, value in values.items() if value != default.get(name)]


def unread_option(cfg: ActorCriticConfig, dist: ActionDist, action_space: Space) -> str:
    """A sentence about a field of `policy.model` that is set but not read by the distribution; empty if there is none.

    Args: cfg: the fields of ActorCriticConfig; one that differs from its default is set.
    """
    unread: list[str] = []
    if dist.reads is not None:
        unread = sorted(set(OF_DISTRIBUTION).difference(dist.reads))
    for name in unread:
        value = getattr(cfg, name)
        default = ActorCriticConfig.model_fields[name].default
        if value != default:
            kinds = [
                kind
                for kind in fitting(action_space, dict(cfg))
                if name in (DISTRIBUTION_REGISTRY.get(kind).reads or ())
            ]
            use = ''
            if kinds:
                use = f', or use policy.model.distribution={" or ".join(kinds)}'
            if default is None:
                shown = 'null'
            else:
                shown = str(default).lower()
            return (
                f'policy.model.{name} is {str(value).lower()} but the actions are drawn by the distribution '
                f'{dist.name!r}, which does not read it; leave it at {shown}{use}'
            )
    return ''


@torch.no_grad()
def probe(model: Any, obs_space: Space, dist: ActionDist, device: torch.device) -> None:
    """Runs the methods of a model on zero observations and checks what they return.

    These are compute_actor, compute_critic, compute_actor_critic and, if there is one, compute_aux. Those of a model with
    `initial_state` run over one step, and over a short sequence in which one state is reset.
    Raises: UserError that names the method, its result and the wanted one; errors inside the model pass through.
    """
    for method in _METHODS:
        if not callable(getattr(model, method, None)):
            raise UserError(
                f'model {type(model).__name__} has no method {method}(obs); a model needs compute_actor, compute_critic '
                'and compute_actor_critic'
            )
    if not keeps_state(model):
        _refuse_hidden_state(model)
        _Contract(model, dist, (_N,)).run(empty_obs(obs_space, (_N,), device), ())
        return
    state = model.initial_state(_N)
    for path, x in leaves(state):
        if not isinstance(x, Tensor) or x.shape[:1] != (_N,):
            raise UserError(
                f'{type(model).__name__}.initial_state({_N}) gave {_show(x)}{f" as {path!r}" if path else ""} but must '
                f'give a tensor or a dict of tensors [{_N}, ..], a row for each env'
            )
    _Contract(model, dist, (_N,), state).run(empty_obs(obs_space, (_N,), device), (state,))
    first = torch.zeros(_LENGTH, _N, dtype=torch.bool, device=device)
    first[_LENGTH // 2, 0] = True
    obs = empty_obs(obs_space, (_LENGTH, _N), device)
    _Contract(model, dist, (_LENGTH, _N), state).run(obs, (state, first))


def _refuse_hidden_state(model: object) -> None:
    """Raises UserError if a method takes a state but the model has no `initial_state`."""
    for method in _METHODS:
        wanted = list(inspect.signature(getattr(model, method)).parameters.values())[1:]
        names = [p.name for p in wanted if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        if names:
            raise UserError(
                f'{type(model).__name__}.{method} takes {", ".join(["obs", *names])} but the model has no '
                'initial_state(n_env); define it, as the zeros [n_env, ..] that a recurrent model starts an episode '
                f'with, or take obs alone'
            )


class _Contract:
    """Calls and checks the methods on rows of the leading shape `lead`; state: the initial state of a recurrent model."""

    def __init__(self, model: object, dist: ActionDist, lead: tuple[int, ...], state: State = None) -> None:
        self._model = model
        self._dist = dist
        self._lead = lead
        self._state = state
        self._name = type(model).__name__
        arguments = ('obs', 'state', 'first')[: 1 if state is None else 1 + len(lead)]
        self._given = f'({", ".join(arguments)})'

    def run(self, obs: Obs, more: tuple[Any, ...]) -> None:
        """Calls and checks all methods. Raises: UserError."""
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

    def _call(self, method: str, obs: Obs, more: tuple[Any, ...]) -> Any:
        call: Callable[..., Any] = getattr(self._model, method)
        try:
            inspect.signature(call).bind(obs, *more)
        except TypeError:
            raise UserError(
                f'{self._name}.{method}{inspect.signature(call)} cannot be called as {method}{self._given}; a model '
                'with initial_state takes (obs, state, first=None) in each method'
            ) from None
        return call(obs, *more)

    def _one(self, method: str, obs: Obs, more: tuple[Any, ...]) -> Any:
        """The output of a method, without the state."""
        result = self._call(method, obs, more)
        if self._state is None:
            if isinstance(result, tuple):
                raise UserError(
                    f'{self._name}.{method} gave {_show(result)} but the model has no initial_state(n_env), so it must '
                    'give one tensor; define initial_state if the rest is a state'
                )
            return result
        if not isinstance(result, tuple) or len(result) != 2:
            if method == 'compute_actor':
                what = 'logit'
            else:
                what = 'value'
            raise UserError(f'{self._name}.{method}{self._given} gave {_show(result)}; return ({what}, state)')
        self._check_state(method, result[1])
        return result[0]

    def _check_dict(self, method: str, found: object, keys: tuple[str, ...]) -> None:
        if self._state is not None:
            keys = (*keys, 'state')
        if not (isinstance(found, dict) and set(keys) <= found.keys()):
            wanted = ', '.join(f'{key!r}: ...' for key in keys)
            raise UserError(f'{self._name}.{method} gave {_show(found)}; return {{{wanted}}}')
        if self._state is not None:
            self._check_state(method, found['state'])

    def _check_state(self, method: str, state: State) -> None:
        got = _forms(state)
        wanted = _forms(self._state)
        if got != wanted:
            raise UserError(
                f'{self._name}.{method}{self._given} gave a state of {_show_forms(got)} but initial_state one of '
                f'{_show_forms(wanted)}; return the state after the last row in the same form'
            )

    def _check_logit(self, what: str, logit: Tensor | dict[str, Tensor]) -> None:
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

    def _check(self, what: str, got: object, shape: tuple[int, ...]) -> None:
        if not isinstance(got, Tensor) or tuple(got.shape) != shape or not got.is_floating_point():
            if len(self._lead) == 1:
                rows = f'{_N} observations'
            else:
                rows = f'{_LENGTH} x {_N} observations, time first,'
            raise UserError(
                f'{self._name}.{what} gave {_show(got)} for {rows} but must give a float tensor of shape '
                f'{shape}; keep the leading dimensions of obs'
            )


def _forms(state: State) -> dict[str, Any]:
    """Shape and dtype of each tensor of a state, by path; of anything else its class name."""
    return {path: (tuple(x.shape), x.dtype) if isinstance(x, Tensor) else type(x).__name__ for path, x in leaves(state)}


def _show_forms(forms: dict[str, Any]) -> str:
    return ', '.join(
        f'{path}{" " if path else ""}{form if isinstance(form, str) else form[0]}' for path, form in forms.items()
    )


def _show(value: object) -> str:
    if isinstance(value, Tensor):
        return f'a tensor of shape {tuple(value.shape)} and type {str(value.dtype).removeprefix("torch.")}'
    if isinstance(value, tuple):
        return f'a tuple of {len(value)}'
    if isinstance(value, dict):
        return f'a dict with the keys {sorted(value)}'
    return f'a {type(value).__name__}'


def critic_names(model: nn.Module, obs_space: Space) -> set[str]:
    """Names of the parameters that a loss over `compute_critic` changes and one over `compute_actor` does not.

    Found by a backward pass through each method, so it works for models of any kind; gradients stay unchanged.
    """
    critic, actor = (reached(model, obs_space, method) for method in ('compute_critic', 'compute_actor'))
    return critic - actor


def actor_parameters(model: nn.Module, obs_space: Space) -> list[tuple[str, nn.Parameter]]:
    """All parameters by name except those of `critic_names`."""
    return parameters_by_role(model, critic_names(model, obs_space))['actor']


def parameters_by_role(model: nn.Module, critic: set[str]) -> dict[str, list[tuple[str, nn.Parameter]]]:
    """All parameters by name: those that `critic` names are the critic's, all others the actor's."""
    parameters: dict[str, list[tuple[str, nn.Parameter]]] = {'actor': [], 'critic': []}
    for name, p in model.named_parameters():
        parameters['critic' if name in critic else 'actor'].append((name, p))
    return parameters


def reached(model: Any, obs_space: Space, method: str) -> set[str]:
    """Names of the parameters that a loss over the output of a model's method would change, without frozen ones."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    device = next(iter(named.values())).device
    n_row = 2
    inputs = [empty_obs(obs_space, (n_row,), device)]
    if keeps_state(model):
        inputs.append(model.initial_state(n_row))
    with torch.enable_grad():
        result = getattr(model, method)(*inputs)
        output: Tensor
        if isinstance(result, tuple):
            output = result[0]
        else:
            output = result
        if not output.requires_grad:  # all parameters that it depends on are frozen
            return set()
        finite = torch.where(output.isfinite(), output, 0.0)  # masked choices are -inf
        grads = torch.autograd.grad(finite.sum(), list(named.values()), allow_unused=True)
    return {name for name, grad in zip(named, grads, strict=True) if grad is not None}


class AllocationError(Exception):
    """More memory was asked for than the limit allows; holds the bytes asked for so far."""

    def __init__(self, n_byte: int) -> None:
        super().__init__(n_byte)
        self.n_byte = n_byte


class AllocationLimit(TorchDispatchMode):
    """Within this context, new tensors of more than n_byte in sum raise AllocationError before they are allocated.

    Each operation that makes a tensor on a device is first run on the device 'meta', which has sizes but no memory.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True, which is torch's default, would load the compiler: 140 MB and a second

    def __init__(self, n_byte: int) -> None:
        super().__init__()
        self._limit = n_byte
        self._total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(argument.name == 'device' for argument in func._schema.arguments):
            here = {**kwargs, 'device': torch.device('meta')}
            here |= {key: value for key, value in (('generator', None), ('pin_memory', False)) if key in kwargs}
            new = func(*args, **here)
            self._total += new.numel() * new.element_size()
            if self._total > self._limit:
                raise AllocationError(self._total)
        return func(*args, **kwargs)
