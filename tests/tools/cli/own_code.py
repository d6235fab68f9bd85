"""A user's file with an env, as text."""

LINE_ENV = """
import gymnasium, numpy as np

class Line(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}
    def step(self, action):
        self.n += 1
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), float(action), False, self.n == 10, {}

def make(size=3):
    return Line()
"""
