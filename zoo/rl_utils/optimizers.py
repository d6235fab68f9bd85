"""The registered optimisers, which `policy.learn.optimizer` names, each with its options; Muon among them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.core.registry import OPTIMIZER_REGISTRY
from zoo.rl_utils.check import Number
from zoo.rl_utils.optimizer import FlatAdam, FlatOptimizer
from zoo.rl_utils.update_rules import AdamRule, RMSpropRule, SGDRule, decayed

logger = logging.getLogger(__name__)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of a x + b x^3 + c x^5, which applied five times maps singular values in [.01, 1] to about [.7, 1.2]."""
MuonScale = Literal['rms', 'spectral']
Named = Iterable[tuple[str, nn.Parameter]]
Beta1 = Annotated[float, Field(ge=0, lt=1, description='decay of the mean of gradients')]
Beta2 = Annotated[float, Field(ge=0, lt=1, description='decay of the mean of their squares')]
Betas = Annotated[
    tuple[Beta1, Beta2], Field(description='decays of the means of gradients and of their squares', strict=False)
]
Eps = Annotated[
    Annotated[float, Field(gt=0)] | None,
    Field(description='added to the root of the mean square; null: policy.learn.adam_eps'),
]
WeightDecay = Annotated[float, Field(ge=0, description='decay of the parameters')]
Momentum = Annotated[float, Field(ge=0, lt=1, description='decay of the sum of directions; 0: none')]


class Matrix(NamedTuple):
    """The place of a matrix in a flat buffer: n_row * n_column numbers from `start` on."""

    start: int
    n_row: int
    n_column: int


@dataclass(frozen=True)
class MuonRule:
    """Muon for `matrices`, Adam for the rest of the buffer.

    buffer = momentum * buffer + (1 - momentum) * grad;  U S V' = the buffer, or with nesterov a look-ahead of it
    param  = param - lr * scale * (about U V'),  orthogonalised by `orthogonalized`

    Options:
      scale: 'spectral': sqrt(max(1, rows / columns)), as published, for learning rates of about .02;
        'rms': 0.2 * sqrt(max(rows, columns)), with which a step is as long as Adam's, so that Adam's rates fit.
      adam: the rule of the other parameters, at a learning rate of adam_ratio * lr.
    Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon; scale 'rms': Liu et al. 2025, arXiv:2502.16982.
    Departs: the iteration runs in the dtype of the parameters, not in bfloat16.
    """

    matrices: tuple[Matrix, ...]
    momentum: float = 0.95
    nesterov: bool = True
    n_iteration: int = 5
    scale: MuonScale = 'rms'
    weight_decay: float = 0.0
    adam: AdamRule = field(default_factory=AdamRule)
    adam_ratio: float = 1.0

    @property
    def moments(self) -> tuple[str, ...]:
        return *self.adam.moments, 'momentum_buffer'

    def __call__(self, state: Mapping[str, Tensor], grad: Tensor, lr: Number) -> dict[str, Tensor]:
        new = self.adam(state, grad, lr * self.adam_ratio)
        buffer = state['momentum_buffer'] * self.momentum + grad * (1 - self.momentum)
        if self.nesterov:
            ahead = buffer * self.momentum + grad * (1 - self.momentum)
        else:
            ahead = buffer
        param = decayed(state['param'], lr, self.weight_decay)
        pieces = []
        end = 0
        for matrix, direction in self._directions(ahead).items():
            start, n_row, n_column = matrix
            size = n_row * n_column
            ratio = n_row / n_column
            longest = max(n_row, n_column)
            if self.scale == 'spectral':
                scale = max(1, ratio) ** 0.5
            else:
                scale = 0.2 * longest**0.5
            moved = param[start : start + size] - lr * scale * direction.flatten()
            pieces += [new['param'][end:start], moved]
            end = start + size
        return {**new, 'param': torch.cat([*pieces, new['param'][end:]]), 'momentum_buffer': buffer}

    def _directions(self, flat: Tensor) -> dict[Matrix, Tensor]:
        """The orthogonalised matrices, in the order of `matrices`; those of one shape are computed together."""
        directions: dict[Matrix, Tensor] = {}
        for n_row, n_column in dict.fromkeys((m.n_row, m.n_column) for m in self.matrices):
            same = [m for m in self.matrices if (m.n_row, m.n_column) == (n_row, n_column)]
            stack = torch.stack([flat[m.start : m.start + n_row * n_column].view(n_row, n_column) for m in same])
            directions |= dict(zip(same, orthogonalized(stack, self.n_iteration).unbind(), strict=True))
        return {m: directions[m] for m in self.matrices}


def orthogonalized(x: Tensor, n_iteration: int = 5) -> Tensor:
    """Matrices [..., R, C] with the same singular vectors and singular values near 1, by Newton-Schulz iterations.

    x = a x + (b x x' + c (x x')^2) x, after a division by the Frobenius norm; a matrix of zeros stays 0.
    """
    a, b, c = COEFFICIENTS
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT  # the products are of the shorter side
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    for _ in range(n_iteration):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    if is_tall:
        return x.mT
    return x


def hidden_matrices(named_parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Matrix]:
    """The weights between hidden layers, by name, with their places in a flat buffer of the trainable parameters.

    These are weights of dense layers or convolutions (whose filters are the rows) that are fed by an earlier weight and feed a
    later one. One weight feeds another if their widths match; after convolutions a multiple of their channels matches too, for
    flattened maps. By their names, modules of an actor and of a critic do not feed each other. Frozen parameters are in no
    buffer, but feed and are fed. Left out are input layers, output layers (all with 'head' in their name too), stacked gates of
    recurrent cells, vectors and biases. Warns if no weight is found.
    """
    places: list[tuple[str, Matrix, Tensor]] = []
    start = 0
    for name, p in named_parameters:
        if p.ndim in (2, 3, 4, 5):  # 3 to 5: convolutions
            places.append((name, Matrix(start, p.shape[0], p[0].numel()), p))
        if p.requires_grad:
            start += p.numel()
    matrices = {}
    for i, (name, matrix, p) in enumerate(places):
        is_fed = any(_feeds(earlier, p) and _may_meet(other, name) for other, _, earlier in places[:i])
        feeds = any(_feeds(p, later) and _may_meet(name, other) for other, _, later in places[i + 1 :])
        if is_fed and feeds and 'head' not in name and p.requires_grad:
            matrices[name] = matrix
    layers = [name for name, _, p in places if 'head' not in name and p.requires_grad]
    if layers and not matrices:
        logger.warning(
            "policy.learn.optimizer 'muon' found no weight between two hidden layers among %s: all parameters move by Adam; "
            "use optimizer 'adam', or a model with two hidden layers or more",
            ', '.join(layers),
        )
    return matrices


def _feeds(a: Tensor, b: Tensor) -> bool:
    """Whether the outputs of weight a may be the inputs of weight b."""
    return b.shape[1] == a.shape[0] or (a.ndim > 2 and b.ndim == 2 and b.shape[1] % a.shape[0] == 0)


def _may_meet(name: str, other: str) -> bool:
    """Whether parameters of these names may lie on one path through the model: not one of the actor and one of the critic."""
    owners = {owner for each in (name, other) for owner in ('actor', 'critic') if owner in each.split('.')[0]}
    return len(owners) < 2


@OPTIMIZER_REGISTRY.register('adam')
def adam(named_parameters: Named, adam_eps: float = 1e-5, *, betas: Betas = (0.9, 0.999), eps: Eps = None) -> FlatAdam:
    """Adam (Kingma & Ba 2015)."""
    return FlatAdam(named_parameters, betas=betas, eps=adam_eps if eps is None else eps)


@OPTIMIZER_REGISTRY.register('adamw')
def adamw(
    named_parameters: Named,
    adam_eps: float = 1e-5,
    *,
    betas: Betas = (0.9, 0.999),
    eps: Eps = None,
    weight_decay: WeightDecay = 0.01,
) -> FlatOptimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""
    return FlatOptimizer(named_parameters, AdamRule(betas, adam_eps if eps is None else eps, weight_decay))


@OPTIMIZER_REGISTRY.register('rmsprop')
def rmsprop(
    named_parameters: Named,
    adam_eps: float = 1e-5,
    *,
    alpha: Annotated[float, Field(ge=0, lt=1, description='decay of the mean of squared gradients')] = 0.99,
    eps: Eps = None,
    momentum: Momentum = 0.0,
    weight_decay: WeightDecay = 0.0,
) -> FlatOptimizer:
    """RMSprop with epsilon outside the root, as in torch (Hinton 2012)."""
    return FlatOptimizer(named_parameters, RMSpropRule(alpha, adam_eps if eps is None else eps, momentum, weight_decay))


@OPTIMIZER_REGISTRY.register('sgd')
def sgd(
    named_parameters: Named,
    adam_eps: float = 1e-5,
    *,
    momentum: Momentum = 0.0,
    nesterov: Annotated[bool, Field(description='looks one step ahead along the momentum')] = False,
    weight_decay: WeightDecay = 0.0,
) -> FlatOptimizer:
    """Stochastic gradient descent, with optional momentum."""
    return FlatOptimizer(named_parameters, SGDRule(momentum, nesterov, weight_decay))


@OPTIMIZER_REGISTRY.register('muon')
def muon(
    named_parameters: Named,
    adam_eps: float = 1e-5,
    *,
    momentum: Annotated[float, Field(ge=0, lt=1, description='decay of the mean of gradients')] = 0.95,
    nesterov: Annotated[bool, Field(description='looks one step ahead along the momentum')] = True,
    n_iteration: Annotated[int, Field(ge=1, le=20, description='Newton-Schulz iterations')] = 5,
    scale: Annotated[
        MuonScale,
        Field(description="length of a step: 'rms' as Adam's; 'spectral' as published, for rates of about .02"),
    ] = 'rms',
    weight_decay: Annotated[float, Field(ge=0, description='decay of the hidden matrices')] = 0.0,
    betas: Betas = (0.9, 0.999),
    eps: Eps = None,
    adam_ratio: Annotated[float, Field(gt=0, description='learning rate of the other parameters, relative')] = 1.0,
) -> FlatOptimizer:
    """Muon for the matrices between hidden layers, Adam for the other parameters (Jordan et al. 2024)."""
    named = list(named_parameters)
    adam_rule = AdamRule(betas, adam_eps if eps is None else eps)
    matrices = tuple(hidden_matrices(named).values())
    rule = MuonRule(matrices, momentum, nesterov, n_iteration, scale, weight_decay, adam_rule, adam_ratio)
    return FlatOptimizer(named, rule)
