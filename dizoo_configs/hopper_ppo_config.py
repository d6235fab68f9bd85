"""Hopper-v5: hops forward without falling; settings after Tianshou. Needs the mujoco extra.

Unlike there, networks have 256 units (64), actions begin with a standard deviation of 1 (exp(-.5)), and the discount is .995 (.99).
"""

config = dict(
    exp_name='hopper_ppo',
    max_env_step=1_000_000,
    env=dict(id='Hopper-v5'),
    policy=dict(
        type='ppo',
        model=dict(obs_norm=True, hidden_sizes=[256, 256]),
        learn=dict(
            epoch_per_collect=10,
            batch_size=64,
            learning_rate=dict(start=3e-4, end=0.0),
            value_weight=0.25,
            adv_norm='off',
            reward_norm=True,
            recompute_adv=True,
        ),
        collect=dict(n_step=256, discount_factor=0.995),
        eval=dict(eval_freq=100_000),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
