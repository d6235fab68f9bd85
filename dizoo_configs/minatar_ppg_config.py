"""MinAtar Breakout, or another of its five games by env.kwargs.game, with PPG: 5M env steps. Needs the minatar extra."""

config = dict(
    exp_name='minatar_ppg',
    max_env_step=5_000_000,
    env=dict(
        id='minatar',
        kwargs=dict(game='breakout'),
        collector_env_num=16,
        max_episode_steps=10_000,  # some policies never end an episode of breakout or seaquest
    ),
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
        eval=dict(eval_freq=500_000, n_episode=20),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
