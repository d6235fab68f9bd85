"""The env section of the config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from zoo.config.section import Section

Count = Annotated[int, Field(ge=1)]


class EnvConfig(Section):
    """Which env to train in, how many of it, and how they run."""

    id: str | Callable[..., Any] = Field(
        description="gymnasium id, registered name, 'module:function', or a callable that makes one env"
    )
    game: str | None = Field(None, description='which game of an env family: atari, procgen, envpool, torch')
    kwargs: dict[str, Any] = Field({}, description='keyword arguments for whatever makes the env')
    collector_env_num: Count = Field(8, description='training envs that step together')
    evaluator_env_num: Count = Field(4, description='evaluation envs that step together')
    collector_group_num: Count | None = Field(
        None,
        description='groups of training envs that take turns, so that one steps while the policy acts for '
        'another; null: 2 with vectorization async, or where the policy acts on a GPU and the envs '
        'do not, if their number is even; else 1',
    )
    vectorization: Literal['auto', 'sync', 'async', 'batched'] = Field(
        'auto',
        description='one after the other, one process each, or the batched version that the env registers; '
        'auto: batched where there is one, else sync',
    )
    autoreset: Literal['auto', 'same_step', 'next_step', 'disabled'] = Field(
        'auto', description='when an ended env starts anew; auto: same_step, but batched envs have a mode of their own'
    )
    action_mode: Literal['clip', 'rescale'] = Field(
        'clip', description='clip Box actions to their bounds, or rescale [-1, 1] to the bounds that are finite'
    )
    max_episode_steps: Count | None = Field(None, description="env steps per episode; null: the env's own limit")
    check: bool = Field(True, description="check the env's contract for a few steps at the start of a run")
    step_timeout: Annotated[float, Field(gt=0)] = Field(60.0, description='seconds an async env may take for one step')

    @field_validator('collector_group_num')
    @classmethod
    def _divides(cls, n_group: int | None, info: ValidationInfo) -> int | None:
        n_env = info.data.get('collector_env_num', 0)  # missing if it is wrong itself
        if n_group is not None and n_env % n_group:
            raise ValueError(
                f'it must divide env.collector_env_num, which is {n_env}; use 1, or another number of envs.'
            )
        return n_group

    @field_validator('kwargs')
    @classmethod
    def _plain_kwargs(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        return own_copy(kwargs)


def env_config(cfg: EnvConfig | Mapping[str, Any]) -> EnvConfig:
    """`cfg` itself, or the validated EnvConfig of a mapping with the same fields."""
    return cfg if isinstance(cfg, EnvConfig) else EnvConfig.model_validate(dict(cfg))


def own_copy(value: Any) -> Any:
    """A copy of kwargs in plain dicts, lists and tuples, for one env to sort or change as it likes.

    The config is read-only, and its lists would otherwise be shared by all envs. Other values are as they were.
    """
    if isinstance(value, Mapping):
        return {key: own_copy(item) for key, item in value.items()}
    if isinstance(value, list) or type(value) is tuple:
        return (list if isinstance(value, list) else tuple)(map(own_copy, value))
    return value
