"""Acrobot-v1 with PPO and a critic that classifies returns into bins (HL-Gauss); other settings after rl-zoo3.

After scaling by reward_norm the returns lie between -5 and 0. Bins far outside that range slow learning down: with bins from
-30 to 5 most seeds end at -500.
"""

config = dict(
    exp_name='acrobot_hl_gauss_ppo',
    max_env_step=500_000,
    env=dict(id='Acrobot-v1', collector_env_num=16),
    policy=dict(
        type='ppo',
        model=dict(obs_norm=True),
        learn=dict(
            batch_size=64,
            learning_rate=dict(start=3e-4, end=0.0),
            reward_norm=True,
            value_loss=dict(type='hl_gauss', low=-6.0, high=1.0),
        ),
        collect=dict(n_step=256, gae_lambda=0.94),
        eval=dict(eval_freq=50_000),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
