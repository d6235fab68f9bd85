"""Bootstrapping and samples. The env gives reward 1 and ends after 5 steps; it observes the number of steps taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.policy.hand import EPISODE, MODES, OBS, collect, hand_policy
from tests.policy_envs import TWO_ACTIONS, differing, job_config, make_policy, take
from zoo.core.data import Rollout
from zoo.core.spaces import Discrete
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob

VALUE = [10.0, 11.0, 12.0, 13.0, 14.0]
# where the rollout cuts an episode after 3 steps: adv(2) = .7, adv(1) = .8 + .45 * .7, adv(0) = .9 + .45 * 1.115;
# or after 1: adv(0) = .9
CUT_3, CUT_1 = [1.40175, 1.115, 0.7], [0.9]


def in_blocks(samples: dict[str, Any], n_env: int) -> dict[str, Any]:
    """[N] -> [T, B]."""
    return {name: x.unflatten(0, (-1, n_env)) for name, x in samples.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('mode', 'end'),
    [
        *((mode, ('truncated', 'terminated')[i % 2]) for i, mode in enumerate(MODES)),
        ('sync same_step', 'terminated'),
        ('sync next_step', 'truncated'),
        ('batched next_step', 'truncated'),
    ],
)
def test_samples_of_every_autoreset_mode_equal_hand_worked_advantages(mode: str, end: str) -> None:
    policy = hand_policy(lambda s: 10 + s, 13, 0.5)
    rollout = collect(policy, {**MODES[mode], 'kwargs': {'end': end}})
    samples = in_blocks(policy.collect_mode.get_train_sample(rollout), 2)
    if 'next_step' in mode:  # 5 transitions, a reset row, 5 transitions, a reset row, 1 transition
        rows = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12]
        adv, value = EPISODE[end] * 2 + CUT_1, VALUE * 2 + VALUE[:1]
        weight = torch.zeros(13, 2).index_fill(0, torch.tensor(rows), 13 / 11)  # 11 of 13 rows count, mean 1
        torch.testing.assert_close(samples['weight'], weight)
    else:  # episodes of 5, 5 and 3 steps
        rows = list(range(13))
        adv, value = EPISODE[end] * 2 + CUT_3, VALUE * 2 + VALUE[:3]
        assert 'weight' not in samples.keys()
    want_adv, want_value = (torch.tensor(x).unsqueeze(1).expand(-1, 2) for x in (adv, value))
    torch.testing.assert_close(samples['value'][rows], want_value)
    torch.testing.assert_close(samples['adv'][rows], want_adv)
    torch.testing.assert_close(samples['return_'][rows], want_adv + want_value)


def learned_value(tmp_path: Any, env: dict[str, Any]) -> float:
    """V of the first observation after 80 rollouts of 20 steps in 4 envs, gamma .9."""
    rate = {'start': 2e-2, 'end': 1e-3, 'over': 6400}
    cfg = job_config(
        tmp_path,
        max_env_step=10_000,
        env={'kwargs': {}, **env},
        policy=dict(
            model=dict(hidden_sizes=[16], activation='relu'),
            collect=dict(n_step=20, discount_factor=0.9),
            learn=dict(batch_size=80, epoch_per_collect=8, learning_rate=rate, grad_clip=None),
        ),
    )
    with SerialJob(resolve_config(cfg)) as job:
        for _ in range(80):
            job.iteration()
        first = torch.ones(1, 1) if 'onstant' in str(env['id']) else torch.zeros(1, 1)
        return job.policy.samples.units.restore(job.policy.compute_critic(first)).item()


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['sync same_step', 'batched next_step'])
@pytest.mark.parametrize(('end', 'wanted', 'within'), [('truncated', 10.0, 0.5), ('terminated', 4.0951, 0.2)])
def test_learned_value_of_truncated_episodes_is_that_of_endless_ones(
    mode: str, end: str, wanted: float, within: float, tmp_path: Any
) -> None:
    """Truncated: the observation never changes, so V = 1 + .9 V = 10; with the limit as an end it would be below 4.1.

    Terminated: V = 1 + .9 + .81 + .729 + .6561; with a bootstrap at the end it would be 10.
    """
    env = {**MODES[mode], 'kwargs': {'end': end}}
    if end == 'truncated':
        env = {**MODES[mode], 'id': f'tests.policy_envs:{"Constant-v0" if "batched" in mode else "constant_env"}'}
    assert learned_value(tmp_path, env) == pytest.approx(wanted, abs=within)


def column(rollout: Rollout, b: int) -> Rollout:
    """The rollout of env b alone: its column of a rollout of several envs."""
    mine = rollout.final_index[:, 1] == b
    index = torch.stack((rollout.final_index[mine, 0], torch.zeros(int(mine.sum()), dtype=torch.int64)), 1)
    return Rollout(
        take(rollout.data, (slice(None), slice(b, b + 1))), rollout.last_obs[b : b + 1], rollout.final_obs[mine], index
    )


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['sync next_step', 'async same_step', 'batched next_step', 'batched disabled'])
def test_samples_of_one_env_equal_its_column_of_all(mode: str) -> None:
    policy = make_policy(OBS, TWO_ACTIONS, collect=dict(n_step=13), learn=dict(recompute_adv=True))
    rollout = collect(policy, MODES[mode], n_env=3)
    # all different, so that a wrong index is noticed
    rollout.final_obs += torch.arange(len(rollout.final_obs)).unsqueeze(1)
    together = in_blocks(policy.collect_mode.get_train_sample(rollout), 3)
    for b in range(3):
        alone = in_blocks(policy.collect_mode.get_train_sample(column(rollout, b)), 1)
        assert alone.keys() == together.keys()
        for name in alone.keys():  # [13, 1, ...]; a matrix product with fewer rows rounds differently
            found, want = alone[name], together[name][:, b : b + 1]
            torch.testing.assert_close(found, want, msg=lambda m, name=name, b=b: f'{name} of env {b}: {m}')


def test_samples_are_t_major() -> None:
    policy = make_policy(OBS, TWO_ACTIONS, collect=dict(n_step=4), enable_field=['collect'])
    samples = policy.collect_mode.get_train_sample(collect(policy, MODES['sync same_step'], n_env=3))
    assert samples['obs'].flatten().tolist() == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0]


@pytest.mark.parametrize('learn', [{}, dict(reward_norm=True, value_norm=True, recompute_adv=True)])
def test_collect_only_policy_takes_the_state_of_a_full_one(learn: dict[str, Any]) -> None:
    full = make_policy(OBS, TWO_ACTIONS, seed=1, collect=dict(n_step=8), learn=learn)
    part = make_policy(OBS, TWO_ACTIONS, seed=1, collect=dict(n_step=8), learn=learn, enable_field=['collect'])
    for x in part.acting_state().values():  # the loaded state must restore these; the noise depends on the seed
        x.zero_()
    part.load_state_dict(full.state_dict())
    a, b = (p.collect_mode.get_train_sample(collect(p, MODES['sync same_step'])) for p in (full, part))
    assert not differing(a, b)


def test_greedy_evaluation_takes_the_mode() -> None:
    policy = make_policy(OBS, TWO_ACTIONS, enable_field=['eval'])
    with torch.no_grad():
        policy.model.policy_head.bias.copy_(torch.tensor([0.0, 0.5]))
    obs = torch.zeros(50, 1)
    assert policy.eval_mode.forward(obs, None)['action'].tolist() == [1] * 50  # random draws would give about 19 zeros


def test_collect_draws_actions_with_the_probability_of_the_logit() -> None:
    policy = make_policy(OBS, Discrete(2), collect=dict(n_step=50), enable_field=['collect'])
    with torch.no_grad():
        policy.model.policy_head.bias.copy_(torch.tensor([0.0, 1.0986123]))  # odds 1 to 3
    obs = torch.zeros(200, 1)
    actions = torch.stack([policy.collect_mode.forward(obs, None)['action'] for _ in range(50)]).double()
    # 10,000 draws with p = .75: the standard error of the mean is .0043
    assert actions.mean().item() == pytest.approx(0.75, abs=0.02)
    assert actions.std(0).min() > 0  # fresh noise at each step


@pytest.mark.parametrize('mode', ['sync same_step', 'batched next_step'])
def test_values_found_in_pieces_equal_those_found_at_once(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images need this: a whole rollout may not fit into memory. The last piece is shorter."""
    learn = dict(value_norm=True, executor='eager')  # the other executors run no hooks
    policy = make_policy(OBS, TWO_ACTIONS, collect=dict(n_step=13), learn=learn)
    rollout, found, sizes = collect(policy, MODES[mode]), [], []
    policy.model.value_head.register_forward_hook(lambda module, args, value: sizes.append(len(value)))
    for cells in (1 << 24, 7):
        monkeypatch.setattr('zoo.policy.samples.PASS_CELLS', cells)
        found.append(policy.collect_mode.get_train_sample(rollout))
    n = sizes.pop(0)  # 13 x 2 rows, 2 observations after the last step, and the final observations
    assert n >= 28 and sizes == [7] * (n // 7) + [n % 7] * bool(n % 7)
    for name in ('value', 'adv', 'return_'):  # a matrix product with fewer rows rounds differently
        torch.testing.assert_close(found[1][name], found[0][name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ('mode', 'n_trunk'),
    [
        *(('sync same_step', n) for n in (1, 2)),
        ('sync next_step', 1),
        ('async disabled', 2),
        ('batched next_step', 2),
        ('batched same_step', 1),
    ],
)
def test_values_found_while_acting_or_from_successors_equal_those_of_a_pass(mode: str, n_trunk: int) -> None:
    """With one trunk the critic only runs on states after a trace. Dense successors replace final observations."""
    learn, model = dict(value_norm=True, executor='eager'), dict(shared_encoder=n_trunk == 1)
    policy = make_policy(OBS, TWO_ACTIONS, collect=dict(n_step=13), learn=learn, model=model)
    policy.normalizers['value'].update(torch.tensor([47.0, 53.0]))
    rollout, n_row = collect(policy, MODES[mode]), []
    handle = policy.model.value_head.register_forward_hook(lambda module, args, value: n_row.append(len(value)))
    found = policy.collect_mode.get_train_sample(rollout)
    assert n_row == [2 + len(rollout.final_obs) + (n_trunk - 1) * 26]
    handle.remove()
    value = policy.normalizers['value'].restore(policy.model.compute_critic(rollout.data['obs']))
    torch.testing.assert_close(found['value'], value.flatten())
    dense = Rollout(rollout.data, rollout.last_obs, rollout.final_obs[:0], rollout.final_index[:0], rollout.next_obs())
    again = policy.collect_mode.get_train_sample(dense)
    for name in ('value', 'adv', 'return_'):
        torch.testing.assert_close(again[name], found[name])


@pytest.mark.parametrize(
    ('name', 'mode'),
    [
        *(('ppg', mode) for mode in ('sync same_step', 'batched next_step')),
        ('ppo_offpolicy', 'batched next_step'),
        ('ppg_offpolicy', 'sync same_step'),
    ],
)
def test_samples_of_all_policies_are_those_of_ppo(name: str, mode: str) -> None:
    """With the same network all types, on- or off-policy, with or without phases, give the same actions and values."""
    samples = []
    for other in (name, 'ppo'):
        model = make_policy(OBS, TWO_ACTIONS, type='ppg', seed=3).model
        sections = dict(learn=dict(reward_norm=True, value_norm=True), collect=dict(n_step=13))
        policy = make_policy(OBS, TWO_ACTIONS, type=other, network=model, enable_field=['collect'], **sections)
        samples.append(policy.collect_mode.get_train_sample(collect(policy, MODES[mode])))
    assert not differing(*samples)
