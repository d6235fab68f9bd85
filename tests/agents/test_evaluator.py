"""Returns of agents and policies in evaluations, of the scripted env by hand."""

from __future__ import annotations

from tests.policy_envs import job_config
from zoo import SerialJob


def test_returns_by_agent_and_policy(tmp_path):
    config = job_config(
        tmp_path,
        'CartPole-v1',
        max_env_step=64,
        env=dict(id='tests.agents.envs:Clockwork', collector_env_num=2, evaluator_env_num=2, vectorization='sync'),
        policy=dict(type='ppo', collect=dict(n_step=8), learn=dict(batch_size=8), eval=dict(n_episode=4)),
        agents=dict(policies=dict(p={}, q={}), mapping={'a': 'p', '*': 'q'}),
    )
    with SerialJob(config) as job:
        evaluation = job.evaluate()
    of_a = 1 + 8
    of_b = 2 + 16 + 128 + 1024
    of_c = 256 + 2048 + 16384
    assert evaluation.agents == {'a': [of_a] * 4, 'b': [of_b] * 4, 'c': [of_c] * 4}
    assert evaluation.returns == [of_a + of_b + of_c] * 4
    assert evaluation.lengths == [5] * 4
    assert evaluation.learners['p'].returns == [of_a] * 4
    assert evaluation.learners['q'].returns == [(of_b + of_c) / 2] * 4
    metrics = evaluation.metrics()
    assert metrics['agent/b/return_mean'] == of_b
    assert metrics['team_return_mean'] == of_a + of_b + of_c
