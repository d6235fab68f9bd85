"""Vector envs of any library with one output type, `Timestep`, that is the same for every library and autoreset mode.

Public names load on first use, so that a run imports only the family, tensor env or toy env that it uses.
"""

# ruff: noqa: F401, names for type checkers
from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.core.data import Timestep as Timestep
    from zoo.core.spaces import (
        Box as Box,
        Dict as Dict,
        Discrete as Discrete,
        MultiBinary as MultiBinary,
        MultiDiscrete as MultiDiscrete,
    )
    from zoo.env.config import EnvConfig as EnvConfig
    from zoo.env.errors import (
        EnvContractError as EnvContractError,
        EnvError as EnvError,
        EnvKwargsError as EnvKwargsError,
        MissingExtraError as MissingExtraError,
        UnknownEnvError as UnknownEnvError,
        UnsupportedEnvError as UnsupportedEnvError,
    )
    from zoo.env.families import atari as atari, envpool as envpool, procgen as procgen
    from zoo.env.families.family import EnvFamily as EnvFamily, EnvRequest as EnvRequest, env_family as env_family
    from zoo.env.ids import known_ids as known_ids
    from zoo.env.inspection.check import check_env as check_env
    from zoo.env.inspection.inspect import EnvReport as EnvReport, inspect_env as inspect_env
    from zoo.env.interface import AnyVectorEnv as AnyVectorEnv, StepBlock as StepBlock
    from zoo.env.make import make_env as make_env
    from zoo.env.make_vector import make_env_groups as make_env_groups, make_vector_env as make_vector_env
    from zoo.env.tensor import classic as classic
    from zoo.env.tensor.agents import AgentTensorEnv as AgentTensorEnv
    from zoo.env.tensor.program import TENSOR_ENV_REGISTRY as TENSOR_ENV_REGISTRY, TensorEnv as TensorEnv
    from zoo.env.tensor.simulator import Simulator as Simulator
    from zoo.env.tensor.vector import TensorVectorEnv as TensorVectorEnv, make_tensor_env as make_tensor_env
    from zoo.env.toy import bricks as bricks, targets as targets
    from zoo.env.vector import VectorEnv as VectorEnv

    memory = minigrid_memory = targets

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'zoo.core.data': 'Timestep',
        'zoo.core.spaces': 'Box Dict Discrete MultiBinary MultiDiscrete',
        'zoo.env.config': 'EnvConfig',
        'zoo.env.errors': 'EnvContractError EnvError EnvKwargsError MissingExtraError UnknownEnvError UnsupportedEnvError',
        'zoo.env.families.atari': 'atari=',
        'zoo.env.families.envpool': 'envpool=',
        'zoo.env.families.family': 'EnvFamily EnvRequest env_family',
        'zoo.env.families.procgen': 'procgen=',
        'zoo.env.ids': 'known_ids',
        'zoo.env.inspection.check': 'check_env',
        'zoo.env.inspection.inspect': 'EnvReport inspect_env',
        'zoo.env.interface': 'AnyVectorEnv StepBlock',
        'zoo.env.make': 'make_env',
        'zoo.env.make_vector': 'make_env_groups make_vector_env',
        'zoo.env.tensor.agents': 'AgentTensorEnv',
        'zoo.env.tensor.simulator': 'Simulator',
        'zoo.env.tensor.program': 'TENSOR_ENV_REGISTRY TensorEnv',
        'zoo.env.tensor.classic': 'classic=',
        'zoo.env.tensor.vector': 'TensorVectorEnv make_tensor_env',
        'zoo.env.toy.bricks': 'bricks=',
        'zoo.env.toy.targets': 'memory= minigrid_memory= targets=',
        'zoo.env.vector': 'VectorEnv',
    },
)
