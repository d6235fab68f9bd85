"""Config sections: typed pydantic models, which a run reads frozen; `Config` is the nested EasyDict that users write."""

from __future__ import annotations

import copy
import copyreg
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    NoReturn,
    Optional,
    Protocol,
    TypeGuard,
    TypeVar,
    get_args,
    get_origin,
)

from easydict import EasyDict
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo

from zoo.core.errors import UserError, closest, join_path, shown
from zoo.core.streams import printable

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class ConfigError(UserError):
    """All problems of a config, each a sentence on its own line. Characters that control a terminal are escaped."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        if isinstance(problems, str):
            problems = [problems]
        self.problems = [printable(text) for text in problems]
        super().__init__('\n'.join(self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


def _read_only(*args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError('the config is read-only once the run starts; pass overrides instead, or edit config.to_dict()')


class OldKey(NamedTuple):
    """A key of earlier versions: what its values mean today.

    field: what it took. A value other than its default means `component` in the field `new`; a value other than true is the
    option of the component that is named like the key. The default means the component `plain`.
    """

    field: FieldInfo
    new: str
    component: str
    plain: str

    def spec(self, key: str, value: Any) -> Any:
        """The component that a value other than the default means."""
        if value is True:
            return self.component
        return {'type': self.component, key: value}

    def could_mean(self, key: str, spec: Any) -> bool:
        """Whether a value of the old key means this component."""
        value: Any = True
        if isinstance(spec, dict):
            value = spec.get(key)
        return spec == self.spec(key, value)

    def problem(self, path: str, value: Any, given: Mapping[str, Any]) -> str:
        """A sentence if the key at `path` did not take the value, or another value of its section contradicts it; else ''."""
        if not takes(self.field, value):
            from zoo.config.problems import bad_value

            return bad_value(path, value, self.field)
        now = given.get(self.new, self.plain)
        spec = self.spec(path.rpartition('.')[2], value)
        if value == self.field.default or now in (self.plain, {'type': self.plain}, spec):
            return ''
        said = f'{path} is {"true" if value is True else shown(value)}, which is {self.new} {self.component!r}'
        return f'{said}, but {self.new} is {shown(now)}; drop one'


class Job(Protocol):
    """The resolved config of a run, as its sections see it; `zoo.run.base_config.JobConfig` is it.

    What its sections have depends on the names of policy, model and buffer: a field that not every one has is read by `get`.
    """

    @property
    def max_env_step(self) -> int: ...
    @property
    def env(self) -> Any: ...
    @property
    def policy(self) -> Any: ...
    @property
    def buffer(self) -> Any: ...
    @property
    def cluster(self) -> Any: ...


class _SectionType(ModelMetaclass):
    """The metaclass of sections. The pickling of section classes is registered for it, see `copyreg.pickle` below."""


class Section(BaseModel, Mapping[str, Any], metaclass=_SectionType):  # type: ignore[misc]
    """One section of the config: typed, ranged fields, each with a one-line description; unknown keys are refused.

    A section can also be read as a dict: `cfg.learn['batch_size']`, `cfg.learn.get('my_key', 0)`, `{**cfg.learn}`.
    Attributes: old_keys: keys of earlier versions that are still accepted, as value_clip=true is for value_loss=clip.
    """

    model_config = ConfigDict(
        extra='forbid',
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        validate_default=True,
        protected_namespaces=(),
        arbitrary_types_allowed=True,
    )
    old_keys: ClassVar[Mapping[str, OldKey]] = {}

    @model_validator(mode='before')
    @classmethod
    def migrate_old_keys(cls, given: Any) -> Any:
        """Translates old keys among the values of a section; one with a problem stays, so that it is refused.

        If a user's own section still declares an old key as a field, the field stays too and means the same.
        """
        for key, old in cls.old_keys.items() if isinstance(given, dict) else ():
            own = cls.model_fields.get(key)
            default = cls.model_fields[old.new].default
            value = given.get(key, (own or old.field).default)
            if (key not in given and own is None) or old.problem(key, value, given):
                continue
            given = {name: x for name, x in given.items() if name != key or own is not None}
            if value != old.field.default:
                given[old.new] = old.spec(key, value)
            elif old.could_mean(key, default):
                given.setdefault(old.new, old.plain)
        return given

    @classmethod
    def chosen_by(cls, data: Mapping[str, Any]) -> type[Section]:
        """The section class for these values of a field of this type: here this one, in others one that a value names."""
        return cls

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        return key in type(self).model_fields

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter(type(self).model_fields)

    def __len__(self) -> int:
        return len(type(self).model_fields)

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other}

    def problems(self, job: Job) -> Iterator[str]:
        """Yields a sentence for each conflict of this section with others of the job, or with this machine.

        A sentence names both values, and a remedy. The section and the job are valid, and have all their values.
        """
        yield from ()

    def to_dict(self) -> dict[str, Any]:
        """A copy in plain dicts and lists."""
        return plain(self)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Yields the fields that differ from their defaults, for `repr`."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != field.get_default(call_default_factory=True):
                yield name, value

    def __eq__(self, other: object) -> bool:
        is_plain = isinstance(other, Mapping) and not isinstance(other, Section)
        if is_plain:
            return plain(self) == plain(other)
        return super().__eq__(other)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith('_') or hasattr(type(self), name):  # the second: a property that raised
                return super().__getattr__(name)
            raise AttributeError(f'the config has no key {name!r} here; the keys are {", ".join(self.keys())}')

        def copy(self) -> dict[str, Any]:
            return dict(self)

        __setattr__ = __setitem__ = __delattr__ = __delitem__ = __ior__ = _read_only
        update = pop = popitem = setdefault = clear = _read_only


RESERVED = frozenset(
    'items update pop keys values get copy clear setdefault popitem fromkeys read_only to_dict'.split()
)
"""Names of the methods of a config; a key must not be one of them."""
S = TypeVar('S', bound='Section')
T = TypeVar('T')
if TYPE_CHECKING:
    Filled = Annotated[T, 'filled']
else:
    Filled = Optional[T]  # noqa: UP045  # a generic alias
"""The type of a field that users may leave out (null). In a resolved config the field has a value."""
LEFT_OUT: Any = None  # the default of a `Filled` field

MAX_DEPTH = 100
MAX_CONTAINERS = 100_000
"""Limits for the levels of a config and for its dicts and lists: a bundled one has 4 and some 20, an array in env.kwargs many."""


ConfigLike = Mapping[str, Any]
"""A config or a section of one: a dict, as users and checkpoints write it, or the typed one that a run reads."""


def made_by(function: Callable[..., type[S]], args: tuple[Any, ...], section_cls: type[S]) -> type[S]:
    """Lets a section class be pickled as the call function(*args), because its module does not contain it."""
    setattr(section_cls, '_made_by', (function, args))  # noqa: B010  # so pydantic makes it no field
    return section_cls


def call_that_made(item: object) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """The function and arguments that `made_by` was given for a section class; None for any other object."""
    if isinstance(item, _SectionType):
        return vars(item).get('_made_by')
    return None


copyreg.pickle(_SectionType, lambda section_cls: call_that_made(section_cls) or section_cls.__qualname__)  # type:ignore[arg-type]


def frozen(section_cls: type[S], data: Any) -> S:
    """Builds a section from checked data, read-only at all levels. Keys of its dicts are attributes too, as in `Config`."""
    section = validate(section_cls, data)
    _freeze(section)
    return section


def _freeze(section: Section) -> None:
    for key, value in section.items():
        if isinstance(value, Section):
            _freeze(value)
        else:
            vars(section)[key] = _frozen(value)


def with_defaults(section_cls: type[S], defaults: Mapping[str, Any]) -> type[S]:
    """Derives a section class with other defaults.

    Args: defaults: by field; for a field that is a section, a dict of its defaults.
    Raises: ConfigError for a field that the section lacks, or a value that the field does not accept.
    """
    defaults = section_cls.migrate_old_keys(dict(defaults))  # type: ignore[operator]
    known = section_cls, repr(plain(defaults))
    if known in _with_defaults:  # unpickling returns the class that this process already has
        return _with_defaults[known]
    fields: dict[str, Any] = {}
    for key, value in defaults.items():
        if key not in section_cls.model_fields:
            from zoo.config.problems import unknown_key

            raise ConfigError(unknown_key('', key, section_cls.model_fields))
        field = copy.copy(section_cls.model_fields[key])
        annotation: Any = field.annotation
        if is_section(field) and isinstance(value, Mapping):
            annotation = with_defaults(annotation, value)
            value = annotation()
        field.default = value
        fields[key] = (annotation, field)
    found = create_model(section_cls.__name__, __base__=section_cls, **fields)
    validate(found, {key: value for key, value in defaults.items() if not isinstance(value, Mapping)})
    _with_defaults[known] = made_by(with_defaults, (section_cls, dict(defaults)), found)
    return found


_with_defaults: dict[tuple[type[Section], str], Any] = {}


class Config(EasyDict):
    """A nested dict whose keys are attributes too. Unlike in a plain EasyDict, keys are stored in the dict alone."""

    def __init__(self, data: dict[str, Any] | None = None, **kwargs: Any) -> None:
        dict.__init__(self)
        self.update(data, **kwargs)

    def read_only(self) -> Config:
        """A copy that refuses every change, at all levels."""
        return _FrozenConfig(self)

    def to_dict(self) -> dict[str, Any]:
        """A copy in plain dicts and lists."""
        return plain(self)

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f'the config has no key {name!r} here; the keys are {", ".join(map(str, self))}')

    def __setitem__(self, key: str, value: Any) -> None:
        dict.__setitem__(self, key, _wrapped(value))

    __setattr__ = __setitem__
    __delattr__ = dict.__delitem__  # type: ignore[assignment]
    pop = dict.pop

    def update(self, data: Any = None, **kwargs: Any) -> None:
        for key, value in {**dict(data or {}), **kwargs}.items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def __ior__(self, other: Any) -> Config:  # type: ignore[override,misc]
        self.update(other)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.to_dict(),)


class _FrozenConfig(Config):
    def __init__(self, data: Mapping[str, Any]) -> None:
        dict.__init__(self, {key: _frozen(value) for key, value in data.items()})

    __setitem__ = __setattr__ = __delitem__ = __delattr__ = __ior__ = _read_only  # type: ignore[assignment]
    update = pop = popitem = setdefault = clear = _read_only  # type: ignore[assignment]


class _FrozenList(list):
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = extend = insert = _read_only  # type: ignore[assignment]
    remove = pop = clear = sort = reverse = _read_only  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:  # type: ignore[override]
        return type(self), (list(self),)


def _wrapped(value: Any) -> Any:
    if isinstance(value, dict):
        if isinstance(value, Config):
            return value
        return Config(value)
    if type(value) in (list, tuple):
        return [_wrapped(v) for v in value]
    return value


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return _FrozenConfig(value)
    if type(value) in (list, tuple):
        return _FrozenList(map(_frozen, value))
    return value


PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))
"""Types of values that need no conversion and cannot be changed in place: a copy of a config shares them."""


def plain(value: Any) -> Any:
    """A deep copy in plain dicts, lists and Python numbers: EasyDicts, tuples, numpy and torch values are converted.

    Raises: ConfigError if it is nested deeper than MAX_DEPTH, contains itself, or has more than MAX_CONTAINERS dicts and lists.
    """
    return _plain(value, 0, itertools.count(1))


def own_copy(value: Any) -> Any:
    """Copies the dicts, lists and tuples of kwargs or options, so that one env may change them; other values are shared."""
    if isinstance(value, dict):  # not every Mapping: gymnasium's Dict space is one
        return {key: own_copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(own_copy, value))
    if type(value) is tuple:
        return tuple(map(own_copy, value))
    return value


def _plain(value: Any, depth: int, n_part: Iterator[int]) -> Any:
    """See `plain`. Args: n_part: counts dicts and lists; one that is in several places is copied and counted at each."""
    if type(value) in PLAIN_TYPES:  # most values; the checks below take ten times as long
        return value
    if isinstance(value, Section):
        value = dict(value)
    if isinstance(value, (dict, list, tuple)):
        if depth > MAX_DEPTH:
            raise ConfigError(
                f'the config contains itself, or is nested more than {MAX_DEPTH} levels deep; write it with fewer levels.'
            )
        if next(n_part) > MAX_CONTAINERS:
            raise ConfigError(
                f'the config has more than {MAX_CONTAINERS:,} dicts and lists, those of YAML aliases counted at each of their '
                'places; pass large data in files.'
            )
    if isinstance(value, dict):
        copied = {}
        for key, item in dict.items(value):  # an EasyDict with a key 'items' has no such method
            if isinstance(key, str):
                key = str(key)
            if type(item) in PLAIN_TYPES:
                copied[key] = item
            else:
                copied[key] = _plain(item, depth + 1, n_part)
        return copied
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1, n_part) for item in value]
    if hasattr(value, 'dtype') and hasattr(value, 'tolist'):
        return _plain(value.tolist(), depth, n_part)
    return value


def validate(section_cls: type[S], data: Any, path: str = '', known: Iterable[str] = ()) -> S:
    """Builds the section that `data` describes. Pure. Only an integer is converted, where a float is wanted.

    Args:
      path: dotted path of the section in the config, e.g. 'policy.learn'; errors name full paths.
      known: all dotted paths of the config, to find where a misplaced key belongs.
    Raises: ConfigError with a sentence for every problem.
    """
    data = plain(data)
    problems = bad_keys(data, path) or section_problems(section_cls, data, path, tuple(known))
    if problems:
        raise ConfigError(problems)
    return section_cls.model_validate(data)


def bad_keys(data: Any, path: str = '') -> list[str]:
    """A sentence for each key of a nested dict that is not a string or has the name of a method of Config."""
    if isinstance(data, list):
        return [problem for value in data for problem in bad_keys(value, path)]
    if not isinstance(data, dict):
        return []
    problems = []
    for key, value in data.items():
        if not isinstance(key, str):
            problems.append(f'key {shown(key)} in {path or "the config"} is not a string; write keys as text')
        elif key in RESERVED:
            problems.append(
                f'{join_path(path, key)} is a reserved key: it would hide the method `{key}` of the config; '
                'rename it, and wrap a function that takes an argument of that name'
            )
        else:
            problems += bad_keys(value, join_path(path, key))
    return problems


def section_problems(section_cls: type[Section], data: Any, path: str, known: tuple[str, ...]) -> list[str]:
    """A sentence for each problem of `data` as this section. Args: data: as returned by `plain`."""
    try:
        section_cls.model_validate(data)
        return []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    from zoo.config.problems import bad_value, missing_value, unknown_key

    if not isinstance(data, dict):
        return [bad_value(path or 'the config', data, section_cls)]
    fields = section_cls.model_fields
    problems: dict[str, list[str]] = {}  # by key, the first alone: a union reports each of its branches
    for item in sorted(errors, key=lambda e: e['type'] != 'extra_forbidden' or len(e['loc']) > 1):
        key = ''
        if item['loc']:
            key = str(item['loc'][0])
        if key in problems:
            continue
        if key:
            where = join_path(path, key)
        else:
            where = path
        if item['type'] == 'extra_forbidden' and len(item['loc']) == 1:
            old = section_cls.old_keys.get(key)
            problems[key] = [old.problem(where, data[key], data) if old else unknown_key(path, key, fields, known)]
        elif key not in fields:  # a check of the whole section
            problems[key] = [f'{where or "the config"}: {item.get("ctx", {}).get("error", item["msg"])}']
        elif item['type'] == 'missing' and len(item['loc']) == 1:
            problems[key] = [missing_value(where, fields[key])]
        else:
            problems[key] = _field_problems(fields[key], data.get(key, fields[key].default), where, item, known)
    return [sentence for sentences in problems.values() for sentence in sentences]


def _field_problems(field: FieldInfo, value: Any, where: str, item: Any, known: tuple[str, ...]) -> list[str]:
    """The problems of one field: of its value, or inside its section. In a union, the section with the closest keys counts."""
    from zoo.config.problems import bad_value

    sections = sections_of(field.annotation)
    if isinstance(value, dict) and sections:
        best = max(sections, key=lambda s: sum(bool(closest(key, s.model_fields)) for key in value))
        return section_problems(best.chosen_by(value), value, where, known) or [
            f'{where} is {shown(value, 120)}: {item["msg"].removeprefix("Value error, ")}'
        ]
    if is_section(field):
        return [bad_value(where, value, sections[0])]
    if item['type'] == 'value_error' and isinstance(item['ctx']['error'], ConfigError):
        return list(item['ctx']['error'].problems)  # a check of the field validated its value as a section
    if item['type'] == 'value_error':  # a check written for this field has the best message
        return [f'{where} is {shown(value, 120)}: {item["ctx"]["error"]}']
    return [bad_value(where, value, field)]


def is_class(annotation: Any, base: type[T]) -> TypeGuard[type[T]]:
    """Whether an object is a class derived from `base`. On Python 3.10 list[str] is a `type` too, but no class."""
    return isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, base)


def sections_of(annotation: Any) -> list[type[Section]]:
    """The section classes that a field accepts: one, several in a union, or none."""
    if is_class(annotation, Section):
        return [annotation]
    if getattr(annotation, '__origin__', None) in (list, dict, tuple):
        return []
    return [section for arg in get_args(annotation) for section in sections_of(arg)]


def fields_of(section_cls: type[Section], path: str = '') -> Iterator[tuple[str, FieldInfo]]:
    """Yields (dotted path, field) for a section and its inner sections, in order, each section before its fields."""
    return ((join_path(path, key), field) for key, field in _fields(section_cls))


@functools.lru_cache(maxsize=512)
def _fields(section_cls: type[Section]) -> tuple[tuple[str, FieldInfo], ...]:
    """What `fields_of` yields, with paths in the section: a class of fields never changes, and has some 170."""
    found: list[tuple[str, FieldInfo]] = []
    for key, field in section_cls.model_fields.items():
        found.append((key, field))
        if is_section(field):
            inner = _fields(sections_of(field.annotation)[0])
            found += [(join_path(key, path), each) for path, each in inner]
    return tuple(found)


@functools.lru_cache(maxsize=512)
def old_keys_of(section_cls: type[Section]) -> Mapping[str, OldKey]:
    """The old keys of the inner sections, by dotted path; not to be changed."""
    inner = [(path, sections_of(field.annotation)[0]) for path, field in fields_of(section_cls) if is_section(field)]
    return {join_path(path, key): old for path, part in inner for key, old in part.old_keys.items()}


def takes(field: FieldInfo, value: Any) -> bool:
    """Whether a field accepts a value. A field that is a section accepts any dict here."""
    if is_class(field.annotation, BaseModel):
        return isinstance(value, dict)
    typed: Any
    if field.metadata:
        typed = Annotated[(field.annotation, *field.metadata)]
    else:
        typed = field.annotation
    try:
        _adapter_of(typed).validate_python(value)
    except ValidationError:
        return False
    return True


def _adapter_of(typed: Any) -> TypeAdapter[Any]:
    """See `_strict_adapter`; a type whose metadata has no hash, such as a dict, gets a new one each time."""
    try:
        return _strict_adapter(typed)
    except TypeError:
        return _strict_adapter.__wrapped__(typed)


@functools.lru_cache(maxsize=512)
def _strict_adapter(typed: Any) -> TypeAdapter[Any]:
    """Validates values of a type without conversions. Kept, since it takes a millisecond to make."""
    return TypeAdapter(typed, config=ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True))


def is_section(field: FieldInfo) -> bool:
    """Whether a field is a section, and nothing else."""
    return sections_of(field.annotation) == [field.annotation]


def value_at(data: Any, path: str) -> Any:
    """The value at a dotted path of nested dicts; None if there is none."""
    for key in path.split('.'):
        if isinstance(data, dict | Section):
            data = data.get(key)
        else:
            data = None
    return data


def put_at(data: dict[str, Any], path: str, value: Any) -> None:
    """Sets the entry at a dotted path of nested dicts; creates missing dicts on the path."""
    *parents, last = path.split('.')
    for key in parents:
        data = data.setdefault(key, {})
    data[last] = value


def short_keys(keys: Sequence[str]) -> list[str]:
    """Returns the last word of each dotted key, or the whole key if another key has the same last word."""
    lasts = [key.rpartition('.')[2] for key in keys]
    return [last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)]


def has_key(config: Mapping[str, Any], key: str) -> bool:
    """Whether a config has a dotted key, with any value."""
    parents, _, last = key.rpartition('.')
    if parents:
        section = value_at(config, parents)
    else:
        section = config
    return isinstance(section, dict | Section) and last in section


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all configs, in the order of the first config that has each."""
    leaves = [dict(leaf_items(config)) for config in configs]
    keys = dict.fromkeys(key for values in leaves for key in values)
    return [key for key in keys if any(values.get(key) != leaves[0].get(key) for values in leaves)]


def leaf_items(data: Any, path: str = '') -> list[tuple[str, Any]]:
    """The values of nested dicts with their dotted keys; an empty dict counts as a value."""
    if isinstance(data, dict) and data:
        return [leaf for key, value in data.items() for leaf in leaf_items(value, join_path(path, str(key)))]
    return [(path, data)]
