"""Leduc poker by self-play with phasic policy gradient: the log has the exact exploitability of each snapshot. Needs the extra agents.

Policies draw their actions: good play of poker is mixed. The entropy bonus, weighed against chips, keeps self-play from circling.
"""

config = dict(
    exp_name='leduc_poker_selfplay_ppg',
    max_env_step=3_000_000,
    env=dict(id='torch', game='leduc_poker', collector_env_num=128),
    agents=dict(
        self_play=dict(opponents=dict(latest=1.0, past=0.0), snapshot=dict(every=100_000), exploitability=True),
    ),
    policy=dict(
        type='ppg',
        model=dict(hidden_sizes=[128, 128]),
        learn=dict(
            actor_epoch_per_collect=4,
            critic_epoch_per_collect=4,
            batch_size=1024,
            aux_freq=8,
            learning_rate=dict(start=1e-3, end=0.0),
            entropy_weight=dict(start=0.6, end=0.3),
            adv_norm='off',
        ),
        collect=dict(n_step=32, discount_factor=1.0),
        eval=dict(eval_freq=500_000, n_episode=200, deterministic=False),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
