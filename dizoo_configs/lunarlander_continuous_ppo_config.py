"""LunarLanderContinuous-v3: the lander with two throttles. Needs the box2d extra.
Settings after rl-zoo3, except for shorter rollouts and more epochs."""

config = dict(
    exp_name='lunarlander_continuous_ppo',
    max_env_step=1_000_000,
    env=dict(id='LunarLanderContinuous-v3', collector_env_num=16),
    policy=dict(
        type='ppo',
        model=dict(log_std_init=-0.5),
        learn=dict(
            epoch_per_collect=10,
            batch_size=64,
            learning_rate=dict(start=3e-4, end=0.0),
            value_norm=True,
            entropy_weight=0.01,
        ),
        collect=dict(n_step=256, discount_factor=0.999, gae_lambda=0.98),
        eval=dict(eval_freq=100_000),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
