"""Tiny bricks, a game of 10x10 pixels bundled with zoo, with phasic policy gradient: 1M env steps."""

config = dict(
    exp_name='tiny_bricks_ppg',
    max_env_step=1_000_000,
    env=dict(id='tiny_bricks', collector_env_num=16),
    policy=dict(
        type='ppg',
        model=dict(encoder=dict(type='cnn', channels=[16], kernels=[3], strides=[1], hidden_size=128)),
        learn=dict(
            actor_epoch_per_collect=4,
            critic_epoch_per_collect=4,
            aux_freq=16,
            learning_rate=dict(start=1e-3, end=0.0),
            entropy_weight=0.01,
        ),
        eval=dict(eval_freq=100_000, n_episode=20),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
