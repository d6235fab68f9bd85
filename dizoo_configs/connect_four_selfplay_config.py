"""Connect four by self-play, with a fifth of the games against snapshots of the past. Needs the extra agents.

Evaluations are against random play.
"""

config = dict(
    exp_name='connect_four_selfplay',
    max_env_step=2_000_000,
    env=dict(id='torch', game='connect_four', collector_env_num=32),
    agents=dict(
        self_play=dict(opponents=dict(latest=0.7, past=0.2, fixed=0.1), snapshot=dict(every=50_000)),
    ),
    policy=dict(
        type='ppo',
        model=dict(hidden_sizes=[256, 256]),
        learn=dict(
            batch_size=512,
            learning_rate=dict(start=1e-3, end=0.0),
            entropy_weight=dict(start=0.05, end=0.01),
        ),
        collect=dict(n_step=64),
        eval=dict(eval_freq=100_000, n_episode=200),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
