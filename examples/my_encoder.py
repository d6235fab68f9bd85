"""An encoder of your own: a small CNN for small images, here of one entry of a Dict."""

import gymnasium
import numpy as np
import torch
from pydantic import Field

from zoo import ENCODER_REGISTRY, Section, serial_pipeline
from zoo.model import holds_images, image_shape


class TinyCNNConfig(Section):
    n_channel: int = Field(16, ge=1, description='channels of the first convolution; the second one has twice as many')


@ENCODER_REGISTRY.register('tiny_cnn')
class TinyCNN(torch.nn.Module):
    config = TinyCNNConfig  # policy.model.encoder={type: tiny_cnn, n_channel: 32}
    value_gain = 1.0  # the gain of a value head's initial weights; 0.1 for many features of unequal size

    def __init__(self, cfg, space):  # the space of the images, [H, W, C] or [C, H, W]
        super().__init__()
        height, width, n_input, _ = image_shape(space)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(n_input, cfg.n_channel, kernel_size=3, stride=2),
            torch.nn.ReLU(),
            torch.nn.Conv2d(cfg.n_channel, 2 * cfg.n_channel, kernel_size=3, stride=2),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
        )
        self.n_feature = self.layers(torch.zeros(1, n_input, height, width)).shape[1]

    @classmethod
    def fits(cls, space):  # asked with the space of the observations, which may be a Dict, or of an entry of it
        return holds_images(space)

    def forward(self, x):  # [..., C, H, W], channels first -> [..., n_feature]
        numbers = x / 255 if x.dtype == torch.uint8 else x  # images of bytes from 0 to 255 come as they are
        features = self.layers(numbers.reshape(-1, *x.shape[-3:]))
        return features.reshape(*x.shape[:-3], self.n_feature)


class Corners(gymnasium.Env):
    """Name the corner of the picture that has the light, or the opposite one if the number is negative."""

    observation_space = gymnasium.spaces.Dict(
        image=gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8),
        vector=gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32),
    )
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n_left = 16
        return self._draw(), {}

    def step(self, action):
        reward = float(action == self.right)
        self.n_left -= 1
        return self._draw(), reward, False, self.n_left == 0, {}

    def _draw(self):
        corner = int(self.np_random.integers(4))
        sign = float(self.np_random.choice([-1.0, 1.0]))
        self.right = corner if sign > 0 else 3 - corner  # 3 - corner is the opposite one
        image = self.np_random.integers(0, 100, (16, 16, 3)).astype(np.uint8)
        row = 1 + 9 * (corner // 2)
        column = 1 + 9 * (corner % 2)
        image[row : row + 4, column : column + 4] = 255
        return {'image': image, 'vector': np.array([sign], np.float32)}


config = dict(
    exp_name='corners',
    max_env_step=40_960,
    env=dict(id=Corners),
    policy=dict(
        type='ppo',
        model=dict(encoder=dict(type='multi', encoders=dict(image='tiny_cnn'))),
        learn=dict(learning_rate=1e-3),
        collect=dict(n_step=128),
    ),
)

if __name__ == '__main__':
    serial_pipeline(config)
