"""simple_tag of mpe2: three predators, which share a policy, chase a prey with its own. Needs the extra agents.

The return is the sum over all agents; `eval/predator/return_mean` and `eval/prey/return_mean` say who wins. A predator earns 10 for
each touch by any of them, the prey loses 10 and pays for leaving the field: random play has about 5 and -22.
"""

config = dict(
    exp_name='simple_tag_ppo',
    max_env_step=320_000,
    env=dict(id='mpe2.simple_tag_v3:parallel_env', collector_env_num=32),
    agents=dict(
        policies=dict(predator=dict(), prey=dict()),
        mapping={'adversary_*': 'predator', 'agent_*': 'prey'},
    ),
    policy=dict(
        type='ppo',
        model=dict(hidden_sizes=[128, 128]),
        learn=dict(batch_size=800, value_norm=True, entropy_weight=0.01),
        collect=dict(n_step=100),  # four episodes
        eval=dict(eval_freq=40_000, n_episode=128),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
