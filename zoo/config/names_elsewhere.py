"""Keys of other libraries that zoo has in another form, or has not: data of `zoo.config.names`."""

from __future__ import annotations

BY: tuple[tuple[str, str], ...] = (
    # the form of a config
    (
        'this section is spread: networks are `policy.model`, e.g. `policy.model.hidden_sizes` and `policy.model.activation`; '
        'optimisers are `policy.learn.optimizer` and `policy.learn.adam_eps`',
        'policy_kwargs net_config model_config custom_model_config rl_module_spec rl_module rl_module_config',
    ),
    (
        'this section is spread over `env`, `policy.learn`, `policy.collect` and `policy.eval`',
        'init_hp training env_runners debugging reporting resources',
    ),
    (
        'the three sections learn, collect and eval are keys of `policy`, and buffers stand in `buffer`',
        'policy.other main_config create_config system',
    ),
    (
        'a config needs no imports: give `zoo train` the option --import FILE_OR_MODULE, or import it before serial_pipeline',
        'import_names',
    ),
    (
        'a resume is asked for by `zoo train --resume RUN` or serial_pipeline(resume=...)',
        'resume_training resume load_path load_ckpt_before_run load_model restore_path checkpoint_path',
    ),
    (
        'a run begins with the weights of another one by init_from=RUN, and continues one by --resume RUN',
        'pretrained_path pretrained_model trained_agent',
    ),
    (
        'on-policy and off-policy are types: `policy.type=ppo` or ppg learn from each rollout once, ppo_offpolicy and '
        'ppg_offpolicy draw from `buffer`',
        'on_policy off_policy policy.on_policy',
    ),
    # what the env decides
    (
        'the spaces of the env decide this: leave it out',
        'obs_shape action_shape action_space observation_space obs_space action_dim obs_dim state_dim discrete_actions '
        'is_continuous continuous continuous_action_space discrete',
    ),
    (
        'images may have their channels first or last, as the env gives them: leave it out',
        'channels_last swap_channels channels_first transpose_images',
    ),
    # parts with another shape
    (
        '`env.vectorization` says how envs run (sync, async, batched) and `env.step_timeout` how long they may take',
        'env.manager manager remote_worker_envs subprocess async_envs asynchronous_vectorization remote_env_batch_wait_ms '
        'worker_cls',
    ),
    (
        'arrays of async envs are in shared memory always: leave it out; `env.vectorization` chooses processes',
        'manager.shared_memory shared_memory',
    ),
    (
        'the run is the learner: `checkpoint.freq`, `logger.freq` and `callbacks` do what its hooks do',
        'learner learn.learner train_iterations_hook hook log_policy',
    ),
    (
        'the run is the collector: `env.collector_env_num`, `policy.collect.n_sample` and `policy.collect.n_step` say how much',
        'collector collect.collector get_train_sample collector_type',
    ),
    (
        'evaluation is `policy.eval`: `policy.eval.eval_freq` in env steps, `policy.eval.n_episode`, `policy.eval.stop_value`',
        'evaluator eval.evaluator evaluation off_evaluation eval_callback',
    ),
    (
        'a rollout is not cut into chunks: leave out a length of 1; sequences for a model with a memory have '
        '`policy.learn.sequence.len`',
        'unroll_len',
    ),
    (
        'how often a replay buffer is drawn from after a rollout is `buffer.update_per_collect`, for off-policy types; passes '
        'over each rollout are `policy.learn.epoch_per_collect`',
        'update_per_collect update_per_step',
    ),
    (
        '`policy.learn.phase` and `policy.learn.aux_freq` say when an auxiliary phase comes, with `policy.type=ppg`',
        'value_network policy_network auxiliary_phase aux_phase n_aux',
    ),
    (
        'clipping is one key for each kind: `policy.learn.grad_clip` by the norm, `policy.learn.grad_clip_value` by value',
        'grad_clip_by grad_clip_type',
    ),
    (
        'a reward is changed by a wrapper of the env (`env.wrappers`), or scaled by its statistics (`policy.learn.reward_norm`)',
        'clip_rewards clip_reward reward_clip clip_range_reward reward_shaping_fn reward_scale reward_shaper',
    ),
    (
        'an observation is changed by a wrapper of the env (`env.wrappers`); Atari does what is usual in `env.id=atari`',
        'preprocessor_pref custom_preprocessor grayscale gray_scale zero_mean dim noop_max frame_skip env.frame_skip warp_frame clip_obs '
        'is_atari atari_wrapper',
    ),
    (
        'observations and rewards are normalised by two keys, `policy.model.obs_norm` and `policy.learn.reward_norm`',
        'normalize vecnormalize normalize_kwargs vec_normalize_kwargs',
    ),
    (
        'a memory, an observation window or attention is a property of the model: `policy.model.recurrent` or `env.window`',
        'use_attention attention_dim attention_num_transformer_units recurrent_policy policy_class is_recurrent',
    ),
    (
        'evaluations are greedy by `policy.eval.deterministic=true`, as {explore: false} says, and what differs in their env '
        'is `policy.eval.env`',
        'evaluation_config',
    ),
    (
        'evaluation is greedy unless `policy.eval.deterministic=false`',
        'deterministic_eval eval_deterministic use_deterministic deterministic_evaluation',
    ),
    (
        'the envs are reset after each `env.reset_every` rollouts; null, the default, is never',
        'horizons_per_env_reset',
    ),
    (
        'a time limit is `env.max_episode_steps`, and the value of what lies beyond it is bootstrapped',
        'soft_horizon no_done_at_end',
    ),
    (
        'the state of a memory lasts a whole episode; `policy.learn.sequence` says how long the pieces to learn from are',
        'seqs_per_state_reset',
    ),
    (
        'the network is given to serial_pipeline(model=...), or registered and named by `policy.model.type`',
        'actor_network critic_network',
    ),
    (
        '`policy.type` also names classes of your own: register a subclass of PPOPolicy, with its own step',
        'learner_class policy_cls loss_fn custom_loss learner_connector',
    ),
    ('the log level is that of the module logging, e.g. logging.basicConfig(level=...)', 'log_level log_sys_usage'),
    (
        'metrics of a run are averages over the last 100 episodes',
        'metrics_num_episodes_for_smoothing stats_window_size metrics_smoothing_episodes',
    ),
    (
        'a network starts with orthogonal weights: for others give serial_pipeline(model=...)',
        'ortho_init ppo_param_init orthogonal_init init_type weight_init last_linear_layer_init_zero',
    ),
    (
        'a run can be repeated bit for bit on the CPU: set `seed` alone',
        'torch_deterministic cudnn_deterministic env_seed dynamic_seed',
    ),
    (
        'several GPUs or processes learn together under `torchrun --nproc-per-node=N -m zoo train NAME`',
        'multi_gpu multi_gpu_train_one_step simple_optimizer accelerator wrap local_gpu_idx bp_update_sync world_size',
    ),
    (
        '`zoo sweep NAME policy.learn.learning_rate=log(1e-4,1e-2)` tries values of any key',
        'tune tune_config num_samples sweep optimize_hyperparameters hp_config',
    ),
)
"""(what does it here, names elsewhere)."""

NOT_HERE: tuple[tuple[str, str, str], ...] = (
    (
        'runners and learners find their places by themselves',
        'leave it out; see the section `cluster`',
        'num_cpus_per_learner num_cpus_for_local_worker num_cpus_for_main_process placement_strategy create_env_on_local_worker '
        'create_local_env_runner create_env_on_driver num_aggregator_actors_per_learner '
        'validate_env_runners_after_construction sampler_perf_stats_ema_coef',
    ),
    (
        'it is written in PyTorch alone',
        'leave it out',
        'framework framework_str eager_tracing tf_session_args '
        'torch_compile_learner torch_compile_worker eager_max_retraces',
    ),
    (
        'one policy acts for one agent',
        'leave it out; several agents need one env that joins them',
        'policies policy_mapping_fn policies_to_train count_steps_by observation_fn multi_agent multiagent agent_ids n_agent '
        'policy_map_capacity',
    ),
    (
        'evolution of populations is not built in',
        'leave it out; start several runs and compare them with `zoo eval`',
        'pop_size population_size tourn_size elitism mutation mut mutation_params evo_epochs index no_mut arch_mut params_mut act_mut '
        'rl_hp_mut mut_sd new_layer rand_seed evo_loop algo_mut',
    ),
    (
        'envs and policies are joined directly, without connectors and batches in a format of their own',
        'leave it out',
        'enable_connectors env_to_module_connector module_to_env_connector _enable_rl_module_api _enable_learner_api '
        'enable_rl_module_and_learner enable_env_runner_and_connector_v2 sample_collector env_runner_cls episode_lookback_horizon '
        'compress_observations _disable_preprocessor_api _disable_action_flattening use_worker_filter_stats '
        'update_worker_filter_stats synchronize_filters sample_async add_default_connectors_to_env_to_module_pipeline '
        'add_default_connectors_to_learner_pipeline use_rollout_buffer transition_with_policy_data cfg_type',
    ),
    (
        'a run is measured in env steps alone',
        'leave it out, and set `logger.freq` or `policy.eval.eval_freq`',
        'min_time_s_per_iteration min_sample_timesteps_per_iteration min_train_timesteps_per_iteration '
        'min_time_s_per_reporting evaluation_duration_unit evaluation_parallel_to_training always_attach_evaluation_results '
        'keep_per_episode_custom_metrics evaluation_sample_timeout_s eval_steps',
    ),
    (
        'offline data and estimates from it are not read',
        'leave it out; train on an env',
        'input output input_ input_config output_config postprocess_inputs off_policy_estimation_methods '
        'offline_sampling demo_path expert_data bc_loss data_path',
    ),
    (
        'a policy is saved as a checkpoint alone',
        'leave it out; load_policy(run) reads it',
        'export_native_model_files '
        'save_model upload_model hf_entity checkpoint_trainable_policies_only save_vecnormalize',
    ),
    (
        'a run opens no window',
        'leave it out; `zoo play RUN` shows the policy, `zoo video RUN -o FILE.mp4` and `logger.video_freq` write videos',
        'render_env render render_mode',
    ),
    (
        'the mean of a Gaussian is not bounded',
        'leave it out; `policy.model.distribution=squashed_gaussian` bounds the action itself',
        'bound_type use_tanh_mean',
    ),
    (
        'the envs of a rollout are stepped together, and wait for all',
        'leave it out',
        'batch_reset is_train delay_reward_step wait_num step_wait_timeout connect_timeout reset_inplace need_flatten '
        'episode_num force_reproducibility',
    ),
    (
        'it belongs to value-based types',
        'leave it out; for those of `policy.type=dqn` see zoo config cartpole_dqn',
        'n_sample_per_update random_collect_size dueling learning_starts train_freq',
    ),
)
"""(why there is none, what to do instead, names elsewhere)."""
