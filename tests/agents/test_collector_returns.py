"""Returns of agents, policies and the score in the log of training and evaluation, of the scripted envs by hand."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from tests.agents.envs import Clockwork, Rota
from zoo import SerialJob

A, B, C = 1 + 8, 2 + 16 + 128 + 1024, 256 + 2048 + 16384
"""What the agents of Clockwork earn while they live, see there."""


def config_of(root, env_id, n_step, agents, **env):
    policy = dict(type='ppo', collect=dict(n_step=n_step), learn=dict(batch_size=n_step), model=dict(hidden_sizes=[8]))
    return dict(
        max_env_step=1_000,
        logger=dict(root=str(root), console='off', tensorboard=False, freq=1),
        env=dict(id=env_id, collector_env_num=2, evaluator_env_num=2, vectorization='sync') | env,
        policy=policy | dict(eval=dict(n_episode=2)),
        agents=agents,
    )


def returns_of(config, n_round=2):
    """The metrics of agents in training, the mean return of its episodes, and an evaluation."""
    with SerialJob(config) as job:
        for _ in range(n_round):
            job.collect_round()
        metrics = job.collector.metrics()
        return metrics, float(np.mean(list(job.collector.episodes.returns))), job.evaluate()


TWO = dict(policies=dict(p={}, q={}), mapping={'a': 'p', '*': 'q'})
TWO_WITH_C = dict(policies=dict(p={}, q={}), mapping={'c': 'q', '*': 'p'})
SCORES = {
    'none': (dict(), (A + B + C) / 3),  # of the only policy: the mean over its agents
    'team': (dict(score='team'), A + B + C),
    'agent': (dict(score='b'), B),
    'two': (TWO, A + B + C),
    'one trained': (TWO | dict(train=['q']), (B + C) / 2),
    'policy': (TWO | dict(score='p'), A),
    'of a sum': (dict(team='sum', score='c'), C),  # rewards for learning are no returns
}


@pytest.mark.parametrize('kind', SCORES)
def test_return_of_an_episode_is_that_of_the_score(kind, tmp_path):
    """Rollouts of 7 steps: episodes of 5 steps run over their ends."""
    agents, score = SCORES[kind]
    metrics, return_mean, evaluation = returns_of(config_of(tmp_path, Clockwork, 7, agents), 5)
    assert return_mean == pytest.approx(score)
    assert evaluation.returns == pytest.approx([score] * 2)
    found = {name: x for name, x in metrics.items() if name.endswith('return_mean')}
    expected = {f'collect/agent/{name}/return_mean': x for name, x in zip('abc', (A, B, C), strict=True)}
    if 'policies' in agents:
        expected |= {'collect/p/return_mean': A, 'collect/q/return_mean': (B + C) / 2}
    assert found == pytest.approx(expected)
    assert evaluation.agents == {'a': [A] * 2, 'b': [B] * 2, 'c': [C] * 2}


@pytest.mark.parametrize('autoreset', ['same_step', 'next_step', 'disabled'])
def test_return_has_all_rewards_also_those_before_the_first_action(autoreset, tmp_path):
    """Agent i of Rota earns 2 ** (3 * t + i) in each of 7 steps."""
    metrics, _, evaluation = returns_of(config_of(tmp_path, Rota, 8, {}, autoreset=autoreset))
    for i, name in enumerate('abc'):
        earned = sum(2 ** (3 * t + i) for t in range(7))
        assert metrics[f'collect/agent/{name}/return_mean'] == earned
        assert evaluation.agents[name] == [earned] * 2


class Bystander(Rota):
    """Rota in which c has no turn: it earns 2 ** (3 * t + 2) in each step, and never acts."""

    order = 'abababb'
    ends: ClassVar[dict[tuple[int, str], bool]] = {(6, agent): True for agent in 'abc'}


def test_agent_that_never_acts_has_its_rewards_as_return_and_no_samples(tmp_path):
    config = config_of(tmp_path, Bystander, 7, TWO_WITH_C)
    metrics, _, evaluation = returns_of(config)
    earned = sum(2 ** (3 * t + 2) for t in range(7))
    assert metrics['collect/agent/c/return_mean'] == metrics['collect/q/return_mean'] == earned
    assert evaluation.agents['c'] == evaluation.learners['q'].returns == [earned] * 2
    with SerialJob(config) as job:
        rollouts = job.collector.collect_by_name()
        assert bool(rollouts['q'].data['is_reset'].all())
        assert int((~rollouts['p'].data['is_reset']).sum()) == 2 * 7  # copies, steps


def test_return_of_an_episode_that_is_cut_off_ends_there(tmp_path):
    metrics, _, evaluation = returns_of(config_of(tmp_path, Rota, 8, {}, max_episode_steps=3))
    for i, name in enumerate('abc'):
        earned = sum(2 ** (3 * t + i) for t in range(3))
        assert metrics[f'collect/agent/{name}/return_mean'] == earned
        assert evaluation.agents[name] == [earned] * 2
    assert evaluation.lengths == [3, 3]


def test_share_of_actions(tmp_path):
    """9 of 15 rows of an episode of Clockwork act: a 2, b 4, c 3 of 5 each."""
    metrics, _, _ = returns_of(config_of(tmp_path, Clockwork, 5, {}))
    assert metrics['collect/acted_share'] == pytest.approx(9 / 15)
    assert metrics['collect/agent_step'] == 2 * 2 * 9  # rollouts, copies
