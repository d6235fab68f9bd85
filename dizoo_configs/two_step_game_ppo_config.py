"""QMIX's two-step game: two agents that are paid together. The best return is 8; agents that learn alone often stay at 7."""

config = dict(
    exp_name='two_step_game_ppo',
    max_env_step=80_000,
    env=dict(id='two_step_game'),
    policy=dict(
        type='ppo',
        learn=dict(entropy_weight=0.05),
        collect=dict(n_step=32),
        eval=dict(n_episode=2),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
