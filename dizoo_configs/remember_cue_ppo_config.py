"""A cue seen once must be answered 20 steps later: PPO with an LSTM, or cell=mingru; without memory half are right."""

config = dict(
    exp_name='remember_cue_ppo',
    max_env_step=100_000,
    env=dict(id='remember_cue', collector_env_num=16),
    policy=dict(
        type='ppo',
        model=dict(recurrent=dict(cell='lstm', hidden_size=64)),
        learn=dict(
            epoch_per_collect=8,
            batch_size=256,
            learning_rate=dict(start=2e-3, end=0.0),
            entropy_weight=0.01,
            sequence=dict(len=64),
        ),
        collect=dict(n_step=64, gae_lambda=1.0, discount_factor=1.0),
        eval=dict(eval_freq=20_000, n_episode=100),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
