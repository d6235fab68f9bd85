"""Networks of other libraries on those of zoo: sections `policy.model` and the places of their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from zoo.tools.exchange.form import NewPlace


class Tower(NamedTuple):
    """Fully connected layers, in their order: names there of each layer, without '.weight'; their widths."""

    layers: tuple[str, ...]
    widths: tuple[int, ...]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], layers: Sequence[str]) -> Tower:
        """The tower of layers with these names."""
        return cls(tuple(layers), tuple(len(tensors[f'{name}.weight']) for name in layers))


def numbered_layers(tensors: Mapping[str, Tensor], prefix: str) -> list[str]:
    """The names of the layers 'prefix.0', 'prefix.2', ... that have a weight of two dimensions, in their order."""
    numbers = set()
    for name, tensor in tensors.items():
        inner = name.removeprefix(f'{prefix}.').removesuffix('.weight')
        if name == f'{prefix}.{inner}.weight' and inner.isdecimal() and tensor.dim() == 2:
            numbers.add(int(inner))
    return [f'{prefix}.{n}' for n in sorted(numbers)]


def layer_places(there: str, here: str, has_bias: bool = True) -> dict[str, NewPlace]:
    """The places of weight and bias of one layer."""
    parts = ['weight']
    if has_bias:
        parts.append('bias')
    return {f'{there}.{part}': NewPlace(f'{here}.{part}') for part in parts}


def put_towers(model: dict[str, Any], actor: Tower, critic: Tower, encoder: str | None) -> dict[str, NewPlace]:
    """Sets widths of actor and critic in the section `policy.model`; returns the places of their layers.

    Args: encoder: what comes before the layers: None: nothing, so they may be the encoders themselves; else they are heads.
    """
    is_plain = encoder is None and actor.widths == critic.widths and bool(actor.widths)
    if is_plain:
        model['hidden_sizes'] = list(actor.widths)
        names = {'actor_encoder': actor, 'critic_encoder': critic}
    else:
        if encoder is None:
            model['encoder'] = 'flat'
        model['actor_head'] = list(actor.widths)
        model['critic_head'] = list(critic.widths)
        names = {'policy_head.0': actor, 'value_head.0': critic}
    places: dict[str, NewPlace] = {}
    for here, tower in names.items():
        for i, there in enumerate(tower.layers):
            places |= layer_places(there, f'{here}.layers.{i}')
    return places


def head_name(model: Mapping[str, Any], role: str) -> str:
    """The name of the last module of a head, 'policy' or 'value', in a model with this section."""
    widths = {'policy': 'actor_head', 'value': 'critic_head'}[role]
    if model.get(widths):
        return f'{role}_head.1'
    return f'{role}_head'
