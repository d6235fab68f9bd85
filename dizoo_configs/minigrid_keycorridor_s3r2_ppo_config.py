"""MiniGrid KeyCorridorS3R2 with PPO: 1M env steps, minigrid_keycorridor_s3r2_rnd_ppo without RND.

Find the key, open the locked door and pick up the ball behind it: only that gives a reward. The mission names the ball's
colour, the observations do not; it does not matter, since there is only one ball. Needs the envpool extra.
"""

config = dict(
    exp_name='minigrid_keycorridor_s3r2_ppo',
    max_env_step=1_000_000,
    env=dict(id='envpool', game='MiniGrid-KeyCorridorS3R2-v0', collector_env_num=16),
    policy=dict(
        type='ppo',
        learn=dict(
            learning_rate=dict(start=1e-3, end=0.0),
            entropy_weight=0.01,
        ),
        eval=dict(eval_freq=100_000, n_episode=50),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
