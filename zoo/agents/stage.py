"""Inspection of the agents of an env before a run, and the section env from which its tables are made."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from zoo.agents.config import AgentsConfig
from zoo.agents.games import is_tensor_env, make_game, simulator_family
from zoo.agents.layout import Layout, layout_of, trained_policies
from zoo.agents.table import TableMaker
from zoo.config.section import ConfigError
from zoo.env import EnvConfig
from zoo.env.calls import locate
from zoo.env.config import EndsConfig, env_config
from zoo.env.errors import BrokenContractError, Place, made_at
from zoo.env.make import env_name
from zoo.env.settings import options_rule

OF_SINGLE_ENVS: dict[str, Any] = {
    'window': 1,
    'prev_action': False,
    'prev_reward': False,
    'observe_info': [],
    'action_bins': None,
    'drop_obs': [],
    'info_columns': [],
    'levels': None,
}
"""Keys of the section env that change what one agent sees or does, and their values without effect."""


def refuse_keys_of_single_envs(env: EnvConfig) -> None:
    """Raises: ConfigError for a key of the section env that changes what one agent sees or does."""
    for key, value in OF_SINGLE_ENVS.items():
        setting = env.get(key)
        if setting not in (value, None):
            raise ConfigError(
                f'env.{key} is {setting!r} but {env_name(env)} has several agents, and it changes the observations of one; leave '
                'it out.'
            )
    if env.ends.both is not None:
        raise ConfigError(
            f'env.ends.both is {env.ends.both!r} but {env_name(env)} has several agents, for which terminated wins over truncated; '
            'leave it out.'
        )
    if env.action_mask == 'method':
        raise ConfigError(
            f"env.action_mask is 'method' but {env_name(env)} has several agents, whose masks are in their observations or infos; "
            "use 'auto'."
        )


def look_at_agents(env: EnvConfig, agents: AgentsConfig) -> Layout:
    """The layout of the rows of an env, which is made, reset once and closed. Raises: ConfigError; errors of `make_env`."""
    name = env_name(env)
    with locate(made_at(name)):
        game = make_game(env)
    options = None
    if env.reset_options:
        options = options_rule(env.reset_options)(0)
    try:
        with closing(game), locate(f'env {name!r}, in a reset to look at its agents'):
            return layout_of(game, agents, name, trained_policies(agents), env.action_mask, options)
    except BrokenContractError as broken:
        raise Place(name).error(0, *broken.args) from broken


def table_section(section: EnvConfig, layout: Layout) -> EnvConfig:
    """The section env from which envs of tables are made. Raises: ConfigError for keys that change what one agent sees."""
    refuse_keys_of_single_envs(section)
    maker: Any = TableMaker(env_config(section), layout)
    if is_tensor_env(section):
        from zoo.agents.tensor_table import tensor_tables  # few runs have tensor envs of several agents

        maker = tensor_tables(env_config(section), layout)
    family = simulator_family(section)
    if family is not None:
        from zoo.agents.simulator_tables import simulator_tables  # few runs have simulators of several agents

        maker = simulator_tables(env_config(section), family, layout)
    changes: dict[str, Any] = {
        'id': maker,
        'game': None,
        'kwargs': {},
        'max_episode_steps': None,
        'wrappers': [],
        'reward_weights': None,
        'ends': EndsConfig(),
        'action_mask': 'off',
    }
    return section.model_copy(update=changes)
