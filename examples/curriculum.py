"""A curriculum: the env becomes harder by a schedule in the config, and by a callback that reads the returns."""

import gymnasium

from zoo import Callback, serial_pipeline


class WindyCartPole(gymnasium.Wrapper):
    """CartPole whose `wind` pushes the cart, and whose info says how far the pole leans."""

    def __init__(self, env):
        super().__init__(env)
        self.wind = 0.0  # a number of the env: env.schedule and job.envs can set it

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        state = self.unwrapped.state
        self.unwrapped.state = (state[0], state[1] + 0.01 * self.wind, *state[2:])
        return obs, reward, terminated, truncated, {**info, 'lean': abs(float(obs[2]))}


def make_env():
    return WindyCartPole(gymnasium.make('CartPole-v1'))


class LongerWhenGood(Callback):
    """Makes the pole longer in all envs, those of evaluation too, each time an evaluation went well."""

    def on_evaluate(self, job, evaluation):
        if evaluation.return_mean > 400:
            job.envs.set_attr('length', 1.1 * job.envs.get_attr('length')[0])


config = dict(
    exp_name='curriculum',
    max_env_step=100_000,
    env=dict(
        id=make_env,  # in a YAML file: id: 'curriculum.py:make_env'
        schedule=dict(wind=dict(start=0.0, end=2.0, over=80_000)),
        reset_options=dict(low=-0.1, high=0.1),  # of CartPole: the range of its first states
        info_columns=['lean'],
    ),
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3), eval=dict(eval_freq=10_000)),
    callbacks=[LongerWhenGood],
)

if __name__ == '__main__':
    serial_pipeline(config)
