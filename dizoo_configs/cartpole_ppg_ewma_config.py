"""CartPole-v1 with PPG-EWMA: as cartpole_ppg, but the policy stays near a moving average of itself."""

config = dict(
    exp_name='cartpole_ppg_ewma',
    max_env_step=100_000,
    env=dict(id='CartPole-v1'),
    policy=dict(
        type='ppg_ewma',
        learn=dict(
            actor_epoch_per_collect=10,
            critic_epoch_per_collect=10,
            aux_freq=8,
            learning_rate=dict(start=1e-3, end=0.0),
            clip_ratio=dict(start=0.2, end=0.02),
            grad_clip=None,
        ),
        eval=dict(eval_freq=10_000, stop_value=475.0),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
