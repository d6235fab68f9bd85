"""Growth of networks: more or fewer units or layers in the checkpoint of a policy, which where possible computes the same as before.

For the models 'vac' and 'ppg' with the encoder 'mlp', whose widths policy.model.hidden_sizes gives; both networks change
alike. Moments of optimisers and averages of the parameters change with the parameters; new entries of moments are 0.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.config.components import name_of
from zoo.config.section import value_at
from zoo.core.data import Obs
from zoo.model.encoder import MLP
from zoo.policy.base import Policy
from zoo.run.base_config import JobConfig
from zoo.run.checkpoint import Checkpoint, State
from zoo.tools.population.layout import Rewriting, StateLayout, Tensors, policy_of, rewritten, why_not_rewritten

GrowthKind = Literal['wider', 'narrower', 'deeper', 'less deep']
HIDDEN_SIZES = 'policy.model.hidden_sizes'
MODELS = ('vac', 'ppg')
LAYER_SHARE = 0.2  # probability that a layer changes, not units
UNITS = (16, 32, 64)
MIN_UNIT = 32
MAX_UNIT = 500
MAX_LAYER = 3
"""Limits and steps of AgileRL."""
DEEPER = ('relu', 'tanh')
"""Activations after which a new layer can compute (nearly) what it gets."""
TANH_SCALE = 0.1  # tanh(c h) / c differs from h by c^2 h^3 / 3, by less than .4% for |h| <= 1
ACTOR = 'actor_encoder'
CRITIC = 'critic_encoder'


class Growth(NamedTuple):
    """A change of policy.model.hidden_sizes.

    layer: index of the layer that changes, is added or removed; before, after: widths of all layers.
    """

    kind: GrowthKind
    layer: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def overrides(self) -> tuple[str, ...]:
        """The change as overrides."""
        return (f'{HIDDEN_SIZES}={list(self.after)}',)

    @property
    def words(self) -> str:
        """The change as a sentence for a log."""
        return f'{self.kind}: hidden_sizes {list(self.before)} -> {list(self.after)}'

    def is_exact(self, cfg: JobConfig) -> bool:
        """Whether the network computes the same afterwards, up to the order of sums."""
        if cfg.policy.model.layer_norm:  # the mean over units moves
            return False
        return self.kind == 'wider' or (self.kind == 'deeper' and cfg.policy.model.activation == 'relu')


def why_not_growth(cfg: JobConfig) -> str:
    """Returns a sentence if the networks of a config cannot grow; else ''. See `why_not_grown_in` for what depends on its env."""
    remedy = 'leave the mutation architecture out'
    model = cfg.policy.model
    if cfg.agents.policies:
        return f'architectures of several policies do not change: their widths are keys of each one; {remedy}'
    if model.get('type') not in MODELS:
        return (
            f'policy.model.type is {model.get("type")!r}, whose architecture only its own class method `mutations` can change; '
            f'write it, or {remedy}'
        )
    if model.recurrent is not None:
        return f'policy.model.recurrent is set, and networks with a memory do not change their architecture; {remedy}'
    if model.distribution == 'gsde':
        return f'the noise of the distribution gsde depends on the last layer, so this one cannot change; {remedy}'
    if name_of(model.encoder) not in ('auto', 'mlp'):
        return f'policy.model.encoder is {name_of(model.encoder)!r}, and only mlp changes its architecture; {remedy}'
    if value_at(model, 'encoder.hidden_sizes') is not None:
        return f'policy.model.encoder has hidden_sizes of its own; give them as {HIDDEN_SIZES}, or {remedy}'
    return ''


def why_not_grown_in(policy: Policy) -> str:
    """Returns a sentence if a policy has another encoder than 'mlp', as for images, or optimisers of its own; else ''."""
    encoder = getattr(policy.model, ACTOR, None)
    if isinstance(encoder, MLP):
        return why_not_rewritten(policy)
    return (
        f'the observations have the encoder {type(encoder).__name__}, and only mlp changes its architecture; leave the mutation '
        'architecture out'
    )


def draw_growth(cfg: JobConfig, generator: np.random.Generator) -> Growth:
    """Draws a change: of a layer with probability .2, else of 16, 32 or 64 units. Where it is impossible, units are added."""
    before = tuple(cfg.policy.model.hidden_sizes)
    n_layer = len(before)
    is_more = generator.random() < 0.5
    n_unit = int(UNITS[generator.integers(len(UNITS))])
    if generator.random() < LAYER_SHARE:
        if is_more and n_layer < MAX_LAYER and cfg.policy.model.activation in DEEPER:
            return Growth('deeper', n_layer, before, (*before, before[-1]))
        if not is_more and n_layer > 1:
            return Growth('less deep', n_layer - 1, before, before[:-1])
    elif not is_more:
        layer = int(generator.integers(n_layer))
        if before[layer] > MIN_UNIT:
            return _with_width('narrower', layer, before, max(before[layer] - n_unit, MIN_UNIT))
    narrow = [layer for layer in range(n_layer) if before[layer] < MAX_UNIT]
    if not narrow:  # all are at the limit or above it
        return _with_width('narrower', n_layer - 1, before, max(before[-1] - n_unit, MIN_UNIT))
    layer = narrow[generator.integers(len(narrow))]
    return _with_width('wider', layer, before, min(before[layer] + n_unit, MAX_UNIT))


def _with_width(kind: GrowthKind, layer: int, before: tuple[int, ...], width: int) -> Growth:
    return Growth(kind, layer, before, (*before[:layer], width, *before[layer + 1 :]))


def grown(
    state: State, *, growth: Growth, checkpoint: Checkpoint, parent: JobConfig, child: JobConfig, seed: int
) -> State:
    """Returns the state of a checkpoint for the network after a growth; the input is unchanged.

    Args: checkpoint: of the parent, for its spaces; parent, child: configs of the old and the new network; seed: of new weights.
    """
    old = StateLayout.of(policy_of(checkpoint, parent))
    policy = policy_of(checkpoint, child, seed)
    new = StateLayout.of(policy)
    towers = Towers(old, policy.model.one_trunk)
    kept = {}
    if growth.kind == 'narrower':
        kept = towers.most_used(state['policy']['model'], growth.layer, growth.after[growth.layer])
    rules = _Rules(growth, new, towers, kept, child.policy.model.activation)
    return rewritten(
        state,
        old,
        new,
        Rewriting(
            values=partial(_grow, rules, of_moments=False),
            moments=partial(_grow, rules, of_moments=True),
            first=partial(_grow, rules, of_moments=False),
        ),
    )


class Towers:
    """The encoders of actor and critic, and the layers that read their features.

    Args: layout: the parameters of the policy; is_one: both are the same module, whose parameters have two names.
    """

    def __init__(self, layout: StateLayout, is_one: bool) -> None:
        self._layout = layout
        self.names = [ACTOR]
        self._heads = {ACTOR: ['policy_head', 'aux_head'], CRITIC: ['value_head']}
        if is_one:
            self._heads[ACTOR] += self._heads[CRITIC]
        else:
            self.names.append(CRITIC)

    def of(self, name: str) -> str:
        """The tower that a parameter belongs to; '' for one of a head."""
        tower = name.partition('.')[0]
        if tower == CRITIC and CRITIC not in self.names:
            return ACTOR
        if tower in self.names:
            return tower
        return ''

    def readers(self, tower: str, layer: int) -> list[str]:
        """Names of the weights [.., units] that read the units of a layer."""
        after = f'{tower}.layers.{layer + 1}.weight'
        if after in self._layout.values:
            return [after]
        readers = []
        for head in self._heads[tower]:
            first = f'{head}.0.layers.0.weight'  # of hidden layers between encoder and head
            if first in self._layout.values:
                readers.append(first)
                continue
            readers += [name for name, x in self._layout.values.items() if name.startswith(f'{head}.') and x.dim() == 2]
        return readers

    def reading(self, name: str, layer: int) -> str:
        """The tower whose units of a layer a weight reads; '' if it is none of these weights."""
        if self.of(name):
            name = f'{self.of(name)}.{name.partition(".")[2]}'
        for tower in self.names:
            if name in self.readers(tower, layer):
                return tower
        return ''

    def most_used(self, values: Tensors, layer: int, n: int) -> dict[str, Tensor]:
        """Indices, in order, of the n units of a layer that matter most, by tower.

        These have the largest product of the norms of their incoming and outgoing weights.
        """
        indices = {}
        for tower in self.names:
            incoming = values[f'{tower}.layers.{layer}.weight'].norm(dim=1)
            outgoing = torch.cat([values[name] for name in self.readers(tower, layer)]).norm(dim=0)
            order = torch.argsort(incoming * outgoing, descending=True, stable=True)
            indices[tower] = order[:n].sort().values
        return indices


class _Rules(NamedTuple):
    """All that decides what becomes of a tensor in a growth. kept: the units that stay in a narrower layer, by tower."""

    growth: Growth
    new: StateLayout
    towers: Towers
    kept: dict[str, Tensor]
    activation: str


def _grow(rules: _Rules, tensors: Tensors, wanted: list[str], of_moments: bool) -> dict[str, Tensor]:
    """The tensors of the new network by name: parameters, or moments of them."""
    grow = {'wider': _wider, 'narrower': _narrower, 'deeper': _deeper, 'less deep': _less_deep}[rules.growth.kind]
    return {name: grow(rules, tensors, name, of_moments) for name in wanted}


def _fresh(rules: _Rules, name: str, of_moments: bool) -> Tensor:
    """The first value of a new parameter, or of its moment."""
    if of_moments:
        return torch.zeros_like(rules.new.values[name])
    return rules.new.values[name].clone()


def _wider(rules: _Rules, tensors: Tensors, name: str, of_moments: bool) -> Tensor:
    """New units have fresh incoming weights, and outgoing weights of 0."""
    x = tensors[name]
    fresh = _fresh(rules, name, of_moments)
    if fresh.shape == x.shape:
        return x.clone()
    if rules.towers.reading(name, rules.growth.layer):
        fresh.zero_()
    fresh[tuple(slice(n) for n in x.shape)] = x
    return fresh


def _narrower(rules: _Rules, tensors: Tensors, name: str, of_moments: bool) -> Tensor:
    x = tensors[name]
    if rules.new.values[name].shape == x.shape:
        return x.clone()
    tower = rules.towers.reading(name, rules.growth.layer)
    if tower:
        return x[:, rules.kept[tower]]
    return x[rules.kept[rules.towers.of(name)]]


def _deeper(rules: _Rules, tensors: Tensors, name: str, of_moments: bool) -> Tensor:
    """The new layer passes on what it gets: relu(h) = h where h >= 0, and tanh(c h) / c is nearly h for a small c."""
    scale = 1.0
    if rules.activation == 'tanh':
        scale = TANH_SCALE
    layer = rules.growth.layer
    _, _, place = name.partition('.')
    is_new = bool(rules.towers.of(name)) and place.startswith((f'layers.{layer}.', f'norms.{layer}.'))
    if is_new:
        fresh = _fresh(rules, name, of_moments)
        if place == f'layers.{layer}.weight' and not of_moments:
            return scale * torch.eye(len(fresh))
        return fresh
    x = tensors[name]
    if rules.towers.reading(name, layer - 1) and not of_moments:
        return x / scale
    return x.clone()


def _less_deep(rules: _Rules, tensors: Tensors, name: str, of_moments: bool) -> Tensor:
    """Heads get fresh weights if they now read a layer of another width."""
    x = tensors[name]
    if rules.new.values[name].shape == x.shape:
        return x.clone()
    return _fresh(rules, name, of_moments)


@torch.no_grad()
def kl_of_fork(parent: Policy, child: Policy, obs: Obs) -> float:
    """The mean KL divergence from the child's distribution of actions to the parent's, in nats, for observations [N, *O]."""
    dist, before, _ = parent._judge(obs, with_value=False)
    _, after, _ = child._judge(obs, with_value=False)
    return float(dist.kl(before, after).mean())
