"""BipedalWalker-v3: a two-legged robot walks over rough ground. Needs the box2d extra.
Settings after rl-zoo3, except for shorter rollouts, less noise, gamma 0.995 and a decaying learning rate."""

config = dict(
    exp_name='bipedalwalker_ppo',
    max_env_step=5_000_000,
    env=dict(id='BipedalWalker-v3', collector_env_num=32),
    policy=dict(
        type='ppo',
        model=dict(obs_norm=True, log_std_init=-0.5),
        learn=dict(
            epoch_per_collect=10,
            batch_size=128,
            learning_rate=dict(start=3e-4, end=0.0),
            clip_ratio=0.18,
            reward_norm=True,
        ),
        collect=dict(n_step=512, discount_factor=0.995),
        eval=dict(eval_freq=100_000),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
