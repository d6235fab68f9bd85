"""A recurrent model of your own: actor and critic have a GRU each. It balances a pole without seeing any speed."""

import torch
from pydantic import Field

from zoo import MODEL_REGISTRY, Section, serial_pipeline
from zoo.model import ValueHead, make_input, make_policy_head


class RememberConfig(Section):
    n_unit: int = Field(64, ge=1, description='numbers that each GRU remembers')


class Memory(torch.nn.Module):
    """A GRU over one step, x [B, O], or over a sequence with resets inside, x [L, B, O]."""

    def __init__(self, n_input, n_unit):
        super().__init__()
        self.cell = torch.nn.GRUCell(n_input, n_unit)

    def forward(self, x, state, first):
        if first is None:
            state = self.cell(x, state)
            return state, state
        features = []
        for x_t, begins in zip(x, first, strict=True):
            state = self.cell(x_t, torch.where(begins.unsqueeze(-1), 0.0, state))
            features.append(state)
        return torch.stack(features), state


@MODEL_REGISTRY.register('remember')
class Remember(torch.nn.Module):
    config = RememberConfig

    def __init__(self, cfg, obs_space, action_space):
        super().__init__()
        self.input = make_input(obs_space)
        self.actor, self.critic = (Memory(obs_space.shape[0], cfg.n_unit) for _ in range(2))
        self.policy_head = make_policy_head(cfg.n_unit, action_space)
        self.value_head = ValueHead(cfg.n_unit)
        self.register_buffer('zero', torch.zeros(cfg.n_unit))

    def initial_state(self, n_env):  # of B envs at the start of an episode, on the device of the model
        return {'actor': self.zero.repeat(n_env, 1), 'critic': self.zero.repeat(n_env, 1)}

    def compute_actor(self, obs, state, first=None):  # what it does not compute stays in the state as it was
        feature, new = self.actor(self.input(obs), state['actor'], first)
        return self.policy_head(feature), {**state, 'actor': new}

    def compute_critic(self, obs, state, first=None):
        feature, new = self.critic(self.input(obs), state['critic'], first)
        return self.value_head(feature), {**state, 'critic': new}

    def compute_actor_critic(self, obs, state, first=None):
        logit, state = self.compute_actor(obs, state, first)
        value, state = self.compute_critic(obs, state, first)
        return {'logit': logit, 'value': value, 'state': state}


config = dict(
    exp_name='remember',
    max_env_step=150_000,
    env=dict(id='cartpole_no_velocity', collector_env_num=8),
    policy=dict(
        type='ppo',
        model=dict(type='remember', n_unit=64),
        learn=dict(learning_rate=1e-3, epoch_per_collect=10, sequence=dict(len=16)),
        collect=dict(n_step=128, discount_factor=0.98),
    ),
)

if __name__ == '__main__':
    serial_pipeline(config)
