"""Ant-v5 with trust region policy optimisation: runs forward on four legs. Needs mujoco."""

config = dict(
    exp_name='ant_trpo',
    max_env_step=1_000_000,
    env=dict(id='Ant-v5'),
    policy=dict(
        type='trpo',
        model=dict(obs_norm=True, log_std_init=-0.5),
        learn=dict(
            epoch_per_collect=20,
            batch_size=128,
            learning_rate=dict(start=1e-3, end=0.0),
            cg_iter=20,
            reward_norm=True,
        ),
        eval=dict(eval_freq=100_000),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
