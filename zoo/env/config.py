"""The config section `env`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from zoo.config.schedule import schedule_problem
from zoo.config.section import ConfigError, Section, own_copy, section_problems
from zoo.config.user_code import absolute_name, names_code, with_absolute_names
from zoo.env.levels import LevelsConfig

MaskSource = Literal['auto', 'off', 'obs', 'info', 'method']
Count = Annotated[int, Field(ge=1)]
WholePaths = AfterValidator(with_absolute_names)


End = Literal['terminal', 'bootstrap']
Marks = dict[str, bool | int | float]


class EndsConfig(Section):
    """The meaning of the ends of episodes: a terminal state has the value 0, at any other end the value of the last observation
    counts. The meaning of the two flags comes first, then `bootstrap_if`, then `terminal_if`."""

    terminated: End = Field(
        'terminal', description="meaning of terminated=True; 'bootstrap' for an env that reports a limit of steps so"
    )
    truncated: End = Field(
        'bootstrap',
        description="meaning of truncated=True; 'terminal' for an env that reports failures so, and then also for a limit "
        'of steps',
    )
    both: End | None = Field(None, description='meaning of both flags in one step; null: that of terminated')
    bootstrap_if: Marks = Field(
        {},
        description="entries of the env's last info, {name: value}, any of which marks an end that is not terminal, such as "
        'a limit of steps',
    )
    terminal_if: Marks = Field(
        {},
        description="entries of the env's last info, {name: value}, any of which marks a terminal end, such as a failure",
    )


class EnvConfig(Section):
    """The env, the number of its copies, and how they run."""

    id: Annotated[str | Callable[..., Any], WholePaths] = Field(
        description="gymnasium id, registered name, 'module:function' or 'path/file.py:function', or a callable that makes "
        'one env, or (with an argument num_envs) a gymnasium.vector.VectorEnv'
    )
    game: str | None = Field(None, description='game of an env family: atari, procgen, envpool, torch')
    kwargs: Annotated[dict[str, Any], AfterValidator(own_copy)] = Field({}, description='keyword arguments of the env')
    wrappers: Annotated[list[str | dict[str, Any] | Callable[..., Any]], WholePaths] = Field(
        [],
        description="wrappers around each env, the first innermost: 'module:Class', 'path/file.py:Class', or "
        "{type: 'module:Class', its arguments}; env.max_episode_steps counts the steps inside them",
    )
    collector_env_num: Count = Field(
        8, description='training envs that step together; 8 to 64 are usual, more with batched or tensor envs'
    )
    evaluator_env_num: Count = Field(4, description='evaluation envs that step together, at most one per episode')
    collector_group_num: Count | None = Field(
        None,
        description='groups of training envs for double-buffered sampling: one group steps while the policy acts for '
        'another; null: 2 with vectorization async, or if the policy acts on a GPU and the envs run on the '
        'CPU, provided that their number is even; else 1',
    )
    ready_num: Count | None = Field(
        None,
        description='asynchronous stepping: the policy acts for this many training envs as soon as they have answered, while '
        'the others still step; each env has a process of its own; half of the envs is usual; null: all envs step together',
    )
    vectorization: Literal['auto', 'sync', 'async', 'batched'] = Field(
        'auto',
        description='sync: one env after the other; async: one process for each, for slow envs; batched: the vector '
        'version that the env registers; auto: batched if there is one, else sync',
    )
    autoreset: Literal['auto', 'same_step', 'next_step', 'disabled'] = Field(
        'auto', description='when an ended episode is reset; auto: same_step, or the mode of the batched env'
    )
    drop_obs: list[str | list[str]] = Field(
        [],
        description='entries of Dict observations that are left out, such as texts, which no policy can read: a.b, or '
        '[a, b], is the entry b of the entry a',
    )
    reward_weights: Annotated[list[float], Field(min_length=1)] | None = Field(
        None, description='weights of the numbers of a vector reward, whose weighted sum is the reward'
    )
    action_mode: Literal['clip', 'rescale'] = Field(
        'clip', description='clip Box actions to their bounds, or rescale [-1, 1] to the finite bounds'
    )
    action_mask: MaskSource = Field(
        'auto',
        description="which actions may be taken: obs: the entry 'action_mask' of Dict observations; info: that of each "
        "info; method: the env's action_masks(); auto: the entry, the method or the info of one reset; off: none",
    )
    action_bins: Annotated[int, Field(ge=2, le=65_536)] | None = Field(
        None, description='splits each number of a Box action into this many choices between its bounds (MultiDiscrete)'
    )
    window: Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        None, description='observations that the policy sees, the last ones, oldest first; null: the present one alone'
    )
    prev_action: bool = Field(False, description="adds the action before, 'prev_action', to the observations")
    prev_reward: bool = Field(False, description="adds the reward before, 'prev_reward', to the observations")
    observe_info: list[str] | dict[str, list[Count]] = Field(
        [],
        description="entries of the env's info that the policy sees with its next observation, as 'info/<entry>': names of "
        'numbers, or {name: shape} for arrays; 0 where an episode begins, or a step has none',
    )
    max_episode_steps: Count | None = Field(
        None, description="env steps per episode, at most; null: the env's own limit"
    )
    ends: EndsConfig = Field(
        EndsConfig(),
        description='meaning of the ends of episodes, for envs that report a limit of steps as terminated, or a failure as '
        'truncated',
    )
    reset_options: dict[str, Any] | str | Callable[..., Any] = Field(
        {},
        description='options of every reset of an env, as gymnasium passes them: values may follow the env steps, as {start, '
        "end, over} or {points: [[env_step, value], ...]}; or 'module:function' of the env step, which returns the dict",
    )
    reset_every: Count | None = Field(
        None,
        description='rollouts after which all training envs are reset, whether their episodes have ended or not; null: never',
    )
    schedule: dict[str, Any] = Field(
        {},
        description='attributes of the env that follow the env steps of the run, set before each rollout and evaluation: '
        '{wind: {start: 0, end: 5, over: 100000}}, or {points: [[env_step, value], ...], kind: step}, or a number',
    )
    levels: LevelsConfig | None = Field(
        None,
        description='a fixed set of levels, seeds of the env, for training; null: each episode is as random as the env',
    )
    info_columns: list[str] = Field(
        [],
        description="entries of the env's info that are stored with each transition, as column 'info/<entry>': numbers or "
        'arrays of numbers, nan where a step has none',
    )
    check: bool | Literal['strict'] = Field(
        True,
        description='check at the start of a run that the env keeps the gymnasium interface; strict: an env whose episodes '
        'no seed repeats is refused too, and no warning',
    )
    step_timeout: Annotated[float, Field(gt=0, le=1e8)] = Field(
        60.0,
        description='seconds that an env may take for one step, reset or close, and ten times as long to be made; raise it '
        'for slow envs',
    )
    on_error: Literal['raise', 'restart'] = Field(
        'raise',
        description='what to do with an env that raises in a step or reset, or whose process dies or hangs; restart: create it '
        'again, and learn nothing from the episode that broke off (vectorization sync and async)',
    )
    max_restarts: Annotated[int, Field(ge=0)] = Field(
        10,
        description='with env.on_error restart: restarts of envs in one run, counted from each resume; one more ends it',
    )

    @field_validator('collector_group_num')
    @classmethod
    def _divides(cls, n_group: int | None, info: ValidationInfo) -> int | None:
        n_env = info.data.get('collector_env_num', 0)  # missing if it is invalid
        if n_group is not None and n_env % n_group:
            raise ValueError(
                f'it must divide env.collector_env_num, which is {n_env}; use 1, or another number of envs.'
            )
        return n_group

    @field_validator('ready_num')
    @classmethod
    def _fits(cls, n_ready: int | None, info: ValidationInfo) -> int | None:
        n_env = info.data.get('collector_env_num')  # missing if it is invalid
        if n_ready is not None and n_env is not None and n_ready > n_env:
            raise ValueError(f'it must be at most env.collector_env_num, which is {n_env}; half of that is usual.')
        return n_ready

    @field_validator('wrappers', mode='before')
    @classmethod
    def _list_of_one(cls, wrappers: object) -> object:
        if isinstance(wrappers, str | dict) or callable(wrappers):
            return [wrappers]
        return wrappers

    @field_validator('drop_obs', mode='before')
    @classmethod
    def _names(cls, names: object) -> object:
        if isinstance(names, str):
            return [names]
        return names

    @field_validator('reset_options')
    @classmethod
    def _names_code(
        cls, options: dict[str, Any] | str | Callable[..., Any]
    ) -> dict[str, Any] | str | Callable[..., Any]:
        if isinstance(options, str) and not names_code(options):
            raise ValueError("it must be a dict, or name a function, as 'module:function' or 'path/file.py:function'.")
        if isinstance(options, str):
            return absolute_name(options)
        return options

    @field_validator('schedule')
    @classmethod
    def _schedules(cls, schedule: dict[str, Any]) -> dict[str, Any]:
        problems = [schedule_problem(name, value) for name, value in schedule.items()]
        sentences = [problem for problem in problems if problem]
        if sentences:
            raise ValueError(' '.join(sentences))
        return schedule


def env_config(cfg: EnvConfig | Mapping[str, Any]) -> EnvConfig:
    """`cfg` itself, or the validated EnvConfig of a mapping with the same fields. Raises: ConfigError."""
    if isinstance(cfg, EnvConfig):
        return cfg
    data = cfg
    if isinstance(cfg, Mapping):
        data = dict(cfg)
    problems = section_problems(EnvConfig, data, 'env', ())
    if problems:
        raise ConfigError(problems)
    return EnvConfig.model_validate(data)


def wrapper_fields(cfg: EnvConfig) -> list[str]:
    """The config fields that need a wrapper around each single env."""
    fields = {
        'action_mask': cfg.action_mask in ('info', 'method'),
        'window': cfg.window is not None,
        'action_bins': cfg.action_bins is not None,
        'prev_action': cfg.prev_action,
        'prev_reward': cfg.prev_reward,
        'observe_info': bool(cfg.observe_info),
        'levels': cfg.levels is not None,
        'wrappers': bool(cfg.wrappers),
        'reward_weights': cfg.reward_weights is not None,
    }
    return [f'env.{name}' for name, is_set in fields.items() if is_set]
