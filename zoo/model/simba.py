"""Encoder 'simba': residual blocks with layer normalisation, for larger networks over vectors."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import relu

from zoo.config.section import Section
from zoo.core.registry import ENCODER_REGISTRY
from zoo.core.spaces import Leaf, Space
from zoo.model.images import holds_images
from zoo.model.inputs import input_width
from zoo.rl_utils.init import orthogonal


class SimbaConfig(Section):
    """Encoder 'simba'; use it with policy.model.obs_norm=true."""

    hidden_size: int = Field(
        128, ge=1, le=1_000_000, description='width of the blocks, and of the features; 128 to 512'
    )
    n_block: int = Field(1, ge=1, le=1_000, description='residual blocks; 1 or 2')


@ENCODER_REGISTRY.register('simba')
class Simba(nn.Module):
    """For vectors: a residual network with layer normalisation.

    [..., n] -> [..., hidden_size]: a linear layer, n_block residual blocks, layer normalisation.

    Source: Lee et al. 2024, arXiv:2410.09754, sec. 4, and the authors' code for the initial weights. The defaults are
    those of its actor; its critic has 2 blocks of 512. Its normalisation of observations is `obs_norm`.
    """

    config: ClassVar[type[Section]] = SimbaConfig
    value_gain: ClassVar[float] = 1.0

    def __init__(self, cfg: SimbaConfig, space: Leaf) -> None:
        super().__init__()
        self.n_feature: int = cfg.hidden_size
        self.embed = orthogonal(nn.Linear(input_width(space), cfg.hidden_size), 1.0)
        self.blocks = nn.ModuleList([SimbaBlock(cfg.hidden_size) for _ in range(cfg.n_block)])
        self.norm = nn.LayerNorm(cfg.hidden_size)

    @classmethod
    def fits(cls, space: Space) -> bool:
        return isinstance(space, Leaf) and not holds_images(space)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class SimbaBlock(nn.Module):
    """x + second(relu(first(layer_norm(x)))), four times as wide inside."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(n)
        self.first, self.second = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)
        for layer in (self.first, self.second):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(relu(self.first(self.norm(x))))
