"""Noise on weights: how many entries change and by how much, moments, dormant units, what stays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from tests.tools.population.members import TrainedMember, config, saved_child, trained
from zoo import load_policy
from zoo.run.checkpoint import State
from zoo.tools.population.growth import Towers
from zoo.tools.population.layout import StateLayout, policy_of
from zoo.tools.population.noise import dormant_units, noisy, weight_matrices, why_not_noise


@pytest.fixture(scope='module')
def member() -> Iterator[TrainedMember]:
    with TemporaryDirectory() as path:
        yield trained(config(Path(path), {'type': 'ppo', 'model': {'hidden_sizes': [64, 64]}}))


def child_state(member: TrainedMember, seed: int, state: State | None = None) -> State:
    return noisy(state or member.checkpoint.state, checkpoint=member.checkpoint, parent=member.config, seed=seed)


def changed_entries(member: TrainedMember, state: State) -> dict[str, torch.Tensor]:
    """Which entries of the parameters differ, by name, where any does."""
    before = member.checkpoint.state['policy']['model']
    differ = {name: x != before[name] for name, x in state['policy']['model'].items()}
    return {name: x for name, x in differ.items() if x.any()}


@pytest.mark.slow
def test_a_tenth_of_the_entries_of_some_matrices_of_the_actor_changes(member: TrainedMember) -> None:
    # 64 x 4 = 256, 64 x 64 = 4,096, 2 x 64 = 128: a tenth, rounded up
    n_changed = {
        'actor_encoder.layers.0.weight': 26,
        'actor_encoder.layers.1.weight': 410,
        'policy_head.weight': 13,
    }
    sizes = []
    for seed in range(30):
        changed = changed_entries(member, child_state(member, seed))
        sizes.append(len(changed))
        for name, x in changed.items():
            assert int(x.sum()) == n_changed[name]
    assert set(sizes) == {1, 2, 3}


@pytest.mark.slow
def test_noise_has_a_tenth_of_the_size_of_its_entry(member: TrainedMember) -> None:
    name = 'actor_encoder.layers.1.weight'
    before = member.checkpoint.state['policy']['model'][name]
    ratios: list[float] = []
    n_redrawn = []
    for seed in range(30):
        state = child_state(member, seed)
        is_changed = changed_entries(member, state).get(name)
        if is_changed is None:
            continue
        ratio = (state['policy']['model'][name] - before)[is_changed] / before[is_changed].abs()
        near = ratio[ratio.abs() < 0.45]  # 4.5 standard deviations; redrawn entries are mostly further away
        ratios += near.tolist()
        n_redrawn.append(len(ratio) - len(near))
    assert torch.tensor(ratios).std() == pytest.approx(0.1, rel=0.1)
    # 5% of 410 are drawn again, 20 or 21; of these some land near their old value
    assert max(n_redrawn) <= 21
    assert min(n_redrawn) >= 8


@pytest.mark.long
def test_redrawn_entries_have_the_deviation_of_their_matrix(member: TrainedMember) -> None:
    from scipy import stats  # not above: half a second in every process of the suite

    name = 'actor_encoder.layers.1.weight'
    before = member.checkpoint.state['policy']['model'][name]
    tiny = before.abs() < before.std() * 0.02  # noise moves these by less than .01 deviations
    redrawn = []
    for seed in range(200):
        after = child_state(member, seed)['policy']['model'][name][tiny]
        moved = (after - before[tiny]).abs() > before.std() * 0.02
        redrawn += after[moved].tolist()
    assert len(redrawn) > 50
    assert stats.kstest(redrawn, stats.norm(0, float(before.std())).cdf).pvalue > 0.01


def test_changed_entries_lose_their_moments_and_others_keep_them(member: TrainedMember) -> None:
    layout = StateLayout.of(policy_of(member.checkpoint, member.config))
    before = member.checkpoint.state['policy']['learn']['optimizer']['all']
    state = child_state(member, 2)
    changed = changed_entries(member, state)
    assert changed
    buffers = state['policy']['learn']['optimizer']['all']
    for moment in ('exp_avg', 'exp_avg_sq'):
        old = layout.cut('all', before[moment])
        for name, x in layout.cut('all', buffers[moment]).items():
            is_changed = changed.get(name, torch.zeros_like(x, dtype=torch.bool))
            assert not x[is_changed].any()
            assert torch.equal(x[~is_changed], old[name][~is_changed])
    assert buffers['step_count'] == before['step_count']


def with_dormant_units(member: TrainedMember, layout: StateLayout, units: list[int]) -> State:
    """The state in which some units of the actor's first layer had a thousandth of the gradient of the others."""
    state = member.checkpoint.state
    buffers = dict(state['policy']['learn']['optimizer']['all'])
    square = layout.cut('all', buffers['exp_avg_sq'].clone())
    for x in square.values():
        x.fill_(1e-4)
    square['actor_encoder.layers.0.weight'][units] = 1e-10
    buffers['exp_avg_sq'] = torch.cat([x.flatten() for x in square.values()])
    learn = {**state['policy']['learn'], 'optimizer': {'all': buffers}}
    return {**state, 'policy': {**state['policy'], 'learn': learn}}


def test_dormant_units_are_found_and_reset(member: TrainedMember, tmp_path: Path) -> None:
    policy = policy_of(member.checkpoint, member.config)
    layout = StateLayout.of(policy)
    units = [3, 17, 60]
    state = with_dormant_units(member, layout, units)
    found = dormant_units(state, layout, Towers(layout, policy.model.one_trunk))
    assert [(tower, layer, index.tolist()) for tower, layer, index in found] == [('actor_encoder', 0, units)]
    child = child_state(member, 0, state)['policy']['model']
    before = state['policy']['model']
    incoming = child['actor_encoder.layers.0.weight'][units]
    assert (incoming != before['actor_encoder.layers.0.weight'][units]).all()
    # rows of an orthogonal 64 x 4 matrix of gain sqrt(2): their squares sum to 2 * 4 over 64 rows
    assert 0.05 < float(incoming.norm(dim=1).mean()) < 2 * math.sqrt(8 / 64)
    assert not child['actor_encoder.layers.0.bias'][units].any()
    assert (child['actor_encoder.layers.1.weight'][:, units] == 0).float().mean() > 0.85  # the rest was redrawn later
    saved_child(member, child_state(member, 0, state), member.config, tmp_path / 'child.safetensors')


def test_network_that_has_learned_nothing_has_no_dormant_units(member: TrainedMember) -> None:
    policy = policy_of(member.checkpoint, member.config)
    layout = StateLayout.of(policy)
    state: Any = {'policy': {'learn': {'optimizer': {'all': {'exp_avg_sq': torch.zeros(layout.size('all'))}}}}}
    assert dormant_units(state, layout, Towers(layout, policy.model.one_trunk)) == []


def test_shared_network_changes_under_both_of_its_names(tmp_path: Path) -> None:
    member = trained(config(tmp_path, {'type': 'ppo', 'model': {'shared_encoder': True}}))
    policy = policy_of(member.checkpoint, member.config)
    layout = StateLayout.of(policy)
    state = with_dormant_units(member, layout, [5])
    child = child_state(member, 3, state)
    model = child['policy']['model']
    for layer in range(2):
        names = [f'{tower}.layers.{layer}.weight' for tower in ('actor_encoder', 'critic_encoder')]
        assert torch.equal(*(model[name] for name in names))
    loaded = saved_child(member, child, member.config, tmp_path / 'child.safetensors')
    assert torch.equal(loaded.model.actor_encoder.layers[0].weight, model['actor_encoder.layers.0.weight'])
    assert not torch.equal(
        model['actor_encoder.layers.0.weight'], state['policy']['model']['actor_encoder.layers.0.weight']
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ('policy', 'names'),
    [
        (
            {'type': 'ppo', 'model': {'recurrent': {'cell': 'lstm', 'hidden_size': 16}}},
            ['actor_encoder.layers.0.weight', 'actor_encoder.layers.1.weight', 'policy_head.weight'],
        ),
        (
            {'type': 'ppo', 'learn': {'freeze': ['actor_encoder.layers.0.*']}},
            ['actor_encoder.layers.1.weight', 'policy_head.weight'],
        ),
        ({'type': 'ppo', 'model': {'encoder': 'flat'}}, ['policy_head.weight']),
    ],
)
def test_matrices_are_those_of_the_actor_without_memory_and_frozen_ones(
    policy: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    member = trained(config(tmp_path, policy))
    assert weight_matrices(policy_of(member.checkpoint, member.config)) == names
    changed = set()
    for seed in range(10):
        changed |= set(changed_entries(member, child_state(member, seed)))
    assert changed == set(names)


@pytest.mark.slow
def test_average_gets_the_noise_of_the_parameters(tmp_path: Path) -> None:
    member = trained(config(tmp_path, {'type': 'ppo_ewma'}))
    layout = StateLayout.of(policy_of(member.checkpoint, member.config))
    name = 'policy_head.weight'
    before = member.checkpoint.state['policy']
    seeds = (seed for seed in range(20) if name in changed_entries(member, child_state(member, seed)))
    after = child_state(member, next(seeds))['policy']
    moved = [after['model'][name] - before['model'][name]]
    averages = [layout.cut('all', each['learn']['optimizer']['all']['average'])[name] for each in (before, after)]
    moved.append(averages[1] - averages[0])
    is_noise = moved[0].abs() < 0.45 * before['model'][name].abs()
    torch.testing.assert_close(moved[0][is_noise], moved[1][is_noise], rtol=0, atol=1e-7)
    assert moved[0][is_noise].any()


def test_child_loads_and_learns(member: TrainedMember, tmp_path: Path) -> None:
    child = saved_child(member, child_state(member, 1), member.config, tmp_path / 'child.safetensors')
    parent = load_policy(member.checkpoint, fields='all')
    obs = torch.randn(100, 4)
    with torch.no_grad():
        difference = (child.model.compute_actor(obs) - parent.model.compute_actor(obs)).abs().max()
        values = child.model.compute_critic(obs) - parent.model.compute_critic(obs)
    assert 0 < difference < 1
    assert not values.any()  # the critic stays


def test_several_policies_get_no_noise() -> None:
    from zoo.run.config import frozen_config, resolve_config

    cfg = frozen_config(
        resolve_config(
            dict(env=dict(id='CartPole-v1'), agents=dict(policies=dict(a={}, b={})), policy=dict(type='ppo'))
        )
    )
    assert 'several policies' in why_not_noise(cfg)
