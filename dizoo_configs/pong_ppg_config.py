"""Atari Pong with phasic policy gradient on one network, with as many env steps as PPO. Needs the atari extra (GPL-2)."""

config = dict(
    exp_name='pong_ppg',
    max_env_step=10_000_000,
    env=dict(id='atari', game='Pong'),
    policy=dict(
        type='ppg',
        model=dict(arch='detach'),
        learn=dict(
            learning_rate=dict(start=2.5e-4, end=0.0),
            entropy_weight=0.01,
            clip_ratio=0.1,
            grad_clip=None,
        ),
        eval=dict(eval_freq=500_000),
    ),
    checkpoint=dict(freq=500_000, aux_memory=False),  # the auxiliary memory would add 0.9 GB
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
