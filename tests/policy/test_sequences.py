"""Models with a recurrent state: carried through acting, reset at each episode, and trained on sequences.

The observation of the env is the number of steps since its episode began, so the observation determines the right state.
The right results of training are computed here by plain loops over envs and time, in float64.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.buffer.samples import replay
from tests.policy.networks import Line
from tests.policy.staggered import MODES, OBS, Staggered, close
from tests.policy_envs import TWO_ACTIONS, job_config
from zoo import serial_pipeline
from zoo.core.data import Rollout
from zoo.core.errors import UserError
from zoo.core.seeding import stream
from zoo.env import EnvConfig, make_env_groups
from zoo.policy import PPGPolicy, PPOOffPolicy, PPOPolicy
from zoo.policy.sequences import rows_of, run_model
from zoo.rl_utils import ppg_data, ppg_joint_error, ppo_data, ppo_error
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.run.config import resolve_policy
from zoo.worker.collector import Collector

GAMMA, LAMBDA = 0.9, 0.8


class Elman(nn.Module):
    """Two Elman networks (actor, critic) in float64 with one unit each: h' = tanh(w h + u x); aux value from the actor's h."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Parameter(torch.tensor([0.9, 0.2, 1.5, -0.7], dtype=torch.float64))  # w, u, logit 0, logit 1
        self.critic = nn.Parameter(torch.tensor([0.7, 0.3, 2.0], dtype=torch.float64))  # w, u, value
        self.aux = nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
        self.joint = False

    def critic_parameters(self) -> Any:
        return [('critic', self.critic)]

    def initial_state(self, n_env: int) -> dict[str, Tensor]:
        zeros = torch.zeros(n_env, dtype=torch.float64)
        return {'actor': zeros, 'critic': zeros.clone()}

    def cell(self, part: str, x: Tensor, h: Tensor) -> Tensor:
        weight = getattr(self, part)
        return torch.tanh(weight[0] * h + weight[1] * x)

    def _run(self, part: str, obs: Tensor, state: Any, first: Tensor | None) -> tuple[Tensor, Any]:
        x, h = obs.double().squeeze(-1), state[part]
        if first is None:
            found = h = self.cell(part, x, h)
        else:
            steps = []
            for t in range(len(x)):
                h = self.cell(part, x[t], torch.where(first[t], 0.0, h))
                steps.append(h)
            found = torch.stack(steps)
        return found, {**state, part: h}

    def compute_actor(self, obs: Tensor, state: Any, first: Tensor | None = None) -> Any:
        h, state = self._run('actor', obs, state, first)
        return h.unsqueeze(-1) * self.actor[2:], state

    def compute_critic(self, obs: Tensor, state: Any, first: Tensor | None = None) -> Any:
        h, state = self._run('critic', obs, state, first)
        return h * self.critic[2], state

    def compute_actor_critic(self, obs: Tensor, state: Any, first: Tensor | None = None) -> dict[str, Any]:
        logit, state = self.compute_actor(obs, state, first)
        value, state = self.compute_critic(obs, state, first)
        return {'logit': logit, 'value': value, 'state': state}

    def compute_aux(self, obs: Tensor, state: Any, first: Tensor | None = None) -> dict[str, Any]:
        h, _ = self._run('actor', obs, state, first)
        found = self.compute_actor_critic(obs, state, first)
        return {**found, 'aux_value': h * self.aux[0]}


def make(
    mode: str, n_step: int, n_group: int = 1, cls: Any = PPOPolicy, model: Any = None, **sections: Any
) -> tuple[Any, Collector]:
    """A policy over Elman, and its collector of four envs with episodes of 3, 4, 5 and 6 steps."""
    Staggered.n_made = 0
    env = EnvConfig(id=Staggered, collector_env_num=4, collector_group_num=n_group, **MODES[mode])
    groups = make_env_groups(env)
    collect = dict(n_step=n_step, discount_factor=GAMMA, gae_lambda=LAMBDA)
    kind = {PPOPolicy: 'ppo', PPGPolicy: 'ppg', PPOOffPolicy: 'ppo_offpolicy'}[cls]
    cfg = resolve_policy(dict(type=kind, collect=collect, **sections))
    policy = cls(cfg, OBS, TWO_ACTIONS, model=model or Elman())
    collector = Collector(groups, policy.collect_mode)
    collector.reset(stream(0, 'test'))
    return policy, collector


# ---- acting


def hidden(model: Elman, part: str, episode: list[float]) -> list[Tensor]:
    """The states after each step of an episode, by hand."""
    h, found = torch.zeros((), dtype=torch.float64), []
    for x in episode:
        h = model.cell(part, torch.tensor(x, dtype=torch.float64), h)
        found.append(h)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(('mode', 'n_group'), [(mode, 1 + i % 2) for i, mode in enumerate(MODES)])
def test_acting_carries_the_state_and_starts_again_with_each_episode(mode: str, n_group: int) -> None:
    """Across rollouts too: an episode may end in the middle of a rollout or at its last row."""
    policy, collector = make(mode, 8, n_group, learn=dict(sequence=dict(len=8)))
    after = {part: torch.stack(hidden(policy.model, part, list(range(20)))) for part in ('actor', 'critic')}
    n_begin = 0
    for _ in range(6):
        data = collector.collect().data
        steps = data['obs'][..., 0].long()
        for part in ('actor', 'critic'):
            torch.testing.assert_close(data['state'][part], after[part][steps])
        torch.testing.assert_close(data['logit'], after['actor'][steps].unsqueeze(-1) * policy.model.actor[2:])
        torch.testing.assert_close(data['value'], after['critic'][steps] * policy.model.critic[2])
        n_begin += int((steps == 0).sum())
    assert n_begin > 25  # 48 steps of 4 envs with episodes of 3 to 7 rows
    close(collector)


@pytest.mark.parametrize('mode', ['same_step', 'next_step', 'disabled'])
def test_rollout_that_ends_with_an_episode_is_followed_by_a_new_state(mode: str) -> None:
    """The first env has episodes of 3 steps; with next_step the reset takes one more row."""
    n_row = 4 if mode == 'next_step' else 3
    _, collector = make(mode, n_row, learn=dict(sequence=dict(len=n_row), batch_size=n_row * 4))
    for _ in range(3):
        assert collector.collect().state['actor'][0] == 0
    close(collector)


def test_reset_of_the_envs_is_one_of_the_state() -> None:
    _, collector = make('same_step', 2, learn=dict(sequence=dict(len=2)))
    assert (collector.collect().state['actor'] == 0).all()
    assert (collector.collect().state['actor'] != 0).all()
    collector.reset(stream(1, 'test'))
    assert (collector.collect().state['actor'] == 0).all()
    close(collector)


def test_session_keeps_the_state_and_act_does_not() -> None:
    policy, collector = make('same_step', 2, learn=dict(sequence=dict(len=2)))
    with torch.no_grad():
        policy.model.actor.copy_(torch.tensor([1.0, 1.0, 1.0, 0.5]))  # logits h, h / 2: the sign of h decides
    session = policy.session()
    big, small = np.full(1, 3.0, np.float32), np.full(1, -0.1, np.float32)
    assert policy.act(big) == 0 and policy.act(small) == 1
    assert session.act(big) == 0 and session.act(small) == 0  # the earlier observation outweighs the new one
    assert session.act(small, begins=True) == 1
    assert session.act(big, begins=True) == 0
    session.reset()
    assert session.act(np.stack([small, big])).tolist() == [1, 0]
    assert session.act(np.stack([small, small]), begins=[False, False]).tolist() == [1, 0]
    with pytest.raises(UserError, match=r'begins is \[True\] but must be one bool, or one for each of the 2 envs'):
        session.act(np.stack([small, small]), begins=[True])
    with pytest.raises(UserError, match='act got 3 observations but the session is of 2 envs'):
        session.act(np.zeros((3, 1), np.float32))
    close(collector)


# ---- samples


def by_hand(model: Elman, rollout: Rollout, before: list[dict[str, Tensor]], length: int) -> dict[str, Tensor]:
    """logit, value, adv, return_ of all rows [T, B], by loops; gradients stop at every `length`-th row.

    before: the state of each env before row 0. After the last row of an episode of k steps comes observation k.
    """
    obs, data = rollout.data['obs'][..., 0], rollout.data
    n_step, n_env = obs.shape
    found: dict[str, list[Any]] = {name: [] for name in ('logit', 'value', 'adv')}
    for b in range(n_env):
        h = dict(before[b])
        value, next_value, logit = [], [], []
        for t in range(n_step):
            if obs[t, b] == 0:
                h = {part: torch.zeros((), dtype=torch.float64) for part in h}
            if t % length == 0:
                h = {part: x.detach() for part, x in h.items()}
            h = {part: model.cell(part, obs[t, b].double(), x) for part, x in h.items()}
            value.append(h['critic'] * model.critic[2])
            logit.append(h['actor'] * model.actor[2:])
            following = model.cell('critic', obs[t, b].double() + 1, h['critic'])  # each env counts its steps
            next_value.append((following * model.critic[2]).detach())
        adv, trace = [], torch.zeros((), dtype=torch.float64)
        for t in reversed(range(n_step)):
            delta = data['reward'][t, b].double() + GAMMA * next_value[t] - value[t].detach()
            trace = delta + (0.0 if data['traj_flag'][t, b] else GAMMA * LAMBDA) * trace
            adv.append(trace)
        found['adv'].append(torch.stack(adv[::-1]))
        found['value'].append(torch.stack(value))
        found['logit'].append(torch.stack(logit))
    stacked = {name: torch.stack(columns, 1) for name, columns in found.items()}
    return {**stacked, 'return_': stacked['adv'] + stacked['value'].detach()}


def states_of(rollout: Rollout) -> list[dict[str, Tensor]]:
    return [{part: x[b].clone() for part, x in rollout.state.items()} for b in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('mode', 'length'),
    [('same_step', 1), ('next_step', 8), ('disabled', 24), ('async same_step', 8), ('next_step', 24)],
)
def test_update_on_sequences_is_that_of_a_loop_over_time(mode: str, length: int) -> None:
    """Gradients, values and advantages to 1e-6; episodes end inside sequences and are truncated by time limits."""
    n_step = 24
    learn = dict(batch_size=n_step * 4, epoch_per_collect=1, adv_norm='off', grad_clip=None)
    learn |= dict(entropy_weight=0.01, clip_ratio=0.2)
    policy, collector = make(mode, n_step, learn=dict(**learn, sequence=dict(len=length)))
    collector.collect()  # the next one begins in the middle of episodes
    rollout = collector.collect()
    before, model = states_of(rollout), policy.model
    want = by_hand(model, rollout, before, length)
    data = rollout.data
    weight = torch.ones(n_step, 4, dtype=torch.float64)
    if 'is_reset' in data:
        weight = (~data['is_reset']).double() * (~data['is_reset']).numel() / (~data['is_reset']).sum()
    flat = [want['logit'], data['logit'], data['action'], want['value'], data['value'], want['adv'], want['return_']]
    columns = [x.flatten(0, 1) for x in (*flat, weight)]
    loss, _ = ppo_error(ppo_data(*columns), use_value_clip=False)
    (loss.policy_loss + 0.5 * loss.value_loss - 0.01 * loss.entropy_loss).backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    samples = policy.collect_mode.get_train_sample(rollout)
    assert samples['adv'].shape == (n_step * 4 // length, length)
    got = {name: x.flatten() for name, x in rows_of(samples).items() if name in ('adv', 'return_', 'value')}
    for name, x in got.items():  # sequences are ordered by start, then by env
        hand = want[name].unflatten(0, (-1, length)).transpose(1, 2).flatten()
        valid = samples['weight'].flatten() > 0 if 'weight' in samples else torch.ones_like(x, dtype=torch.bool)
        torch.testing.assert_close(x[valid].double(), hand[valid].detach(), rtol=1e-6, atol=1e-6)
    metrics = policy.learn_mode.forward(samples)
    assert metrics['approx_kl'].abs() < 1e-6 and metrics['clipfrac'] == 0
    optimizer = policy.optimizers['all']
    for name, x in optimizer.cut(optimizer.grad).items():
        if name in grads:
            torch.testing.assert_close(x, grads[name], rtol=1e-6, atol=1e-6)
    close(collector)


def test_every_row_is_in_one_sequence() -> None:
    policy, collector = make('same_step', 24, learn=dict(sequence=dict(len=8), batch_size=32, epoch_per_collect=1))
    collector.collect()
    rollout = collector.collect()
    number = torch.arange(96.0).view(24, 4)
    seen = []
    rollout.data['number'] = number
    samples = policy.collect_mode.get_train_sample(rollout)
    for row in samples['number']:
        assert torch.equal(row, row[0] + 4 * torch.arange(8.0))  # consecutive steps of one env
        seen += row.tolist()
    assert sorted(seen) == list(range(96))
    close(collector)


class Normed(Elman):
    """Elman with running statistics of the observations, which it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = RunningMeanStd((1,))

    def update_normalizer(self, obs: Tensor, weight: Tensor | None = None) -> None:
        self.seen.update(obs, weight)


@pytest.mark.slow
@pytest.mark.parametrize(('mode', 'overlap'), [('same_step', 'half'), ('next_step', 'maximum')])
def test_statistics_count_every_row_once_though_sequences_overlap(mode: str, overlap: str) -> None:
    learn = dict(sequence=dict(len=8, overlap=overlap, burn_in=3), batch_size=32, value_norm=True)
    policy, collector = make(mode, 24, learn=learn, model=Normed())
    collector.collect()
    rollout = collector.collect()
    valid = ~rollout.data['is_reset'] if 'is_reset' in rollout.data else torch.ones(24, 4, dtype=torch.bool)
    returns = by_hand(Elman(), rollout, states_of(rollout), 24)['return_']
    policy.learn_mode.forward(policy.collect_mode.get_train_sample(rollout))
    for statistics, x in ((policy.normalizers['value'], returns), (policy.model.seen, rollout.data['obs'][..., 0])):
        rows = x[valid].detach().double()
        assert statistics.count == valid.sum()
        torch.testing.assert_close(statistics.mean.squeeze(), rows.mean(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(statistics.var.squeeze(), rows.var(correction=0), rtol=1e-5, atol=1e-5)
    close(collector)


# 24 steps have 3 sequences of 8 (none), 5 (half) or 17 (maximum), in 4 envs; 4 passes in minibatches of 32 samples
@pytest.mark.slow
@pytest.mark.parametrize('overlap, n_step', [('none', 12), ('half', 20), ('maximum', 68)])
def test_length_of_a_run_in_gradient_steps_knows_the_overlap(overlap: str, n_step: int) -> None:
    policy, collector = make('same_step', 24, learn=dict(sequence=dict(len=8, overlap=overlap), batch_size=32))
    policy.learn_mode.forward(policy.collect_mode.get_train_sample(collector.collect()))
    assert policy.learn_mode.train_iter() == n_step == pytest.approx(24 * 4 * policy.steps_per_env_step())
    close(collector)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('mode', 'burn_in', 'overlap', 'n_sequence'),
    [
        ('same_step', 0, 'none', 3),
        ('same_step', 3, 'maximum', 17),
        ('next_step', 3, 'half', 5),
        ('next_step', 0, 'maximum', 17),
        ('disabled', 3, 'none', 3),
        ('async same_step', 0, 'half', 5),
    ],
)
def test_ratio_is_one_before_the_first_step(mode: str, burn_in: int, overlap: str, n_sequence: int) -> None:
    """For any overlap and burn-in: with unchanged weights the states of each row are those used for acting."""
    sequence = dict(len=8, overlap=overlap, burn_in=burn_in)
    policy, collector = make(mode, 24, learn=dict(sequence=sequence, batch_size=32))
    collector.collect()
    rollout = collector.collect()
    samples = policy.collect_mode.get_train_sample(rollout)
    assert samples['obs'].shape == (n_sequence * 4, 8 + burn_in, 1) and samples['adv'].shape == (n_sequence * 4, 8)
    found = run_model(policy.model, 'compute_actor_critic', samples)
    rows = rows_of(samples)
    torch.testing.assert_close(found['logit'], rows['logit'], rtol=0, atol=1e-9)
    torch.testing.assert_close(found['value'], rows['value'], rtol=0, atol=1e-9)
    close(collector)


def test_burn_in_brings_an_old_state_up_to_date() -> None:
    """The stored state gets an error of .1; each of 4 cell steps (3 of burn-in) multiplies it by at most w = .7."""
    policy, collector = make('same_step', 24, learn=dict(sequence=dict(len=8, burn_in=3), batch_size=32))
    collector.collect()
    samples = policy.collect_mode.get_train_sample(collector.collect())
    right = run_model(policy.model, 'compute_critic', samples)['value'].view(12, 8)
    samples['state']['critic'] += 0.1
    wrong = run_model(policy.model, 'compute_critic', samples)['value'].view(12, 8)
    error = (wrong - right).abs()[:, 0]
    is_first = samples['is_first'][:, :4].any(1) | (samples['obs'][:, :4, 0] == 0).any(1)
    assert (error[~samples['is_burned'] & ~is_first] > 1e-4).all()
    assert (error[samples['is_burned']] < 0.1 * 0.7**4 * 2).all()  # 2: the weight of the value
    close(collector)


@pytest.mark.parametrize(
    ('method', 'parts'),
    [('compute_actor', {'actor'}), ('compute_critic', {'critic'}), ('compute_actor_critic', {'actor', 'critic'})],
)
def test_burn_in_runs_no_other_network_than_the_sequence_does(
    method: str, parts: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, collector = make('same_step', 24, learn=dict(sequence=dict(len=8, burn_in=3), batch_size=32))
    samples = policy.collect_mode.get_train_sample(collector.collect())
    run: list[str] = []
    cell = Elman.cell
    monkeypatch.setattr(Elman, 'cell', lambda self, part, x, h: run.append(part) or cell(self, part, x, h))
    run_model(policy.model, method, samples)
    assert set(run) == parts and len(run) == (3 + 8) * len(parts)
    close(collector)


class Forgetful(Line):
    """A model that declares that it has no state."""

    initial_state = None


def test_model_whose_initial_state_is_none_has_no_state(tmp_path: Path) -> None:
    result = serial_pipeline(job_config(tmp_path, max_env_step=128), model=Forgetful())
    assert result.train_iter > 0 and result.policy.sequence_len == 1
    assert result.policy.act(np.zeros(1, np.float32)) in (0, 1)


# ---- policies


def test_ppg_trains_its_three_phases_on_sequences() -> None:
    """The gradient of the auxiliary step is that of a loop over time; the KL before the first step is 0."""
    learn: dict[str, Any] = dict(batch_size=96, adv_norm='off', value_norm=False, grad_clip=None, learning_rate=1e-9)
    learn |= dict(aux_freq=1, aux_batch_size=96, aux_train_epoch=1)
    policy, collector = make('same_step', 24, cls=PPGPolicy, learn=dict(**learn, sequence=dict(len=8)))
    collector.collect()
    rollout = collector.collect()
    want, model = by_hand(policy.model, rollout, states_of(rollout), 8), policy.model
    h = want['logit'][..., 0] / model.actor[2]
    aux_value = h * model.aux[0]
    flat = [x.flatten(0, 1) for x in (want['logit'], want['logit'].detach())]
    values = [x.flatten() for x in (aux_value, want['return_'], want['return_'])]
    loss = ppg_joint_error(ppg_data(*flat, None, *values), use_value_clip=False)
    value_loss = 0.5 * (want['value'].flatten() - values[2]).square().mean()
    (loss.auxiliary_loss + loss.behavioral_cloning_loss + value_loss).backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    metrics = policy.learn_mode.forward(policy.collect_mode.get_train_sample(rollout))
    assert policy.learn_mode.train_iter() == 3 and metrics['approx_kl'].abs() < 1e-6
    assert metrics['aux_kl_before'].abs() < 1e-9 and metrics['aux_kl_after'] < 1e-9
    for group in ('aux_actor', 'aux_critic'):
        optimizer = policy.optimizers[group]
        for name, x in optimizer.cut(optimizer.grad).items():
            torch.testing.assert_close(x, grads[name], rtol=1e-5, atol=1e-6)
    close(collector)


def test_sequences_are_drawn_whole_from_a_replay_buffer() -> None:
    learn = dict(batch_size=16, epoch_per_collect=1, learning_rate=1e-2, sequence=dict(len=4, burn_in=2))
    policy, collector = make('same_step', 12, cls=PPOOffPolicy, learn=learn)
    buffer = replay(size=24, n_sample=8, update_per_collect=2)  # counted in sequences
    n_draw = 0
    for _ in range(4):
        buffer.push(policy.collect_mode.get_train_sample(collector.collect()))
        for batch in buffer.batches():
            n_draw += 1
            steps = batch['obs'][:, 2:, 0]
            assert batch['obs'].shape == (8, 6, 1) and batch['state']['actor'].shape == (8,)
            assert ((steps[:, 1:] == steps[:, :-1] + 1) | (steps[:, 1:] == 0)).all()  # consecutive, or a new episode
            policy.learn_mode.forward(batch)
    assert n_draw == 4 * 2 and policy.learn_mode.train_iter() == 4 * 2 * 2  # 8 sequences of 4 in minibatches of 16
    close(collector)
