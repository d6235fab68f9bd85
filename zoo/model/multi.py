"""Encoder 'multi': several kinds of input, joined."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from zoo.config.section import LEFT_OUT, Filled, Section
from zoo.core.registry import ENCODER_REGISTRY
from zoo.core.spaces import Dict, Space
from zoo.model.encoder import PATH, Inherited, auto_name, build_encoder, checked_spec, vectors
from zoo.model.images import Precision
from zoo.model.inputs import leaves_by_path, module_name
from zoo.model.layers import Activation, Width


class MultiEncoderConfig(Section):
    """Encoder 'multi' for observations that are a Dict."""

    encoders: dict[str, Any] = Field(
        {},
        description="encoders of single entries by name, of nested ones by dotted name; the others: 'nature' or "
        "'impala' for images, 'flat' for the rest",
    )
    join: str | dict[str, Any] | None = Field(
        'mlp', description='encoder of all their features side by side; null: these are the features'
    )
    hidden_sizes: Filled[list[Width]] = Field(
        LEFT_OUT, min_length=1, description='of the encoders in it; null: policy.model.hidden_sizes'
    )
    activation: Filled[Activation] = Field(LEFT_OUT, description='of the encoders in it; null: policy.model.activation')
    layer_norm: Filled[bool] = Field(LEFT_OUT, description='of the encoders in it; null: policy.model.layer_norm')
    precision: Filled[Precision] = Field(LEFT_OUT, description='of the encoders in it; null: policy.model.precision')

    @field_validator('encoders')
    @classmethod
    def _check_encoders(cls, encoders: dict[str, Any]) -> dict[str, Any]:
        return {name: checked_spec(spec, f'{PATH}.encoders.{name}') for name, spec in encoders.items()}

    @field_validator('join')
    @classmethod
    def _check_join(cls, spec: Any) -> Any:
        return None if spec is None else checked_spec(spec, f'{PATH}.join')


@ENCODER_REGISTRY.register('multi')
class MultiEncoder(nn.Module):
    """For observations of several parts, as in a Dict: an encoder for each part, whose outputs are joined.

    {dotted path: output of `make_input` for the leaf} -> [..., F].

    Each leaf has an encoder; the concatenated features of all go through one more encoder. So vectors are treated as if they
    were one, and images join them after convolutions.
    """

    config: ClassVar[type[Section]] = MultiEncoderConfig

    def __init__(self, cfg: MultiEncoderConfig, space: Dict) -> None:
        super().__init__()
        given = Inherited.of(cfg)
        self._names = ['.'.join(path) for path in leaves_by_path(space)]
        self.parts = nn.ModuleDict()
        for i, (path, leaf) in enumerate(leaves_by_path(space).items()):
            name = self._names[i]
            spec = cfg.encoders.get(name, 'auto')
            if spec == 'auto' and auto_name(leaf) == 'mlp':
                spec = 'flat'
            self.parts[module_name(i, path)] = build_encoder(
                spec, leaf, given, f'{PATH}.encoders.{name}', f'the entry {name!r} has'
            )
        parts: list[Any] = list(self.parts.values())
        n = sum(part.n_feature for part in parts)
        self.join: Any = None
        if cfg.join is not None:
            self.join = build_encoder(cfg.join, vectors(n), given, f'{PATH}.join', 'the joined features are')
        self.n_feature: int = n if self.join is None else self.join.n_feature
        self.value_gain: float = min(part.value_gain for part in (parts if self.join is None else [self.join]))

    @classmethod
    def fits(cls, space: Space) -> bool:
        return isinstance(space, Dict)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        parts = [part(x[name]) for name, part in zip(self._names, self.parts.values(), strict=True)]
        feature = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return feature if self.join is None else self.join(feature)
