"""The configs of benchmarks/golden.py: each is a run of some tenths of a second in which its options take effect.

A case is a difference from `BASE`: 4 envs x 16 steps x 4 rollouts, networks of 8-8. It uses only names that users have: config
keys, registered names, and golden_envs.py for envs that zoo does not register. With a learning rate of .01 and 4 passes an
update moves the policy beyond the clip range, so that clips, penalties and bounds take effect.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Config = dict[str, Any]
LINE = {'start': 0.01, 'end': 0.001, 'over': 200}
POINTS = {'points': [[0, 0.3], [64, 0.2], [192, 0.05]]}

BASE: Config = {
    'seed': 3,
    'max_env_step': 256,
    'env': {'id': 'CartPole-v1', 'collector_env_num': 4, 'evaluator_env_num': 2, 'check': False},
    'policy': {
        'type': 'ppo',
        'n_thread': 1,
        'device': 'cpu',
        'model': {'hidden_sizes': [8, 8]},
        'learn': {'learning_rate': 1e-2},
        'collect': {'n_step': 16},
        'eval': {'eval_freq': 128, 'n_episode': 2},
    },
    'logger': {'console': 'off', 'tensorboard': False, 'freq': 1},
}
ONE_BATCH = ('a2c', 'impala', 'pg')  # by default one gradient step for each rollout
PHASIC = ('ppg', 'ppg_offpolicy', 'ppg_ewma')
PENDULUM = {'id': 'Pendulum-v1', 'max_episode_steps': 20}
WALK = {'id': 'golden_envs:Walk'}
CUE = {'id': 'remember_cue', 'kwargs': {'delay': 4}}
CNN = {'type': 'cnn', 'channels': [4], 'kernels': [3], 'strides': [2], 'hidden_size': 8}
DRAW = {'n_sample': 64, 'update_per_collect': 2}


class Case(NamedTuple):
    """A training run. config: complete except for the folder of the log.

    ranks: processes that train together.   stop_at: env step at which the run stops; a second call resumes it.
    first: config of an earlier run; this run begins with its checkpoint (init_from).
    model: function of golden_envs.py that makes the network, which replaces policy.model.
    traced: graphs run as traced, without a compiler.
    asks: the trained policy is loaded and plays, and a policy of the same config imitates these episodes (`pretrain`).
    """

    config: Config
    ranks: int = 1
    stop_at: int | None = None
    first: Config | None = None
    model: str | None = None
    traced: bool = False
    asks: bool = False


def merged(base: Config, other: Config) -> Config:
    """Both dicts merged key by key; `other` overrides."""
    both = {
        k: merged(base[k], v) if isinstance(base.get(k), dict) and isinstance(v, dict) else v for k, v in other.items()
    }
    return {**base, **both}


def config(
    kind: str = 'ppo',
    executor: Literal['eager', 'native', 'graph', 'auto'] = 'eager',
    *,
    env: Config | None = None,
    model: Config | None = None,
    collect: Config | None = None,
    evaluate: Config | None = None,
    sections: Config | None = None,
    **learn: Any,
) -> Config:
    """BASE with the sections of a policy. learn: keys of policy.learn; sections: other top-level sections."""
    base: Config = {} if kind in ONE_BATCH else {'batch_size': 32}
    base |= {} if kind == 'dqn' else {'executor': executor}
    base |= {'aux_freq': 2, 'aux_train_epoch': 2} if kind in PHASIC else {}
    base |= {'aux_batch_size': 32} if kind in (*PHASIC, 'ppg_reloaded', 'dna') else {}
    if kind in ('impala', 'pg'):
        collect = {'n_step': 16, **(collect or {})}
    policy = {
        'type': kind,
        'model': model or {},
        'learn': {**base, **learn},
        'collect': collect or {},
        'eval': evaluate or {},
    }
    return merged(BASE, merged({'env': env or {}, 'policy': policy}, sections or {}))


def run(*args: Any, **kwargs: Any) -> Case:
    """A case that is one run of `config`."""
    return Case(config(*args, **kwargs))


def off_policy(kind: str, *, buffer: Config | None = None, **kwargs: Any) -> Case:
    """A run that learns on draws from a replay buffer of 160 samples. buffer: settings of the draws; None: `DRAW`."""
    section = {'size': 160, **(DRAW if buffer is None else buffer)}
    return run(kind, sections={'buffer': section}, **kwargs)


def space(action: str, kind: str = 'ppo', executor: Any = 'eager', **kwargs: Any) -> Case:
    """A run with vector observations and the given action space."""
    return run(kind, executor, env={'id': 'any_space', 'kwargs': {'action': action}}, **kwargs)


def seen(obs: str, action: str = 'discrete', **kwargs: Any) -> Case:
    """A run with the given observation space."""
    return run(env={'id': 'any_space', 'kwargs': {'obs': obs, 'action': action}}, **kwargs)


EIGHT: Config = {
    'value_norm': True,
    'reward_norm': True,
    'recompute_adv': True,
    'target_kl': 0.003,
    'learning_rate': {'start': 1e-2, 'kl_target': 0.008},
    'penalties': [{'type': 'kl', 'weight': 0.5, 'target': 0.01}],
    'intrinsic': {'type': 'rnd', 'batch_size': 32, 'weight': 0.5},
    'plasticity': {'type': 'shrink_perturb', 'every': 2},
}
"""Eight options of policy.learn at once."""

POLICIES: dict[str, Case] = {
    'ppo': run(),
    'ppo native': run('ppo', 'native'),
    'ppo auto': Case(config('ppo', 'auto'), asks=True),
    'ppo graph': Case(config('ppo', 'graph'), traced=True),
    'ppg': Case(config('ppg'), asks=True),
    'ppg native': run('ppg', 'native'),
    'ppg graph': Case(config('ppg', 'graph'), traced=True),
    'ppg shared': run('ppg', model={'arch': 'shared'}, penalties=[{'type': 'value_drift', 'weight': 0.5}]),
    'ppg detach': run('ppg', model={'arch': 'detach'}, critic_learning_rate=3e-3, value_weight=0.7),
    'ppg phases': run(
        'ppg',
        actor_epoch_per_collect=2,
        critic_epoch_per_collect=3,
        critic_batch_size=16,
        aux_bc_weight=2.0,
        aux_learning_rate=LINE,
        aux_memory='disk',
        policy_loss='kl',
        kl_weight=0.3,
    ),
    'ppg multi buffer': off_policy(
        'ppg_offpolicy',
        buffer={'policy': {**DRAW, 'max_staleness': 1}, 'value': {**DRAW, 'update_per_collect': 3, 'max_use': 3}},
    ),
    'ppg replay': off_policy('ppg', buffer={**DRAW, 'type': 'replay'}),
    'ppg_ewma': run('ppg_ewma', actor_epoch_per_collect=2, proximal={'type': 'ewma', 'decay': 0.5, 'rho_max': 1.01}),
    'ppg_reloaded': run('ppg_reloaded', aux_freq=1, aux_window=3, aux_memory='cpu'),
    'dna': run('dna'),
    'a2c': run('a2c'),
    'impala': run('impala', collect={'temperature': 2.0}),  # so the acting policy differs from the learning one
    'pg': run('pg', env=WALK, collect={'n_step': 32}),
    'spo': run('spo'),
    'ppo_ewma': run('ppo_ewma'),
    'ppo_ewma_offpolicy': off_policy('ppo_ewma_offpolicy', buffer={**DRAW, 'max_staleness': 1}),
    'ppo_offpolicy': off_policy('ppo_offpolicy', buffer={**DRAW, 'max_use': 4}),
    'dqn': off_policy('dqn', target_freq=3, collect={'eps': 0.3}),
    'dqn prioritized': off_policy(
        'dqn',
        env=WALK,
        buffer={**DRAW, 'alpha': 0.6, 'beta': {'start': 0.4, 'end': 1.0}},
        collect={'n_return': 3},
        double=False,
        tau=0.5,
        target_freq=1,
        huber_delta=None,
        grad_clip=None,
    ),
}

SPACES: dict[str, Case] = {
    'gaussian': run(env=PENDULUM),
    'gaussian native': run('ppo', 'native', env=PENDULUM),
    'gaussian ppg rescaled': run('ppg', env={**PENDULUM, 'action_mode': 'rescale'}, phase='distill'),
    'gaussian std': run(
        env=PENDULUM,
        model={'state_dependent_std': True, 'log_std_init': -0.5, 'log_std_min': -0.52, 'log_std_max': -0.48},
    ),
    'squashed gaussian': run(env=PENDULUM, model={'distribution': 'squashed_gaussian'}),
    'beta': run(env=PENDULUM, model={'distribution': 'beta'}, collect={'temperature': 0.7}),
    'gsde': run(env=PENDULUM, model={'distribution': 'gsde', 'sde_sample_freq': 4}),
    'bins': run(env={**PENDULUM, 'action_bins': 5}, model={'encoder': 'flat'}),
    'multi_discrete': space('multi_discrete_2d'),
    'multi_binary': space('multi_binary'),
    'hybrid dict': space('dict', entropy_weight=0.01),
    'hybrid tuple ppg': space('tuple', 'ppg'),
    'native spaces': space('multi_discrete', executor='native'),
    'obs dict': seen(
        'dict',
        'box_2d',
        model={
            'encoder': {
                'type': 'multi',
                'encoders': {'image': {**CNN, 'precision': 'bf16'}, 'vector': 'mlp'},
                'hidden_sizes': [4],
            }
        },
    ),
    'obs tuple': seen('tuple', 'discrete_start'),
    'obs parts': seen('nested_mask', 'tuple', model={'actor_obs': ['own'], 'critic_obs': ['bits']}),
    'masks': run(env={'id': 'random_masks'}, entropy_weight=0.01),
    'masks native': run(
        'ppo', 'native', env={'id': 'random_masks', 'kwargs': {'action': 'multi_discrete', 'source': 'obs'}}
    ),
    'masks ppg': run('ppg', env={'id': 'random_masks', 'kwargs': {'source': 'method'}, 'window': 2}),
    'images': run(env={'id': 'tiny_bricks'}, model={'encoder': CNN}),
    'images ppg': run(
        'ppg',
        env={'id': 'tiny_bricks'},
        model={
            'encoder': {'type': 'impala', 'global_pool': True},
            'precision': 'fp32',
            'normalize_images': False,
            'arch': 'shared',
        },
    ),
    'lstm': run(env=CUE, model={'recurrent': {'hidden_size': 8}}, sequence={'len': 8}),
    'gru': run(
        env=CUE,
        model={'recurrent': {'cell': 'gru', 'hidden_size': 8, 'n_layer': 2}},
        sequence={'len': 8, 'overlap': 'half'},
    ),
    'mingru': run(
        env=CUE,
        model={'recurrent': {'cell': 'mingru', 'hidden_size': 8, 'critic': False}},
        sequence={'len': 8, 'overlap': 'maximum'},
    ),
    'lstm graph': Case(
        config('ppo', 'graph', env=CUE, model={'recurrent': {'hidden_size': 8}}, sequence={'len': 8}), traced=True
    ),
    'lstm ppg': run('ppg', env=CUE, model={'recurrent': {'hidden_size': 8}}, sequence={'len': 8}),
    'lstm burn-in': off_policy(
        'ppo_offpolicy', env=CUE, model={'recurrent': {'hidden_size': 8}}, sequence={'len': 4, 'burn_in': 4}
    ),
    'window': run(env={**CUE, 'window': 3, 'prev_action': True, 'prev_reward': True}),
}

PARTS: dict[str, Case] = {
    'asymmetric_clip': run(surrogate={'type': 'asymmetric_clip', 'high': 0.15}, clip_ratio=0.1),
    'dpo': run(surrogate={'type': 'dpo', 'beta': 0.5}),
    'rollback': run(surrogate='rollback'),
    'no clip': run(
        surrogate='none', penalties=[{'type': 'reverse_kl', 'weight': POINTS}, {'type': 'kl', 'target': 0.002}]
    ),
    'cispo': run(surrogate='cispo', draw='in_order'),
    'awr': run(surrogate={'type': 'awr', 'max_weight': 1.5}),
    'dual_clip': run(dual_clip=1.05, clip_ratio=0.05),
    'huber': run(value_loss={'type': 'huber', 'delta': 0.5, 'range': 5.0}),
    'value_clip': run(value_clip=True, penalties=[{'type': 'value_drift', 'weight': 0.3}]),
    'value range': run(value_loss={'type': 'clip', 'range': 0.1}),
    'error_clip': run(value_loss='error_clip'),
    'hl_gauss': run(value_loss={'type': 'hl_gauss', 'n_bin': 11}, value_norm=True),
    'two_hot ppg': run('ppg', value_loss={'type': 'two_hot', 'n_bin': 11, 'symlog': True}),
    'n_step': run(collect={'estimator': {'type': 'n_step', 'n': 3}, 'discount_factor': 0.9}, adv_norm='batch'),
    'value_lambda': run(collect={'estimator': {'type': 'gae', 'value_lambda': 0.5}, 'gae_lambda': 0.8}, adv_norm='off'),
    'no baseline': run(env=WALK, baseline='none', collect={'estimator': 'returns'}),
    'vtrace estimator': run(
        recompute_adv=True, collect={'estimator': {'type': 'vtrace', 'c_max': 1.1, 'rho_max': 1.2}}
    ),
    'recompute_adv': run(recompute_adv=True, value_norm=True),
    'prioritized draw': run(draw='prioritized'),
    'rnd': run(
        env=WALK, intrinsic={'type': 'rnd', 'batch_size': 32, 'weight': 0.5, 'feature_size': 8, 'hidden_sizes': [8]}
    ),
    'shrink_perturb': run(plasticity={'type': 'shrink_perturb', 'every': 2}),
    'l2_init': run('ppg', plasticity={'type': 'l2_init', 'strength': 0.1}),
    'reset_last': run(plasticity={'type': 'reset_last', 'every': 3, 'layers': ['value_head.']}),
    'adamw': run(optimizer={'type': 'adamw', 'betas': [0.8, 0.9], 'weight_decay': 0.1}, adam_eps=1e-3),
    'muon': run('ppg', optimizer={'type': 'muon', 'weight_decay': 0.1}),
    'rmsprop': run(optimizer={'type': 'rmsprop', 'momentum': 0.5}, grad_clip=None),
    'sgd': run(optimizer={'type': 'sgd', 'momentum': 0.9, 'nesterov': True}, grad_clip_value=0.01),
    'temperature': run(collect={'temperature': 3.0}),
    'epsilon': run(collect={'exploration': {'type': 'epsilon', 'epsilon': 0.3}}),
    'epsilon_greedy': run(collect={'exploration': {'type': 'epsilon_greedy', 'epsilon': 0.5}}),
    'recent': off_policy('ppo_offpolicy', proximal={'type': 'recent', 'rho_max': 1.01}),
    'decoupled ppg': off_policy(
        'ppg_offpolicy',
        buffer={'policy': {**DRAW, 'size': 128, 'max_use': 3}, 'value': {**DRAW, 'max_staleness': 1}},
        correction={'type': 'decoupled', 'rho_max': 1.01},
        actor_epoch_per_collect=2,
    ),
}

OPTIONS: dict[str, Case] = {
    'value_norm': run(value_norm=True, executor='eager'),
    'value_norm native': run('ppo', 'native', value_norm=True, value_clip=True, dual_clip=1.05, clip_ratio=0.05),
    'reward_norm': run(env=WALK, reward_norm=True, reward_norm_discount=0.8),
    'obs_norm': run(model={'obs_norm': True}),
    'target_kl': run(target_kl=0.002, epoch_per_collect=8),
    'target_kl minibatch': run(target_kl=0.002, target_kl_at='minibatch', epoch_per_collect=8),
    'target_kl ppg': run('ppg', target_kl=0.002, actor_epoch_per_collect=8),
    'accumulate': run(accumulate=2, batch_size=16),
    'grad_clip_value': run(grad_clip_value=0.02, grad_clip=0.1),
    'freeze': run(freeze=['actor_encoder', 'input'], model={'obs_norm': True}),
    'schedules': run(learning_rate=LINE, clip_ratio=POINTS, entropy_weight=LINE),
    'kl rate': run(learning_rate={'start': 1e-2, 'kl_target': 0.004, 'factor': 2.0}, critic_learning_rate=LINE),
    'bf16': run(precision='bf16'),
    'ignore_done': run(env=WALK, ignore_done=True),
    'episodes': run(env=WALK, collect={'batch_mode': 'episode'}),
    'no minibatches': run(batch_size=None, epoch_per_collect=2, value_weight=0.3),
    'networks': run(
        model={
            'hidden_sizes': [8],
            'activation': 'relu',
            'layer_norm': True,
            'actor_head': [6],
            'critic_head': [5],
            'shared_encoder': 'both',
        }
    ),
    'simba': run(model={'encoder': {'type': 'simba', 'hidden_size': 8}, 'shared_encoder': 'detach'}),
    'eight options': run(env=WALK, **EIGHT),
    'eight options ppg': run(
        'ppg',
        env=WALK,
        **{**{k: v for k, v in EIGHT.items() if k != 'recompute_adv'}, 'target_kl': 0.001},
        actor_epoch_per_collect=3,
    ),
    'eight options native': run('ppo', 'native', env=WALK, **EIGHT),
    'eight options graph': Case(config('ppo', 'graph', env=WALK, **EIGHT), traced=True),
    'native acts': run('ppo', 'auto', env=WALK, surrogate='spo', draw='in_order'),
    'eight options gaussian': run(
        env=PENDULUM, model={'obs_norm': True}, **{**EIGHT, 'target_kl': 0.001}, grad_clip_value=0.05
    ),
    'stop rules': run(
        sections={
            'stop': [
                {'type': 'patience', 'n': 9},
                {'type': 'iterations', 'n': 3},
                {'type': 'bound', 'metric': 'learn/kl', 'above': 9},
            ],
            'checkpoint': {'freq': 64},
        }
    ),
    'stop_value': run(evaluate={'stop_value': 5.0}),
    'skipped steps': run(env={**WALK, 'kwargs': {'huge_at': 9}}, nonfinite_limit=1000),
    'own model': Case(config(env=WALK, model={}), model='dropout_model'),
    'callback': run(env=WALK, sections={'callbacks': ['golden_envs:Halve']}),
}

PLACES: dict[str, Case] = {
    'same_step': run(env=WALK),
    'next_step': run(
        env={**WALK, 'autoreset': 'next_step'}, value_norm=True, reward_norm=True, model={'obs_norm': True}
    ),
    'disabled': run(env={**WALK, 'autoreset': 'disabled'}),
    'next_step vector': run('ppg', env={'id': 'golden_envs:NextStepWalks'}),
    'same_step vector': run(env={'id': 'golden_envs:SameStepWalks'}),
    'disabled vector': run(env={'id': 'golden_envs:DisabledWalks'}),
    'env settings': run(
        env={
            **WALK,
            'wrappers': [{'type': 'golden_envs:Scaled', 'factor': 0.3}],
            'schedule': {'wind': {'start': 0.0, 'end': 0.3, 'over': 200}},
            'reset_options': {'start': {'points': [[0, 0.0], [128, 0.3]]}},
            'reset_every': 2,
            'info_columns': ['place'],
            'max_episode_steps': 9,
        },
        sections={'logger': {'info_keys': ['n_step'], 'info_step_keys': ['place']}},
    ),
    'restarts': run(env={**WALK, 'kwargs': {'fails_at': 7}, 'on_error': 'restart', 'max_restarts': 1000}),
    'groups': run(env={'collector_group_num': 2}, collect={'temperature': 2.0}),
    'async': run(env={**WALK, 'vectorization': 'async'}),
    'tensor env': run('ppg', env={'id': 'torch', 'game': 'CartPole-v1'}, model={'obs_norm': True}),
    'tensor env compiled': Case(
        config('ppo', 'auto', env={'id': 'torch', 'game': 'CartPole-v1'}, surrogate='dpo', compile='on'), traced=True
    ),
    'tensor env gaussian': run(env={'id': 'torch', 'game': 'Pendulum-v1'}),
    'eval sets': run(
        env=WALK,
        evaluate={
            'sets': {'windy': {'reset_options': {'start': 0.4}}, 'short': {'max_episode_steps': 5}},
            'env': {'reset_options': {'start': -0.3}},
            'deterministic': False,
            'max_episode_steps': 8,
        },
    ),
    'runners inline': run(sections={'cluster': {'runner_num': 2, 'engine': 'inline'}}, model={'obs_norm': True}),
    'runners process': run('ppg', sections={'cluster': {'runner_num': 2, 'max_lag': 1}}),
    'runners late': run(
        sections={'cluster': {'runner_num': 2, 'engine': 'inline', 'max_lag': 1}},
        correction={'type': 'decoupled', 'rho_max': 1.05},
    ),
    'runners vtrace': run(
        'impala',
        sections={'cluster': {'runner_num': 2, 'engine': 'inline', 'max_lag': 1}},
        correction={'type': 'vtrace', 'rho_max': 1.01},
    ),
    'ranks': Case(config(env=WALK, **EIGHT, model={'obs_norm': True}), ranks=2),
    'ranks auto': Case(config('ppo', 'auto', batch_size=64), ranks=2),
    'ranks ppg': Case(config('ppg', batch_size=32), ranks=2),
    'ranks off policy': Case(
        config('ppo_offpolicy', sections={'buffer': {'size': 160, **DRAW}}, model={'obs_norm': True}), ranks=2
    ),
    'resume': Case(config(env=WALK, **EIGHT, model={'obs_norm': True}), stop_at=128),
    'resume ppg': Case(config('ppg', aux_freq=3), stop_at=128),
    'resume without memory': Case(
        config('ppg', aux_freq=3, sections={'checkpoint': {'aux_memory': False}}), stop_at=128
    ),
    'resume replay': off_policy('ppo_offpolicy')._replace(stop_at=128),
    'resume lstm': Case(config(env=CUE, model={'recurrent': {'hidden_size': 8}}, sequence={'len': 8}), stop_at=128),
    'init_from': Case(config(sections={'init_from_keys': ['critic_*']}), first=config('ppg')),
}

CASES: dict[str, Case] = {**POLICIES, **SPACES, **PARTS, **OPTIONS, **PLACES}

ALL = 'every number'
CHANGED = {
    'dqn': ('learn/q', 'learn/td_error'),
    **dict.fromkeys((name for name in CASES if name.startswith('eight options')), ('learn/kl_weight',)),
    **dict.fromkeys(('no clip', 'ranks', 'resume'), ('learn/kl_weight',)),
    **dict.fromkeys(('ppg multi buffer', 'ppg replay', 'decoupled ppg', 'ranks off policy', 'ranks auto'), (ALL,)),
}
"""Metrics of a case that are not compared, as they were wrong at the recorded commit: dqn's counted reset-only rows, and the
weight of a penalty with a target was that of the next update. With ALL nothing is compared: statistics of observations and
returns counted draws of a replay buffer, not collected rows, which changes every later number; 'ranks auto' had eager steps and
has those of C, which are as near to them as one rank's (tests/cluster/test_rank_memory.py)."""
