"""LunarLander-v3 with PPG Reloaded: as lunarlander_ppg, with short auxiliary phases over many rollouts."""

config = dict(
    exp_name='lunarlander_ppg_reloaded',
    max_env_step=1_000_000,
    env=dict(id='LunarLander-v3', collector_env_num=16),
    policy=dict(
        type='ppg_reloaded',
        learn=dict(
            actor_epoch_per_collect=4,
            critic_epoch_per_collect=4,
            aux_freq=2,
            aux_window=16,
            batch_size=64,
            learning_rate=dict(start=3e-4, end=0.0),
            entropy_weight=0.01,
            grad_clip=None,
        ),
        collect=dict(n_step=1024, discount_factor=0.999, gae_lambda=0.98),
        eval=dict(eval_freq=100_000),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
