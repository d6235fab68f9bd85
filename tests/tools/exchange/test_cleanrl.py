"""Parameters of CleanRL's ppo_continuous_action, made by its network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zoo
from zoo.tools.exchange.form import ModelFileError


def tower(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(n_in, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, n_out))


class Agent(nn.Module):
    """The networks of the script, by its documentation."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = tower(3, 1)
        self.actor_mean = tower(3, 2)
        self.actor_logstd = nn.Parameter(torch.tensor([[0.5, -12.0]]))


def test_parameters_act_value_and_deviate_equally(tmp_path: Path) -> None:
    torch.manual_seed(0)
    agent = Agent()
    torch.save(agent.state_dict(), tmp_path / 'm.cleanrl_model')
    policy = zoo.import_policy(tmp_path / 'm.cleanrl_model')
    obs = torch.randn(100, 3)
    with torch.no_grad():
        mean, value = agent.actor_mean(obs), agent.critic(obs)[:, 0]
    assert torch.allclose(torch.as_tensor(policy.act(obs.numpy())), mean, atol=1e-6)
    assert torch.allclose(policy.value(obs.numpy()), value, atol=1e-5)
    logit: Tensor = policy.model.compute_actor(obs)
    assert torch.allclose(logit[0, 2:], torch.tensor([np.exp(0.5), np.exp(-12.0)], dtype=torch.float32))


def test_other_networks_get_a_sentence(tmp_path: Path) -> None:
    torch.save({'actor_logstd': torch.zeros(1, 2), 'critic.weight': torch.zeros(1, 3)}, tmp_path / 'm')
    with pytest.raises(ModelFileError, match='no stack of layers'):
        zoo.import_policy(tmp_path / 'm')
    torch.save({**Agent().state_dict(), 'extra': torch.zeros(1)}, tmp_path / 'm')
    with pytest.raises(ModelFileError, match="the entry 'extra'"):
        zoo.import_policy(tmp_path / 'm')
