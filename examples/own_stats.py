"""Metrics of your own: rewards and advantages of each rollout, and how many episodes ended."""

from zoo import Callback, serial_pipeline


class OwnStats(Callback):
    def on_rollout(self, job, rollout):  # columns [T, B, ...]
        reward, self.n_end = rollout.data['reward'], int(rollout.data['traj_flag'].sum())
        self.reward_min, self.reward_max = reward.min(), reward.max()

    def on_samples(self, job, samples):  # columns [N, ...]
        self.adv_max = samples['adv'].abs().max()

    def on_update(self, job, metrics):  # in the log these are learn/reward_min, ...
        return {
            'reward_min': self.reward_min,
            'reward_max': self.reward_max,
            'adv_abs_max': self.adv_max,
            'episode_end': self.n_end,
        }

    def on_evaluate(self, job, evaluation):
        if evaluation.return_mean >= 400:
            job.stop('it balances well enough')


config = dict(
    exp_name='own_stats',
    max_env_step=30_000,
    env=dict(id='CartPole-v1'),
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3), eval=dict(eval_freq=5_000)),
    callbacks=[OwnStats],  # in a YAML file: callbacks: ['own_stats:OwnStats']
    logger=dict(freq=1_024),
)

if __name__ == '__main__':
    serial_pipeline(config)
