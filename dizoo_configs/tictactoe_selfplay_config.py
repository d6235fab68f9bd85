"""Tic-tac-toe by self-play: greedy moves of the last policy draw against perfect play, in both seats. Needs no package of games.

The entropy bonus is weighed against returns, since advantages are not normalised: games that end in draws stay varied. Evaluations
are against random play, which the policy also meets in a fifth of its games.
"""

config = dict(
    exp_name='tictactoe_selfplay',
    max_env_step=500_000,
    env=dict(id='torch', game='tictactoe', collector_env_num=32),
    agents=dict(
        self_play=dict(opponents=dict(latest=0.7, past=0.1, fixed=0.2), snapshot=dict(every=25_000)),
    ),
    policy=dict(
        type='ppo',
        model=dict(hidden_sizes=[128, 128]),
        learn=dict(
            batch_size=512,
            learning_rate=dict(start=1e-3, end=0.0),
            entropy_weight=dict(start=0.1, end=0.03),
            adv_norm='off',
        ),
        collect=dict(n_step=64, discount_factor=1.0),
        eval=dict(eval_freq=100_000, n_episode=200),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
