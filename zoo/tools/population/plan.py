"""Plan of a population: its config, spaces, sizes and rules, checked before any member trains."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from zoo.config.section import ConfigError, Section, leaf_items, validate, value_at
from zoo.config.source import load_config, split_override
from zoo.config.yaml_io import storable, value_text
from zoo.core.errors import UserError
from zoo.core.registry import Component
from zoo.env.errors import SeveralAgentsError
from zoo.run.base_config import JobConfig
from zoo.run.build import make_policy
from zoo.run.checkpoint.consent import Trust
from zoo.run.config import frozen_config, resolve_config, without_derived_values
from zoo.run.folder import FREE
from zoo.tools.population.mutable_keys import space_problems, state_problems
from zoo.tools.population.mutation import DEFAULT_WEIGHTS, How, parse_weights, why_not_kind
from zoo.tools.population.selection import make_selection, why_not_selection
from zoo.tools.results.lineage import Lineage
from zoo.tools.sweep.plan import default_spaces_of, refused_values
from zoo.tools.sweep.spaces import Space, split_spaces

Keep = Literal['alive', 'all']
N_MEMBER = 8
MOST_MEMBERS = 10_000  # each has a run folder, and a row of the table
N_GENERATION = 20  # of a run of max_env_step, by default
LEAST_EPISODES = 10  # of an evaluation by which members are selected
SELECT: dict[How, str] = {'pbt': 'truncation:0.25', 'evolution': 'tournament:2'}
MAX_SHOWN = 3  # differences in a message
logger = logging.getLogger(__name__)


class PopulationPlan(NamedTuple):
    """A checked population.

    source, overrides: of all members; cfg: their config, without values of single members; every: env steps of a generation,
    a whole number of rollouts; max_env_step: of the members' configs; weights: relative probabilities of the mutations;
    keep: the lives whose checkpoints stay; words: what must be equal in a command that continues the population.
    """

    source: Any
    overrides: tuple[str, ...]
    spaces: dict[str, Space]
    cfg: JobConfig
    folder: Path
    n_member: int
    every: int
    n_generation: int
    max_env_step: int
    selection: Component
    weights: dict[str, float]
    seed: int
    keep: Keep
    trust: Trust
    words: dict[str, Any]


class PopulationSection(Section):
    """The section `population` of a config: the words of `zoo evolve`, which those of the command replace."""

    members: int = Field(N_MEMBER, ge=1, description='number of members')
    every: int | None = Field(None, ge=1, description='env steps of each member in a generation')
    generations: int | None = Field(None, ge=1, description='generations')
    how: How = Field('pbt', description='a choice of rules')
    select: str | None = Field(None, description='a rule of selection')
    mutate: str = Field('', description='relative probabilities of kinds of mutation')
    keep: Keep = Field('alive', description='lives whose checkpoints stay')
    spaces: dict[str, str] = Field({}, description='values that keys may take, as texts by key')


def without_section(source: Any) -> tuple[Any, PopulationSection]:
    """Splits a source into one that a run takes, and its section `population`, by default an empty one. Raises: ConfigError."""
    config, _ = load_config(source)
    section = config.pop('population', None)
    if section is None:
        return source, validate(PopulationSection, {}, 'population')
    return config, validate(PopulationSection, section, 'population')


def make_population_plan(
    source: Any,
    texts: Sequence[str],
    *,
    pop: int | None = None,
    every: int | None = None,
    generations: int | None = None,
    how: How | None = None,
    select: str | None = None,
    mutate: str | None = None,
    name: str | None = None,
    keep: Keep | None = None,
    trust: Trust = (),
) -> PopulationPlan:
    """Makes the plan for the arguments of `evolve`. Raises: UserError, or ConfigError with a sentence for every problem."""
    source, section = without_section(source)
    given = {split_override(text)[0] for text in texts}
    texts = [*(f'{key}={space}' for key, space in section.spaces.items() if key not in given), *texts]
    arguments = dict(
        members=pop, every=every, generations=generations, how=how, select=select, mutate=mutate, keep=keep
    )
    words = section.model_copy(update={word: value for word, value in arguments.items() if value is not None})
    _check_words(words)
    selection = make_selection(words.select or SELECT[words.how])
    why_not = why_not_selection(selection, words.members)
    if why_not:
        raise UserError(why_not)
    weights = parse_weights(words.mutate, words.how)
    spaces, fixed = split_spaces(texts)
    cfg = frozen_config(resolve_config(source, fixed))
    spaces = _checked_spaces(source, fixed, cfg, spaces)
    _check_kinds(source, fixed, cfg, spaces, weights, _kinds_in(words.mutate))
    name = name or f'{cfg.exp_name}_population'
    resolve_config(source, [*fixed, f'exp_name={name}'])  # it must name a folder
    every = _every(cfg, words.every)
    n_generation = words.generations or max(cfg.max_env_step // every, 1)
    _warn_of_few_episodes(cfg)
    return PopulationPlan(
        source=source,
        overrides=tuple(fixed),
        spaces=spaces,
        cfg=cfg,
        folder=Path(cfg.logger.root).absolute() / name,
        n_member=words.members,
        every=every,
        n_generation=n_generation,
        max_env_step=max(cfg.max_env_step, n_generation * every),
        selection=selection,
        weights=weights,
        seed=cfg.seed,
        keep=words.keep,
        trust=trust,
        words=_words(cfg, spaces, every, selection, weights),
    )


def _check_words(words: PopulationSection) -> None:
    """Raises: UserError for arguments out of range; those of the section are checked already."""
    numbers = (('pop', words.members, N_MEMBER), ('every', words.every, 10_000), ('generations', words.generations, 20))
    for word, number, example in numbers:
        if number is not None and (type(number) is not int or number < 1):
            raise UserError(f'{word} is {number!r} but must be an integer >= 1; e.g. {word}={example}')
    if words.members > MOST_MEMBERS:
        raise UserError(
            f'pop is {words.members:,}, and a population has at most {MOST_MEMBERS:,} members; e.g. pop={N_MEMBER}'
        )
    for word, text, choices in (('how', words.how, DEFAULT_WEIGHTS), ('keep', words.keep, ('alive', 'all'))):
        if text not in choices:
            raise UserError(f'{word} is {text!r} but must be one of {", ".join(choices)}')


def _check_kinds(
    source: Any,
    fixed: list[str],
    cfg: JobConfig,
    spaces: Mapping[str, Space],
    weights: Mapping[str, float],
    asked: set[str],
) -> None:
    """Raises: ConfigError for kinds of mutation that were asked for and are impossible; the log names others, which are left out."""
    kinds = [kind for kind, weight in weights.items() if weight > 0]
    policy = None
    if 'architecture' in kinds and not why_not_kind('architecture', cfg, spaces):
        with suppress(SeveralAgentsError):  # of an env of several agents it is known later
            policy = make_policy(source, fixed)  # its encoder depends on the observations
    reasons = {kind: why_not_kind(kind, cfg, spaces, policy) for kind in kinds}
    problems = [reason for kind, reason in reasons.items() if reason and kind in asked]
    if problems:
        raise ConfigError(problems)
    for kind, reason in reasons.items():
        if reason:
            logger.info('no member gets the mutation %s: %s', kind, reason)


def _kinds_in(mutate: str) -> set[str]:
    """The kinds that a text of weights names."""
    return {part.partition('=')[0].strip() for part in mutate.split(',')}


def _checked_spaces(source: Any, fixed: list[str], cfg: JobConfig, spaces: dict[str, Space]) -> dict[str, Space]:
    """The spaces of a population, by default those of the policy. Raises: ConfigError for a key or value that cannot be."""
    if not spaces:
        return default_spaces_of(source, fixed, cfg)
    problems = space_problems(cfg, spaces)
    if not problems:
        problems = refused_values(source, fixed, spaces) or state_problems(source, fixed, spaces)
    problems += [
        f'{key}={space} has a number of points, which only a grid takes; leave it out'
        for key, space in spaces.items()
        if space.n_point
    ]
    if problems:
        raise ConfigError(problems)
    return spaces


def _every(cfg: JobConfig, every: int | None) -> int:
    """The env steps of a generation: a whole number of rollouts. Raises: UserError if it is longer than a run."""
    rollout = cfg.policy.collect.n_step * cfg.env.collector_env_num
    wanted = every or max(cfg.max_env_step // N_GENERATION, 1)
    if wanted > cfg.max_env_step:
        raise UserError(
            f'--every is {wanted} but max_env_step is {cfg.max_env_step}: no generation would end; use --every '
            f'{max(cfg.max_env_step // N_GENERATION, 1)}, or a larger max_env_step'
        )
    whole = math.ceil(wanted / rollout) * rollout
    if every is not None and whole != every:
        logger.info(
            'a generation takes %d env steps, not %d: a whole number of rollouts, each of %d', whole, every, rollout
        )
    return whole


def _warn_of_few_episodes(cfg: JobConfig) -> None:
    n_episode = cfg.policy.eval.n_episode
    if n_episode < LEAST_EPISODES:
        logger.warning(
            'members are compared by the mean return of %d episode%s, which selects by luck; set policy.eval.n_episode=%d',
            n_episode,
            's' if n_episode > 1 else '',
            LEAST_EPISODES,
        )


def _words(
    cfg: JobConfig, spaces: Mapping[str, Space], every: int, selection: Component, weights: Mapping[str, float]
) -> dict[str, Any]:
    config = storable(without_derived_values(cfg.to_dict()))
    for key in ('exp_name', 'seed', 'max_env_step', *FREE):
        section, _, last = key.rpartition('.')
        holder = value_at(config, section) if section else config
        if isinstance(holder, dict):
            holder.pop(last, None)
    return {
        'config': config,
        'spaces': {key: str(space) for key, space in spaces.items()},
        'every': every,
        'select': {'type': selection.name, **dict(selection.options)},
        'mutate': {kind: weight for kind, weight in weights.items() if weight > 0},
    }


def refuse_other_words(plan: PopulationPlan, lineage: Lineage) -> None:
    """Raises: UserError if the folder has a population of other words; names the differences."""
    beginning = lineage.beginning
    if beginning is None:
        return
    was = dict(leaf_items({'pop': beginning.n_member, 'seed': beginning.seed, **beginning.words}))
    now = dict(leaf_items({'pop': plan.n_member, 'seed': plan.seed, **plan.words}))
    keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
    pairs = [
        f'{key.removeprefix("config.")}={_text(was, key)}, and this one {_text(now, key)}' for key in keys[:MAX_SHOWN]
    ]
    if pairs:
        more = ''
        if len(keys) > MAX_SHOWN:
            more = f' and {len(keys) - MAX_SHOWN} more differences'
        raise UserError(
            f'the folder {plan.folder} holds another population: it has {"; it has ".join(pairs)}{more}; to continue that one '
            'use its words, or choose another --name'
        )


def _text(leaves: Mapping[str, Any], key: str) -> str:
    if key in leaves:
        return value_text(leaves[key])
    return 'nothing'
