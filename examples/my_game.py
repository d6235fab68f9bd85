"""An env of several agents of your own: a class with PettingZoo's parallel interface, which needs no package."""

import gymnasium
import numpy as np

from zoo import ENV_REGISTRY, serial_pipeline


@ENV_REGISTRY.register('meet')
class Meet:
    """Two agents on a line see where they are themselves, and are paid for being close to each other."""

    metadata = {'name': 'meet'}  # noqa: RUF012
    render_mode = None
    possible_agents = ['left', 'right']  # noqa: RUF012

    def __init__(self, size=9, max_step=20):
        self.size, self.max_step = size, max_step
        self.agents = []  # those that are in the episode now

    def observation_space(self, agent):
        return gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(3)  # a step to the left, none, a step to the right

    def reset(self, seed=None, options=None):
        if seed is not None or not hasattr(self, 'rng'):
            self.rng = np.random.default_rng(seed)  # draw all random numbers from it
        self.agents, self.n_step = list(self.possible_agents), 0
        self.place = {agent: int(self.rng.integers(self.size)) for agent in self.agents}
        return self._obs(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.n_step += 1
        acted = self.agents
        for agent in acted:
            self.place[agent] = min(max(self.place[agent] + int(actions[agent]) - 1, 0), self.size - 1)
        distance = abs(self.place['left'] - self.place['right'])
        is_late = self.n_step >= self.max_step
        if is_late:
            self.agents = []  # the episode is over for all
        rewards = dict.fromkeys(acted, 1.0 - distance / self.size)
        terminated = dict.fromkeys(acted, False)  # an agent that dies: True, and it leaves self.agents
        truncated = dict.fromkeys(acted, is_late)
        return self._obs(), rewards, terminated, truncated, {agent: {} for agent in acted}

    def state(self):  # for a central critic; leave it out if there is none
        return np.array([2 * x / (self.size - 1) - 1 for x in self.place.values()], np.float32)

    def _obs(self):  # also of agents whose episode has just ended
        return dict(zip(self.possible_agents, self.state().reshape(-1, 1), strict=True))

    def close(self):
        pass


config = dict(
    exp_name='meet',
    max_env_step=40_000,
    env=dict(id='meet'),
    agents=dict(state='env'),  # MAPPO: the critic sees what no agent sees
    policy=dict(
        type='ppo',
        model=dict(critic_obs=['state', 'agent']),
        learn=dict(learning_rate=1e-3),
        collect=dict(n_step=128),
    ),
)

if __name__ == '__main__':
    serial_pipeline(config)
