"""DQN: targets worked by hand, draws and priorities of the buffer, masks, and resumed runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.learning import Learner
from tests.policy_envs import TWO_ACTIONS, clone, differing, job_config, make_policy
from zoo.core.data import Rollout
from zoo.core.registry import BUFFER_REGISTRY
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, MultiBinary
from zoo.model.q_head import quantiles_of
from zoo.policy.base import Policy
from zoo.policy.variants.dqn import n_step_transition
from zoo.rl_utils import Categorical
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob

NUMBER = Box(np.zeros(1), np.full(1, 9.0))
TABLE = [[1.0, 2.0], [5.0, 3.0], [0.0, 4.0], [6.0, 7.0]]
"""Q-values of two actions in the states 0 to 3."""
OLD_TABLE = [[0.0, 0.0], [10.0, 20.0], [30.0, 40.0], [50.0, 60.0]]
"""Q-values of the target network."""


class Table(nn.Module):
    """Q-values by a table: the observation is the number of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.value = nn.Parameter(torch.tensor(TABLE)), nn.Parameter(torch.zeros(()))

    def compute_actor(self, obs: Tensor) -> Tensor:
        return self.table[obs[..., 0].long()]

    def compute_critic(self, obs: Tensor) -> Tensor:
        return self.value + torch.zeros(obs.shape[:-1])

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        return {'logit': self.compute_actor(obs), 'value': self.compute_critic(obs)}


def dqn(network: nn.Module | None = None, collect: dict[str, Any] | None = None, seed: int = 0, **learn: Any) -> Policy:
    collect = dict(n_step=3, discount_factor=0.5, **(collect or {}))
    return make_policy(NUMBER, TWO_ACTIONS, type='dqn', network=network, seed=seed, learn=learn, collect=collect)


def with_tables(**learn: Any) -> Policy:
    """A policy of `TABLE` whose target network is `OLD_TABLE`."""
    policy = dqn(Table(), **learn)
    policy.target_model.table.copy_(torch.tensor(OLD_TABLE))
    return policy


def small_rollout() -> Rollout:
    """Three transitions: 0 -> 1 does not end; 1 -> 2 is terminal; 0 -> 3, of a new episode, ends by a time limit."""
    data = {
        'obs': torch.tensor([0.0, 1.0, 0.0]).view(3, 1, 1),
        'action': torch.tensor([[0], [1], [1]]),
        'reward': torch.tensor([[1.0], [2.0], [3.0]]),
        'done': torch.tensor([[False], [True], [False]]),
        'traj_flag': torch.tensor([[False], [True], [True]]),
    }
    final = torch.tensor([[2.0], [3.0]])  # the next rows show the first observations of new episodes
    return Rollout(data, torch.zeros(1, 1), final, torch.tensor([[1, 0], [2, 0]]))  # type: ignore[arg-type]


def errors(policy: Policy) -> list[float]:
    """|target - Q| of the three transitions, as written back for a buffer."""
    batch: Any = dict(policy.collect_mode.get_train_sample(small_rollout()))
    policy.learn_mode.forward(batch)
    return batch['priority'].tolist()


def random_batch(n: int = 64, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        'obs': torch.rand(n, 1, generator=generator),
        'action': torch.randint(2, (n,), generator=generator),
        'reward': torch.randn(n, generator=generator),
        'discount': torch.full((n,), 0.9),
        'next_obs': torch.rand(n, 1, generator=generator),
    }


def learned(policy: Policy, batch: dict[str, Tensor]) -> dict[str, Any]:
    policy.learn_mode.forward(dict(batch))
    return dict(clone(dict(policy.model.state_dict())))


@pytest.mark.parametrize(('double', 'wanted'), [(True, [5.0, 1.0, 31.0]), (False, [10.0, 1.0, 31.0])])
def test_targets_by_hand_of_a_step_a_terminal_state_and_a_time_limit(double: bool, wanted: list[float]) -> None:
    # double: in state 1 the network prefers action 0 (5 > 3), which the target network values at 10: 1 + .5 * 10 = 6, and
    # Q(0, 0) = 1. Terminal: 2, and Q(1, 1) = 3. The time limit: state 3, action 1 (7 > 6): 3 + .5 * 60 = 33, Q(0, 1) = 2.
    # Without double: the maximum of the target network, in state 1: 1 + .5 * 20 = 11; the others are the same
    assert errors(with_tables(double=double)) == wanted


@pytest.mark.parametrize(
    ('delta', 'loss'),  # delta 1: |e| - .5 if |e| > 1, else e^2 / 2; None: always e^2 / 2
    [(1.0, (4.5 + 0.5 + 30.5) / 3), (None, (25 + 1 + 961) / 2 / 3)],
)
def test_step_is_the_gradient_of_the_huber_loss_by_hand(delta: float | None, loss: float) -> None:
    policy = with_tables(optimizer='sgd', learning_rate=1.0, grad_clip=None, huber_delta=delta)
    before = policy.model.table.detach().clone()
    metrics = policy.learn_mode.forward(dict(policy.collect_mode.get_train_sample(small_rollout())))
    # errors Q - target are -5, 1 and -31: with delta 1 the slopes are -1, 1 and -1, and the mean is over 3 rows
    wanted = torch.zeros(4, 2)
    wanted[0, 0], wanted[1, 1], wanted[0, 1] = (1 / 3, -1 / 3, 1 / 3) if delta else (5 / 3, -1 / 3, 31 / 3)
    torch.testing.assert_close(policy.model.table.detach() - before, wanted)
    assert metrics['loss'].item() == pytest.approx(loss)
    assert metrics['td_error'].item() == pytest.approx(37 / 3) and metrics['q'].item() == pytest.approx(2.0)
    assert all(x.dim() == 0 for x in metrics.values())


@pytest.mark.parametrize(('double', 'wanted'), [(True, [8.0, 1.5, 7.0]), (False, [9.0, 1.5, 8.0])])
def test_targets_of_quantiles_by_hand(double: bool, wanted: list[float]) -> None:
    # in every state the network has the quantiles 0, 1 of action 0 and 2, 5 of action 1, the target network 10, 24 and 30, 0
    policy = dqn(double=double, n_quantile=2)
    for model, bias in ((policy.model, [0.0, 1.0, 2.0, 5.0]), (policy.target_model, [10.0, 24.0, 30.0, 0.0])):
        with torch.no_grad():
            model.policy_head.advantage.weight.zero_()
            model.policy_head.advantage.bias.copy_(torch.tensor(bias))
    # double: the network prefers action 1 (3.5 > .5). Action 0: target 1 + .5 * (30, 0), mean 8.5, and Q = .5. Terminal: 2, and
    # Q = 3.5. The time limit: 3 + .5 * (30, 0), mean 10.5, and Q = 3.5
    # without: the target network prefers action 0 (17 > 15): means 1 + 8.5 and 3 + 8.5
    assert errors(policy) == pytest.approx(wanted)


def test_quantiles_of_the_taken_action_learn_the_two_values_of_a_coin() -> None:
    torch.manual_seed(0)
    policy = dqn(n_quantile=2, dueling=True, batch_size=None, learning_rate=3e-2, huber_delta=None)
    obs = torch.zeros(64, 1)
    batch = {
        'obs': obs,
        'action': torch.ones(64, dtype=torch.int64),
        'reward': torch.tensor([1.0, 3.0]).repeat(32),
        'discount': torch.zeros(64),
        'next_obs': obs,
    }
    found = []
    for _ in range(400):
        policy.learn_mode.forward(dict(batch))
        found.append(quantiles_of(policy.model, obs[:1])[0, 1].detach())
    # steps of one length go back and forth over the values: their mean is between
    quantiles = torch.stack(found[-100:]).mean(0)
    assert quantiles.tolist() == pytest.approx([1.0, 3.0], abs=0.02)  # the levels 1/4 and 3/4 of a coin of 1 and 3
    assert policy.model.compute_actor(obs[:1])[0, 1].item() == pytest.approx(2.0, abs=0.1)


def test_transitions_of_three_steps_stop_at_ends_and_look_past_time_limits() -> None:
    # rows 1 (terminal) and 3 (time limit) end episodes; gamma is .5
    data = {
        'obs': torch.arange(5.0).view(5, 1, 1),
        'reward': torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]).view(5, 1),
        'done': torch.tensor([0, 1, 0, 0, 0]).bool().view(5, 1),
        'traj_flag': torch.tensor([0, 1, 0, 1, 0]).bool().view(5, 1),
    }
    final = torch.tensor([[91.0], [93.0]])
    rollout = Rollout(data, torch.tensor([[5.0]]), final, torch.tensor([[1, 0], [3, 0]]))  # type: ignore[arg-type]
    found = n_step_transition(rollout, 0.5, 3)
    assert found['reward'].flatten().tolist() == [1 + 0.5 * 2, 2.0, 4 + 0.5 * 8, 8.0, 16.0]
    assert found['discount'].flatten().tolist() == [0.0, 0.0, 0.25, 0.5, 0.5]
    assert found['next_obs'].flatten().tolist() == [91.0, 91.0, 93.0, 93.0, 5.0]


def test_transitions_of_two_steps_within_an_episode_look_two_rows_on() -> None:
    flags = torch.zeros(4, 2, dtype=torch.bool)
    obs = torch.arange(8.0).view(4, 2, 1)
    data = {'obs': obs, 'reward': torch.ones(4, 2), 'done': flags, 'traj_flag': flags}
    none = torch.zeros(0, 2, dtype=torch.int64)
    rollout = Rollout(data, torch.tensor([[8.0], [9.0]]), torch.zeros(0, 1), none)  # type: ignore[arg-type]
    found = n_step_transition(rollout, 0.5, 2)
    assert found['reward'][:, 0].tolist() == [1.5, 1.5, 1.5, 1.0]
    assert found['discount'][:, 1].tolist() == [0.25, 0.25, 0.25, 0.5]
    assert found['next_obs'][..., 0].tolist() == [[4.0, 5.0], [6.0, 7.0], [8.0, 9.0], [8.0, 9.0]]


def test_priorities_in_the_buffer_are_the_errors_of_the_last_draw() -> None:
    policy = with_tables(learning_rate=1e-9)
    section = resolve_config(
        {'env': {'id': 'CartPole-v1'}, 'policy': {'type': 'dqn', 'learn': {'batch_size': None}}},
        ['buffer.alpha=0.6', 'buffer.size=4096', 'buffer.n_sample=3'],
    ).buffer
    buffer = BUFFER_REGISTRY.get('replay')(section, seed=0)
    buffer.push(policy.collect_mode.get_train_sample(small_rollout()))
    Learner(policy.learn_mode, buffer).train(0)  # all are equally likely at first: a draw of 3 has each of them
    priority = buffer.state_dict()['draws']['all']['priority']
    torch.testing.assert_close(priority, torch.tensor([5.0, 1.0, 31.0], dtype=torch.float64))


def test_weights_of_draws_scale_the_loss() -> None:
    policy, plain = with_tables(), with_tables()
    batch = dict(policy.collect_mode.get_train_sample(small_rollout()))
    weighted = policy.learn_mode.forward({**batch, 'weight': torch.tensor([0.5, 1.0, 0.0])})
    assert weighted['loss'].item() == pytest.approx((0.5 * 4.5 + 0.5) / 3)
    # Q-values 1 and 3, errors 5 and 1; the row of weight 0 is in no mean
    assert (weighted['q'].item(), weighted['td_error'].item()) == pytest.approx((2.0, 3.0))
    assert plain.learn_mode.forward(batch)['loss'].item() == pytest.approx((4.5 + 0.5 + 30.5) / 3)


def test_rows_of_weight_zero_change_nothing() -> None:
    batch = {**random_batch(), 'weight': torch.tensor([0.0, 2.0]).repeat(32)}
    garbage = clone(batch)
    for name, value in (('obs', 50.0), ('reward', torch.inf), ('next_obs', -9.0)):
        garbage[name][::2] = value
    a, b = (learned(dqn(batch_size=None), x) for x in (batch, garbage))
    assert not differing(a, b)


@pytest.mark.parametrize('n_quantile', [None, 3])
@pytest.mark.parametrize('double', [True, False])
def test_masked_actions_are_never_chosen_nor_bootstrapped_from(double: bool, n_quantile: int | None) -> None:
    space = Dict({'x': NUMBER, ACTION_MASK: MultiBinary((3,))})
    learn = dict(double=double, batch_size=None, n_quantile=n_quantile)
    policy = make_policy(space, Discrete(3), type='dqn', learn=learn, collect=dict(eps=0.9))
    with torch.no_grad():
        for head in (policy.model.policy_head, policy.target_model.policy_head):
            layer = head if n_quantile is None else head.advantage
            layer.bias[: n_quantile or 1] = 100.0  # the forbidden action looks best
    mask = torch.tensor([[False, True, True]]).expand(200, 3)
    obs = {'x': torch.zeros(200, 1), ACTION_MASK: mask}
    acted = policy.collect_mode.forward(obs, None)['action']
    assert set(acted.tolist()) == {1, 2}
    assert 0 not in policy.eval_mode.forward(obs, None)['action'].tolist()
    batch = {'obs': obs, 'action': acted, 'reward': torch.ones(200), 'discount': torch.ones(200), 'next_obs': obs}
    metrics = policy.learn_mode.forward(batch)
    assert metrics['td_error'].item() < 5  # a target that took action 0 would be 100 off


def test_logits_are_q_values_whatever_the_distribution_of_the_model() -> None:
    class Coldest(Categorical):
        def mode(self, logit: Tensor) -> Tensor:
            return logit.argmin(-1)

    network = Table()
    network.dist = Coldest(2)
    policy = dqn(network, collect={'eps': 0.0})
    states = torch.arange(4.0).unsqueeze(-1)
    assert policy.eval_mode.forward(states)['action'].tolist() == [1, 0, 1, 1]
    assert policy.collect_mode.forward(states)['action'].tolist() == [1, 0, 1, 1]


def test_eps_zero_is_greedy_and_eps_one_is_uniform() -> None:
    obs = torch.zeros(4000, 1)  # in state 0 action 1 is the better one
    assert dqn(Table(), dict(eps=0.0)).collect_mode.forward(obs, None)['action'].unique().tolist() == [1]
    share = dqn(Table(), dict(eps=1.0)).collect_mode.forward(obs, None)['action'].float().mean().item()
    assert share == pytest.approx(0.5, abs=0.03)  # 4 standard errors of 4000 draws


def test_eps_falls_with_the_env_steps_before_a_rollout() -> None:
    mode, means = dqn(Table(), dict(eps={'start': 1.0, 'end': 0.0, 'over': 1000})).collect_mode, []
    for i in range(2):
        mode.begin(i, 1000 * i)
        means.append(mode.forward(torch.zeros(1000, 1), None)['action'].float().mean().item())
    first, second = means
    assert first == pytest.approx(0.5, abs=0.07) and second == 1


def test_target_network_is_copied_every_so_many_steps() -> None:
    policy = dqn(target_freq=3, batch_size=None, learning_rate=0.1)
    start = clone(dict(policy.target_model.state_dict()))
    for n in range(1, 7):
        now = learned(policy, random_batch(seed=n))
        target = dict(policy.target_model.state_dict())
        assert bool(differing(now, target)) == (n % 3 != 0)
        assert bool(differing(start, target)) == (n >= 3)


def test_tau_moves_the_target_network_by_a_share_of_the_way() -> None:
    policy = dqn(target_freq=1, tau=0.25, batch_size=None, learning_rate=0.1)
    before = clone(dict(policy.target_model.state_dict()))
    now = learned(policy, random_batch())
    for name, x in policy.target_model.state_dict().items():
        torch.testing.assert_close(x, before[name] + 0.25 * (now[name] - before[name]))


def test_draw_is_learned_from_in_minibatches() -> None:
    whole, parts = dqn(batch_size=None), dqn(batch_size=16)
    by_hand = dqn(batch_size=None)
    batch = random_batch()
    learned(whole, batch)
    wanted = [learned(by_hand, {name: x[i : i + 16] for name, x in batch.items()}) for i in range(0, 64, 16)][-1]
    assert not differing(learned(parts, batch), wanted)
    assert whole.learn_mode.train_iter() == 1 and parts.learn_mode.train_iter() == 4


def test_critic_is_neither_run_nor_moved() -> None:
    policy = dqn(optimizer={'type': 'adamw', 'weight_decay': 0.5}, batch_size=None)
    before = clone(dict(policy.model.state_dict()))
    policy.model.compute_critic = None
    moved = {name.split('.')[0] for name in differing(before, learned(policy, random_batch()))}
    assert moved == {'actor_encoder', 'policy_head'}


def run_config(folder: Path, env: str = 'tests.policy_envs:match_env', **top: Any) -> dict[str, Any]:
    cfg = job_config(folder, env, **top)
    learn, collect = (
        dict(learning_rate=1e-2, batch_size=32, target_freq=10),
        dict(n_step=16, eps=dict(start=1.0, end=0.1, over=2000)),
    )
    cfg['policy'] |= dict(type='dqn', learn=learn, collect=collect, model=dict(hidden_sizes=[16], obs_norm=False))
    cfg['buffer'] = dict(size=512, n_sample=64, update_per_collect=4, alpha=0.6)
    return cfg


@pytest.mark.slow
def test_resumed_run_is_bit_equal_to_one_that_went_straight_on(tmp_path: Path) -> None:
    """The checkpoint lies between two copies of the target network, with priorities written and eps still falling."""
    cfg = resolve_config(run_config(tmp_path, 'tests.envs:limit_env', max_env_step=512))
    with SerialJob(cfg) as job:
        for i in range(6):
            if i == 3:
                job.reset_env()  # a resume starts new episodes
            job.iteration()
        straight, train_iter = job.state_dict(), job.train_iter
    with SerialJob(cfg) as job:
        for _ in range(3):
            job.iteration()
        job.save()
        run_dir = job.run_dir
    with SerialJob(cfg, checkpoint=load_checkpoint(run_dir)) as job:
        for _ in range(3):
            job.iteration()
        assert job.train_iter == train_iter == 6 * 8  # 4 draws of 2 minibatches after each rollout
        for key in ('policy', 'buffer'):
            assert not differing(job.state_dict()[key], straight[key])


def with_statistics() -> tuple[Policy, RunningMeanStd]:
    """A policy that normalises observations, and their statistics."""
    policy = make_policy(NUMBER, TWO_ACTIONS, type='dqn', model={'obs_norm': True}, collect={'n_step': 3})
    (statistics,) = (each for each in policy.model.modules() if isinstance(each, RunningMeanStd))
    return policy, statistics


def test_observation_counts_once_in_the_statistics_however_often_it_is_drawn() -> None:
    policy, statistics = with_statistics()
    batch: Any = dict(policy.collect_mode.get_train_sample(small_rollout()))
    for rows in ([0, 1, 2], [1, 1, 1], [1, 1, 0]):  # as in draws by priority
        policy.learn_mode.forward({name: column[rows] for name, column in batch.items()})
    policy.collect_mode.get_train_sample(small_rollout())
    # twice the observations 0, 1 and 0: mean 1/3, variance 1/3 - 1/9
    assert statistics.count == 6
    assert statistics.mean.item() == pytest.approx(1 / 3) and statistics.var.item() == pytest.approx(2 / 9)


def test_row_without_weight_is_not_in_the_statistics() -> None:
    (policy, statistics), rollout = with_statistics(), small_rollout()
    rollout.data['is_reset'] = torch.tensor([[False], [True], [False]])
    policy.collect_mode.get_train_sample(rollout)
    assert statistics.count == 2 and statistics.mean == 0
