"""Sections, their validation, and the nested dict of a resolved config."""

from __future__ import annotations

import array
import copy
import functools
import json
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import pytest
import torch
from easydict import EasyDict
from pydantic import Field, field_validator, model_validator
from pydantic.fields import FieldInfo

import zoo
from tests.tables import rows_of
from zoo.config.problems import describe
from zoo.config.schedule import Schedule
from zoo.config.section import (
    Config,
    ConfigError,
    Section,
    differing_keys,
    fields_of,
    frozen,
    has_key,
    is_class,
    plain,
    sections_of,
    takes,
    validate,
    value_at,
)
from zoo.config.source import parse_value


class Inner(Section):
    rate: Schedule = Field(1e-3, description='step size')
    size: int = Field(8, ge=1, description='how many')
    ratio: float = Field(0.5, ge=0, le=1, description='a share')
    mode: Literal['off', 'batch'] = Field('off', description='how')
    flag: bool = Field(False, description='whether')
    sizes: list[Annotated[int, Field(gt=0)]] = Field([64], min_length=1, description='widths')
    limit: Annotated[float, Field(gt=0)] | None = Field(None, description='limit; null: off')
    free: dict[str, Any] = Field({}, description='yours')

    @field_validator('mode')
    @classmethod
    def _not_batch(cls, mode: str) -> str:
        if mode == 'batch':
            raise ValueError('batch comes later; use off.')
        return mode


class Outer(Section):
    name: str = Field(description='what it is called')
    inner: Inner = Inner()  # type: ignore[call-arg]
    low: int = Field(0, description='below high')
    high: int = Field(9, description='above low')

    @model_validator(mode='after')
    def _ordered(self) -> Outer:
        if self.low > self.high:
            raise ValueError(f'low is {self.low} but high is {self.high}; swap them.')
        return self


class Own(Section):
    """A section with a computed value."""

    e: int = 1

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.e


def problems(section: type[Section], data: Any, path: str = '', known: Any = ()) -> list[str]:
    with pytest.raises(ConfigError) as error:
        validate(section, data, path, known)
    assert str(error.value).split('\n') == error.value.problems
    return error.value.problems


def test_validate_fills_defaults_and_keeps_what_is_given():
    section = validate(Outer, {'name': 'a', 'inner': {'size': 3}})
    assert (section.name, section.inner.size, section.inner.ratio) == ('a', 3, 0.5)


BAD_VALUES = """
{size: 0}
    - top.inner.size is 0 (integer) but must be an integer >= 1; leave it out for 8, the default.
{size: 2.5}
    - top.inner.size is 2.5 (number) but must be an integer >= 1; leave it out for 8, the default.
{size: 1.0e+5}
    - top.inner.size is 100000.0 (number) but must be an integer >= 1; write 100000.
{size: true}
    - top.inner.size is True (boolean) but must be an integer >= 1; leave it out for 8, the default.
{size: '3'}
    - top.inner.size is '3' (string) but must be an integer >= 1; leave it out for 8, the default.
{size: null}
    - top.inner.size is null but must be an integer >= 1; leave it out for 8, the default.
{ratio: 1.5}
    - top.inner.ratio is 1.5 (number) but must be a number >= 0 and <= 1; leave it out for 0.5, the default.
{ratio: .nan}
    - top.inner.ratio is nan (number) but must be a number >= 0 and <= 1; leave it out for 0.5, the default.
{ratio: true}
    - top.inner.ratio is True (boolean) but must be a number >= 0 and <= 1; leave it out for 0.5, the default.
{limit: .inf}
    - top.inner.limit is inf (number) but must be a number > 0 or null; leave it out for null, the default.
{rate: [1]}
    - top.inner.rate is [1] (list) but must be a number > 0 or {start, end, over} or {points, kind}; leave it out for
      0.001, the default.
{mode: of}
    - top.inner.mode is 'of' (string) but must be one of 'off', 'batch'; leave it out for 'off', the default.
# the message of a section's own check is unmodified
{mode: batch}
    - top.inner.mode is 'batch': batch comes later; use off.
{flag: 1}
    - top.inner.flag is 1 (integer) but must be true or false; leave it out for False, the default.
{flag: 'off'}
    - top.inner.flag is 'off' (string) but must be true or false; leave it out for False, the default.
{sizes: 64}
    - top.inner.sizes is 64 (integer) but must be a list of one or more integers > 0; write top.inner.sizes: [64].
{sizes: [64, -1]}
    - top.inner.sizes is [64, -1] (list) but must be a list of one or more integers > 0; leave it out for [64], the
      default.
{free: 3}
    - top.inner.free is 3 (integer) but must be a section of your own keys; leave it out for {}, the default.
{free: {3: 1}}
    - key 3 in top.inner.free is not a string; write keys as text
{update: 1}
    - top.inner.update is a reserved key: it would hide the method `update` of the config; rename it, and wrap a function
      that takes an argument of that name
{free: {deep: {pop: 1}}}
    - top.inner.free.deep.pop is a reserved key: it would hide the method `pop` of the config; rename it, and wrap a
      function that takes an argument of that name
{free: {deep: [{keys: 1}]}}
    - top.inner.free.deep.keys is a reserved key: it would hide the method `keys` of the config; rename it, and wrap a
      function that takes an argument of that name
"""


@pytest.mark.parametrize(('inner', 'wanted'), rows_of(BAD_VALUES))
def test_validate_bad_value_says_got_wanted_do(inner: dict[str, Any], wanted: list[str]) -> None:
    assert problems(Outer, {'name': 'a', 'inner': inner}, 'top') == wanted


KEYS_OF_INNER = 'rate, size, ratio, mode, flag, sizes, limit, free.'


@pytest.mark.parametrize(
    'data, path, problem',
    [
        ({}, '', 'name is missing: give text (what it is called).'),
        ({'name': 'a', 'inner': 3}, '', f'inner is 3 (integer) but must be a dict with the keys {KEYS_OF_INNER}'),
        ('ppo', 'policy', "policy is 'ppo' (string) but must be a dict with the keys name, inner, low, high."),
        ({'name': 'a', 'low': 5, 'high': 3}, 'x', 'x: low is 5 but high is 3; swap them.'),
    ],
)
def test_validate_refuses_a_section_in_one_sentence(data: Any, path: str, problem: str) -> None:
    assert problems(Outer, data, path) == [problem]


def test_list_with_too_many_items_is_told_how_many_it_may_have() -> None:
    class Few(Section):
        sizes: list[int] = Field([], max_length=2)

    wanted = 'sizes is [1, 2, 3] (list) but must be a list of integers, at most 2; leave it out for [], the default.'
    assert problems(Few, {'sizes': [1, 2, 3]}) == [wanted]


def test_validate_reports_all_problems_unknown_keys_first():
    found = problems(Outer, {'name': 3, 'inner': {'size': 0, 'flagg': True}, 'lo': 1})
    assert [p.split(':')[0].split(' but')[0] for p in found] == [
        'unknown key lo',
        'name is 3 (integer)',
        'unknown key inner.flagg',
        'inner.size is 0 (integer)',
    ]


@pytest.mark.parametrize('name', ['items', 'keys', 'values', 'get', 'copy', 'update', 'pop', 'setdefault'])
def test_easydict_whose_key_hides_its_own_method_gets_the_sentence_of_a_dict(name):
    """The key becomes an attribute of an EasyDict: d.items is 3."""
    config = EasyDict({'free': {name: 3}})
    assert config.free[name] == 3 and plain(config) == {'free': {name: 3}}
    assert problems(Inner, config)[0].startswith(f'free.{name} is a reserved key')


def test_every_method_of_a_config_is_a_reserved_key():
    methods = {name for name in dir(Config) if not name.startswith('_')}
    for name in methods:
        assert problems(Inner, {'free': {name: 1}})[0].startswith(f'free.{name} is a reserved key')


def test_validate_leaves_its_input_alone_and_its_result_as_it_is():
    data = {'name': 'a', 'inner': {'rate': {'points': [[0, 1], [9, 0]]}, 'sizes': (1, 2), 'free': {'x': [1, {'y': 2}]}}}
    before = copy.deepcopy(data)
    once = plain(validate(Outer, data))
    assert data == before
    assert plain(validate(Outer, once)) == once


def test_config_error_survives_pickling():
    error = pickle.loads(pickle.dumps(ConfigError(['a is 1.', 'b is 2.'])))
    assert error.problems == ['a is 1.', 'b is 2.'] and str(error) == 'a is 1.\nb is 2.'


def test_plain_converts_other_containers_and_numbers():
    value = plain({'a': EasyDict(b=(1, np.float64(0.5))), 'c': np.arange(2), 'd': np.bool_(True), 'e': torch.tensor(3)})
    assert value == {'a': {'b': [1, 0.5]}, 'c': [0, 1], 'd': True, 'e': 3}
    assert plain({'id': problems})['id'] is problems
    leaves = (value['a'], value['a']['b'], value['a']['b'][1], value['c'][0], value['d'], value['e'])
    assert [type(leaf) for leaf in leaves] == [dict, list, float, int, bool, int]


def test_plain_leaves_objects_that_only_look_like_arrays():
    space = gymnasium.spaces.Discrete(2)  # has a dtype
    numbers = array.array('i', [1])  # has a method tolist
    found = plain({'kwargs': [space, numbers]})['kwargs']
    assert found[0] is space and found[1] is numbers


def test_fields_of_lists_sections_before_their_fields():
    paths = [path for path, _ in fields_of(Outer, 'top')]
    assert paths[:4] == ['top.name', 'top.inner', 'top.inner.rate', 'top.inner.size'] and paths[-1] == 'top.high'


def test_value_at_a_missing_path_is_none_and_no_key():
    assert value_at({'a': {'b': 3}}, 'a.b') == 3
    assert value_at({'a': {'b': 3}}, 'a.b.c') is None and value_at(None, 'a') is None
    config = {'a': {'b': None}, 'c': 1}
    assert [has_key(config, key) for key in ('a.b', 'c', 'b', 'a.c', 'a.b.c', 'c.c')] == [True, True, *[False] * 4]


NESTED = {'a': {'b': [1, {'c': None}], 'd': 1e-5}, 'e': 'x'}


def test_config_is_an_easydict_whose_attributes_and_items_are_the_same_thing():
    config = Config(NESTED)
    assert isinstance(config, EasyDict) and config == NESTED
    assert config.a.b[1].c is None and config['a']['d'] == config.a.d == 1e-5
    config.a.d = 2
    config['a']['new'] = {'x': 1}
    assert config['a']['d'] == 2 and config.a.new.x == 1
    assert config.pop('e') == 'x' and not hasattr(config, 'e')
    del config.a
    assert config.setdefault('f', 1) == 1 == config.setdefault('f', 2)
    assert config == {'f': 1} and config.to_dict() == {'f': 1}


def test_config_missing_attribute_names_the_keys():
    with pytest.raises(AttributeError, match=r"no key 'lr' here; the keys are a, e$"):
        _ = Config(NESTED).lr


def test_config_to_dict_is_a_plain_copy():
    config = Config(NESTED).read_only()
    data = config.to_dict()
    data['a']['b'].append(2)
    assert type(data) is type(data['a']) is dict and type(data['a']['b']) is list
    assert config == NESTED and json.loads(json.dumps(config)) == NESTED


ALTER = [
    lambda x: setattr(x, 'e', 1),
    lambda x: delattr(x, 'e'),
    lambda x: x.__setitem__('e', 1),
    lambda x: x.__delitem__('e'),
    lambda x: x.update(e=1),
    lambda x: x.pop('e'),
    lambda x: x.setdefault('z', 1),
]
ALTER_CONFIG = [
    lambda c: c.popitem(),
    lambda c: c.clear(),
    lambda c: c.setdefault('e', 1),
    lambda c: c.__ior__({'e': 1}),
    lambda c: setattr(c.a, 'd', 1),
    lambda c: c.a.b.append(1),
    lambda c: c.a.b.__setitem__(0, 2),
    lambda c: setattr(c.a.b[1], 'c', 1),
    lambda c: c.a.b.sort(),
    lambda c: c.a.b.__iadd__([1]),
]


def test_frozen_config_and_section_refuse_every_change():
    config, section = Config(NESTED).read_only(), frozen(Own, {})
    for frozen_one, change in [(config, each) for each in ALTER + ALTER_CONFIG] + [(section, each) for each in ALTER]:
        with pytest.raises(TypeError, match='read-only once the run starts; pass overrides'):
            change(frozen_one)
    assert config == NESTED and section == {'e': 1}


@pytest.mark.parametrize('copied', [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
@pytest.mark.parametrize('frozen', [False, True])
def test_config_copies_are_equal_and_as_writable(copied, frozen):
    config = Config(NESTED).read_only() if frozen else Config(NESTED)
    other = copied(config)
    assert other == config and other is not config
    if frozen:
        with pytest.raises(TypeError, match='read-only'):
            other.a.b.append(1)
    else:
        other.a.d = 7
        assert other.a.d == 7


@pytest.mark.slow
def test_config_module_does_not_import_torch():
    code = 'import sys, zoo.config.section, zoo.config.source, zoo.config.schedule; sys.exit("torch" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code], check=False).returncode == 0


def nested(n: int) -> dict:
    """A dict with n levels of nesting."""
    return {} if n == 1 else {'a': nested(n - 1)}


def test_plain_of_what_contains_itself_or_is_too_deep_says_so():
    loop: dict = {}
    loop['env'] = [loop]
    for data in (loop, nested(102)):
        with pytest.raises(ConfigError, match='contains itself, or is nested more than 100 levels deep'):
            plain(data)
    assert plain(nested(101)) == nested(101)


def test_levels_of_lists_count_like_those_of_dicts() -> None:
    levels: list = []
    for _ in range(100):
        levels = [levels]
    assert plain(levels) == levels
    with pytest.raises(ConfigError, match='nested more than 100 levels deep'):
        plain([levels])


def test_plain_takes_as_many_dicts_and_lists_as_the_message_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo.config.section, 'MAX_CONTAINERS', 3)
    assert plain({'a': [1], 'b': {}}) == {'a': [1], 'b': {}}
    with pytest.raises(ConfigError, match='the config has more than 3 dicts and lists'):
        plain({'a': [1], 'b': {}, 'c': ()})


@pytest.mark.parametrize(
    'data, said',
    [
        ({'size': 'x' * 1000}, f"size is '{'x' * 56}... (string) but must be"),
        ({'a\n\x1b[31mb': 1}, r'unknown key a\n\x1b[31mb: '),
        ({'x' * 500: 1}, f'unknown key {"x" * 300}...'),
        ({'size': 10**5_000}, 'size is an integer too long to show (integer) but must be'),
        ({'size': [10**5_000]}, 'size is a list too long to show (list) but must be'),
    ],
)
def test_message_about_odd_text_and_numbers_is_one_line(data, said):
    with pytest.raises(ConfigError) as error:
        validate(Sized, data)
    assert error.value.problems[0].startswith(said) and str(error.value).isprintable()


class Sized(Section):
    size: int = Field(3, ge=1, le=9)


def test_section_is_read_as_a_dict_of_its_keys_without_what_it_computes() -> None:
    section = frozen(Own, {'e': 3})
    assert section.twice == 6 and plain(section) == {'e': 3} and pickle.loads(pickle.dumps(section)) == section
    assert (list(section), len(section), list(section.values())) == (['e'], 1, [3])
    assert section == {'e': 3} and section | {'y': 2} == {'e': 3, 'y': 2}
    assert section['e'] == section.get('e') == 3 and section.get('z', 5) == 5 and 'z' not in section


class _Alias(types.GenericAlias):
    """list[str] as on Python 3.10, where isinstance(list[str], type) is true."""

    __class__ = property(lambda self: type)  # type: ignore[assignment]


def test_generic_alias_of_python_3_10_is_no_class() -> None:
    alias = _Alias(list, (str,))
    assert isinstance(alias, type)
    assert not is_class(alias, object) and is_class(Section, Section) and not is_class(Section(), Section)
    assert sections_of(alias) == [] and describe(alias) == describe(list[str])
    assert parse_value('[a, b]', FieldInfo(annotation=alias)) == ['a', 'b']


def test_types_are_told_by_one_function() -> None:
    folder = Path(zoo.__file__).parent
    files = [*folder.glob('config/*.py'), folder / 'run' / 'config.py', folder / 'model' / 'encoder.py']
    found = [
        f'{file.name}: {line}' for file in files for line in file.read_text().splitlines() if 'issubclass(' in line
    ]
    assert len(found) == 1 and found[0].startswith('section.py: '), found


def test_keys_that_differ_may_have_a_dot_in_them() -> None:
    one, two = ({'env': {'id': 'a', 'schedule': {'kwargs.size': [n]}}} for n in (1, 2))
    assert differing_keys([one, two]) == ['env.schedule.kwargs.size'] and differing_keys([one, one]) == []


def test_repr_of_a_section_shows_what_is_not_the_default() -> None:
    class Listed(Section):
        sizes: list[int] = Field(default_factory=lambda: [64, 64])
        rate: float = 0.1

    assert repr(Listed()) == 'Listed()' and repr(Listed(rate=0.2)) == 'Listed(rate=0.2)'
    assert repr(Listed(sizes=[8])) == 'Listed(sizes=[8])'


def test_field_whose_metadata_has_no_hash_takes_values_of_its_type() -> None:
    class Speed(Section):
        limit: Annotated[int, {'unit': 'm/s'}] = 1

    field = Speed.model_fields['limit']
    assert takes(field, 3) and not takes(field, 'fast')


@pytest.mark.parametrize('value', [float('inf'), float('-inf'), float('nan')])
def test_field_takes_no_number_that_is_not_finite(value: float) -> None:
    assert takes(FieldInfo(annotation=float), 1.5) and not takes(FieldInfo(annotation=float), value)
