"""Procgen with PPO, the baseline of the PPG paper (arXiv:2009.04416 and its code): easy, 25M env steps, all levels.

Another game: env.game=bigfish. Hard: env.kwargs.difficulty=hard env.collector_env_num=256 policy.learn.batch_size=8192
max_env_step=100_000_000. Departs: minibatches are random samples, not whole segments of envs.
Needs the procgen extra (envpool, Apache-2.0; Qt, LGPL-3).
"""

config = dict(
    exp_name='procgen_ppo',
    max_env_step=25_000_000,
    env=dict(id='procgen', game='starpilot', collector_env_num=64),
    policy=dict(
        type='ppo',
        model=dict(shared_encoder=True),
        learn=dict(
            epoch_per_collect=3,
            batch_size=2048,
            learning_rate=5e-4,
            adam_eps=1e-8,
            entropy_weight=0.01,
            value_weight=1.0,  # zoo weighs half the mean squared error: 1.0 of it is the authors' 0.5 of the whole
            adv_norm='batch',
            reward_norm=True,
            reward_norm_discount=0.99,
            grad_clip=None,
        ),
        collect=dict(n_step=256, discount_factor=0.999),
        eval=dict(eval_freq=1_000_000),
    ),
    checkpoint=dict(freq=1_000_000),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
