"""The config section `agents`: which policies act for which agents of an env, and what they see."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from zoo.agents.self_play import BUILT_IN, SelfPlayConfig
from zoo.config.section import Section
from zoo.config.user_code import with_absolute_names

NAME = re.compile(r'(?!rank_)[a-zA-Z][a-zA-Z0-9_-]{0,63}')
SHARED = 'shared'
"""Name of the policy of all agents where the config names none."""
Mapped = dict[str, str] | str | Callable[..., Any] | None


class AgentsConfig(Section):
    """The agents of an env of several agents, and the policies that act for them. An env of one agent needs none of it."""

    policies: dict[str, Any] = Field(
        {},
        description='policies by name: what differs from the section policy, {type: dqn, learn: {batch_size: 128}}, and '
        "`buffer`; 'random'; 'one_move_ahead'; {type: function, act: 'module:function'} of (obs, mask), which returns actions of the env; "
        '{type: saved, path: a run folder, policy: its name in a run of several}, which draws its actions, also in greedy '
        'evaluations, unless `deterministic: true` is added; {}: one policy for all agents',
    )
    mapping: Annotated[Mapped, AfterValidator(with_absolute_names)] = Field(
        None,
        description="the policy of each agent, {'adversary_*': predator, agent_0: prey}, by its name, else by the first pattern "
        "that fits, or 'module:function' of (agent, episode, copy), called when an episode begins; null: the only policy",
    )
    train: list[str] | None = Field(
        None, description='policies that learn; the others only act; null: all that have a network'
    )
    id: Literal['auto', 'on', 'off'] = Field(
        'auto',
        description='adds which agent it is to observations, one-hot: at the end of a vector, else as the entry `agent`; '
        'auto: where one policy acts for several agents',
    )
    state: Literal['off', 'env', 'concat'] = Field(
        'off',
        description='adds the entry `state` to observations, for a central critic: env: env.state(); concat: the observations '
        'of all agents, one after the other, zeros before their first turn and after their end',
    )
    pad: bool = Field(
        False,
        description='gives the agents of a policy the same spaces: vectors are filled up with 0, choices with forbidden ones',
    )
    team: Literal['none', 'sum', 'mean'] = Field(
        'none',
        description='the reward of each agent becomes the sum or mean of the rewards of all agents of its policy',
    )
    score: str | None = Field(
        None,
        description='whose return is that of an episode, and decides the best policy and stop_value: a policy (the mean over '
        "its agents), an agent, or 'team' (the sum over all agents); null: the only policy that learns, else team",
    )
    self_play: SelfPlayConfig | None = Field(
        None,
        description='a policy plays against itself, its past and fixed opponents, see zoo.agents.self_play; {} has its defaults',
    )
    count_by: Literal['env', 'agent'] = Field(
        'env',
        description='what env steps count, in the length of the run, its intervals and schedules: steps of envs, or actions of '
        'agents',
    )

    @model_validator(mode='before')
    @classmethod
    def name_built_in(cls, given: Any) -> Any:
        """Adds the policies that need no description to those of a section that maps agents to them."""
        mapping = None
        if isinstance(given, Mapping):
            mapping = given.get('mapping')
        if not isinstance(mapping, Mapping):
            return given
        named = {name: name for name in BUILT_IN if name in mapping.values()}
        policies = given.get('policies') or {SHARED: {}}
        if not named or not isinstance(policies, Mapping):
            return given
        return {**given, 'policies': {**policies, **{name: x for name, x in named.items() if name not in policies}}}

    @field_validator('policies')
    @classmethod
    def _are_policies(cls, policies: dict[str, Any]) -> dict[str, Any]:
        for name, differs in policies.items():
            if not NAME.fullmatch(name):
                raise ValueError(
                    f'the name {name!r} must begin with a letter, have letters, digits, _ and - alone, at most 64, and not begin '
                    'with rank_: it is part of the names of files.'
                )
            kind = differs
            if isinstance(differs, dict):
                kind = differs.get('type', '')
            elif differs is not None and not isinstance(differs, str):
                raise ValueError(
                    f'{name} is {differs!r}, wanted a dict of what differs from the section policy, or a name.'
                )
            if kind == 'past':
                raise ValueError(
                    f"{name} has the type 'past', which only agents.self_play has; use 'saved' with a path."
                )
        return policies
