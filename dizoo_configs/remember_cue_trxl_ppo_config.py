"""A cue seen once must be answered 64 steps later: PPO with attention to the last 64 inputs. Without memory half are right."""

config = dict(
    exp_name='remember_cue_trxl_ppo',
    max_env_step=60_000,
    env=dict(id='remember_cue', kwargs=dict(delay=64)),
    policy=dict(
        type='ppo',
        model=dict(recurrent=dict(cell='trxl', memory=64)),
        learn=dict(learning_rate=dict(start=5e-4, end=0.0)),
        eval=dict(n_episode=100),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
