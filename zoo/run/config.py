"""The config of a run: defaults, then the user's values, then the command line, checked first; a stored one as it was given."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from zoo.agents.config import AgentsConfig
from zoo.cluster.config import ClusterConfig
from zoo.config.schedule import is_signed_schedule
from zoo.config.section import (
    Config,
    ConfigError,
    OldKey,
    Section,
    bad_keys,
    fields_of,
    frozen,
    is_class,
    is_section,
    leaf_items,
    made_by,
    old_keys_of,
    plain,
    validate,
    value_at,
)
from zoo.config.source import load_config, parse_value, split_override
from zoo.config.yaml_io import storable
from zoo.core.errors import join_path, shown
from zoo.core.registry import BUFFER_REGISTRY, COMPONENTS, MODEL_REGISTRY, POLICY_REGISTRY, Registry, UnknownNameError
from zoo.env import EnvConfig
from zoo.env.levels import EPISODE, IS_NEW, LEVEL
from zoo.env.make import source_problems, take_env_instances
from zoo.policy.config import PolicyConfig, migrate_old_keys
from zoo.run.base_config import CheckpointConfig, JobConfig, LoggerConfig
from zoo.run.checkpoint import check_config_size, leaf_values
from zoo.run.observers.callbacks import callback_problems
from zoo.run.resources import memory_problem
from zoo.worker.evaluation_env import evaluation_problems, fill_evaluation

N_STEP = 'policy.collect.n_step'
N_SAMPLE = 'policy.collect.n_sample'
_DEFAULT = re.compile(r'leave it out for .*, the default(?=\.$)')


class ConfigRow(NamedTuple):
    """One key of a resolved config: its value, the accepted values, its meaning, and the origin of the value."""

    key: str
    value: Any
    wanted: str
    description: str
    origin: str


def resolve_config(source: Any, overrides: Sequence[str] = (), **top_level: Any) -> Config:
    """The complete config of a run, checked, with all defaults. Pure and idempotent; builds no env and no network.

    Args:
      source: what `load_config` takes.
      overrides: 'a.b.c=value' strings, typed by the schema; they win over the source.
      top_level: seed, max_env_step, exp_name; they win over both; None is ignored.
    Raises: ConfigError with a sentence for every problem.
    """
    return Config(_resolve(source, overrides, top_level)[0])


def frozen_config(config: JobConfig | Mapping[str, Any]) -> JobConfig:
    """A resolved config as the typed, read-only section that a run reads. A section is returned unmodified."""
    if isinstance(config, JobConfig):
        return config
    return frozen(job_schema(plain(config)), config)


def explain_config(source: Any, overrides: Sequence[str] = ()) -> list[ConfigRow]:
    """All keys of the resolved config in order, as `ConfigRow`s."""
    from zoo.config.problems import describe

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


def resolve_policy(policy: dict[str, Any]) -> PolicyConfig:
    """The section `policy` alone, checked, with all defaults, read-only: to build a policy without a run.

    For example `POLICY_REGISTRY.get('ppo')(resolve_policy({'type': 'ppo'}), obs_space, action_space)`.
    Raises: ConfigError with a sentence for every problem.
    """
    data = plain(policy)
    problems = bad_keys(data, 'policy')
    if problems:
        raise ConfigError(problems)
    schema = _policy_schema(data)
    validate(schema, data, 'policy', [path for path, _ in fields_of(schema, 'policy')])
    given = value_at(data, 'collect') or {}
    if given.get('n_sample') is not None and given.get('n_step') is None:
        raise ConfigError(
            f'policy.collect.n_sample is {given["n_sample"]} but without a run the number of envs is '
            'unknown; give policy.collect.n_step, the env steps per rollout and env.'
        )
    return frozen(schema, data)


def defaults_for(policy: dict[str, Any]) -> dict[str, Any]:
    """A config of defaults, as plain dicts, for the type and model of a section `policy`; env.id is ''."""
    named: dict[str, Any] = {'type': policy['type']}
    if policy.get('model'):
        named['model'] = {'type': policy['model']['type']}
    data = {'env': {'id': ''}, 'policy': named}
    return plain(validate(job_schema(data), data))


def without_defaults(policy: dict[str, Any]) -> dict[str, Any]:
    """A stored section `policy` without the values of learn and collect that are the defaults of its type.

    For a resume as another type: stored values would replace the defaults of that type, such as a variant's components.
    """
    defaults = plain(_policy_schema({'type': policy['type'], 'model': policy.get('model')})())
    changed = dict(policy)
    for name in ('learn', 'collect'):
        changed[name] = {key: x for key, x in policy[name].items() if x != defaults[name].get(key)}
    return changed


def _resolve(
    source: Any, overrides: Sequence[str], top_level: dict[str, Any]
) -> tuple[dict[str, Any], type[Section], dict[str, str]]:
    """The config, its schema, and the origins of its values by dotted path; other values are defaults."""
    data, label = load_config(source)
    take_env_instances(data)
    _check_storable(data)
    problems = bad_keys(data)
    if problems:
        raise ConfigError(problems)
    origins = {key: label for key, _ in leaf_items(data)}
    texts = [split_override(text) for text in overrides]
    for path, raw in texts:
        if path in ('policy.type', 'policy.model.type', 'buffer.type'):  # the fields depend on these
            _put(data, path, raw, {})
    schema = job_schema(data)
    old = old_keys_of(schema)
    today = {key: join_path(key.rpartition('.')[0], old[key].new) for key in old}
    fields = {**dict(fields_of(schema)), **{key: old[key].field for key in old}}
    before = {path: value_at(data, path) for path, _ in texts}
    replacements = [_Replacement(path, parse_value(raw, fields.get(path)), 'command line') for path, raw in texts]
    for name, value in top_level.items():
        if value is not None:
            replacements.append(_Replacement(name, plain(value), 'argument'))
    for path, value, origin in replacements:
        if path in old and origins.get(today[path]) != origin:
            _drop_todays_key(data, path, old[path])
        _put(data, path, value, fields)
        origins |= {key: origin for key, _ in leaf_items(value, path)}
    _drop_replaced_rollout(data, origins)
    schema = job_schema(data)  # an override may have replaced a section, and its type
    try:
        config = plain(validate(schema, data, known=[path for path, _ in fields_of(schema)]))
    except ConfigError as error:
        raise ConfigError([_of_source(problem, before, label) for problem in error.problems]) from None
    _check_storable(config)
    fill_schedules(config)
    fill_info_columns(config)
    origins |= dict.fromkeys(fill_rollout(config, value_at(data, 'policy.collect') or {}), 'derived')
    problems = list(cross_check(validate(schema, config)))  # with the derived values
    if problems:
        raise ConfigError(problems)
    fill_evaluation(config)
    return config, schema, {today.get(key, key): origin for key, origin in origins.items()}


class _Replacement(NamedTuple):
    """A value that replaces the one of the source of a config."""

    path: str
    value: Any
    origin: str


def _drop_todays_key(data: dict[str, Any], path: str, old: OldKey) -> None:
    """Removes the key of today at which the source has what a replacement gives by an old key."""
    parent, _, key = path.rpartition('.')
    section = value_at(data, parent) or {}
    if old.could_mean(key, section.get(old.new)):
        del section[old.new]


def _drop_replaced_rollout(data: dict[str, Any], origins: dict[str, str]) -> None:
    """Removes n_step or n_sample of the source if only the other one of the two was replaced: it follows from that."""
    replaced = {path for path in (N_STEP, N_SAMPLE) if origins.get(path) in ('command line', 'argument')}
    if not replaced:
        return
    for path in {N_STEP, N_SAMPLE} - replaced:
        data['policy']['collect'].pop(path.rsplit('.')[-1], None)
        origins.pop(path, None)


def _of_source(problem: str, before: dict[str, Any], label: str) -> str:
    """Corrects a message about an override: without the override, the value is that of the source, not the default."""
    value = before.get(problem.partition(' is ')[0])
    if value is None:
        return problem
    return _DEFAULT.sub(f'leave it out for {shown(value)}, as {label} has it', problem)


def _check_storable(config: dict[str, Any]) -> None:
    """Raises: ConfigError if checkpoints could not hold this config, or would be refused for its size."""
    try:
        check_config_size(config)
    except ValueError as error:
        raise ConfigError(f'the config {error}; its checkpoints could not be loaded') from error
    for path, value in leaf_values(config):
        if type(value) not in (bool, int, float, str, type(None)) and not callable(value):
            raise ConfigError(
                f'{path} is {shown(value)} ({type(value).__name__}), which no checkpoint can hold; write it as text, a '
                'number, a list or a dict.'
            )


def job_schema(data: dict[str, Any]) -> type[JobConfig]:
    """JobConfig with the sections of the policy, model and buffer that `data` names."""
    policy = _policy_schema(data.get('policy'))
    policy_class = POLICY_REGISTRY.get(policy.model_fields['type'].default)
    return _job_section(policy, _named_section(BUFFER_REGISTRY, data.get('buffer'), policy_class.default_buffer()))


@functools.cache
def _job_section(policy: type[Section], buffer: type[Section]) -> type[JobConfig]:
    section = create_model(
        'JobConfig',
        __base__=JobConfig,
        env=(EnvConfig, {}),
        agents=(AgentsConfig, {}),
        policy=(policy, {}),
        buffer=(buffer, {}),
        checkpoint=(CheckpointConfig, {}),
        logger=(LoggerConfig, {}),
        cluster=(ClusterConfig, {}),
    )
    return made_by(_job_section, (policy, buffer), section)


def _policy_schema(data: Any) -> type[PolicyConfig]:
    """The section of the policy that `data` names, with the section of its model as the field `model`."""
    section: type[PolicyConfig] = _named_section(POLICY_REGISTRY, data, 'ppo')
    type_name = section.model_fields['type'].default
    policy = POLICY_REGISTRY.get(type_name)
    model = value_at(data, 'model')
    missing = sorted(getattr(policy, '__abstractmethods__', ()))
    if missing:
        raise ConfigError(
            f'policy {type_name!r} of {POLICY_REGISTRY.where(type_name)} lacks {", ".join(missing)}; write what is missing.'
        )
    if policy.default_model() is None and not model:
        return section  # a policy without a network
    if policy.default_model() is None and value_at(model, 'type') is None:
        raise ConfigError(f'policy {type_name!r} has no network of its own; leave policy.model out, or give its type.')
    return _with_model(section, _named_section(MODEL_REGISTRY, model, policy.default_model()))


@functools.cache
def _with_model(policy: type[PolicyConfig], model: type[Section]) -> type[PolicyConfig]:
    return made_by(_with_model, (policy, model), create_model(policy.__name__, __base__=policy, model=(model, {})))


def _named_section(registry: Registry[Any], data: Any, default: str | None) -> Any:
    """The section class of the registered class that `data['type']` names."""
    name = value_at(data, 'type')
    if not isinstance(name, str):  # validation reports other types
        name = str(default)
    try:
        section = getattr(registry.get(name), 'config', None)
    except UnknownNameError as error:
        raise ConfigError(str(error)) from error
    if not is_class(section, Section):
        raise ConfigError(
            f'{registry.kind} {name!r} of {registry.where(name)} has no class attribute `config`; '
            'give it the Section class that declares its fields.'
        )
    return _with_type(section, name, registry.kind)


@functools.cache
def _with_type(section: type[Section], name: str, kind: str) -> type[Section]:
    """The section with `name` as the default of `type`. Cached, like the two above: pydantic takes 10 ms for each."""
    named = Field(name, description=f'registered name of the {kind}')
    return made_by(
        _with_type, (section, name, kind), create_model(section.__name__, __base__=section, type=(str, named))
    )


def _put(data: dict[str, Any], path: str, value: Any, fields: dict[str, FieldInfo]) -> None:
    """Sets the value at a dotted path; a dict given for a section is merged into it key by key.

    If a component has only a name so far, an option keeps it: {surrogate: clip} becomes {surrogate: {type: clip, ...}}.
    """
    if isinstance(value, dict) and path in fields and is_section(fields[path]):
        for key, item in value.items():
            _put(data, join_path(path, key), item, fields)
        return
    *parents, last = path.split('.')
    at = ''
    for key in parents:
        at = join_path(at, key)
        if not isinstance(data.get(key), dict):
            name = data.get(key)
            if key not in data and at in fields:
                name = fields[at].default
            if at in COMPONENTS and isinstance(name, str):
                data[key] = {'type': name}
            else:
                data[key] = {}
        data = data[key]
    data[last] = value


def _origin(path: str, origins: dict[str, str]) -> str:
    """The origin of the value at a path, of a part of it, or of the dict that holds it."""
    related = ['default']
    for key, origin in origins.items():
        if key == path or key.startswith(f'{path}.') or path.startswith(f'{key}.'):
            related.append(origin)
    for origin in ('argument', 'command line'):
        if origin in related:
            return origin
    return related[-1]


def fill_rollout(config: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """Derives n_step from n_sample or the reverse, in policies that have them; returns the paths filled.

    Args: given: the keys of policy.collect that the user gave.
    Raises: ConfigError if they contradict each other, or n_sample is not a multiple of the number of envs.
    """
    collect = value_at(config, 'policy.collect')
    n_env = config['env']['collector_env_num']
    if not isinstance(collect, dict) or not {'n_step', 'n_sample'} <= collect.keys():
        return []
    n_step = given.get('n_step')
    n_sample = given.get('n_sample')
    if n_step is None and n_sample is None:  # the defaults
        n_step = collect['n_step']
        if n_step is None:
            n_sample = collect['n_sample']
    filled = []
    if given.get('n_step') is None and n_sample is not None:
        filled.append(N_STEP)
    if given.get('n_sample') is None and n_sample is None:
        filled.append(N_SAMPLE)
    if n_step is None and n_sample is None:
        raise ConfigError(f'{N_STEP} is missing: give the env steps per rollout and env, or {N_SAMPLE}, over all envs.')
    if n_step is None and n_sample % n_env:
        raise ConfigError(
            f'{N_SAMPLE} is {n_sample} but env.collector_env_num is {n_env}: {n_sample} % {n_env} = '
            f'{n_sample % n_env}; use a multiple, e.g. {max(n_sample // n_env, 1) * n_env}.'
        )
    n_step = n_step or n_sample // n_env
    if n_sample not in (None, n_step * n_env):
        raise ConfigError(
            f'{N_SAMPLE} is {n_sample} but {N_STEP} is {n_step} and env.collector_env_num is {n_env}: '
            f'{n_step} * {n_env} = {n_step * n_env}; give one of the two, the other follows.'
        )
    collect |= {'n_step': n_step, 'n_sample': n_step * n_env}
    return filled


def fill_info_columns(config: dict[str, Any]) -> None:
    """Adds the costs that a constraint limits, and the levels that are scored, to the infos that are stored."""
    columns = config['env']['info_columns']
    limits = value_at(config, 'policy.learn.constraint.limits')
    if isinstance(limits, dict):
        columns += [name for name in limits if name not in columns]
    if value_at(config, 'env.levels.draw') == 'plr':
        columns += [name for name in (LEVEL, IS_NEW, EPISODE) if name not in columns]


def fill_schedules(config: dict[str, Any]) -> None:
    """Sets the length of linear schedules that have none to the length of the run."""
    for line in _lines(config):
        if line.get('over') is None:
            line['over'] = config['max_env_step']


def _lines(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields all linear schedules of a resolved config. Options of the user's own code are not searched."""

    def below(values: Any, path: str) -> Iterator[dict[str, Any]]:
        if not isinstance(values, dict) or path in (*COMPONENTS, 'policy.eval'):
            return
        for key, value in values.items():
            if isinstance(value, dict) and value.keys() == {'start', 'end', 'over'}:
                yield value
            else:
                yield from below(value, join_path(path, key))

    for section in ('policy', 'buffer'):
        yield from below(config.get(section), section)
    penalties = value_at(config, 'policy.learn.penalties')
    sets = value_at(config, 'policy.eval.sets')
    schedules = []
    if isinstance(penalties, list):
        schedules += [value_at(penalty, 'weight') for penalty in penalties]
    envs = [value_at(config, 'env'), value_at(config, 'policy.eval.env')]
    if isinstance(sets, dict):
        envs += sets.values()
    for values in (value_at(env, name) for env in envs for name in ('schedule', 'reset_options')):
        if isinstance(values, dict):
            schedules += values.values()
    exploration = value_at(config, 'policy.collect.exploration')  # options of its functions may be schedules
    if isinstance(exploration, dict):
        schedules += exploration.values()
    yield from (value for value in schedules if is_signed_schedule(value) and 'start' in value)


def cross_check(job: JobConfig) -> Iterator[str]:
    """Yields the problems of all sections: conflicts between keys, unknown names, a device that is missing.

    Those of callbacks and envs are found by the rooms that load them, which are above their sections.
    """
    problem = memory_problem(job)
    if problem:
        yield problem
        return  # the checks below may take long for such numbers
    yield from _section_problems(job.policy, job)
    yield from _section_problems(job.buffer, job)
    yield from callback_problems(job.callbacks)
    yield from source_problems(job.env)
    yield from evaluation_problems(job)
    for key in job:
        if key not in ('policy', 'buffer'):
            yield from _section_problems(job[key], job)


def _section_problems(value: Any, job: JobConfig) -> Iterator[str]:
    """Yields the problems of a section, then those of the sections in it; nothing for any other value."""
    if not isinstance(value, Section):
        return
    yield from type(value).problems(value, job)  # not value.problems: a user's section may have a field of that name
    for key in value:
        yield from _section_problems(value[key], job)


def with_later_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """The stored config of a run with the keys that the zoo which wrote it did not have, at their defaults.

    A key is added to a section of the schema that is there, or that is new as a whole. Old keys are translated to those of
    today. A config of a policy, model or buffer that is not registered in this process, or that lacks the sections of every
    run, is returned as a copy.
    """
    data = plain(config)
    if not {'max_env_step', 'policy', 'env'} <= data.keys():
        return data
    migrate_old_keys(data['policy'])
    names = ((POLICY_REGISTRY, 'policy'), (MODEL_REGISTRY, 'policy.model'), (BUFFER_REGISTRY, 'buffer'))
    for registry, path in names:
        name = value_at(data, f'{path}.type')
        if name is not None and not (isinstance(name, str) and name in registry):
            return data
    try:
        schema = job_schema(data)
    except ConfigError:
        return data
    _add_defaults(schema, data)
    return data


def _add_defaults(section: type[Section], data: dict[str, Any]) -> None:
    for key, field in section.model_fields.items():
        if is_section(field):
            inner = data.setdefault(key, {})
            if isinstance(inner, dict):
                assert isinstance(field.annotation, type), 'is_section says so'
                _add_defaults(field.annotation, inner)
        elif key not in data and not field.is_required():
            data[key] = plain(storable(field.get_default(call_default_factory=True, validated_data={})))


def without_derived_values(config: dict[str, Any]) -> dict[str, Any]:
    """The stored config of a run without the values that `fill_schedules` and `fill_rollout` derived.

    They are derived again if a resume changes the keys that they depend on: max_env_step, the number of envs. Old keys are
    translated to those of today.
    """
    data = plain(config)
    migrate_old_keys(data['policy'])
    for line in _lines(data):
        if line.get('over') == data.get('max_env_step'):
            line['over'] = None
    collect = data['policy'].get('collect') or {}
    if collect.get('n_step') is not None:
        collect.pop('n_sample', None)
    return data
