"""Components in a config: validation, defaults, components made from functions and from classes, error messages."""

from __future__ import annotations

import functools
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import Field

from zoo.config.components import Component, checked_spec, component_of, make_component, options_of, summary_of
from zoo.config.section import Config, ConfigError, Section, validate
from zoo.core.registry import COMPONENTS, SURROGATE_REGISTRY, Registry

if TYPE_CHECKING:
    from torch import Tensor as OnlyForTypeCheckers

SAUCES: Registry[Any] = Registry('sauce', 'tests.sauces')


@SAUCES.register('plain')
def plain_sauce(x: OnlyForTypeCheckers) -> OnlyForTypeCheckers:
    """Nothing but the dish.

    More about it.
    """
    return x


@SAUCES.register('hot')
def hot_sauce(
    x: OnlyForTypeCheckers,
    spoons: int = 1,
    *,
    chili: Annotated[float, Field(gt=0, description='in grams')] = 0.5,
    herbs: list[str] = ['mint'],  # noqa: B006
    salt: float | None = None,
) -> Any:
    """Hot."""
    return (x, spoons, chili, herbs, salt)


@SAUCES.register('wrapped')
@functools.wraps(hot_sauce)
def wrapped_sauce(*args: Any, **kwargs: Any) -> Any:
    return hot_sauce(*args, **kwargs)


@SAUCES.register('cold')
@dataclass(frozen=True, kw_only=True)
class ColdSauce:
    """Cold."""

    ice: Annotated[int, Field(ge=1)] = 2
    herbs: tuple[str, ...] = ()


def sauce_of_tuples(
    x: Any,
    *,
    herbs: tuple[str, ...] = (),
    places: tuple[int, int] | None = None,
    sizes: Annotated[tuple[int, ...], Field(min_length=1)] = (1,),
) -> Any:
    """Options that are lists in a config."""
    return (x, herbs, places, sizes)


class StoredConfig(Section):
    """Its options."""

    type: str = 'stored'
    age: int = Field(3, ge=0, description='in years')


@SAUCES.register('stored')
class StoredSauce:
    """From the cellar."""

    config = StoredConfig

    def __init__(self, cfg: StoredConfig, cook: str = 'nobody') -> None:
        self.age, self.cook = cfg.age, cook


@SAUCES.register('unhashable')
@dataclass(kw_only=True)
class UnhashableSauce:
    """Has an __eq__ but no __hash__."""

    ice: int = 2


@SAUCES.register('slotted')
@dataclass(frozen=True, kw_only=True, slots=True)
class SlottedSauce:
    """Takes no attributes."""

    ice: int = 2


class Dish(Section):
    sauce: component_of(SAUCES, 'dish.sauce') = Field('plain', description='on top')  # type: ignore[valid-type]
    other: component_of(SAUCES, 'dish.other') | None = Field(None, description='beside')  # type: ignore[valid-type]


def test_a_function_is_called_with_its_options():
    part = make_component(SAUCES, {'type': 'hot', 'chili': 2, 'salt': 1.0})
    assert part('fish') == ('fish', 1, 2.0, ('mint',), 1.0)
    assert part('fish', 4)[1] == 4  # positional parameters are not options, with or without a default
    assert (part.kind, part.name, part.function) == ('sauce', 'hot', hot_sauce)
    defaults = {'type': 'hot', 'chili': 0.5, 'herbs': ['mint'], 'salt': None}
    assert make_component(SAUCES, 'hot') == make_component(SAUCES, defaults)
    assert make_component(SAUCES, {'type': 'wrapped', 'chili': 3.0})('fish')[2] == 3.0  # a decorated function


def test_components_are_values():
    one, same, other = (make_component(SAUCES, {'type': 'hot', 'herbs': [x]}) for x in 'aab')
    assert one == same and hash(one) == hash(same) and one != other
    assert pickle.loads(pickle.dumps(Component('text', 'len', len))) == Component('text', 'len', len)
    with pytest.raises(AttributeError):
        one.name = 'x'


def test_an_object_is_made_of_its_options_and_has_what_a_part_has():
    one, same, other = (make_component(SAUCES, {'type': 'cold', 'ice': x}) for x in (5, 5, 6))
    assert one == ColdSauce(ice=5)
    assert (one.kind, one.name, one.options) == ('sauce', 'cold', (('ice', 5), ('herbs', ())))
    assert one == same and hash(one) == hash(same) and one != other
    stored = make_component(SAUCES, {'type': 'stored', 'age': 7}, 'Ann')  # age is an option, 'Ann' the caller's cook
    assert (stored.age, stored.cook) == (7, 'Ann')
    assert (stored.kind, stored.name) == ('sauce', 'stored') and dict(stored.options)['age'] == 7 and hash(stored)


def test_a_completed_config_with_a_tuple_is_taken_again():
    own: Registry[Any] = Registry('sauce', 'tests.own')
    own.register('tuples')(sauce_of_tuples)
    done = checked_spec(own, {'type': 'tuples', 'herbs': ['dill'], 'places': [1, 2]}, 'dish.sauce')
    assert done == {'type': 'tuples', 'herbs': ['dill'], 'places': [1, 2], 'sizes': [1]}
    assert checked_spec(own, done, 'dish.sauce') == done
    assert make_component(own, done)('fish') == ('fish', ('dill',), (1, 2), (1,))
    with pytest.raises(ConfigError, match=r'dish\.other\.herbs is 3 \(integer\) but must be a list of texts'):
        validate(Dish, {'other': {'type': 'cold', 'herbs': 3}})


def test_functions_and_objects_that_share_a_name_stay_apart():
    class Sauce:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def __call__(self, x: int) -> int:
            return self.factor * x

    own: Registry[Any] = Registry('sauce', 'tests.own', takes_code=True, keeps_code=True)

    class Menu(Section):
        first: component_of(own, 'menu.first')  # type: ignore[valid-type]
        second: component_of(own, 'menu.second')  # type: ignore[valid-type]

    for first, second in [(Sauce(2), Sauce(3)), (lambda x: 2 * x, lambda x: 3 * x)]:
        menu = validate(Menu, {'first': first, 'second': second})
        assert [make_component(own, spec)(5) for spec in (menu.first, menu.second)] == [10, 15]


def test_the_section_that_a_class_gets_can_be_pickled():
    given = []

    class Keeper(StoredSauce):
        def __init__(self, cfg):
            given.append(cfg)

    own: Registry[Any] = Registry('sauce', 'tests.own')
    own.register('keeper')(Keeper)
    make_component(own, {'type': 'keeper', 'age': 9})
    assert pickle.loads(pickle.dumps(given[0])).age == 9 and type(given[0]) is StoredConfig


@pytest.mark.parametrize(
    ('name', 'text'), [('unhashable', 'whose objects have no hash'), ('slotted', 'leave out its __slots__')]
)
def test_an_object_that_cannot_be_a_part_is_refused(name, text):
    with pytest.raises(ConfigError, match=f"sauce '{name}' is of class .*{text}"):
        make_component(SAUCES, name)


def test_options_are_typed_fields():
    fields = options_of(hot_sauce).model_fields
    assert list(fields) == ['chili', 'herbs', 'salt'] and fields['chili'].description == 'in grams'
    assert options_of(StoredSauce) is StoredConfig and not options_of(plain_sauce).model_fields


def test_summary_is_the_first_line():
    assert [summary_of(x) for x in (plain_sauce, ColdSauce, lambda: 0)] == ['Nothing but the dish.', 'Cold.', '']


def test_a_name_stays_a_name_and_a_dict_is_completed_in_the_resolved_config_which_resolves_to_itself():
    assert validate(Dish, {'sauce': 'hot'}).sauce == 'hot'
    dish = validate(Dish, {'sauce': {'type': 'hot', 'chili': 1}, 'other': {'type': 'cold'}})
    assert dish.sauce == {'type': 'hot', 'chili': 1.0, 'herbs': ['mint'], 'salt': None}
    assert dish.other == {'type': 'cold', 'ice': 2, 'herbs': []}
    dish = validate(Dish, {'sauce': dish.sauce, 'other': 'plain'})
    again = validate(Dish, Config(dict(dish)).read_only())
    assert again == dish and make_component(SAUCES, again.sauce) == make_component(SAUCES, {'type': 'hot', 'chili': 1})


def test_common_options_are_checked_but_not_given_to_the_part():
    class Common(Section):
        weight: float = Field(1.0, ge=0, description='of the sauce')

    spec = checked_spec(SAUCES, {'type': 'hot', 'weight': 2}, 'dish.sauce', Common)
    assert spec['weight'] == 2.0 and spec['chili'] == 0.5
    assert dict(make_component(SAUCES, spec, common=Common).options).keys() == {'chili', 'herbs', 'salt'}
    with pytest.raises(ConfigError, match='dish.sauce.weight is -1'):
        checked_spec(SAUCES, {'type': 'hot', 'weight': -1}, 'dish.sauce', Common)


@pytest.mark.parametrize(
    ('spec', 'text'),
    [
        (
            'hott',
            "dish.sauce: unknown sauce 'hott': did you mean 'hot'? registered: cold, hot, plain, slotted, stored, unhashable, wrapped.",
        ),
        ({'type': 'hott'}, "dish.sauce: unknown sauce 'hott': did you mean 'hot'?"),
        (
            {'chili': 1.0},
            'dish.sauce has no type but must name a sauce; use one of cold, hot, plain, slotted, stored, unhashable, wrapped.',
        ),
        ({'type': 3}, 'dish.sauce.type is 3 but must name a sauce; use one of cold, hot'),
        ({'type': 'hot', 'chilli': 1.0}, 'unknown key dish.sauce.chilli: did you mean dish.sauce.chili?'),
        (
            {'type': 'plain', 'chili': 1.0},
            'unknown key dish.sauce.chili: the keys of dish.sauce are type.',
        ),  # an option of another sauce
        ({'type': 'hot', 'spoons': 2}, 'unknown key dish.sauce.spoons'),
        ({'type': 'hot', 'chili': 0}, 'dish.sauce.chili is 0 (integer) but must be a number > 0; leave it out for 0.5'),
        ({'type': 'hot', 'chili': 'much'}, "dish.sauce.chili is 'much' (string) but must be a number > 0"),
        ({'type': 'cold', 'ice': 1.5}, 'dish.sauce.ice is 1.5'),
        ({'type': 'stored', 'age': -1}, 'dish.sauce.age is -1'),
        (None, 'dish.sauce is '),
        (3, 'dish.sauce is 3'),
        (['hot'], "dish.sauce is ['hot']"),
    ],
)
def test_bad_parts_are_refused_at_their_place(spec, text):
    for check in (lambda: validate(Dish, {'sauce': spec}, 'dish'), lambda: checked_spec(SAUCES, spec, 'dish.sauce')):
        with pytest.raises(ConfigError) as error:
            check()
        assert text in str(error.value)
    if not isinstance(spec, str | dict):
        assert ' but must name a sauce, or be {type: its name, its options}' in str(error.value)


def test_an_option_without_default_or_type_or_that_is_called_type_is_refused():
    def no_default(x: int, *, chili: float) -> None: ...

    def no_type(x: int, *, chili=0.5) -> None: ...

    def confusing(x: int, *, type: str = 'a') -> None: ...

    for function, said in (
        (no_default, "no_default has the option 'chili' without a default or without a type"),
        (no_type, "no_type has the option 'chili' without a default or without a type"),
        (confusing, "confusing has an option 'type', the key that names a component"),
    ):
        with pytest.raises(ConfigError, match=said):
            options_of(function)


@pytest.mark.parametrize('path', COMPONENTS)
def test_every_registered_part_has_options_and_a_summary(path):
    registry = COMPONENTS[path]
    assert registry.names() or path == 'policy.learn.options'  # zoo's own options have separate config keys
    for name in registry.names():
        assert summary_of(registry.get(name)), name
        described = {key: field.description for key, field in options_of(registry.get(name)).model_fields.items()}
        assert all(described.values()), (name, described)


@pytest.mark.parametrize('wrong', [lambda a, b, c: a, lambda a, b, c, d, e: a], ids=['too few', 'too many'])
def test_a_function_with_other_arguments_is_refused_by_name(wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SURROGATE_REGISTRY.entries, 'wrong', wrong)
    with pytest.raises(ConfigError, match=r"surrogate 'wrong' .* is called with \(log_ratio, ratio, adv, clip_ratio\)"):
        make_component(SURROGATE_REGISTRY, 'wrong')
