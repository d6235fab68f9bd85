"""Published configs of other libraries: keys and values on which the translators are tested.

DI-engine: dizoo/classic_control/{cartpole,pendulum}/config, dizoo/atari/config/serial/pong. rl-zoo3: hyperparams/ppo.yml.
"""

from __future__ import annotations

from typing import Any

import yaml


def _cartpole(name: str, learn: dict[str, Any], n_sample: int = 128, model: Any = (), **policy: Any) -> dict[str, Any]:
    """The part that DI-engine's configs for CartPole have in common."""
    network = dict(
        obs_shape=4,
        action_shape=2,
        encoder_hidden_size_list=[64, 64, 128],
        critic_head_hidden_size=128,
        actor_head_hidden_size=128,
    )
    common = dict(batch_size=64, learning_rate=0.001, value_weight=0.5, entropy_weight=0.01, clip_ratio=0.2)
    return dict(
        exp_name=name,
        env=dict(collector_env_num=8, evaluator_env_num=5, n_evaluator_episode=5, stop_value=195),
        policy=dict(
            cuda=False,
            model={**network, **dict(model)},
            learn={**common, **learn},
            collect=dict(n_sample=n_sample, unroll_len=1, discount_factor=0.9, gae_lambda=0.95),
            **policy,
        ),
    )


def _create(policy: str, env: str = 'cartpole', manager: str = 'base', **more: Any) -> dict[str, Any]:
    module = f'dizoo.{"atari" if env == "atari" else f"classic_control.{env}"}.envs.{env}_env'
    return dict(
        env=dict(type=env, import_names=[module]), env_manager=dict(type=manager), policy=dict(type=policy), **more
    )


CARTPOLE_PPO = (
    _cartpole(
        'cartpole_ppo',
        dict(epoch_per_collect=2, learner=dict(hook=dict(save_ckpt_after_iter=100))),
        256,
        dict(action_space='discrete'),
        action_space='discrete',
        eval=dict(evaluator=dict(eval_freq=100)),
    ),
    _create('ppo'),
)

_TWO_BUFFERS = dict(
    replay_buffer=dict(
        multi_buffer=True,
        policy=dict(replay_buffer_size=100, max_use=10),
        value=dict(replay_buffer_size=1000, max_use=100),
    )
)
_PPG_MAIN = _cartpole(
    'cartpole_ppg', dict(update_per_collect=5), eval=dict(evaluator=dict(eval_freq=40)), other=_TWO_BUFFERS
)
_PPG_BUFFERS = dict(replay_buffer=dict(policy=dict(type='advanced'), value=dict(type='advanced')))
CARTPOLE_PPG = (_PPG_MAIN, _create('ppg', **_PPG_BUFFERS))
CARTPOLE_PPG_OFFPOLICY = (_PPG_MAIN, _create('ppg_offpolicy', **_PPG_BUFFERS))

CARTPOLE_PPO_OFFPOLICY = (
    _cartpole(
        'cartpole_ppo_offpolicy',
        dict(update_per_collect=6, learner=dict(hook=dict(save_ckpt_after_iter=1000))),
        model=dict(action_space='discrete'),
        eval=dict(evaluator=dict(eval_freq=40)),
        other=dict(replay_buffer=dict(replay_buffer_size=5000)),
    ),
    _create('ppo_offpolicy'),
)

_PENDULUM = """
exp_name: pendulum_ppo_seed0
env: {collector_env_num: 10, evaluator_env_num: 5, act_scale: true, n_evaluator_episode: 5, stop_value: -250}
policy:
  cuda: false
  action_space: continuous
  recompute_adv: true
  model: {obs_shape: 3, action_shape: 1, encoder_hidden_size_list: [64, 64], action_space: continuous,
    actor_head_layer_num: 0, critic_head_layer_num: 0, sigma_type: conditioned, bound_type: tanh}
  learn: {epoch_per_collect: 10, batch_size: 32, learning_rate: 0.00003, value_weight: 0.5, entropy_weight: 0.0,
    clip_ratio: 0.2, adv_norm: false, value_norm: true, ignore_done: true}
  collect: {n_sample: 200, unroll_len: 1, discount_factor: 0.9, gae_lambda: 1.0}
  eval: {evaluator: {eval_freq: 200}}
"""
_PONG = """
env: {collector_env_num: 8, evaluator_env_num: 4, n_evaluator_episode: 8, stop_value: 20, env_id: PongNoFrameskip-v4,
  frame_stack: 4, manager: {shared_memory: false}}
policy:
  cuda: true
  model: {obs_shape: [4, 84, 84], action_shape: 6, encoder_hidden_size_list: [64, 64, 128], critic_head_hidden_size: 128,
    actor_head_hidden_size: 128}
  learn: {update_per_collect: 24, batch_size: 128, adv_norm: false, learning_rate: 0.0001, value_weight: 0.5,
    entropy_weight: 0.03, clip_ratio: 0.1, epochs_aux: 6, beta_weight: 1, aux_freq: 100}
  collect: {n_sample: 1024, gae_lambda: 0.95, discount_factor: 0.99}
  eval: {evaluator: {eval_freq: 1000}}
  other: {replay_buffer: {multi_buffer: true, policy: {replay_buffer_size: 100000, max_use: 3},
    value: {replay_buffer_size: 100000, max_use: 5}}}
"""
PENDULUM_PPO = (yaml.safe_load(_PENDULUM), _create('ppo', 'pendulum'))
PONG_PPG = (yaml.safe_load(_PONG), _create('ppg_offpolicy', 'atari', 'subprocess'))

PAIRS = {
    'cartpole_ppo': CARTPOLE_PPO,
    'cartpole_ppg': CARTPOLE_PPG,
    'cartpole_ppg_offpolicy': CARTPOLE_PPG_OFFPOLICY,
    'cartpole_ppo_offpolicy': CARTPOLE_PPO_OFFPOLICY,
    'pendulum_ppo': PENDULUM_PPO,
    'pong_ppg': PONG_PPG,
}

RL_ZOO3_PPO = """
Pendulum-v1:
  n_envs: 4
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
  n_steps: 1024
  gae_lambda: 0.95
  gamma: 0.9
  n_epochs: 10
  ent_coef: 0.0
  learning_rate: !!float 1e-3
  clip_range: 0.2
  use_sde: True
  sde_sample_freq: 4

CartPole-v1:
  n_envs: 8
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
  n_steps: 32
  batch_size: 256
  gae_lambda: 0.8
  gamma: 0.98
  n_epochs: 20
  ent_coef: 0.0
  learning_rate: lin_0.001
  clip_range: lin_0.2

MountainCarContinuous-v0:
  normalize: true
  n_envs: 1
  n_timesteps: !!float 20000
  policy: 'MlpPolicy'
  batch_size: 256
  n_steps: 8
  gamma: 0.9999
  learning_rate: !!float 7.77e-05
  ent_coef: 0.00429
  clip_range: 0.1
  n_epochs: 10
  gae_lambda: 0.9
  max_grad_norm: 5
  vf_coef: 0.19
  use_sde: True
  policy_kwargs: "dict(log_std_init=-3.29, ortho_init=False)"

BipedalWalker-v3:
  normalize: true
  n_envs: 32
  n_timesteps: !!float 5e6
  policy: 'MlpPolicy'
  n_steps: 2048
  batch_size: 64
  gae_lambda: 0.95
  gamma: 0.999
  n_epochs: 10
  ent_coef: 0.0
  learning_rate: !!float 3e-4
  clip_range: 0.18

LunarLander-v2: &lander
  n_envs: 16
  n_timesteps: !!float 1e6
  policy: 'MlpPolicy'
  n_steps: 1024
  batch_size: 64
  gae_lambda: 0.98
  gamma: 0.999
  n_epochs: 4
  ent_coef: 0.01

LunarLanderContinuous-v3:
  <<: *lander

HalfCheetah-v4:
  normalize: true
  n_envs: 1
  policy: 'MlpPolicy'
  n_timesteps: !!float 1e6
  batch_size: 64
  n_steps: 512
  gamma: 0.98
  learning_rate: 2.0633e-05
  ent_coef: 0.000401762
  clip_range: 0.1
  n_epochs: 20
  gae_lambda: 0.92
  max_grad_norm: 0.8
  vf_coef: 0.58096
  policy_kwargs: "dict(
                    log_std_init=-2,
                    ortho_init=False,
                    activation_fn=nn.ReLU,
                    net_arch=dict(pi=[256, 256], vf=[256, 256])
                  )"

CarRacing-v2:
  env_wrapper:
    - rl_zoo3.wrappers.FrameSkip:
        skip: 2
    - gymnasium.wrappers.gray_scale_observation.GrayScaleObservation:
        keep_dim: true
  frame_stack: 2
  normalize: "{'norm_obs': False, 'norm_reward': True}"
  n_envs: 8
  n_timesteps: !!float 4e6
  policy: 'CnnPolicy'
  batch_size: 128
  n_steps: 512
  n_epochs: 10
  ent_coef: 0.0
  sde_sample_freq: 4
  learning_rate: lin_1e-4
  use_sde: True
  clip_range: 0.2
  policy_kwargs: "dict(log_std_init=-2,
                       ortho_init=False,
                       activation_fn=nn.GELU,
                       net_arch=dict(pi=[256], vf=[256]),
                       )"
"""
"""Blocks of rl-zoo3's hyperparams/ppo.yml."""


def _fields(text: str) -> dict[str, str]:
    """Names and defaults of 'name = default; ..'."""
    return dict(each.split(' = ') for each in ' '.join(text.split()).split('; '))


CLEANRL_ARGS = _fields(
    """
    exp_name: str = os.path.basename(__file__)[: -len(".py")]; seed: int = 1; torch_deterministic: bool = True;
    cuda: bool = True; track: bool = False; wandb_project_name: str = "cleanRL"; wandb_entity: str = None;
    capture_video: bool = False; save_model: bool = False; upload_model: bool = False; hf_entity: str = ""; env_id:
    str = "HalfCheetah-v4"; total_timesteps: int = 1000000; learning_rate: float = 3e-4; num_envs: int = 1;
    num_steps: int = 2048; anneal_lr: bool = True; gamma: float = 0.99; gae_lambda: float = 0.95; num_minibatches:
    int = 32; update_epochs: int = 10; norm_adv: bool = True; clip_coef: float = 0.2; clip_vloss: bool = True;
    ent_coef: float = 0.0; vf_coef: float = 0.5; max_grad_norm: float = 0.5; target_kl: float = None; batch_size:
    int = 0; minibatch_size: int = 0; num_iterations: int = 0
    """
)
"""The fields of Args in CleanRL's ppo_continuous_action.py and their defaults, as code."""

CLEANRL_PPG_ARGS = _fields(
    """
    --exp-name = os.path.basename(__file__); --seed = 1; --cuda = True; --env-id = "starpilot"; --learning-rate =
    5e-4; --total-timesteps = 25e6; --num-envs = 64; --num-steps = 256; --anneal-lr = False; --gae = True; --gamma =
    0.999; --gae-lambda = 0.95; --num-minibatches = 8; --adv-norm-fullbatch = True; --clip-coef = 0.2; --clip-vloss
    = True; --ent-coef = 0.01; --vf-coef = 0.5; --max-grad-norm = 0.5; --target-kl = None; --n-iteration = 32;
    --e-policy = 1; --v-value = 1; --e-auxiliary = 6; --beta-clone = 1.0; --num-aux-rollouts = 4; --n-aux-grad-accum
    = 1
    """
)
"""The arguments of CleanRL's ppg_procgen.py and their defaults, as code."""

RLLIB_CARTPOLE = """
cartpole-ppo:
    env: CartPole-v1
    run: PPO
    stop:
        sampler_results/episode_reward_mean: 150
        timesteps_total: 100000
    config:
        framework: torch
        gamma: 0.99
        lr: 0.0003
        num_workers: 1
        observation_filter: MeanStdFilter
        num_sgd_iter: 6
        vf_loss_coeff: 0.01
        model:
            fcnet_hiddens: [32]
            fcnet_activation: linear
            vf_share_layers: true
"""
"""RLlib's tuned example for CartPole, with activation 'linear', which zoo lacks."""
