"""Off-policy variants: PPO and PPG that learn from draws of a buffer; staleness of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.buffer.samples import multi, replay
from tests.learning import Learner
from tests.policy.updates import N_STEP, OBS, N, parameters, samples_of
from tests.policy_envs import (
    ONE_NUMBER,
    TWO_ACTIONS,
    clone,
    differing,
    joined,
    make_policy,
    rows,
    run_config,
)
from zoo.core.errors import UserError
from zoo.pipeline import serial_pipeline
from zoo.policy import PPOPolicy
from zoo.policy.base import Policy


def make(name: str, space: Any = TWO_ACTIONS, seed: int = 0, **learn: Any) -> Policy:
    """A policy with one epoch of minibatches of N and every option off; `learn` overrides this."""
    phases = dict(aux_freq=4, aux_train_epoch=1, aux_batch_size=N) if 'ppg' in name else dict(epoch_per_collect=1)
    base = dict(batch_size=N, adv_norm='off', grad_clip=None, learning_rate=1e-2, **phases)
    return make_policy(
        OBS,
        space,
        type=name,
        seed=seed,
        learn={**base, **learn},
        collect=dict(n_step=N_STEP, discount_factor=0.9, gae_lambda=0.8),
    )


@pytest.mark.parametrize(('on_policy', 'space'), [('ppo', TWO_ACTIONS), ('ppg', ONE_NUMBER)])
def test_draw_of_a_whole_fresh_rollout_is_learned_from_as_on_policy(on_policy: str, space: Any) -> None:
    """The draw is a permutation of the rollout, so only the order of sums differs."""
    learn = dict(aux_batch_size=4 * N) if on_policy == 'ppg' else {}
    one, other = make(on_policy, space, **learn), make(f'{on_policy}_offpolicy', space, **learn)
    draw = dict(n_sample=N, max_staleness=0)
    buffer: Any = multi(size=3 * N, policy=draw, value=draw) if on_policy == 'ppg' else replay(size=3 * N, **draw)
    learner = Learner(other.learn_mode, buffer)
    for seed in range(4):
        samples = samples_of(one, seed)
        metrics = one.learn_mode.forward(samples)
        buffer.push(samples)
        drawn = learner.train(0)
        assert drawn.keys() - metrics.keys() == (
            {'staleness'} if on_policy == 'ppo' else {'policy_staleness', 'value_staleness'}
        )
        for name in metrics.keys() - {'aux_kl_before'}:
            torch.testing.assert_close(drawn[name], metrics[name], rtol=1e-3, atol=1e-5)
    assert ('aux_kl_before' in metrics) == (on_policy == 'ppg') and one.learn_mode.train_iter() == learner.train_iter
    torch.testing.assert_close(parameters(other), parameters(one), rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize(('name', 'space'), [('ppo_offpolicy', ONE_NUMBER), ('ppg_offpolicy', TWO_ACTIONS)])
def test_ratio_is_to_the_policy_that_acted(name: str, space: Any) -> None:
    """The ratio is 1 for fresh samples; for older ones it is relative to the logits stored at collection."""
    policy = make(name, space, learning_rate=0.05)
    draw = dict(n_sample=N, max_staleness=0)
    kwargs: Any = dict(policy=draw, value=draw) if 'ppg' in name else draw
    fresh, stale = (multi if 'ppg' in name else replay)(size=2 * N, **kwargs), replay(size=N, n_sample=N)
    first = samples_of(policy)
    first['adv'] = first['adv'].abs() + 1  # so that the policy moves
    acted = first['logit'].clone()
    for seed in range(3):
        samples = samples_of(policy, seed)
        fresh.push(samples)
        metrics = policy.learn_mode.forward(next(iter(fresh.batches())))
        assert metrics['approx_kl'].abs().item() < 1e-6 and metrics['clipfrac'].item() == 0
    stale.push(first)
    batch = next(iter(stale.batches()))
    with torch.no_grad():
        now = policy.model.compute_actor(batch['obs'])

    def log_prob(logit: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        if space is TWO_ACTIONS:
            return torch.distributions.Categorical(logits=logit).log_prob(action)
        return torch.distributions.Normal(*logit.chunk(2, -1)).log_prob(action).sum(-1)

    want = log_prob(acted, first['action']).mean() - log_prob(now, batch['action']).mean()
    metrics = policy.learn_mode.forward(batch)
    assert want.abs() > 1e-3
    torch.testing.assert_close(metrics['approx_kl'], want, rtol=1e-3, atol=1e-6)


# --- staleness ---


def test_staleness_is_the_mean_age_in_rollouts() -> None:
    policy = make('ppo_offpolicy')
    buffer = replay(size=3 * N, n_sample=3 * N)
    learner = Learner(policy.learn_mode, buffer)
    for seed in range(3):
        buffer.push(samples_of(policy, seed))
        metrics = learner.train(0)
        # nothing is drawn before there are 3 N samples; then all are drawn, of ages 2, 1 and 0
        assert metrics == {} if seed < 2 else metrics['staleness'].item() == 1
    buffer.push(samples_of(policy, 3))  # replaces the oldest: ages 2, 1, 0 again
    assert learner.train(0)['staleness'].item() == 1


def test_staleness_of_both_parts_is_that_of_their_own_draws() -> None:
    policy = make('ppg_offpolicy')
    buffer = multi(size=3 * N, policy=dict(n_sample=N, max_staleness=0), value=dict(n_sample=3 * N))
    for seed in range(3):
        buffer.push(samples_of(policy, seed))
    metrics = Learner(policy.learn_mode, buffer).train(0)
    assert (metrics['policy_staleness'].item(), metrics['value_staleness'].item()) == (0, 1)


@pytest.mark.parametrize('name', ['ppo_offpolicy', 'ppg_offpolicy'])
def test_staleness_is_zero_where_no_samples_are_kept(name: str) -> None:
    policy = make(name)
    metrics = policy.learn_mode.forward(samples_of(policy))
    assert metrics.keys() == set(policy.learn_mode.monitor_vars())
    assert [value.item() for key, value in metrics.items() if 'staleness' in key] == [0] * (1 + (name[2] == 'g'))


# --- separate draws of policy and value ---


def steps(policy: Policy) -> dict[str, int]:
    return {name: int(optimizer.step_count) for name, optimizer in policy.optimizers.items()}


def test_both_parts_have_their_own_draws_and_reuse() -> None:
    """A rollout of N = 32: the policy learns once from each sample, the critic three times, from minibatches of 16."""
    policy = make('ppg_offpolicy', batch_size=16, critic_epoch_per_collect=2, aux_freq=2, aux_batch_size=8)
    buffer = multi(
        size=2 * N, policy=dict(n_sample=32, max_use=1, max_staleness=0), value=dict(n_sample=16, update_per_collect=6)
    )
    learner = Learner(policy.learn_mode, buffer)
    seen: list[dict[str, Any]] = []
    forward = policy.learn_mode.forward
    learner.mode = policy.learn_mode._replace(forward=lambda batch: (seen.append(batch), forward(batch))[1])
    for rollout in range(1, 5):
        buffer.push(samples_of(policy, rollout))
        metrics = learner.train(0)
        # 2 actor steps; critic: 6 draws x 2 epochs x 1 minibatch; after every second rollout 64 / 8 auxiliary steps of both
        aux = 8 * (rollout // 2)
        assert steps(policy) == {'actor': 2 * rollout, 'critic': 12 * rollout, 'aux_actor': aux, 'aux_critic': aux}
        assert learner.train_iter == 14 * rollout + aux
        assert ('auxiliary_loss' in metrics) == (rollout % 2 == 0)
        assert metrics['n_epoch'].item() == 1  # of the one policy phase; five batches trained the critic only
    assert [set(batch) for batch in seen] == 4 * [{'policy', 'value'}, *5 * [{'value'}]]
    assert [len(batch['value']['adv']) for batch in seen] == [16] * 24 and len(seen[0]['policy']['adv']) == 32


@pytest.mark.parametrize(('early', 'late'), [('value', 'policy'), ('policy', 'value')])
def test_rounds_in_which_only_one_part_has_draws_are_trained_on(early: str, late: str) -> None:
    """One part needs four rollouts for its draw, the other needs one."""
    policy = make('ppg_offpolicy', aux_freq=99)
    buffer = multi(size=4 * N, **{early: dict(n_sample=N), late: dict(n_sample=4 * N)})
    learner = Learner(policy.learn_mode, buffer)
    optimizer = {'policy': 'actor', 'value': 'critic'}
    for rollout in range(1, 5):
        before = parameters(policy)
        buffer.push(samples_of(policy, rollout))
        metrics = learner.train(0)
        assert steps(policy)[optimizer[early]] == (rollout if rollout < 4 else 4)
        assert steps(policy)[optimizer[late]] == (0 if rollout < 4 else 4)
        assert ({'policy_loss', 'value_loss'} <= metrics.keys()) == (rollout == 4)
        assert differing(before, parameters(policy))


def test_batch_sizes_of_both_parts_are_announced() -> None:
    assert make('ppg_offpolicy', batch_size=16).learn_mode.get_batch_size() == {'policy': 16, 'value': 16}
    assert make('ppo_offpolicy', batch_size=16).learn_mode.get_batch_size() == 16


def test_memory_keeps_the_draws_of_the_policy_and_their_returns_of_collection() -> None:
    policy = make('ppg_offpolicy', batch_size=16, aux_freq=3)
    buffer = multi(size=2 * N, policy=dict(n_sample=16, update_per_collect=2), value=dict(n_sample=16))
    learner, seen = Learner(policy.learn_mode, buffer), []
    forward = policy.learn_mode.forward
    learner.mode = policy.learn_mode._replace(
        forward=lambda batch: (seen.append(clone(batch['policy'])), forward(batch))[1]
    )
    buffer.push(samples_of(policy))
    learner.train(0)
    kept, drawn = policy.memory_state_dict(), joined(seen)
    assert len(seen) == 2 and torch.equal(kept['obs'], drawn['obs']) and torch.equal(kept['return_'], drawn['return_'])


# --- one pipeline ---


@pytest.mark.slow
@pytest.mark.parametrize('name', ['ppo_offpolicy', 'ppg_offpolicy'])
def test_resume_with_a_column_more_drops_what_the_buffer_kept(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learn = {'value_norm': True}
    first = serial_pipeline(run_config(tmp_path, name, 'tests.policy_envs:match_env', policy={'learn': learn}))
    change = ['policy.learn.value_loss=clip']  # it needs the critic's outputs at collection
    more = serial_pipeline(resume=first.run_dir, max_env_step=first.env_step + 256, overrides=change)
    assert 'the replay buffer begins empty' in caplog.text and more.train_iter > first.train_iter


@pytest.mark.slow
@pytest.mark.parametrize('name', ['ppg', 'ppg_offpolicy'])
def test_resume_with_sequences_of_another_length_begins_the_auxiliary_phase_again(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = dict(learn=dict(aux_freq=3, sequence=dict(len=8)), model=dict(recurrent={}))
    first = serial_pipeline(run_config(tmp_path, name, 'tests.policy_envs:match_env', policy=policy))
    change = ['policy.learn.sequence.len=4']
    more = serial_pipeline(resume=first.run_dir, max_env_step=512, overrides=change)
    assert caplog.text.count('the auxiliary memory begins empty') == 1
    # 4 rollouts of 1 or 2 policy phases; an auxiliary phase after every 3 policy phases, as in a new run
    n_aux = sum('learn/aux_kl_after' in row and row['collect/iter'] > 4 for row in rows(more.run_dir))
    assert n_aux == (1 if name == 'ppg' else 2)


class Refuses(PPOPolicy):
    """Raises an error in the third rollout, in the method that `refuses_in` names."""

    refuses_in = ''
    n_rollout = 0

    def _process_transition(self, *args: Any) -> Any:
        self.n_rollout += 1
        self._refuse('_process_transition')
        return super()._process_transition(*args)

    def _get_train_sample(self, rollout: Any) -> Any:
        self._refuse('_get_train_sample')
        return super()._get_train_sample(rollout)

    def _refuse(self, where: str) -> None:
        if where == self.refuses_in and self.n_rollout == 3:
            raise UserError('no samples')


@pytest.mark.parametrize('where', ['_process_transition', '_get_train_sample'])
def test_a_half_iteration_is_not_saved(where: str, tmp_path: Path) -> None:
    cfg = run_config(tmp_path, 'ppo') | {'checkpoint': {'freq': 1}}
    like = serial_pipeline(cfg, max_train_iter=1).policy
    policy = Refuses(like.cfg, like.obs_space, like.action_space)
    policy.refuses_in = where
    with pytest.raises(UserError, match='no samples'):
        serial_pipeline(cfg, policy=policy)
    newest = max(tmp_path.glob('**/step_*.safetensors'), key=lambda path: path.stat().st_mtime)
    assert int(newest.stem.removeprefix('step_')) == 128  # after the second rollout


@pytest.mark.parametrize(
    ('name', 'env_id'),
    [
        ('ppo', 'tests.policy_envs:match_env'),
        ('ppg', 'tests.policy_envs:aim_env'),
        ('ppo_offpolicy', 'tests.policy_envs:aim_env'),
        ('ppg_offpolicy', 'tests.envs:Limit-v0'),
    ],
)
def test_one_pipeline_runs_all_policies(name: str, env_id: str, tmp_path: Path) -> None:
    result = serial_pipeline(run_config(tmp_path, name, env_id))
    lines = [row for row in rows(result.run_dir) if 'collect/iter' in row]
    logged = {key.removeprefix('learn/') for row in lines for key in row}
    assert len(lines) == 4 and set(result.policy.learn_mode.monitor_vars()) <= logged
    # 4 rollouts, 2 minibatches an epoch. Epochs a rollout: ppo 4, ppo_offpolicy 1 for each of 2 draws, ppg 1 policy + 1 value,
    # ppg_offpolicy that for each of 2 draws. Auxiliary phase after 2 rollouts (or draws): 2 epochs of 128 / 64 minibatches
    want = {'ppo': 4 * 8, 'ppo_offpolicy': 4 * 4, 'ppg': 4 * 4 + 2 * 4, 'ppg_offpolicy': 4 * 8 + 4 * 4}
    assert result.train_iter == want[name]
    assert ('auxiliary_loss' in logged) == ('ppg' in name)
    assert ('staleness' in ''.join(logged)) == ('off' in name)
