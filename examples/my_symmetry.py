"""CartPole in a mirror: with all signs of the observation changed, left is right. Every sample also trains mirrored."""

from zoo import serial_pipeline

config = dict(
    exp_name='cartpole_mirrored',
    max_env_step=50_000,
    env=dict(id='CartPole-v1', collector_env_num=8),
    policy=dict(
        type='ppo',
        learn=dict(
            learning_rate=1e-3,
            symmetry=dict(obs={'sign': [-1, -1, -1, -1]}, action={'index': [1, 0]}),
        ),
    ),
)

if __name__ == '__main__':
    serial_pipeline(config)
