"""PPO settings of RLlib (old-style dict, YAML file, PPOConfig chain) -> a config of zoo; code is read, never run."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from zoo.config.names import data_file
from zoo.config.section import ConfigError, join_path, put_at
from zoo.core.errors import shown
from zoo.tools.importers.conversion import (
    Conversion,
    Draft,
    as_count,
    as_number,
    defaults,
    mapping,
    nearest_divisor,
    put_env,
    rows_of,
    translate,
)
from zoo.tools.importers.files import COMPUTED, Name, assigned, keywords_of_calls, literal, setting, words_of

WHO = 'RLlib'


def schedule(value: Any) -> Any:
    """Converts a number, or [[env_step, value], ...] to a schedule of points. Raises: ValueError."""
    if isinstance(value, list | tuple):
        if any(not isinstance(point, list | tuple) or len(point) != 2 for point in value):
            raise ValueError('a list must be of pairs [env_step, value]')
        return {'points': [[as_count(step), as_number(x)] for step, x in value]}
    return as_number(value)


TABLES = data_file('zoo.tools.importers', 'rllib.yaml')
ROWS = rows_of(
    TABLES['keys'],
    schedule=lambda value: None if value is None else schedule(value),
    env_kwargs=lambda value: {'kwargs': mapping(value)},
    wall_time=lambda s: [{'type': 'wall_time', 's': as_number(s)}],
)


def is_rllib(block: Any) -> bool:
    """Whether a mapping has settings of RLlib's PPO."""
    keys = set(block) if isinstance(block, Mapping) else set()
    return {'run', 'config'} <= keys or bool(keys.intersection(TABLES['marks']))


def from_rllib(settings: Any) -> Conversion:
    """Translates a dict of settings, {env, run, stop, config} as in a YAML file, or an object with to_dict(): a PPOConfig.

    Raises: ConfigError with a sentence for every key that has no counterpart.
    """
    draft = Draft()
    if hasattr(settings, 'to_dict') and not isinstance(settings, Mapping):
        known = ROWS.keys() - {'explore', 'framework'}
        found = settings.to_dict()
        models = (found.get(name) or {} for name in ('model', '_model_config'))  # the second is of `rl_module`
        model = {key: x for each in models for key, x in getattr(each, '__dict__', each).items()}
        settings = {key: value for key, value in found.items() if key in known and value is not None}
        settings['model'] = {key: x for key, x in model.items() if f'model.{key}' in known and x}  # others are defaults
        draft.drop('other keys of the PPOConfig', 'only those that this translation knows were looked at')
    data = dict(settings)
    if isinstance(data.get('config'), Mapping):
        if (algorithm := data.pop('run', 'PPO')) != 'PPO':
            raise ConfigError(f'run is {shown(algorithm)}: only PPO is translated; give the settings of a PPO run.')
        data = {**data['config'], **{key: data[key] for key in ('env', 'stop') if key in data}}
    if 'stop' in data and not isinstance(data['stop'], Mapping):
        del data['stop']
        draft.drop('stop', 'it cannot be read without running the code; set max_env_step')
    if isinstance(data.get('stop'), Mapping):
        data['stop'] = {key.rpartition('/')[2]: value for key, value in data['stop'].items()}
    draft.put('policy.type', 'ppo', 'PPO')
    translate(draft, ROWS, data, WHO)
    draft.given.setdefault('vf_clip_param', 10.0)
    given = {'lambda': data['lambda_'], **data} if 'lambda_' in data else data
    defaults(draft, ROWS, TABLES['defaults'], given, WHO)
    name = draft.given.get('env')
    none = f"env is {shown(name)}; give the id of an env, or the 'module:function' that makes one."
    put_env(draft, name, f'env={name}', none)
    if not draft.problems:
        _put_rollout(draft, data)
        _put_losses(draft)
        _put_network(draft)
    return draft.finish("settings of RLlib's PPO")


def _first(draft: Draft, names: str, default: Any) -> tuple[str, Any]:
    """Returns the first of some keys that is given, as text and value; else the default."""
    for name in names.split():
        if draft.given.get(name) is not None:
            return f'{name}={draft.given[name]}', draft.given[name]
    return f"{names.split()[0]}={default} (RLlib's default)", default


def _put_rollout(draft: Draft, data: Mapping[str, Any]) -> None:
    old, n_worker = _first(draft, 'num_workers num_rollout_workers num_env_runners', 2)
    each, n_each = _first(draft, 'num_envs_per_worker num_envs_per_env_runner', 1)
    n_env = max(1, n_worker) * n_each
    draft.put('env.collector_env_num', n_env, f'{old}, {each}')
    old, n = _first(draft, 'train_batch_size train_batch_size_per_learner', 4000)
    n_sample = math.ceil(n / n_env) * n_env
    draft.put('policy.collect.n_sample', n_sample, old, '' if n == n_sample else f'a multiple of {n_env} envs')
    old, size = _first(draft, 'sgd_minibatch_size minibatch_size mini_batch_size_per_learner', 128)
    batch = nearest_divisor(n_sample, min(size, n_sample))
    draft.put('policy.learn.batch_size', batch, old, '' if batch == size else f'a divisor of the rollout, {n_sample}')
    if n_iter := draft.given.get('evaluation_interval'):
        note = f'{n_sample} env steps each'
        draft.put('policy.eval.eval_freq', n_iter * n_sample, f'evaluation_interval={n_iter}', note)
    old, n_eval = _first(draft, 'evaluation_num_workers evaluation_num_env_runners', 0)
    if n_eval:
        draft.put('env.evaluator_env_num', n_eval, old)
    if 'stop.training_iteration' in draft.given:
        n_iter = draft.given['stop.training_iteration']
        draft.put('max_env_step', n_iter * n_sample, f'stop.training_iteration={n_iter}', f'{n_sample} env steps each')


def _put_losses(draft: Draft) -> None:
    given = draft.given
    for old, key in (('lr_schedule', 'learning_rate'), ('entropy_coeff_schedule', 'entropy_weight')):
        if given.get(old) is not None:
            draft.put(f'policy.learn.{key}', given[old], old)
    if (limit := given['vf_clip_param']) is not None and math.isfinite(limit):
        draft.put('policy.learn.value_loss', {'type': 'error_clip', 'range': limit}, f'vf_clip_param={limit}')
    (old, weight), (other, target) = _first(draft, 'kl_coeff', 0.2), _first(draft, 'kl_target', 0.01)
    if given.get('use_kl_loss', True) and weight:
        draft.put('policy.learn.penalties', [{'type': 'kl', 'weight': weight, 'target': target}], f'{old}, {other}')
    norm, how = given.get('grad_clip'), given.get('grad_clip_by', 'global_norm')
    draft.put('policy.learn.grad_clip', None if how == 'value' else norm, f'grad_clip={norm}, grad_clip_by={how}')
    if how == 'value':
        draft.put('policy.learn.grad_clip_value', norm, f'grad_clip={norm}, grad_clip_by={how}')
    elif how == 'norm' and norm is not None:
        draft.drop('grad_clip_by=norm', 'policy.learn.grad_clip limits the norm of all gradients together')
    draft.put('policy.learn.adv_norm', 'batch', 'advantages normalised over the train batch')
    draft.put('policy.learn.adam_eps', 1e-8, "RLlib's Adam, with torch's epsilon")


def _put_network(draft: Draft) -> None:
    given = draft.given
    if given.get('observation_filter') == 'MeanStdFilter':
        draft.put('policy.model.obs_norm', True, 'observation_filter=MeanStdFilter')
    elif given.get('observation_filter') not in (None, 'NoFilter'):
        draft.refuse(f"observation_filter is {shown(given['observation_filter'])}; use 'MeanStdFilter' or 'NoFilter'.")
    if sizes := list(given.get('model.post_fcnet_hiddens') or given.get('model.head_fcnet_hiddens') or ()):
        for name in ('actor_head', 'critic_head'):
            draft.put(f'policy.model.{name}', [*sizes], f'model.post_fcnet_hiddens={sizes}')
    if given.get('model.use_lstm'):
        size = given.get('model.lstm_cell_size', 256)
        draft.put(
            'policy.model.recurrent', {'cell': 'lstm', 'hidden_size': size}, f'model.use_lstm, lstm_cell_size={size}'
        )
        n_step = draft.at('policy.collect.n_sample') // draft.at('env.collector_env_num')
        wanted = given.get('model.max_seq_len', 20)
        n = nearest_divisor(n_step, min(wanted, n_step))
        draft.put('policy.learn.sequence', {'len': n}, f'model.max_seq_len={wanted}', f'a divisor of {n_step} steps')
    if draft.at('policy.model.state_dependent_std') is None:
        draft.drop(
            "model.free_log_std=False (RLlib's default)",
            'for continuous actions set policy.model.state_dependent_std=true, and env.action_mode=rescale',
        )


def is_chain(tree: ast.Module) -> bool:
    """Whether a file builds a PPOConfig, or an old-style dict for RLlib's PPO."""
    return bool({'PPOConfig', 'PPOTrainer'} & words_of(tree))


def settings_of(tree: ast.Module) -> dict[str, Any]:
    """Returns the settings of a file: arguments of the PPOConfig's methods, the dict `config`, and assignments to both.

    COMPUTED replaces values that are not literals. `stop` has the criteria of RunConfig(stop=...) or tune.run(stop=...);
    None if they are not literals.
    """
    found = keywords_of_calls(tree, TABLES['calls'])
    if 'model_config' in found:
        model, own = found.pop('model_config'), keywords_of_calls(tree, {'DefaultModelConfig': ()})
        found['model'] = {'vf_share_layers': True, **own} if own else model
    for value in map(setting, assigned(tree, 'config')):
        found = {**value, **found} if isinstance(value, dict) else found
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Subscript() | ast.Attribute() as target]) if path := _path_in_config(target):
                with suppress(TypeError, AttributeError):  # the path leads through a COMPUTED value
                    put_at(found, path, setting(node.value))
            case ast.Call(func=ast.Attribute(ast.Name('config'), 'update' | 'update_from_dict'), args=[given]):
                found |= value if isinstance(value := setting(given), dict) else {'config': COMPUTED}
    for word in (node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == 'stop'):
        found.setdefault('stop', _criteria(tree, word.value))
    return found


def _path_in_config(node: ast.expr) -> str | None:
    """Returns 'model.use_lstm' for config['model']['use_lstm'] and config.model['use_lstm']; None for another target."""
    match node:
        case ast.Subscript(inner, ast.Constant(str(key))) | ast.Attribute(inner, key):
            before = '' if isinstance(inner, ast.Name) and inner.id == 'config' else _path_in_config(inner)
            return None if before is None else join_path(before, key)
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
    return str(key).lower() if isinstance(key, Name) else str(key)
