"""CleanRL's scripts for PPO and PPG -> a config of zoo: their Args class or argument parser is read, never run."""

from __future__ import annotations

import ast
from typing import Any

from zoo.config.foreign.conversion import (
    Conversion,
    Draft,
    Row,
    as_count,
    as_number,
    as_size,
    defaults,
    linear,
    nearest_divisor,
    number_or_none,
    only,
    out,
    part,
    to,
    translate,
)
from zoo.config.foreign.envs import is_image_env, put_env
from zoo.config.foreign.files import arguments_of_parser, computed_arguments, computed_fields, fields_of_class, words_of
from zoo.config.section import ConfigError

WHO = 'CleanRL'


_COMPUTED = 'worked out from other keys'

ROWS: dict[str, Row] = {
    'exp_name': to('exp_name'),
    'env_id': part('env.id', 'of Atari and Procgen env.game'),
    'gym_id': part('env.id', 'of Atari and Procgen env.game'),
    'seed': to('seed', as_count),
    'total_timesteps': to('max_env_step', as_count),
    'num_envs': to('env.collector_env_num', as_size),
    'async_batch_size': out('env.collector_group_num makes groups of envs step in turns'),
    'num_steps': to('policy.collect.n_step', as_size),
    'learning_rate': part('policy.learn.learning_rate', '{start, end: 0} with anneal_lr', value=as_number),
    'anneal_lr': part('policy.learn.learning_rate', '{start, end: 0}'),
    'gamma': to('policy.collect.discount_factor', as_number),
    'gae': part('policy.collect.gae_lambda', '1 for false'),
    'gae_lambda': part('policy.collect.gae_lambda', value=as_number),
    'num_minibatches': part('policy.learn.batch_size', 'the rollout divided by it', value=as_size),
    'update_epochs': to('policy.learn.epoch_per_collect', as_count),
    'norm_adv': to('policy.learn.adv_norm', lambda on: 'minibatch' if on else 'off'),
    'adv_norm_fullbatch': to('policy.learn.adv_norm', lambda on: 'batch' if on else 'off'),
    'clip_coef': to('policy.learn.clip_ratio', as_number),
    'clip_vloss': to('policy.learn.value_clip', bool),
    'ent_coef': to('policy.learn.entropy_weight', as_number),
    'vf_coef': to('policy.learn.value_weight', as_number, page='the same factor: both halve the squared error'),
    'max_grad_norm': to('policy.learn.grad_clip', as_number),
    'target_kl': part(
        'policy.learn.target_kl',
        'two thirds of the number: here an update stops above 1.5 times it',
        value=number_or_none,
    ),
    'rpo_alpha': only(None, 0, 0.0, why='robust policy optimisation has no key; register a distribution of your own'),
    'n_iteration': to('policy.learn.aux_freq', as_count),
    'e_policy': to('policy.learn.actor_epoch_per_collect', as_count),
    'v_value': to('policy.learn.critic_epoch_per_collect', as_count),
    'e_auxiliary': to('policy.learn.aux_train_epoch', as_count),
    'beta_clone': to('policy.learn.aux_bc_weight', as_number),
    'num_aux_rollouts': part('policy.learn.aux_batch_size', 'times num_steps', value=as_size),
    'n_aux_grad_accum': out('policy.learn.accumulate sums the gradients of minibatches'),
    'cuda': to('policy.device', lambda on: 'auto' if on else 'cpu'),
    'torch_deterministic': out('a run on a CPU always repeats itself bit for bit'),
    'track': part('logger.sinks', '[{type: wandb, project: ..}]'),
    'wandb_project_name': out('logger.sinks, [{type: wandb, project: ..}]'),
    'wandb_entity': out('logger.sinks, [{type: wandb, entity: ..}]'),
    'capture_video': out('zoo video RUN -o FILE.mp4 makes a video; logger.video_freq while it trains'),
    'save_model': out('checkpoints are always written, see the section checkpoint'),
    'upload_model': out('the files of a run folder can be uploaded by hand'),
    'hf_entity': out('the files of a run folder can be uploaded by hand'),
    'batch_size': out(_COMPUTED),
    'minibatch_size': out(_COMPUTED),
    'num_iterations': out(_COMPUTED),
    'num_updates': out(_COMPUTED),
    'aux_batch_rollouts': out(_COMPUTED),
}
"""Arguments of CleanRL's ppo*.py, rpo_continuous_action.py and ppg_procgen.py."""

DEFAULTS = {'num_envs': 8, 'num_steps': 128, 'num_minibatches': 4, 'learning_rate': 2.5e-4, 'clip_vloss': True}


def is_script(tree: ast.Module) -> bool:
    """Whether a file is a script of CleanRL for PPO or PPG: it has the arguments of one."""
    return {'num_minibatches', 'clip_coef'} <= set(_arguments(tree))


def from_cleanrl(tree: ast.Module, stem: str = '') -> Conversion:
    """The settings that a script starts with. Args: tree: its syntax; stem: name of its file, without .py.

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
    translate(draft, ROWS, arguments, WHO)
    _tell_computed(draft, computed_fields(tree, 'Args') or computed_arguments(tree), stem)
    defaults(draft, ROWS, DEFAULTS, arguments, WHO)
    name = draft.given.get('env_id', draft.given.get('gym_id'))
    if isinstance(name, str):
        put_env(draft, name, f'env_id={name}')
    else:
        draft.refuse('the env is not named: give env_id a default in the script.')
    if not draft.unreadable:
        _put_update(draft, is_ppg)
        _put_code(draft, words_of(tree), is_ppg)
    return draft.finish('a script of CleanRL')


def _arguments(tree: ast.Module) -> dict[str, Any]:
    return fields_of_class(tree, 'Args') or arguments_of_parser(tree)


def _tell_computed(draft: Draft, names: list[str], stem: str) -> None:
    """Arguments whose defaults the script works out when it runs; its name among them is that of its file."""
    for name in names:
        row = ROWS.get(name)
        if name == 'exp_name' and stem:
            draft.put('exp_name', stem, 'exp_name', 'the name of the script')
        elif name == 'exp_name' or (row is not None and row.kind == 'out'):
            draft.drop(name, row.note if row is not None and row.note else 'a run is named by exp_name')
        else:
            draft.refuse(f'{name} is worked out when the script runs; give it a plain value in the script.')


def _put_update(draft: Draft, is_ppg: bool) -> None:
    given = draft.given
    n_step, n_env = draft.at('policy.collect.n_step'), draft.at('env.collector_env_num')
    n, n_batch = n_step * n_env, given['num_minibatches']
    size = nearest_divisor(n, max(1, n // n_batch))
    draft.put('policy.learn.batch_size', size, f'num_minibatches={n_batch}', f'{n} samples of a rollout divided by it')
    if is_ppg and 'num_aux_rollouts' in given:
        rows = given['num_aux_rollouts']
        draft.put('policy.learn.aux_batch_size', rows * n_step, f'num_aux_rollouts={rows}', f'times {n_step} steps')
    rate = given['learning_rate']
    is_falling = bool(given.get('anneal_lr', False))
    old = f'learning_rate={rate}, anneal_lr={is_falling}'
    draft.put('policy.learn.learning_rate', linear(rate) if is_falling else rate, old)
    if given.get('target_kl') is not None:
        kl = given['target_kl']
        draft.put('policy.learn.target_kl', kl / 1.5, f'target_kl={kl}', 'here an update stops above 1.5 times it')
    elif 'target_kl' in given:
        draft.drop('target_kl=None', 'there is no limit here either')
    decay = given.get('gae_lambda', 0.95) if given.get('gae', True) else 1.0
    draft.put('policy.collect.gae_lambda', decay, f'gae={given.get("gae", True)}, gae_lambda={given.get("gae_lambda")}')
    if given.get('track'):
        draft.put('logger.sinks', ['jsonl', 'tensorboard', {'type': 'wandb'}], 'track=True')
    elif 'track' in given:
        draft.drop(f'track={given["track"]}', 'a run is tracked by those that logger.sinks names, none by default')


def _put_code(draft: Draft, words: set[str], is_ppg: bool) -> None:
    """What the script does without an argument: its wrappers, its network, its optimiser."""
    if 'NormalizeObservation' in words:
        draft.put('policy.model.obs_norm', True, 'the wrapper NormalizeObservation')
    if 'NormalizeReward' in words:
        draft.put('policy.learn.reward_norm', True, 'the wrapper NormalizeReward')
    if 'LSTM' in words:
        draft.put('policy.model.recurrent', {'cell': 'lstm', 'hidden_size': 128}, 'the LSTM')
    if 'ConvSequence' in words:
        draft.put('policy.model.encoder', 'impala', 'the network')
    elif 'Conv2d' in words:
        draft.put('policy.model.encoder', 'nature', 'the network')
    if is_ppg:
        draft.put('policy.model.arch', 'detach', 'the network', 'one trunk; the value head does not train it')
    elif 'Conv2d' in words or is_image_env(draft):
        draft.put('policy.model.shared_encoder', True, 'the network')
    if is_ppg:
        draft.put('policy.learn.value_norm', False, 'the returns as they are')
