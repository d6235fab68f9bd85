"""Random network distillation: rewards for new observations, by the published formulas, reproducible by the seed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.policy_envs import differing, flat, job_config, rows
from tests.thread_ranks import on_ranks
from zoo.config.components import make_component
from zoo.core.data import Rollout, first_leaf, map_tensors
from zoo.core.registry import INTRINSIC_REGISTRY
from zoo.core.spaces import ACTION_MASK, Box, Dict, MultiBinary, obs_to_tensor
from zoo.env.adapter import convert_space
from zoo.env.toy.targets import OBS_SPACES
from zoo.pipeline import serial_pipeline
from zoo.policy.options.intrinsic import RND
from zoo.run.checkpoint.file import load_checkpoint, save_checkpoint
from zoo.run.policy_file import load_policy

CPU = torch.device('cpu')
ONE_NUMBER = Box(np.array([-np.inf]), np.array([np.inf]))
SMALL = {'hidden_sizes': [16], 'feature_size': 8, 'batch_size': 8}


def make_rnd(space: Any = ONE_NUMBER, seed: int = 0, **options: Any) -> RND:
    return make_component(INTRINSIC_REGISTRY, {'type': 'rnd', **SMALL, **options}, space, CPU, seed)


def rollout_of(obs: Any, **columns: Tensor) -> Rollout:
    """A rollout with the observations of a block [T + 1, B, *O]; no episode ends, unless `columns` contain ends."""
    n_step, n_env = len(first_leaf(obs)) - 1, first_leaf(obs).shape[1]
    done = torch.zeros(n_step, n_env, dtype=torch.bool)
    data: Any = {'obs': map_tensors(lambda x: x[:-1], obs), 'done': done, 'traj_flag': done, **columns}
    last = map_tensors(lambda x: x[-1], obs)
    return Rollout(data, last, map_tensors(lambda x: x[:0], last), torch.zeros(0, 2, dtype=torch.int64))


def numbers(*rows: float) -> Tensor:
    """Observations [T + 1, 1, 1] of one env."""
    return torch.tensor(rows).view(-1, 1, 1)


def with_known_networks(rnd: RND, monkeypatch: pytest.MonkeyPatch, value: float = 0.0) -> None:
    """Replaces the outputs of the networks: the error of an observation is its number, every value is `value`."""
    monkeypatch.setattr(rnd.networks, 'errors', lambda obs: obs[:, 0])
    monkeypatch.setattr(rnd.networks, 'value', lambda obs: torch.full((len(obs),), value))


@pytest.mark.long
@pytest.mark.slow
def test_rnd_state_seen_often_earns_less_than_before_and_less_than_a_new_one() -> None:
    space = Box(np.full(4, -1.0), np.ones(4))
    rnd = make_rnd(space, learning_rate=1e-2)
    generator = torch.Generator().manual_seed(0)
    old = torch.rand(33, 2, 4, generator=generator) * torch.tensor([1.0, 1.0, 0.0, 0.0])
    new = torch.rand(64, 4, generator=generator) * torch.tensor([0.0, 0.0, 1.0, 1.0])
    rnd.advantage(rollout_of(old))
    before = rnd.networks.errors(old[1:].flatten(0, 1)).mean()
    for _ in range(10):
        rnd.advantage(rollout_of(old))
        rnd.update()
    after = rnd.networks.errors(old[1:].flatten(0, 1)).mean()
    assert after < 0.2 * before
    assert rnd.networks.errors(new).min() > 5 * after


def test_rnd_update_moves_predictor_and_critic_but_never_the_target() -> None:
    rnd = make_rnd()
    before = {name: x.clone() for name, x in rnd.networks.named_parameters()}
    rnd.advantage(rollout_of(numbers(*range(9))))
    rnd.update()
    moved = {name.split('.')[0] for name, x in rnd.networks.named_parameters() if not torch.equal(x, before[name])}
    assert moved == {'predictor', 'critic'}


def test_rnd_observations_are_normalised_by_what_was_reached_and_clipped_to_5() -> None:
    rnd = make_rnd()
    rnd.advantage(rollout_of(numbers(99.0, 1.0, 3.0)))  # the reached states are 1 and 3: mean 2, deviation 1
    error = rnd.networks.errors(torch.tensor([[-90.0], [-3.0], [-2.9], [6.9], [7.0], [90.0]])).tolist()
    assert error[0] == pytest.approx(error[1]) != pytest.approx(error[2])  # the clip is at 2 - 5 = -3
    assert error[5] == pytest.approx(error[4]) != pytest.approx(error[3])  # the clip is at 2 + 5 = 7


def test_rnd_advantage_worked_by_hand_continues_beyond_ends_and_skips_reset_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rnd = make_rnd(discount_factor=0.5, gae_lambda=1.0, weight=0.5)
    with_known_networks(rnd, monkeypatch)
    ends = torch.tensor([[True], [False], [False]])
    columns = {'done': ends, 'traj_flag': ends, 'is_reset': torch.tensor([[False], [True], [False]])}
    adv = rnd.advantage(rollout_of(numbers(7.0, 1.0, 9.0, 2.0), **columns))
    # errors 1, 0 (reset row), 2; discounted sums 1, .5, 2.25; the valid sums 1, 2.25 have mean 1.625, deviation .625
    # rewards 1 / .625 = 1.6, 0, 2 / .625 = 3.2; returns 1.6 + .5 * 1.6, .5 * 3.2, 3.2; the weight .5 halves these
    assert adv.flatten().tolist() == pytest.approx([1.2, 0.8, 1.6])
    monkeypatch.undo()  # the networks have gradients again
    assert rnd.update()['intrinsic_reward'].item() == pytest.approx((1.6 + 3.2) / 2)  # the mean of the two valid rows


def test_rnd_sum_of_errors_carries_over_to_the_next_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = (make_rnd(discount_factor=0.5) for _ in range(2))
    for rnd in (whole, parts):
        with_known_networks(rnd, monkeypatch)
    whole.advantage(rollout_of(numbers(0.0, 1.0, 2.0, 4.0, 8.0)))
    parts.advantage(rollout_of(numbers(0.0, 1.0, 2.0)))
    parts.advantage(rollout_of(numbers(2.0, 4.0, 8.0)))
    assert parts.networks.returns.var.item() == pytest.approx(whole.networks.returns.var.item())


def test_rnd_critic_bootstraps_from_the_state_after_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    rnd = make_rnd(discount_factor=0.5, gae_lambda=0.0, weight=1.0)
    with_known_networks(rnd, monkeypatch, value=4.0)
    adv = rnd.advantage(rollout_of(numbers(0.0, 0.0, 0.0)))
    assert adv.flatten().tolist() == [-2.0, -2.0]  # 0 + .5 * 4 - 4


def test_rnd_reward_is_of_the_true_successor_not_of_the_next_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    rnd = make_rnd(discount_factor=0.0, weight=1.0, reward_clip=1e9)
    with_known_networks(rnd, monkeypatch)
    rollout = rollout_of(numbers(0.0, 50.0, 2.0))  # 50 begins the next episode; the true successor is 4
    rollout.final_obs, rollout.final_index = torch.tensor([[4.0]]), torch.tensor([[0, 0]])
    adv = rnd.advantage(rollout).flatten()
    assert adv[0] / adv[1] == pytest.approx(4.0 / 2.0)


def test_rnd_update_learns_from_a_rollout_once() -> None:
    rnd = make_rnd()
    rnd.advantage(rollout_of(numbers(*range(9))))
    first = rnd.update()
    assert min(first.values()) > 0  # the reward and both losses
    state = copy.deepcopy(rnd.state_dict())
    assert rnd.update() == first
    assert not differing(state, rnd.state_dict())


def test_rnd_predictor_learns_from_its_share_of_the_rows_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    rnd = make_rnd(predictor_share=0.5, epoch_per_collect=1)
    rnd.advantage(rollout_of(numbers(*range(17))))
    seen, errors = [], rnd.networks.errors
    monkeypatch.setattr(rnd.networks, 'errors', lambda obs: seen.append(len(obs)) or errors(obs))
    rnd.update()
    assert seen == [4, 4]  # half of 8 rows, in each of two minibatches


def test_rnd_ranks_with_unequal_numbers_of_reset_rows_learn_as_one_process() -> None:
    """A rank with fewer transitions must have less influence: gradients are means over the rows of all ranks."""
    obs = torch.randn(9, 4, 1, generator=torch.Generator().manual_seed(0))
    is_reset = torch.zeros(8, 4, dtype=torch.bool)
    is_reset[1:7, 0] = True  # rank 0 has 10 transitions, rank 1 has 16

    def learn(rnd: RND, envs: slice) -> Tensor:
        rnd.advantage(rollout_of(obs[:, envs], is_reset=is_reset[:, envs]))
        return torch.stack([*rnd.update().values()])

    def learn_on(ranks: Any) -> Tensor:
        each[ranks.rank].set_ranks(ranks)
        return learn(each[ranks.rank], slice(2 * ranks.rank, 2 * ranks.rank + 2))

    options = dict(epoch_per_collect=2, predictor_share=1.0, learning_rate=1e-2)
    alone, *each = (
        make_rnd(batch_size=n, **options) for n in (32, 16, 16)
    )  # one minibatch, or half of it for each rank
    metrics = learn(alone, slice(0, 4))
    torch.testing.assert_close(torch.stack(on_ranks(learn_on)).mean(0), metrics)  # of a run: the means over its ranks
    for rnd in each:
        for (name, x), y in zip(alone.networks.named_parameters(), rnd.networks.parameters(), strict=True):
            torch.testing.assert_close(y, x, rtol=0, atol=1e-6, msg=name)


def test_rnd_rows_that_only_reset_train_nothing() -> None:
    rnd = make_rnd()
    before = {name: x.clone() for name, x in rnd.networks.named_parameters()}
    rnd.advantage(rollout_of(numbers(*range(9)), is_reset=torch.ones(8, 1, dtype=torch.bool)))
    rnd.update()
    assert all(torch.equal(x, before[name]) for name, x in rnd.networks.named_parameters())


@pytest.mark.parametrize('name', OBS_SPACES)
def test_rnd_any_observations_are_rewarded_and_learned_from(name: str) -> None:
    raw = OBS_SPACES[name]()
    raw.seed(0)
    space = convert_space(raw, 'observation', name)
    rnd = make_rnd(space)
    drawn = [obs_to_tensor(space, raw.sample()) for _ in range(10)]
    obs = map_tensors(lambda *x: torch.stack(x).unflatten(0, (5, 2)), *drawn)
    adv = rnd.advantage(rollout_of(obs))
    assert adv.shape == (4, 2) and adv.isfinite().all() and adv.abs().sum() > 0
    assert set(rnd.update()) == set(RND.names)


def test_rnd_action_masks_are_left_out() -> None:
    rnd = make_rnd(Dict({'x': ONE_NUMBER, ACTION_MASK: MultiBinary((3,))}))
    x = torch.ones(2, 1)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    errors = rnd.networks.errors({'x': x, ACTION_MASK: mask})
    assert errors[0] == errors[1]


def test_rnd_networks_depend_on_the_seed_and_leave_the_global_stream_alone() -> None:
    before = torch.get_rng_state()
    a, b, other = make_rnd(seed=3), make_rnd(seed=3), make_rnd(seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert not differing(a.state_dict(), b.state_dict())
    assert differing(a.state_dict(), other.state_dict())


def config(root: Path, **policy: Any) -> dict[str, Any]:
    learn = {'intrinsic': {'type': 'rnd', **SMALL}}
    return job_config(root, 'CartPole-v1', policy={'learn': learn, **policy})


@pytest.mark.slow
def test_run_with_rnd_and_a_recurrent_model_logs_what_it_found_and_resumes(tmp_path: Path) -> None:
    first = serial_pipeline(config(tmp_path, model={'recurrent': {'cell': 'gru', 'hidden_size': 8}}))
    assert {f'learn/{name}' for name in RND.names} <= set().union(*rows(first.run_dir))
    before = flat(first.policy.state_dict())
    again = serial_pipeline(resume=first.run_dir, max_env_step=384)
    after = flat(again.policy.state_dict())
    count = 'learn/intrinsic/networks/returns.count'  # the number of rows, without those that only reset an env
    n_new = float(after[count]) - float(before[count])
    assert before.keys() == after.keys() and n_new == again.env_step - first.env_step > 100


@pytest.mark.slow
def test_policy_with_rnd_learns_on_to_the_bit_after_a_file_and_after_one_without_its_sums(tmp_path: Path) -> None:
    policy = serial_pipeline(config(tmp_path)).policy
    path = policy.save(tmp_path / 'whole.safetensors')
    state, meta, _ = load_checkpoint(path)
    assert len(state['policy']['learn']['intrinsic'].pop('carry')) == 4
    save_checkpoint(tmp_path / 'old.safetensors', state, meta)
    whole, old = (load_policy(tmp_path / f'{name}.safetensors', fields='all') for name in ('whole', 'old'))
    advs = []
    for each in (policy, whole, old):
        generator = torch.Generator().manual_seed(0)
        obs = torch.randn(9, 4, 4, generator=generator)
        (option,) = each.options
        advs.append(option.component.advantage(rollout_of(obs)))
        option.component.update()
    assert torch.equal(*advs[:2]) and not torch.equal(*advs[1:])
    assert not differing(policy.state_dict(), whole.state_dict())
