import jax
import jax.numpy as jnp
import numpy as np

from zoo import serial_pipeline
from zoo.core.registry import ENV_REGISTRY
from zoo.env import Box, Discrete, EnvRequest, env_family
from zoo.env.tensor.jax_program import JaxSimulator, JaxStep, JaxTask


class Corridor(JaxTask):
    """Walk right to the end of a corridor, against a wind that throws you back now and then."""

    obs_space = Box(np.zeros(1, np.float32), np.ones(1, np.float32))
    action_space = Discrete(2)
    max_episode_steps = 100

    def __init__(self, length: int = 10, wind: float = 0.1):
        self.length, self.wind = length, wind

    def reset(self, key):  # -> state, obs
        place = jax.random.randint(key, (), 0, self.length // 2)
        return place, self.observe(place)

    def step(self, key, state, action):
        is_thrown = jax.random.uniform(key) < self.wind
        state = jnp.maximum(state + jnp.where(is_thrown, -1, 2 * action - 1), 0)
        at_end = state >= self.length
        return JaxStep(state, self.observe(state), at_end - 0.01, terminated=at_end)

    def observe(self, state):
        return jnp.array([state / self.length])


@ENV_REGISTRY.register('jax_corridor')
@env_family()
def make(request: EnvRequest, **kwargs):
    """The corridor in JAX."""
    return JaxSimulator.of_request(Corridor(**kwargs), request)


config = dict(
    exp_name='jax_corridor',
    max_env_step=40_000,
    env=dict(id='jax_corridor', collector_env_num=32, kwargs=dict(length=12)),
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3), collect=dict(n_step=64)),
)

if __name__ == '__main__':
    serial_pipeline(config)
