"""Ant-v5 with trust region policy optimisation: runs forward on four legs. Needs mujoco.

The observations are the 27 numbers of Ant-v4, without the 78 contact forces that Ant-v5 adds: with them it learns half as much.
"""

config = dict(
    exp_name='ant_trpo',
    max_env_step=1_000_000,
    env=dict(id='Ant-v5', kwargs=dict(include_cfrc_ext_in_observation=False)),
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
