"""Humanoid-v5: walks forward without falling; the settings of walker2d_ppo, not tuned for this env. Needs the mujoco extra."""

config = dict(
    exp_name='humanoid_ppo',
    max_env_step=1_000_000,
    env=dict(id='Humanoid-v5'),
    policy=dict(
        type='ppo',
        model=dict(obs_norm=True, log_std_init=-0.5),
        learn=dict(
            epoch_per_collect=10,
            batch_size=64,
            learning_rate=dict(start=3e-4, end=0.0),
            value_weight=0.25,
            adv_norm='off',
            reward_norm=True,
            recompute_adv=True,
        ),
        collect=dict(n_step=256),
        eval=dict(eval_freq=100_000),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
