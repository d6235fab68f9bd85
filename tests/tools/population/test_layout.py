"""Parameters by name in the state of a checkpoint, and states that are rewritten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import Tensor

from tests.policy_envs import differing
from tests.tools.population.members import TrainedMember, config, saved_child, trained
from zoo import load_policy
from zoo.tools.population.layout import Rewriting, StateLayout, Tensors, policy_of, rewritten, why_not_rewritten

POLICIES = {
    'ppo': {'type': 'ppo'},
    'shared': {'type': 'ppo', 'model': {'shared_encoder': True}},
    'ppg': {'type': 'ppg', 'learn': {'aux_freq': 4}},
    'ppo_ewma': {'type': 'ppo_ewma'},
    'plasticity': {'type': 'ppo', 'learn': {'plasticity': 'l2_init', 'value_norm': True}, 'model': {'obs_norm': True}},
    'frozen': {'type': 'ppo', 'learn': {'freeze': ['actor_encoder.*']}},
    'muon': {'type': 'ppo', 'learn': {'optimizer': 'muon'}},
}


@pytest.fixture(scope='module', params=POLICIES)
def member(request: pytest.FixtureRequest) -> Iterator[TrainedMember]:
    with TemporaryDirectory() as path:
        yield trained(config(Path(path), POLICIES[request.param]))


def copied(tensors: Tensors, wanted: list[str]) -> dict[str, Tensor]:
    return {name: tensors[name].clone() for name in wanted}


def doubled(tensors: Tensors, wanted: list[str]) -> dict[str, Tensor]:
    return {name: tensors[name] * 2 for name in wanted}


@pytest.mark.slow
def test_state_that_is_rewritten_by_copies_is_the_same(member: TrainedMember, tmp_path: Path) -> None:
    layout = StateLayout.of(policy_of(member.checkpoint, member.config))
    state = member.checkpoint.state
    same = rewritten(state, layout, layout, Rewriting(copied, copied, copied))
    assert not differing(same['policy'], state['policy'])
    child = saved_child(member, same, member.config, tmp_path / 'child.safetensors')
    assert not differing(child.state_dict(), load_policy(member.checkpoint, fields='all').state_dict())


def test_pieces_of_a_buffer_are_those_of_the_parameters(member: TrainedMember) -> None:
    policy = load_policy(member.checkpoint, fields='all')
    layout = StateLayout.of(policy_of(member.checkpoint, member.config))
    for role, optimizer in policy.optimizers.items():  # type: ignore[attr-defined]
        pieces = layout.cut(role, optimizer.param)
        named = dict(policy.model.named_parameters())
        assert all(torch.equal(x, named[name]) for name, x in pieces.items())
        assert layout.size(role) == len(optimizer.param)


def test_rewriting_reaches_parameters_moments_and_averages(member: TrainedMember) -> None:
    layout = StateLayout.of(policy_of(member.checkpoint, member.config))
    state = member.checkpoint.state
    twice = rewritten(state, layout, layout, Rewriting(doubled, copied, copied))
    for name, x in state['policy']['model'].items():
        factor = 2 if name in layout.values else 1  # statistics of observations stay
        assert torch.equal(twice['policy']['model'][name], factor * x)
    for role, buffers in state['policy']['learn']['optimizer'].items():
        for name, x in buffers.items():
            factor = 2 if name == 'average' else 1
            assert not differing({name: twice['policy']['learn']['optimizer'][role][name]}, {name: factor * x})
    moved = rewritten(state, layout, layout, Rewriting(copied, doubled, copied))
    for role, buffers in state['policy']['learn']['optimizer'].items():
        assert torch.equal(moved['policy']['learn']['optimizer'][role]['exp_avg'], 2 * buffers['exp_avg'])


def test_new_policy_of_a_checkpoint_begins_by_its_seed(member: TrainedMember) -> None:
    first, same, other = (
        StateLayout.of(policy_of(member.checkpoint, member.config, seed)).values['policy_head.weight']
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_policy_with_another_form_of_optimisers_is_named(tmp_path: Path) -> None:
    from zoo import make_policy

    assert why_not_rewritten(make_policy(dict(env=dict(id='CartPole-v1'), policy=dict(type='ppo')))) == ''
    reason = why_not_rewritten(make_policy(dict(env=dict(id='CartPole-v1'), policy=dict(type='dqn'))))
    assert "policy 'dqn' does not keep" in reason
