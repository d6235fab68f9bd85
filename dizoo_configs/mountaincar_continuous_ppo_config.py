"""MountainCarContinuous-v0: a reward only at the flag, so exploration has to be wide."""

config = dict(
    exp_name='mountaincar_continuous_ppo',
    max_env_step=100_000,
    env=dict(id='MountainCarContinuous-v0', collector_env_num=16),
    policy=dict(
        type='ppo',
        # std exp(.5) = 1.6 on actions clipped to +-1: small pushes never reach the flag, the only place with a reward
        model=dict(obs_norm=True, log_std_init=0.5),
        learn=dict(
            epoch_per_collect=10,
            learning_rate=dict(start=3e-4, end=0.0),
            reward_norm=True,
        ),
        collect=dict(n_step=1024, discount_factor=0.999),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
