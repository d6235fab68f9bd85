"""The public surface of the imported zoo: all that users can name. `python -m tests.old_house.surface` prints it as JSON.

Only this file of the tests knows where things are. It asks the command `zoo`, the registries of `zoo`, and the modules that
the pages and examples name. It imports nothing else of zoo.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
PAGES = ('README.md', 'CONTRIBUTING.md', 'SECURITY.md', 'docs', 'examples', 'dizoo_configs', 'zoo/tools/cli/starts')
OFFERS = (  # packages with public names: those of the reference pages, and those that list what they offer
    'zoo',
    'zoo.policy',
    'zoo.model',
    'zoo.env',
    'zoo.rl_utils',
    'zoo.buffer',
    'zoo.sweep',
    'zoo.run.sinks',
    'zoo.policy.export',
    'zoo.config.foreign',
    'zoo.backend.native',
    'zoo.cli',
)
NEEDED = {  # the options without a default, for each component that has such options
    'bound': {'metric': 'eval/return_mean', 'above': 1.0},
    'env_step': {'n': 3},
    'iterations': {'n': 3},
    'patience': {'n': 3},
    'train_iter': {'n': 3},
    'wall_time': {'s': 3.0},
}
LISTS = ('policy.learn.penalties', 'stop', 'logger.sinks')
WHOLE = ('Callback', 'StopRule', 'Sink', 'Evaluation', 'TrainResult')  # users derive from these or receive them
FORMS = {  # values that can also be written as a small section
    'policy.learn.learning_rate': ({'start': 1e-3, 'end': 0.0}, {'start': 1e-3, 'kl_target': 0.01}),
    'policy.learn.entropy_weight': ({'points': [[0, 0.1], [100, 0.0]]},),
    'policy.model.recurrent': ({'cell': 'lstm'}, {'cell': 'gru'}),
}


def surface() -> dict[str, Any]:
    """The whole surface; the keys are the words that a user writes."""
    import zoo

    registries = {name: getattr(zoo, name).names() for name in zoo.__all__ if name.endswith('_REGISTRY')}
    registries['TENSOR_ENV_REGISTRY'] = importlib.import_module('zoo.env').TENSOR_ENV_REGISTRY.names()
    kinds = json.loads(command('list', '--json'))['kinds']
    with tempfile.TemporaryDirectory() as folder:
        found = {
            'all': sorted(zoo.__all__),
            'commands': commands(),
            'lists': sorted(kinds),
            'registries': registries,
            'config': config_keys(Path(folder), registries['POLICY_REGISTRY']),
            'sections': sections(Path(folder), registries['ENCODER_REGISTRY']),
            'offers': {name: offered(name) for name in OFFERS},
            'signatures': {name: described(name) for name in OFFERS[:5]},
        }
    return found


def command(*words: str) -> str:
    """Returns the output of `zoo WORDS`. Raises: RuntimeError if it exits with another code than 0."""
    from zoo.__main__ import main

    out, before = io.StringIO(), sys.argv
    sys.argv = ['zoo', *words]
    try:
        with contextlib.redirect_stdout(out):
            code = main()
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    finally:
        sys.argv = before
    if code:
        raise RuntimeError(f'zoo {" ".join(words)} exits with {code}')
    return out.getvalue()


def commands() -> dict[str, Any]:
    """{command: {'positional': [names], 'options': {option: the name of its value, or ''}}}, read from --help."""
    os.environ['COLUMNS'] = '200'
    names = [words[0] for words in _help_lines(command('--help'), 'positional arguments', indent=4)]
    return {'zoo': _arguments('--help'), **{name: _arguments(name, '--help') for name in names}}


def _arguments(*words: str) -> dict[str, Any]:
    text = command(*words)
    options: dict[str, str] = {}
    for line in _help_lines(text, 'options'):
        flags = [word.rstrip(',') for word in line if word.startswith('-')]
        values = [word.rstrip(',') for word in line if not word.startswith('-')]
        options |= dict.fromkeys(flags, values[0] if values else '')
    return {'positional': [line[0] for line in _help_lines(text, 'positional arguments')], 'options': options}


def _help_lines(text: str, section: str, indent: int = 2) -> Iterator[list[str]]:
    """Yields, for each entry of a section of a --help, the words before its explanation."""
    body = re.search(rf'^{section}:\n(.*?)(?:\n\n|\Z)', text, re.MULTILINE | re.DOTALL)
    for line in body[1].splitlines() if body else ():
        if found := re.match(rf' {{{indent}}}(\S.*?)(?:\s\s|$)', line):
            yield found[1].split()


def config_keys(folder: Path, policies: Iterable[str]) -> dict[str, dict[str, list[Any]]]:
    """{policy: {key: [default, accepted values]}}; each policy but 'ppo' has only its differences from it, None: no such key."""
    found: dict[str, dict[str, list[Any]]] = {}
    for policy in sorted(policies, key=lambda name: (name != 'ppo', name)):
        rows = _config(folder, policy)
        keys = {key: [row['value'], row['range']] for key, row in rows.items()}
        base = found.get('ppo', {})
        own = {key: value for key, value in keys.items() if base.get(key) != value}
        gone = {key: None for key in base if key not in keys}
        found[policy] = own | gone
    return found


def sections(folder: Path, encoders: Iterable[str]) -> dict[str, Any]:
    """{key: {name of a component: all its options}}, also for other values that can be a small section."""
    components = json.loads(command('list', 'parts', '--json'))['parts']
    asked = [(key, name, {'type': name, **NEEDED.get(name, {})}) for key, names in components.items() for name in names]
    asked += [('policy.model.encoder', name, {'type': name}) for name in encoders]
    asked += [(key, json.dumps(form), form) for key, forms in FORMS.items() for form in forms]
    found: dict[str, Any] = {}
    for key, name, spec in asked:
        value = [spec] if key in LISTS else spec
        found.setdefault(key, {})[name] = _complete(folder, key, value)
    return found


def _complete(folder: Path, key: str, value: Any) -> Any:
    """The value as the complete config has it, with the first policy that accepts it; None if no policy does."""
    for policy in ('ppo', 'ppg', 'ppo_offpolicy'):
        with contextlib.suppress(RuntimeError), contextlib.redirect_stderr(io.StringIO()):
            return _config(folder, policy, f'{key}={json.dumps(value)}')[key]['value']
    return None


def bundled(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """{bundled config: {key: value}} of the keys that it sets."""
    rows = {name: json.loads(command('config', name, '--json')) for name in names}
    return {
        name: {key: row['value'] for key, row in keys.items() if row['origin'] != 'default'}
        for name, keys in rows.items()
    }


def _config(folder: Path, policy: str, *overrides: str) -> dict[str, Any]:
    file = folder / f'{policy}.yaml'
    file.write_text(f'env: {{id: CartPole-v1}}\npolicy: {{type: {policy}}}\n')
    return json.loads(command('config', str(file), *overrides, '--json'))


def _texts() -> Iterator[str]:
    for name in PAGES:
        path = ROOT / name
        files = [path] if path.is_file() else [file for end in ('md', 'py', 'txt') for file in path.rglob(f'*.{end}')]
        yield from (file.read_text() for file in files if 'site' not in file.parts)


def offered(module: str) -> list[str]:
    """The public names of a package, without its modules; [] if the package is gone, which another test reports."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return []
    names = getattr(found, '__all__', None) or [name for name in dir(found) if not name.startswith('_')]
    return sorted(name for name in names if name != 'annotations' and not inspect.ismodule(getattr(found, name)))


def described(module: str) -> dict[str, Any]:
    """{name: parameters, and for a class its public members} of the classes and functions that a package offers."""
    found = importlib.import_module(module)
    items = {name: getattr(found, name) for name in offered(module)}
    return {name: _described(item) for name, item in items.items() if inspect.isclass(item) or inspect.isroutine(item)}


def _described(item: Any) -> dict[str, Any]:
    if inspect.isclass(item) and hasattr(item, 'model_fields'):
        return {'members': sorted(item.model_fields)}
    if not inspect.isclass(item):
        return {'parameters': _parameters(item)}
    own = [cls for cls in item.__mro__ if cls.__module__.split('.')[0] == 'zoo']
    members = {name: value for cls in reversed(own) for name, value in vars(cls).items()}
    if item.__name__ in WHOLE or hasattr(item, '_fields'):
        members = {name: value for name, value in members.items() if not name.startswith('_')}
    else:
        members = {name: value for name, value in members.items() if name in _written()}
    methods = {name: _parameters(getattr(item, name)) for name, value in members.items() if _is_method(value)}
    return {'parameters': _parameters(item), 'members': sorted(members), 'methods': methods}


@functools.cache
def _written() -> frozenset[str]:
    """Members that pages and examples write, as `name`, `.name`, `name(`, `name =` or a field `name:`; the three modes; and
    those of the recorded surface, of which the words of a page decide nothing."""
    form = re.compile(r'[.`](_?[A-Za-z]\w*)|\b(_?[A-Za-z]\w*)(?=\(|: | ?=)')
    modes = {'learn_mode', 'collect_mode', 'eval_mode'}
    file = Path(__file__).with_name('files') / 'surface.json'
    packages = json.loads(file.read_text())['signatures'].values() if file.exists() else ()
    recorded = {name for items in packages for item in items.values() for name in item.get('members', ())}
    return frozenset(
        {word for text in _texts() for pair in form.findall(text) for word in pair if word} | modes | recorded
    )


def _is_method(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, staticmethod | classmethod)


def _parameters(item: Any) -> list[list[str]]:
    """[name, kind, default as text or ''] of each parameter."""
    try:
        parameters = inspect.signature(item).parameters.values()
    except (TypeError, ValueError):  # a class without a constructor of its own, as a Protocol's
        return []
    found = [
        [
            each.name,
            each.kind.name,
            '' if each.default is each.empty else re.sub(r' at 0x\w+|\bzoo\.[\w.]+\.', '', repr(each.default)),
        ]
        for each in parameters
    ]
    return [each for each in found if each[0] != 'self']


if __name__ == '__main__':
    torch.set_num_threads(1)
    warnings.simplefilter('ignore', DeprecationWarning)  # of names that have moved
    print(json.dumps(surface()))
