"""Player of an env of several agents: its policies act together in evaluations and recordings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import gymnasium

from zoo.agents.actors import (
    FUNCTION,
    PAST,
    RANDOM,
    Actor,
    check_actor,
    function_mode,
    kind_of,
    load_function,
    random_mode,
)
from zoo.agents.config import AgentsConfig
from zoo.agents.evaluator import AgentEvaluator
from zoo.agents.games import make_game
from zoo.agents.layout import Group, Layout, policy_names
from zoo.agents.stage import look_at_agents, table_section
from zoo.config.section import ConfigError, plain, validate
from zoo.config.source import parse_value, split_override
from zoo.core.errors import UserError, shown
from zoo.core.registry import TOOL_REGISTRY
from zoo.core.spaces import Space, leaf_spaces, space_words
from zoo.env import AnyVectorEnv, EnvConfig
from zoo.policy.base import Policy
from zoo.run.checkpoint import learner_file, load_checkpoint, refuse_unapproved
from zoo.run.policy_file import load_policy
from zoo.worker.evaluation_env import config_of
from zoo.worker.evaluator import Evaluator, Player


class AgentsPlayer(Player):
    """The policies of several agents.

    Args: policies: those that have a network, by name; agents: whose agents they are, what these see, and the policies that
      only act; may_be_idle: whether policies that have no agent are left out.
    """

    def __init__(self, policies: Mapping[str, Policy], agents: AgentsConfig, may_be_idle: bool = False) -> None:
        names = [name for name in policy_names(agents) if kind_of(agents.policies.get(name)) is None]
        if set(names) != set(policies):
            raise UserError(
                f'the policies {", ".join(policies)} were given but the section agents has {", ".join(names)}; give all of '
                'them, e.g. those of load_policies'
            )
        super().__init__(next(iter(policies.values())))
        self._policies = dict(policies)
        self._agents = agents
        self._may_be_idle = may_be_idle

    def seated(self, env: object) -> tuple[object, Player]:
        if isinstance(env, AnyVectorEnv | gymnasium.vector.VectorEnv):
            raise UserError(
                'env is a vector env but several policies are given; give an env of several agents, or its id'
            )
        section = config_of(env, self.policy)
        agents = self._agents
        if self._may_be_idle:
            agents = _without_idle(agents, section)
        layout = look_at_agents(section, agents)
        policies = {name: policy for name, policy in self._policies.items() if name in layout.policies}
        if not policies:
            raise UserError(
                f'agents.mapping gives no agent to {", ".join(self._policies)}; map one to a policy of the run'
            )
        return table_section(section, layout), _Seated(policies, agents, layout, section.action_mode)


class _Seated(AgentsPlayer):
    """The policies in one env. Args: layout: its rows; action_mode: of its section."""

    def __init__(self, policies: Mapping[str, Policy], agents: AgentsConfig, layout: Layout, action_mode: str) -> None:
        super().__init__(policies, agents)
        self._layout = layout
        self._action_mode = action_mode

    def refuse_other_spaces(self, env: AnyVectorEnv) -> None:
        for name, policy in self._policies.items():
            group = self._layout.group(name)
            agents = ', '.join(self._layout.agents[slot] for slot in group.slots)
            for what, wanted, got in (
                ('observations', policy.obs_space, group.obs_space),
                ('actions', policy.action_space, group.action_space),
            ):
                if _shapes(wanted) != _shapes(got):
                    raise UserError(
                        f'policy {name!r} takes {what} {space_words(wanted)} but those of {agents} in {self._layout.name} are '
                        f'{space_words(got)}; evaluate it on the env that it was trained on, or one with the same agents and '
                        'spaces, and give other opponents all agents of a policy or none (its observations may say which of '
                        'its agents it is)'
                    )

    def evaluator(
        self, env: AnyVectorEnv, n_episode: int, limit: int | None, deterministic: bool, quiet: bool
    ) -> Evaluator:
        actors = actors_of(self._agents, self._layout, self._action_mode)
        modes = {name: policy.eval_mode for name, policy in self._policies.items()}
        modes |= {name: actor.mode for name, actor in actors.items()}
        return AgentEvaluator(
            self._layout,
            env,
            {name: modes[name] for name in self._layout.policies},
            n_episode,
            limit,
            drawing=[name for name, actor in actors.items() if actor.draws],
            deterministic=deterministic,
            quiet=quiet,
        )


def actors_of(agents: AgentsConfig, layout: Layout, action_mode: str) -> dict[str, Actor]:
    """The policies of a section agents that only act, by name. Raises: ConfigError; CheckpointError of a saved run."""
    actors = {}
    for name in policy_names(agents):
        differs = agents.policies.get(name)
        if kind_of(differs) not in (None, PAST):  # snapshots of self-play act by their league
            check_actor(name, differs)
            actors[name] = _actor(name, differs, layout.group(name), action_mode)
    return actors


def _actor(name: str, differs: Any, group: Group, action_mode: str) -> Actor:
    kind = kind_of(differs)
    if kind == RANDOM:
        return Actor(random_mode(group.action_space, action_mode), draws=True)
    if kind == FUNCTION:
        return Actor(function_mode(load_function(name, differs['act']), f'agents.policies.{name}.act'), draws=False)
    policy = load_policy(saved_file(differs['path'], differs.get('policy')))
    if (policy.obs_space, policy.action_space) != (group.obs_space, group.action_space):
        raise UserError(
            f'agents.policies.{name}: the policy of {differs["path"]} takes {space_words(policy.obs_space)} and gives '
            f'{space_words(policy.action_space)} but its agents have {space_words(group.obs_space)} and '
            f'{space_words(group.action_space)}; use a run with the same agents.id, agents.state and agents.pad'
        )
    return Actor(policy.eval_mode, draws=not differs.get('deterministic', False))


def saved_file(path: str, policy: str | None) -> Path:
    """The checkpoint of a policy of a run. Args: path: a run folder or a checkpoint; policy: of one with several.

    Raises: UserError if the path does not exist.
    """
    if not os.path.exists(path):
        raise UserError(f'agents.policies names the run {shown(str(path))}, which does not exist; name a run folder')
    file = load_checkpoint(path).path
    if policy is None:
        return file
    return learner_file(file, policy)


def _without_idle(agents: AgentsConfig, env: EnvConfig) -> AgentsConfig:
    """The section agents without the policies that act for no agent of an env, where patterns map them."""
    if not isinstance(agents.mapping, Mapping):
        return agents
    with closing(make_game(env)) as game:
        names = game.agents
    patterns = agents.mapping.items()
    used = {next((policy for pattern, policy in patterns if fnmatchcase(agent, pattern)), None) for agent in names}
    policies = {name: differs for name, differs in agents.policies.items() if name in used}
    mapping = {pattern: policy for pattern, policy in patterns if policy in policies}
    return agents.model_copy(update={'policies': policies, 'mapping': mapping})


OF_EVALUATION = ('policies', 'mapping', 'score')
"""Keys of the section agents that an evaluation may change: the others change what policies see."""


class PatternMapping:
    """A mapping function by patterns of agents' names, of which the first that fits counts."""

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = patterns

    def __call__(self, agent: str, episode: int, copy: int) -> str:
        return next(policy for pattern, policy in self._patterns.items() if fnmatchcase(agent, pattern))


def agents_with(agents: AgentsConfig, overrides: Sequence[str]) -> AgentsConfig:
    """The section agents of a run with other opponents.

    An agent may be given to the policy 'random' without naming it in agents.policies. A policy that acts for all agents keeps
    its observations where others take some of its agents.
    Args: overrides: 'agents.mapping.AGENT=POLICY' and 'agents.policies.NAME=...' texts.
    Raises: ConfigError for other keys.
    """
    data = plain(agents)
    policies: dict[str, Any] = data['policies'] or {policy_names(agents)[0]: {}}
    is_single = len(policies) == 1
    patterns: dict[str, str] = {}
    for text in overrides:
        path, raw = split_override(text)
        key, _, name = path.removeprefix('agents.').partition('.')
        value = parse_value(raw)
        if key not in OF_EVALUATION:
            raise ConfigError(
                f'{path} is what the policies were trained with; of the section agents an evaluation changes '
                f'{", ".join(f"agents.{each}" for each in OF_EVALUATION)}.'
            )
        if key == 'score':
            data['score'] = value
        elif key == 'mapping' and not name and isinstance(value, str):
            data['mapping'] = value
        else:
            changed = {'policies': policies, 'mapping': patterns}[key]
            changed |= {name: value} if name else value
    if patterns:
        before = agents.mapping or {'*': policy_names(agents)[0]}
        if not isinstance(before, Mapping):
            raise ConfigError(
                'agents.mapping of the run is a function, so that no pattern changes it; give agents.mapping=module:function.'
            )
        if RANDOM in patterns.values():
            policies.setdefault(RANDOM, RANDOM)
        patterns |= {pattern: policy for pattern, policy in before.items() if pattern not in patterns}
        data['mapping'] = patterns
        if is_single:
            data['mapping'] = PatternMapping(patterns)
    return validate(AgentsConfig, data | {'policies': policies}, 'agents')


def _shapes(space: Space) -> list[tuple[str, str]]:
    """The leaves of a space, without bounds."""
    return [
        (path, f'{type(leaf).__name__} {getattr(leaf, "n", None) or getattr(leaf, "nvec", None) or leaf.shape}')
        for path, leaf in leaf_spaces(space)
    ]


@TOOL_REGISTRY.register('agents_player')
def player_of_policies(policies: Mapping[str, Policy], overrides: Sequence[str] = ()) -> AgentsPlayer:
    """The player of policies, by name; that of a run with a single policy may have the name ''.

    The section agents is that of the run of the first one, which its checkpoint has; of a policy that no run has made, the
    defaults. Args: overrides: see `agents_with`.
    """
    first = next(iter(policies.values()))
    config = first.run.config or {}
    refuse_unapproved(config.get('agents', {}))
    agents = validate(AgentsConfig, config.get('agents', {}), 'agents')
    if list(policies) == ['']:
        policies = {name: first for name in policy_names(agents) if kind_of(agents.policies.get(name)) is None}
    if overrides:
        agents = agents_with(agents, overrides)
    return AgentsPlayer(policies, agents, may_be_idle=bool(overrides))
