"""The parts of which translators are made."""

from __future__ import annotations

import pytest

from zoo.config.section import ConfigError
from zoo.tools.importers.conversion import Draft, nearest_divisor, one_of, rows_of, translate

ROWS = rows_of(
    {
        'a.rate': {'to': 'policy.learn.learning_rate', 'value': 'float', 'note': 'a note'},
        'a.seed': {'part': 'seed', 'value': 'count'},
        'a.gone': {'out': 'it is not needed'},
        'a.flag': {'only': [False], 'why': 'leave it off'},
        'b.*': {'out': 'all of b'},
    },
    float=float,
)


def test_every_kind_of_row_is_told():
    draft = Draft()
    translate(draft, ROWS, {'a': {'rate': '1e-3', 'seed': 3.0, 'gone': 1, 'flag': False}, 'b': {'x': 1}}, 'a library')
    found = draft.finish('a test')
    assert found.config == {'policy': {'learn': {'learning_rate': 1e-3}}}
    assert draft.given == {'a.seed': 3}
    assert found.text().splitlines() == [
        'read as a test',
        "a.rate='1e-3'  ->  policy.learn.learning_rate=0.001 (a note)",
        'a.gone=1  left out: it is not needed',
        'a.flag=False  left out: that is how it is here',
        'b.x=1  left out: all of b',
    ]


def test_every_problem_is_a_line_of_one_error():
    draft = Draft()
    translate(draft, ROWS, {'a': {'rate': 'fast', 'flag': True, 'other': 1, 'seed': True}}, 'a library')
    with pytest.raises(ConfigError) as caught:
        draft.finish('a test')
    assert len(caught.value.problems) == 4 and draft.unreadable
    assert 'a.flag is True, which has no counterpart here: leave it off.' in caught.value.problems


def test_key_that_the_table_of_names_knows_gets_its_sentence():
    draft = Draft()
    translate(draft, ROWS, {'a': {'ent_coef': 0.1}}, 'a library')
    assert draft.problems == ['a.ent_coef is 0.1: in zoo it is `policy.learn.entropy_weight`.']


@pytest.mark.parametrize('n, wanted, found', [(256, 64, 64), (200, 32, 40), (8, 256, 8), (7, 3, 7), (4000, 128, 125)])
def test_nearest_divisor_is_the_closest_by_ratio(n, wanted, found):
    assert nearest_divisor(n, wanted) == found  # of 7: 7 / 3 = 2.33, 3 / 1 = 3


def test_nearest_divisor_of_a_large_number_is_quick():
    assert nearest_divisor(2**39, 1000) == 1024


def test_one_of_reads_names_classes_and_instances():
    class Tanh:
        pass

    read = one_of({'tanh': 'tanh'})
    assert [read(value) for value in ('tanh', 'nn.Tanh', Tanh, Tanh())] == ['tanh'] * 4
    with pytest.raises(ValueError, match='one of tanh'):
        read('relu')
