"""Player of an env of several agents: its policies act together in evaluations and recordings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import gymnasium

from zoo.agents.actors import (
    FUNCTION,
    PAST,
    Actor,
    check_actor,
    function_mode,
    kind_of,
    load_function,
    random_mode,
)
from zoo.agents.board_player import ahead_mode
from zoo.agents.config import AgentsConfig
from zoo.agents.evaluator import AgentEvaluator, modes_of
from zoo.agents.games import make_game
from zoo.agents.layout import Group, Layout, check_patterns, pattern_of, patterns_of, policy_names
from zoo.agents.self_play import AHEAD, BUILT_IN, RANDOM
from zoo.agents.stage import look_at_agents, table_section
from zoo.config.section import ConfigError, plain, validate
from zoo.config.source import parse_value, split_override
from zoo.core.errors import UserError, shown
from zoo.core.registry import TOOL_REGISTRY
from zoo.core.spaces import Space, leaf_spaces, space_words
from zoo.env import AnyVectorEnv
from zoo.policy.base import Policy
from zoo.run.checkpoint import Trust, approved_modules, load_checkpoint, refuse_unapproved
from zoo.run.policy_file import approve_opponents, checkpoint_of_policy, load_policy
from zoo.worker.evaluation_env import config_of
from zoo.worker.evaluator import Evaluator, Player


class AgentsPlayer(Player):
    """The policies of several agents.

    Args: policies: those that have a network, by name; agents: whose agents they are, what these see, and the policies that
      only act; others: changes of the run's own opponents, for which its policies that have no agent then are left out.
    """

    def __init__(self, policies: Mapping[str, Policy], agents: AgentsConfig, others: Opponents | None = None) -> None:
        names = [name for name in policy_names(agents) if kind_of(agents.policies.get(name)) is None]
        if set(names) != set(policies):
            raise UserError(
                f'the policies {", ".join(policies)} were given but the section agents has {", ".join(names)}; give all of '
                'them, e.g. those of load_policies'
            )
        super().__init__(next(iter(policies.values())))
        self._policies = dict(policies)
        self._agents = agents
        self._others = others

    def seated(self, env: object) -> tuple[object, Player]:
        if isinstance(env, AnyVectorEnv | gymnasium.vector.VectorEnv):
            raise UserError(
                'env is a vector env but several policies are given; give an env of several agents, or its id'
            )
        section = config_of(env, self.policy)
        agents = self._agents
        if self._others is not None:
            with closing(make_game(section)) as game:
                agents = self._others.in_env(game.agents)
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
        own_modes = {name: policy.eval_mode for name, policy in self._policies.items()}
        modes, drawing = modes_of(self._layout, own_modes, actors)
        return AgentEvaluator(
            self._layout,
            env,
            modes,
            n_episode,
            limit,
            drawing=drawing,
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
    if kind == AHEAD:
        return Actor(ahead_mode(group.obs_space), draws=True)
    if kind == FUNCTION:
        function = load_function(name, differs['act'])
        mode = function_mode(function, f'agents.policies.{name}.act', group.action_space, action_mode)
        return Actor(mode, draws=False)
    policy = saved_policy(f'agents.policies.{name}', differs['path'], differs.get('policy'))
    if (policy.obs_space, policy.action_space) != (group.obs_space, group.action_space):
        raise UserError(
            f'agents.policies.{name}: the policy of {differs["path"]} takes {space_words(policy.obs_space)} and gives '
            f'{space_words(policy.action_space)} but its agents have {space_words(group.obs_space)} and '
            f'{space_words(group.action_space)}; use a run with the same agents.id, agents.state and agents.pad'
        )
    return Actor(policy.eval_mode, draws=not differs.get('deterministic', False))


def saved_policy(key: str, path: str, policy: str | None) -> Policy:
    """A policy of a run. Args: key: that names the run; path: a run folder or a checkpoint; policy: of one with several.

    Raises: UserError if the path does not exist, or has no such policy.
    """
    if not os.path.exists(path):
        raise UserError(f'{key} names the run {shown(str(path))}, which does not exist; name a run folder')
    checkpoint = load_checkpoint(path)
    if policy is not None:
        try:
            checkpoint_of_policy(checkpoint, policy)
        except UserError as error:
            raise UserError(f'{key}.policy is {shown(str(policy))} but {error}') from error
    return load_policy(checkpoint, trust=approved_modules(), policy=policy)


OF_EVALUATION = {
    'policies': 'agents.policies.bot=random',
    'mapping': 'agents.mapping.player_1=bot',
    'score': 'agents.score=team',
}
"""Keys of the section agents that an evaluation may change, with examples: the others change what policies see."""


class Opponents:
    """Other opponents of the policies of a run, in an evaluation.

    Args: agents: the section of the run; overrides: 'agents.mapping.AGENT=POLICY', 'agents.policies.NAME=...' and
      'agents.score=...' texts.
    Attributes: section: that of the run with other policies, but its own mapping.
    Raises: ConfigError for other keys, and for a policy with a network, which an evaluation cannot train.
    """

    def __init__(self, agents: AgentsConfig, overrides: Sequence[str]) -> None:
        self._agents = agents
        self._given: list[str] = []  # names of policies
        self._patterns: dict[str, str] = {}
        policies: dict[str, Any] = plain(agents)['policies'] or {policy_names(agents)[0]: {}}
        changes: dict[str, Any] = {}
        for text in overrides:
            path, raw = split_override(text)
            key, _, inner = path.removeprefix('agents.').partition('.')
            value = parse_value(raw)
            if key not in OF_EVALUATION:
                raise ConfigError(
                    f'{path} is what the policies were trained with; of the section agents an evaluation changes '
                    f'{", ".join(f"agents.{each}" for each in OF_EVALUATION)}.'
                )
            if key == 'score' or (key == 'mapping' and not inner and isinstance(value, str)):
                changes[key] = value
                continue
            given = value
            if inner:
                given = {inner: value}
            if not isinstance(given, Mapping):
                raise ConfigError(
                    f'{path} is {shown(raw)} but must be a dict, or its keys one by one, as {OF_EVALUATION[key]}.'
                )
            if key == 'mapping':
                self._patterns |= given
                continue
            for inner_path, differs in given.items():
                name, *keys = inner_path.split('.')
                policies[name] = _described(policies.get(name), keys, differs)
                self._given.append(name)
        for name in self._given:
            _refuse_network(name, policies[name])
        for name in BUILT_IN:
            if name in self._patterns.values():
                policies.setdefault(name, name)
        trained = [name for name in agents.train or () if kind_of(policies[name]) is None]
        changes |= {'policies': policies, 'train': trained or None}
        self.section = validate(AgentsConfig, plain(agents) | changes, 'agents')

    def in_env(self, names: Sequence[str]) -> AgentsConfig:
        """The section agents for an env, without the policies that act for none of its agents. Args: names: of the agents.

        A policy that acts for all agents keeps its observations where others take some of its agents.
        Raises: ConfigError for a pattern that fits no agent, or an opponent that acts for none.
        """
        agents = self.section
        if agents.mapping is not None and not isinstance(agents.mapping, Mapping):
            if self._patterns:
                raise ConfigError(
                    'agents.mapping of the run is a function, so that no pattern changes it; give agents.mapping=module:function.'
                )
            return agents
        check_patterns(self._patterns, policy_names(agents), names)
        before = patterns_of(self._agents, names)
        of_agent: dict[str, str] = {}
        for name in names:
            for patterns in (self._patterns, before):  # those of the evaluation come first
                pattern = pattern_of(name, patterns)
                if pattern is not None:
                    of_agent.setdefault(name, patterns[pattern])
        used = set(of_agent.values())
        for name in self._given:
            if name not in used:
                raise ConfigError(
                    f'agents.policies.{name} is given but agents.mapping gives it no agent; add e.g. agents.mapping.{names[-1]}={name}.'
                )
        networks = [name for name in policy_names(agents) if kind_of(agents.policies.get(name)) is None]
        if not used & set(networks):
            raise ConfigError(
                f'agents.mapping gives no agent to {", ".join(networks)}; map one to a policy of the run.'
            )
        if len(policy_names(self._agents)) == 1:
            return agents.model_copy(update={'mapping': FixedMapping(of_agent)})
        changes: dict[str, Any] = {
            'policies': {name: differs for name, differs in agents.policies.items() if name in used},
            'mapping': of_agent,
        }
        if agents.train is not None:
            changes['train'] = [name for name in agents.train if name in used] or None
        if agents.score in agents.policies and agents.score not in used and agents.score not in names:
            changes['score'] = None
        return agents.model_copy(update=changes)


class FixedMapping:
    """A mapping function that gives each agent one policy. A policy of all agents keeps its observations with it."""

    def __init__(self, of_agent: Mapping[str, str]) -> None:
        self._of_agent = of_agent

    def __call__(self, agent: str, episode: int, copy: int) -> str:
        return self._of_agent[agent]


def _refuse_network(name: str, differs: Any) -> None:
    """Raises: ConfigError for a policy that does not only act."""
    if kind_of(differs) is None:
        raise ConfigError(
            f'agents.policies.{name} is {shown(str(differs))} but an evaluation trains no policy; give one that only acts: random, '
            '{type: function, act: "module:function"} or {type: saved, path: a run folder}.'
        )


def _described(before: Any, keys: Sequence[str], value: Any) -> Any:
    """The description of a policy with a value at the path of the keys; without keys the value."""
    if not keys:
        return value
    if isinstance(before, str):
        before = {'type': before}
    inner = dict(before or {})
    inner[keys[0]] = _described(inner.get(keys[0]), keys[1:], value)
    return inner


def _shapes(space: Space) -> list[tuple[str, str]]:
    """The leaves of a space, without bounds."""
    return [
        (path, f'{type(leaf).__name__} {getattr(leaf, "n", None) or getattr(leaf, "nvec", None) or leaf.shape}')
        for path, leaf in leaf_spaces(space)
    ]


@TOOL_REGISTRY.register('agents_player')
def player_of_policies(
    policies: Mapping[str, Policy], overrides: Sequence[str] = (), trust: Trust = ()
) -> AgentsPlayer:
    """The player of policies, by name; that of a run with a single policy may have the name ''.

    The section agents is that of the run of the first one, which its checkpoint has; of a policy that no run has made, the
    defaults. Args: overrides: see `Opponents`; trust: consent to the code of saved runs that these name.
    """
    first = next(iter(policies.values()))
    config = first.run.config or {}
    refuse_unapproved(config.get('agents', {}))
    agents = validate(AgentsConfig, config.get('agents', {}), 'agents')
    if list(policies) == ['']:
        policies = {name: first for name in policy_names(agents) if kind_of(agents.policies.get(name)) is None}
    if not overrides:
        return AgentsPlayer(policies, agents)
    others = Opponents(agents, overrides)
    agents = others.section
    approve_opponents(plain(agents), trust)
    staying = {name: policy for name, policy in policies.items() if kind_of(agents.policies.get(name)) is None}
    if not staying:
        raise ConfigError(f'agents.policies replaces {", ".join(policies)}; leave a policy of the run to evaluate.')
    return AgentsPlayer(staying, agents, others)
