"""A memory cell of your own: averages of the past that fade at two speeds. It balances a pole without seeing any speed."""

import torch
from pydantic import Field

from zoo import CELL_REGISTRY, serial_pipeline
from zoo.model import MemoryCell, RecurrentConfig


class FadingConfig(RecurrentConfig):  # the fields that every memory has, and one more
    slow: float = Field(0.9, gt=0, lt=1, description='share of the past in the slow average')


@CELL_REGISTRY.register('fading')
class Fading(MemoryCell):
    """A dense layer over the input and two running averages of it; the state is these averages."""

    config = FadingConfig  # policy.model.recurrent={cell: fading, slow: 0.95}

    def __init__(self, n_in, n_hidden, slow):
        super().__init__(n_hidden, n_state=2 * n_in)
        self.slow = slow
        self.layer = torch.nn.Linear(3 * n_in, n_hidden)

    @classmethod
    def make(cls, n_in, cfg):  # a layer of this memory: n_layer of them lie on top of each other
        return cls(n_in, cfg.hidden_size, cfg.slow)

    def step(self, x, state):  # x [B, n_in], state [B, n_state]; zeros at the start of an episode
        fast, slow = state.chunk(2, -1)
        fast = 0.5 * fast + 0.5 * x
        slow = self.slow * slow + (1 - self.slow) * x
        features = torch.tanh(self.layer(torch.cat((x, fast, slow), -1)))
        return features, torch.cat((fast, slow), -1)


config = dict(
    exp_name='fading',
    max_env_step=150_000,
    env=dict(id='cartpole_no_velocity'),
    policy=dict(
        type='ppo',
        model=dict(recurrent=dict(cell='fading', hidden_size=64, slow=0.8)),
        learn=dict(learning_rate=1e-3, epoch_per_collect=8),
        collect=dict(discount_factor=0.98),
    ),
)

if __name__ == '__main__':
    serial_pipeline(config)
