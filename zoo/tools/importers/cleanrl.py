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


def why_not_translated(tree: ast.Module, stem: str) -> str:
    """Returns why a script of CleanRL is not translated; '' for one that is, and for a file of another library.

    Args: stem: name of its file, without .py, which begins with the algorithm: 'dqn_atari'.
    """
    arguments = _arguments(tree)
    words = words_of(tree)
    for name, why in _TABLES['other_arguments'].items():
        if name in arguments:
            return f'{stem} is a script of CleanRL that is not translated: {why}.'
    for start, why in _TABLES['other_words'].items():
        if is_script(tree) and any(word.startswith(start) for word in words):
            return f'{stem} is a script of CleanRL that is not translated: {why}.'
    if is_script(tree) or not set(_TABLES['marks']) <= set(arguments):
        return ''
    algorithm = stem.partition('_')[0]
    sentence = f'{stem} is a script of CleanRL for {algorithm.upper()}; only PPO and PPG are translated.'
    if algorithm == 'dqn':
        sentence += ' For this policy of zoo write a config with its own keys, see zoo config cartpole_dqn.'
    return sentence


def from_cleanrl(tree: ast.Module, stem: str = '') -> Conversion:
    """Translates the default settings of a script. Args: tree: its syntax tree; stem: name of its file, without .py.

    Raises: ConfigError with a sentence for every argument that has no counterpart.
    """
    arguments = _arguments(tree)
    why = why_not_translated(tree, stem)
    if why:
        raise ConfigError(why)
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
    readable = {name: value for name, value in arguments.items() if not is_computed(value)}
    defaults(draft, ROWS, _TABLES['defaults'], readable, WHO)
    name = draft.parts.get('env_id', draft.parts.get('gym_id'))
    remedy = _remedy_for_own_env(tree)
    if remedy:
        draft.became.append((f'env_id={name}', remedy))
    else:
        put_env(draft, name, f'env_id={name}', 'the env is not named: give env_id a default in the script.')
    if not draft.unreadable:
        _put_rollout(draft, is_ppg)
        _put_update(draft)
        _put_code(draft, tree, is_ppg)
    return draft.finish('a script of CleanRL')


def _arguments(tree: ast.Module) -> dict[str, Any]:
    return literals((fields_of_class(tree, 'Args') or arguments_of_parser(tree)).items())


def _remedy_for_own_env(tree: ast.Module) -> str:
    """Returns the remark on a script that makes its envs with a library of their own; '' for any other."""
    words = words_of(tree)
    for start, remedy in _TABLES['own_envs'].items():
        if any(word.startswith(start) for word in words):
            return remedy
    return ''


def _put_rollout(draft: Draft, is_ppg: bool) -> None:
    """Sets the number of envs and the minibatches."""
    parts = draft.parts
    n_env = parts['num_envs']
    old = 'num_envs'
    if 'local_num_envs' in parts:
        n_env = parts['local_num_envs']
        old = 'local_num_envs'
        draft.drop('several processes', _TABLES['many_processes'])
    if n_env < 1:
        draft.refuse(f'{old} is {n_env}, which cannot be read: it must be a whole number of 1 or more; correct it.')
        return
    draft.put('env.collector_env_num', n_env, f'{old}={n_env}')
    n_step = draft.at('policy.collect.n_step')
    n = n_step * n_env
    n_batch = parts['num_minibatches']
    size = nearest_divisor(n, max(1, n // n_batch))
    draft.put('policy.learn.batch_size', size, f'num_minibatches={n_batch}', f'{n} samples of a rollout divided by it')
    if is_ppg and 'num_aux_rollouts' in parts:
        rows = parts['num_aux_rollouts']
        draft.put('policy.learn.aux_batch_size', rows * n_step, f'num_aux_rollouts={rows}', f'times {n_step} steps')


def _put_update(draft: Draft) -> None:
    """Sets schedules, limits and options of the update."""
    parts = draft.parts
    rate = parts['learning_rate']
    is_falling = bool(parts.get('anneal_lr', False))
    old = f'learning_rate={rate}, anneal_lr={is_falling}'
    if is_falling:
        rate = linear(rate)
    draft.put('policy.learn.learning_rate', rate, old)
    kl = parts.get('target_kl')
    if kl is not None:
        draft.put('policy.learn.target_kl', kl / 1.5, f'target_kl={kl}', 'here an update stops above 1.5 times it')
    elif 'target_kl' in parts:
        draft.drop('target_kl=None', 'there is no limit here either')
    decay = 1.0
    if parts.get('gae', True):
        decay = parts.get('gae_lambda', 0.95)
    draft.put('policy.collect.gae_lambda', decay, f'gae={parts.get("gae", True)}, gae_lambda={parts.get("gae_lambda")}')
    if 'int_coef' in parts:
        _put_rnd(draft)
    if parts.get('rpo_alpha'):
        option = {'type': 'rpo', 'alpha': parts['rpo_alpha']}
        note = 'examples/rpo.py of zoo registers it: zoo train --import examples/rpo.py'
        draft.put('policy.learn.options', [option], f'rpo_alpha={parts["rpo_alpha"]}', note)
    if parts.get('track'):
        draft.put('logger.sinks', ['jsonl', 'tensorboard', {'type': 'wandb'}], 'track=True')
    elif 'track' in parts:
        draft.drop(f'track={parts["track"]}', 'a run is tracked by those that logger.sinks names, none by default')


def _put_rnd(draft: Draft) -> None:
    """Sets random network distillation, whose advantages are added there with two factors, and here with their ratio."""
    parts = draft.parts
    ratio = parts['int_coef'] / parts.get('ext_coef', 1.0)
    value = {
        'type': 'rnd',
        'weight': ratio,
        'discount_factor': parts.get('int_gamma', 0.99),
        'gae_lambda': parts.get('gae_lambda', 0.95),
        'reward_clip': 1e9,  # there is no bound
        'learning_rate': parts['learning_rate'],
        'batch_size': draft.at('policy.learn.batch_size'),
        'epoch_per_collect': draft.at('policy.learn.epoch_per_collect', 4),
        'predictor_share': parts.get('update_proportion', 0.25),
        'feature_size': 512,
        'encoder': 'nature',
        'hidden_sizes': [512],
    }
    old = f'int_coef={parts["int_coef"]}, ext_coef={parts.get("ext_coef")}'
    draft.put('policy.learn.intrinsic', value, old, 'the weight is their ratio, as the advantages are normalised')


def _put_code(draft: Draft, tree: ast.Module, is_ppg: bool) -> None:
    """Translates the parts of the script that have no argument: its wrappers, its network, its optimiser."""
    words = words_of(tree)
    keywords = keywords_of_calls(tree, _TABLES['calls'])
    if not {'Conv2d', 'LSTM'} & words and not is_image_env(draft):
        _put_layers(draft, tree)
    for word, path, value, old in _TABLES['in_code']:
        if word in words and draft.at(path) is None:
            draft.put(path, value, old)
    eps = keywords.get('eps')
    if isinstance(eps, float):
        draft.put('policy.learn.adam_eps', eps, f'Adam(eps={eps})')
    share = keywords.get('repeat_action_probability')
    if isinstance(share, float) and draft.at('env.id') == 'atari':
        draft.put('env.kwargs.repeat_action_probability', share, f'make(.., repeat_action_probability={share})')
    n_frame = keywords.get('num_stack')
    if isinstance(n_frame, int):
        put_frame_stack(draft, n_frame, f'FrameStack(env, {n_frame})')
    if draft.at('policy.learn.reward_norm') and 'gamma' not in keywords:
        draft.put('policy.learn.reward_norm_discount', 0.99, 'NormalizeReward without gamma', 'its default')
    if draft.at('policy.model.recurrent'):
        draft.put('policy.learn.sequence', {'len': draft.at('policy.collect.n_step')}, 'the LSTM', 'whole rollouts')
    if is_ppg:
        draft.put('policy.model.arch', 'detach', 'the network', 'one trunk; the value head does not train it')
        draft.put('policy.learn.value_norm', False, 'the returns as they are')
    elif 'Conv2d' in words or is_image_env(draft):
        draft.put('policy.model.shared_encoder', True, 'the network')


def _put_layers(draft: Draft, tree: ast.Module) -> None:
    """Sets the widths of the hidden layers if actor and critic are each a stack of linear layers of these widths."""
    widths_of = {name: _widths(tree, name) for name in ('critic', 'actor', 'actor_mean')}
    different = {tuple(widths) for widths in widths_of.values() if widths}
    if len(different) == 1 and widths_of['critic'] != [64, 64]:
        draft.put('policy.model.hidden_sizes', list(different.pop()), 'the network')
    elif len(different) > 1:
        layers = ', '.join(f'{name} {str(widths)[1:-1]}' for name, widths in widths_of.items() if widths)
        draft.refuse(
            f'the layers of actor and critic differ: {layers}; set policy.model.encoder=flat, policy.model.actor_head and '
            'policy.model.critic_head in a config of zoo.'
        )


def _widths(tree: ast.Module, name: str) -> list[int]:
    """Returns the widths of the linear layers of `self.name = nn.Sequential(...)`, without the last one."""
    widths = []
    for statement in ast.walk(tree):
        if not (isinstance(statement, ast.Assign) and _is_stack(statement, name)):
            continue
        for node in ast.walk(statement.value):
            match node:
                case ast.Call(func=ast.Attribute(attr='Linear'), args=[_, ast.Constant(value=int(width))]):
                    widths.append(width)
    if widths and widths[-1] == 1:
        return widths[:-1]
    return widths


def _is_stack(statement: ast.Assign, name: str) -> bool:
    """Whether a statement is `self.name = nn.Sequential(...)`."""
    is_named = any(isinstance(target, ast.Attribute) and target.attr == name for target in statement.targets)
    return (
        is_named and isinstance(statement.value, ast.Call) and getattr(statement.value.func, 'attr', '') == 'Sequential'
    )
