"""Consent to what a checkpoint asks for: code that its config would import, addresses that it would reach, unusual sizes."""

from __future__ import annotations

import inspect
import logging
import math
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium

from zoo.config.section import ConfigError, ConfigLike, has_key, value_at
from zoo.config.source import split_override
from zoo.config.user_code import is_in_file, load_home, members, names_code, new_place, split_name
from zoo.config.yaml_io import storable
from zoo.core.errors import UserError
from zoo.core.processes import machine_memory, memory_words
from zoo.core.registry import ENV_REGISTRY
from zoo.core.streams import without_passwords
from zoo.run.checkpoint.consent_memory import MODULE, is_known_env, is_remembered, remember_env, remember_run
from zoo.run.checkpoint.file import CheckpointError, malformed, shown
from zoo.run.checkpoint.schema import SavedRun, leaf_values
from zoo.run.resources import SAMPLE_KEYS, training_bytes
from zoo.worker.evaluation_env import SET_NAME

MOST = {
    'collector_env_num': 1 << 16,
    'evaluator_env_num': 1 << 16,
    'max_episode_steps': 1 << 18,
    'window': 1 << 12,
    'stack_size': 1 << 12,
    'n_thread': 1 << 10,
    'n_step': 1 << 26,
    'n_sample': 1 << 26,
    'batch_size': 1 << 26,
    'aux_batch_size': 1 << 26,
    'critic_batch_size': 1 << 26,
    'size': 1 << 30,
    'len': 1 << 16,
    'epoch_per_collect': 1_000,
    'actor_epoch_per_collect': 1_000,
    'critic_epoch_per_collect': 1_000,
    'aux_train_epoch': 1_000,
    'aux_freq': 1 << 16,
    'aux_window': 1 << 16,
    'update_per_collect': 1 << 16,
}
"""Largest value that a checkpoint may ask for, by key: larger ones use up memory or time before a run has begun."""
MOST_PROCESSES = 1 << 10  # the same for training envs with a process each


def check_sizes(run: SavedRun, sections: Sequence[str], trust: Trust = (), overrides: Sequence[str] = ()) -> None:
    """Checks that sections of a checkpoint's config ask for usual sizes, or that the user consents.

    Keys that an override sets are not checked.
    Raises: CheckpointError with the value, the limit and the key.
    """
    if trust is True:
        return
    replaced = overridden(overrides)
    for path, value in leaf_values({section: run.config[section] for section in sections}):
        is_kwarg = '.kwargs.' in path and path.startswith(('env.', 'policy.eval.'))
        if is_kwarg:
            most = math.inf
        else:
            most = MOST.get(path.rpartition('.')[2], math.inf)
        if path == 'env.collector_env_num' and run.config['env'].get('vectorization') == 'async':
            most = MOST_PROCESSES
        if path not in replaced and isinstance(value, int) and value > most:
            raise CheckpointError(
                run.path,
                f'asks for {path}={value}: more than {most} needs your consent; add --trust (in Python trust=True), or '
                f'another {path} where the command takes overrides',
            )


def check_memory(run: SavedRun, overrides: Sequence[str] = ()) -> None:
    """Checks that the samples of a run with a checkpoint's config fit into memory. Raises: CheckpointError."""
    replaced = overridden(overrides)
    n_byte = training_bytes(run.config, run.obs_space)
    if n_byte > machine_memory() and not replaced.intersection(SAMPLE_KEYS):
        raise CheckpointError(
            run.path,
            f'asks for {n_byte / 1e9:,.0f} GB of memory for samples but {memory_words()}; '
            f'override one of {", ".join(SAMPLE_KEYS)}',
        )


Trust = bool | Sequence[str]
"""True: a checkpoint may use all code and addresses that it names; a list: only code of these modules."""
NAME = re.compile(r'[^\W\d][\w.]*:[^\W\d][\w.-]*')
ENVS = r'(?:env|policy\.eval\.env|policy\.eval\.sets\.[^.]+)'
ENV_ID = re.compile(ENVS + r'\.id')
WRAPPER_PATH = re.compile(ENVS + r'\.wrappers(\..+)?')  # where a config names wrappers of envs, and their arguments
WRAPPERS = re.compile(
    r'gymnasium\.wrappers(\.\w+)?:(AtariPreprocessing|ClipAction|ClipReward|DiscretizeAction|DtypeObservation|'
    r'FilterObservation|FlattenObservation|FrameStackObservation|GrayscaleObservation|MaxAndSkipObservation|'
    r'NormalizeObservation|NormalizeReward|RecordEpisodeStatistics|RescaleAction|RescaleObservation|StickyAction|'
    r'TimeAwareObservation|TimeLimit|TransformAction|TransformObservation|TransformReward)'
)
"""Names that need no consent in env.wrappers; functions in their arguments do."""
CODE_PATH = re.compile(
    rf'callbacks|(?:stop|logger\.sinks)(?:\.type)?|{ENVS}\.(?:id|reset_options|wrappers(?:\..+)?)|'
    r'agents\.(?:policies|mapping|self_play)(?:\..+)?|policy\.collect\.exploration(?:\.type)?|policy\.model\.distribution|'
    r'policy\.learn\.symmetry(?:\..+)?'
)
"""Keys whose values are names of code that is imported."""
DATA_PATH = re.compile(rf'stop\.metric|{ENVS}\.reset_options\..+')
"""Keys whose values are never loaded as code, even if they look like names of code."""
EVALUATION_ENVS = 'policy.eval.env', 'policy.eval.sets'
LISTS = 'env.wrappers', 'stop', 'logger.sinks'
"""Keys whose items have keys of their own; an override replaces all items."""
OLD_GYM = 'GymV21Environment-v0', 'GymV26Environment-v0'
"""Env ids of gymnasium that load any code named in their keyword arguments."""
ADDRESSES: dict[str, tuple[Any, ...]] = {
    'cluster.address': (None,),
    'cluster.engine': ('auto', 'inline', 'process'),
    'cluster.learner_num': (1,),
    'cluster.working_dir': (None,),
    'logger.sinks': ('csv', 'jsonl', 'table', 'tensorboard'),
}
"""Keys of addresses outside of this process and its run folder, each with the values that reach nothing.

A key of the config that is neither here nor in CODE_PATH is plain data: it loads no code and reaches nothing.
"""
OF_CLUSTER = 'cluster.engine', 'cluster.learner_num'  # these name no address, but ask for a cluster
SHIPPED = 'zoo', 'dizoo_configs', 'gymnasium', 'numpy', 'torch'  # modules that are installed wherever zoo is
logger = logging.getLogger(__name__)
given: set[str | tuple[str, Any]] = set()
given_elsewhere: set[str] = set()  # names that a config has given to another key than env.id
approved: set[str] = set()  # names of code in sections agents of checkpoints, and of opponents
given_imports: list[str] = []  # modules and files that `give_imports` was given


def give_names(config: dict[str, Any], remembers_env: bool = False) -> None:
    """Remembers code and addresses of the user's own config: in this process, a checkpoint may name them without consent.

    Args: remembers_env: remember the env for later processes too, if it is in a file or an installed package.
    """
    given.update(name for _, name in _names(storable(config)))
    given_elsewhere.update(name for path, name in _names(storable(config)) if path != 'env.id')
    given.update(_addresses(storable(config)))
    name = str(value_at(config, 'env.id'))
    is_any_code = split_name(name)[1] in OLD_GYM  # its keyword arguments name what is loaded
    if remembers_env and ':' in name and name not in ENV_REGISTRY and not is_any_code:
        remember_env(name)


def give_imports(words: Sequence[str]) -> None:
    """Remembers modules and files that the user asked to import; they may register names that a config has."""
    given_imports.extend(os.path.abspath(word) if word.endswith('.py') else word for word in words)


def consent_words(config: ConfigLike | None = None, run_dir: Path | None = None) -> str:
    """The options by which a command on a checkpoint of this process consents to the code in the user's configs.

    Args: config: of the run that is to continue: also consents to its addresses; None: all configs of this process;
      run_dir: its folder: a run that the user started there needs no consent to its addresses.
    """
    saved = None
    names: set[Any] = given
    if config is not None:
        saved = storable(config)
        names = {name for _, name in _names(saved)} & given
    names = {name for name in names if name in given_elsewhere or not is_known_env(name)}
    modules = {split_name(name)[0] for name in names if isinstance(name, str) and not WRAPPERS.fullmatch(name)}
    words = [f' --import {shlex.quote(module)}' for module in sorted(modules.union(given_imports))]
    if saved is not None and any(_addresses(saved)):
        is_known = run_dir is not None and is_remembered(run_dir, _reached_by(saved))
        if not is_known:
            words += [' --trust']
    return ''.join(words)


def modules_of(config: dict[str, Any]) -> list[str]:
    """The modules and files whose code a config names, sorted; those that come with zoo are left out."""
    modules = {split_name(name)[0] for _, name in _names(config)}
    return sorted(module for module in modules if not comes_with_zoo(module))


def comes_with_zoo(module: str) -> bool:
    """Whether a module is installed wherever zoo is: as part of zoo, of a package that zoo always needs, or of Python."""
    name = module.partition('.')[0]
    return not module.endswith('.py') and (name in SHIPPED or name in sys.stdlib_module_names)


def check_names(
    run: SavedRun,
    sections: Sequence[str],
    trust: Trust = (),
    overrides: Sequence[str] = (),
    without: Sequence[str] = (),
) -> None:
    """Checks that the user consents to all code and addresses in sections of a checkpoint's config; imports only such code.

    Args: trust: True: no more consent is needed, and code that these sections name is imported at once, since it may
      register other names of the config; without: keys of these sections that are not used, with all keys below them.
    Code or an address needs no consent if an override replaces it, or if the user's own config had it in this process. An env
    in a file of the current folder or an installed package needs none if the user has trained on it and it has not changed.
    Raises: CheckpointError for the first one without consent; the message says what to type.
    """
    if isinstance(trust, str):
        raise UserError(f'trust is {trust!r} but must be True or a list of modules; write trust=[{trust!r}]')
    replaced = overridden(overrides)
    config = {section: run.config[section] for section in sections}
    unused = tuple(f'{key}.' for key in (*without, *(key for key in LISTS if key in replaced)))
    names = [
        (path, name) for path, name in _names(config) if path not in replaced and not f'{path}.'.startswith(unused)
    ]
    if trust is True:
        for path, name in names:
            if CODE_PATH.fullmatch(path) and (not is_in_file(name) or os.path.isfile(split_name(name)[0])):
                with suppress(ModuleNotFoundError):  # making the env reports it
                    load_home(name, path)  # it may register other names of the config
        return
    if trust and not (isinstance(trust, list | tuple) and all(isinstance(name, str) for name in trust)):
        raise UserError(f'trust is {shown(repr(trust))} but must be True or a list of modules')
    sets = value_at(run.config, 'policy.eval.sets')
    for name in sets if isinstance(sets, dict) else ():  # a dot in a name would make its keys look like other keys
        if not SET_NAME.fullmatch(name):
            problem = f'policy.eval.sets has an evaluation {shown(name)!r}: use letters, digits, - and _'
            raise malformed(run.path, problem)
    modules = tuple(trust or ())
    for path, name in names:
        module = split_name(name)[0]
        if name in given:
            continue
        if path == 'env.id' and is_known_env(name):
            continue
        if not _is_consented(modules, name):
            raise CheckpointError(run.path, _needs_consent(path, name, module))
        if CODE_PATH.fullmatch(path) and (home := _home_elsewhere(name)):
            raise CheckpointError(
                run.path,
                f'names {shown(name)!r} ({path}), which is code of module {home!r} and not of {module!r}; '
                'if you trust the file, use --trust (in Python trust=True)',
            )
    reached = [
        (path, value)
        for path, value in _addresses(_without_sinks(config, modules))
        if not f'{path}.'.startswith(unused) and path not in replaced and (path, value) not in given
    ]
    if reached and not is_started_here(run):
        path, value = reached[0]
        raise CheckpointError(
            run.path,
            f'{_use_of(config, path, value)} ({path} is {shown(repr(value))}), which needs your consent: if you know it '
            f'and trust the file, add --trust (in Python trust=True), or another {_key_of(path)} where the command takes '
            'overrides',
        )


def approve_agents(run: SavedRun, trust: Trust = ()) -> None:
    """Checks that the user consents to all code in the section agents of a checkpoint, and remembers that in this process.

    Raises: as `check_names`.
    """
    if 'agents' in run.config:
        check_names(run, ('agents',), trust)
        approved.update(name for _, name in _names({'agents': run.config['agents']}))


def approve_opponent(run: SavedRun, trust: Trust) -> None:
    """As `approve_agents`, for the code that a saved run names for its policy, which another run has as an opponent."""
    check_names(run, ('policy',), trust, without=EVALUATION_ENVS)
    approved.update(name for _, name in _names({'policy': run.config['policy']}))


def approved_modules() -> list[str]:
    """The modules and files of the code to which the user has consented in this process, sorted."""
    return sorted({split_name(name)[0] for name in approved})


def refuse_unapproved(agents: object) -> None:
    """Raises: UserError for code in a section agents of a checkpoint that nobody has consented to."""
    for path, name in _names({'agents': storable(agents)}):
        if name not in given and name not in approved:
            module = split_name(name)[0]
            raise UserError(
                f'{path} is {shown(name)!r}, code that a checkpoint names, which is loaded only with your consent: if you trust it, '
                f'load the policies by load_policies(run, trust=[{module!r}]), on the command line with --import '
                f'{shlex.quote(module)}'
            )


def is_started_here(run: SavedRun) -> bool:
    """Whether the user started this run, whose checkpoint is still in its folder, with the same addresses."""
    return run.path.parent.name == 'checkpoints' and is_remembered(run.path.parents[1], _reached_by(run.config))


def remember_started(folder: Path, config: dict[str, Any]) -> None:
    """Remembers that the user started the run in a folder, if its config has addresses: see `is_started_here`."""
    if any(_addresses(storable(config))):
        remember_run(folder, _reached_by(storable(config)))


def _reached_by(config: dict[str, Any]) -> list[Any]:
    """The values of a config that say what its run reaches. A tracker may file it under its exp_name."""
    return [config.get('exp_name'), *(value_at(config, key) if has_key(config, key) else None for key in ADDRESSES)]


def _use_of(config: dict[str, Any], path: str, value: object) -> str:
    """The use of an address in words, e.g. "would write to the W&B project 'tour'". Args: path, value: of the address."""
    if path in OF_CLUSTER:
        return 'asks for a cluster'
    sinks = value_at(config, 'logger.sinks')
    for sink in sinks if isinstance(sinks, list) else ():
        if (path, value) in _addresses({'logger': {'sinks': [sink]}}):
            return f'would write to {_tracker_words(sink if isinstance(sink, dict) else {"type": sink})}'
    return 'names an address'


def _tracker_words(sink: dict[str, Any]) -> str:
    named = {key: shown(repr(option)) for key, option in sink.items() if isinstance(option, str)}
    if sink.get('type') == 'wandb':
        if 'project' in named:
            project = f'the W&B project {named["project"]}'
        else:
            project = 'W&B'
        if 'entity' in named:
            return f'{project} of {named["entity"]}'
        return project
    if sink.get('type') == 'mlflow':
        if 'uri' in named:
            return f'MLflow at {named["uri"]}'
        return 'MLflow'
    return f'the sink {shown(repr(sink.get("type")))}'


def overridden(overrides: Sequence[str]) -> set[str]:
    return {split_override(text)[0] for text in overrides}


def _needs_consent(path: str, name: str, module: str) -> str:
    """The message for code without consent, and what to type."""
    one = f'--import {shlex.quote(module)}'
    python = f'trust=[{module!r}]'
    if is_in_file(name):
        kind = 'the file'
        it = 'checkpoint'
    else:
        kind = 'module'
        it = 'file'
    if it != 'file' or MODULE.fullmatch(module):
        allow = f'{one} or --trust (in Python {python} or True)'
    else:
        allow = '--trust'
    moved = ''
    if path == 'env.id' and is_in_file(name):
        moved = f'; if the file is in another place now, add {shown(shlex.quote(f"env.id={new_place(name)}"))}'
    return (
        f'names code of {kind} {shown(module)!r} ({path} is {shown(name)!r}), which is loaded only with your consent: '
        f'if you know that {kind.removeprefix("the ")} and trust the {it}, add {allow}{moved}'
    )


def _names(config: object) -> Iterator[tuple[str, str]]:
    """Yields path and text of every name of code in a config. An env id with any colon is such a name."""
    for path, value in leaf_values(config):
        if not isinstance(value, str):
            continue
        if ENV_ID.fullmatch(path):
            is_code = ':' in value and value not in ENV_REGISTRY or value in OLD_GYM
        elif (found := WRAPPER_PATH.fullmatch(path)) and found[1] in (None, '.type'):
            is_code = ':' in value and not WRAPPERS.fullmatch(value)
        elif DATA_PATH.fullmatch(path):
            is_code = False
        else:
            is_code = NAME.fullmatch(value) is not None or is_in_file(value)
        if is_code:
            yield path, value


def _addresses(config: object) -> Iterator[tuple[str, Any]]:
    """Yields path and value of every address in a config. In a sink of the user's own, texts among its options count."""
    for path, value in leaf_values(config):
        key = _key_of(path)
        if path == key or path == f'{key}.type':
            is_code = key == 'logger.sinks' and isinstance(value, str) and names_code(value)
            reaches = value not in ADDRESSES.get(key, (value,)) and not is_code
        else:
            reaches = key in ADDRESSES and isinstance(value, str)
        if reaches:
            yield path, without_passwords(value) if isinstance(value, str) else value


def _without_sinks(config: dict[str, Any], modules: Sequence[str]) -> dict[str, Any]:
    """The config without the sinks of these modules: consent to their code includes the addresses that they reach."""
    sinks = value_at(config, 'logger.sinks')
    if not isinstance(sinks, list):
        return config
    types = [sink.get('type') if isinstance(sink, dict) else sink for sink in sinks]
    is_own = [isinstance(name, str) and names_code(name) and _is_consented(modules, name) for name in types]
    kept = [sink for sink, own in zip(sinks, is_own, strict=True) if not own]
    return {**config, 'logger': {**config['logger'], 'sinks': kept}}


def _key_of(path: str) -> str:
    """The key of LISTS that a path is below, since an override replaces all of it; otherwise the path."""
    return next((key for key in LISTS if path.startswith(f'{key}.')), path)


def _is_consented(modules: Sequence[str], name: str) -> bool:
    """Whether the modules with consent have the code of a name: its module, or its file, by any path or already imported."""
    home = split_name(name)[0]
    files = [getattr(sys.modules.get(each), '__file__', None) or each for each in modules]
    is_same = [each.endswith('.py') and os.path.realpath(each) == os.path.realpath(home) for each in files]
    return home in modules or (is_in_file(name) and any(is_same))


def _home_elsewhere(name: str) -> str:
    """The module of another package that a name leads to, as 'my_envs:os.system' does; '' if it leads to none."""
    try:
        imported = load_home(name, '')
    except (ModuleNotFoundError, ConfigError):
        return ''  # making the env reports it
    attribute = split_name(name)[1]
    if attribute in gymnasium.registry:
        return ''
    for found in members(imported, attribute):
        if inspect.ismodule(found):
            home = found.__name__
        else:
            home = getattr(found, '__module__', None) or 'builtins'
        is_code = inspect.ismodule(found) or inspect.isclass(found) or inspect.isroutine(found)
        if is_code and home.partition('.')[0] != imported.__name__.partition('.')[0]:
            return home
    return ''
