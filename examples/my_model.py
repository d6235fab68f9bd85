"""A model of your own, for any spaces that zoo knows: one encoder, and a head for each of the three outputs."""

import torch
from pydantic import Field

from zoo import MODEL_REGISTRY, Section, serial_pipeline
from zoo.model import ValueHead, make_encoder, make_input, make_policy_head


class SmallConfig(Section):
    width: int = Field(32, ge=1, description='width of the hidden layer')


@MODEL_REGISTRY.register('small')
class Small(torch.nn.Module):
    config = SmallConfig

    def __init__(self, cfg, obs_space, action_space):
        super().__init__()
        self.input = make_input(obs_space)  # one-hot for Discrete, channels first for images, else nothing
        self.encoder, n_feature = make_encoder(obs_space, hidden_sizes=[cfg.width], activation='relu')
        self.policy_head = make_policy_head(n_feature, action_space)
        self.value_head = ValueHead(n_feature)

    def compute_actor(self, obs):  # [..., *O] -> logit [..., P]
        return self.policy_head(self.encoder(self.input(obs)))

    def compute_critic(self, obs):  # [..., *O] -> value [...]
        return self.value_head(self.encoder(self.input(obs)))

    def compute_actor_critic(self, obs):
        feature = self.encoder(self.input(obs))
        return {'logit': self.policy_head(feature), 'value': self.value_head(feature)}


config = dict(
    exp_name='small',
    max_env_step=20_000,
    env=dict(id='CartPole-v1'),
    policy=dict(type='ppo', model=dict(type='small', width=64), learn=dict(learning_rate=1e-3)),
)

if __name__ == '__main__':
    serial_pipeline(config)
