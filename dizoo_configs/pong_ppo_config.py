"""Atari Pong with PPO: 10M agent steps (40M frames), settings after CleanRL. Needs the atari extra (GPL-2)."""

config = dict(
    exp_name='pong_ppo',
    max_env_step=10_000_000,
    env=dict(id='atari', game='Pong'),
    policy=dict(
        type='ppo',
        model=dict(shared_encoder=True),
        learn=dict(
            learning_rate=dict(start=2.5e-4, end=0.0),
            entropy_weight=0.01,
            clip_ratio=0.1,
            value_loss='clip',
        ),
        eval=dict(eval_freq=500_000),
    ),
    checkpoint=dict(freq=500_000),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
