"""Which library a file belongs to, by its keys; it is read, never run."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.config.foreign.cleanrl import is_script
from zoo.config.foreign.files import read_code, read_yaml
from zoo.config.foreign.rllib_code import is_chain
from zoo.config.foreign.sb3 import ROWS as SB3_KEYS
from zoo.config.section import ConfigError


def is_rllib(block: Any) -> bool:
    """Whether a mapping has settings of RLlib's PPO."""
    keys = set(block) if isinstance(block, Mapping) else set()
    return {'run', 'config'} <= keys or bool(
        keys
        & {'train_batch_size', 'num_workers', 'num_rollout_workers', 'num_env_runners', 'vf_loss_coeff', 'num_sgd_iter'}
    )


def is_sb3(block: Any) -> bool:
    """Whether a mapping has arguments of stable-baselines3's PPO, as the files of rl-zoo3 do."""
    return isinstance(block, Mapping) and len(set(block) & (set(SB3_KEYS) - {'env', 'seed', 'gamma'})) >= 2


def is_zoo(data: Any) -> bool:
    """Whether a mapping is a config of zoo: it has a section env with the key id, or a section policy."""
    if not isinstance(data, Mapping):
        return False
    env, policy = data.get('env'), data.get('policy')
    return (isinstance(env, Mapping) and 'id' in env) or (isinstance(policy, Mapping) and env is None)


def defines(tree: ast.Module, name: str) -> bool:
    """Whether code gives a value to the variable `name`, at its top level."""
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def how_to_convert(path: Path, shown: str) -> str:
    """A sentence about a file of another library that has to be translated first; '' for any other file.

    Args: shown: the path as the user wrote it.
    """
    try:
        what, name = _library(path)
    except ConfigError:
        return ''
    if not what:
        return ''
    option = f' --name {name}' if name else ''
    return (
        f'{shown} is {what}, not a config of zoo: translate it with zoo convert {shown}{option} -o config.yaml, '
        'then zoo train config.yaml.'
    )


def _library(path: Path) -> tuple[str, str]:
    """What the file is, '' if it is not known; and the name of one of its configs, '' if it holds one."""
    if path.suffix == '.py':
        tree = read_code(path)
        return 'a script of CleanRL' if is_script(tree) else 'code for RLlib' if is_chain(tree) else '', ''
    data = read_yaml(path)
    if is_zoo(data):
        return '', ''
    is_nested = bool(data) and all(isinstance(value, Mapping) for value in data.values())
    blocks = {str(name): block for name, block in data.items()} if is_nested else {'': data}
    for is_of, what in ((is_rllib, 'a file of RLlib'), (is_sb3, "a file of rl-zoo3's settings")):
        found = sorted(filter(lambda name: is_of(blocks[name]), blocks), key=lambda name: '-v' not in name)
        if found:  # an id first: the block `atari` is for many games
            return what, found[0] if len(blocks) > 1 else ''
    return '', ''
