"""CartPole-v1 without velocities with PPG, one LSTM for each network; 'cartpole_no_velocity' is one of zoo's own envs."""

config = dict(
    exp_name='cartpole_no_velocity_ppg',
    max_env_step=300_000,
    env=dict(id='cartpole_no_velocity'),
    policy=dict(
        type='ppg',
        model=dict(recurrent=dict(cell='lstm')),
        learn=dict(
            actor_epoch_per_collect=8,
            critic_epoch_per_collect=8,
            aux_freq=16,
            learning_rate=dict(start=1e-3, end=0.0),
        ),
        collect=dict(discount_factor=0.98),
        eval=dict(eval_freq=50_000),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
