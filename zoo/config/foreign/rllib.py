"""PPO settings of RLlib, as old-style dicts, YAML files and PPOConfig chains have them -> a config of zoo."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from zoo.config.foreign.conversion import (
    ACTIVATIONS,
    Conversion,
    Draft,
    Row,
    as_count,
    as_number,
    as_size,
    defaults,
    mapping,
    nearest_divisor,
    number_or_none,
    one_of,
    only,
    out,
    part,
    sizes,
    to,
    translate,
)
from zoo.config.foreign.envs import put_env
from zoo.config.messages import shown
from zoo.config.section import ConfigError

WHO = 'RLlib'
_CLUSTER = 'the section `cluster` says where a run is done'
_FREQ = 'times train_batch_size: from iterations to env steps'


def schedule(value: Any) -> Any:
    """A number, or [[env_step, value], ...] as points. Raises: ValueError."""
    if isinstance(value, list | tuple):
        if any(not isinstance(point, list | tuple) or len(point) != 2 for point in value):
            raise ValueError('a list must be of pairs [env_step, value]')
        return {'points': [[as_count(step), as_number(x)] for step, x in value]}
    return as_number(value)


def _schedule(value: Any) -> Any:
    return None if value is None else schedule(value)


ROWS: dict[str, Row] = {
    'env': part('env.id'),
    'env_config': to('env.kwargs', mapping),
    'seed': to('seed'),
    'horizon': to('env.max_episode_steps'),
    'num_workers': part('env.collector_env_num', 'times the envs of each', value=as_count),
    'num_rollout_workers': part('env.collector_env_num', 'times the envs of each', value=as_count),
    'num_env_runners': part('env.collector_env_num', 'times the envs of each', value=as_count),
    'num_envs_per_worker': part('env.collector_env_num', 'times the workers', value=as_size),
    'num_envs_per_env_runner': part('env.collector_env_num', 'times the workers', value=as_size),
    'train_batch_size': part('policy.collect.n_sample', 'a multiple of the number of envs', value=as_size),
    'train_batch_size_per_learner': part('policy.collect.n_sample', 'a multiple of the number of envs', value=as_size),
    'sgd_minibatch_size': part('policy.learn.batch_size', 'a divisor of the rollout', value=as_size),
    'minibatch_size': part('policy.learn.batch_size', 'a divisor of the rollout', value=as_size),
    'mini_batch_size_per_learner': part('policy.learn.batch_size', 'a divisor of the rollout', value=as_size),
    'num_sgd_iter': to('policy.learn.epoch_per_collect', as_count),
    'num_epochs': to('policy.learn.epoch_per_collect', as_count),
    'rollout_fragment_length': out('the rollout is train_batch_size over all envs'),
    'batch_mode': only('truncate_episodes', None, why="set policy.collect.batch_mode='episode' in a config of zoo"),
    'shuffle_sequences': to('policy.learn.draw', lambda on: 'shuffle' if on else 'in_order'),
    'shuffle_batch_per_epoch': to('policy.learn.draw', lambda on: 'shuffle' if on else 'in_order'),
    'lr': to('policy.learn.learning_rate', schedule, page='lists are points'),
    'lr_schedule': part('policy.learn.learning_rate', 'points', value=_schedule),
    'gamma': to('policy.collect.discount_factor', as_number),
    'lambda': to('policy.collect.gae_lambda', as_number),
    'lambda_': to('policy.collect.gae_lambda', as_number),
    'use_gae': only(True, why='set policy.collect.estimator=returns in a config of zoo'),
    'use_critic': only(
        True, why='set policy.learn.baseline=none and policy.collect.estimator=returns in a config of zoo'
    ),
    'clip_param': to('policy.learn.clip_ratio', schedule),
    'vf_clip_param': part('policy.learn.value_loss', '{type: error_clip, range: the number}', value=number_or_none),
    'vf_loss_coeff': to(
        'policy.learn.value_weight', lambda x: 2 * as_number(x), 'twice the number: the squared error is halved here'
    ),
    'entropy_coeff': to('policy.learn.entropy_weight', schedule, page='lists are points'),
    'entropy_coeff_schedule': part('policy.learn.entropy_weight', 'points', value=_schedule),
    'use_kl_loss': part('policy.learn.penalties'),
    'kl_coeff': part('policy.learn.penalties', '[{type: kl, weight, target}]', value=number_or_none),
    'kl_target': part('policy.learn.penalties', '[{type: kl, weight, target}]', value=number_or_none),
    'grad_clip': part(
        'policy.learn.grad_clip', "or policy.learn.grad_clip_value, for grad_clip_by 'value'", value=number_or_none
    ),
    'grad_clip_by': part('policy.learn.grad_clip', "or policy.learn.grad_clip_value, for grad_clip_by 'value'"),
    'observation_filter': part('policy.model.obs_norm', "true for 'MeanStdFilter'"),
    'normalize_actions': to('env.action_mode', lambda on: 'rescale' if on else 'clip'),
    'clip_actions': out('actions are always clipped to their bounds'),
    'clip_rewards': only(False, None, why='clip rewards in a wrapper of your env, env.wrappers'),
    'explore': only(True, why='policy.collect.exploration says how actions are drawn'),
    'framework': only('torch', None, why="zoo uses PyTorch alone; write 'torch'"),
    'num_gpus': to('policy.device', lambda n: 'auto' if n else 'cpu'),
    'num_gpus_per_learner': to('policy.device', lambda n: 'auto' if n else 'cpu'),
    'num_learners': only(0, 1, None, why='a run uses one device'),
    'evaluation_interval': part('policy.eval.eval_freq', _FREQ, value=as_count),
    'evaluation_duration': to('policy.eval.n_episode', as_count),
    'evaluation_num_episodes': to('policy.eval.n_episode', as_count),
    'evaluation_num_workers': part('env.evaluator_env_num', 'at least 1', value=as_count),
    'evaluation_num_env_runners': part('env.evaluator_env_num', 'at least 1', value=as_count),
    'evaluation_config.explore': to('policy.eval.deterministic', lambda on: not on),
    'evaluation_config.env_config': to('policy.eval.env', lambda data: {'kwargs': mapping(data)}),
    'evaluation_duration_unit': only('episodes', None, why='evaluations count episodes: policy.eval.n_episode'),
    'disable_env_checking': to('env.check', lambda off: not off),
    'sample_timeout_s': out('cluster.runner_timeout limits a rollout of runners, env.step_timeout each step'),
    **{
        name: out(_CLUSTER)
        for name in 'num_cpus_per_worker num_gpus_per_worker num_cpus_per_env_runner num_gpus_per_env_runner '
        'num_cpus_for_driver num_cpus_for_main_process num_cpus_per_learner remote_worker_envs log_level '
        'create_env_on_driver create_env_on_local_worker enable_rl_module_and_learner enable_env_runner_and_connector_v2 '
        '_enable_new_api_stack preprocessor_pref enable_async_evaluation evaluation_parallel_to_training '
        'metrics_num_episodes_for_smoothing min_time_s_per_iteration min_sample_timesteps_per_iteration'.split()
    },
    'model.fcnet_hiddens': to('policy.model.hidden_sizes', sizes),
    'model.fcnet_activation': to('policy.model.activation', one_of(ACTIVATIONS)),
    'model.vf_share_layers': to('policy.model.shared_encoder', bool),
    'model.free_log_std': to('policy.model.state_dependent_std', lambda free: not free, 'of continuous actions'),
    'model.post_fcnet_hiddens': part('policy.model.actor_head', 'and policy.model.critic_head', value=sizes),
    'model.post_fcnet_activation': out('policy.model.activation is that of all layers'),
    'model.use_lstm': part('policy.model.recurrent', '{cell: lstm, hidden_size: lstm_cell_size}'),
    'model.lstm_cell_size': part('policy.model.recurrent', '{cell: lstm, hidden_size: lstm_cell_size}', value=as_size),
    'model.lstm_use_prev_action': to('env.prev_action', bool),
    'model.lstm_use_prev_reward': to('env.prev_reward', bool),
    'model.max_seq_len': part('policy.learn.sequence', '{len}', value=as_size),
    'model.use_attention': only(False, why='there is no attention; policy.model.recurrent has lstm, gru and rnn'),
    'model.custom_model': only(None, why='register a model of your own, and set policy.model.type to its name'),
    'model.framestack': only(False, True, why='env.window'),
    'stop.timesteps_total': to('max_env_step', as_count),
    'stop.num_env_steps_sampled_lifetime': to('max_env_step', as_count),
    'stop.training_iteration': part('max_env_step', 'times train_batch_size', value=as_count),
    'stop.time_total_s': to('stop', lambda s: [{'type': 'wall_time', 's': as_number(s)}]),
    'stop.episode_reward_mean': to('policy.eval.stop_value', as_number, 'of evaluations, not of training'),
    'stop.episode_return_mean': to('policy.eval.stop_value', as_number, 'of evaluations, not of training'),
}
"""Keys of RLlib's PPO, old and new, with those of its sections model and stop."""

DEFAULTS: dict[str, Any] = {
    'clip_param': 0.3,
    'lambda': 1.0,
    'vf_loss_coeff': 1.0,
    'entropy_coeff': 0.0,
    'model.fcnet_hiddens': [256, 256],
    'model.fcnet_activation': 'tanh',
}


def from_rllib(settings: Any) -> Conversion:
    """A dict of settings, {env, run, stop, config} as in a YAML file, or an object with to_dict(), as a PPOConfig.

    Raises: ConfigError with a sentence for every key that has no counterpart.
    """
    draft = Draft()
    if hasattr(settings, 'to_dict') and not isinstance(settings, Mapping):
        known = {key: value for key, value in settings.to_dict().items() if key in ROWS and value is not None}
        settings = {key: value for key, value in known.items() if key not in ('explore', 'framework')}
        draft.drop('other keys of the PPOConfig', 'only those that this translation knows were looked at')
    data = dict(settings)
    if isinstance(data.get('config'), Mapping):
        algorithm = data.pop('run', 'PPO')
        if algorithm != 'PPO':
            raise ConfigError(f'run is {shown(algorithm)}: only PPO is translated; give the settings of a PPO run.')
        extra = {key: data[key] for key in ('env', 'stop') if key in data}
        data = {**data['config'], **extra}
    if 'stop' in data and not isinstance(data['stop'], Mapping):
        del data['stop']
        draft.drop('stop', 'it cannot be read without running the code; set max_env_step')
    if isinstance(data.get('stop'), Mapping):
        data['stop'] = {key.rpartition('/')[2]: value for key, value in data['stop'].items()}
    draft.put('policy.type', 'ppo', 'PPO')
    translate(draft, ROWS, data, WHO)
    draft.given.setdefault('vf_clip_param', 10.0)
    lambda_ = {'lambda': data['lambda_']} if 'lambda_' in data else {}
    defaults(draft, ROWS, DEFAULTS, {**data, **lambda_}, WHO)
    name = draft.given.get('env')
    if isinstance(name, str):
        put_env(draft, name, f'env={name}')
    else:
        draft.refuse(f"env is {shown(name)}; give the id of an env, or the 'module:function' that makes one.")
    if not draft.problems:
        _put_rollout(draft, data)
        _put_losses(draft)
        _put_network(draft)
    return draft.finish("settings of RLlib's PPO")


def _first(draft: Draft, names: str, default: Any) -> tuple[str, Any]:
    """The first given of some keys, as text and value."""
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
    if draft.at('policy.learn.epoch_per_collect') is None:
        draft.put('policy.learn.epoch_per_collect', 30, "num_sgd_iter=30 (RLlib's default)")
    if draft.at('policy.learn.learning_rate') is None:
        draft.put('policy.learn.learning_rate', 5e-5, "lr=5e-05 (RLlib's default)")
    if draft.given.get('evaluation_interval'):
        n_iter = draft.given['evaluation_interval']
        draft.put(
            'policy.eval.eval_freq', n_iter * n_sample, f'evaluation_interval={n_iter}', f'{n_sample} env steps each'
        )
    old, n_eval = _first(draft, 'evaluation_num_workers evaluation_num_env_runners', 0)
    if n_eval:
        draft.put('env.evaluator_env_num', n_eval, old)
    if 'stop.training_iteration' in draft.given:
        n_iter = draft.given['stop.training_iteration']
        draft.put('max_env_step', n_iter * n_sample, f'stop.training_iteration={n_iter}', f'{n_sample} env steps each')


def _put_losses(draft: Draft) -> None:
    given = draft.given
    for old, path in (
        ('lr_schedule', 'policy.learn.learning_rate'),
        ('entropy_coeff_schedule', 'policy.learn.entropy_weight'),
    ):
        if given.get(old) is not None:
            draft.put(path, given[old], old)
    if given['vf_clip_param'] is not None and math.isfinite(given['vf_clip_param']):
        limit = given['vf_clip_param']
        draft.put('policy.learn.value_loss', {'type': 'error_clip', 'range': limit}, f'vf_clip_param={limit}')
    (old, weight), (other, target) = _first(draft, 'kl_coeff', 0.2), _first(draft, 'kl_target', 0.01)
    if given.get('use_kl_loss', True) and weight:
        penalty = {'type': 'kl', 'weight': weight, 'target': target}
        draft.put('policy.learn.penalties', [penalty], f'{old}, {other}')
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
    if given.get('model.post_fcnet_hiddens'):
        for name in ('actor_head', 'critic_head'):
            sizes = list(given['model.post_fcnet_hiddens'])
            draft.put(f'policy.model.{name}', sizes, f'model.post_fcnet_hiddens={sizes}')
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
