"""Procgen with phasic policy gradient as published (arXiv:2009.04416 and its code): easy, 25M env steps, all levels.

Another game: env.game=bigfish. Hard: env.kwargs.difficulty=hard env.collector_env_num=256 policy.learn.batch_size=8192
policy.learn.aux_batch_size=4096 max_env_step=100_000_000. Departs: minibatches are random samples, not whole
segments of envs. Needs the procgen extra (envpool, Apache-2.0; Qt, LGPL-3) and 7 GB (hard: 26) for the auxiliary memory.
"""

config = dict(
    exp_name='procgen_ppg',
    max_env_step=25_000_000,
    env=dict(id='procgen', game='starpilot', collector_env_num=64),
    policy=dict(
        type='ppg',
        learn=dict(
            batch_size=2048,
            learning_rate=5e-4,
            adam_eps=1e-8,
            entropy_weight=0.01,
            reward_norm=True,
            reward_norm_discount=0.99,
            value_norm=False,
            grad_clip=None,
            aux_memory='cpu',
        ),
        collect=dict(n_step=256, discount_factor=0.999),
        eval=dict(eval_freq=1_000_000),
    ),
    checkpoint=dict(freq=1_000_000, aux_memory=False),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
