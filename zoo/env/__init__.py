"""Envs of any library as a vector with one form, `Timestep`; nothing above knows gymnasium or autoreset modes."""
from zoo.env.check import check_env as check_env
from zoo.env.config import EnvConfig as EnvConfig
from zoo.env.errors import EnvContractError as EnvContractError
from zoo.env.errors import EnvError as EnvError
from zoo.env.errors import EnvKwargsError as EnvKwargsError
from zoo.env.errors import MissingExtraError as MissingExtraError
from zoo.env.errors import UnknownEnvError as UnknownEnvError
from zoo.env.errors import UnsupportedEnvError as UnsupportedEnvError
from zoo.env.make import known_ids as known_ids
from zoo.env.make import make_env as make_env
from zoo.env.timestep import Timestep as Timestep
from zoo.env.vector import VectorEnv as VectorEnv
from zoo.env.vector import make_vector_env as make_vector_env
