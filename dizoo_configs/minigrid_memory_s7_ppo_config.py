"""MiniGrid MemoryS7, view 3x3, PPO with an LSTM. Without memory half the answers are right. Needs the envpool extra."""

config = dict(
    exp_name='minigrid_memory_s7_ppo',
    max_env_step=500_000,
    env=dict(id='minigrid_memory_s7', collector_env_num=16),
    policy=dict(
        type='ppo',
        # a key and a ball differ in 2 of 180 numbers, which are rarely 1: not remembered without obs_norm
        model=dict(recurrent=dict(cell='lstm'), shared_encoder=True, hidden_sizes=[64], obs_norm=True),
        learn=dict(
            batch_size=512,
            learning_rate=dict(start=2e-3, end=0.0),
            entropy_weight=0.02,
            sequence=dict(len=32),
        ),
        collect=dict(n_step=256, discount_factor=0.995),
        eval=dict(eval_freq=50_000, n_episode=50),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
