"""The registered optimisers: what `policy.learn.optimizer` names, each with its options.

An own one is a function of named parameters and the policy's epsilon that returns a `FlatOptimizer`; its keyword-only
parameters are its options.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field
from torch import nn

from zoo.core.registry import OPTIMIZER_REGISTRY
from zoo.rl_utils.muon import MuonRule, MuonScale, hidden_matrices
from zoo.rl_utils.optimizer import FlatAdam, FlatOptimizer
from zoo.rl_utils.update_rules import AdamRule, RMSpropRule, SGDRule

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
    """Adam with a weight decay apart from the gradient (Loshchilov & Hutter 2019)."""
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
    """RMSprop with epsilon outside the root, as torch's (Hinton 2012)."""
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
    """Stochastic gradient descent, with momentum if wished."""
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
