"""Trains PPO on CartPole until it solves it, within 50,000 env steps, loads the policy from its run folder, and gets an action from it."""

from zoo import load_policy, serial_pipeline

config = dict(
    exp_name='quick_start',
    max_env_step=50_000,
    env=dict(id='CartPole-v1', collector_env_num=8),
    policy=dict(
        type='ppo',
        learn=dict(learning_rate=dict(start=2e-3, end=0.0), epoch_per_collect=10),
        eval=dict(eval_freq=10_000, stop_value=475),
    ),
)

if __name__ == '__main__':
    result = serial_pipeline(config)
    policy = load_policy(result.run_dir)  # the newest checkpoint of the run is all it needs
    print(result.last_return, policy.act([0.0, 0.1, 0.0, -0.1]))
