"""The whole config of a run: defaults <- user <- command line, checked in full before anything is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import Field, create_model, field_validator
from pydantic.fields import FieldInfo

from zoo.buffer import BufferConfig
from zoo.config.messages import describe
from zoo.config.section import (
    Config,
    ConfigError,
    Section,
    bad_keys,
    fields_of,
    is_section,
    join,
    plain,
    validate,
    value_at,
)
from zoo.config.source import load_config, parse_value, split_override
from zoo.core.registry import BUFFER_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY, Registry, UnknownNameError
from zoo.env import EnvConfig
from zoo.policy.base import PolicyConfig
from zoo.run.checkpoint import CheckpointConfig
from zoo.run.config_check import N_SAMPLE, N_STEP, cross_check, fill_rollout, fill_schedules
from zoo.run.logger import LoggerConfig


class JobConfig(Section):
    """The config of a run. `policy`, `policy.model` and `buffer` take the fields of what their `type` names."""

    exp_name: str = Field('run', description='name of the folder that holds the runs of this experiment')
    seed: int = Field(0, ge=0, description='every random stream of the run comes from it')
    max_env_step: int = Field(100_000, ge=1, description='env steps of the run; it stops at the last whole rollout')
    env: EnvConfig
    policy: PolicyConfig
    buffer: BufferConfig
    checkpoint: CheckpointConfig
    logger: LoggerConfig

    @field_validator('exp_name')
    @classmethod
    def _is_folder_name(cls, name: str) -> str:
        fits = 0 < len(name) <= 100 and len(name.encode()) <= 200  # file systems count bytes, most up to 255
        if not fits or not name.strip() or name.startswith('.') or set('/\\:') & set(name) or not name.isprintable():
            raise ValueError(
                'it must name a folder, not a path: 1 to 100 characters without / \\ : and no dot in '
                'front; use e.g. cartpole_ppo, and logger.root for where it lies.'
            )
        return name


class ConfigRow(NamedTuple):
    """One key of a resolved config: its value, what is accepted, and where the value came from."""

    key: str
    value: Any
    wanted: str
    description: str
    origin: str


class _Resolved(NamedTuple):
    config: dict[str, Any]
    schema: type[Section]
    origins: dict[str, str]  # dotted path -> who gave its value; the rest are defaults


def resolve_config(source: Any, overrides: Sequence[str] = (), **top_level: Any) -> Config:
    """The whole config of a run, checked, every value filled in. Pure and idempotent; makes no env and no network.

    Args:
      source: what `load_config` takes.
      overrides: 'a.b.c=value' strings, typed by the schema; they win over the source.
      top_level: seed, max_env_step, exp_name; they win over both; None: not given.
    Raises: ConfigError with a sentence for every problem.
    """
    return Config(_resolve(source, overrides, top_level).config)


def explain_config(source: Any, overrides: Sequence[str] = ()) -> list[ConfigRow]:
    """Every key of the resolved config in order, with what it accepts, its meaning, and where its value came from."""
    config, schema, origins = _resolve(source, overrides, {})
    return [
        ConfigRow(
            path,
            value_at(config, path),
            describe(field.annotation, field.metadata),
            field.description or '',
            _origin(path, origins),
        )
        for path, field in fields_of(schema)
        if not is_section(field)
    ]


def resolve_policy(policy: dict[str, Any]) -> Config:
    """The section `policy` alone, checked and filled in: for building a policy without a run."""
    data = plain(policy)
    if problems := bad_keys(data, 'policy'):
        raise ConfigError(problems)
    schema = _policy_schema(data)
    resolved = plain(validate(schema, data, 'policy', [path for path, _ in fields_of(schema, 'policy')]))
    given = value_at(data, 'collect') or {}
    if given.get('n_sample') is not None and given.get('n_step') is None:
        raise ConfigError(
            f'policy.collect.n_sample is {given["n_sample"]} but without a run the number of envs is '
            'unknown; give policy.collect.n_step, the env steps per rollout and env.'
        )
    return Config(resolved)


def _resolve(source: Any, overrides: Sequence[str], top_level: dict[str, Any]) -> _Resolved:
    data, label = load_config(source)
    if problems := bad_keys(data):
        raise ConfigError(problems)
    origins = dict.fromkeys(_leaf_paths(data), label)
    texts = [split_override(text) for text in overrides]
    for path, raw in texts:
        if path in ('policy.type', 'policy.model.type', 'buffer.type'):  # which fields there are depends on these
            _put(data, path, raw, {})
    fields = dict(fields_of(_job_schema(data)))
    given = [(path, parse_value(raw, fields.get(path)), 'command line') for path, raw in texts]
    given += [(name, plain(value), 'argument') for name, value in top_level.items() if value is not None]
    for path, value, origin in given:
        _put(data, path, value, fields)
        origins |= dict.fromkeys(_leaf_paths(value, path), origin)
    _drop_overridden_size(data, origins)
    schema = _job_schema(data)  # a whole section may have been given, and with it another type
    config = plain(validate(schema, data, known=[path for path, _ in fields_of(schema)]))
    fill_schedules(config, schema)
    origins |= dict.fromkeys(fill_rollout(config, value_at(data, 'policy.collect') or {}), 'derived')
    if problems := list(cross_check(config)):
        raise ConfigError(problems)
    return _Resolved(config, schema, origins)


def _job_schema(data: dict[str, Any]) -> type[Section]:
    """JobConfig with the sections of the policy, model and buffer that the config names."""
    policy = _policy_schema(data.get('policy'))
    policy_class = POLICY_REGISTRY.get(policy.model_fields['type'].default)
    buffer = _named_section(BUFFER_REGISTRY, data.get('buffer'), policy_class.default_buffer())
    return create_model(
        'JobConfig',
        __base__=JobConfig,
        env=(EnvConfig, {}),
        policy=(policy, {}),
        buffer=(buffer, {}),
        checkpoint=(CheckpointConfig, {}),
        logger=(LoggerConfig, {}),
    )


def _policy_schema(data: Any) -> type[Section]:
    """The section of the policy that `data` names; in it, as `model`, that of the model."""
    section = _named_section(POLICY_REGISTRY, data, 'ppo')
    policy = POLICY_REGISTRY.get(section.model_fields['type'].default)
    model = _named_section(MODEL_REGISTRY, value_at(data, 'model'), policy.default_model())
    return create_model(section.__name__, __base__=section, model=(model, {}))


def _named_section(registry: Registry[Any], data: Any, default: str) -> type[Section]:
    """The section model of the registered class that `data['type']` names."""
    name = value_at(data, 'type')
    name = name if isinstance(name, str) else default  # validation reports another type
    try:
        section = getattr(registry.get(name), 'config', None)
    except UnknownNameError as error:
        raise ConfigError(str(error)) from error
    if not (isinstance(section, type) and issubclass(section, Section)):
        raise ConfigError(
            f'{registry.kind} {name!r} of {registry.where(name)} has no class attribute `config`; '
            'give it the Section class that declares its fields.'
        )
    field = Field(name, description=f'registered name of the {registry.kind}')
    return create_model(section.__name__, __base__=section, type=(str, field))


def _drop_overridden_size(data: dict[str, Any], origins: dict[str, str]) -> None:
    """An override of n_step or n_sample alone replaces the other one too, which the source may have given."""
    late = {path for path in (N_STEP, N_SAMPLE) if origins.get(path) in ('command line', 'argument')}
    for path in {N_STEP, N_SAMPLE} - late if late else ():
        data['policy']['collect'].pop(path.rsplit('.')[-1], None)
        origins.pop(path, None)


def _put(data: dict[str, Any], path: str, value: Any, fields: dict[str, FieldInfo]) -> None:
    """Set the value at a dotted path; what is given for a section goes into the one that is there, key by key."""
    if isinstance(value, dict) and path in fields and is_section(fields[path]):
        for key, item in value.items():
            _put(data, join(path, key), item, fields)
        return
    *parents, last = path.split('.')
    for key in parents:
        data[key] = data[key] if isinstance(data.get(key), dict) else {}
        data = data[key]
    data[last] = value


def _leaf_paths(data: Any, path: str = '') -> Iterator[str]:
    """Dotted paths of what is no dict (or an empty one)."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from _leaf_paths(value, join(path, key))
    elif path:
        yield path


def _origin(path: str, origins: dict[str, str]) -> str:
    """Who gave the value at a path, or the last part of it, or the dict that holds it."""
    found = [
        who
        for given, who in origins.items()
        if given == path or given.startswith(f'{path}.') or path.startswith(f'{given}.')
    ]
    return next((who for who in ('argument', 'command line') if who in found), found[-1] if found else 'default')
