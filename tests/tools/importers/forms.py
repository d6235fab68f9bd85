"""Configs in the forms of other libraries' own ones, with values of this project: one for each kind that a library has.

A form is a name, the config, and for a config that is refused a part of the reason.
"""

from __future__ import annotations

from typing import Any


def _pair(
    kind: str,
    env: dict[str, Any],
    env_type: str,
    learn: dict[str, Any],
    model: dict[str, Any] | None = None,
    collect: dict[str, Any] | None = None,
    main: dict[str, Any] | None = None,
    create: dict[str, Any] | None = None,
    **policy: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """DI-engine's (main_config, create_config). Args: kind, env_type: the types of create_config; main, create: other keys."""
    main_config = dict(
        exp_name=f'{env_type}_{kind}_seed0',
        env=dict(collector_env_num=8, evaluator_env_num=5, n_evaluator_episode=5, stop_value=100, **env),
        policy=dict(
            cuda=True,
            model=dict(obs_shape=6, action_shape=3, encoder_hidden_size_list=[32, 64], **(model or {})),
            learn=dict(
                batch_size=32, learning_rate=4e-4, value_weight=0.4, entropy_weight=0.02, clip_ratio=0.15, **learn
            ),
            collect=collect or dict(n_sample=512, unroll_len=1, discount_factor=0.97, gae_lambda=0.9),
            eval=dict(evaluator=dict(eval_freq=50)),
            **policy,
        ),
        **(main or {}),
    )
    create_config = dict(
        env=dict(type=env_type, import_names=[f'dizoo.{env_type}.envs.{env_type}_env']),
        env_manager=dict(type='subprocess'),
        policy=dict(type=kind),
        **(create or {}),
    )
    return main_config, create_config


_PIXELS = dict(encoder_hidden_size_list=[16, 32, 64])
_TWO_BUFFERS = dict(
    replay_buffer=dict(
        multi_buffer=True,
        policy=dict(replay_buffer_size=4096, max_use=2),
        value=dict(replay_buffer_size=8192, max_use=4),
    )
)
_EPOCHS = dict(epoch_per_collect=3)


def _with_sizes(pair: tuple[dict[str, Any], dict[str, Any]], **model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    pair[0]['policy']['model'] |= model
    return pair


DI_ENGINE = {
    'discrete': _pair('ppo', {}, 'cartpole', _EPOCHS | dict(resume_training=False), action_space='discrete'),
    'continuous, falling rate': _pair(
        'ppo',
        dict(env_id='Hopper-v3'),
        'mujoco',
        _EPOCHS
        | dict(
            update_per_collect=1,
            lr_scheduler=dict(epoch_num=300, min_lr_lambda=0),
            adv_norm=True,
            value_norm=True,
            ignore_done=False,
            grad_clip_type='clip_norm',
            grad_clip_value=0.4,
        ),
        dict(action_space='continuous', share_encoder=False, actor_head_layer_num=0, bound_type='tanh'),
        action_space='continuous',
        recompute_adv=True,
    ),
    'continuous, envs named twice': _pair(
        'ppo',
        dict(env_id='HalfCheetah-v3', norm_obs=dict(use_norm=False), norm_reward=dict(use_norm=False)),
        'mujoco',
        _EPOCHS,
        dict(action_space='continuous'),
        dict(n_sample=512, collector_env_num=8),
        action_space='continuous',
    ),
    'game, on-policy': _with_sizes(
        _pair(
            'ppo',
            dict(env_id='EnduroNoFrameskip-v4', frame_stack=4),
            'atari',
            _EPOCHS
            | dict(
                lr_scheduler=dict(epoch_num=700, min_lr_lambda=0.1),
                kl_beta=0.03,
                kl_type='k1',
                pretrained_model_path=None,
            ),
        ),
        obs_shape=[4, 84, 84],
        **_PIXELS,
    ),
    'game, off-policy': _with_sizes(
        _pair(
            'ppo_offpolicy',
            dict(env_id='QbertNoFrameskip-v4', frame_stack=4, manager=dict(shared_memory=False)),
            'atari',
            dict(update_per_collect=12),
            other=dict(replay_buffer=dict(replay_buffer_size=9000, max_use=3)),
        ),
        obs_shape=[4, 84, 84],
        **_PIXELS,
    ),
    'game, two buffers': _with_sizes(
        _pair(
            'ppg_offpolicy',
            dict(env_id='PongNoFrameskip-v4', frame_stack=4),
            'atari',
            dict(update_per_collect=12, aux_freq=30, epochs_aux=4, beta_weight=1),
            other=_TWO_BUFFERS,
        ),
        obs_shape=[4, 84, 84],
        **_PIXELS,
    ),
    'several GPUs': _pair('ppo', {}, 'cartpole', _EPOCHS, multi_gpu=True),
    'off-policy, n steps off': _pair(
        'ppo_offpolicy',
        dict(env_id='LunarLander-v2'),
        'lunarlander',
        dict(update_per_collect=3, nstep=1, nstep_return=False),
    ),
    'clipped rewards': _pair(
        'ppo',
        dict(env_id='BipedalWalker-v3', act_scale=True, rew_clip=True),
        'bipedalwalker',
        _EPOCHS,
        dict(action_space='continuous'),
        action_space='continuous',
        load_path='./bipedalwalker/ckpt/ckpt_best.pth.tar',
    ),
    'levels, keys of exploration': _with_sizes(
        _pair(
            'ppo',
            dict(is_train=True, env_id='maze'),
            'procgen',
            dict(update_per_collect=4),
            other=dict(
                eps=dict(type='exp', start=1.0, end=0.1, decay=9000), replay_buffer=dict(replay_buffer_size=5000)
            ),
        ),
        obs_shape=[3, 64, 64],
        **_PIXELS,
    ),
    'levels, ppg': _with_sizes(
        _pair('ppg', dict(is_train=True, env_id='bigfish'), 'procgen', dict(actor_epoch_per_collect=1, aux_freq=2)),
        obs_shape=[3, 64, 64],
        impala_cnn_encoder=True,
        **_PIXELS,
    ),
}
"""DI-engine's pairs that are translated."""

DI_ENGINE_REFUSED: dict[str, tuple[Any, str]] = {
    'learned reward': (
        _pair('ppo', {}, 'cartpole', _EPOCHS, main=dict(reward_model=dict(type='trex', min_snippet_length=4))),
        'zoo learns no reward',
    ),
    'guided cost': (
        _pair('ppo', {}, 'cartpole', _EPOCHS, create=dict(reward_model=dict(type='guided_cost'))),
        'zoo learns no reward',
    ),
    'curiosity': (
        _pair('ppo_offpolicy', {}, 'cartpole', {}, create=dict(reward_model=dict(type='icm'))),
        'the curiosity of zoo',
    ),
    'novelty': (
        _pair('ppo', {}, 'cartpole', _EPOCHS, create=dict(reward_model=dict(type='rnd'))),
        'the weights do not compare',
    ),
    'episodes': (_pair('ppo_pg', {}, 'cartpole', _EPOCHS, collect=dict(n_episode=9)), 'a number of whole episodes'),
    'auxiliary loss': (_pair('ppo_stdim', {}, 'cartpole', _EPOCHS), 'an auxiliary loss (ST-DIM) that zoo lacks'),
    'several agents': (_pair('ppo', dict(n_agent=3), 'mpe', _EPOCHS, multi_agent=True), 'an import takes one agent'),
    'several agents, own type': (_pair('happo', {}, 'mpe', _EPOCHS), 'which trains several agents'),
    'mixed actions': (_pair('ppo', {}, 'cartpole', _EPOCHS, action_space='hybrid'), 'a ratio and a clip of its own'),
    'replay of levels': (
        _pair('ppg', dict(env_id='bigfish'), 'procgen', {}, main=dict(level_replay=dict(strategy='value_l1'))),
        'scores of levels are other numbers in zoo',
    ),
    'own env': (_pair('ppo', {}, 'rocket', _EPOCHS), "create_config.env.type is 'rocket', which is not known here"),
}

_ARGS = dict(
    exp_name='os.path.basename(__file__)',
    seed='3',
    torch_deterministic='True',
    cuda='True',
    track='False',
    wandb_project_name='"mine"',
    wandb_entity='None',
    capture_video='False',
    env_id='"CartPole-v1"',
    total_timesteps='300_000',
    learning_rate='4e-4',
    num_envs='4',
    num_steps='64',
    anneal_lr='True',
    gamma='0.98',
    gae_lambda='0.9',
    num_minibatches='4',
    update_epochs='3',
    norm_adv='True',
    clip_coef='0.15',
    clip_vloss='True',
    ent_coef='0.02',
    vf_coef='0.4',
    max_grad_norm='0.6',
    target_kl='None',
    batch_size='0',
    minibatch_size='0',
    num_iterations='0',
)
_PIXEL_CODE = 'self.network = nn.Sequential(layer_init(nn.Conv2d(4, 32, 8, stride=4)), nn.ReLU())\n'
_PONG = dict(env_id='"PongNoFrameskip-v4"')


def _script(code: str = '', leave_out: tuple[str, ...] = (), **arguments: str) -> str:
    """CleanRL's form: a dataclass of arguments with defaults, then code. Args: leave_out: usual arguments that it lacks."""
    found = {name: value for name, value in {**_ARGS, **arguments}.items() if name not in leave_out}
    fields = ''.join(f'    {name}: object = {value}\n' for name, value in found.items())
    return (
        f'raise SystemExit("it was run")\n@dataclass\nclass Args:\n{fields}\n{code}optim.Adam(p, lr=1e-3, eps=1e-5)\n'
    )


CLEANRL = {
    'ppo': _script(),
    'ppo_atari': _script(f'env = gym.wrappers.FrameStack(env, 4)\n{_PIXEL_CODE}', **_PONG),
    'ppo_atari_envpool': _script(
        f'envs = envpool.make(args.env_id, env_type="gym", episodic_life=True)\n{_PIXEL_CODE}', env_id='"Pong-v5"'
    ),
    'ppo_atari_lstm': _script(
        f'env = gym.wrappers.FrameStack(env, 1)\n{_PIXEL_CODE}self.lstm = nn.LSTM(512, 128)\n',
        num_minibatches='4',
        **_PONG,
    ),
    'ppo_atari_multigpu': _script(
        _PIXEL_CODE,
        local_num_envs='4',
        num_envs='0',
        device_ids='field(default_factory=lambda: [])',
        backend='"gloo"',
        local_batch_size='0',
        local_minibatch_size='0',
        world_size='0',
        **_PONG,
    ),
    'ppo_continuous_action': _script(
        'env = gym.wrappers.NormalizeObservation(env)\nenv = gym.wrappers.NormalizeReward(env, gamma=gamma)\n',
        env_id='"Pendulum-v1"',
    ),
    'ppo_continuous_action_isaacgym': _script(
        'envs = isaacgymenvs.make(task=args.env_id)\n',
        env_id='"Ant"',
        reward_scaler='1',
        record_video_step_frequency='99',
    ),
    'ppo_procgen': _script('self.seq = ConvSequence()\n', env_id='"maze"', total_timesteps='int(3e5)'),
    'ppg_procgen': _script(
        'self.seq = ConvSequence()\n',
        ('update_epochs', 'norm_adv'),
        env_id='"maze"',
        total_timesteps='int(3e5)',
        adv_norm_fullbatch='True',
        n_iteration='8',
        e_policy='1',
        v_value='1',
        e_auxiliary='3',
        beta_clone='1.0',
        num_aux_rollouts='2',
        n_aux_grad_accum='1',
        num_phases='0',
        aux_batch_rollouts='0',
    ),
    'ppo_rnd_envpool': _script(
        f'envs = envpool.make(args.env_id, repeat_action_probability=0.25)\n{_PIXEL_CODE}',
        env_id='"MontezumaRevenge-v5"',
        update_proportion='0.3',
        int_coef='1.0',
        ext_coef='3.0',
        int_gamma='0.98',
        num_iterations_obs_norm_init='5',
    ),
    'rpo_continuous_action': _script(env_id='"Pendulum-v1"', rpo_alpha='0.4'),
}
"""CleanRL's scripts that are translated, by the name of their file."""

CLEANRL_REFUSED = {
    'ppo_pettingzoo_ma_atari': (_script('env = pettingzoo.atari.pong_v3.parallel_env()\n'), 'it trains several agents'),
    'ppo_trxl': (_script(trxl_dim='64', trxl_num_heads='2'), 'its memory is a Transformer-XL'),
    'dqn': (_script('', ('num_minibatches', 'clip_coef'), learning_starts='100'), 'a script of CleanRL for DQN'),
}

RL_ZOO3 = {
    'ppo': """
default:
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
atari:
  env_wrapper:
    - stable_baselines3.common.atari_wrappers.AtariWrapper
  frame_stack: 4
  policy: 'CnnPolicy'
  n_envs: 4
  n_steps: 64
  n_epochs: 3
  batch_size: 128
  n_timesteps: !!float 1e6
  learning_rate: lin_3e-4
  clip_range: lin_0.2
MiniGrid-DoorKey-5x5-v0: &grid
  normalize: true
  n_envs: 4
  n_timesteps: !!float 2e4
  policy: 'MlpPolicy'
  n_steps: 64
  env_wrapper: minigrid.wrappers.FlatObsWrapper
MiniGrid-Unlock-v0:
  <<: *grid
HopperBulletEnv-v0:
  normalize: true
  n_envs: 4
  n_timesteps: !!float 2e4
  policy: 'MlpPolicy'
  use_sde: True
  sde_sample_freq: 4
  policy_kwargs: "dict(log_std_init=-1, ortho_init=False, net_arch=dict(pi=[32, 32], vf=[32, 32]))"
CarRacing-v3:
  env_wrapper:
    - rl_zoo3.wrappers.FrameSkip:
        skip: 2
    - gymnasium.wrappers.transform_observation.GrayscaleObservation:
        keep_dim: true
  frame_stack: 2
  normalize: "{'norm_obs': False, 'norm_reward': True}"
  n_envs: 2
  n_timesteps: !!float 2e4
  policy: 'CnnPolicy'
Walker2d-v4:
  normalize: "{'norm_obs': True, 'norm_reward': True, 'clip_obs': 10, 'gamma': 0.97}"
  n_timesteps: !!float 2e4
  policy: 'MlpPolicy'
  learning_rate: 3.1e-05
""",
    'ppo_lstm': """
atari:
  env_wrapper:
    - stable_baselines3.common.atari_wrappers.AtariWrapper:
        terminal_on_life_loss: False
  frame_stack: 4
  policy: 'CnnLstmPolicy'
  n_envs: 4
  n_steps: 64
  batch_size: 128
  n_timesteps: !!float 1e6
  policy_kwargs: "dict(enable_critic_lstm=False, lstm_hidden_size=64)"
CartPoleNoVel-v1:
  normalize: True
  n_envs: 8
  n_timesteps: !!float 2e4
  policy: 'MlpLstmPolicy'
  n_steps: 32
  batch_size: 256
  policy_kwargs: "dict(activation_fn=nn.ReLU, lstm_hidden_size=32, net_arch=dict(pi=[16], vf=[16]))"
Acrobot-v1:
  normalize: true
  n_envs: 4
  n_timesteps: !!float 2e4
  policy: 'MlpLstmPolicy'
  n_steps: 256
  use_sde: False
""",
    'a2c': """
default:
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
atari:
  frame_stack: 4
  policy: 'CnnPolicy'
  n_envs: 8
  n_timesteps: !!float 1e6
  policy_kwargs: "dict(optimizer_class=RMSpropTFLike, optimizer_kwargs=dict(eps=1e-5))"
Pendulum-v1:
  normalize: True
  n_envs: 4
  n_timesteps: !!float 2e4
  policy: 'MlpPolicy'
  n_steps: 8
  vf_coef: 0.3
  use_rms_prop: True
  normalize_advantage: False
  learning_rate: lin_6e-4
  use_sde: True
  policy_kwargs: "dict(log_std_init=-1, ortho_init=False)"
""",
    'trpo': """
default:
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
CartPole-v1:
  n_envs: 2
  n_timesteps: !!float 2e4
  policy: 'MlpPolicy'
  n_steps: 512
  batch_size: 256
  cg_damping: !!float 1e-2
  learning_rate: !!float 2e-3
  n_critic_updates: 20
Hopper-v4:
  normalize: true
  n_timesteps: !!float 2e4
  policy: 'MlpPolicy'
  n_steps: 512
  sub_sampling_factor: 1
  cg_max_steps: 25
  target_kl: 0.02
""",
}
"""Files of rl-zoo3 by their names, without .yml; all blocks are translated."""
