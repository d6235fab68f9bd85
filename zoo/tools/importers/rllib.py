"""PPO settings of RLlib (old-style dict, YAML file, PPOConfig chain) -> a config of zoo; code is read, never run."""

from __future__ import annotations

import ast
import inspect
import math
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from zoo.config.names import data_file
from zoo.config.section import ConfigError, put_at
from zoo.core.errors import join_path, shown
from zoo.tools.importers.conversion import (
    Conversion,
    Draft,
    as_count,
    as_number,
    as_positive,
    as_size,
    defaults,
    is_continuous,
    mapping,
    nearest_divisor,
    put_env,
    rows_of,
    translate,
)
from zoo.tools.importers.files import COMPUTED, Name, assigned, keywords_of_calls, literal, setting, words_of

WHO = 'RLlib'


def schedule(value: Any) -> Any:
    """Converts a number, or [[env_step, value], ...] to a schedule of points; None for None. Raises: ValueError."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        if any(not isinstance(point, list | tuple) or len(point) != 2 for point in value):
            raise ValueError('a list must be of pairs [env_step, value]')
        return {'points': [[as_count(step), as_number(x)] for step, x in value]}
    return as_number(value)


def size_or_none(value: object) -> int | None:
    """As `as_size`; None for None. Raises: ValueError."""
    if value is None:
        return None
    return as_size(value)


def bound_or_none(value: object) -> float | None:
    """Converts the bound of a filter; None for None and 0, which are no bound there. Raises: ValueError."""
    if value is None or as_number(value) == 0:
        return None
    return as_positive(value)


TABLES = data_file('zoo.tools.importers', 'rllib.yaml')
MAX_CLIP = 1e6  # of policy.model.obs_clip
ROWS = rows_of(
    TABLES['keys'],
    schedule=schedule,
    bound_or_none=bound_or_none,
    env_kwargs=lambda value: {'kwargs': mapping(value)},
    size_or_none=size_or_none,
    wall_time=lambda s: [{'type': 'wall_time', 's': as_number(s)}],
)
FILTER_ARGUMENTS = {name.partition('.')[2] for name in ROWS if name.startswith('MeanStdFilter.')}


def is_rllib(block: Any) -> bool:
    """Whether a mapping has settings of RLlib's PPO."""
    if not isinstance(block, Mapping):
        return False
    return {'run', 'config'} <= set(block) or any(key in block for key in TABLES['marks'])


def from_rllib(settings: Any) -> Conversion:
    """Translates a dict of settings, {env, run, stop, config} as in a YAML file, or an object with to_dict(): a PPOConfig.

    Raises: ConfigError with a sentence for every key that has no counterpart.
    """
    draft = Draft()
    if is_complete(settings):
        data = _of_object(draft, settings)
    else:
        data = dict(settings)
    data = _without_run(data)
    if 'stop' in data:
        _read_stop(draft, data)
    draft.put('policy.type', 'ppo', 'PPO')
    translate(draft, ROWS, data, WHO)
    draft.parts.setdefault('vf_clip_param', 10.0)
    if 'lambda_' in data:
        data.setdefault('lambda', data['lambda_'])
    defaults(draft, ROWS, TABLES['defaults'], data, WHO)
    name = draft.parts.get('env')
    if isinstance(name, type):
        _put_kwargs(draft, name)
        name = f'{name.__module__}:{name.__qualname__}'
    none = f"env is {shown(name)}; give the id of an env, or the 'module:function' that makes one."
    put_env(draft, name, f'env={name}', none)
    if not draft.problems:
        _put_rollout(draft, data)
        _put_losses(draft)
        _put_network(draft)
    return draft.finish("settings of RLlib's PPO")


def _without_run(data: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a YAML file {run, env, stop, config} in one dict. Raises: ConfigError if it runs no PPO."""
    if not isinstance(data.get('config'), Mapping):
        return data
    algorithm = data.get('run', 'PPO')
    if algorithm != 'PPO':
        raise ConfigError(f'run is {shown(algorithm)}: only PPO is translated; give the settings of a PPO run.')
    settings = dict(data['config'])
    for key in ('env', 'stop'):
        if key in data:
            settings[key] = data[key]
    return settings


def _read_stop(draft: Draft, data: dict[str, Any]) -> None:
    """Names criteria by the last part of their metric; leaves out criteria that only running the code gives."""
    if isinstance(data['stop'], Mapping):
        data['stop'] = {key.rpartition('/')[2]: value for key, value in data['stop'].items()}
    else:
        del data['stop']
        draft.drop('stop', 'it cannot be read without running the code; set max_env_step')


def is_complete(settings: object) -> bool:
    """Whether settings have every key of RLlib with its default: a PPOConfig, or the dict that its to_dict() returns."""
    return not isinstance(settings, Mapping) or TABLES['mark_of_all_keys'] in settings


def _of_object(draft: Draft, config: Any) -> dict[str, Any]:
    """Returns the settings of a PPOConfig, or of its dict, that are given or that this translation needs.

    A setting is not given if it is None, or the mark of a key that RLlib has removed. What was set by an attribute with a
    leading underscore replaces the key without one. Other keys count where they differ from those of an empty PPOConfig.
    Raises: ConfigError if it is the config of another algorithm.
    """
    usual: Mapping[str, Any] = {}
    settings = config
    if not isinstance(config, Mapping):
        settings = config.to_dict()
        usual = _usual_settings(config)
    known = ROWS.keys() - {'explore', 'framework'}
    data: dict[str, Any] = {}
    for name in sorted(settings, key=lambda name: name.startswith('_')):
        value = settings[name]
        key = name.lstrip('_')
        is_given = value not in (None, {}) or (value is None and key in TABLES['none_counts'])
        if not is_given or _is_removed(value) or name in TABLES['models'] or key in TABLES['connectors_of']:
            continue
        is_set = name in usual and _differs(value, usual[name])
        is_needed = key in known and ROWS[key].kind != 'out'
        if is_needed or (is_set and (key in known or not name.startswith('_'))):
            data[key] = value
    data |= _connected(draft, settings)
    data['model'] = _model_of_object(settings, usual)
    draft.drop('other keys of the PPOConfig', "they have RLlib's defaults, or say nothing about learning")
    return data


def _usual_settings(config: object) -> Mapping[str, Any]:
    """Returns the settings of a config of the same class in which nothing was set; {} if it cannot be made.

    Raises: ConfigError if the class is that of another algorithm.
    """
    parents = [parent.__name__ for parent in type(config).__mro__]
    if 'AlgorithmConfig' in parents and 'PPOConfig' not in parents:
        raise ConfigError(f'the config is a {parents[0]}: only PPO is translated; give a PPOConfig.')
    make = cast('Callable[[], Any]', type(config))
    with suppress(TypeError):  # a subclass whose constructor needs arguments
        return dict(make().to_dict())
    return {}


def _is_removed(value: object) -> bool:
    """Whether a value is the mark of a key that RLlib has removed: -1, its DEPRECATED_VALUE."""
    return value == 'DEPRECATED_VALUE' or (type(value) is int and value == -1)


def _differs(value: object, usual: object) -> bool:
    return value is not usual and repr(value) != repr(usual)


def _model_of_object(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the network, of which those of `rl_module` replace those of `training`."""
    model: dict[str, Any] = {}
    for name in TABLES['models']:
        section = settings.get(name) or {}
        default_section = usual.get(name) or {}
        if not isinstance(section, Mapping):  # a DefaultModelConfig
            default_section = vars(type(section)())
            section = vars(section)
        for key, value in section.items():
            counts = f'model.{key}' in ROWS or (usual and _differs(value, default_section.get(key)))
            if value and counts and not _is_removed(value):
                model[key] = value
    return model


def _connected(draft: Draft, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that the connectors of an object replace: the names in their code are read, it is not run."""
    data: dict[str, Any] = {}
    for key in TABLES['connectors_of']:
        connect = settings.get(f'_{key}', settings.get(key))
        if connect is None or _is_removed(connect):
            continue
        code = getattr(connect, '__code__', None)
        names = _names_in(code)
        data |= connectors(key, names or {repr(connect)})
        if 'MeanStdFilter' in names:
            _refuse_filter_arguments(draft, FILTER_ARGUMENTS & _argument_names_in(code))
    return data


def _refuse_filter_arguments(draft: Draft, names: set[str]) -> None:
    for name in sorted(names):
        draft.refuse(
            f'MeanStdFilter.{name} cannot be read from a compiled function; convert the .py file that makes the PPOConfig, '
            'or leave it out there: clip_by_value is policy.model.obs_clip in a config of zoo.'
        )


def _names_in(code: object) -> set[str]:
    """Returns the names that compiled code uses, functions in it included."""
    if not isinstance(code, types.CodeType):
        return set()
    return {*code.co_names, *code.co_freevars}.union(*map(_names_in, code.co_consts))


def _argument_names_in(code: object) -> set[str]:
    """Returns the names of keyword arguments in calls of compiled code, which keeps them in tuples of texts."""
    names: set[str] = set()
    for constant in getattr(code, 'co_consts', ()):
        if isinstance(constant, tuple):
            names.update(item for item in constant if isinstance(item, str))
        names |= _argument_names_in(constant)
    return names


def connectors(key: str, words: set[str]) -> dict[str, Any]:
    """Returns the settings that a function of connectors replaces, by the words in its code.

    Args: key: the argument of `env_runners` or `training` that names the function. It is a setting itself, with the unknown
    connectors, if there are any, or if no connector is known.
    """
    settings_of_connector = TABLES['connectors']
    known = sorted(words & settings_of_connector.keys())
    unknown = sorted(word for word in words.difference(known) if word[:1].isupper())
    data: dict[str, Any] = {}
    for word in known:
        data |= settings_of_connector[word]
    if unknown or not known:
        data[key] = Name(', '.join(unknown or sorted(words)) or 'a function')
    return data


def _put_kwargs(draft: Draft, env: type) -> None:
    """Sets the arguments of a class of envs: RLlib gives it env_config as one dict."""
    options = draft.at('env.kwargs', {})
    parameters = list(inspect.signature(env).parameters.values())
    if parameters and (options or parameters[0].default is parameters[0].empty):
        name = parameters[0].name
        draft.put(
            'env.kwargs', {name: options}, f'env_config={shown(options)}', 'one dict, as RLlib gives it to a class'
        )


def _first(draft: Draft, names: str, default: Any) -> tuple[str, Any]:
    """Returns the first of some keys that is given, as text and value; else the default."""
    for name in names.split():
        if draft.parts.get(name) is not None:
            return f'{name}={draft.parts[name]}', draft.parts[name]
    return f"{names.split()[0]}={default} (RLlib's default)", default


def _put_rollout(draft: Draft, data: Mapping[str, Any]) -> None:
    workers, n_worker = _first(draft, 'num_workers num_rollout_workers num_env_runners', 2)
    envs, n_env_of_worker = _first(draft, 'num_envs_per_worker num_envs_per_env_runner', 1)
    n_env = max(1, n_worker) * n_env_of_worker
    draft.put('env.collector_env_num', n_env, f'{workers}, {envs}')
    old, n = _first(draft, 'train_batch_size_per_learner train_batch_size', 4000)
    n_sample = math.ceil(n / n_env) * n_env
    note = ''
    if n != n_sample:
        note = f'a multiple of {n_env} envs'
    draft.put('policy.collect.n_sample', n_sample, old, note)
    _put_minibatch(draft, n_sample, n_sample // n_env)
    n_iter = draft.parts.get('evaluation_interval')
    if n_iter:
        note = f'{n_sample} env steps each'
        draft.put('policy.eval.eval_freq', n_iter * n_sample, f'evaluation_interval={n_iter}', note)
    old, n_eval = _first(draft, 'evaluation_num_workers evaluation_num_env_runners', 0)
    if n_eval:
        draft.put('env.evaluator_env_num', n_eval, old)
    if 'stop.training_iteration' in draft.parts:
        n_iter = draft.parts['stop.training_iteration']
        draft.put('max_env_step', n_iter * n_sample, f'stop.training_iteration={n_iter}', f'{n_sample} env steps each')


def _put_minibatch(draft: Draft, n_sample: int, n_step: int) -> None:
    """Sets the minibatch, and for a memory the sequences. Args: n_step: env steps of a rollout and env."""
    parts = draft.parts
    n_seq = 1
    if parts.get('model.use_lstm') or parts.get('model.use_attention'):
        wanted = parts.get('model.max_seq_len', 20)
        n_seq = nearest_divisor(n_step, min(wanted, n_step))
        draft.put(
            'policy.learn.sequence', {'len': n_seq}, f'model.max_seq_len={wanted}', f'a divisor of {n_step} steps'
        )
    old, size = _first(draft, 'minibatch_size sgd_minibatch_size mini_batch_size_per_learner', 128)
    if 'minibatch_size' in parts and parts['minibatch_size'] is None:
        old = 'minibatch_size=None'
        size = n_sample
    batch = nearest_divisor(n_sample, min(size, n_sample), n_seq)
    note = ''
    if batch != size:
        note = f'a divisor of the rollout, {n_sample}'
        if n_seq > 1:
            note += f', in whole sequences of {n_seq}'
    draft.put('policy.learn.batch_size', batch, old, note)


def _put_losses(draft: Draft) -> None:
    parts = draft.parts
    for old, key in (('lr_schedule', 'learning_rate'), ('entropy_coeff_schedule', 'entropy_weight')):
        if parts.get(old) is not None:
            draft.put(f'policy.learn.{key}', parts[old], old)
    limit = parts['vf_clip_param']
    if limit is not None and math.isfinite(limit):
        draft.put('policy.learn.value_loss', {'type': 'error_clip', 'range': limit}, f'vf_clip_param={limit}')
    old_weight, weight = _first(draft, 'kl_coeff', 0.2)
    old_target, target = _first(draft, 'kl_target', 0.01)
    if parts.get('use_kl_loss', True) and weight:
        penalty = {'type': 'kl', 'weight': weight, 'target': target}
        draft.put('policy.learn.penalties', [penalty], f'{old_weight}, {old_target}')
    _put_grad_clip(draft)
    draft.put('policy.learn.adv_norm', 'batch', 'advantages normalised over the train batch')
    draft.put('policy.learn.adam_eps', 1e-8, "RLlib's Adam, with torch's epsilon")


def _put_grad_clip(draft: Draft) -> None:
    limit = draft.parts.get('grad_clip')
    how = draft.parts.get('grad_clip_by', 'global_norm')
    old = f'grad_clip={limit}, grad_clip_by={how}'
    if how == 'value':
        draft.put('policy.learn.grad_clip', None, old)
        draft.put('policy.learn.grad_clip_value', limit, old)
        return
    draft.put('policy.learn.grad_clip', limit, old)
    if how == 'norm' and limit is not None:
        draft.drop('grad_clip_by=norm', 'policy.learn.grad_clip limits the norm of all gradients together')


def _put_network(draft: Draft) -> None:
    parts = draft.parts
    if parts.get('observation_filter') == 'MeanStdFilter':
        draft.put('policy.model.obs_norm', True, 'observation_filter=MeanStdFilter')
        _put_clip(draft)
    elif parts.get('observation_filter') not in (None, 'NoFilter'):
        draft.refuse(f"observation_filter is {shown(parts['observation_filter'])}; use 'MeanStdFilter' or 'NoFilter'.")
    sizes = list(parts.get('model.post_fcnet_hiddens') or parts.get('model.head_fcnet_hiddens') or ())
    if sizes:
        for name in ('actor_head', 'critic_head'):
            draft.put(f'policy.model.{name}', [*sizes], f'model.post_fcnet_hiddens={sizes}')
    if parts.get('model.use_lstm'):
        size = parts.get('model.lstm_cell_size', 256)
        draft.put(
            'policy.model.recurrent', {'cell': 'lstm', 'hidden_size': size}, f'model.use_lstm, lstm_cell_size={size}'
        )
    if parts.get('model.use_attention'):
        _put_attention(draft)
    _put_actions(draft)


ATTENTION = {  # field of the memory -> RLlib's key and its default
    'hidden_size': ('attention_dim', 64),
    'n_layer': ('attention_num_transformer_units', 1),
    'heads': ('attention_num_heads', 1),
    'memory': ('attention_memory_inference', 50),
}


def _put_attention(draft: Draft) -> None:
    """Sets the memory of RLlib's GTrXL."""
    fields = {field: draft.parts.get(f'model.{key}', default) for field, (key, default) in ATTENTION.items()}
    words = ', '.join(f'{key}={fields[field]}' for field, (key, _) in ATTENTION.items())
    draft.put('policy.model.recurrent', {'cell': 'trxl', **fields}, f'model.use_attention, {words}')


def _put_clip(draft: Draft) -> None:
    """Sets the bound of normalised observations: a connector has one, the older observation_filter has none."""
    clip = draft.parts.get('MeanStdFilter.clip_by_value')
    if clip is None:
        draft.put('policy.model.obs_clip', MAX_CLIP, 'MeanStdFilter without a bound', 'the largest bound')
    else:
        draft.put('policy.model.obs_clip', min(clip, MAX_CLIP), f'MeanStdFilter.clip_by_value={clip:g}')


def _put_actions(draft: Draft) -> None:
    """Sets the range of real-valued actions, and their deviation, which by RLlib's default depends on the observation."""
    old, is_normal = _first(draft, 'normalize_actions', True)
    has_real_actions = is_continuous(draft)
    if has_real_actions is not False:
        draft.put('env.action_mode', 'rescale' if is_normal else 'clip', old)
    elif 'normalize_actions' in draft.parts:
        draft.drop(old, 'the actions of this env have no range')
    is_free = draft.parts.get('model.free_log_std')
    old = 'model.free_log_std=False'
    if is_free is None:
        old += " (RLlib's default)"
    if is_free:
        draft.put('policy.model.state_dependent_std', False, 'model.free_log_std=True')
    elif has_real_actions:
        draft.put('policy.model.state_dependent_std', True, old)
    elif has_real_actions is None:
        draft.drop(old, 'for continuous actions set policy.model.state_dependent_std=true')


def is_chain(tree: ast.Module) -> bool:
    """Whether a file builds a PPOConfig, or an old-style dict for RLlib's PPO."""
    return bool({'PPOConfig', 'PPOTrainer'} & words_of(tree))


def settings_of(tree: ast.Module) -> dict[str, Any]:
    """Returns the settings of a file: arguments of the PPOConfig's methods, the dict `config`, and assignments to both.

    COMPUTED replaces values that are not literals. `stop` has the criteria of RunConfig(stop=...) or tune.run(stop=...);
    None if they are not literals.
    """
    settings = keywords_of_calls(tree, TABLES['calls'])
    settings |= _connectors_in(tree, settings)
    settings = {key: value for key, value in settings.items() if not _is_removed(value)}
    if 'model_config' in settings:
        settings['model'] = settings.pop('model_config')
        arguments = keywords_of_calls(tree, {'DefaultModelConfig': ()})
        if arguments:
            settings['model'] = {'vf_share_layers': True, **arguments}
    for value in map(setting, assigned(tree, 'config')):
        if isinstance(value, dict):
            settings = {**value, **settings}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Subscript() | ast.Attribute() as target]):
                _put_assigned(settings, target, node.value)
            case ast.Call(func=ast.Attribute(ast.Name('config'), 'update' | 'update_from_dict'), args=[argument]):
                value = setting(argument)
                if not isinstance(value, dict):
                    value = {'config': COMPUTED}
                settings |= value
    for keyword in _keywords_in(tree):
        if keyword.arg == 'stop':
            settings.setdefault('stop', _criteria(tree, keyword.value))
    return settings


def _put_assigned(settings: dict[str, Any], target: ast.expr, value: ast.expr) -> None:
    """Puts the value that is assigned to a key or an attribute of `config`, if it is one."""
    path = _path_in_config(target)
    if path:
        with suppress(TypeError, AttributeError):  # the path leads through a COMPUTED value
            put_at(settings, path, setting(value))


def _keywords_in(tree: ast.Module) -> list[ast.keyword]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.keyword)]


def _connectors_in(tree: ast.Module, settings: dict[str, Any]) -> dict[str, Any]:
    """Takes the functions of connectors out of the arguments of a PPOConfig. Returns: the settings that they replace."""
    data: dict[str, Any] = {}
    for keyword in _keywords_in(tree):
        key = keyword.arg or ''
        if key in TABLES['connectors_of'] and settings.pop(key, None) is not None:
            body = _body_of_function(tree, keyword.value)
            data |= connectors(key, words_of(body))
            arguments = keywords_of_calls(body, {'MeanStdFilter': ()})
            if arguments:
                data['MeanStdFilter'] = {**data.get('MeanStdFilter', {}), **arguments}
    return data


def _body_of_function(tree: ast.Module, node: ast.expr) -> ast.Module:
    """Returns a lambda; for the name of a function, its body; for a variable, the expressions assigned to it."""
    if not isinstance(node, ast.Name):
        return ast.Module([ast.Expr(node)], [])
    statements: list[ast.stmt] = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == node.id:
            statements += function.body
    if not statements:
        statements = [ast.Expr(value) for value in assigned(tree, node.id) or [node]]
    return ast.Module(statements, [])


def _path_in_config(node: ast.expr) -> str | None:
    """Returns 'model.use_lstm' for config['model']['use_lstm'] and config.model['use_lstm']; None for another target."""
    match node:
        case ast.Subscript(inner, ast.Constant(str(key))) | ast.Attribute(inner, key):
            if isinstance(inner, ast.Name) and inner.id == 'config':
                return join_path('', key)
            before = _path_in_config(inner)
            if before is not None:
                return join_path(before, key)
    return None


def _criteria(tree: ast.Module, node: ast.expr) -> dict[str, Any] | None:
    if isinstance(node, ast.Name):
        node = next(iter(assigned(tree, node.id)), node)
    if isinstance(node, ast.Dict):
        with suppress(ValueError):
            return {_key(key): literal(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    return None


def _key(node: ast.expr) -> str:
    """Returns the metric of a criterion: of f'{A}/{B}' the last part. Names in capitals are RLlib's own constants."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[-1]
    if isinstance(node, ast.FormattedValue):
        node = node.value
    key = literal(node)
    if isinstance(key, Name):
        return str(key).lower()
    return str(key)
