"""Keys of other libraries that are keys of section `policy.learn` under other names: data of `zoo.config.names`."""

from __future__ import annotations

_RATE = 'policy.learn.learning_rate'

LEARN: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    # schedules and optimisers
    (_RATE, (), '', 'lr lr_rate step_size stepsize adam_lr policy_lr optimizer_lr learning_rate_init'),
    (_RATE, ('{start: .., end: 0}',), '', 'anneal_lr lr_decay linear_lr_decay use_linear_lr_decay'),
    (_RATE, ('{start: .., kl_target: .008}',), '', 'desired_kl kl_threshold adaptive_lr schedule_kl_threshold'),
    (
        _RATE,
        ('{start: .., end: 0}', '{start: .., kl_target: .008}'),
        '',
        'lr_schedule lr_scheduler learning_rate_schedule learning_rate_scheduler learn.schedule',
    ),
    (
        _RATE,
        ('{points: [[0, 1e-3], [100000, 1e-4]], kind: step}',),
        'kind: linear or step',
        'lr_schedule_kind learning_rate.shape learning_rate.kind schedule_type',
    ),
    (
        'policy.learn.entropy_weight',
        ('{points: [[0, .01], [100000, 0]]}',),
        'kind: step holds each value',
        'entropy_coeff_schedule entropy_coeff_schedule_kind ent_coef_schedule',
    ),
    (
        'policy.learn.critic_learning_rate',
        (),
        '',
        'critic_lr value_lr vf_lr lr_critic lr_vf value_learning_rate vf_learning_rate critic_optimizer_lr',
    ),
    ('policy.learn.adam_eps', (), '', 'adam_epsilon optimizer_eps opt_eps optim_eps'),
    (
        'policy.learn.optimizer',
        (),
        '',
        'optimizer_cls optimizer_class optimizer_fn optimizer_type optimizer_name optim optimiser',
    ),
    (
        'policy.learn.optimizer',
        ('{type: adam, betas: [.9, .999]}',),
        '',
        'betas adam_betas beta1 beta2 optimizer_config optimizer_kwargs optimizer_params',
    ),
    ('policy.learn.optimizer', ('{type: adamw, weight_decay: .01}',), '', 'weight_decay l2_reg use_weight_decay'),
    ('policy.learn.optimizer', ('{type: sgd, momentum: .9}',), '', 'momentum'),
    (
        'policy.learn.accumulate',
        (),
        'a number of minibatches',
        'accumulate_grads accumulate_grad_batches accumulation_steps '
        'grad_accumulation grad_accumulation_steps gradient_accumulation gradient_accumulation_steps',
    ),
    ('policy.learn.precision', (), '', 'enable_amp use_amp amp amp_dtype mixed_precision fp16 bf16 use_fp16 use_bf16'),
    (
        'policy.learn.draw',
        ('in_order',),
        'minibatches are shuffled unless it says so',
        'shuffle shuffle_minibatches shuffle_sequences shuffle_batch_per_epoch',
    ),
    (
        'policy.learn.batch_size',
        (),
        '',
        'sgd_minibatch_size minibatch_size mini_batch_size mini_batchsize minibatch mini_batch mini_batch_size_per_learner',
    ),
    (
        'policy.learn.batch_size',
        (),
        'samples in one minibatch, not their number',
        'num_minibatches n_minibatches nminibatches num_mini_batch num_minibatch num_mini_batches minibatches',
    ),
    (
        'policy.learn.epoch_per_collect',
        (),
        '',
        'num_sgd_iter num_sgd_iters n_epochs num_epochs update_epochs noptepochs ppo_epochs ppo_epoch repeat_per_collect '
        'mini_epochs epochs n_epoch num_epoch train_epochs nepoch e_policy',
    ),
    # the objective
    (
        'policy.learn.clip_ratio',
        (),
        '',
        'clip_range clip_coef clip_param cliprange clip_eps clip_epsilon eps_clip e_clip',
    ),
    (
        'policy.learn.clip_ratio',
        (),
        'exploration by epsilon-greedy is `policy.collect.eps`, with `policy.type=dqn`',
        'epsilon',
    ),
    ('policy.learn.dual_clip', (), '', 'dual_clip_param clip_ratio_dual'),
    ('policy.learn.surrogate', (), '', 'surrogate_loss surrogate_fn policy_loss_type pg_loss_type'),
    (
        'policy.learn.penalties',
        ('[{type: kl, weight: .2, target: .01}]',),
        '',
        'kl_target kl_coeff kl_coef use_kl_loss kl_loss_coeff init_kl_coeff init_kl_coef kl_penalty kl_beta',
    ),
    (
        'policy.learn.value_clip',
        (),
        'true clips by clip_ratio',
        'clip_vloss use_value_clip clip_value use_clipped_value_loss clip_value_loss clip_vf_loss',
    ),
    ('policy.learn.value_loss', ('{type: clip, range: .2}',), '', 'clip_range_vf cliprange_vf value_clip_range'),
    ('policy.learn.value_loss', ('{type: error_clip, range: 10}',), 'the squared error is clamped', 'vf_clip_param'),
    (
        'policy.learn.value_loss',
        ('{type: huber, delta: 1}',),
        '',
        'vf_loss_type value_loss_type critic_loss_type huber use_huber huber_loss use_huber_loss smooth_l1 vf_loss_fn',
    ),
    ('policy.learn.value_loss', ('{type: hl_gauss, low: .., high: ..}',), '', 'num_atoms n_atoms num_bins v_min v_max'),
    (
        'policy.learn.value_weight',
        (),
        'twice as much as in stable-baselines3 and Tianshou, since here the squared error is halved; as much as in CleanRL '
        'and AgileRL, where it is halved too',
        'vf_coef',
    ),
    (
        'policy.learn.value_weight',
        (),
        'twice as much as in RLlib, since here the squared error is halved',
        'vf_loss_coeff',
    ),
    (
        'policy.learn.value_weight',
        (),
        'as much as in rl8, with `policy.learn.value_loss={type: huber, delta: 1}`',
        'vf_coeff',
    ),
    (
        'policy.learn.value_weight',
        (),
        'here the squared error is halved: twice as much if it is not halved there',
        'value_coef value_loss_coef critic_coef value_coeff value_loss_coeff critic_loss_coeff value_loss_scale',
    ),
    (
        'policy.learn.entropy_weight',
        (),
        '',
        'ent_coef entropy_coeff entropy_coef ent_coeff entropy_loss_coeff entropy_beta entropy_loss_scale',
    ),
    ('policy.learn.baseline', (), "'critic' or 'none'", 'use_critic use_baseline'),
    ('policy.learn.intrinsic', (), '', 'rnd use_rnd rnd_cfg intrinsic_reward curiosity'),
    (
        'policy.learn.grad_clip',
        (),
        '',
        'max_grad_norm grad_clip_norm grad_norm clip_grad_norm gradient_clip max_gradient_norm grad_norm_clip',
    ),
    ('policy.learn.grad_clip_value', (), '', 'clip_grad_value gradient_clip_val grad_value_clip'),
    (
        'policy.learn.adv_norm',
        (),
        "'minibatch', 'batch' or 'off'",
        'norm_adv normalize_advantage normalize_advantages '
        'advantage_normalization advantage_norm use_advantage_normalization',
    ),
    (
        'policy.learn.value_norm',
        (),
        '',
        'normalize_value normalize_returns return_norm value_normalization use_valuenorm',
    ),
    (
        'policy.learn.reward_norm',
        (),
        '',
        'norm_reward normalize_reward normalize_rewards rew_norm reward_normalization reward_scaling',
    ),
    ('policy.learn.target_kl', (), '', 'max_kl kl_early_stop'),
    ('policy.learn.target_kl', (), 'with `policy.learn.target_kl_at=minibatch` as in rl8', 'target_kl_div max_kl_div'),
    ('policy.learn.recompute_adv', (), '', 'recompute_advantage recompute_advantages'),
    # dqn
    (
        'policy.learn.target_freq',
        (),
        'in gradient steps, for `policy.type=dqn`; the other types have no target network',
        'target_network target_net target_update_freq target_network_update_freq target_update_interval',
    ),
    ('policy.learn.double', (), 'for `policy.type=dqn`', 'double_q double_dqn use_double_q'),
    ('policy.learn.tau', (), 'for `policy.type=dqn`', 'target_theta learn.tau'),
    # samples of older weights
    ('policy.learn.correction', ('vtrace',), '', 'vtrace use_vtrace v_trace importance_sampling'),
    (
        'policy.learn.correction',
        ('{type: vtrace, rho_max: 1}',),
        'one bound for both ratios of RLlib',
        'vtrace_clip_rho_threshold vtrace_clip_pg_rho_threshold rho_clip clip_rho_threshold',
    ),
    # PPG
    (
        'policy.learn.aux_train_epoch',
        (),
        'for `policy.type=ppg`',
        'epochs_aux e_aux e_auxiliary n_aux_epochs aux_epochs',
    ),
    ('policy.learn.aux_freq', (), 'for `policy.type=ppg`', 'n_pi n_iteration aux_update_freq'),
    ('policy.learn.critic_epoch_per_collect', (), 'for `policy.type=ppg`', 'v_value e_value'),
    ('policy.learn.aux_bc_weight', (), 'for `policy.type=ppg`', 'beta_weight beta_clone'),
    ('policy.learn.aux_batch_size', (), 'for `policy.type=ppg`', 'aux_minibatch_size aux_mbsize'),
)
"""(path in zoo, values that it is written as, note, names elsewhere)."""
