"""Stop rules: a time limit, a plateau, a bound on a metric, and a rule of your own."""

from zoo import serial_pipeline


def certain(metrics):  # called with each line of the log; one that takes `job` is called after each round
    return metrics.get('learn/entropy', 1.0) < 0.1


config = dict(
    exp_name='own_stop',
    max_env_step=100_000,
    env=dict(id='CartPole-v1'),
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3), eval=dict(eval_freq=5_000)),
    stop=[
        dict(type='wall_time', s=600),
        dict(type='patience', n=5, min_eval=8),
        dict(type='bound', metric='eval/return_mean', above=490),
        certain,  # in a YAML file: 'own_stop:certain'
    ],
)

if __name__ == '__main__':
    result = serial_pipeline(config)
    print(result.env_step, result.stop_reason)
