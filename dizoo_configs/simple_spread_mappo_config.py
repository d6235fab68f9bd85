"""simple_spread of mpe2 by MAPPO: the critic sees the state of the env, which the agents do not. Needs the extra agents.

As simple_spread_ppo, with a central critic (Yu et al., 2021, arXiv:2103.01955).
"""

config = dict(
    exp_name='simple_spread_mappo',
    max_env_step=320_000,
    env=dict(id='mpe2.simple_spread_v3:parallel_env', collector_env_num=32),
    agents=dict(state='env'),
    policy=dict(
        type='ppo',
        model=dict(hidden_sizes=[128, 128], critic_obs=['state', 'obs', 'agent']),
        learn=dict(
            epoch_per_collect=10,
            batch_size=1600,
            learning_rate=dict(start=1e-3, end=0.0),
            entropy_weight=0.01,
            value_norm=True,
        ),
        collect=dict(n_step=100),  # four episodes
        eval=dict(eval_freq=40_000, n_episode=128),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
