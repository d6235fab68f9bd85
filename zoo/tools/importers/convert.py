"""`convert`: the config of another library, in a file or an object, as a config of zoo."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.config.section import ConfigError, plain
from zoo.core.registry import unknown_name
from zoo.tools.importers.cleanrl import from_cleanrl, is_script
from zoo.tools.importers.conversion import Conversion
from zoo.tools.importers.di_engine import from_pair, is_main_config
from zoo.tools.importers.files import read_code, read_yaml
from zoo.tools.importers.recognise import defines, is_rllib, is_sb3, is_zoo
from zoo.tools.importers.rllib import from_rllib, is_chain, settings_of
from zoo.tools.importers.sb3 import from_sb3

OTHERS = frozenset('a2c ars cem cmaes crossq ddpg dqn her iqn ppo_lstm qrdqn reinforce sac td3 teleop tqc trpo'.split())
"""Names of rl-zoo3's files for other algorithms than PPO, whose keys are partly the same."""
SOURCES = ('di-engine', 'sb3', 'cleanrl', 'rllib')


def convert(path_or_object: Any, source: str | None = None, name: str | None = None) -> Conversion:
    """The config of zoo for a config of DI-engine, stable-baselines3 (rl-zoo3), CleanRL or RLlib.

    Args:
      path_or_object: a .py or .yaml file, of which only those of DI-engine are run; a dict of settings; DI-engine's
        (main_config, create_config); a PPOConfig of RLlib.
      source: one of SOURCES; None: it is recognised by its keys, as `Conversion.source` says.
      name: the block of a YAML file, such as 'CartPole-v1'; for a dict of SB3's settings the env.
    Raises: ConfigError with a sentence for every key that has no counterpart, or if the library is not recognised.
    """
    if source is not None and source not in SOURCES:
        raise ConfigError(unknown_name('library', source, SOURCES, listed='known'))
    is_file = isinstance(path_or_object, (str, os.PathLike))
    if is_file:
        conversion, how = _of_file(Path(path_or_object), source, name)
    else:
        conversion, how = _of_object(path_or_object, source, name)
    told = '' if source else f' (recognised by {how})'
    return conversion._replace(config=plain(conversion.config), source=conversion.source + told)


def _of_file(path: Path, source: str | None, name: str | None) -> tuple[Conversion, str]:
    if path.is_dir():
        raise ConfigError(f'{str(path)!r} is a folder; name a file in it.')
    if not path.is_file():
        raise ConfigError(f'there is no file {str(path)!r}; check the path.')
    if path.suffix in ('.yaml', '.yml'):
        return _of_yaml(path, source, name)
    if path.suffix != '.py':
        raise ConfigError(f'{path} is neither a .py nor a .yaml file; give one.')
    tree = read_code(path)
    if source == 'sb3':
        raise ConfigError(
            f'{path} is code; of stable-baselines3 give a YAML file of rl-zoo3, or a dict of the arguments.'
        )
    if source == 'cleanrl' or (source is None and is_script(tree)):
        return from_cleanrl(tree, path.stem), 'num_minibatches and clip_coef among its arguments'
    if source == 'rllib' or (source is None and is_chain(tree)):
        return from_rllib(settings_of(tree)), 'its PPOConfig'
    if source == 'di-engine' or defines(tree, 'main_config'):
        return _of_di_engine(path), 'its variable main_config'
    raise ConfigError(
        f'{path} is not recognised: it has no main_config (DI-engine), no PPOConfig (RLlib) and no arguments of a script of '
        'CleanRL; say what it is with --from, one of ' + ', '.join(SOURCES) + '.'
    )


def _of_yaml(path: Path, source: str | None, name: str | None) -> tuple[Conversion, str]:
    data = read_yaml(path)
    if source is None and is_zoo(data):
        raise ConfigError(f'{path} is already a config of zoo; train it with zoo train {path}.')
    is_nested = all(isinstance(value, Mapping) for value in data.values())
    blocks = {str(key): value for key, value in data.items()} if is_nested else {name or path.stem: data}
    if is_nested and name is None and len(blocks) > 1:
        names = ', '.join(list(blocks)[:12]) + (', ...' if len(blocks) > 12 else '')
        raise ConfigError(f'{path} holds {len(blocks)} configs: {names}; choose one with --name.')
    if name is not None and name not in blocks:
        raise ConfigError(unknown_name('config', name, blocks, listed=f'in {path}'))
    label = name or next(iter(blocks))
    block = blocks[label]
    if source == 'rllib' or (source is None and is_rllib(block)):
        return from_rllib(block), 'its keys run and config, or train_batch_size'
    if source == 'sb3' or (source is None and is_sb3(block)):
        if path.stem in OTHERS:
            raise ConfigError(
                f"{path} is named as rl-zoo3's settings of {path.stem}; only those of PPO are translated."
            )
        env = label if is_nested else block.get('env')
        return from_sb3(block, env if is_nested else name or env), 'keys such as n_steps and n_timesteps'
    if source in ('di-engine', 'cleanrl'):
        raise ConfigError(f'{path} is YAML; the configs of {source} are .py files: give one.')
    raise ConfigError(
        f'{path} is not recognised as settings of rl-zoo3 or RLlib; say what it is with --from, one of {", ".join(SOURCES)}.'
    )


def _of_object(data: Any, source: str | None, name: str | None) -> tuple[Conversion, str]:
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return from_pair(*data), 'its two dicts'
    if hasattr(data, 'to_dict') and not isinstance(data, Mapping):
        return from_rllib(data), 'its to_dict'
    if not isinstance(data, Mapping):
        raise ConfigError(
            f'a config is a dict, a path or a pair of dicts, got {type(data).__name__}; pass one of those.'
        )
    if source == 'di-engine' or (source is None and is_main_config(data)):
        return from_pair(data), 'its keys'
    if source == 'rllib' or (source is None and is_rllib(data)):
        return from_rllib(data), 'keys such as train_batch_size'
    if source == 'sb3' or (source is None and is_sb3(data)):
        return from_sb3(data, name), 'keys such as n_steps'
    raise ConfigError(f'the dict is not recognised; pass source, one of {", ".join(SOURCES)}.')


def _of_di_engine(path: Path) -> Conversion:
    from zoo.config.source import config_module
    from zoo.tools.importers.recognise import pair_of

    pair = pair_of(vars(config_module(path.resolve())))
    if pair is None:
        raise ConfigError(f'{path} has no dicts main_config and create_config; define both.')
    return from_pair(*pair)
