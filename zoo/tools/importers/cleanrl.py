"""CleanRL's scripts for PPO and PPG -> a config of zoo: their Args class or argument parser is read, never run."""

from __future__ import annotations

import ast
from typing import Any

from zoo.config.names import data_file
from zoo.config.section import ConfigError
from zoo.tools.importers.conversion import (
    Conversion,
    Draft,
    defaults,
    is_image_env,
    linear,
    nearest_divisor,
    put_env,
    put_frame_stack,
    rows_of,
    translate,
)
from zoo.tools.importers.files import (
    COMPUTED,
    arguments_of_parser,
    fields_of_class,
    is_computed,
    keywords_of_calls,
    literals,
    words_of,
)

WHO = 'CleanRL'
_TABLES = data_file('zoo.tools.importers', 'cleanrl.yaml')
ROWS = rows_of(_TABLES['keys'])


def is_script(tree: ast.Module) -> bool:
    """Whether a file is a script of CleanRL for PPO or PPG, judged by its arguments."""
    return {'num_minibatches', 'clip_coef'} <= set(_arguments(tree))


def from_cleanrl(tree: ast.Module, stem: str = '') -> Conversion:
    """Translates the default settings of a script. Args: tree: its syntax tree; stem: name of its file, without .py.

    Raises: ConfigError with a sentence for every argument that has no counterpart.
    """
    arguments = _arguments(tree)
    if not is_script(tree):
        raise ConfigError(
            'the file has no Args class or parser with num_minibatches and clip_coef, which the scripts of CleanRL for '
            'PPO and PPG have; give one of those.'
        )
    draft = Draft()
    is_ppg = 'e_auxiliary' in arguments
    draft.put('policy.type', 'ppg' if is_ppg else 'ppo', 'the script')
    if stem and arguments.get('exp_name') is COMPUTED:
        draft.put('exp_name', stem, 'exp_name', 'the name of the script')
        del arguments['exp_name']
    translate(draft, ROWS, arguments, WHO)
    given = {name: x for name, x in arguments.items() if not is_computed(x)}
    defaults(draft, ROWS, _TABLES['defaults'], given, WHO)
    name = draft.given.get('env_id', draft.given.get('gym_id'))
    put_env(draft, name, f'env_id={name}', 'the env is not named: give env_id a default in the script.')
    if not draft.unreadable:
        _put_update(draft, is_ppg)
        _put_code(draft, tree, is_ppg)
    return draft.finish('a script of CleanRL')


def _arguments(tree: ast.Module) -> dict[str, Any]:
    return literals((fields_of_class(tree, 'Args') or arguments_of_parser(tree)).items())


def _put_update(draft: Draft, is_ppg: bool) -> None:
    given = draft.given
    n_step, n_env = draft.at('policy.collect.n_step'), draft.at('env.collector_env_num')
    n, n_batch = n_step * n_env, given['num_minibatches']
    size = nearest_divisor(n, max(1, n // n_batch))
    draft.put('policy.learn.batch_size', size, f'num_minibatches={n_batch}', f'{n} samples of a rollout divided by it')
    if is_ppg and 'num_aux_rollouts' in given:
        rows = given['num_aux_rollouts']
        draft.put('policy.learn.aux_batch_size', rows * n_step, f'num_aux_rollouts={rows}', f'times {n_step} steps')
    rate, is_falling = given['learning_rate'], bool(given.get('anneal_lr', False))
    old = f'learning_rate={rate}, anneal_lr={is_falling}'
    draft.put('policy.learn.learning_rate', linear(rate) if is_falling else rate, old)
    if (kl := given.get('target_kl')) is not None:
        draft.put('policy.learn.target_kl', kl / 1.5, f'target_kl={kl}', 'here an update stops above 1.5 times it')
    elif 'target_kl' in given:
        draft.drop('target_kl=None', 'there is no limit here either')
    decay = given.get('gae_lambda', 0.95) if given.get('gae', True) else 1.0
    draft.put('policy.collect.gae_lambda', decay, f'gae={given.get("gae", True)}, gae_lambda={given.get("gae_lambda")}')
    if given.get('track'):
        draft.put('logger.sinks', ['jsonl', 'tensorboard', {'type': 'wandb'}], 'track=True')
    elif 'track' in given:
        draft.drop(f'track={given["track"]}', 'a run is tracked by those that logger.sinks names, none by default')


def _put_code(draft: Draft, tree: ast.Module, is_ppg: bool) -> None:
    """Translates the parts of the script that have no argument: its wrappers, its network, its optimiser."""
    words, found = words_of(tree), keywords_of_calls(tree, _TABLES['calls'])
    for word, path, value, old in _TABLES['in_code']:
        if word in words and draft.at(path) is None:
            draft.put(path, value, old)
    if isinstance(eps := found.get('eps'), float):
        draft.put('policy.learn.adam_eps', eps, f'Adam(eps={eps})')
    if isinstance(n := found.get('num_stack'), int):
        put_frame_stack(draft, n, f'FrameStack(env, {n})')
    if draft.at('policy.learn.reward_norm') and 'gamma' not in found:
        draft.put('policy.learn.reward_norm_discount', 0.99, 'NormalizeReward without gamma', 'its default')
    if draft.at('policy.model.recurrent'):
        draft.put('policy.learn.sequence', {'len': draft.at('policy.collect.n_step')}, 'the LSTM', 'whole rollouts')
    if is_ppg:
        draft.put('policy.model.arch', 'detach', 'the network', 'one trunk; the value head does not train it')
        draft.put('policy.learn.value_norm', False, 'the returns as they are')
    elif 'Conv2d' in words or is_image_env(draft):
        draft.put('policy.model.shared_encoder', True, 'the network')
