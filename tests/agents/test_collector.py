"""A run with one agent in PettingZoo's interfaces equals the run of the env itself, bit for bit."""

from __future__ import annotations

import pytest
import torch

from zoo import serial_pipeline

ENVS = 'tests.agents.envs:CartPoleParallel', 'tests.agents.envs:CartPoleTurns'


def train(root, env_id, policy, more=None, **env):
    more = more or {}
    section = dict(id=env_id, collector_env_num=4, evaluator_env_num=2, vectorization='sync') | env
    policy = dict(eval=dict(eval_freq=256, n_episode=2)) | policy
    logger = dict(root=str(root), console='off', tensorboard=False)
    return serial_pipeline(
        dict(exp_name='x', max_env_step=512, env=section, logger=logger) | more | dict(policy=policy)
    )


def parameters(result):
    return result.policy.state_dict()['model']


POLICIES = {
    'native': dict(type='ppo', collect=dict(n_step=32), learn=dict(batch_size=32)),
    'eager': dict(type='ppo', collect=dict(n_step=32), learn=dict(batch_size=32, executor='eager')),
    'ppg': dict(type='ppg', collect=dict(n_step=32), learn=dict(batch_size=64, aux_freq=2, aux_batch_size=64)),
    'dqn': dict(type='dqn', collect=dict(n_step=8), learn=dict(batch_size=8)),
    'lstm': dict(
        type='ppo',
        collect=dict(n_step=32),
        learn=dict(batch_size=32),
        model=dict(recurrent=dict(cell='lstm', hidden_size=8)),
    ),
}


MORE = {'dqn': dict(buffer=dict(n_sample=32))}


@pytest.mark.parametrize('kind', POLICIES)
@pytest.mark.parametrize('env_id', ENVS)
def test_one_agent_is_the_run_of_the_env(env_id, kind, tmp_path):
    alone = train(tmp_path, 'CartPole-v1', POLICIES[kind], MORE.get(kind))
    agents = train(tmp_path, env_id, POLICIES[kind], MORE.get(kind))
    assert alone.last_return == agents.last_return
    for name, x in parameters(alone).items():
        assert torch.equal(x, parameters(agents)[name]), name
