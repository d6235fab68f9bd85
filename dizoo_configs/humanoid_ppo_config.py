"""Humanoid-v5: walks forward without falling. Needs the mujoco extra.

The observations are its 45 positions and velocities, without the 303 of inertia, velocities of bodies and forces.
Actions of [-1, 1] are rescaled to the env's bounds of 0.4.
"""

config = dict(
    exp_name='humanoid_ppo',
    max_env_step=1_000_000,
    env=dict(
        id='Humanoid-v5',
        collector_env_num=64,
        action_mode='rescale',
        kwargs=dict(
            include_cinert_in_observation=False,
            include_cvel_in_observation=False,
            include_qfrc_actuator_in_observation=False,
            include_cfrc_ext_in_observation=False,
        ),
    ),
    policy=dict(
        type='ppo',
        model=dict(obs_norm=True, log_std_init=-1.0),
        learn=dict(
            epoch_per_collect=10,
            batch_size=64,
            learning_rate=dict(start=3e-4, end=0.0),
            value_weight=0.25,
            adv_norm='off',
            reward_norm=True,
            recompute_adv=True,
        ),
        collect=dict(n_step=32, discount_factor=0.98, gae_lambda=0.9),  # x 64 envs: rollouts of 2,048 samples
        eval=dict(eval_freq=100_000),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
