"""CartPole-v1 without velocities; an observation is a Dict of the last four observations and a mask (env.window)."""

config = dict(
    exp_name='cartpole_no_velocity_window_ppo',
    max_env_step=200_000,
    env=dict(id='cartpole_no_velocity', window=4),
    policy=dict(
        type='ppo',
        model=dict(obs_norm=True),  # angles are small, and their differences between two steps are even smaller
        learn=dict(
            epoch_per_collect=10,
            learning_rate=dict(start=1e-3, end=0.0),
            clip_ratio=dict(start=0.2, end=0.02),
        ),
        collect=dict(discount_factor=0.98),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
