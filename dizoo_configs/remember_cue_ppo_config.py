"""A cue seen once must be answered 20 steps later: PPO with an LSTM or cell=mingru. Without memory half the answers are right."""

config = dict(
    exp_name='remember_cue_ppo',
    max_env_step=100_000,
    env=dict(id='remember_cue'),
    policy=dict(
        type='ppo',
        model=dict(recurrent=dict(cell='lstm')),
        learn=dict(
            learning_rate=5e-4,
            sequence=dict(len=32),
        ),
        eval=dict(n_episode=100),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
