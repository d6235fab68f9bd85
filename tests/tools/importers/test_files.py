"""Configs in files that are read and never run: literals, arguments and calls of code, and YAML."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from zoo.config.section import ConfigError
from zoo.tools.importers.files import (
    COMPUTED,
    Search,
    arguments_of_parser,
    as_search,
    assigned,
    fields_of_class,
    is_computed,
    keywords_of_calls,
    literal_text,
    literals,
    read_code,
    read_yaml,
    setting,
    words_of,
)


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode='eval').body


@pytest.mark.parametrize(
    'text, value',
    [
        ('dict(a=[1, 2], b=nn.ReLU)', {'a': [1, 2], 'b': 'ReLU'}),
        ("{'a': -1e-3, 'b': (1, None)}", {'a': -1e-3, 'b': [1, None]}),
        ('512 * 20', 10_240),
        ('nn.Tanh()', 'Tanh'),
    ],
)
def test_literal_is_read(text: str, value: Any) -> None:
    assert literal_text(text) == value


@pytest.mark.parametrize('text', ['open("x")', '1 +', '"a" * 10', '9 ** 999', 'f(1)'])
def test_code_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        literal_text(text)


def test_yaml_has_anchors_merges_and_float_tags(tmp_path: Path) -> None:
    path = tmp_path / 'a.yml'
    path.write_text('a: &a\n  n: !!float 1e5\nb:\n  <<: *a\n  m: 2\n')
    assert read_yaml(path) == {'a': {'n': 1e5}, 'b': {'n': 1e5, 'm': 2}}


@pytest.mark.parametrize(
    ('text', 'sentence'), [('', 'is empty'), ('- 1', 'holds list'), ('a: [', 'cannot be read as YAML')]
)
def test_yaml_without_keys_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / 'a.yml'
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_yaml(path)


def test_code_is_read_without_running_it(tmp_path: Path) -> None:
    path = tmp_path / 'a.py'
    path.write_text('raise SystemExit("it was run")\nx = 3\n')
    assert [ast.unparse(node) for node in assigned(read_code(path), 'x')] == ['3']
    path.write_text('x = (\n')
    with pytest.raises(ConfigError, match='cannot be read as Python'):
        read_code(path)


def test_setting_that_the_code_computes_is_marked_and_those_next_to_it_are_read() -> None:
    found = setting(expression('{"lr": 1e-3, "n": f(2), **more}'))
    assert found == {'lr': 1e-3, 'n': COMPUTED, '**more': COMPUTED}
    assert is_computed(found) and not is_computed({'lr': 1e-3})
    assert setting(expression('open("x")')) is COMPUTED


@pytest.mark.parametrize(
    ('text', 'kind', 'values'),
    [
        ('tune.grid_search([1, 2])', 'choice', None),
        ('tune.choice([32, 64])', 'choice', (32, 64)),
        ('tune.uniform(0.1, 0.3)', 'uniform', (0.1, 0.3)),
        ('loguniform(1e-5, 1e-3)', 'log', (1e-5, 1e-3)),
        ('tune.randint(1, 5)', 'int', (1, 4)),  # there the end is left out, a space of zoo has it
    ],
)
def test_space_of_a_search_is_read_from_its_call(text: str, kind: str, values: Any) -> None:
    assert setting(expression(text)) == Search(ast.unparse(expression(text)), kind, values or (1, 2))


def test_space_of_a_yaml_file_is_a_search_and_another_dict_is_not() -> None:
    assert as_search({'grid_search': [1, 2]}) == Search('grid_search([1, 2])', 'choice', (1, 2))
    for other in ({'grid_search': 1}, {'grid_search': [1], 'b': 2}, [1, 2], 3):
        assert as_search(other) == other


def test_fields_of_a_class_are_those_with_a_default() -> None:
    tree = ast.parse(
        'class Args:\n    a: int = 1\n    b: int\n    c = 2\n    a: int = 9\nclass Other:\n    d: int = 3\n'
    )
    assert literals(fields_of_class(tree, 'Args').items()) == {'a': 1}


def test_arguments_of_a_parser_have_the_name_that_the_script_reads() -> None:
    calls = (
        "p.add_argument('--num-envs', type=int, default=4)\np.add_argument('file', default=1)\np.add_argument('--b')\n"
    )
    assert literals(arguments_of_parser(ast.parse(calls)).items()) == {'num_envs': 4}


def test_first_value_that_can_be_read_counts() -> None:
    values = [('a', expression('f(1)')), ('a', expression('2')), ('a', expression('3')), ('b', expression('g(1)'))]
    assert literals(values) == {'a': 2, 'b': COMPUTED}


def test_keywords_of_calls_have_the_names_of_positional_arguments_too() -> None:
    tree = ast.parse("PPOConfig().environment('CartPole-v1', render=True).training(lr=1e-3, **more).other(lr=2)")
    found = keywords_of_calls(tree, {'environment': ['env'], 'training': []})
    assert found == {'env': 'CartPole-v1', 'render': True, 'lr': 1e-3, '**more': COMPUTED}


def test_words_are_all_names_and_attributes() -> None:
    assert words_of(ast.parse('x = nn.Tanh()(y)')) == {'x', 'nn', 'Tanh', 'y', ''}
