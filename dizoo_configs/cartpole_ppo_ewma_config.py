"""CartPole-v1 with PPO-EWMA: as cartpole_ppo, but the policy stays near a moving average of itself."""

config = dict(
    exp_name='cartpole_ppo_ewma',
    max_env_step=100_000,
    env=dict(id='CartPole-v1'),
    policy=dict(
        type='ppo_ewma',
        learn=dict(
            # half of rl-zoo3's epochs, on rollouts of 128 steps, not 32: many epochs on a small rollout can kill the critic
            epoch_per_collect=10,
            learning_rate=dict(start=3e-3, end=0.0),
            clip_ratio=dict(start=0.2, end=0.02),
        ),
        eval=dict(eval_freq=10_000, stop_value=475.0),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
