"""Training on 4,000 mazes, of which those come back more often on which there is more to learn; evaluated on other mazes."""

from zoo import serial_pipeline

MAZES = dict(size=13, limit=100, most_walls=0.9)

config = dict(
    exp_name='mazes_plr',
    max_env_step=300_000,
    env=dict(
        id='mazes',  # reset(seed=level) begins the maze of that seed
        kwargs=dict(MAZES, solvable=False),  # of about half of them, no way leads to the goal
        collector_env_num=32,
        levels=dict(n_level=4_000, draw='plr'),
    ),
    policy=dict(
        type='ppo',
        collect=dict(n_step=64, discount_factor=0.97),
        learn=dict(batch_size=512, learning_rate=1e-3, entropy_weight=0.01),
        eval=dict(deterministic=False, n_episode=100, env=dict(kwargs=dict(MAZES, solvable=True))),
    ),
)

if __name__ == '__main__':
    serial_pipeline(config)
