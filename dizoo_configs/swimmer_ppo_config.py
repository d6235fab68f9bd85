"""Swimmer-v5: swims forward; the discount is near 1, since only whole strokes give speed. Needs the mujoco extra."""

config = dict(
    exp_name='swimmer_ppo',
    max_env_step=1_000_000,
    env=dict(id='Swimmer-v5', collector_env_num=4),
    policy=dict(
        type='ppo',
        model=dict(obs_norm=True),
        learn=dict(
            epoch_per_collect=20,
            learning_rate=dict(start=6e-4, end=0.0),
            reward_norm=True,
        ),
        collect=dict(n_step=2048, discount_factor=0.9999, gae_lambda=0.98),
        eval=dict(eval_freq=100_000),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
