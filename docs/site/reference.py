"""Pages that are made from the code itself: every config key, the public names, the parts."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from zoo.config.components import options_of, summary_of
from zoo.core.registry import (
    BUFFER_REGISTRY,
    COMPONENTS,
    DISTRIBUTION_REGISTRY,
    ENCODER_REGISTRY,
    ENV_REGISTRY,
    MODEL_REGISTRY,
    POLICY_REGISTRY,
    Registry,
)
from zoo.run.config import explain_config

ROOT = Path(__file__).resolve().parents[2]
MODULES = ('zoo', 'zoo.policy', 'zoo.model', 'zoo.env', 'zoo.rl_utils')
BASE = 'ppo'
FIRST = ('serial_pipeline', 'load_policy', 'make_policy', 'evaluate', 'read_run')
REGISTRIES = (
    'A registry has names for classes or functions, which configs use. `@REGISTRY.register(NAME)` above a class or function of your '
    'own adds it, `REGISTRY.names()` lists the names, `REGISTRY.get(NAME)` returns what has the name.'
)
KEYS: dict[str, Registry[Any]] = {
    'policy.type': POLICY_REGISTRY,
    'policy.model.type': MODEL_REGISTRY,
    'policy.model.encoder': ENCODER_REGISTRY,
    'policy.model.distribution': DISTRIBUTION_REGISTRY,
    'env.id': ENV_REGISTRY,
    'buffer.type': BUFFER_REGISTRY,
}
TITLES = {
    '': 'The run',
    'env': 'Envs',
    'policy': 'Policy',
    'policy.model': 'Network',
    'policy.learn': 'Learning',
    'policy.collect': 'Collecting',
    'policy.eval': 'Evaluation',
    'buffer': 'Buffer',
    'checkpoint': 'Checkpoints',
    'logger': 'Log',
    'cluster': 'Processes and machines',
}


def pages() -> dict[str, str]:
    """{page: Markdown} of all pages of this kind."""
    made = {
        'reference/config_keys.md': config_keys(),
        'reference/parts.md': parts(),
    }
    made |= {f'reference/api_{name.replace(".", "_")}.md': api(name) for name in MODULES}
    return made


def config_keys() -> str:
    """Every key with its default, meaning and range: all of `ppo`, then what other policies and buffers have besides."""
    rows = _rows(BASE)
    about = (
        'Made from the code, as `zoo config CONFIG --all` prints it. First come all keys of the policy `ppo`; then, for each other '
        'policy, those that it has besides, or with another default. [Configs](../configs.md) says how to change them, and '
        'which ones to change first.'
    )
    lines = ['# Every config key', '', about, '']
    for section, title in TITLES.items():
        lines += [f'## {title}', '', *_table(row for row in rows if _section(row.key) == section), '']
    known = {(row.key, row.wanted, row.description, repr(row.value)) for row in rows}
    for name in POLICY_REGISTRY.names():
        own = [row for row in _rows(name) if (row.key, row.wanted, row.description, repr(row.value)) not in known]
        lines += [
            f'## Policy {name}',
            '',
            *_table(row for row in own if row.key not in ('exp_name', 'policy.type')),
            '',
        ]
    for name in BUFFER_REGISTRY.names():
        lines += [
            f'## Buffer {name}',
            '',
            *_table(row for row in _rows(_user_of(name)) if _section(row.key) == 'buffer'),
            '',
        ]
    return '\n'.join(lines)


def parts() -> str:
    """Everything that a config names, with what it does and its options."""
    lines = [
        '# Every part',
        '',
        'What `zoo list parts` prints. [Parts of an update](../parts.md) says how to use them.',
        '',
    ]
    for key, registry in COMPONENTS.items():
        lines += [f'## {key}', '', '| name | what it does | options |', '|---|---|---|']
        for name in registry.names():
            part = registry.get(name)
            fields = {field: info for field, info in options_of(part).model_fields.items() if field != 'type'}
            options = ', '.join(
                f'`{field}`' if info.is_required() else f'`{field}={info.default}`' for field, info in fields.items()
            )
            lines.append(f'| `{name}` | {_cell(summary_of(part))} | {options} |')
        lines.append('')
    return '\n'.join(lines)


def api(module: str) -> str:
    """The public names of a module, each with its docstring: functions, classes, values, and at the end the registries."""
    room = importlib.import_module(module)
    names = public_names(module)
    kinds: dict[str, list[str]] = {title: [] for title in ('Functions', 'Classes', 'Values', 'Registries')}
    for name in names:
        kinds[_kind_of(getattr(room, name))].append(name)
    lines = [f'# {module}', '', inspect.getdoc(room) or '', '']
    for title, members in kinds.items():
        if members:
            lines += [f'## {title}', '']
        if members and title == 'Registries':
            lines += [REGISTRIES, '', *(f'- {_sentence_of(name, getattr(room, name))}' for name in members), '']
        elif title == 'Functions':
            for name in sorted(members, key=_place_of):
                lines += [f'::: {names[name]}.{name}', '']
        else:
            for name in members:
                lines += [f'::: {names[name]}.{name}', '']
    return '\n'.join(lines)


def _kind_of(value: Any) -> str:
    if isinstance(value, Registry):
        return 'Registries'
    if inspect.isclass(value):
        return 'Classes'
    return 'Functions' if callable(value) else 'Values'


def _place_of(name: str) -> tuple[int, str]:
    """The functions that most programs begin with come first, the others in the order of the alphabet."""
    return (FIRST.index(name) if name in FIRST else len(FIRST), name)


def _sentence_of(name: str, registry: Any) -> str:
    """'`X_REGISTRY`: the encoders, for `policy.model.encoder`; built in are `cnn`, ...'"""
    keys = [key for key, known in {**KEYS, **COMPONENTS}.items() if known is registry]
    used = f', for {" and ".join(f"`{key}`" for key in keys)}' if keys else ''
    built_in = ', '.join(f'`{entry}`' for entry in registry.names())
    return f'`{name}`: each {registry.kind} by its name{used}; ' + (
        f'built in: {built_in}.' if built_in else 'none is built in.'
    )


def public_names(module: str) -> dict[str, str]:
    """{name: the module that defines it} of what a module offers, without modules."""
    room = importlib.import_module(module)
    names = getattr(room, '__all__', None) or [name for name in vars(room) if not name.startswith('_')]
    found = {name: getattr(room, name) for name in names}
    tree = ast.parse(inspect.getsource(room))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]  # those for type checkers too
    home = {alias.asname: node.module for node in imports for alias in node.names if alias.asname == alias.name}
    homes = {
        name: home.get(name) or getattr(value, '__module__', None) or ''
        for name, value in found.items()
        if not inspect.ismodule(value) and name != 'annotations'
    }
    return {
        name: where
        for name, where in homes.items()
        if where.startswith('zoo') and hasattr(importlib.import_module(where), name)
    }


def _rows(policy: str) -> list[Any]:
    return explain_config({'env': {'id': 'CartPole-v1'}, 'policy': {'type': policy}})


def _user_of(buffer: str) -> str:
    """A policy whose buffer is of this type."""
    users = (
        name for name in POLICY_REGISTRY.names() if {row.key: row.value for row in _rows(name)}['buffer.type'] == buffer
    )
    return next(users)


def _section(key: str) -> str:
    """The section of a key: the longest title that it begins with."""
    return max((name for name in TITLES if name == '' or key.startswith(f'{name}.')), key=len) if '.' in key else ''


def _table(rows: Iterable[Any]) -> Iterator[str]:
    rows = list(rows)
    if not rows:
        yield 'None.'
        return
    yield '| key | default | meaning and range |'
    yield '|---|---|---|'
    for row in rows:
        yield f'| `{row.key}` | `{_cell(repr(row.value))}` | {_cell(row.description)} ({_cell(row.wanted)}) |'


def _cell(text: str) -> str:
    return text.replace('|', '\\|').replace('<', '&lt;').replace('\n', ' ')
