"""Returns of agents and policies in evaluations, of the scripted env by hand."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from tests.agents.envs import Rota
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


class Recorded(Rota):
    """Rota with noise as observations, which records the actions of all copies."""

    actions: ClassVar[list[tuple[str, int]]] = []

    def observe(self, agent: str) -> Any:
        generator = torch.Generator().manual_seed(100 * self._t + self.possible_agents.index(agent))
        return torch.randn(2, generator=generator).numpy()

    def step(self, action: Any) -> None:
        if action is not None:
            self.actions.append((self.agent_selection, int(action)))
        super().step(action)


@torch.no_grad()
def test_memory_of_an_agent_is_of_its_own_steps(tmp_path):
    """Against a loop that runs the sequence of each agent alone, in each of two episodes of one copy."""
    model = dict(hidden_sizes=[8], recurrent=dict(cell='lstm', hidden_size=8))
    config = job_config(
        tmp_path,
        'CartPole-v1',
        env=dict(id=Recorded, collector_env_num=1, evaluator_env_num=1, vectorization='sync'),
        policy=dict(learn=dict(batch_size=16), model=model, eval=dict(n_episode=2)),
    )
    with SerialJob(config) as job:
        policy = job.learner.policy
        for parameter in policy.model.parameters():  # far from equal chances
            parameter.mul_(3.0)
        Recorded.actions.clear()
        job.evaluate()
    expected = []
    for _ in range(2):
        states = {agent: policy.model.initial_state(1) for agent in 'abc'}
        env = Recorded()
        env.reset()
        for env._t, agent in enumerate(Rota.order):
            one_hot = [float(agent == other) for other in 'abc']
            obs = torch.tensor([[*env.observe(agent).tolist(), *one_hot]])
            output = policy.model.compute_actor_critic(obs, states[agent])
            states[agent] = output['state']
            expected.append((agent, int(output['logit'].argmax())))
    assert Recorded.actions[: len(expected)] == expected
    assert len({action for _, action in expected}) == 2
