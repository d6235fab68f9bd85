"""Mutations of the members of a population: other hyper-parameters, noise on weights, another activation or architecture.

A mutation is a function of a member and a generator. It returns the overrides of the config and the function of the checkpoint's
state that turn a copy of the member into its child; or None if the member cannot have a mutation of this kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np

from zoo.config.schedule import schedule_value
from zoo.config.section import ConfigError, value_at
from zoo.config.yaml_io import storable
from zoo.core.errors import unknown_name
from zoo.core.registry import MODEL_REGISTRY, Registry
from zoo.model.layers import Activation
from zoo.policy.base import Policy
from zoo.run.base_config import JobConfig
from zoo.run.checkpoint import Checkpoint, State
from zoo.tools.population.growth import draw_growth, grown, why_not_grown_in, why_not_growth
from zoo.tools.population.layout import policy_of, why_not_rewritten
from zoo.tools.population.noise import noisy, weight_matrices, why_not_noise
from zoo.tools.sweep.spaces import Space

How = Literal['pbt', 'evolution']
Kind = Callable[['MutableMember', np.random.Generator], 'Mutation | None']
MUTATION_REGISTRY: Registry[Kind] = Registry('mutation', 'zoo.mutations', ('zoo.tools.population.mutation',))
DEFAULT_WEIGHTS: dict[How, dict[str, float]] = {
    'pbt': {'explore': 1.0},
    'evolution': {'none': 0.4, 'architecture': 0.2, 'parameters': 0.2, 'activation': 0.0, 'hyper': 0.2},
}
"""Relative probabilities of the kinds. Those of evolution are the ones of AgileRL's package of manifests."""
RESAMPLED = 0.25  # probability that 'explore' draws a value from its space, as in Ray Tune
FACTORS = 0.8, 1.2
INTEGER_FACTORS = 0.75, 1.5  # of 'hyper', as AgileRL has them where it derives ranges from the values
NEAR_1 = ('discount_factor', 'gae_lambda', 'decay')
"""Last words of keys whose distance from 1 is multiplied, as in rl_games: 0.99 becomes 0.988 or 0.992, not 0.79 or 1."""
MAX_TRIES = 20
DIGITS = 12  # significant digits of a product: hides the error of a float, 0.0012000000000000001
ACTIVATION = 'policy.model.activation'
SEED_RANGE = 2**63
OTHER_POLICY = 'a child with another activation is another policy: its actions differ from those of its parent from the first step on'


class Mutation(NamedTuple):
    """The difference between a child and its parent.

    overrides: 'key=value' texts; change: maps the state of a checkpoint to another one, without changing its input; exact: of
    an architecture, whether the child computes what its parent did; refused: why the config refused all values that were
    tried, so that those of the parent stay; note: a sentence for the log.
    """

    kind: str
    overrides: tuple[str, ...] = ()
    change: Callable[[State], State] | None = None
    exact: bool | None = None
    refused: str = ''
    note: str = ''


class MutableMember(Protocol):
    """Protocol of a member as mutations see it: the run whose copy is mutated."""

    @property
    def config(self) -> JobConfig:
        """Its resolved config."""

    @property
    def spaces(self) -> Mapping[str, Space]:
        """The values that keys of the config may take."""

    @property
    def checkpoint(self) -> Checkpoint:
        """Its newest checkpoint."""

    def resolve(self, overrides: Sequence[str]) -> JobConfig:
        """Its config with other values. Raises: ConfigError if they are refused."""


def mutate(member: MutableMember, weights: Mapping[str, float], generator: np.random.Generator) -> Mutation:
    """Draws a kind of mutation by its weight, and returns a mutation of this kind.

    Kinds that the member cannot have are left out: the next one is drawn from the others by their weights.
    """
    left = {kind: weight for kind, weight in weights.items() if weight > 0}
    while left:
        shares = np.array(list(left.values()))
        kind = list(left)[generator.choice(len(left), p=shares / shares.sum())]
        mutation = MUTATION_REGISTRY.get(kind)(member, generator)
        if mutation is not None:
            return mutation
        del left[kind]
    return Mutation('none')


def parse_weights(text: str, how: How) -> dict[str, float]:
    """Returns the weights of the kinds, those of `how` with the ones of a text such as 'architecture=.2,activation=.1'.

    Raises: ConfigError with a sentence for every problem.
    """
    weights = dict(DEFAULT_WEIGHTS[how])
    problems = []
    for part in filter(None, (part.strip() for part in text.split(','))):
        kind, _, raw = part.partition('=')
        if kind not in MUTATION_REGISTRY:
            problems.append(unknown_name('mutation', kind, MUTATION_REGISTRY.names()))
            continue
        weight = _weight(raw)
        if weight is None:
            problems.append(f'the mutation {kind} has the weight {raw!r} but needs a number >= 0; e.g. {kind}=.2')
            continue
        weights[kind] = weight
    if not problems and not any(weights.values()):
        problems.append('all mutations have the weight 0, so no member would change; give one a weight, e.g. hyper=1')
    if problems:
        raise ConfigError(problems)
    return weights


def _weight(raw: str) -> float | None:
    try:
        weight = float(raw)
    except ValueError:
        return None
    if math.isfinite(weight) and weight >= 0:
        return weight
    return None


def why_not_kind(kind: str, cfg: JobConfig, spaces: Mapping[str, Space], policy: Policy | None = None) -> str:
    """Returns a sentence if members with a config can have no mutation of a bundled kind; else ''.

    Args: policy: one of the config, if it is known; an architecture depends on the observations too.
    """
    if kind == 'architecture' and _own_mutations(cfg) is None:
        reason = why_not_growth(cfg)
        if not reason and policy is not None:
            reason = why_not_grown_in(policy)
        return reason
    if kind == 'parameters':
        return why_not_noise(cfg)
    if kind == 'activation':
        return _why_no_activation(cfg)
    if kind in ('hyper', 'explore') and not spaces:
        return f'{kind} has no key to change; give a space, e.g. policy.learn.learning_rate=log(1e-4,1e-2)'
    return ''


@MUTATION_REGISTRY.register('none')
def none(member: MutableMember, generator: np.random.Generator) -> Mutation:
    """Changes nothing."""
    return Mutation('none')


@MUTATION_REGISTRY.register('hyper')
def hyper(member: MutableMember, generator: np.random.Generator) -> Mutation | None:
    """Changes the value of one key, drawn uniformly: numbers by a factor of .8 or 1.2, integers of .75 or 1.5."""
    if not member.spaces:
        return None

    def draw() -> list[str]:
        key = list(member.spaces)[generator.integers(len(member.spaces))]
        return [f'{key}={moved(member, key, generator, INTEGER_FACTORS)}']

    return _accepted(member, 'hyper', draw)


@MUTATION_REGISTRY.register('explore')
def explore(member: MutableMember, generator: np.random.Generator) -> Mutation | None:
    """Changes the value of every key: with probability .25 it is drawn from its space, else multiplied by .8 or 1.2.

    Source: Jaderberg et al. 2017, arXiv:1711.09846, and Ray Tune. Departs: the result is cut to the space, and an integer
    moves by at least 1.
    """
    if not member.spaces:
        return None

    def draw() -> list[str]:
        texts = []
        for key, space in member.spaces.items():
            if generator.random() < RESAMPLED:
                texts.append(f'{key}={drawn(space, generator)}')
            else:
                texts.append(f'{key}={moved(member, key, generator, FACTORS)}')
        return texts

    return _accepted(member, 'explore', draw)


@MUTATION_REGISTRY.register('architecture')
def architecture(member: MutableMember, generator: np.random.Generator) -> Mutation | None:
    """Adds or removes units or a layer of the networks; what is added keeps what they compute where that is possible.

    For a model with a class method `mutations(cfg) -> {name: Mutation}`, cfg its section policy.model, it is one of these.
    """
    own = _own_mutations(member.config)
    if own is not None:
        return _chosen(member, own, generator)
    cfg = member.config
    if why_not_growth(cfg) or why_not_grown_in(policy_of(member.checkpoint, cfg)):
        return None
    growth = draw_growth(cfg, generator)
    try:
        child = member.resolve(growth.overrides)
    except ConfigError as error:
        return Mutation('architecture', refused=str(error))
    seed = int(generator.integers(SEED_RANGE))
    change = partial(grown, growth=growth, checkpoint=member.checkpoint, parent=cfg, child=child, seed=seed)
    return Mutation('architecture', growth.overrides, change, growth.is_exact(cfg), note=growth.words)


def _own_mutations(cfg: JobConfig) -> Callable[[object], Mapping[str, Mutation]] | None:
    """The class method `mutations` of the model that a config names; None if it has none."""
    name = cfg.policy.model.get('type')
    if name is None:
        return None
    return getattr(MODEL_REGISTRY.get(name), 'mutations', None)


def _chosen(
    member: MutableMember, own: Callable[[object], Mapping[str, Mutation]], generator: np.random.Generator
) -> Mutation | None:
    """One of the mutations of a model, drawn uniformly; None if there is none now."""
    mutations = own(member.config.policy.model)
    if not mutations:
        return None
    name = list(mutations)[generator.integers(len(mutations))]
    mutation = mutations[name]
    try:
        member.resolve(mutation.overrides)
    except ConfigError as error:
        return Mutation('architecture', refused=str(error))
    return mutation._replace(kind='architecture', note=mutation.note or name)


@MUTATION_REGISTRY.register('parameters')
def parameters(member: MutableMember, generator: np.random.Generator) -> Mutation | None:
    """Resets dormant units, then adds noise to some weights of the actor; see `zoo.tools.population.noise`."""
    cfg = member.config
    if why_not_noise(cfg):
        return None
    policy = policy_of(member.checkpoint, cfg)
    if why_not_rewritten(policy) or not weight_matrices(policy):
        return None
    seed = int(generator.integers(SEED_RANGE))
    return Mutation('parameters', change=partial(noisy, checkpoint=member.checkpoint, parent=cfg, seed=seed))


@MUTATION_REGISTRY.register('activation')
def activation(member: MutableMember, generator: np.random.Generator) -> Mutation | None:
    """Changes policy.model.activation to another one, drawn uniformly; the weights stay."""
    if _why_no_activation(member.config):
        return None
    now = value_at(member.config, ACTIVATION)
    others = [name for name in get_args(Activation) if name != now]
    override = f'{ACTIVATION}={others[generator.integers(len(others))]}'
    return Mutation('activation', (override,), note=OTHER_POLICY)


def _why_no_activation(cfg: JobConfig) -> str:
    if value_at(cfg, ACTIVATION) is None:
        return f'the model of policy {cfg.policy.type!r} has no key {ACTIVATION}; leave the mutation activation out'
    return ''


def _accepted(member: MutableMember, kind: str, draw: Callable[[], list[str]]) -> Mutation:
    """Draws overrides until the config accepts them; after MAX_TRIES refusals the values of the parent stay."""
    refusal = ''
    for _ in range(MAX_TRIES):
        overrides = draw()
        try:
            member.resolve(overrides)
        except ConfigError as error:
            refusal = str(error)
        else:
            return Mutation(kind, tuple(overrides))
    return Mutation(kind, refused=refusal)


def drawn(space: Space, generator: np.random.Generator) -> str:
    """Returns a value of a space, as in an override: uniform, for 'log' in its logarithm."""
    match space.kind:
        case 'choice':
            return space.choices[generator.integers(len(space.choices))]
        case 'int':
            return str(generator.integers(int(space.low), int(space.high) + 1))
        case 'log':
            value = math.exp(generator.uniform(math.log(space.low), math.log(space.high)))
            return space.text(min(max(value, space.low), space.high))
    return space.text(generator.uniform(space.low, space.high))


def moved(member: MutableMember, key: str, generator: np.random.Generator, integer_factors: tuple[float, float]) -> str:
    """Returns a value of a key near that of the member, as in an override, within the space of the key.

    Numbers are multiplied by one of FACTORS, integers by one of `integer_factors`; of ordered choices it is the next or the
    one before, of others another one. A value that no factor would move, 0 or null, is replaced by one from the space.
    """
    space = member.spaces[key]
    if space.kind == 'choice':
        return _other_choice(member, key, space, generator)
    value = _number_at(member, key)
    if value is None:
        return drawn(space, generator)
    if space.kind == 'int':
        return str(multiplied_integer(value, integer_factors[generator.integers(2)], space))
    factor = FACTORS[generator.integers(2)]
    is_near_1 = key.rpartition('.')[2] in NEAR_1 and space.high <= 1
    if is_near_1:
        product = 1 - (1 - value) * factor
    else:
        product = value * factor
    product = float(f'{product:.{DIGITS}g}')
    if product == value:
        return drawn(space, generator)
    return repr(float(min(max(product, space.low), space.high)))


def multiplied_integer(value: float, factor: float, space: Space) -> int:
    """Returns value * factor, rounded and at least 1 away from the value, within the space."""
    product = math.floor(value * factor + 0.5)
    if factor > 1:
        product = max(product, int(value) + 1)
    else:
        product = min(product, int(value) - 1)
    return int(min(max(product, space.low), space.high))


def _number_at(member: MutableMember, key: str) -> float | None:
    """The number at a key of a member's config, of a schedule its value at the checkpoint; None if there is none."""
    value = value_at(member.config, key)
    if value is None or isinstance(value, str):
        return None
    return schedule_value(value, member.checkpoint.meta['env_step'])


def _other_choice(member: MutableMember, key: str, space: Space, generator: np.random.Generator) -> str:
    choices = list(space.choices)
    numbers = [_float(text) for text in choices]
    is_ordered = None not in numbers
    if is_ordered:
        choices.sort(key=float)
    now = _index_of(member, key, choices)
    if now is None:
        return choices[generator.integers(len(choices))]
    if is_ordered:
        others = choices[max(now - 1, 0) : now] + choices[now + 1 : now + 2]
    else:
        others = [text for text in choices if text != choices[now]]
    return others[generator.integers(len(others))]


def _index_of(member: MutableMember, key: str, choices: Sequence[str]) -> int | None:
    """The index of the choice that the member's config has; None if it has none of them."""
    value = storable(value_at(member.config, key))
    for i, text in enumerate(choices):
        try:
            chosen = member.resolve([f'{key}={text}'])
        except ConfigError:
            continue
        if storable(value_at(chosen, key)) == value:
            return i
    return None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
