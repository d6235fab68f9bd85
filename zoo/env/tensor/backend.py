"""The env family 'torch': tensor envs, by the name that they are registered under."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from zoo.core.registry import ENV_REGISTRY
from zoo.env.errors import EnvContractError
from zoo.env.families.family import EnvRequest, env_family
from zoo.env.make import raise_kwargs_error
from zoo.env.tensor.base import TENSOR_ENV_REGISTRY, TensorEnv


@ENV_REGISTRY.register('torch')
@env_family(
    games=TENSOR_ENV_REGISTRY.names,
    summary='Envs written in PyTorch, which step on the device of the policy; env.game names one.',
)
def make_tensor_env(request: EnvRequest, /, **kwargs: Any) -> TensorEnv:
    """The env that is registered as `request.game`, made with env.kwargs on the device of the request."""
    source = TENSOR_ENV_REGISTRY.get(request.game)
    parameters = inspect.signature(source).parameters.values()
    takes = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    missing = [key for key, p in takes.items() if p.default is p.empty and key not in kwargs]
    unknown = [key for key in kwargs if key not in takes and not takes_any]
    raise_kwargs_error(request.name, unknown, missing, list(takes))
    with torch.device(request.device):
        env = source(**kwargs)
    if not isinstance(env, TensorEnv):
        raise EnvContractError(
            f'env {request.name!r} made a {type(env).__name__}, wanted a zoo.env.TensorEnv; derive the class from it.'
        )
    return env
