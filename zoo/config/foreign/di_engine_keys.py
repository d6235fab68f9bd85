"""The keys of DI-engine's main_config and create_config, for ppo, ppo_offpolicy, ppg and ppg_offpolicy, and its defaults."""

from __future__ import annotations

from typing import Any

from zoo.config.foreign.conversion import (
    ACTIVATIONS,
    Row,
    as_count,
    as_number,
    as_size,
    mapping,
    number_or_none,
    one_of,
    only,
    out,
    part,
    sizes,
    to,
)

_WORKERS = 'workers of one process; nothing to set here'
_IMPORTS = 'code is imported by zoo train --import FILE_OR_MODULE, or before serial_pipeline'
_VIDEO = 'zoo video RUN -o FILE.mp4 makes a video; logger.video_freq while it trains'
_FREQ = 'from gradient steps to env steps'
_FROM_ENV = 'the spaces of the env decide it'
_PRIORITY = 'set buffer.alpha of a policy that writes priorities, see buffer.type=replay'
_BUFFER = 'of ppo_offpolicy and ppg_offpolicy; the on-policy types learn from each rollout once'


def _stop_value(value: Any) -> float | None:
    number = number_or_none(value)
    return None if number is None or number >= 1e9 else number


ENV_ROWS: dict[str, Row] = {
    'env.collector_env_num': to('env.collector_env_num', as_size),
    'env.evaluator_env_num': to('env.evaluator_env_num', as_size),
    'env.n_evaluator_episode': to('policy.eval.n_episode'),
    'env.stop_value': to('policy.eval.stop_value', _stop_value),
    'env.env_id': part('env.id', 'with the env type of create_config; of Atari and Procgen env.game'),
    'env.type': part('env.id', "'cartpole' is CartPole-v0, as in DI-engine's env class"),
    'env.import_names': out(_IMPORTS),
    'env.act_scale': to('env.action_mode', lambda on: 'rescale' if on else 'clip'),
    'env.use_act_scale': to('env.action_mode', lambda on: 'rescale' if on else 'clip'),
    'env.frame_stack': part('env.kwargs', 'frame_stack of Atari; of other envs env.window', value=as_count),
    'env.max_episode_steps': to('env.max_episode_steps'),
    'env.max_step': to('env.max_episode_steps'),
    'env.is_train': out('training envs clip rewards and end at a lost life, evaluation envs do not'),
    'env.norm_obs.use_norm': to('policy.model.obs_norm'),
    'env.norm_obs.*': out('the statistics are learned and saved with the model'),
    'env.norm_reward.use_norm': to('policy.learn.reward_norm'),
    'env.norm_reward.reward_discount': to('policy.learn.reward_norm_discount'),
    'env.norm_reward.*': out('the statistics are learned and saved with the run'),
    'env.delay_reward_step': only(0, 1, None, why='give rewards late in a wrapper of your env'),
    'env.replay_path': out(_VIDEO),
    'env.save_replay_gif': out(_VIDEO),
    'env.replay_path_gif': out(_VIDEO),
    'env.manager.type': part('env.vectorization', "'sync' for base, else 'async'"),
    'env.manager.step_timeout': part('env.step_timeout', value=number_or_none),
    'env.manager.max_retry': part('env.on_error', "'restart' for more than 1", value=as_count),
    'env.manager.*': out('set by env.vectorization, env.step_timeout, env.on_error'),
    'env_manager.type': part('env.vectorization', "'sync' for base, else 'async'"),
    'env_manager.import_names': out(_IMPORTS),
    'env_manager.*': out('set by env.vectorization, env.step_timeout, env.on_error'),
}

POLICY_ROWS: dict[str, Row] = {
    'policy.type': part(
        'policy.type', 'from create_config; ppo, ppo_offpolicy, ppg and ppg_offpolicy, also with _command'
    ),
    'policy.import_names': out(_IMPORTS),
    'policy.cuda': to('policy.device', lambda on: 'auto' if on else 'cpu'),
    'policy.on_policy': part('policy.type', 'refused where the type is the other kind'),
    'policy.priority': only(False, None, why=_PRIORITY),
    'policy.priority_IS_weight': only(False, None, why=_PRIORITY),
    'policy.action_space': part('env.id', f'{_FROM_ENV}; discrete or continuous'),
    'policy.continuous': out(_FROM_ENV),
    'policy.recompute_adv': part('policy.learn.recompute_adv', 'of ppo'),
    'policy.nstep_return': only(
        False, None, why='set policy.collect.estimator={type: n_step, n: 3} in a config of zoo'
    ),
    'policy.nstep': out('read only with nstep_return'),
    'policy.multi_agent': only(False, None, why='zoo trains one agent'),
    'policy.multi_gpu': only(False, None, why='a run uses one device'),
    'policy.bp_update_sync': out('a run uses one device'),
    'policy.transition_with_policy_data': out('logits are always stored'),
    'policy.load_path': only('', None, why="pass policy=load_policy(RUN, fields='all') to serial_pipeline"),
    'policy.resume_training': only(False, None, why='pass resume=RUN to serial_pipeline'),
    'policy.random_collect_size': only(0, None, why='samples of random actions are of no use to ppo and ppg'),
    'policy.cfg_type': out('a name of the class'),
    'policy.model.type': only('vac', 'ppg', why='register a model of your own, and set policy.model.type to its name'),
    'policy.model.import_names': out(_IMPORTS),
    'policy.model.obs_shape': part('env.id', _FROM_ENV),
    'policy.model.action_shape': out(_FROM_ENV),
    'policy.model.action_space': part('env.id', f'{_FROM_ENV}; discrete or continuous'),
    'policy.model.share_encoder': part(
        'policy.model.shared_encoder', 'of ppo; networks of ppg: policy.model.arch=dual'
    ),
    'policy.model.encoder_hidden_size_list': part(
        'policy.model.hidden_sizes', 'of images channels of encoder cnn', value=sizes
    ),
    'policy.model.actor_head_hidden_size': part('policy.model.actor_head', value=as_size),
    'policy.model.actor_head_layer_num': part('policy.model.actor_head', value=as_count),
    'policy.model.critic_head_hidden_size': part('policy.model.critic_head', value=as_size),
    'policy.model.critic_head_layer_num': part('policy.model.critic_head', value=as_count),
    'policy.model.activation': to(
        'policy.model.activation', one_of(ACTIVATIONS), page='nn.ReLU(), nn.Tanh() and others by name'
    ),
    'policy.model.policy_activation': only(None, why='actor and critic have one policy.model.activation'),
    'policy.model.value_activation': only(None, why='actor and critic have one policy.model.activation'),
    'policy.model.norm_type': part('policy.model.layer_norm', "for 'LN'; no other norm"),
    'policy.model.sigma_type': part('policy.model.state_dependent_std', "true for 'conditioned'; 'fixed' is refused"),
    'policy.model.fixed_sigma_value': out("read only with sigma_type 'fixed'"),
    'policy.model.bound_type': part(
        'env.action_mode', 'means are not bounded; policy.model.distribution=squashed_gaussian bounds the actions'
    ),
    'policy.model.impala_cnn_encoder': part('policy.model.encoder', "'impala'"),
    'policy.model.encoder': only(None, why='register it as an encoder, and set policy.model.encoder to its name'),
    'policy.learn.type': out('a name of the class'),
    'policy.learn.multi_gpu': only(False, None, why='a run uses one device'),
    'policy.learn.epoch_per_collect': part(
        'policy.learn.epoch_per_collect', 'of ppg actor_epoch_per_collect, critic_...', value=as_size
    ),
    'policy.learn.actor_epoch_per_collect': to('policy.learn.actor_epoch_per_collect'),
    'policy.learn.critic_epoch_per_collect': to('policy.learn.critic_epoch_per_collect'),
    'policy.learn.update_per_collect': part('buffer.update_per_collect', _BUFFER, value=as_size),
    'policy.learn.batch_size': part(
        'policy.learn.batch_size', 'a divisor of the rollout; off-policy also buffer.n_sample', value=as_size
    ),
    'policy.learn.learning_rate': to('policy.learn.learning_rate', as_number),
    'policy.learn.lr_scheduler': only(
        None, why='write policy.learn.learning_rate={start: 1e-3, end: 0} in a config of zoo'
    ),
    'policy.learn.value_weight': to(
        'policy.learn.value_weight', as_number, page='the same factor: both halve the squared error'
    ),
    'policy.learn.entropy_weight': to('policy.learn.entropy_weight', as_number),
    'policy.learn.clip_ratio': to('policy.learn.clip_ratio', as_number),
    'policy.learn.dual_clip': to('policy.learn.dual_clip'),
    'policy.learn.adv_norm': to('policy.learn.adv_norm', lambda on: 'minibatch' if on else 'off'),
    'policy.learn.value_norm': to('policy.learn.value_norm', note='here the mean is taken off too'),
    'policy.learn.ppo_param_init': out('weights start orthogonal, the last layer of the policy near 0'),
    'policy.learn.grad_clip_type': part('policy.learn.grad_clip', "for 'clip_norm'; 'clip_value': grad_clip_value"),
    'policy.learn.grad_clip_value': part(
        'policy.learn.grad_clip', "for 'clip_norm'; 'clip_value': grad_clip_value", number_or_none
    ),
    'policy.learn.ignore_done': to('policy.learn.ignore_done'),
    'policy.learn.aux_freq': to('policy.learn.aux_freq'),
    'policy.learn.aux_train_epoch': to('policy.learn.aux_train_epoch'),
    'policy.learn.epochs_aux': to(
        'policy.learn.aux_train_epoch', note='an old name that DI-engine itself no longer reads'
    ),
    'policy.learn.aux_bc_weight': to('policy.learn.aux_bc_weight', as_number),
    'policy.learn.beta_weight': to(
        'policy.learn.aux_bc_weight', as_number, 'an old name that DI-engine itself no longer reads'
    ),
    'policy.learn.cfg_type': out('a name of the class'),
    'policy.learn.learner.hook.save_ckpt_after_iter': part('checkpoint.freq', _FREQ, value=as_count),
    'policy.learn.learner.hook.log_show_after_iter': part('logger.freq', _FREQ, value=as_count),
    'policy.learn.learner.hook.load_ckpt_before_run': only('', None, why='pass resume=RUN to serial_pipeline'),
    'policy.learn.learner.hook.*': out('checkpoints and logs have the sections checkpoint and logger'),
    'policy.learn.learner.train_iterations': out('pass max_train_iter to serial_pipeline'),
    'policy.learn.learner.*': out(_WORKERS),
    'policy.collect.n_sample': part('policy.collect.n_sample', 'a multiple of the number of envs', value=as_size),
    'policy.collect.n_episode': only(None, why='give n_sample, the env steps of a rollout over all envs'),
    'policy.collect.unroll_len': only(
        1, None, why='sequences are for recurrent networks: policy.model.recurrent and policy.learn.sequence'
    ),
    'policy.collect.discount_factor': to('policy.collect.discount_factor', as_number),
    'policy.collect.gae_lambda': to('policy.collect.gae_lambda', as_number),
    'policy.collect.env_num': out('that is env.collector_env_num'),
    'policy.collect.cfg_type': out('a name of the class'),
    'policy.collect.collector.*': out(_WORKERS),
    'policy.eval.evaluator.eval_freq': part('policy.eval.eval_freq', _FREQ, value=as_count),
    'policy.eval.eval_freq': part('policy.eval.eval_freq', _FREQ, value=as_count),
    'policy.eval.evaluator.n_episode': to('policy.eval.n_episode'),
    'policy.eval.evaluator.stop_value': to('policy.eval.stop_value', _stop_value),
    'policy.eval.evaluator.*': out(_WORKERS),
    'policy.eval.env_num': out('that is env.evaluator_env_num'),
    'policy.eval.*': out(_WORKERS),
    'policy.other.replay_buffer': part('buffer', _BUFFER, value=mapping),
    'policy.other.eps': only(
        None, why='set policy.collect.exploration={type: epsilon, epsilon: .1} in a config of zoo'
    ),
    'policy.other.*': out(_WORKERS),
}

MAIN_ROWS: dict[str, Row] = {
    'exp_name': to('exp_name', lambda name: str(name).strip('/').replace('/', '_'), page='a folder name, without /'),
    'seed': to('seed'),
    **ENV_ROWS,
    **POLICY_ROWS,
    'reward_model': only(None, why='set policy.learn.intrinsic={type: rnd} in a config of zoo'),
    'world_model': only(None, why='zoo learns no models of envs'),
}

CREATE_ROWS: dict[str, Row] = {
    **ENV_ROWS,
    'policy.type': POLICY_ROWS['policy.type'],
    'policy.import_names': out(_IMPORTS),
    'model.type': POLICY_ROWS['policy.model.type'],
    'model.import_names': out(_IMPORTS),
    'learner.*': out(_WORKERS),
    'collector.*': out(_WORKERS),
    'evaluator.*': out(_WORKERS),
    'replay_buffer.*': out('the policy decides its buffer: buffer.type is replay or multi'),
    'reward_model': MAIN_ROWS['reward_model'],
    'world_model': MAIN_ROWS['world_model'],
}

BUFFER_KEYS: dict[str, str] = {
    'multi_buffer': 'buffer.type=multi of ppg_offpolicy',
    'replay_buffer_size': 'buffer.size',
    'max_use': 'buffer.max_use',
    'max_staleness': 'buffer.max_staleness, in rollouts in place of gradient steps',
    'policy': 'buffer.policy',
    'value': 'buffer.value',
}
"""Keys of policy.other.replay_buffer -> what they are here; others set up its threads and logs, and are left out."""

ENV_IDS: dict[str, str] = {
    'cartpole': 'CartPole-v0',
    'pendulum': 'Pendulum-v1',
    'acrobot': 'Acrobot-v1',
    'mountain_car': 'MountainCar-v0',
    'lunarlander': 'LunarLander-v3',
    'bipedalwalker': 'BipedalWalker-v3',
    'mujoco': '',
    'atari': '',
    'procgen': '',
    'coinrun': 'coinrun',
    'minigrid': '',
}
"""Env type of DI-engine -> the id that its class makes; '': the one that env_id names."""

_PPO = {
    'policy.recompute_adv': True,
    'policy.learn.epoch_per_collect': 10,
    'policy.learn.batch_size': 64,
    'policy.learn.learning_rate': 3e-4,
    'policy.learn.value_weight': 0.5,
    'policy.learn.entropy_weight': 0.0,
    'policy.learn.adv_norm': True,
    'policy.learn.value_norm': True,
    'policy.learn.grad_clip_type': 'clip_norm',
    'policy.learn.grad_clip_value': 0.5,
}
_OFFPOLICY = {
    'policy.learn.update_per_collect': 5,
    'policy.learn.batch_size': 64,
    'policy.learn.learning_rate': 1e-3,
    'policy.learn.value_weight': 0.5,
    'policy.learn.entropy_weight': 0.01,
    'policy.learn.adv_norm': False,
}
_AUX = {'policy.learn.aux_train_epoch': 6, 'policy.learn.aux_bc_weight': 1.0, 'policy.learn.value_norm': False}
_NETWORK = {
    'policy.model.encoder_hidden_size_list': [128, 128, 64],
    'policy.model.actor_head_hidden_size': 64,
    'policy.model.actor_head_layer_num': 1,
    'policy.model.critic_head_hidden_size': 64,
    'policy.model.critic_head_layer_num': 1,
    'policy.model.activation': 'relu',
    'policy.eval.evaluator.eval_freq': 1000,
}

DEFAULTS: dict[str, dict[str, Any]] = {
    'ppo': {**_PPO, **_NETWORK, 'policy.model.share_encoder': True},
    'ppo_offpolicy': {**_OFFPOLICY, **_NETWORK, 'policy.model.share_encoder': True},
    'ppg': {
        **{key: value for key, value in _OFFPOLICY.items() if key != 'policy.learn.update_per_collect'},
        **_AUX,
        **_NETWORK,
        'policy.learn.epoch_per_collect': 1,
        'policy.learn.aux_freq': 8,
    },
    'ppg_offpolicy': {**_OFFPOLICY, **_AUX, **_NETWORK, 'policy.learn.aux_freq': 5},
}
"""DI-engine's own values of keys that a config leaves out, where zoo's differ."""
