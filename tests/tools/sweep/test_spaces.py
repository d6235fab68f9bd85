"""Spaces as words: what they hold, and a sentence for each mistake."""

from __future__ import annotations

import pytest

from zoo.config.section import ConfigError
from zoo.tools.sweep.spaces import Space, parse_space, split_spaces


@pytest.mark.parametrize(
    ('raw', 'space'),
    [
        ('log(1e-4,1e-2)', Space('log', 1e-4, 1e-2)),
        ('uniform(.1, .4)', Space('uniform', 0.1, 0.4)),
        ('uniform(-1,1,3)', Space('uniform', -1.0, 1.0, n_point=3)),
        ('int(1,10)', Space('int', 1.0, 10.0)),
        ('choice(64,128)', Space('choice', choices=('64', '128'))),
        ('{64, 128}', Space('choice', choices=('64', '128'))),
        ('choice([64,64],[128])', Space('choice', choices=('[64,64]', '[128]'))),
        ('choice({start: 1, end: 0},1e-3)', Space('choice', choices=('{start: 1, end: 0}', '1e-3'))),
        ('{start: 1e-3, end: 0}', None),  # a value: a schedule
        ('1e-3', None),
        ('[64,64]', None),
    ],
)
def test_text_is_read_as_space_or_value(raw: str, space: Space | None) -> None:
    assert parse_space('a.b', raw) == space
    assert space is None or parse_space('a.b', str(space)) == space  # what is printed can be typed


@pytest.mark.parametrize(
    ('raw', 'said'),
    [
        ('log(0,1)', 'no logarithm'),
        ('log(-1,1)', 'no logarithm'),
        ('uniform(2,1)', 'write uniform(1,2)'),
        ('int(3,3)', 'write a.b=3'),
        ('int(1.5,3)', 'two integers'),
        ('log(1e-4)', 'two numbers'),
        ('log(1,2,3,4)', 'two numbers'),
        ('uniform(a,b)', 'two numbers'),
        ('uniform(0,inf)', 'two numbers'),
        ('log(1,2,1)', '1 points'),
        ('log(1,2', 'cut off'),
        ('{1,2', 'cut off'),
        ('choice(1)', 'two values'),
        ('choice(1,1)', 'two values'),
        ('{}x', 'cut off'),
        ('loguniform(1,2)', 'did you mean log?'),
        ('unifrom(1,2)', 'did you mean uniform?'),
        ('normal(0,1)', 'the spaces are log('),
    ],
)
def test_mistake_is_one_sentence(raw: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_space('a.b', raw)
    assert said in str(caught.value) and len(caught.value.problems) == 1 and 'a.b=' in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        split_spaces(['a=log(0,1)', 'b=1', 'c', 'b=2'])
    assert len(caught.value.problems) == 3  # the logarithm, no value, twice


def test_spaces_and_overrides_are_told_apart() -> None:
    spaces, fixed = split_spaces(['seed=1', 'a.b=int(1,2)', 'c={x: 1}'])
    assert list(spaces) == ['a.b'] and fixed == ['seed=1', 'c={x: 1}']


def test_values_stay_inside_when_rounded() -> None:
    space = Space('uniform', 0.123446, 0.2)
    assert space.text(0.123446) == '0.123446'  # rounded it were 0.1234, which is below the low end
    assert space.text(0.1523467) == '0.1523'
    assert float(Space('log', 1e-4, 0.00999999).text(0.00999999)) <= 0.00999999


def test_grid_of_logarithm_has_equal_ratios() -> None:
    assert [float(text) for text in Space('log', 1e-4, 1e-2, n_point=3).grid()] == [1e-4, 1e-3, 1e-2]
    assert Space('uniform', 0.0, 1.0, n_point=3).grid() == ['0.0', '0.5', '1.0']
    assert Space('int', 1, 3).grid() == ['1', '2', '3']


def test_probes_of_a_float_space_are_its_ends_and_no_integer() -> None:
    ends = Space('uniform', 1.0, 3.0).probes()
    assert ends[:2] == ['1.0', '3.0'] and not float(ends[2]).is_integer()
