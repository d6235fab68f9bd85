"""Config keys of other libraries and their counterparts in zoo: data of tests/config/test_problems.py.

A line: text that the message about each key after the arrow must name: the path of zoo's key, 'key' (zoo has a key at this
same path), 'by: ...' (words on how zoo does it), or 'none: ...' (words on why zoo has no counterpart).
Sources: RLlib's PPOConfig and its older dict of keys, rl8's AlgorithmConfig, AgileRL's PPO with INIT_HP and NET_CONFIG,
DI-engine's PPO and PPG configs, stable-baselines3's PPO and rl-zoo3's files, CleanRL's ppo scripts, Tianshou's PPOPolicy;
`guessed`: words of no library, which users are likely to try first.
"""

from __future__ import annotations

KEYS = {
    'RLlib': """
env.kwargs <- env_config
by: spaces of the env <- observation_space, action_space
by: `env.wrappers` <- clip_rewards, preprocessor_pref, model.grayscale
env.action_mode <- normalize_actions, clip_actions
env.check <- disable_env_checking
by: `env.id=atari` <- is_atari
none: videos <- render_env
env.action_mask <- action_mask_key
none: PyTorch <- framework, eager_tracing, torch_compile_learner
cluster.runner_num <- num_env_runners, num_workers, num_rollout_workers
env.collector_env_num <- num_envs_per_env_runner, num_envs_per_worker
env.collector_group_num <- worker_num_splits
policy.collect.n_step <- rollout_fragment_length
policy.collect.batch_mode <- batch_mode
cluster.runner_timeout <- sample_timeout_s
policy.collect.exploration <- explore, exploration_config
policy.model.obs_norm <- observation_filter
none: find their places <- create_env_on_local_worker
none: format of their own <- compress_observations, episode_lookback_horizon
by: `env.vectorization` <- remote_worker_envs
none: connectors <- enable_connectors, module_to_env_connector, env_runner_cls
by: `policy.model.obs_norm` <- env_to_module_connector
policy.collect.discount_factor <- gamma
policy.learn.learning_rate <- lr, lr_schedule
policy.collect.n_sample <- train_batch_size, train_batch_size_per_learner
policy.learn.batch_size <- minibatch_size, sgd_minibatch_size, mini_batch_size_per_learner
policy.learn.epoch_per_collect <- num_sgd_iter, num_epochs
policy.learn.draw <- shuffle_sequences, shuffle_batch_per_epoch
policy.learn.baseline <- use_critic
policy.collect.estimator <- use_gae
policy.collect.gae_lambda <- lambda, lambda_
policy.learn.penalties <- use_kl_loss, kl_coeff, kl_target
policy.learn.value_weight <- vf_loss_coeff
policy.learn.entropy_weight <- entropy_coeff, entropy_coeff_schedule
policy.learn.clip_ratio <- clip_param
policy.learn.value_loss <- vf_clip_param
policy.learn.grad_clip <- grad_clip
by: `policy.learn.grad_clip_value` <- grad_clip_by
policy.model.shared_encoder <- vf_share_layers
policy.learn.optimizer <- optimizer
by: subclass <- learner_class
policy.model.hidden_sizes <- model.fcnet_hiddens
policy.model.activation <- model.fcnet_activation
policy.model.state_dependent_std <- model.free_log_std
policy.model.encoder <- model.conv_filters
policy.model.actor_head <- model.post_fcnet_hiddens
policy.model.recurrent <- model.use_lstm, model.lstm_cell_size
policy.learn.sequence.len <- model.max_seq_len
env.prev_action <- model.lstm_use_prev_action
env.prev_reward <- model.lstm_use_prev_reward
by: `policy.model.recurrent` <- model.use_attention
env.window <- model.framestack
policy.model.type <- model.custom_model
by: `policy.model` <- model.custom_model_config, rl_module_spec
policy.model.distribution <- model.custom_action_dist
policy.device <- num_gpus, num_gpus_per_learner
cluster.learner_num <- num_learners
cluster.runner_cpu <- num_cpus_per_worker
by: torchrun <- simple_optimizer
policy.eval.eval_freq <- evaluation_interval
policy.eval.n_episode <- evaluation_duration
none: env steps alone <- evaluation_duration_unit, min_time_s_per_iteration
env.evaluator_env_num <- evaluation_num_workers
by: `policy.eval.deterministic=true` <- evaluation_config
policy.eval.deterministic <- evaluation_config.explore
agents.mapping <- policy_mapping_fn
agents.train <- policies_to_train
agents.count_by <- count_steps_by
by: logging <- log_level
logger.sinks <- logger_config
by: 100 episodes <- metrics_num_episodes_for_smoothing
none: checkpoint <- export_native_model_files
cluster.restart_limit <- ignore_worker_failures, recreate_failed_workers, max_num_worker_restarts
callbacks <- callbacks_class
pipeline <- execution_plan
none: offline <- input_, output
by: `env.max_episode_steps` <- soft_horizon
""",
    'rl8': """
policy.model.type <- model_cls
by: `policy.model` <- model_config
policy.model.distribution <- distribution_cls
env.id <- env_cls
policy.collect.n_step <- horizon
by: `env.reset_every` <- horizons_per_env_reset
env.collector_env_num <- num_envs
policy.learn.optimizer <- optimizer_cls, optimizer_config
policy.learn.accumulate <- accumulate_grads
policy.learn.precision <- enable_amp
policy.learn.learning_rate <- lr_schedule_kind
policy.learn.entropy_weight <- entropy_coeff_schedule_kind
policy.collect.gae_lambda <- gae_lambda
policy.learn.epoch_per_collect <- num_sgd_iters
policy.learn.draw <- shuffle_minibatches
policy.learn.dual_clip <- dual_clip_param
policy.learn.value_weight <- vf_coeff
policy.learn.target_kl <- target_kl_div
policy.learn.grad_clip <- max_grad_norm
policy.learn.adv_norm <- normalize_advantages
policy.learn.reward_norm <- normalize_rewards
policy.device <- device
policy.learn.sequence.len <- seq_len
by: `policy.learn.sequence` <- seqs_per_state_reset
""",
    'AgileRL': """
by: this section is spread <- INIT_HP.BATCH_SIZE
policy.learn.batch_size <- BATCH_SIZE
policy.learn.learning_rate <- LR
policy.collect.n_sample <- learn_step, LEARN_STEP
policy.learn.clip_ratio <- CLIP_COEF, clip_coef
policy.learn.entropy_weight <- ent_coef
policy.learn.value_weight <- vf_coef
policy.learn.epoch_per_collect <- update_epochs
policy.learn.target_kl <- target_kl
policy.model.log_std_init <- action_std_init, ACTION_STD_INIT
policy.model.normalize_images <- normalize_images
policy.model.shared_encoder <- share_encoders
by: serial_pipeline(model= <- actor_network, critic_network
policy.model.actor_head <- head_config
by: `policy.model` <- net_config
policy.model.encoder <- channel_size, kernel_size, stride_size
policy.model.recurrent <- recurrent, hidden_state_size
policy.learn.sequence.overlap <- bptt_sequence_type
policy.learn.sequence.len <- max_seq_len
none: format of their own <- use_rollout_buffer
buffer <- rollout_buffer_config
by: torchrun <- accelerator, wrap
none: evolution <- index, mut, POP_SIZE, TOURN_SIZE, ELITISM
by: zoo sweep <- hp_config
policy.eval.eval_freq <- EVO_STEPS
policy.eval.n_episode <- EVAL_LOOP
none: env steps alone <- EVAL_STEPS
max_env_step <- MAX_STEPS
policy.eval.stop_value <- TARGET_SCORE
env.id <- ENV_NAME
policy.type <- ALGO
by: leave it out <- CHANNELS_LAST
by: spaces of the env <- DISCRETE_ACTIONS
logger.sinks <- WANDB
""",
    'DI-engine': """
by: `env.vectorization` <- env.manager, env.manager.type
by: shared memory always <- env.manager.shared_memory
env.id <- env.type, env.env_id
none: format of their own <- env.cfg_type
by: --import <- env.import_names
key <- env.collector_env_num, env.evaluator_env_num, policy.model.activation, policy.learn.epoch_per_collect
key <- policy.learn.batch_size, policy.learn.learning_rate, policy.learn.value_weight, policy.learn.entropy_weight
key <- policy.learn.clip_ratio, policy.learn.adv_norm, policy.learn.value_norm, policy.learn.grad_clip_value
key <- policy.learn.ignore_done, policy.collect.n_sample, policy.collect.discount_factor, policy.collect.gae_lambda
policy.eval.n_episode <- env.n_evaluator_episode
policy.eval.stop_value <- env.stop_value
env.action_mode <- env.act_scale, env.use_act_scale
policy.model.obs_norm <- env.norm_obs
policy.learn.reward_norm <- env.norm_reward
env.window <- env.frame_stack
none: leave it out <- env.is_train, env.delay_reward_step, policy.transition_with_policy_data
logger.video_freq <- env.replay_path, env.save_replay_gif
policy.device <- policy.cuda
by: `policy.type=ppo` <- policy.on_policy
buffer.alpha <- policy.priority
buffer.beta <- policy.priority_IS_weight
policy.learn.recompute_adv <- policy.recompute_adv
by: spaces of the env <- policy.action_space, policy.model.obs_shape, policy.model.action_shape
by: spaces of the env <- policy.model.action_space
policy.collect.estimator <- policy.nstep_return, policy.nstep
none: several agents <- policy.multi_agent
none: value-based <- policy.random_collect_size
policy.model.hidden_sizes <- policy.model.encoder_hidden_size_list
policy.model.actor_head <- policy.model.actor_head_hidden_size, policy.model.actor_head_layer_num
policy.model.critic_head <- policy.model.critic_head_hidden_size, policy.model.critic_head_layer_num
policy.model.shared_encoder <- policy.model.share_encoder
policy.model.layer_norm <- policy.model.norm_type
policy.model.state_dependent_std <- policy.model.sigma_type
policy.model.log_std_init <- policy.model.fixed_sigma_value
none: not bounded <- policy.model.bound_type
policy.model.encoder <- policy.model.impala_cnn_encoder
by: torchrun <- policy.learn.multi_gpu, policy.learn.bp_update_sync
policy.learn.learning_rate <- policy.learn.learning_rate.shape
by: orthogonal <- policy.learn.ppo_param_init
by: `policy.learn.grad_clip` <- policy.learn.grad_clip_type
by: `buffer.update_per_collect` <- policy.learn.update_per_collect
ppg: key <- policy.learn.actor_epoch_per_collect, policy.learn.critic_epoch_per_collect, policy.learn.aux_freq
ppg: key <- policy.learn.aux_train_epoch
policy.learn.aux_train_epoch <- policy.learn.epochs_aux
policy.learn.aux_bc_weight <- policy.learn.beta_weight
by: --resume <- policy.learn.resume_training, policy.learn.learner.hook.load_ckpt_before_run
by: the run is the learner <- policy.learn.learner, policy.learn.learner.train_iterations
checkpoint.freq <- policy.learn.learner.hook.save_ckpt_after_iter
logger.freq <- policy.learn.learner.hook.log_show_after_iter
policy.learn.target_freq <- policy.learn.target_update_freq
policy.collect.batch_mode <- policy.collect.n_episode
by: chunks <- policy.collect.unroll_len
by: the run is the collector <- policy.collect.collector
by: `policy.eval` <- policy.eval.evaluator
policy.eval.eval_freq <- policy.eval.evaluator.eval_freq
by: `policy.eval.n_episode` <- policy.eval.evaluator.n_episode
by: `buffer` <- policy.other
buffer <- policy.other.replay_buffer
buffer.size <- policy.other.replay_buffer.replay_buffer_size
by: `policy.learn.phase` <- policy.value_network, policy.policy_network
by: keys of `policy` <- create_config
env.vectorization <- env_manager, env_manager.type
buffer.policy.update_per_collect <- ppg_offpolicy: policy.learn.update_per_collect
""",
    'stable-baselines3': """
max_env_step <- n_timesteps, total_timesteps
env.collector_env_num <- n_envs
policy.collect.n_step <- n_steps
policy.learn.batch_size <- batch_size
policy.learn.epoch_per_collect <- n_epochs
policy.learn.clip_ratio <- clip_range
policy.learn.value_loss <- clip_range_vf
policy.learn.adv_norm <- normalize_advantage
policy.model.distribution <- use_sde, squash_output
policy.model.sde_sample_freq <- sde_sample_freq
buffer <- rollout_buffer_class
by: 100 episodes <- stats_window_size
logger.tensorboard <- tensorboard_log
by: `policy.model` <- policy_kwargs
logger.console <- verbose, progress_bar
by: `policy.model.obs_norm` <- normalize
env.wrappers <- env_wrapper, vec_env_wrapper
env.window <- frame_stack
policy.model.hidden_sizes <- policy_kwargs.net_arch
by: orthogonal <- ortho_init
policy.model.log_std_init <- log_std_init
policy.model.activation <- activation_fn
policy.model.encoder <- features_extractor_class
policy.eval.n_episode <- n_eval_episodes
policy.eval.deterministic <- deterministic
callbacks <- callback
logger.freq <- log_interval
checkpoint.freq <- save_freq
""",
    'CleanRL': """
by: bit for bit <- torch_deterministic
policy.device <- cuda
logger.sinks <- track, wandb_project_name
logger.video_freq <- capture_video
none: checkpoint <- save_model, upload_model
env.id <- env_id
policy.collect.n_step <- num_steps
policy.learn.learning_rate <- anneal_lr
policy.learn.batch_size <- num_minibatches
policy.learn.adv_norm <- norm_adv
policy.learn.value_loss <- clip_vloss
max_env_step <- num_iterations
policy.learn.aux_freq <- n_iteration
policy.learn.epoch_per_collect <- e_policy
policy.learn.aux_train_epoch <- e_auxiliary
policy.learn.aux_bc_weight <- beta_clone
policy.learn.critic_epoch_per_collect <- v_value
""",
    'Tianshou': """
policy.learn.clip_ratio <- eps_clip
policy.learn.value_loss <- value_clip
policy.learn.adv_norm <- advantage_normalization
policy.learn.recompute_adv <- recompute_advantage
policy.learn.epoch_per_collect <- repeat_per_collect
policy.collect.n_sample <- step_per_collect
policy.collect.batch_mode <- episode_per_collect
policy.eval.eval_freq <- step_per_epoch
policy.eval.n_episode <- episode_per_test
by: `buffer.update_per_collect` <- update_per_step
env.collector_env_num <- training_num
env.evaluator_env_num <- test_num
max_env_step <- max_epoch
policy.eval.stop_value <- stop_fn
policy.learn.reward_norm <- reward_normalization
env.action_mode <- action_bound_method, action_scaling
by: `policy.eval.deterministic=false` <- deterministic_eval
policy.model.distribution <- dist_fn
""",
    'guessed': """
stop <- policy.eval.patience, patience, max_wall_time
logger.sinks <- logger.csv
max_env_step <- steps
env.id <- env.name
policy.learn.target_freq <- policy.learn.target_network
policy.learn.batch_size <- policy.learn.mini_batch
policy.learn.clip_ratio <- policy.learn.epsilon
policy.collect.eps <- policy.collect.epsilon
""",
}
ROWS = [
    (library, path, wanted)
    for library, text in KEYS.items()
    for wanted, _, paths in (line.partition(' <- ') for line in text.strip().splitlines())
    for path in paths.split(', ')
]
