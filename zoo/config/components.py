"""Components that the config chooses by name: a registered function or class with typed options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from zoo.config.schedule import Linear, Points, schedule_value, values_of
from zoo.config.section import ConfigError, Section, is_class, made_by, plain, validate
from zoo.config.user_code import load_code, names_code, shown_name, with_absolute_names
from zoo.config.yaml_io import function_name
from zoo.core.errors import shown
from zoo.core.registry import Component as Component, Registry, UnknownNameError


def component_of(registry: Registry[Any], path: str, common: type[Section] = Section) -> Any:
    """The type of a config field that names a component: a checked name, or {type: name, its options} with all defaults.

    Args: path: dotted path of the field, for errors; common: options that all components of this kind have.
    """
    check = AfterValidator(lambda spec: checked_spec(registry, spec, path, common))
    if registry.takes_code:
        return Annotated[str | dict[str, Any] | Callable[..., Any], BeforeValidator(_with_name), check]
    return Annotated[str | dict[str, Any], check]


def class_of(registry: Registry[Any], path: str, base: str, method: str) -> Any:
    """The type of a config field that names a class without options: a registered name, 'auto', or code; it becomes a name.

    Args: base: what such a class extends, for messages; method: of the base, which tells these classes from others.
    """

    def checked(name: Any) -> str:
        if not isinstance(name, str):
            raise ConfigError(f'{path} is {shown(name)} but must name a {registry.kind}.')
        if name != 'auto':
            item = _item(registry, name, path)
            if not isinstance(item, type):
                raise ConfigError(
                    f'{path} is {shown_name(name)!r}, which is no class; name a class of a {registry.kind}.'
                )
            if not callable(getattr(item, method, None)):
                raise ConfigError(
                    f'{path} is {shown_name(name)!r}, a class without the method {method}; name a class of a {registry.kind}, '
                    f'which extends {base}.'
                )
        return name

    return Annotated[str | Callable[..., Any], BeforeValidator(_with_name), AfterValidator(checked)]


def components_of(registry: Registry[Any], path: str, common: type[Section] = Section) -> Any:
    """The type of a config field that is a list of components, each as in `component_of`."""
    return list[component_of(registry, path, common)]  # type: ignore[misc]


def name_of(spec: str | Mapping[str, Any]) -> str:
    """The name of a component, from a name or {type: name, its options}."""
    if isinstance(spec, str):
        return spec
    return spec['type']


def checked_spec(registry: Registry[Any], spec: Any, path: str, common: type[Section] = Section) -> Any:
    """A checked name, or {type: name, its options} with all defaults. Raises: ConfigError that names keys below `path`."""
    section = section_of(registry, spec, path, common)
    if isinstance(spec, str):
        return spec
    return plain(section)


def section_of(registry: Registry[Any], spec: Any, path: str, common: type[Section] = Section) -> Any:
    """The options of a component as a Section with the field `type`. Raises: ConfigError."""
    if not isinstance(spec, str | dict):
        raise ConfigError(f'{path} is {spec!r} but must name a {registry.kind}, or be {{type: its name, its options}}.')
    name: Any = spec
    if isinstance(spec, dict):
        name = spec.get('type')
    if not isinstance(name, str):
        if 'type' in spec:
            got = f'{path}.type is {name!r}'
        else:
            got = f'{path} has no type'
        raise ConfigError(f'{got} but must name a {registry.kind}; use one of {", ".join(registry.names())}.')
    item = _item(registry, name, path)
    return validate(_section(item, registry.kind, name, common), {} if isinstance(spec, str) else spec, path)


def _item(registry: Registry[Any], name: str, path: str) -> Any:
    """Returns the registered item; if the registry takes code, also one named as 'module:Class' or 'file.py:Class'."""
    if registry.takes_code and (name in _given or names_code(name) and name not in registry):
        if name in _given:
            found = _given[name]
        else:
            found = load_code(name, path)
        if not callable(found):
            raise ConfigError(f'{path} is {shown_name(name)!r} but that is {shown(found)}; name a class or a function.')
        if registry.keeps_code:
            registry.keep(name, found)
        return found
    try:
        return registry.get(name)
    except UnknownNameError as error:
        own = ''
        if registry.takes_code:
            own = " Or name your own, as 'module:Class' or 'path/file.py:Class'."
        raise ConfigError(f'{path}: {error}{own}') from error


_given: dict[str, Any] = {}  # name -> class, function or object that a config contained instead of its name


def _with_name(spec: Any) -> Any:
    """Replaces code in a spec by its name, and paths of files by absolute ones, so that the config can be stored."""
    if isinstance(spec, dict):
        given = spec.get('type')
    else:
        given = spec
    if not callable(given):
        return with_absolute_names(spec)
    first = name = function_name(given)
    if not isinstance(given, type) and getattr(given, '__hash__', None) is None:
        raise ConfigError(
            f'{shown(given)} is of {first}, whose objects have no hash; write `@dataclass(eq=False)`, or give it `__hash__`.'
        )
    # lambdas share a name, and so do objects of one class: these get a number
    shares_name = '<' in name or not (isinstance(given, type) or inspect.isroutine(given))
    n = 1
    while shares_name and _given.get(name, given) is not given:
        n += 1
        name = f'{first}{n}'
    _given[name] = given
    if isinstance(spec, dict):
        return {**spec, 'type': name}
    return name


def component_object(registry: Registry[Any], section: Any, path: str) -> Any:
    """Builds the object that a section of `section_of` describes; a function is returned with its options bound.

    Args: path: key in the config, for errors.
    Unlike the result of `make_component`, the object needs no hash and gets no attributes.
    """
    item = _item(registry, section.type, path)
    config, options = _own_options(item, section)
    if config is getattr(item, 'config', None):
        return item(config.model_construct(**options))
    if isinstance(item, type):
        return item(**options)
    return functools.partial(item, **options)


def make_component(registry: Registry[Any], spec: Any, *args: Any, common: type[Section] = Section) -> Any:
    """Builds the component that a checked spec names: a `Component` for a function, an object for a class.

    The object gets the attributes kind, name and options of a `Component`, unless its class defines them itself.
    Args: args: for the constructor of a class, after its section, which is of the class `config` itself, so that the
      object can be pickled; common: as in `component_of`; the constructor does not get these.
    Raises: ConfigError if the object takes no attributes, or is built from options and has no hash, which a compiled step needs.
    """
    section = section_of(registry, spec, registry.kind, common)
    item = registry.get(section.type)
    config, own = _own_options(item, section)
    options = tuple((name, _hashable(x)) for name, x in own.items())
    if config is getattr(item, 'config', None):
        return _described(item(config.model_construct(**own), *args), registry.kind, section.type, options)
    if isinstance(item, type):
        component = item(*args, **dict(options))
        if getattr(component, '__hash__', None) is None:
            raise ConfigError(
                f'{registry.kind} {section.type!r} is of class {item.__name__}, whose objects have no hash; write '
                '`@dataclass(frozen=True, kw_only=True)`, or give it `__hash__`.'
            )
        return _described(component, registry.kind, section.type, options)
    _check_arguments(registry.kind, section.type, item)
    return Component(registry.kind, section.type, item, options)


def _own_options(item: object, section: Section) -> tuple[type[Section], dict[str, Any]]:
    """Returns the options of a component as a section class, and their values. Options common to its kind are left out."""
    config = options_of(item)
    return config, {name: x for name, x in section.items() if name in config.model_fields}


ARGUMENTS = {
    'surrogate': 'log_ratio, ratio, adv, clip_ratio',
    'value loss': 'value, return_, value_old, clip_ratio',
    'penalty': 'dist, output, minibatch',
    'estimator': 'data, gamma, lambda_',
    'exploration': 'dist, logit',
    'draw': 'columns, n_pass, generator',
    'optimizer': 'named_parameters, adam_eps',
    'plasticity': 'named, initial, generator',
}
"""Positional arguments that functions of each kind are called with."""


def _check_arguments(kind: str, name: str, function: Callable[..., Any]) -> None:
    """Raises: ConfigError if a function cannot be called with the arguments of its kind."""
    if kind not in ARGUMENTS:
        return
    given = ARGUMENTS[kind]
    try:
        inspect.signature(function).bind(*given.split(', '))
    except TypeError as error:
        raise ConfigError(
            f'{kind} {name!r} is the function {function.__name__}{inspect.signature(function)} but is called with '
            f'({given}): {error}; write `def {function.__name__}({given}, *, options=...)`.'
        ) from error


def _described(component: Any, kind: str, name: str, options: tuple[tuple[str, Any], ...]) -> Any:
    """Adds the attributes of a `Component` that the object lacks, and returns it."""
    for key, value in (('kind', kind), ('name', name), ('options', options)):
        if not hasattr(component, key):
            try:
                object.__setattr__(component, key, value)  # a frozen dataclass has a __setattr__ that refuses
            except AttributeError as error:
                raise ConfigError(
                    f'{kind} {name!r} is of class {type(component).__name__}, whose objects cannot be given the attribute '
                    f'{key!r}; leave out its __slots__.'
                ) from error
    return component


def summary_of(item: Any) -> str:
    """The first line of a component's docstring."""
    return (inspect.getdoc(item) or '').partition('\n')[0]


@functools.cache
def options_of(item: Any) -> type[Section]:
    """The options of a component: the section `config` of a class, or its keyword-only parameters."""
    config = getattr(item, 'config', None)
    if is_class(config, Section):
        return config
    function = inspect.unwrap(item.__init__ if isinstance(item, type) else item)  # type: ignore[misc]
    options = [x for x in inspect.signature(function).parameters.values() if x.kind is x.KEYWORD_ONLY]
    # other parameters may have types from modules that only type checkers import
    annotations = getattr(function, '__annotations__', {})
    names = {option.name for option in options}
    holder = SimpleNamespace(__annotations__={name: x for name, x in annotations.items() if name in names})
    hints = get_type_hints(holder, getattr(function, '__globals__', {}), include_extras=True)
    for option in options:
        if option.default is option.empty or option.name not in hints:
            raise ConfigError(
                f'{item.__name__} has the option {option.name!r} without a default or without a type; write '
                f'`*, {option.name}: float = 0.5`'
            )
        if option.name == 'type':
            raise ConfigError(
                f"{item.__name__} has an option 'type', the key that names a component; give it another name"
            )
    as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)  # configs have lists
    tuples = [name for name, x in hints.items() if any(get_origin(part) is tuple for part in (x, *get_args(x)))]
    hints |= {name: Annotated[hints[name], as_tuple] for name in tuples}
    fields: dict[str, Any] = {option.name: (hints[option.name], option.default) for option in options}
    return made_by(options_of, (item,), create_model('Options', __base__=Section, **fields))


SCHEDULED = ('exploration',)
"""Kinds whose functions take schedules over env steps for their options that are numbers; see `component_at`."""


def _number_or_schedule(field: FieldInfo) -> tuple[Any, Any]:
    """The type and the default of an option that is a number, or a schedule all of whose values the option may have."""
    number: Any
    if field.metadata:
        number = Annotated[(float, *field.metadata)]
    else:
        number = float
    adapter: TypeAdapter[float] = TypeAdapter(number)

    def within_range(value: Any) -> Any:
        for each in values_of(value):
            try:
                adapter.validate_python(each)
            except ValidationError as error:
                said = error.errors()[0]['msg'].removeprefix('Input ')  # 'Input should be greater than 0'
                raise ValueError(f'it reaches {each:g} but each of its values {said}.') from error
        return value

    either = Annotated[Union[number, Linear, Points], AfterValidator(within_range)]  # noqa: UP007  # number is no class
    return either, Field(field.default, description=field.description)


def component_at(component: Any, env_step: int) -> Any:
    """A component as it is at an env step: a number for each option that is a schedule; an option `env_step` is that step."""
    if not moves(component):
        return component
    options = []
    for name, value in component.options:
        if name == 'env_step':
            value = env_step
        elif isinstance(value, Linear | Points):
            value = schedule_value(value, env_step)
        options.append((name, value))
    return dataclasses.replace(component, options=tuple(options))


def moves(component: Any) -> bool:
    """Whether a component is a function whose options change with the env steps of a run."""
    if not isinstance(component, Component):
        return False
    return any(name == 'env_step' or isinstance(value, Linear | Points) for name, value in component.options)


@functools.cache
def _section(item: Any, kind: str, name: str, common: type[Section]) -> type[Section]:
    options = options_of(item)
    bases: tuple[type[Section], ...] = (options,)
    if common is not Section:
        bases = (common, options)
    fields: Any = {'type': (str, Field(name, description=f'registered name of the {kind}'))}
    if kind in SCHEDULED and not isinstance(item, type):
        numbers = {key: field for key, field in options.model_fields.items() if field.annotation is float}
        fields |= {key: _number_or_schedule(field) for key, field in numbers.items()}
    return made_by(_section, (item, kind, name, common), create_model(options.__name__, __base__=bases, **fields))


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return value
