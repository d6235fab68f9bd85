"""Places of a gradient step that a user's code can reach, and the executors that run code there.

An executor either runs such code or refuses it: if it is named in the config, with a sentence; if it was chosen by 'auto',
the next executor takes the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from torch import nn
from torch.nn.modules import module as torch_module

from zoo.backend.step import LossSpec, is_own_forward
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import FlatAdam, FlatOptimizer

Name = Literal['eager', 'native', 'graph']
ALL: tuple[Name, ...] = ('eager', 'native', 'graph')
MODULE_HOOKS = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks')
GLOBAL_HOOKS = tuple(f'_global{name}' for name in MODULE_HOOKS)


class StepParts(NamedTuple):
    """What a gradient step works on; None and () where it is not known yet."""

    model: nn.Module | None = None
    optimizers: Sequence[Any] = ()
    loss: LossSpec | None = None


class CodePlace(NamedTuple):
    """A place that a user's code can reach.

    runs_in: the executors that run code there. said: the code, as the beginning of a sentence. is_used: whether there is code of a user; None: another check finds it, or there is nothing to find, since all run it.
    """

    name: str
    runs_in: tuple[Name, ...]
    said: str = ''
    is_used: Callable[[StepParts], bool] | None = None


def _has_parameter_hooks(parts: StepParts) -> bool:
    if parts.model is None:
        return False
    return any(p._backward_hooks or p._post_accumulate_grad_hooks for p in _parameters(parts.model))


def _parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of a model, a shared one as often as it is there; four times as fast as `nn.Module.parameters`."""
    modules = [model]
    while modules:
        module = modules.pop()
        for parameter in module._parameters.values():
            if parameter is not None:
                yield parameter
        if module._modules:
            modules += [child for child in module._modules.values() if child is not None]


def _has_own_optimizer(parts: StepParts) -> bool:
    return any(type(each) not in (FlatAdam, FlatOptimizer) for each in parts.optimizers)


def _has_optimizer_methods(parts: StepParts) -> bool:
    return any(map(has_own_method, parts.optimizers))


def _is_replaced(field: str, plain: str | None = None) -> Callable[[StepParts], bool]:
    """Whether a part of the loss of a step is replaced. Args: plain: name of the function that it is by default."""

    def is_used(parts: StepParts) -> bool:
        value = getattr(parts.loss, field, None)
        return value is not None and (plain is None or getattr(value, '__name__', '') != plain)

    return is_used


def _has_other_forward(parts: StepParts) -> bool:
    """Whether the forward function of a step is not one of zoo."""
    return parts.loss is not None and not is_own_forward(parts.loss.forward)


def _is_function(field: str) -> Callable[[StepParts], bool]:
    """Whether a component of the loss of a step, or one of several, has no registered name."""

    def is_used(parts: StepParts) -> bool:
        value = getattr(parts.loss, field, ())
        if isinstance(value, tuple) and not hasattr(value, 'kind'):
            components = value
        else:
            components = (value,)
        return any(not hasattr(component, 'kind') for component in components)

    return is_used


MODEL_PLACE = 'a part of the model was replaced or has a hook'
PLACES = (
    CodePlace('hook of a parameter', ('eager',), 'a parameter of the model has a hook', _has_parameter_hooks),
    CodePlace('class of an optimizer', ('eager',), 'an optimiser is of a class of your own', _has_own_optimizer),
    CodePlace('method of an optimizer', ('eager',), 'a method of an optimiser was replaced', _has_optimizer_methods),
    CodePlace('loss.forward', ('eager', 'graph'), 'the steps have another forward', _has_other_forward),
    CodePlace('loss.extra_columns', ('eager', 'graph'), 'the steps compute columns', _is_replaced('extra_columns')),
    CodePlace('loss.proximal', ('eager', 'graph'), 'the steps have another loss', _is_replaced('proximal')),
    CodePlace('loss.surrogate', ('eager', 'graph'), 'the surrogate is a plain function', _is_function('surrogate')),
    CodePlace('loss.value_loss', ('eager', 'graph'), 'the value loss is a plain function', _is_function('value_loss')),
    CodePlace(
        'loss.terms', ('eager', 'graph'), 'a further term of the loss is a plain function', _is_function('terms')
    ),
    # the native executor knows zoo's own models exactly and says which part it does not know
    CodePlace('hook of a module', ('eager', 'graph'), MODEL_PLACE),
    CodePlace('hook of all modules', ('eager', 'graph'), 'there is a hook on all modules'),
    CodePlace('method of the model', ('eager', 'graph'), MODEL_PLACE),
    CodePlace('part of the model', ('eager', 'graph'), MODEL_PLACE),
    CodePlace('method of the distribution', ('eager', 'graph'), MODEL_PLACE),
    # what runs before or around the steps does not depend on the executor; a step of a user's own runs eagerly or compiled
    CodePlace('policy.step', ALL),
    CodePlace('samples.inputs', ALL),
    CodePlace('passes.take', ALL),
    CodePlace('passes.draw', ALL),
    CodePlace('option.before_update', ALL),
)
"""All places. What stands first is checked first."""


def why_not(executor: Name, parts: StepParts) -> str:
    """Why an executor cannot run steps of these parts, as the end of a sentence; empty if it can, as far as PLACES know."""
    for place in PLACES:
        if executor not in place.runs_in and place.is_used is not None and place.is_used(parts):
            if place.runs_in == ('eager',):
                return f'{place.said}, which only the eager executor runs'
            return f'{place.said}, which the {executor} executor does not run'
    return ''


def has_hook(module: nn.Module) -> bool:
    """Whether a module has one of MODULE_HOOKS."""
    own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(own)


def has_own_method(x: object) -> bool:
    """Whether an attribute of an object hides a method of its class."""
    return _hides_method(type(x), tuple(vars(x)))  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _hides_method(kind: type, names: tuple[str, ...]) -> bool:
    return any(callable(getattr(kind, name, None)) for name in names)


def code_of(model: nn.Module, dist: ActionDist) -> tuple[Hashable, ...]:
    """A value that changes when a hook, a method or the class of a part of the model changes.

    A compiled program holds the Python code of the model as it was when it was traced.
    """
    parts = [code for module in model.modules() for code in _code_of_module(module)]
    hooks = [key for name in GLOBAL_HOOKS for key in getattr(torch_module, name)]
    return (*parts, *hooks, *_own_methods(dist))


def _code_of_module(module: nn.Module) -> Iterator[Hashable]:
    attributes = vars(module)
    yield id(type(module))
    for name in MODULE_HOOKS:
        yield from attributes.get(name) or ()  # unique numbers
    yield from _own_methods(module)


def _own_methods(x: object) -> Iterator[Hashable]:
    for name, value in vars(x).items():
        if callable(value) and callable(getattr(type(x), name, None)):
            yield name, id(value)
