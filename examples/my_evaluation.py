"""Evaluation on other levels than those of training, the env's own numbers, and the results of evaluate()."""

import gymnasium
import numpy as np

from zoo import evaluate, load_policy, serial_pipeline


class Corridor(gymnasium.Env):
    """Walk to the end of a corridor of `size` places before the time is over; ice makes a step slip back."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size=8, ice=0.1):
        self.size, self.ice = size, ice

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.n_step, self.n_slip = 0, 0, 0
        return self._obs(), {}

    def step(self, action):
        slips = self.np_random.random() < self.ice
        self.place = max(self.place + (1 if action == 1 and not slips else -1), 0)
        self.n_step, self.n_slip = self.n_step + 1, self.n_slip + slips
        is_there = self.place == self.size
        # numbers and bools of the last step's info are logged
        info = {'is_success': is_there, 'slips': self.n_slip, 'distance': self.size - self.place}
        return self._obs(), float(is_there), is_there, self.n_step == 3 * self.size, info

    def _obs(self):
        return np.array([self.place / self.size], dtype=np.float32)


config = dict(
    exp_name='my_evaluation',
    max_env_step=20_000,
    env=dict(id=Corridor, kwargs=dict(size=8)),
    policy=dict(
        type='ppo',
        learn=dict(learning_rate=1e-3),
        eval=dict(
            eval_freq=5_000,
            env=dict(kwargs=dict(ice=0.0)),  # what differs from section env
            sets=dict(long=dict(kwargs=dict(size=16)), icy=dict(kwargs=dict(ice=0.3))),
        ),
    ),
    logger=dict(info_step_keys=['distance']),  # its mean over the steps of an episode, not its last value
)


def judge(run_dir):
    """What a trained policy does in other corridors, with the likeliest actions and with drawn ones."""
    policy = load_policy(run_dir)
    evaluation = evaluate(policy, {'id': Corridor, 'kwargs': {'size': 12}}, n_episode=20, seed=1)
    print(f'{evaluation.success_rate:.0%} arrive, after {evaluation.length_mean:.1f} steps')
    print(f'slips: {evaluation.info_mean("slips"):.1f} on average, {max(evaluation.infos["slips"]):.0f} at most')
    print(f'median return {evaluation.return_quantile(0.5)}, first episode {evaluation.rows()[0]}')
    drawn = evaluate(policy, Corridor(size=12), n_episode=20, seed=1, deterministic=False, max_step=100)
    print(f'{drawn.success_rate:.0%} arrive with drawn actions')


if __name__ == '__main__':
    result = serial_pipeline(config)
    judge(result.run_dir)
