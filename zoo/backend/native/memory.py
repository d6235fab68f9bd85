"""Recurrent models of zoo, as their description for C: the layers of memory, or why C cannot run them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zoo.backend.native.bindings import MAX_CELL, CellKind, MemoryLayer, Weights
from zoo.model.recurrent import GRU, LSTM, Core, MinGRU, RecurrentPPG, RecurrentVAC, TwoBiasLSTM

MODELS = (RecurrentVAC, RecurrentPPG)
CELLS: dict[type, CellKind] = {
    LSTM: CellKind.LSTM,
    TwoBiasLSTM: CellKind.LSTM,
    GRU: CellKind.GRU,
    MinGRU: CellKind.MINGRU,
}
KNOWN = frozenset((*MODELS, *CELLS, Core))
"""Classes that only recurrent models have."""
MULTIPLE = 16  # of hidden sizes, with every instruction set: the gates of a row then lie on whole vectors


def obstacle_of_core(name: str, core: Any) -> str:
    """Why the native executor has no such memory, as the end of a sentence; empty if it has. Args: name: of it in the model."""
    if type(core) is not Core:
        return f'the native executor has no {type(core).__name__} as {name}'
    if len(core.layers) > MAX_CELL:
        return f'the native executor takes up to {MAX_CELL} recurrent layers and {name} has {len(core.layers)}'
    cell: Any
    for cell in core.layers:
        if type(cell) not in CELLS:
            return f'the native executor has no {type(cell).__name__} as a layer of {name}'
        if cell.n_hidden % MULTIPLE:
            return (
                f'the native executor takes hidden sizes of a memory that are multiples of {MULTIPLE}, and {name} has '
                f'{cell.n_hidden}'
            )
    return ''


def shares_as_encoder(model: Any) -> bool:
    """Whether actor and critic have one memory if, and only if, they have one encoder."""
    return (model.critic_core is model.actor_core) == (model.critic_encoder is model.actor_encoder)


def cells_of(core: Core | None) -> list[MemoryLayer]:
    """Describes the layers of a memory without obstacle."""
    if core is None:
        return []
    return [_cell(layer) for layer in core.layers]


def _cell(layer: nn.Module) -> MemoryLayer:
    weights: dict[str, Tensor] = dict(layer.named_parameters())
    of_features = None
    if 'weight_h' in weights:
        of_features = Weights(weights['weight_h'], weights.get('bias_h'))
    return MemoryLayer(CELLS[type(layer)], Weights(weights['weight_x'], weights['bias']), of_features)
