"""Tic-tac-toe against random play, with the first move. Needs the extra agents.

The return is 1 for a win, -1 for a loss: random play has .30, the best play .99. Another opponent: agents.policies.other=...
"""

config = dict(
    exp_name='tictactoe_ppo',
    max_env_step=200_000,
    env=dict(id='pettingzoo:classic/tictactoe-v3', collector_env_num=32),
    agents=dict(
        policies=dict(main=dict(), other='random'),
        mapping={'player_1': 'main', 'player_2': 'other'},
    ),
    policy=dict(
        type='ppo',
        learn=dict(batch_size=512, entropy_weight=0.01),
        eval=dict(n_episode=200),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
