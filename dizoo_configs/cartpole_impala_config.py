"""CartPole-v1 with IMPALA: rollouts of 20 steps, one update each; solved (475 of 500), even with rollouts 4 updates old."""

config = dict(
    exp_name='cartpole_impala',
    max_env_step=150_000,
    env=dict(id='CartPole-v1'),
    policy=dict(
        type='impala',
        learn=dict(learning_rate=dict(start=6e-3, end=0.0)),
        eval=dict(eval_freq=10_000, stop_value=475.0),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
