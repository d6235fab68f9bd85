"""Connect four by self-play, with most games against a player that looks one move ahead. Needs the extra agents.

That player wins and blocks where it can, so the policy learns to see lines from its first games on. Evaluations are against it:
a return of 0 is half of the points.
"""

config = dict(
    exp_name='connect_four_selfplay',
    max_env_step=2_000_000,
    env=dict(id='torch', game='connect_four', collector_env_num=128),
    agents=dict(
        self_play=dict(
            opponents=dict(latest=0.2, past=0.1, fixed=0.7),
            fixed=['one_move_ahead'],
            snapshot=dict(every=50_000),
        ),
    ),
    policy=dict(
        type='ppo',
        model=dict(hidden_sizes=[256, 256], activation='relu'),
        learn=dict(
            batch_size=512,
            learning_rate=dict(start=1e-3, end=0.0),
            entropy_weight=dict(start=0.05, end=0.01),
        ),
        collect=dict(n_step=16),
        eval=dict(eval_freq=100_000, n_episode=200),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
