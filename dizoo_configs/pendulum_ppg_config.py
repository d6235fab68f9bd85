"""Pendulum-v1 with phasic policy gradient: upright from any start."""

config = dict(
    exp_name='pendulum_ppg',
    max_env_step=300_000,
    env=dict(id='Pendulum-v1', collector_env_num=4),
    policy=dict(
        type='ppg',
        learn=dict(
            actor_epoch_per_collect=10,
            critic_epoch_per_collect=10,
            aux_freq=8,
            batch_size=64,
            learning_rate=dict(start=1e-3, end=0.0),
            grad_clip=None,
        ),
        collect=dict(n_step=1024, discount_factor=0.98),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
