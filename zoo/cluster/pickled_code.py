"""Pickled code for runners and ranks: the policy's class and config, code of the user's own script and files."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import platform
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import torch
from gymnasium.envs.registration import load_env_creator

import zoo.core.registry as registries
from zoo.config.section import call_that_made
from zoo.config.source import files_run
from zoo.config.user_code import is_in_file, load_home, split_name
from zoo.core import VERSION
from zoo.core.errors import UserError, show_error
from zoo.core.registry import Registry
from zoo.core.spaces import Space
from zoo.worker.collector import Collector
from zoo.worker.infos import InfoKeys
from zoo.worker.runner_view import TellRunner

OF_THE_LEARNER = {
    'BUFFER_REGISTRY',
    'PIPELINE_REGISTRY',
    'SINK_REGISTRY',
    'STOP_REGISTRY',
    'SAVE_REGISTRY',
    'TOOL_REGISTRY',
}


class RunnerPayload(NamedTuple):
    """The data that all runners of a learner are created from.

    policies: the class of each policy and its arguments, by learner.   env: the section env.   infos: the numbers of infos to
    keep.   seed: of the run.   spaces: of observations and actions of the envs.   collector: makes the collector, as
    `zoo.run.roster.Roster.collector`.   tell: calls the callbacks that have on_runner_rollout, None if there are none.
    """

    policies: dict[str, dict[str, Any]]
    env: dict[str, Any]
    infos: InfoKeys
    seed: int = 0
    spaces: tuple[Space, Space] | None = None
    collector: Callable[..., Collector] | None = None
    tell: TellRunner | None = None


def versions() -> dict[str, str]:
    """Returns the versions that must be the same in a runner and its learner."""
    return {
        'zoo': VERSION,
        'torch': torch.__version__.partition('+')[0],
        'Python': '.'.join(platform.python_version_tuple()[:2]),
    }


def check_versions(learner: Mapping[str, str], host: str, who: str = 'the runner') -> None:
    """Compares the versions of this process with the learner's. Raises: UserError if they differ."""
    for name, here in versions().items():
        if learner[name] != here:
            raise UserError(
                f'{who} on {host} has {name} {here} and the learner {learner[name]}; install the same on both'
            )


def packed(payload: RunnerPayload) -> bytes:
    """Pickles a payload together with the code that it needs. Raises: UserError if it cannot be sent to another process."""
    env = _by_module(dict(payload.env))
    used = set(_words([payload.policies, env]))
    return _packed(payload._replace(env=env), env, list(_entries(used, OF_THE_LEARNER)))


def packed_call(call: object, config: Mapping[str, Any]) -> bytes:
    """Pickles the call that a rank is to make, together with the code that its config needs. Raises: as `packed`."""
    return _packed(call, config['env'], list(_entries(set(_words(config)))))


def _packed(payload: object, env: Mapping[str, Any], entries: list[tuple[str, str, bytes]]) -> bytes:
    """Pickles the payload last, after the code that must be loaded before the payload can be unpickled."""
    folders = [os.path.abspath(path) for path in sys.path]  # where the learner looks for modules
    files = _texts(files_run())
    specs = _dumps(_specs(env), f'env {env["id"]!r}')
    return pickle.dumps((folders, files, entries, specs, _dumps(payload, 'the config, or the policy')))


def _texts(files: Mapping[str, Path]) -> dict[str, tuple[str, str]]:
    """{module: (path, text)} of the files that are still there: one that is gone may be of another run."""
    texts = {}
    for name, path in files.items():
        with suppress(FileNotFoundError):
            texts[name] = (str(path), path.read_text(encoding='utf-8'))
    return texts


def unpacked(data: bytes, host: str, who: str = 'the runner') -> Any:
    """Unpickles a payload, after the code that came with it was loaded and registered in this process.

    Raises: UserError for a module that this process cannot import.
    """
    folders, files, entries, specs, payload = pickle.loads(data)
    sys.path += [path for path in folders if path not in sys.path]
    try:
        for name, (path, source) in files.items():
            if name not in sys.modules:
                _run_file(name, path, source)
        for where, name, entry in entries:
            registry: Registry[Any] = getattr(registries, where)
            if name not in registry:
                item = pickle.loads(entry)  # may register itself
                if name not in registry:
                    registry.register(name, module=item)
        for spec in pickle.loads(specs):
            gymnasium.registry.setdefault(spec.id, spec)
        return pickle.loads(payload)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f'{who} on {host} cannot import what the run uses ({show_error(error)}); install that package there, name '
            'its file by --import path/file.py, which is then sent, or give cluster.working_dir where Ray carries the runners'
        ) from error


def _run_file(name: str, path: str, source: str) -> None:
    """Runs a file of the learner's machine as a module."""
    spec = importlib.util.spec_from_loader(name, None, origin=path)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    module.__file__ = path
    try:
        exec(compile(source, path, 'exec'), vars(module))
    except BaseException:
        del sys.modules[name]
        raise


def _by_module(value: Any) -> Any:
    """Returns the value with each 'path/file.py:name' as 'module:name', by the name of the file's module in this process."""
    if isinstance(value, Mapping):
        return {key: _by_module(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_by_module(x) for x in value]
    if isinstance(value, str) and is_in_file(value):
        return f'{load_home(value, "env").__name__}:{split_name(value)[1]}'
    return value


def _words(value: object) -> Iterator[str]:
    """Yields all strings in nested dicts and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for x in value.values() if isinstance(value, Mapping) else value:
            yield from _words(x)


def _entries(used: set[str], without: Collection[str] = ()) -> Iterator[tuple[str, str, bytes]]:
    """Yields (registry, name, pickled item) for items of the user's code. Raises: UserError if a used item cannot be sent."""
    for where, registry in vars(registries).items():
        if not isinstance(registry, Registry) or where in without:
            continue
        for name, item in registry.entries.items():
            place = registry.places[name]
            if place.startswith(('zoo.', 'zoo:')) or '(plugin of ' in place:
                continue
            try:
                yield where, name, _dumps(item, f'{registry.kind} {name!r}, registered at {place},')
            except UserError:
                if name in used:
                    raise


def _specs(env: Mapping[str, Any]) -> list[Any]:
    """Returns the specs of gymnasium's registry that a runner needs: the env's, and those whose code is in the script."""
    found = []
    for spec in gymnasium.registry.values():
        entry = spec.entry_point
        module = getattr(entry, '__module__', None)
        if isinstance(entry, str):
            module = entry.partition(':')[0]
        if module == '__main__' and isinstance(entry, str):  # in another process __main__ is another module
            creator: Any = load_env_creator(entry)
            found.append(replace(spec, entry_point=creator))
        elif module == '__main__' or spec.id == env['id']:
            found.append(spec)
    return found


def _dumps(value: object, what: str) -> bytes:
    """Pickles a value; classes and functions of the script go by value. Raises: UserError if it cannot be pickled."""
    file = io.BytesIO()
    try:
        _pickler()(file).dump(value)
    except Exception as error:  # the class of a value may raise any error
        raise UserError(
            f'{what} cannot be sent to a runner ({show_error(error, 200)}); define it in a file of its own and give that file '
            'by --import path/file.py, or leave out what holds open files, locks or threads'
        ) from error
    return file.getvalue()


def _pickler() -> Any:
    import cloudpickle  # type: ignore[import-untyped]  # gymnasium depends on it

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """cloudpickle's Pickler, but a registry or a section class made by zoo becomes the other process's own, not a copy."""

        def reducer_override(self, obj: object) -> Any:
            call = call_that_made(obj)
            if call is not None:
                return call
            if isinstance(obj, Registry):
                name = next((name for name, value in vars(registries).items() if value is obj), None)
                if name is not None:
                    return getattr, (registries, name)
            return super().reducer_override(obj)

    return Pickler
