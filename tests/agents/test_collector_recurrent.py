"""Policies with a memory, for agents that wait for turns: against a loop that runs the sequence of each agent alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.agents.envs import Rota
from zoo import SerialJob
from zoo.core.data import Rollout, map_tensors
from zoo.policy.sequences import forward_sequences

N_STEP = 5
N_COPY = 2
N_ROUND = 6
GAMMA = 0.5
LAMBDA = 0.25


class OddRota(Rota):
    """Rota whose observations are noise, so that a state of a wrong step shows."""

    def observe(self, agent: str) -> Any:
        noise = torch.rand(2, generator=torch.Generator().manual_seed(self._seed_of(agent)))
        return noise.numpy()

    def _seed_of(self, agent: str) -> int:
        return 100 * self._t + self.possible_agents.index(agent)


class Keep:
    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []
        self.samples: list[dict[str, Any]] = []

    def on_rollout(self, job: Any, rollout: Rollout) -> None:
        parts: Any = {name: map_tensors(Tensor.clone, tree) for name, tree in vars(rollout).items() if tree is not None}
        self.rollouts.append(Rollout(**parts))

    def on_samples(self, job: Any, samples: dict[str, Any]) -> None:
        self.samples.append(map_tensors(Tensor.clone, samples))


def run(root, cell, size=4, **agents):
    model = dict(hidden_sizes=[8], recurrent=dict(cell=cell, hidden_size=size))
    policy = dict(
        type='ppo',
        collect=dict(n_step=N_STEP, discount_factor=GAMMA, gae_lambda=LAMBDA),
        learn=dict(batch_size=N_STEP, sequence=dict(len=N_STEP)),
        model=model,
        eval=dict(n_episode=1),
    )
    env = dict(id=OddRota, collector_env_num=N_COPY, evaluator_env_num=1, vectorization='sync', autoreset='same_step')
    config = dict(
        max_env_step=1_000,
        logger=dict(root=str(root), console='off', tensorboard=False),
        env=env,
        policy=policy,
        agents=agents,
    )
    keep = Keep()
    with SerialJob(config, callbacks=[keep]) as job:
        for _ in range(N_ROUND):
            job.collect_round()
        policy = job.learner.policy
        return keep, policy.model, policy.collect_mode


def entries_of(rollout: Rollout, r: int) -> int:
    return int((~rollout.data['is_reset'][:, r]).sum())


@pytest.mark.parametrize(('cell', 'size'), [('lstm', 4), ('gru', 4), ('lstm', 16), ('trxl', 4)])  # 16: in C
@torch.no_grad()
def test_each_agent_has_the_memory_of_its_own_steps(cell, size, tmp_path):
    keep, model, _ = run(tmp_path, cell, size)
    initial = model.initial_state(1)
    n_checked = 0
    for r in range(N_COPY * 3):
        state = initial
        is_new = True
        for rollout, samples in zip(keep.rollouts, keep.samples, strict=True):
            data = rollout.data
            n = entries_of(rollout, r)
            if n:
                before = map_tensors(lambda x, r=r: x[r : r + 1], rollout.state)
                wanted = initial if is_new else state
                assert_close(before, wanted)
            values = []
            for k in range(n):
                if is_new:
                    state = initial
                output = model.compute_actor_critic(data['obs'][k, r : r + 1], state)
                state = output['state']
                assert torch.allclose(output['logit'][0], data['logit'][k, r], atol=1e-6)
                assert_close(map_tensors(lambda x, k=k, r=r: x[k, r : r + 1], data['state']), state)
                values.append(float(output['value']))
                is_end = bool(data['traj_flag'][k, r])
                is_new = is_end and (k + 1 < n or ended_really(data, k, r, rollout))
                n_checked += 1
            adv = by_hand(rollout, r, n, values, model, initial)
            # samples are [S, L]: with sequences as long as rollouts, one of each row
            assert torch.allclose(samples['adv'][r, :n], torch.tensor(adv), rtol=1e-5, atol=1e-5)
    assert n_checked > 4 * N_ROUND


def ended_really(data: Any, k: int, r: int, rollout: Rollout) -> bool:
    """Whether the last transition of a row in a rollout is an end of its agent, not one that the rollout cuts off."""
    if data['done'][k, r]:
        return True
    return bool(data['reward'][k, r] == 2**13 + 2**16)  # the only one that is cut off, see Rota


def by_hand(rollout: Rollout, r: int, n: int, values: list[float], model: Any, initial: Any) -> list[float]:
    """GAE of the transitions of one agent, whose next values are of its own next observation, after its own state."""
    data = rollout.data
    follow = {(int(t), int(b)): obs for (t, b), obs in zip(rollout.final_index, rollout.final_obs, strict=True)}
    found: list[float] = []
    after = 0.0
    for k in reversed(range(n)):
        obs = follow.get((k, r))
        if obs is None:
            obs = data['obs'][k + 1, r] if k + 1 < len(data['obs']) else rollout.last_obs[r]
        state = map_tensors(lambda x, k=k: x[k, r : r + 1], data['state'])
        next_value = float(model.compute_critic(obs[None], state)[0])
        if data['done'][k, r]:
            next_value = 0.0
        delta = float(data['reward'][k, r]) + GAMMA * next_value - values[k]
        after = delta + GAMMA * LAMBDA * (0.0 if data['traj_flag'][k, r] else after)
        found.append(after)
    return found[::-1]


def assert_close(a: Any, b: Any) -> None:
    map_tensors(lambda x, y: torch.testing.assert_close(x, y, atol=1e-6, rtol=0), a, b)


@torch.no_grad()
def test_gradient_steps_see_the_logits_of_acting(tmp_path):
    """The model, run over the sequences of a rollout, gives the logits with which the agents acted."""
    keep, model, _ = run(tmp_path, 'lstm')
    for samples in keep.samples:
        found, rows = forward_sequences(model, 'compute_actor_critic', samples)
        counts = rows['weight'] > 0
        assert counts.any()
        assert torch.allclose(found['logit'][counts], rows['logit'][counts], atol=1e-6)


def test_copies_do_not_change_each_other(tmp_path):
    """Both copies play the same script, and a policy whose rows have no chance in them gives both the same logits."""
    keep, _, _ = run(tmp_path, 'lstm', id='off')
    for rollout in keep.rollouts:
        logit = rollout.data['logit']
        torch.testing.assert_close(logit[:, :3], logit[:, 3:])
