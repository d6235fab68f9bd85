"""MiniGrid MemoryS7 with PPO and an LSTM: an object seen at the start tells the way to go at the end. Needs envpool."""

config = dict(
    exp_name='minigrid_memory_s7_ppo',
    max_env_step=1_000_000,
    env=dict(id='envpool', game='MiniGrid-MemoryS7-v0', collector_env_num=16),
    policy=dict(
        type='ppo',
        model=dict(recurrent=dict(cell='lstm')),
        learn=dict(
            batch_size=512,
            learning_rate=dict(start=1e-3, end=0.0),
            entropy_weight=0.01,
            sequence=dict(len=32),
        ),
        eval=dict(eval_freq=100_000, n_episode=50),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
