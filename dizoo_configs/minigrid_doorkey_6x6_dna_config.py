"""MiniGrid DoorKey 6x6 with DNA: fetch the key, open the door, reach the goal. Needs the envpool extra."""

config = dict(
    exp_name='minigrid_doorkey_6x6_dna',
    max_env_step=300_000,
    env=dict(id='envpool', game='MiniGrid-DoorKey-6x6-v0', collector_env_num=16),
    policy=dict(
        type='dna',
        learn=dict(learning_rate=dict(start=1e-3, end=0.0)),
        eval=dict(eval_freq=50_000, n_episode=20),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
