"""Pendulum-v1 with PPO and eleven discrete torques (MultiDiscrete) instead of a continuous one."""

config = dict(
    exp_name='pendulum_bins_ppo',
    max_env_step=200_000,
    env=dict(id='Pendulum-v1', collector_env_num=4, action_bins=11),
    policy=dict(
        type='ppo',
        learn=dict(
            epoch_per_collect=10,
            batch_size=64,
            learning_rate=dict(start=1e-3, end=0.0),
            value_norm=True,
        ),
        collect=dict(n_step=1024, discount_factor=0.98),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
