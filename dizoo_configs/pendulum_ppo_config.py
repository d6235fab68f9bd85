"""Pendulum-v1: upright from any start; settings after rl-zoo3, with a longer horizon and plain Gaussian noise."""

config = dict(
    exp_name='pendulum_ppo',
    max_env_step=200_000,
    env=dict(id='Pendulum-v1', collector_env_num=4),
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
