"""A model with a state, here the number of steps since its episode began: carried through acting, reset, and trained on.

The env's observation is that number too, so that what the state should be can be read off the observations.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.buffer.samples import replay
from tests.envs import LimitEnv
from tests.policy_envs import TWO_ACTIONS
from zoo.buffer import RolloutBuffer
from zoo.core.data import Metrics, Rollout
from zoo.core.seeding import stream
from zoo.core.spaces import Box
from zoo.env import EnvConfig, make_env_groups
from zoo.policy import PPGPolicy, PPOOffPolicy, PPOPolicy
from zoo.policy.updates import ppo_step
from zoo.run.config import resolve_policy
from zoo.worker.collector import Collector
from zoo.worker.learner import Learner

OBS = Box(np.zeros(1), np.full(1, np.inf))
MODES = {
    'same_step': dict(vectorization='sync', autoreset='same_step'),
    'next_step': dict(vectorization='sync', autoreset='next_step'),
    'disabled': dict(vectorization='sync', autoreset='disabled'),
    'async same_step': dict(vectorization='async', autoreset='same_step'),
}
modes = pytest.mark.parametrize('mode', MODES)


class Staggered(gymnasium.Wrapper):
    """The k-th one made since `n_made` was set to 0 ends after 3 + k steps."""

    n_made = 0

    def __init__(self) -> None:
        Staggered.n_made += 1
        super().__init__(LimitEnv(2 + Staggered.n_made))


class Counting(nn.Module):
    """The state counts the steps of the episode; the first logit is that count times a weight."""

    def __init__(self, as_dict: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.1, 0.0]))
        self.critic = nn.Linear(1, 1)
        self._as_dict = as_dict

    def initial_state(self, n_env: int) -> Any:
        count = torch.zeros(n_env)
        return {'count': count, 'twice': torch.zeros(n_env, 2)} if self._as_dict else count

    def compute_actor(self, obs: Tensor, state: Any = None) -> Any:
        if state is None:
            return obs * self.weight  # what `probe` looks at
        count = state['count'] if self._as_dict else state
        logit = count.unsqueeze(-1) * self.weight
        return logit, {'count': count + 1, 'twice': state['twice'] + 2} if self._as_dict else count + 1

    def compute_critic(self, obs: Tensor) -> Tensor:
        return self.critic(obs).squeeze(-1)

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        return {'logit': self.compute_actor(obs), 'value': self.compute_critic(obs)}


class Unrolled:
    """The model over sequences [S, L, O] from the state before each, which begins anew where an episode does."""

    def __init__(self, model: Counting, state: Tensor, begins: Tensor) -> None:
        self._model, self._state, self._begins = model, state, begins

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        state, logits = self._state, []
        for t in range(obs.shape[1]):
            state = torch.where(self._begins[:, t], self._model.initial_state(len(obs)), state)
            logit, state = self._model.compute_actor(obs[:, t], state)
            logits.append(logit)
        return {'logit': torch.stack(logits, 1), 'value': self._model.compute_critic(obs)}


def make_collector(mode: str, n_step: int, n_group: int = 1, cls: Any = PPOPolicy, **sections: Any) -> Any:
    """A policy over Counting, and its collector of four envs."""
    Staggered.n_made = 0
    groups = make_env_groups(EnvConfig(id=Staggered, collector_env_num=4, collector_group_num=n_group, **MODES[mode]))
    as_dict = sections.pop('as_dict', False)
    cfg = resolve_policy(dict(type='ppo', collect=dict(n_step=n_step), **sections))
    policy = cls(cfg, OBS, TWO_ACTIONS, model=Counting(as_dict))
    collector = Collector(groups, policy.collect_mode)
    collector.reset(stream(0, 'test'))
    return policy, collector


def close(collector: Collector) -> None:
    for group in collector._groups:
        group.env.close()


@pytest.mark.parametrize('as_dict', [False, True], ids=['tensor', 'dict'])
@pytest.mark.parametrize('n_group', [1, 2])
@modes
def test_acting_carries_the_state_and_begins_anew_with_each_episode(mode: str, n_group: int, as_dict: bool) -> None:
    """Over rollouts too, whether an episode ends in the middle or with the last row of one."""
    _, collector = make_collector(mode, 7, n_group, as_dict=as_dict)
    n_begin = 0
    for _ in range(6):
        rollout = collector.collect()
        steps = rollout.data['obs'][..., 0]
        torch.testing.assert_close(rollout.data['logit'][..., 0], 0.1 * steps)
        state = rollout.state['count'] if as_dict else rollout.state
        assert torch.equal(state, steps[0])  # before row 0
        if as_dict:
            assert torch.equal(rollout.state['twice'], 2 * steps[0].unsqueeze(1).expand(4, 2))
        assert 'state' not in rollout.data
        n_begin += int((steps == 0).sum())
    assert n_begin > 20  # 42 steps of 4 envs with episodes of 3 to 8 rows
    close(collector)


@pytest.mark.parametrize('mode', ['same_step', 'next_step', 'disabled'])
def test_rollout_that_ends_with_an_episode_is_followed_by_a_new_state(mode: str) -> None:
    """Episodes of 3 steps in the first env, and a row for the reset where that takes a step."""
    n_row = 4 if mode == 'next_step' else 3
    _, collector = make_collector(mode, n_row)
    for _ in range(3):
        assert collector.collect().state[0] == 0
    close(collector)


def test_reset_of_the_envs_is_one_of_the_state() -> None:
    _, collector = make_collector('same_step', 2)
    assert collector.collect().state.tolist() == [0] * 4
    assert collector.collect().state.tolist() == [2] * 4
    collector.reset(stream(1, 'test'))
    rollout = collector.collect()
    assert rollout.state.tolist() == [0] * 4
    torch.testing.assert_close(rollout.data['logit'][..., 0], 0.1 * rollout.data['obs'][..., 0])
    close(collector)


def test_model_with_a_state_runs_eagerly() -> None:
    policy, collector = make_collector('same_step', 2)
    assert policy._executor.name == 'eager'
    output = policy.collect_mode.forward(torch.zeros(3, 1), torch.tensor([0.0, 4.0, 5.0]))
    assert output['state'].tolist() == [1, 5, 6]
    assert policy.eval_mode.initial_state(3).tolist() == [0, 0, 0]
    close(collector)


LENGTH = 4


class Sequences:
    """Samples are sequences [S, L] of one env each, with the state before them, and go to a step that unrolls."""

    def _get_train_sample(self: Any, rollout: Rollout) -> dict[str, Any]:
        samples = super()._get_train_sample(rollout)  # type: ignore[misc]
        n_step, n_env = rollout.data['reward'].shape
        ends = rollout.data['is_reset'] if 'is_reset' in rollout.data else rollout.data['traj_flag']
        begins = torch.cat((torch.zeros(1, n_env, dtype=torch.bool), ends[:-1]))
        state, states = rollout.state, []
        for t in range(n_step):
            state = torch.where(begins[t], 0.0, state)
            states.append(state)
            state = state + 1
        blocks = {name: x.unflatten(0, (n_step, n_env)) for name, x in samples.items()} | {'begins': begins}
        found = {name: x.transpose(0, 1).reshape(-1, LENGTH, *x.shape[2:]) for name, x in blocks.items()}
        return {**found, 'state': torch.stack(states).T.reshape(-1, LENGTH)[:, 0]}


def unrolling_step(model: Any, dist: Any, optimizers: Any, minibatch: Any, numbers: Any) -> Metrics:
    return ppo_step(Unrolled(model, minibatch['state'], minibatch['begins']), dist, optimizers, minibatch, numbers)


class SequencePPO(Sequences, PPOPolicy):
    pass


class SequenceOffPolicy(Sequences, PPOOffPolicy):
    pass


OPTIONS: dict[str, dict[str, Any]] = {
    'plain': {},
    'normalised': dict(value_norm=True, reward_norm=True, adv_norm='batch'),
    'off': dict(adv_norm='off', target_kl=100.0),
}


@pytest.mark.parametrize('options', OPTIONS)
@pytest.mark.parametrize('mode', ['same_step', 'next_step'])
def test_sequences_are_learned_from_with_the_states_that_acted(
    mode: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong state at a start, or a missed reset within, shows as a ratio that is not 1 before the first step."""
    monkeypatch.setattr('zoo.policy.ppo.ppo_step', unrolling_step)
    learn = dict(batch_size=16, epoch_per_collect=1, learning_rate=1e-2, **OPTIONS[options])
    policy, collector = make_collector(mode, 12, cls=SequencePPO, learn=learn)
    learner = Learner(policy.learn_mode, buffer := RolloutBuffer())
    seen = []
    inner = policy._executor.run

    def run(step: Any, optimizers: Any, data: Any, numbers: Any) -> Metrics:
        found = inner(step, optimizers, data, numbers)
        seen.append(found)
        return found

    monkeypatch.setattr(policy._executor, 'run', run)
    before = policy._model.weight.detach().clone()
    for rollout in range(3):
        samples = policy.collect_mode.get_train_sample(collector.collect())
        assert samples['adv'].shape == (12, LENGTH) and samples['state'].shape == (12,)
        buffer.push(samples)
        metrics = learner.train(rollout)
        # 48 env steps in minibatches of 16, which are 4 sequences
        assert learner.train_iter == 3 * (rollout + 1)
        assert seen[-1]['approx_kl'][0].abs() < 1e-6 and seen[-1]['clipfrac'][0] == 0
        assert all(x.isfinite() for x in metrics.values())
    assert not torch.equal(policy._model.weight, before)
    close(collector)


def test_sequences_are_drawn_whole_from_a_replay_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Tensor]] = []

    def step(model: Any, dist: Any, optimizers: Any, minibatch: Any, numbers: Any) -> Metrics:
        seen.append(minibatch)
        return unrolling_step(model, dist, optimizers, minibatch, numbers)

    monkeypatch.setattr('zoo.policy.ppo.ppo_step', step)
    learn = dict(batch_size=16, epoch_per_collect=1, learning_rate=1e-2)
    policy, collector = make_collector('same_step', 12, cls=SequenceOffPolicy, learn=learn)
    buffer = replay(size=24, n_sample=8, update_per_collect=2)  # sequences
    learner = Learner(policy.learn_mode, buffer)
    for rollout in range(4):
        buffer.push(policy.collect_mode.get_train_sample(collector.collect()))
        learner.train(rollout)
    assert learner.train_iter == len(seen) == 4 * 2 * 2  # draws of 8 sequences, 4 of them a step
    for minibatch in seen:
        assert minibatch['obs'].shape == (4, LENGTH, 1)
        steps = minibatch['obs'][..., 0]
        start = torch.where(minibatch['begins'][:, 0], 0.0, minibatch['state'])
        assert torch.equal(start, steps[:, 0])
        assert torch.equal(minibatch['begins'][:, 1:], steps[:, 1:] == 0)  # and otherwise one step follows another
        assert ((steps[:, 1:] == steps[:, :-1] + 1) | minibatch['begins'][:, 1:]).all()
    close(collector)


class SequencePPG(PPGPolicy):
    """A stock model, which treats the rows of a sequence apart."""

    def _get_train_sample(self, rollout: Rollout) -> dict[str, Any]:
        samples = super()._get_train_sample(rollout)
        return {name: x.unflatten(0, (-1, LENGTH)) for name, x in samples.items()}


@pytest.mark.parametrize('n_minibatch', [1, 3])
def test_phases_of_ppg_over_sequences_are_those_over_their_rows(n_minibatch: int) -> None:
    """With one minibatch the order of rows does not matter; with several the numbers of steps are alike."""
    found = []
    for cls in (SequencePPG, PPGPolicy):
        learn = dict(batch_size=48 // n_minibatch, aux_freq=2, aux_batch_size=96 // n_minibatch, aux_train_epoch=2)
        cfg = resolve_policy(dict(type='ppg', collect=dict(n_step=12), learn=learn, model=dict(obs_norm=True)))
        groups = make_env_groups(EnvConfig(id=LimitEnv, collector_env_num=4, vectorization='sync'))
        policy = cls(cfg, OBS, TWO_ACTIONS)
        collector = Collector(groups, policy.collect_mode)
        collector.reset(stream(0, 'test'))
        for _ in range(2):
            policy.learn_mode.forward(policy.collect_mode.get_train_sample(collector.collect()))
            metrics = policy.learn_mode.learn_aux()
        found.append((metrics, dict(policy._model.state_dict()), policy.learn_mode.train_iter()))
    assert found[0][2] == found[1][2] == n_minibatch * (2 * 2 + 2)  # policy and value phase twice, two epochs
    if n_minibatch == 1:
        torch.testing.assert_close(found[0][:2], found[1][:2], rtol=1e-4, atol=1e-5)
