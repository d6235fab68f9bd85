"""Hopper-v5 with SPO, a quadratic penalty in place of the clip; settings after Tianshou. Needs the mujoco extra."""

config = dict(
    exp_name='hopper_spo',
    max_env_step=1_000_000,
    env=dict(id='Hopper-v5'),
    policy=dict(
        type='spo',
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
