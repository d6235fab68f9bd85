"""Keys of other libraries that are keys of zoo under other names: data of `zoo.config.names`."""

from __future__ import annotations

from zoo.config.names_learn import LEARN

HERE: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    # the run
    ('exp_name', (), '', 'run_name experiment_name experiment job_name algo_name'),
    (
        'max_env_step',
        (),
        '',
        'total_timesteps total_steps timesteps num_timesteps num_env_steps max_env_steps timesteps_total n_timesteps '
        'max_step max_steps steps train_steps max_timesteps num_frames total_frames num_env_steps_sampled_lifetime stop_timesteps',
    ),
    ('max_env_step', (), 'in env steps, not epochs', 'max_epoch max_epochs max_iterations num_iterations num_updates'),
    (
        'callbacks',
        (),
        "classes named 'module:Class', or serial_pipeline(callbacks=...)",
        'callback callbacks_class callback_class',
    ),
    ('pipeline', (), '', 'execution_plan training_loop'),
    (
        'logger.video_freq',
        (),
        'in evaluations; `zoo video RUN -o FILE.mp4` makes one afterwards',
        'capture_video record_video save_replay_gif replay_path replay save_replay render_eval',
    ),
    # envs
    ('env.id', (), '', 'env_id env_name gym_id task env_cls env.type env_class env.env_name env.name environment'),
    ('env.kwargs', (), '', 'env_kwargs env_config env_args'),
    (
        'env.collector_env_num',
        (),
        '',
        'num_envs n_envs n_env num_env env_num num_actors training_num num_processes num_envs_per_worker '
        'num_envs_per_env_runner',
    ),
    (
        'cluster.runner_num',
        (),
        'processes that step the envs, each its share of `env.collector_env_num`, which counts them all',
        'num_workers num_rollout_workers num_env_runners num_runners cluster.runners',
    ),
    (
        'cluster.learner_num',
        (),
        'under Ray; without it `torchrun --nproc-per-node=N -m zoo train NAME`',
        'num_learners num_learner_workers',
    ),
    ('cluster.runner_cpu', (), '', 'num_cpus_per_worker num_cpus_per_env_runner'),
    ('cluster.runner_gpu', (), '', 'num_gpus_per_env_runner num_gpus_per_worker'),
    ('cluster.address', (), '', 'ray_address'),
    ('cluster.working_dir', (), '', 'runtime_env'),
    (
        'cluster.max_lag',
        (),
        'updates that the weights of a rollout may be old',
        'broadcast_interval max_requests_in_flight_per_env_runner max_policy_lag',
    ),
    ('cluster.runner_timeout', (), 'seconds for a rollout', 'sample_timeout_s'),
    (
        'cluster.restart_limit',
        (),
        'of runners, in an hour; a lost one is always made anew',
        'max_num_worker_restarts max_num_env_runner_restarts restart_failed_env_runners recreate_failed_workers '
        'ignore_worker_failures ignore_env_runner_failures',
    ),
    ('env.collector_group_num', (), '', 'worker_num_splits num_splits n_env_group'),
    (
        'env.evaluator_env_num',
        (),
        '',
        'n_eval_envs test_num num_eval_envs evaluation_num_workers evaluation_num_env_runners',
    ),
    (
        'env.vectorization',
        (),
        '',
        'env_manager vec_env_class vec_env vec_env_type gym_env_vectorize_mode vectorize_mode',
    ),
    (
        'env.action_mode',
        (),
        "'rescale' or 'clip'",
        'normalize_actions scale_action scale_actions act_scale use_act_scale '
        'action_scaling clip_actions action_bound_method',
    ),
    ('env.action_mask', (), '', 'action_mask_key mask_actions use_action_mask use_mask'),
    (
        'env.max_episode_steps',
        (),
        '',
        'max_episode_length max_ep_len episode_length time_limit max_episode_len timelimit',
    ),
    ('env.step_timeout', (), 'seconds for one step', 'step_timeout_s env_timeout'),
    (
        'env.window',
        (),
        'for images too; Atari has frame_stack in `env.kwargs`',
        'framestack n_stack num_stack frame_stack num_frame_stack',
    ),
    ('env.check', (), '', 'disable_env_checking check_env disable_env_checker'),
    ('env.wrappers', (), "a list of 'module:Class'", 'env_wrapper env_wrappers wrapper_class vec_env_wrapper'),
    (
        'env.on_error',
        (),
        "'restart'",
        'restart_failed_sub_environments env.auto_reset_on_error',
    ),
    ('env.max_restarts', (), '', 'env.max_retry max_retry'),
    # the policy and its network
    ('policy.type', (), '', 'algo algorithm run_or_experiment'),
    (
        'policy.device',
        (),
        "'cuda', 'cpu' or 'auto'",
        'cuda use_cuda gpu num_gpus num_gpus_per_learner',
    ),
    ('policy.n_thread', (), '', 'num_threads n_threads torch_threads num_torch_threads'),
    ('policy.model.type', (), '', 'custom_model model_cls model_class'),
    (
        'policy.model.encoder',
        (),
        '',
        'features_extractor_class cnn_type impala_cnn_encoder encoder_type encoder_config',
    ),
    (
        'policy.model.encoder',
        ('{type: cnn, ..}',),
        'an image encoder with filters of its own',
        'conv_filters filters channel_size kernel_size stride_size',
    ),
    (
        'policy.model.hidden_sizes',
        (),
        '',
        'net_arch hidden_size hidden_dim hidden_dims fcnet_hiddens hiddens layers encoder_hidden_size_list',
    ),
    (
        'policy.model.actor_head',
        (),
        'widths of its hidden layers',
        'actor_head_hidden_size actor_head_layer_num head_config post_fcnet_hiddens',
    ),
    ('policy.model.critic_head', (), 'widths of its hidden layers', 'critic_head_hidden_size critic_head_layer_num'),
    ('policy.model.activation', (), '', 'activation_fn fcnet_activation conv_activation activation_function'),
    ('policy.model.layer_norm', (), '', 'norm_type use_layer_norm layernorm'),
    (
        'policy.model.shared_encoder',
        (),
        '',
        'vf_share_layers share_layers share_encoder share_encoders share_features_extractor shared_network',
    ),
    (
        'policy.model.obs_norm',
        (),
        '',
        'norm_obs normalize_obs normalize_observations observation_filter normalize_input '
        'running_obs_norm obs_normalization',
    ),
    (
        'policy.model.recurrent',
        ('{cell: lstm, hidden_size: ..}',),
        '',
        'use_lstm lstm_cell_size lstm_hidden_size use_rnn rnn '
        'n_lstm_layers hidden_state_size enable_recurrent rnn_hidden_size',
    ),
    (
        'policy.learn.sequence.len',
        (),
        'for a model with a memory',
        'max_seq_len seq_len bptt_len sequence_length chunk_length',
    ),
    ('policy.learn.sequence.overlap', (), '', 'bptt_sequence_type'),
    ('env.prev_action', (), '', 'lstm_use_prev_action'),
    ('env.prev_reward', (), '', 'lstm_use_prev_reward'),
    ('policy.model.state_dependent_std', (), '', 'free_log_std'),
    (
        'policy.model.state_dependent_std',
        (),
        "true for sigma_type 'conditioned', false for 'independent'",
        'sigma_type',
    ),
    ('policy.model.log_std_init', (), '', 'log_std_start action_std_init'),
    ('policy.model.log_std_init', (), 'the logarithm of that number', 'fixed_sigma_value sigma_init init_noise_std'),
    ('policy.model.distribution', (), '', 'custom_action_dist distribution_cls dist_fn dist_class distribution_class'),
    ('policy.model.distribution', ('gsde',), '', 'use_sde'),
    ('policy.model.distribution', ('squashed_gaussian',), '', 'squash_output squash_actions tanh_squash'),
    *LEARN,
    # collecting
    (
        'policy.collect.n_step',
        (),
        '',
        'n_steps num_steps nsteps rollout_fragment_length rollout_length rollout_steps '
        'horizon horizon_length num_rollout_steps steps_per_env update_timestep',
    ),
    (
        'policy.collect.n_sample',
        (),
        'env steps of all envs in one rollout',
        'train_batch_size train_batch_size_per_learner '
        'step_per_collect steps_per_epoch frames_per_batch timesteps_per_batch n_samples learn_step',
    ),
    (
        'policy.collect.batch_mode',
        (),
        "'episode' for complete_episodes, 'fragment' for truncate_episodes",
        'complete_episodes truncate_episodes whole_episodes',
    ),
    (
        'policy.collect.batch_mode',
        ('episode',),
        '`policy.collect.n_sample` says how many env steps',
        'collect.n_episode episode_per_collect collect_episodes',
    ),
    ('policy.collect.discount_factor', (), '', 'gamma discount discount_rate'),
    ('policy.collect.gae_lambda', (), '', 'lambda lambda_ lam gae_lam lmbda gae_tau tau'),
    (
        'policy.collect.estimator',
        (),
        "'gae', 'returns' or 'n_step'",
        'use_gae advantage_estimator adv_estimator estimator_type',
    ),
    ('policy.collect.estimator', ('{type: n_step, n: 5}',), '', 'nstep n_step_return nstep_return use_n_step'),
    ('policy.collect.exploration', (), '', 'exploration_config explore action_selection'),
    (
        'policy.collect.eps',
        (),
        'for `policy.type=dqn`',
        'collect.epsilon epsilon_greedy eps_greedy exploration_fraction exploration_initial_eps exploration_final_eps',
    ),
    # buffers
    (
        'buffer',
        (),
        '',
        'replay_buffer other.replay_buffer rollout_buffer_class rollout_buffer_config replay_buffer_config',
    ),
    ('buffer.size', (), 'for off-policy types', 'replay_buffer_size buffer_size memory_size buffer_capacity'),
    ('buffer.max_use', (), 'for off-policy types', 'max_reuse replay_ratio'),
    ('buffer.alpha', (), 'for off-policy types', 'prioritized_replay_alpha priority'),
    ('buffer.beta', (), 'for off-policy types', 'prioritized_replay_beta priority_is_weight'),
    # evaluation, checkpoints, logs
    (
        'policy.eval.eval_freq',
        (),
        'in env steps',
        'evaluation_interval evaluate_interval eval_interval step_per_epoch eval_every evo_steps',
    ),
    ('policy.eval.eval_freq', (), 'in env steps, not training iterations', 'evaluator.eval_freq'),
    (
        'policy.eval.n_episode',
        (),
        '',
        'n_eval_episodes n_evaluator_episode episode_per_test evaluation_duration '
        'num_eval_episodes eval_episodes n_episodes eval_loop',
    ),
    (
        'policy.eval.env',
        (),
        'what differs from section `env`',
        'eval_env_config eval_env eval_env_kwargs evaluation_config.env_config',
    ),
    ('policy.eval.deterministic', (), 'true for explore: false', 'evaluation_config.explore'),
    (
        'policy.eval.stop_value',
        (),
        '',
        'reward_threshold target_reward stop_reward stop_fn stop_score episode_reward_mean target_score',
    ),
    ('stop', (), 'a list of rules', 'stop_criteria stopping_criteria'),
    (
        'stop',
        ('[{type: patience, n: 5}]',),
        'n evaluations without a better return',
        'patience eval.patience early_stop early_stopping early_stopping_patience max_no_improvement_evals',
    ),
    (
        'stop',
        ('[{type: wall_time, s: 3600}]',),
        'in seconds',
        'max_wall_time wall_time max_time time_total_s time_budget_s max_time_s',
    ),
    ('stop', ('[{type: iterations, n: 100}]',), 'n rollouts', 'training_iteration'),
    (
        'checkpoint.freq',
        (),
        'in env steps',
        'save_freq save_interval checkpoint_freq checkpoint_frequency '
        'save_ckpt_after_iter ckpt_freq checkpoint_interval',
    ),
    ('checkpoint.keep_last', (), '', 'num_to_keep keep_checkpoints_num max_to_keep'),
    ('logger.tensorboard', (), '', 'tensorboard_log tb_log use_tb tb_logger'),
    (
        'logger.sinks',
        (),
        "a list, e.g. ['csv', {type: wandb, project: my_project}]",
        'track wandb use_wandb wandb_project_name wandb_entity wandb_project mlflow logger_config loggers logger_class',
    ),
    ('logger.sinks', ('[csv]',), '', 'csv use_csv csv_logger log_csv'),
    ('logger.root', (), '', 'log_dir log_path local_dir logdir save_path storage_path output_dir log_folder exp_dir'),
    ('logger.freq', (), 'in env steps', 'log_interval log_freq log_every log_show_after_iter'),
    ('logger.console', (), "'off' for verbose 0", 'verbose progress_bar'),
)
"""(path in zoo, values that it is written as, note, names elsewhere)."""
