"""Configs loaded from dicts, files, names and the command line, and saved to a file; the syntax of overrides."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from easydict import EasyDict
from pydantic import Field

from zoo.config.schedule import Schedule
from zoo.config.section import Config, ConfigError, Section
from zoo.config.source import bundled_configs, import_module_or_file, load_config, parse_value, split_override
from zoo.config.user_code import load_code
from zoo.config.yaml_io import storable


def refused(source: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(source)
    return str(error.value)


@pytest.mark.parametrize(
    'source',
    [
        {'seed': 1, 'env': {'id': 'x', 'sizes': (1, 2)}},
        EasyDict(seed=1, env=dict(id='x', sizes=(1, 2))),
        Config(seed=1, env=dict(id='x', sizes=(1, 2))).read_only(),
    ],
)
def test_load_dict_gives_plain_copy(source):
    data, label = load_config(source)
    assert data == {'seed': 1, 'env': {'id': 'x', 'sizes': [1, 2]}} and label == 'config'
    assert type(data) is type(data['env']) is dict and data['env'] is not source['env']


@pytest.mark.parametrize('names', ['config', 'main_config', 'main_config = {}\nconfig'], ids=['own', 'main', 'both'])
def test_load_py_file_takes_its_config_before_its_main_config(tmp_path, names, request):
    path = tmp_path / f'zoo_case_{request.node.callspec.id}.py'
    path.write_text(f'import math\n{names} = dict(seed=3, x=math.inf)\nif __name__ == "__main__":\n    raise OSError\n')
    assert load_config(path) == ({'seed': 3, 'x': float('inf')}, str(path))
    assert load_config(str(path))[0]['seed'] == 3


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


def test_load_py_file_that_changed_is_read_again(tmp_path, monkeypatch):
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
        ('import sys\nconfig = {}\nsys.exit()', 'failed in line 3 with SystemExit; correct it there', SystemExit),
        ('raise SystemExit(0)', 'failed in line 1 with SystemExit: 0; ', SystemExit),
        ('import asyncio\nraise asyncio.CancelledError', 'failed in line 2 with CancelledError; ', BaseException),
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


def test_file_to_import_that_is_missing_is_no_config():
    with pytest.raises(ConfigError, match=r"^there is no file to import '.*/no_such_file.py'; check the path"):
        import_module_or_file('no_such_file.py')


def test_module_to_import_that_fails_names_the_line(tmp_path, monkeypatch):
    (tmp_path / 'zoo_case_failing.py').write_text('\nconfig = {}[1]')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^module 'zoo_case_failing' failed in line 2 of .* with KeyError: 1; "):
        import_module_or_file('zoo_case_failing')


@pytest.mark.parametrize('load', [import_module_or_file, lambda name: load_code(f'{name}:Env', 'env.id')])
def test_module_that_ends_the_process_is_an_error_and_no_exit(load, tmp_path, monkeypatch):
    (tmp_path / 'zoo_case_ending.py').write_text('import sys\n\nsys.exit(0)')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r'zoo_case_ending.* failed in line 3 of .* with SystemExit: 0; correct it'):
        load('zoo_case_ending')


def test_ctrl_c_while_a_file_runs_is_no_mistake_of_the_file(tmp_path):
    (tmp_path / 'zoo_case_long.py').write_text('raise KeyboardInterrupt')
    with pytest.raises(KeyboardInterrupt):
        load_config(tmp_path / 'zoo_case_long.py')


def test_load_name_of_a_bundled_config():
    data, label = load_config('cartpole_ppo')
    assert label == 'cartpole_ppo' and data['env']['id'] == 'CartPole-v1'
    assert bundled_configs()['cartpole_ppo'].name == 'cartpole_ppo_config.py'


def test_without_the_package_of_bundled_configs_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('zoo.config.source.BUNDLED_PACKAGE', 'package_that_is_not_installed')
    assert bundled_configs() == {}


FILES = {
    'zoo_case_empty.py': 'confg = {}',
    'zoo_case_env.py': 'import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n'
    'class MyEnv(gymnasium.Env):\n    pass\n',
}


@pytest.mark.parametrize(
    'source, start, end',
    [
        ('cartpol_ppo', "unknown config 'cartpol_ppo': did you mean 'cartpole_ppo'", ''),
        ('trpo', "unknown config 'trpo': did you mean 'cartpole_trpo'?", ''),  # the name of a policy
        ('ppg_offpolicy', "unknown config 'ppg_offpolicy': did you mean 'cartpole_ppg_offpolicy'?", ''),
        (
            'dna',  # of a policy without a config for CartPole
            "unknown config 'dna': did you mean {'env': {'id': 'CartPole-v1'}, 'policy': {'type': 'dna'}}?",
            '',
        ),
        ('CartPole', "unknown config 'CartPole': did you mean 'cartpole_ppo'?", ''),  # the name of an env
        ('CartPole-v1', "unknown config 'CartPole-v1': did you mean 'cartpole_ppo'?", ''),
        (
            'nothing like it',
            f"unknown config 'nothing like it': zoo list configs shows all {len(bundled_configs())}.",
            '',
        ),
        ('no/such.py', 'there is no config file ', ''),
        ('no_such.yaml', 'there is no config file ', ''),
        ('a/b', "config 'a/b' is not a .py or .yaml file; give one", ''),
        ('a.json', "config 'a.json' is not a .py or .yaml file", ''),
        (3, 'a config is a dict, a path or a name, got int', ''),
        (None, 'a config is a dict, a path or a name, got NoneType', ''),
        *(
            (name, '', ' cannot be a config file (*')
            for name in ('a\0b.yaml', 'a\0b.py', f'{"a" * 5_000}.yaml', '~zoo_case_nobody/a.py')
        ),
        ('zoo_case_empty.py', '', 'has no dict named `config` (or `main_config`); define one.'),
        ('zoo_case_env.py', '', '; to train on its env: zoo train zoo_case_env.py:MyEnv.'),
    ],
    ids=lambda x: repr(x)[:20],
)
def test_load_what_is_no_config_says_so(source, start, end, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    said = refused(source)
    assert said.startswith(start) and len(said) < 400
    assert end.rstrip('*') in said and (end.endswith('*') or said.endswith(end))


# --- overrides ---


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
        ('flag', 'nO', False),
        ('flag', 'fALSE', False),
        ('flag', 'tRUE', True),
        ('mode', 'off', 'off'),
        ('sizes', '[32, 32]', [32, 32]),
        ('anything', 'none', None),
        ('anything', '1e-3', 1e-3),
        ('anything', 'abc', 'abc'),
        ('id', 'CartPole-v1', 'CartPole-v1'),
        ('id', 'a:b', 'a:b'),
        ('free', '{a: {b: 1e-3}}', {'a': {'b': 1e-3}}),
        # a value that does not fit the type is passed on, and validation refuses it
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


@pytest.mark.parametrize('raw', ['[' * 400, '{a: ' * 400, '1' * 10_000, '!!int x', '!!bool x', '*a'])
def test_parse_value_that_is_no_yaml_is_text(raw):
    assert parse_value(raw, Typed.model_fields['size']) == raw


@pytest.mark.parametrize('raw', ['&a [*a]', '{b: &a {c: *a}}'])
def test_parse_value_that_contains_itself_says_so(raw):
    with pytest.raises(ConfigError, match='the config contains itself'):
        parse_value(raw, Typed.model_fields['free'])


@pytest.mark.parametrize('raw', ['/data/run #2', '&a b', 'a\nb', '|', '# a'])
def test_parse_value_of_plain_text_is_all_of_it(raw):
    assert parse_value(raw, Typed.model_fields['text']) == parse_value(raw, Typed.model_fields['maybe']) == raw
    assert parse_value(raw) == raw
    assert parse_value(f"'{raw}'", Typed.model_fields['text']) == raw.replace('\n', ' ')


def test_parse_value_without_a_field_reads_yaml():
    assert [parse_value(raw) for raw in ('none', '1e-3', '3', 'abc', '[1, a]')] == [None, 1e-3, 3, 'abc', [1, 'a']]
