"""Layout: which rows the agents of an env have, what each row shows, and which policy acts for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from zoo.agents.actors import kind_of, refuse_no_code
from zoo.agents.config import SHARED, AgentsConfig
from zoo.agents.game import AgentGame, Turn
from zoo.agents.self_play import BUILT_IN
from zoo.config.section import ConfigError
from zoo.config.user_code import load_code
from zoo.core.errors import closest, did_you_mean, listed, place_of, show_error
from zoo.core.spaces import (
    ACTION_MASK,
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    leaf_spaces,
    mask_size,
    space_words,
)
from zoo.env.adapter import convert_space
from zoo.env.errors import UnsupportedEnvError
from zoo.env.masks import masked_space

AGENT = 'agent'
"""Entry of observations that says which agent it is, one-hot."""
STATE = 'state'
"""Entry of observations with the state of the whole env, for a central critic."""
OBS = 'obs'
"""Entry of an observation that is no Dict, where another entry is added to it."""
ROWS = 'rows'
"""Entry of a table with the columns of each agent, [A, N_COLUMN]."""
ACTS, BEGINS, REWARD, TERMINATED, TRUNCATED, EPISODE = range(6)
"""Columns of ROWS.

ACTS: whether the agent acts on what its row shows.
BEGINS: whether its episode begins with that.
REWARD: what the last step gave it.
TERMINATED, TRUNCATED: whether it ended with the last step.
EPISODE: number of the episode of its copy, from 0, where a function maps agents to policies; else 0.
"""
N_COLUMN = 6
ALL = 'of all'
"""Entry of a table with the rows of all agents, where a function maps agents to policies."""
MASKS = {'obs': 'its mask in its observations', 'info': 'its mask in its infos', 'none': 'no masks'}


class Group(NamedTuple):
    """Agents that have the same spaces and the same policy, whose rows stand together in a table.

    entry: their rows' entry of the table; policies that a function maps agents to share one, and each has rows for all agents.
    slots: the agents, as indices in the order of all; obs_space, action_space: of one agent, as its policy sees them;
    raw_spaces, raw_actions: of each agent as the env has them, before padding; has_id: whether rows say which agent it is;
    mask_of: where masks come from: 'obs', an entry; 'turn', a part of each turn; 'pad', only of padded choices; '' none;
    has_state: whether the entry `state` is that of a table.
    """

    policy: str
    entry: str
    slots: tuple[int, ...]
    obs_space: Space
    action_space: Space
    raw_spaces: tuple[Space, ...]
    raw_actions: tuple[Space, ...]
    has_id: bool
    mask_of: str
    has_state: bool = False

    @property
    def own_space(self) -> Space:
        """The space of observations without the state, which a table has once for all agents."""
        if not self.has_state or not isinstance(self.obs_space, Dict):
            return self.obs_space
        return Dict({name: part for name, part in self.obs_space.spaces.items() if name != STATE})


@dataclass(frozen=True)
class Layout:
    """The rows of an env of several agents.

    Attributes: name: of the env; agents: all that there may be; groups: one for each policy, in the order of the config;
      state: 'off', 'env' or 'concat'; state_space: of the entry `state`, None if it is off; team: as in the section agents;
      score: agents whose mean return is that of an episode, as indices; score_sums: whether it is their sum; mapping: function
      of (agent, episode, copy), the policy of the agent in that episode; None: each group has its own agents; scored: the policy
      whose return is that of an episode in evaluations, if agents change between policies; None: as `score` says.
    """

    name: str
    agents: tuple[str, ...]
    groups: tuple[Group, ...]
    state: str
    state_space: Box | None
    team: str
    score: tuple[int, ...]
    score_sums: bool
    mapping: Callable[[str, int, int], str] | None = None
    scored: str | None = None

    @property
    def counts_episodes(self) -> bool:
        """Whether tables have the numbers of episodes: groups share an entry, since their agents change."""
        return any(group.entry == ALL for group in self.groups)

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of the policies that have agents."""
        return tuple(group.policy for group in self.groups)

    @property
    def return_of(self) -> str:
        """Whose return counts as that of an episode, in words; '' if there is one agent."""
        n = len(self.score)
        whole = len(self.agents)
        if whole == 1:
            return ''
        if self.scored is not None:
            return f'policy {self.scored}, mean over its agents'
        if self.score_sums:
            return f'team, sum over {n} agents'
        if n == whole:
            return f'mean over {n} agents'
        policies = [group.policy for group in self.groups if group.slots == self.score]
        if not policies:
            return f'agent {self.agents[self.score[0]]}'
        if n == 1:
            return f'policy {policies[0]}'
        return f'policy {policies[0]}, mean over {n} agents'

    def group(self, policy: str) -> Group:
        """The group of a policy."""
        return next(group for group in self.groups if group.policy == policy)

    def table_spaces(self) -> tuple[Dict, Dict]:
        """The spaces of the observations and actions of tables."""
        n = len(self.agents)
        bound = np.full((n, N_COLUMN), np.inf, dtype=np.float32)
        obs: dict[str, Space] = {}
        actions: dict[str, Space] = {}
        for group in self.groups:
            obs[group.entry] = batched(group.own_space, len(group.slots))
            actions[group.entry] = batched(group.action_space, len(group.slots))
        if self.state_space is not None:
            obs[STATE] = self.state_space
        obs[ROWS] = Box(-bound, bound)
        return Dict(obs), Dict(actions)

    def owners(self, episode: int, copy: int) -> list[int]:
        """The policy of each agent in an episode, as an index of `groups`.

        Raises: ConfigError if the function raises, or gives no policy.
        """
        assert self.mapping is not None, 'a function maps the agents'
        names = self.policies
        owners = []
        for agent in self.agents:
            try:
                name = self.mapping(agent, episode, copy)
            except Exception as error:
                raise ConfigError(
                    f'agents.mapping, a function of (agent, episode, copy), raised {show_error(error)} for ({agent!r}, {episode}, '
                    f'{copy}) ({place_of(error)}); correct it.'
                ) from error
            if name not in names:
                raise ConfigError(
                    f'agents.mapping returned {name!r} for ({agent!r}, {episode}, {copy}) but must return a policy: '
                    f'{listed(names)}.'
                )
            owners.append(names.index(name))
        return owners


def entries_of_actors(space: Space) -> list[str]:
    """The entries of observations that a policy acts by, where the others are for its critic alone: all but the state."""
    assert isinstance(space, Dict), 'it has the entry state'
    return [entry for entry in space.spaces if entry not in (STATE, ACTION_MASK)]


def batched(space: Space, n: int) -> Space:
    """The space of n values of a space at once, [n, ...]; a Tuple becomes a Dict with the names '0', '1', ..."""
    match space:
        case Dict():
            return Dict({name: batched(part, n) for name, part in space.spaces.items()})
        case Discrete():
            return MultiDiscrete((space.n,) * n, (space.start,) * n, (n,), space.dtype)
        case MultiDiscrete():
            return MultiDiscrete(space.nvec * n, space.start * n, (n, *space.shape), space.dtype)
        case MultiBinary():
            return MultiBinary((n, *space.shape), space.dtype)
    shape = (n, *space.shape)
    return Box(np.broadcast_to(space.low, shape).copy(), np.broadcast_to(space.high, shape).copy(), space.dtype)


def policy_names(cfg: AgentsConfig) -> tuple[str, ...]:
    """The names of the policies of a section agents."""
    return tuple(cfg.policies) or (SHARED,)


def trained_policies(cfg: AgentsConfig) -> tuple[str, ...]:
    """The names of the policies that learn. Raises: ConfigError for one that cannot, or does not exist."""
    names = policy_names(cfg)
    able = [name for name in names if kind_of(cfg.policies.get(name)) is None]
    if cfg.train is None:
        return tuple(able)
    for name in cfg.train:
        if name not in names:
            close = closest(name, names)
            hint = f'did you mean {close[0]!r}?' if close else f'policies are {", ".join(names)}.'
            raise ConfigError(f'agents.train has {name!r}, which is no policy of agents.policies; {hint}')
        if name not in able:
            raise ConfigError(f'agents.train has {name!r} but that policy has nothing to learn; leave it out.')
    if not cfg.train:
        raise ConfigError('agents.train is [] but a run trains one policy or more; name one, or leave it out.')
    return tuple(name for name in names if name in cfg.train)


def policy_of_agents(cfg: AgentsConfig, agents: Sequence[str]) -> dict[str, str]:
    """The policy of each agent, by patterns. Raises: ConfigError for an agent without one, or a policy without an agent."""
    names = policy_names(cfg)
    patterns = patterns_of(cfg, agents)
    check_patterns(patterns, names, agents)
    deciding = {}
    for agent in agents:
        pattern = pattern_of(agent, patterns)
        if pattern is None:
            raise ConfigError(
                f"agents.mapping has no pattern that fits agent {agent!r}; add it, or '*' for all that are left."
            )
        deciding[agent] = pattern
    _refuse_idle(cfg, patterns, deciding)
    return {agent: patterns[pattern] for agent, pattern in deciding.items()}


def patterns_of(cfg: AgentsConfig, agents: Sequence[str]) -> dict[str, str]:
    """The patterns of a mapping, with those that the section does not have to say.

    Agents that no pattern fits belong to the only policy that has a network; policies named as agents belong to these.
    Raises: ConfigError if the section has several policies and no patterns.
    """
    names = policy_names(cfg)
    networks = [name for name in names if kind_of(cfg.policies.get(name)) is None]
    rest = {}
    if len(networks) == 1:
        rest = {'*': networks[0]}
    if isinstance(cfg.mapping, Mapping):
        if all(pattern_of(agent, cfg.mapping) for agent in agents):
            return dict(cfg.mapping)
        return {**cfg.mapping, **rest}
    if cfg.mapping is not None:
        raise ConfigError('agents.mapping is a function but must be patterns of names: {pattern: policy}.')
    if len(names) == 1:
        return {'*': names[0]}
    if set(names) == set(agents):
        return {agent: agent for agent in agents}
    raise ConfigError(
        f'agents.policies has {listed(names)} but agents.mapping does not say whose they are; map the agents '
        f'{listed(agents)} by patterns, as in agents.mapping={{"{agents[0]}": {names[0]}, "*": {names[-1]}}}.'
    )


def _refuse_idle(cfg: AgentsConfig, patterns: Mapping[str, str], deciding: Mapping[str, str]) -> None:
    """Raises: ConfigError for a pattern that has no agent left, or a policy without an agent. Args: deciding: of each agent."""
    used = {patterns[pattern] for pattern in deciding.values()}
    for pattern, policy in patterns.items():
        if pattern not in deciding.values() and (pattern != '*' or policy not in used):
            first = next(other for agent, other in deciding.items() if fnmatchcase(agent, pattern))
            raise ConfigError(
                f'agents.mapping has {pattern!r}, but patterns before it, such as {first!r}, take all agents that it fits; put it '
                'before them, or leave it out.'
            )
    for name in policy_names(cfg):
        if name not in used:
            hint = ''
            if kind_of(cfg.policies.get(name)) is None:
                hint = f' (to let it play at random, give agents.policies.{name}=random alone)'
            raise ConfigError(
                f'agents.mapping gives no agent to the policy {name!r}; map one of {listed(list(deciding))} to it, or leave it out '
                f'of agents.policies{hint}.'
            )


def pattern_of(agent: str, patterns: Collection[str]) -> str | None:
    """The pattern of a mapping that says whose an agent is: its own name, else the first that fits; None if none does."""
    if agent in patterns:
        return agent
    return next((pattern for pattern in patterns if fnmatchcase(agent, pattern)), None)


def check_patterns(patterns: Mapping[str, str], policies: Sequence[str], agents: Sequence[str]) -> None:
    """Raises: ConfigError for a pattern that fits no agent, or a policy that there is not."""
    for pattern, policy in patterns.items():
        if policy not in policies:
            known = list(dict.fromkeys([*policies, *BUILT_IN]))
            raise ConfigError(
                f'agents.mapping gives {pattern!r} the policy {policy!r}, which agents.policies lacks; '
                f'{did_you_mean(str(policy), known, end=" ")}the policies are {listed(known)}: name one of them, or describe '
                f'{policy!r} there.'
            )
        if not any(pattern_of(agent, [pattern]) for agent in agents):
            raise ConfigError(
                f'agents.mapping has {pattern!r}, which fits none of the agents {listed(agents)}; '
                f'{did_you_mean(pattern, agents, "correct the pattern.")}'
            )


def layout_of(
    game: AgentGame,
    cfg: AgentsConfig,
    name: str,
    trained: Sequence[str],
    action_mask: str = 'auto',
    options: dict[str, Any] | None = None,
) -> Layout:
    """The layout of the rows of a game.

    Args: game: it is reset once, to see masks and the state; name: of the env; trained: names of the policies that learn;
      action_mask: env.action_mask; options: of that reset.
    Raises: ConfigError; UnsupportedEnvError for spaces that zoo or one policy of several agents cannot have.
    """
    turn = game.reset(seed=0, options=options)
    agents = game.agents
    state_space = None
    if cfg.state != 'off':
        state_space = _state_space(game, turn, cfg.state, name)
    order = policy_names(cfg)
    mapping = mapping_of(cfg)
    if mapping is None:
        of_agent = policy_of_agents(cfg, agents)
        slots_of = {policy: tuple(i for i, agent in enumerate(agents) if of_agent[agent] == policy) for policy in order}
    else:
        slots_of = dict.fromkeys(order, tuple(range(len(agents))))
    seen = _Seen(game, turn, cfg, name, action_mask)
    groups = []
    for policy, slots in slots_of.items():
        group = _group(seen, policy, slots, state_space)
        if mapping is not None:
            group = group._replace(entry=ALL)
        groups.append(group)
    score, sums = _score(cfg, agents, groups, trained)
    scored = None
    if mapping is not None:
        scored = _scored(cfg, order, trained)
    layout = Layout(
        name=name,
        agents=agents,
        groups=tuple(groups),
        state=cfg.state,
        state_space=state_space,
        team=cfg.team,
        score=score,
        score_sums=sums,
        mapping=mapping,
        scored=scored,
    )
    if mapping is not None:
        layout.owners(0, 0)  # so that a function with an error is refused before the run
    return layout


def by_function(layout: Layout, cfg: AgentsConfig, trained: Sequence[str]) -> Layout:
    """The layout of a single policy for a section agents whose policies have its spaces, and a function that maps agents."""
    (group,) = layout.groups
    groups = [group._replace(policy=name, entry=ALL) for name in policy_names(cfg)]
    score, sums = _score(cfg, layout.agents, groups, trained)
    return replace(
        layout,
        groups=tuple(groups),
        score=score,
        score_sums=sums,
        mapping=mapping_of(cfg),
        scored=_scored(cfg, policy_names(cfg), trained),
    )


def mapping_of(cfg: AgentsConfig) -> Callable[[str, int, int], str] | None:
    """The function that maps agents to policies; None: patterns do. Raises: ConfigError if there is no such function."""
    mapping = cfg.mapping
    if isinstance(mapping, str):
        refuse_no_code(mapping, 'agents.mapping')
        mapping = load_code(mapping, 'agents.mapping')
        if not callable(mapping):
            raise ConfigError(f'agents.mapping is {cfg.mapping!r} but that is no function of (agent, episode, copy).')
    if callable(mapping):
        return mapping
    return None


class _Seen(NamedTuple):
    """A game after its first reset. turn: what that gave; name: of the env; action_mask: env.action_mask."""

    game: AgentGame
    turn: Turn
    cfg: AgentsConfig
    name: str
    action_mask: str


def _group(seen: _Seen, policy: str, slots: tuple[int, ...], state_space: Box | None) -> Group:
    """The group of a policy. Args: slots: its agents. Raises: UnsupportedEnvError for spaces that it cannot have."""
    name = seen.name
    game = seen.game
    agents = [game.agents[i] for i in slots]
    raw_spaces = tuple(
        convert_space(game.obs_space(agent), 'observation', f'{name}, agent {agent}') for agent in agents
    )
    raw_actions = tuple(convert_space(game.action_space(agent), 'action', f'{name}, agent {agent}') for agent in agents)
    obs_space = raw_spaces[0]
    action_space = raw_actions[0]
    is_padded = seen.cfg.pad and (_differ(raw_spaces) or _differ(raw_actions))
    if is_padded:
        obs_space = _padded_obs(raw_spaces, agents, name)
        action_space = _padded_actions(raw_actions, agents, name)
    else:
        _refuse_other_spaces(name, policy, agents, raw_spaces, raw_actions)
    pads_choices = is_padded and len(set(map(mask_size, raw_actions))) > 1
    mask_of, obs_space = _with_mask(seen, agents, obs_space, action_space, pads_choices)
    has_id = seen.cfg.id == 'on' or (seen.cfg.id == 'auto' and len(slots) > 1)
    if has_id:
        obs_space = _with_id(obs_space, len(slots), is_entry=state_space is not None)
    if state_space is not None:
        obs_space = _with_entry(obs_space, STATE, state_space)
    return Group(
        policy=policy,
        entry=f'of_{policy}',
        slots=slots,
        obs_space=obs_space,
        action_space=action_space,
        raw_spaces=raw_spaces,
        raw_actions=raw_actions,
        has_id=has_id,
        mask_of=mask_of,
        has_state=state_space is not None,
    )


def _differ(spaces: Sequence[Space]) -> bool:
    """Whether spaces differ in kind or shape."""
    return len(set(map(space_words, spaces))) > 1


def _refuse_other_spaces(
    name: str, policy: str, agents: Sequence[str], obs_spaces: Sequence[Space], action_spaces: Sequence[Space]
) -> None:
    """Raises: UnsupportedEnvError if the agents of a policy differ in their spaces."""
    for what, spaces in (('observations', obs_spaces), ('actions', action_spaces)):
        for agent, space in zip(agents, spaces, strict=True):
            if space != spaces[0]:
                pad = 'agents.pad=true, or '
                if why_not_padded(obs_spaces, action_spaces, agents, name):
                    pad = ''
                raise UnsupportedEnvError(
                    f'env {name!r}: policy {policy!r} acts for {agents[0]} with {what} {space_words(spaces[0])} and for '
                    f'{agent} with {space_words(space)}; use {pad}a policy for each kind of agent (agents.policies and '
                    'agents.mapping).'
                )


def _with_mask(
    seen: _Seen, agents: Sequence[str], obs_space: Space, action_space: Space, pads_choices: bool
) -> tuple[str, Space]:
    """The source of the masks of agents, see `Group`, and the space of observations with a mask.

    Raises: UnsupportedEnvError if env.action_mask names another source.
    """
    wanted = seen.action_mask
    source = ''
    if isinstance(obs_space, Dict) and ACTION_MASK in obs_space.spaces and wanted != 'off':
        source = 'obs'
        obs_space = masked_space(obs_space, action_space, wanted, seen.name)
    elif _has_masks(seen.turn, agents) and wanted != 'off':
        source = 'turn'
    elif pads_choices:
        source = 'pad'
    name_of_source = {'obs': 'obs', 'turn': 'info'}.get(source, 'none')
    if wanted in ('obs', 'info') and name_of_source != wanted:
        raise UnsupportedEnvError(
            f'env {seen.name!r}: env.action_mask is {wanted!r} but agent {agents[0]} has {MASKS[name_of_source]}; '
            "use 'auto' or 'off'."
        )
    if source in ('turn', 'pad'):
        obs_space = _with_entry(obs_space, ACTION_MASK, MultiBinary((mask_size(action_space),)))
    return source, obs_space


def _has_masks(turn: Turn, agents: Sequence[str]) -> bool:
    """Whether agents have masks of their turns; those that have no turn yet, as others do."""
    if any(agent in turn.acts for agent in agents):
        return any(agent in turn.masks for agent in agents)
    return bool(turn.masks)


def _with_entry(space: Space, name: str, part: Space) -> Dict:
    """The space with another entry. Raises: UnsupportedEnvError if the env has an entry of that name itself."""
    if isinstance(space, Dict):
        if name in space.spaces:
            raise UnsupportedEnvError(
                f'the observations have an entry {name!r} of their own, and agents.id or agents.state adds one of that name; use '
                'agents.id=off and agents.state=off, or rename it.'
            )
        return Dict({**space.spaces, name: part})
    return Dict({OBS: space, name: part})


def is_vector(space: Space) -> bool:
    """Whether observations are vectors of real numbers, at whose end an id has its place."""
    return isinstance(space, Box) and len(space.shape) == 1 and np.dtype(space.dtype).kind == 'f'


def _with_id(space: Space, n: int, is_entry: bool) -> Space:
    """The space of observations with a one-hot of n agents: at the end of a vector, unless it is to be an entry."""
    if is_vector(space) and not is_entry:
        assert isinstance(space, Box)
        low = np.concatenate((space.low, np.zeros(n, space.low.dtype)))
        high = np.concatenate((space.high, np.ones(n, space.high.dtype)))
        return Box(low, high, space.dtype)
    return _with_entry(space, AGENT, Box(np.zeros(n, np.float32), np.ones(n, np.float32)))


def why_not_padded(observations: Sequence[Space], actions: Sequence[Space], agents: Sequence[str], name: str) -> str:
    """The sentence that says why agents.pad gives agents no common spaces; '' if it does. Args: by agent; name: of the env."""
    try:
        _padded_obs(observations, agents, name)
        _padded_actions(actions, agents, name)
    except UnsupportedEnvError as error:
        return str(error)
    return ''


def _padded_obs(spaces: Sequence[Space], agents: Sequence[str], name: str) -> Space:
    """The smallest vector that holds the observations of all agents; of equal spaces, that space."""
    if len(set(map(space_words, spaces))) == 1:
        return spaces[0]
    for agent, space in zip(agents, spaces, strict=True):
        if not is_vector(space):
            raise UnsupportedEnvError(
                f'env {name!r}: agents.pad is true but agent {agent!r} has observations {space_words(space)}, and only vectors '
                'of real numbers can be filled up; give it a policy of its own.'
            )
    boxes = [space for space in spaces if isinstance(space, Box)]
    n = max(len(box.low) for box in boxes)
    low = np.min([np.pad(box.low, (0, n - len(box.low))) for box in boxes], 0)
    high = np.max([np.pad(box.high, (0, n - len(box.high))) for box in boxes], 0)
    return Box(low, high, boxes[0].dtype)


def _padded_actions(spaces: Sequence[Space], agents: Sequence[str], name: str) -> Space:
    """The Discrete space of as many choices as any agent has."""
    if len(set(map(space_words, spaces))) == 1:
        return spaces[0]
    for agent, space in zip(agents, spaces, strict=True):
        if not isinstance(space, Discrete):
            raise UnsupportedEnvError(
                f'env {name!r}: agents.pad is true but agent {agent!r} has actions {space_words(space)}, and only Discrete '
                'choices can be filled up; give it a policy of its own.'
            )
        if space.start:
            raise UnsupportedEnvError(
                f'env {name!r}: agents.pad is true but the actions of agent {agent!r} begin with {space.start}, and only choices '
                'that begin with 0 can be filled up; give it a policy of its own.'
            )
    return Discrete(max(space.n for space in spaces if isinstance(space, Discrete)))


def _state_space(game: AgentGame, turn: Turn, kind: str, name: str) -> Box:
    """The space of the entry `state`. Raises: ConfigError if the env has no state of a fixed shape."""
    if kind == 'concat':
        n = 0
        for agent in game.agents:
            for path, leaf in leaf_spaces(convert_space(game.obs_space(agent), 'observation', name)):
                if not isinstance(leaf, Box | MultiBinary):
                    raise ConfigError(
                        f'agents.state is concat but agent {agent!r} observes {space_words(leaf)}, which is no array of '
                        'numbers; use agents.state=env, or off.'
                    )
                if path != ACTION_MASK:
                    n += int(np.prod(leaf.shape))
        return _unbounded((n,), np.dtype(np.float32))
    try:
        state = np.asarray(game.state())
        if state.dtype.kind not in 'fiub' or not state.size:
            raise TypeError(f'its state is {state.dtype} of shape {state.shape}')
    except Exception as error:
        raise ConfigError(
            f'agents.state is env but {name} has no state() that gives an array of numbers ({type(error).__name__}: {error}); '
            'use agents.state=concat, or off.'
        ) from error
    return _unbounded(state.shape, state.dtype)


def _unbounded(shape: tuple[int, ...], dtype: np.dtype) -> Box:
    if dtype == np.uint8:
        return Box(np.zeros(shape), np.full(shape, 255.0), 'uint8')
    return Box(np.full(shape, -np.inf, np.float32), np.full(shape, np.inf, np.float32))


def _scored(cfg: AgentsConfig, policies: Sequence[str], trained: Sequence[str]) -> str | None:
    """The policy whose return is that of an episode, where a function maps agents; None: as `_score` says."""
    if cfg.score in policies:
        return cfg.score
    if cfg.score is None and len(trained) == 1:
        return trained[0]
    return None


def _score(
    cfg: AgentsConfig, agents: Sequence[str], groups: Sequence[Group], trained: Sequence[str]
) -> tuple[tuple[int, ...], bool]:
    """The agents of whose returns the return of an episode is the mean, or the sum. Raises: ConfigError."""
    slots_of = {group.policy: group.slots for group in groups if group.entry != ALL}
    score = cfg.score
    if score is None and len(trained) == 1 and trained[0] in slots_of:
        score = trained[0]
    changes = any(group.policy == score for group in groups if group.entry == ALL)
    if score is None or score == 'team' or changes:
        return tuple(range(len(agents))), True
    if score in slots_of:
        return slots_of[score], False
    if score in agents:
        return (list(agents).index(score),), False
    raise ConfigError(
        f"agents.score is {score!r} but must be a policy ({listed([group.policy for group in groups])}), an agent ({listed(agents)}) or 'team'."
    )
