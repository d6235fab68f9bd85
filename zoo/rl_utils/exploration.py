"""Exploration: functions that turn the policy into the behaviour policy, which draws the actions and is stored with them.

Each function takes (dist, logit) and returns the parameters [..., P] of the behaviour policy, of the same distribution.
It runs with every step: compiled together with the network where acting is compiled (on GPUs), else eagerly. C acts with
'sample' alone. An option that is a number may be a schedule over env steps, and an option `env_step` gets the env steps before
the rollout (`zoo.config.components.component_at`); then it always runs eagerly. The attribute `kinds` of a function names the distributions that it is for, in a composite each of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from zoo.core.data import wide
from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY, EXPLORATION_REGISTRY, Component
from zoo.rl_utils.distribution import ActionDist

_DISCRETE = ('categorical', 'multi_categorical', 'bernoulli')
_GAUSSIAN = ('gaussian', 'squashed_gaussian', 'gsde')

Epsilon = Annotated[float, Field(gt=0, le=1, description='share of the actions that are drawn uniformly')]


def exploration_problem(exploration: Component | Callable[..., Tensor], dist: ActionDist) -> str:
    """Why an exploration cannot be used with a distribution, as a sentence; empty if it can.

    Args: exploration: a registered function, or the Component of one. A function without `kinds` is for all.
    """
    if isinstance(exploration, Component):
        function = exploration.function
        name = exploration.name
    else:
        function = exploration
        name = getattr(function, '__name__', '')
    parts = dist.parts or [dist]
    wrong = [part.name for part in parts if not _serves(function, part)]
    if not wrong:
        return ''
    fitting = [
        name
        for name in EXPLORATION_REGISTRY.names()
        if all(_serves(EXPLORATION_REGISTRY.get(name), part) for part in parts)
    ]
    return (
        f'policy.collect.exploration is {name!r}, which is for '
        f'{", ".join(getattr(function, "kinds", ()))} distributions, but the actions are of a {wrong[0]} distribution; use '
        f'{" or ".join(map(repr, fitting))}'
    )


@torch.no_grad()
def check_exploration(exploration: Component, dist: ActionDist, logit: Tensor, where: str) -> None:
    """Calls an exploration on sound parameters of a policy and checks that actions can be drawn from what it returns.

    Args: logit: [N, P]; where: for which observations the policy gave them, for errors.
    Raises: UserError for another shape or type, or parameters under which an action has no finite log-probability.
    """
    behaviour_logit: object = exploration(dist, logit)
    if not isinstance(behaviour_logit, Tensor):
        fault = f'{type(behaviour_logit).__name__}, no tensor,'
    elif behaviour_logit.shape != logit.shape or not behaviour_logit.is_floating_point():
        kind = str(behaviour_logit.dtype).removeprefix('torch.')
        fault = f'a tensor of shape {tuple(behaviour_logit.shape)} and type {kind}'
    else:
        fault = fault_of(dist, behaviour_logit)
    if fault:
        raise UserError(
            f'policy.collect.exploration is {exploration.name!r}, which gave {fault} for {where}; let it return the '
            f'parameters of a {dist.name} distribution in the form in which it gets them, here {tuple(logit.shape)}'
            f'{_named_parts(dist, logit)}, finite but for -inf of choices that are never taken'
        )


def fault_of(dist: ActionDist, param: Tensor) -> str:
    """The fault of parameters [N, P] from which actions are to be drawn, as a noun; empty if there is none."""
    if bool(param.isnan().any()):
        return 'NaN'
    problem = dist.problem_of(param)
    if problem:
        return problem.partition(';')[0]
    noise = dist.noise((len(param),), torch.Generator().manual_seed(0), param.device)
    if bool(dist.log_prob(param, dist.sample(param, noise)).isfinite().all()):
        return ''
    is_plus = bool((param == torch.inf).any())
    if is_plus:
        return 'an infinite number'
    return 'parameters under which an action has no finite log-probability'


def _named_parts(dist: ActionDist, logit: Tensor) -> str:
    parts = dist.split(logit)
    if isinstance(parts, Mapping):
        return f': {" and ".join(parts)}, side by side'
    return ''


def _serves(function: Callable[..., Tensor], dist: ActionDist) -> bool:
    kinds = getattr(function, 'kinds', None)
    return kinds is None or (dist.name in kinds and type(dist) is DISTRIBUTION_REGISTRY.get(dist.name))  # no subclass


@EXPLORATION_REGISTRY.register('sample')
def sample(dist: ActionDist, logit: Tensor) -> Tensor:
    """Draws all actions from the policy itself."""
    return logit


@EXPLORATION_REGISTRY.register('temperature')
def temperature(
    dist: ActionDist,
    logit: Tensor,
    *,
    temperature: Annotated[
        float, Field(gt=0, description='above 1: more random actions than the policy, below 1: fewer')
    ] = 1.0,
) -> Tensor:
    """Makes the behaviour policy more random, or less.

    Discrete choices and Beta: p becomes p^(1 / temperature), normalised; for Beta p is the density over the unit interval.
    Gaussian, squashed Gaussian, gSDE: the standard deviation (before squashing) is multiplied by temperature, the mean stays.
    """
    return _each_part(lambda part, param: _tempered(part, param, temperature), dist, logit)


@EXPLORATION_REGISTRY.register('epsilon')
def epsilon(dist: ActionDist, logit: Tensor, *, epsilon: Epsilon = 0.05) -> Tensor:
    """Draws a share of the actions uniformly from the allowed ones, the others from the policy; for discrete actions.

    p = (1 - epsilon) softmax(logit) + epsilon / n, where n is the number of choices that no mask forbids; returns log p.
    If an action has several choices or bits, this holds for each of them independently.
    """
    return _each_part(lambda part, param: _mixed(part, param, epsilon, is_greedy=False), dist, logit)


@EXPLORATION_REGISTRY.register('epsilon_greedy')
def epsilon_greedy(dist: ActionDist, logit: Tensor, *, epsilon: Epsilon = 0.05) -> Tensor:
    """Draws a share of the actions uniformly from the allowed ones, else takes the best one; for discrete actions.

    p = (1 - epsilon) [choice = argmax(logit), the first of equal ones] + epsilon / n; otherwise as 'epsilon'.
    For policies whose logits are values of actions, as in DQN.
    """
    return _each_part(lambda part, param: _mixed(part, param, epsilon, is_greedy=True), dist, logit)


temperature.kinds = (*_DISCRETE, *_GAUSSIAN, 'beta')  # type: ignore[attr-defined]
epsilon.kinds = epsilon_greedy.kinds = _DISCRETE  # type: ignore[attr-defined]


def _each_part(function: Callable[[ActionDist, Tensor], Tensor], dist: ActionDist, logit: Tensor) -> Tensor:
    parts = dist.parts or [dist]
    params = logit.split([part.n_param for part in parts], -1)
    results = [function(part, param) for part, param in zip(parts, params, strict=True)]
    if len(results) == 1:
        return results[0]
    return torch.cat(results, -1)


def _tempered(dist: ActionDist, param: Tensor, temperature: float) -> Tensor:
    if dist.name in _DISCRETE:
        return param / temperature
    if dist.name == 'beta':
        return 1 + (param - 1) / temperature
    mu, spread = param.split((dist.n_action, dist.n_param - dist.n_action), -1)  # sigma; for gSDE its basis
    return torch.cat((mu, spread * temperature), -1)


def _mixed(dist: ActionDist, param: Tensor, epsilon: float, is_greedy: bool) -> Tensor:
    param = wide(param)
    if dist.name == 'multi_categorical':
        choices = dict(dist.split(param)).values()
        return torch.cat([_mixed_choice(choice, epsilon, is_greedy) for choice in choices], -1)
    return (_mixed_bits if dist.name == 'bernoulli' else _mixed_choice)(param, epsilon, is_greedy)


def _mixed_choice(logit: Tensor, epsilon: float, is_greedy: bool) -> Tensor:
    """Logits [..., A] of one choice -> log-probabilities of its mixture."""
    allowed = (logit != -torch.inf).to(logit.dtype)
    choice = torch.arange(logit.shape[-1], device=logit.device)
    if is_greedy:
        p = (choice == logit.argmax(-1, keepdim=True)).to(logit.dtype)
    else:
        p = logit.softmax(-1)
    return ((1 - epsilon) * p + epsilon * allowed / allowed.sum(-1, keepdim=True)).log()


def _mixed_bits(log_odds: Tensor, epsilon: float, is_greedy: bool) -> Tensor:
    """Log-odds [..., K] of bits -> log-odds of their mixtures; a bit with log-odds of -inf may not be 1."""
    if is_greedy:
        one = (log_odds > 0).to(log_odds.dtype)
        zero = (log_odds <= 0).to(log_odds.dtype)
    else:
        one = log_odds.sigmoid()
        zero = (-log_odds).sigmoid()
    mixed = ((1 - epsilon) * one + 0.5 * epsilon).log() - ((1 - epsilon) * zero + 0.5 * epsilon).log()
    return torch.where(log_odds == -torch.inf, log_odds, mixed)
