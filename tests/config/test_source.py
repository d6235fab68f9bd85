"""Configs from dicts, files, names and the command line, and back to a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal

import pytest
from easydict import EasyDict
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from zoo.config.schedule import Schedule
from zoo.config.section import Config, ConfigError, Section
from zoo.config.source import (
    bundled_configs,
    function_name,
    import_module_or_file,
    load_config,
    parse_value,
    save_yaml,
    split_override,
    storable,
)


class Typed(Section):
    rate: Schedule = 1e-3
    size: int = Field(3, ge=1)
    share: float = 0.5
    text: str = 'a'
    maybe: str | None = None
    limit: float | None = 0.5
    flag: bool = True
    mode: Literal['off', 'batch'] = 'off'
    sizes: list[int] = []
    anything: Any = None
    id: str | Callable[..., Any] = 'a'
    free: dict[str, Any] = {}


def refused(source: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(source)
    return str(error.value)


def make_my_env() -> None:
    """Stands for a user's own env function."""


@pytest.mark.parametrize(
    'source',
    [
        {'seed': 1, 'env': {'id': 'x', 'sizes': (1, 2)}},
        EasyDict(seed=1, env=dict(id='x', sizes=(1, 2))),
        Config(seed=1, env=dict(id='x', sizes=(1, 2))).freeze(),
    ],
)
def test_load_dict_gives_plain_copy(source):
    data, label = load_config(source)
    assert data == {'seed': 1, 'env': {'id': 'x', 'sizes': [1, 2]}} and label == 'config'
    assert type(data) is type(data['env']) is dict and data['env'] is not source['env']


@pytest.mark.parametrize('name', ['config', 'main_config'])
def test_load_py_file_takes_its_config(tmp_path, name):
    path = tmp_path / f'zoo_case_{name}.py'
    path.write_text(f'import math\n{name} = dict(seed=3, x=math.inf)\nif __name__ == "__main__":\n    raise OSError\n')
    assert load_config(path) == ({'seed': 3, 'x': float('inf')}, str(path))
    assert load_config(str(path))[0]['seed'] == 3


def test_load_py_file_prefers_config_to_main_config(tmp_path):
    (tmp_path / 'zoo_case_both.py').write_text('main_config = {"seed": 1}\nconfig = {"seed": 2}\n')
    assert load_config(tmp_path / 'zoo_case_both.py')[0] == {'seed': 2}


def test_load_py_file_runs_it_once_and_its_functions_can_be_imported(tmp_path):
    path = tmp_path / 'zoo_case_once.py'
    path.write_text(
        'import zoo_case_beside\nzoo_case_beside.runs.append(1)\ndef make(): pass\nconfig = {"env": {"id": make}}\n'
    )
    (tmp_path / 'zoo_case_beside.py').write_text('runs = []\n')
    first, second = load_config(path)[0], load_config(path)[0]
    import zoo_case_beside
    import zoo_case_once

    assert zoo_case_beside.runs == [1]
    assert first['env']['id'] is second['env']['id'] is zoo_case_once.make
    assert storable(first) == {'env': {'id': 'zoo_case_once:make'}}


def test_load_py_file_that_changed_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, 'dont_write_bytecode', True)
    path = tmp_path / 'zoo_case_changed.py'
    for seed in (1, 2):
        path.write_text(f'config = {{"seed": {seed}}}')
        os.utime(path, (seed, seed))  # two writes may fall into one tick of the file system's clock
        assert load_config(path)[0]['seed'] == seed


@pytest.mark.parametrize('stem', ['statistics', 'yaml', 'my-config', 'my.config'])
def test_load_py_file_named_as_a_library_leaves_the_library_alone(tmp_path, stem):
    before = sys.modules.get(stem)
    (tmp_path / f'{stem}.py').write_text('config = {"seed": 4}')
    assert load_config(tmp_path / f'{stem}.py')[0] == {'seed': 4}
    assert sys.modules.get(stem) is before


@pytest.mark.parametrize(
    'text, said, cause',
    [
        ('config = dict(\n  a=1\n  b=2)', 'failed in line 2 with SyntaxError: invalid syntax', SyntaxError),
        ('import json\n\nconfig = json.loads("{")', 'failed in line 3 with JSONDecodeError: Expecting', ValueError),
        ('raise OSError("no\\ndisk")', r'failed in line 1 with OSError: no\ndisk; correct it there', OSError),
        (
            'import zoo_case_nowhere',
            "failed in line 1 with ModuleNotFoundError: No module named 'zoo_case_now",
            ImportError,
        ),
        ('a = "\0"', 'failed with ', Exception),
    ],
)
def test_load_py_file_that_fails_names_the_line_and_is_not_remembered(tmp_path, text, said, cause):
    path = tmp_path / 'zoo_case_broken.py'
    path.write_text(text)
    for _ in range(2):
        with pytest.raises(ConfigError) as error:
            load_config(path)
        assert str(error.value).startswith(f'{path} {said}') and '\n' not in str(error.value)
        assert isinstance(error.value.__cause__, cause)
    assert 'zoo_case_broken' not in sys.modules


def test_module_to_import_that_fails_names_the_line(tmp_path, monkeypatch):
    (tmp_path / 'zoo_case_failing.py').write_text('\nconfig = {}[1]')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^module 'zoo_case_failing' failed in line 2 of .* with KeyError: 1; "):
        import_module_or_file('zoo_case_failing')


@pytest.mark.parametrize('name', ['a\0b.yaml', 'a\0b.py', f'{"a" * 5_000}.yaml', '~zoo_case_nobody/a.py'])
def test_load_path_that_cannot_be_one_says_so(name):
    assert 'cannot be a config file (' in refused(name) and len(refused(name)) < 400


def aliases(n_level: int, n: int) -> str:
    """YAML of a few lines that stands for n ** n_level values."""
    levels = ''.join(f'a{i}: &a{i} [{", ".join([f"*a{i - 1}"] * n)}]\n' for i in range(1, n_level))
    return f'a0: &a0 [{", ".join("x" * n)}]\n{levels}'


@pytest.mark.parametrize(
    'text, said',
    [
        (aliases(9, 9), 'the config has more than 100,000 dicts and lists, those of YAML aliases counted at each'),
        ('env: &e\n  kwargs: *e', 'the config contains itself, or is nested more than 100 levels deep'),
        ('&e\nenv: [*e]', 'the config contains itself, or is nested more than 100 levels deep'),
        ('env: ' + '[' * 5_000 + ']' * 5_000, 'not valid YAML: it has more than 100 levels'),
        ('\n'.join(' ' * n + 'a:' for n in range(5_000)), 'not valid YAML: it has more than 100 levels'),
        ('seed: ' + '1' * 10_000, "not valid YAML: '1111"),
        ('seed: !!int x', "not valid YAML: 'x' cannot be read as int"),
        ('seed: !!bool x', "not valid YAML: 'x' cannot be read as bool"),
        ('seed: !!timestamp 2024-13-45', 'not valid YAML: could not determine a constructor'),
        ('seed: !!set {a}', 'not valid YAML: could not determine a constructor'),
    ],
    ids=lambda value: value[:12],
)
def test_load_yaml_that_python_cannot_hold_says_so(tmp_path, text, said):
    path = tmp_path / 'a.yaml'
    path.write_text(text)
    assert said in refused(path) and '\n' not in refused(path) and len(refused(path)) < 500


def test_load_yaml_with_some_aliases_copies_what_they_name(tmp_path):
    (tmp_path / 'a.yaml').write_text('a: &a {b: 1}\nc: *a\nd: [*a, *a]\n' + aliases(4, 4).replace('a', 'x'))
    data = load_config(tmp_path / 'a.yaml')[0]
    assert data['a'] == data['c'] == data['d'][0] == data['d'][1] == {'b': 1}
    assert data['a'] is not data['c'] and data['d'][0] is not data['d'][1]


def test_load_yaml_reads_numbers_as_python_would(tmp_path):
    path = tmp_path / 'a.yaml'
    path.write_text(
        'a: 1e-3\nb: 2.5E4\nc: .5\nd: 1.\ne: 100_000\nf: -7\ng: 0x10\nh: null\ni: ~\nj: true\nk: off\n'
        'l: 1:30\nm: 2024-01-01\nn: "1e-3"\no: [1, 2.0]\np:\nq: 010\nr: +3e2\ns: no\n'
    )
    assert load_config(path)[0] == {
        'a': 0.001,
        'b': 25000.0,
        'c': 0.5,
        'd': 1.0,
        'e': 100000,
        'f': -7,
        'g': 16,
        'h': None,
        'i': None,
        'j': True,
        'k': 'off',
        'l': '1:30',
        'm': '2024-01-01',
        'n': '1e-3',
        'o': [1, 2.0],
        'p': None,
        'q': '010',
        'r': 300.0,
        's': 'no',
    }


@pytest.mark.parametrize(
    'text, said',
    [
        ('- 1', 'holds list, not the keys of a config; write key: value lines.'),
        ('', 'holds NoneType, not the keys'),
        ('a: {b: 1}\na: {c: 2}', "is not valid YAML: key 'a' appears twice"),
        ('a: [1', 'is not valid YAML: '),
        ('\x00', 'is not valid YAML: '),
        ('a: !!python/object/apply:os.getcwd []', 'is not valid YAML: could not determine a constructor'),
    ],
)
def test_load_yaml_that_is_no_config_says_why(tmp_path, text, said):
    path = tmp_path / 'a.yml'
    path.write_text(text)
    assert refused(path).startswith(f'{path} ') and said in refused(path) and '\n' not in refused(path)


def test_load_name_of_a_bundled_config():
    data, label = load_config('cartpole_ppo')
    assert label == 'cartpole_ppo' and data['env']['id'] == 'CartPole-v1'
    assert bundled_configs()['cartpole_ppo'].name == 'cartpole_ppo_config.py'


def test_load_unknown_name_says_the_closest():
    assert refused('cartpol_ppo').startswith("unknown config 'cartpol_ppo': did you mean 'cartpole_ppo'")
    assert (
        refused('nothing like it')
        == f"unknown config 'nothing like it': zoo list configs shows all {len(bundled_configs())}."
    )


@pytest.mark.parametrize(
    'source, said',
    [
        ('no/such.py', 'there is no config file '),
        ('no_such.yaml', 'there is no config file '),
        ('a/b', "config 'a/b' is not a .py or .yaml file; give one"),
        ('a.json', "config 'a.json' is not a .py or .yaml file"),
        (3, 'a config is a dict, a path or a name, got int'),
        (None, 'a config is a dict, a path or a name, got NoneType'),
    ],
)
def test_load_what_is_no_config_says_so(source, said):
    assert refused(source).startswith(said)


def test_load_py_file_without_config_says_so(tmp_path):
    (tmp_path / 'zoo_case_empty.py').write_text('confg = {}')
    said = refused(tmp_path / 'zoo_case_empty.py')
    assert said.endswith('has no dict named `config` (or `main_config`); define one.')


TRICKY = [
    'off',
    'none',
    'null',
    '~',
    '',
    '1e-3',
    '1_0',
    '010',
    '0x',
    '.5',
    '1:30',
    '=',
    '<<',
    'true',
    'No',
    '#a',
    '2024-01-01',
    '\x85',
]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from(TRICKY)
)
TREES = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        LEAVES, lambda kids: st.lists(kids, max_size=3) | st.dictionaries(st.text(max_size=5), kids), max_leaves=8
    ),
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return type(b) is list and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


@pytest.mark.slow
@given(data=TREES)
def test_save_yaml_and_load_give_the_same_values_and_types(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / 'round_trip.yaml'
    save_yaml(data, path)
    assert same(load_config(path)[0], data)


def test_save_yaml_names_functions(tmp_path):
    save_yaml(Config(env=dict(id=make_my_env)).freeze(), tmp_path / 'a.yaml')
    assert (tmp_path / 'a.yaml').read_text() == f'env:\n  id: {__name__}:make_my_env\n'


def test_function_of_the_running_script_gets_the_name_it_is_imported_by(tmp_path):
    script = tmp_path / 'my_script.py'
    script.write_text(
        'from zoo.config.source import function_name\ndef make(): pass\nassert function_name(make) == '
        '"my_script:make"\nclass Env: pass\nassert function_name(Env) == "my_script:Env"\n'
    )
    subprocess.run([sys.executable, str(script)], check=True, env={'PYTHONPATH': ':'.join(p for p in sys.path if p)})
    assert function_name(Typed) == f'{__name__}:Typed'


@pytest.mark.parametrize(
    'text, parts',
    [
        ('seed=1', ('seed', '1')),
        ('a.b.c=x=y', ('a.b.c', 'x=y')),
        ('--seed=1', ('seed', '1')),
        ('a = ', ('a', '')),
    ],
)
def test_split_override(text, parts):
    assert split_override(text) == parts


@pytest.mark.parametrize('text', ['seed', '=1', 'a..b=1', '.a=1', 'a.=1', ''])
def test_split_override_of_another_form_says_the_form(text):
    with pytest.raises(ConfigError, match='is not key=value; write e.g. policy.learn.learning_rate=1e-3'):
        split_override(text)


@pytest.mark.parametrize(
    'key, raw, value',
    [
        ('rate', '1e-3', 1e-3),
        ('rate', '1', 1),
        ('rate', '{start: 1e-3, end: 0}', {'start': 1e-3, 'end': 0}),
        ('rate', '{points: [[0, 1e-3], [1e5, 0.]]}', {'points': [[0, 1e-3], [1e5, 0.0]]}),
        ('size', '7', 7),
        ('size', '1e6', 10**6),
        ('size', '100_000', 100_000),
        ('share', '1e6', 1e6),
        ('text', '3', '3'),
        ('text', 'none', 'none'),
        ('text', 'on', 'on'),
        ('text', '[1,', '[1,'),
        ('text', '', ''),
        ('text', '# a', '# a'),
        ('text', 'a: b', 'a: b'),
        ('maybe', 'none', None),
        ('maybe', 'null', None),
        ('maybe', 'no', 'no'),
        ('limit', 'None', None),
        ('limit', '3', 3),
        ('flag', 'true', True),
        ('flag', 'False', False),
        ('flag', 'off', False),
        ('flag', 'yes', True),
        ('mode', 'off', 'off'),
        ('sizes', '[32, 32]', [32, 32]),
        ('anything', 'none', None),
        ('anything', '1e-3', 1e-3),
        ('anything', 'abc', 'abc'),
        ('id', 'CartPole-v1', 'CartPole-v1'),
        ('id', 'a:b', 'a:b'),
        ('free', '{a: {b: 1e-3}}', {'a': {'b': 1e-3}}),
        # what no reading fits is handed on for validation to judge
        ('size', '2.5', 2.5),
        ('size', 'x', 'x'),
        ('size', 'true', True),
        ('rate', '0', 0),
        ('rate', '-1', -1),
    ],
)
def test_parse_value_is_typed_by_the_field(key, raw, value):
    got = parse_value(raw, Typed.model_fields[key])
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize('raw', ['[' * 3_000, '{a: ' * 3_000, '1' * 10_000, '!!int x', '!!bool x', '*a'])
def test_parse_value_that_is_no_yaml_is_text(raw):
    assert parse_value(raw, Typed.model_fields['size']) == raw


@pytest.mark.parametrize('raw', ['&a [*a]', '{b: &a {c: *a}}'])
def test_parse_value_that_contains_itself_says_so(raw):
    with pytest.raises(ConfigError, match='the config contains itself'):
        parse_value(raw, Typed.model_fields['free'])


def test_parse_value_without_a_field_reads_yaml():
    assert [parse_value(raw) for raw in ('none', '1e-3', '3', 'abc', '[1, a]')] == [None, 1e-3, 3, 'abc', [1, 'a']]
