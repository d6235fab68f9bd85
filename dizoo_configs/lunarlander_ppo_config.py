"""LunarLander-v3: lands softly (200 counts as solved); settings after rl-zoo3. Needs the box2d extra."""

config = dict(
    exp_name='lunarlander_ppo',
    max_env_step=1_000_000,
    env=dict(id='LunarLander-v3', collector_env_num=16),
    policy=dict(
        type='ppo',
        learn=dict(
            batch_size=64,
            learning_rate=dict(start=3e-4, end=0.0),
            value_norm=True,
            entropy_weight=0.01,
        ),
        collect=dict(n_step=1024, discount_factor=0.999, gae_lambda=0.98),
        eval=dict(eval_freq=100_000),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
