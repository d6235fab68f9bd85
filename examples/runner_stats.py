"""Numbers of the log from the processes that step the envs: how far from the centre the cart of CartPole is, and its falls."""

from zoo import Callback, serial_pipeline


class CartStats(Callback):
    def on_runner_rollout(self, runner, columns):  # in each runner; columns [T, B, ...] of its envs
        position = columns['obs'][..., 0]
        runner.log('cart/far', (position.abs() > 1.0).float().mean())
        runner.log('cart/position', position, reduce='histogram')
        runner.log('cart/fall', columns['terminated'].sum(), reduce='sum', lifetime=True)


config = dict(
    exp_name='runner_stats',
    max_env_step=20_000,
    env=dict(id='CartPole-v1'),
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3)),
    cluster=dict(runner_num=2),  # without it the callback is called in the run itself
    callbacks=[CartStats],
    logger=dict(freq=2_048),
)

if __name__ == '__main__':
    serial_pipeline(config)
