"""Taxi-v4 with PPO and action masks: the env's info lists which of the six actions change the state."""

config = dict(
    exp_name='taxi_ppo',
    max_env_step=500_000,
    env=dict(id='Taxi-v4', collector_env_num=64),
    policy=dict(
        type='ppo',
        model=dict(hidden_sizes=[64]),
        learn=dict(
            epoch_per_collect=20,
            batch_size=512,
            learning_rate=dict(start=3e-3, end=0.0),
            entropy_weight=dict(start=0.1, end=0.0),
        ),
        eval=dict(eval_freq=50_000, n_episode=20),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
