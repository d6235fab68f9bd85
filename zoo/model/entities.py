"""Encoder 'entities': masked attention over sets of entities whose number changes, such as the units that are in sight."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import relu

from zoo.config.section import Section
from zoo.core.registry import ENCODER_REGISTRY
from zoo.core.spaces import Box, Dict, MultiBinary, Space, leaf_spaces
from zoo.model.attention import check_heads
from zoo.model.inputs import input_width
from zoo.rl_utils.init import orthogonal

ITEMS = 'items'
MASK = 'mask'


class EntitiesConfig(Section):
    """Encoder 'entities' for observations that are a Dict with padded sets: {items: [n, F], mask: [n]}."""

    hidden_size: int = Field(64, ge=1, le=65_536, description='width of each entity inside, and of the features')
    n_head: int = Field(4, ge=1, le=1_024, description='heads of the attention, a divisor of hidden_size')
    n_layer: int = Field(1, ge=1, le=64, description='blocks of attention and a layer of four times the width; 1 to 3')

    @model_validator(mode='after')
    def _can_split(self) -> EntitiesConfig:
        check_heads(self.n_head, self.hidden_size, 'n_head')
        return self


def sets_of(space: Space) -> dict[str, tuple[int, int]]:
    """The padded sets in a Dict: the name of each, with a dot at its end, and (most entities, numbers of each); '' for the Dict itself."""
    leaves = dict(leaf_spaces(space)) if isinstance(space, Dict) else {}
    found = {}
    for name, leaf in leaves.items():
        prefix, _, last = name.rpartition(ITEMS)
        mask = leaves.get(f'{prefix}{MASK}')
        if last or (prefix and not prefix.endswith('.')) or not isinstance(mask, MultiBinary):
            continue
        if isinstance(leaf, Box) and len(leaf.shape) == 2 and mask.shape == leaf.shape[:1]:
            found[prefix] = (leaf.shape[0], leaf.shape[1])
    return found


@ENCODER_REGISTRY.register('entities')
class EntityEncoder(nn.Module):
    """For Dicts with sets of entities: attention in which every entity that the mask has looks at all others.

    {name of the leaf: output of `make_input` for it} -> [..., hidden_size]. Entries that are no sets become one more token, which
    looks at all entities; the features are that token. The order of entities changes nothing, nor do numbers that
    the mask leaves out; a set may be empty.
    Source: Vaswani et al. 2017, arXiv:1706.03762, with layer normalisation first; over entities: Baker et al. 2019, arXiv:1909.07528.
    """

    config: ClassVar[type[Section]] = EntitiesConfig
    value_gain: ClassVar[float] = 1.0

    def __init__(self, cfg: EntitiesConfig, space: Dict) -> None:
        super().__init__()
        self.n_feature: int = cfg.hidden_size
        self._sets = sets_of(space)
        of_sets = {f'{prefix}{part}' for prefix in self._sets for part in (ITEMS, MASK)}
        leaves: dict[str, Any] = {name: leaf for name, leaf in leaf_spaces(space) if name not in of_sets}
        self._others = list(leaves)
        self.embed = nn.ModuleList(
            orthogonal(nn.Linear(n_number, cfg.hidden_size), math.sqrt(2)) for _, n_number in self._sets.values()
        )
        n_other = sum(input_width(leaf) for leaf in leaves.values())
        self.token = orthogonal(nn.Linear(max(n_other, 1), cfg.hidden_size), math.sqrt(2))
        self.blocks = nn.ModuleList(EntityBlock(cfg.hidden_size, cfg.n_head) for _ in range(cfg.n_layer))
        self.norm = nn.LayerNorm(cfg.hidden_size)

    @classmethod
    def fits(cls, space: Space) -> bool:
        return bool(sets_of(space))

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        masks = [x[f'{prefix}{MASK}'] for prefix in self._sets]
        lead = masks[0].shape[:-1]
        parts = [x[name].flatten(len(lead)) for name in self._others]
        if parts:
            own = torch.cat(parts, -1)
        else:
            own = torch.ones((*lead, 1), dtype=masks[0].dtype, device=masks[0].device)
        tokens = [relu(self.token(own)).unsqueeze(-2)]
        for (prefix, shape), embed in zip(self._sets.items(), self.embed, strict=True):
            tokens.append(relu(embed(x[f'{prefix}{ITEMS}'].reshape(*lead, *shape))))
        seen = torch.cat(tokens, -2).flatten(0, -3) if lead else torch.cat(tokens, -2).unsqueeze(0)
        is_real = torch.cat([torch.ones_like(masks[0][..., :1]), *masks], -1) > 0
        is_real = is_real.reshape(seen.shape[0], -1)
        for block in self.blocks:
            seen = block(seen, is_real)
        return self.norm(seen[:, 0]).reshape(*lead, self.n_feature)


class EntityBlock(nn.Module):
    """x + attention(norm(x)), then x + second(relu(first(norm(x)))): [N, n, H], is_real [N, n] -> [N, n, H]."""

    def __init__(self, n: int, n_head: int) -> None:
        super().__init__()
        self._n_head = n_head
        self.norm_attention = nn.LayerNorm(n)
        self.query_key_value = orthogonal(nn.Linear(n, 3 * n), 1.0)
        self.out = orthogonal(nn.Linear(n, n), 1.0)
        self.norm_layers = nn.LayerNorm(n)
        self.first = orthogonal(nn.Linear(n, 4 * n), math.sqrt(2))
        self.second = orthogonal(nn.Linear(4 * n, n), 1.0)

    def forward(self, x: Tensor, is_real: Tensor) -> Tensor:
        n_row, n_token, width = x.shape
        parts = self.query_key_value(self.norm_attention(x)).view(n_row, n_token, 3, self._n_head, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # [N, heads, n, H / heads] each
        score = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        score = score.masked_fill(~is_real[:, None, None, :], -math.inf)  # the first token is always real
        mixed = (score.softmax(-1) @ value).transpose(1, 2).reshape(n_row, n_token, width)
        x = x + self.out(mixed)
        return x + self.second(relu(self.first(self.norm_layers(x))))
