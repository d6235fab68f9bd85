"""Kuhn poker for tests: an equilibrium by hand, and a network that plays it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from zoo.agents.exploitability import GameTree
from zoo.policy.base import Policy

NASH = {
    **{'0': 1 / 3, '1': 0.0, '2': 1.0, '0pb': 0.0, '1pb': 2 / 3, '2pb': 1.0},
    **{'0p': 1 / 3, '1p': 0.0, '2p': 1.0, '0b': 0.0, '1b': 1 / 3, '2b': 1.0},
}
"""The probability of a bet (or a call) in each information state: the card, then what was played. Source: Kuhn (1950)."""
NETWORK = {'hidden_sizes': [12], 'activation': 'relu'}
"""The section policy.model of a network that `write` can fill."""


def write(policy: Policy, tree: GameTree, bets: Mapping[str, float]) -> None:
    """Writes a play into a network: a hidden unit for each information state, which is 1 there and 0 in all others."""
    state = policy.model.state_dict()
    agents = torch.eye(2)[torch.from_numpy(tree.players)]
    rows = torch.cat([torch.from_numpy(tree.obs), agents], 1)  # [12, 13] of 0 and 1
    state['actor_encoder.join.layers.0.weight'] = 2 * rows - 1
    state['actor_encoder.join.layers.0.bias'] = 1 - rows.sum(1)
    logits = [[_log(1 - bets[key]), _log(bets[key])] for key in tree.keys]
    state['policy_head.weight'] = torch.tensor(logits).T
    state['policy_head.bias'] = torch.zeros(2)
    policy.model.load_state_dict(state)


def _log(p: float) -> float:
    return math.log(max(p, 1e-30))
