"""Which parts of an update the native executor knows, and how it is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoo.backend.native.arguments import StepSpec
from zoo.backend.native.structures import Kind, Surrogate, ValueLoss

_SURROGATES = {
    'clip': Surrogate.CLIP,
    'asymmetric_clip': Surrogate.CLIP,
    'none': Surrogate.UNCLIPPED,
    'spo': Surrogate.SPO,
}
_VALUE_LOSSES = {
    'mse': ValueLoss.MSE,
    'clip': ValueLoss.CLIPPED_VALUE,
    'error_clip': ValueLoss.CLIPPED_ERROR,
    'huber': ValueLoss.HUBER,
}
_KNOWN: dict[str, tuple[str, ...]] = {
    'surrogate': tuple(_SURROGATES),
    'value loss': tuple(_VALUE_LOSSES),
    'penalty': ('kl',),
    'optimizer': ('adam',),
    'proximal policy': ('behaviour',),
}
_OPTIONS = {'asymmetric_clip': ('high',), 'clip': ('range',), 'error_clip': ('range',), 'huber': ('delta',)}
_OF_STEPS = ('surrogate', 'value_loss', 'penalties', 'penalty_weights', 'proximal', 'precision', 'rho_max')


def unknown_parts(parts: Sequence[Any]) -> str:
    """Why the native executor cannot run updates that have these parts, as the end of a sentence; empty if it can.

    Args: parts: each with `kind` and `name`, as a `zoo.config.parts.Part`; those of the kind 'option' are keys of the
      config that C does not know. Other kinds that no gradient step has are ignored.
    """
    for part in parts:
        if part.kind == 'option':
            return f'the native executor does not know {part.name}'
        if part.kind not in _KNOWN:
            continue
        if part.name not in _KNOWN[part.kind]:
            return f'the native executor does not know the {part.kind} {part.name!r}'
        if _is_foreign(part):
            return f'the native executor does not know the {part.kind} {part.name!r} of {part.function.__module__}'
        if part.kind != 'optimizer' and (name := _unknown_option(part)):
            return f'the native executor does not know the option {name!r} of the {part.kind} {part.name!r}'
    n = sum(part.kind == 'penalty' for part in parts)
    return f'the native executor takes one penalty, not {n}' if n > 1 else ''


def knows_parts(kind: Kind, numbers: Any) -> bool:
    """Whether C has all parts that a step of this kind reads from its numbers."""
    if getattr(numbers, 'precision', 'fp32') != 'fp32':
        return False
    return getattr(numbers, 'proximal', 'behaviour') == 'behaviour' and not unknown_parts(_parts_of(kind, numbers))


def step_spec(kind: Kind, normalize_adv: bool, numbers: Any) -> StepSpec:
    """A step with numbers of zoo.policy.updates, whose parts are all known."""
    fields = {name: x for name, x in numbers._asdict().items() if name not in _OF_STEPS}
    clip_ratio = fields.pop('clip_ratio', None)
    if clip_ratio is not None:
        fields |= {'clip_low': clip_ratio, 'clip_high': clip_ratio}
    for part in _parts_of(kind, numbers):
        options = dict(part.options)
        if part.kind == 'surrogate':
            fields['surrogate'] = _SURROGATES[part.name]
            fields['clip_high'] = options.get('high', clip_ratio)
        elif part.kind == 'value loss':
            fields['value_loss'] = _VALUE_LOSSES[part.name]
            limit = options.get('delta' if part.name == 'huber' else 'range')
            fields['value_range'] = clip_ratio if limit is None else limit
        else:
            (fields['kl_penalty'],) = numbers.penalty_weights
    return StepSpec(kind=kind, normalize_adv=normalize_adv, **fields)


def _parts_of(kind: Kind, numbers: Any) -> list[Any]:
    """The parts that a step of this kind reads; the numbers of a step of the policy alone name a value loss too."""
    parts = [numbers.surrogate, *numbers.penalties] if kind in (Kind.PPO, Kind.POLICY) else []
    return [*parts, numbers.value_loss] if kind in (Kind.PPO, Kind.VALUE) else parts


def _unknown_option(part: Any) -> str:
    """The first option that is given a value and C does not know; empty without one."""
    known = _OPTIONS.get(part.name, ())
    return next((name for name, x in getattr(part, 'options', ()) if x is not None and name not in known), '')


def _is_foreign(part: Any) -> bool:
    """Whether a part was registered in place of zoo's own, by somebody's `register(name, force=True)`."""
    module = getattr(getattr(part, 'function', None), '__module__', 'zoo')
    return module.partition('.')[0] != 'zoo'
