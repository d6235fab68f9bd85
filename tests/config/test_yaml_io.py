"""Configs loaded from YAML files and saved to them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from zoo.config.section import Config, ConfigError, plain
from zoo.config.source import load_config
from zoo.config.yaml_io import config_of_yaml, function_name, save_yaml, storable, value_text


class Stored:
    """A class that has a name."""


def refused(source: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(source)
    return str(error.value)


def make_my_env() -> None:
    """An example of a user's env function."""


def aliases(n_level: int, n: int) -> str:
    """A few lines of YAML whose aliases expand to n ** n_level values."""
    levels = ''.join(f'a{i}: &a{i} [{", ".join([f"*a{i - 1}"] * n)}]\n' for i in range(1, n_level))
    return f'a0: &a0 [{", ".join("x" * n)}]\n{levels}'


@pytest.mark.slow(first=True)
@pytest.mark.parametrize(
    'text, said',
    [
        (aliases(7, 9), 'the config has more than 100,000 dicts and lists, those of YAML aliases counted at each'),
        ('- 1', 'holds list, not the keys of a config; write key: value lines.'),
        ('', 'is empty; write the keys of a config, e.g. env: {id: CartPole-v1}.'),
        ('a: {b: 1}\na: {c: 2}', "is not valid YAML: key 'a' appears twice"),
        ('a: [1', 'is not valid YAML: '),
        ('\x00', 'is not valid YAML: '),
        ('a: !!python/object/apply:os.getcwd []', 'is not valid YAML: could not determine a constructor'),
        ('env: &e\n  kwargs: *e', 'the config contains itself, or is nested more than 100 levels deep'),
        ('&e\nenv: [*e]', 'the config contains itself, or is nested more than 100 levels deep'),
        ('env: ' + '[' * 500 + ']' * 500, 'not valid YAML: it has more than 100 levels'),
        ('\n'.join(' ' * n + 'a:' for n in range(500)), 'not valid YAML: it has more than 100 levels'),
        ('seed: ' + '1' * 10_000, "not valid YAML: '1111"),
        ('seed: !!int x', "not valid YAML: 'x' cannot be read as int"),
        ('seed: !!bool x', "not valid YAML: 'x' cannot be read as bool"),
        ('seed: !!timestamp 2024-13-45', 'not valid YAML: could not determine a constructor'),
        ('seed: !!set {a}', 'not valid YAML: could not determine a constructor'),
    ],
    ids=lambda value: value[:12],
)
def test_load_yaml_that_is_no_config_or_that_python_cannot_hold_says_why(tmp_path, text, said):
    path = tmp_path / 'a.yaml'
    path.write_text(text)
    problem = refused(path)
    assert problem.startswith(f'{path} ') or 'the config ' in said
    assert said in problem and '\n' not in problem and len(problem) < 500


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        (b'seed: 1\nenv: {id: x}\nseed: 2\n', "key 'seed' appears twice in line 3;"),
        (b'a: 1\n\n\tb: 2\n', r"character '\\t' that cannot start any token in line 3 "),
        (b'a: 1\nb: [1\nc: 2\n', r"got ':' in line 3 \(while parsing a flow sequence that begins in line 2\);"),
        (b'a: 1\nb: !!int x\n', "'x' cannot be read as int in line 2;"),
        (b'a: 1\nb: \xff\n', 'byte 0xff in line 2 is not UTF-8;'),
        (b'a: \x00', r'character U\+0000 is not allowed \(it is number 4 of the text\);'),
    ],
)
def test_error_in_a_yaml_file_names_the_file_and_the_line(tmp_path, text, said):
    path = tmp_path / 'a.yaml'
    path.write_bytes(text)
    problem = refused(path)
    assert problem.startswith(f'{path} is not valid YAML: ') and '<unicode string>' not in problem
    assert re.search(said, problem), problem


def test_yaml_may_have_as_many_levels_as_a_dict(tmp_path):
    levels: list[Any] = []
    for _ in range(99):
        levels = [levels]
    assert plain({'env': levels}) == {'env': levels}  # 101 dicts and lists; `plain` refuses one more
    with pytest.raises(ConfigError, match='more than 100 levels'):
        plain({'env': [levels]})
    (tmp_path / 'a.yaml').write_text(f'env: {levels}')
    assert load_config(tmp_path / 'a.yaml')[0] == {'env': levels}
    (tmp_path / 'a.yaml').write_text(f'env: {[levels]}')
    assert 'it has more than 100 levels' in refused(tmp_path / 'a.yaml')


def test_load_yaml_with_some_aliases_copies_what_they_name(tmp_path):
    (tmp_path / 'a.yaml').write_text('a: &a {b: 1}\nc: *a\nd: [*a, *a]\n' + aliases(4, 4).replace('a', 'x'))
    data = load_config(tmp_path / 'a.yaml')[0]
    assert data['a'] == data['c'] == data['d'][0] == data['d'][1] == {'b': 1}
    assert data['a'] is not data['c'] and data['d'][0] is not data['d'][1]


def test_load_yaml_reads_numbers_as_python_would(tmp_path):
    texts = '1e-3 2.5E4 .5 1. 100_000 -7 0x10 +3e2 null ~ true off 1:30 2024-01-01 "1e-3" [1,2.0] 010 no'.split()
    wanted = [0.001, 25000.0, 0.5, 1.0, 100000, -7, 16, 300.0, None, None, True, 'off', '1:30', '2024-01-01', '1e-3']
    path = tmp_path / 'a.yaml'
    path.write_text('p:\n' + ''.join(f'{i}a: {text}\n' for i, text in enumerate(texts)))
    assert list(load_config(path)[0].values()) == [None, *wanted, [1, 2.0], '010', 'no']


TRICKY = ['', *'off none null ~ 1e-3 1_0 010 0x .5 1:30 = << true No #a 2024-01-01'.split(), '\x85']
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


@pytest.mark.long
@settings(max_examples=40)
@given(data=TREES)
def test_save_yaml_and_load_give_the_same_values_and_types(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / 'round_trip.yaml'
    save_yaml(data, path)
    assert same(load_config(path)[0], data)


def test_save_yaml_names_functions(tmp_path):
    save_yaml(Config(env=dict(id=make_my_env)).read_only(), tmp_path / 'a.yaml')
    assert (tmp_path / 'a.yaml').read_text() == f'env:\n  id: {__name__}:make_my_env\n'


@pytest.mark.slow
def test_function_of_the_running_script_gets_the_name_it_is_imported_by(tmp_path):
    script = tmp_path / 'my_script.py'
    script.write_text(
        'from zoo.config.yaml_io import function_name\ndef make(): pass\nassert function_name(make) == '
        '"my_script:make"\nclass Env: pass\nassert function_name(Env) == "my_script:Env"\n'
    )
    subprocess.run([sys.executable, str(script)], check=True, env={'PYTHONPATH': ':'.join(p for p in sys.path if p)})
    assert function_name(Stored) == f'{__name__}:Stored'


def test_value_text_is_what_one_types() -> None:
    values = [None, True, 1e-05, 'auto', [64, 64], {'type': 'clip', 'ratio': 0.2}, {}, ['käse']]
    texts = ['null', 'true', '1.0e-05', 'auto', '[64, 64]', '{type: clip, ratio: 0.2}', '{}', '[käse]']
    assert list(map(value_text, values)) == texts
    assert value_text(list(range(1_000))) == str(list(range(1_000)))  # a long value is written on one line too


def test_stored_config_has_no_passwords_in_sinks_and_all_other_texts_as_they_are() -> None:
    url = 'https://me:secret@host/x'
    cfg = {
        'env': {'kwargs': {'url': url}},
        'logger': {'sinks': [{'type': 'my:Sink', 'options': {'url': url}}], 'freq': 1},
    }
    stored = storable(cfg)
    assert stored['env']['kwargs']['url'] == url and stored['logger']['freq'] == 1
    hidden = stored['logger']['sinks'][0]['options']['url']
    assert 'secret' not in hidden and 'host/x' in hidden
    assert 'secret' not in str(storable(cfg, hides=True))


def test_yaml_file_with_too_many_keys_and_values_is_refused_at_the_line_of_the_first_too_many(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('zoo.config.yaml_io.MAX_NODE', 5)  # the whole, and two keys with their values
    (tmp_path / 'a.yaml').write_text('seed: 1\nexp_name: x\n')
    assert load_config(tmp_path / 'a.yaml')[0] == {'seed': 1, 'exp_name': 'x'}
    (tmp_path / 'a.yaml').write_text('seed: 1\nexp_name: x\n\nmax_env_step: 9\n')
    with pytest.raises(ConfigError, match='more than 5 keys and values in line 4'):
        load_config(tmp_path / 'a.yaml')


@pytest.mark.long
@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('{' + ', '.join(f'k{i}: 1' for i in range(11_000)) + '}', 'more than 20,000 keys and values in line 1'),
        ('x: ' + 'y' * (1 << 20), 'cannot be read .it has more than 1,048,576 bytes'),
    ],
    ids=['keys', 'bytes'],
)
def test_yaml_file_that_is_too_large_is_refused(text: str, said: str, tmp_path) -> None:
    (tmp_path / 'a.yaml').write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_config(tmp_path / 'a.yaml')


def test_text_that_is_no_unicode_is_written_and_read_back(tmp_path: Path) -> None:
    """Names of folders may have any bytes; Python reads a byte that is not UTF-8 as a lone surrogate."""
    config = {'logger': {'root': '/data/caf\udce9'}, '\ud800': 1}
    save_yaml(config, tmp_path / 'a.yaml')
    assert config_of_yaml(tmp_path / 'a.yaml') == config
    assert b'caf\\uDCE9' in (tmp_path / 'a.yaml').read_bytes()
