"""Vector envs of any library with one output type, `Timestep`, that is the same for every library and autoreset mode.

Public names load on first use, so that a run imports only the family, tensor env or toy env that it uses.
"""

# ruff: noqa: F401, names for type checkers
from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.core.data import StepBlock, Timestep
    from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
    from zoo.env.config import EnvConfig
    from zoo.env.errors import (
        EnvContractError,
        EnvError,
        EnvKwargsError,
        MissingExtraError,
        UnknownEnvError,
        UnsupportedEnvError,
    )
    from zoo.env.families import atari, envpool, minigrid_memory, procgen
    from zoo.env.families.family import EnvFamily, EnvRequest, env_family
    from zoo.env.ids import known_ids
    from zoo.env.inspection.check import check_env
    from zoo.env.inspection.inspect import EnvReport, inspect_env
    from zoo.env.interface import AnyVectorEnv
    from zoo.env.make import make_env
    from zoo.env.make_vector import make_env_groups, make_vector_env
    from zoo.env.tensor import classic
    from zoo.env.tensor.base import TENSOR_ENV_REGISTRY, TensorEnv
    from zoo.env.tensor.vector import TensorVectorEnv, make_tensor_env
    from zoo.env.toy import bricks, memory, targets
    from zoo.env.vector import VectorEnv

_HOME = {
    name: f'{module}:' if module.endswith(f'.{name}') else module
    for module, names in {
        'zoo.core.data': 'StepBlock Timestep',
        'zoo.core.spaces': 'Box Dict Discrete MultiBinary MultiDiscrete',
        'zoo.env.config': 'EnvConfig',
        'zoo.env.errors': 'EnvContractError EnvError EnvKwargsError MissingExtraError UnknownEnvError UnsupportedEnvError',
        'zoo.env.families.atari': 'atari',
        'zoo.env.families.envpool': 'envpool',
        'zoo.env.families.family': 'EnvFamily EnvRequest env_family',
        'zoo.env.families.minigrid_memory': 'minigrid_memory',
        'zoo.env.families.procgen': 'procgen',
        'zoo.env.ids': 'known_ids',
        'zoo.env.inspection.check': 'check_env',
        'zoo.env.inspection.inspect': 'EnvReport inspect_env',
        'zoo.env.interface': 'AnyVectorEnv',
        'zoo.env.make': 'make_env',
        'zoo.env.make_vector': 'make_env_groups make_vector_env',
        'zoo.env.tensor.base': 'TENSOR_ENV_REGISTRY TensorEnv',
        'zoo.env.tensor.classic': 'classic',
        'zoo.env.tensor.vector': 'TensorVectorEnv make_tensor_env',
        'zoo.env.toy.bricks': 'bricks',
        'zoo.env.toy.memory': 'memory',
        'zoo.env.toy.targets': 'targets',
        'zoo.env.vector': 'VectorEnv',
    }.items()
    for name in names.split()
}
__all__ = [
    'AnyVectorEnv',
    'Box',
    'Dict',
    'Discrete',
    'EnvConfig',
    'EnvContractError',
    'EnvError',
    'EnvFamily',
    'EnvKwargsError',
    'EnvReport',
    'EnvRequest',
    'MissingExtraError',
    'MultiBinary',
    'MultiDiscrete',
    'StepBlock',
    'TENSOR_ENV_REGISTRY',
    'TensorEnv',
    'TensorVectorEnv',
    'Timestep',
    'UnknownEnvError',
    'UnsupportedEnvError',
    'VectorEnv',
    'atari',
    'bricks',
    'check_env',
    'classic',
    'env_family',
    'envpool',
    'inspect_env',
    'known_ids',
    'make_env',
    'make_env_groups',
    'make_tensor_env',
    'make_vector_env',
    'memory',
    'minigrid_memory',
    'procgen',
    'targets',
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
