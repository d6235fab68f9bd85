"""Two policies that learn against each other in one run, each of its own type; a third one that only acts."""

import gymnasium
import numpy as np

from zoo import ENV_REGISTRY, evaluate, load_policies, serial_pipeline

SIZE = 11


@ENV_REGISTRY.register('chase')
class Chase:
    """Two hunters chase a hare on a ring. Each agent sees how far to its right the two others are."""

    metadata = {'name': 'chase'}  # noqa: RUF012
    render_mode = None
    possible_agents = ['hunter_0', 'hunter_1', 'hare']  # noqa: RUF012

    def __init__(self):
        self.agents = []

    def observation_space(self, agent):
        return gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        if seed is not None or not hasattr(self, 'rng'):
            self.rng = np.random.default_rng(seed)
        self.agents, self.n_step = list(self.possible_agents), 0
        self.place = dict(zip(self.agents, self.rng.permutation(SIZE)[:3].tolist(), strict=True))
        return self._obs(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.n_step += 1
        acted = self.agents
        for agent in acted:
            self.place[agent] = (self.place[agent] + int(actions[agent]) - 1) % SIZE
        caught = self.place['hare'] in (self.place['hunter_0'], self.place['hunter_1'])
        is_late = self.n_step >= 25 and not caught
        if caught or is_late:
            self.agents = []
        rewards = {'hunter_0': 1.0, 'hunter_1': 1.0, 'hare': -1.0} if caught else dict.fromkeys(acted, 0.0)
        infos = {agent: {} for agent in acted}
        return self._obs(), rewards, dict.fromkeys(acted, caught), dict.fromkeys(acted, is_late), infos

    def _obs(self):
        return {agent: self._seen_by(agent) for agent in self.possible_agents}

    def _seen_by(self, agent):
        others = [place for other, place in self.place.items() if other != agent]
        return np.array([2 * ((place - self.place[agent]) % SIZE) / SIZE - 1 for place in others], np.float32)

    def close(self):
        pass


config = dict(
    exp_name='chase',
    max_env_step=60_000,
    env=dict(id='chase'),
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3), collect=dict(n_step=128)),
    agents=dict(
        policies=dict(
            hunter=dict(),  # as the section policy says
            hare=dict(type='a2c', learn=dict(learning_rate=5e-4)),  # what differs
        ),
        mapping={'hunter_*': 'hunter', 'hare': 'hare'},  # by patterns of names, the first that fits
    ),
)


def stand_still(obs, mask):
    """A policy without a network: an action for each row of observations [R, 2]. mask: legal choices [R, 3], or None."""
    return np.ones(len(obs), np.int64)


against_still_hares = dict(
    config,
    exp_name='chase_still',
    agents=dict(
        policies=dict(hunter=dict(), hare=dict(type='function', act=stand_still)),  # or hare='random'
        mapping={'hunter_*': 'hunter', 'hare': 'hare'},
    ),
)


def returns_of(run):
    """The mean returns of both policies of a run, which play 50 episodes."""
    evaluation = evaluate(load_policies(run), 'chase', n_episode=50)
    return {name: part.return_mean for name, part in evaluation.learners.items()}


if __name__ == '__main__':
    serial_pipeline(config)
