"""Partial loading of a state into a policy that differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.policy.random_heads import OBS, ROWS, policy_of
from zoo.core.errors import UserError
from zoo.core.spaces import Discrete


def moved_by_half(kind: str = 'ppo') -> Any:
    """A policy whose parameters all differ by .5 from those of a new one."""
    policy = policy_of(kind)
    for p in policy.model.parameters():
        p.data.add_(0.5)
    return policy


def test_what_fits_is_taken_and_the_rest_is_named() -> None:
    old, new = policy_of(), policy_of(action=Discrete(5))
    report = new.load_state_dict(old.state_dict(), strict=False)
    assert [name.split(':')[0] for name in report.misfits] == ['policy_head.weight', 'policy_head.bias']
    assert report.misfits[0].endswith('[2, 8] in the state, [5, 8] here')
    assert torch.equal(new.value(ROWS), old.value(ROWS)) and not report.missing and not report.unused
    assert 'of another shape: policy_head.weight' in report.text()


def test_patterns_choose_and_the_others_stay() -> None:
    old, new = moved_by_half(), policy_of()
    before = new.value(ROWS)
    report = new.load_state_dict(old.state_dict(), strict=False, only=['actor_*', 'policy_head.*'])
    assert torch.equal(new.distribution(ROWS).param, old.distribution(ROWS).param)
    assert torch.equal(new.value(ROWS), before)
    assert set(report.unused) == {name for name in dict(old.model.named_parameters()) if name[:5] in ('criti', 'value')}


def test_optimiser_starts_again_and_still_moves_what_was_loaded() -> None:
    """The parameters are views of the optimiser's buffer and stay so."""
    old, new = policy_of(), policy_of()
    new.load_state_dict(old.state_dict(), strict=False)
    before = new.value(ROWS)
    (optimizer,) = new.optimizers.values()
    optimizer.zero_grad()
    new.evaluate_actions(ROWS, torch.zeros(6).long()).value.sum().backward()
    optimizer.step(None)
    assert not torch.equal(new.value(ROWS), before)


def test_nothing_that_fits_is_an_error() -> None:
    policy = policy_of()
    with pytest.raises(UserError, match=r'^nothing of the state fits this policy \(asked for: actr_\*\): '):
        policy.load_state_dict(policy.state_dict(), strict=False, only=['actr_*'])


def test_strict_is_as_before() -> None:
    policy = policy_of(obs=OBS)
    assert policy.load_state_dict(policy.state_dict()) is None
    with pytest.raises(RuntimeError, match='size mismatch'):
        policy.load_state_dict(policy_of(action=Discrete(5)).state_dict())


@pytest.mark.parametrize(
    ('kind', 'learn'),
    [('ppo_ewma', {}), ('ppg_ewma', {}), ('ppo', {'plasticity': {'type': 'l2_init', 'strength': 0.5}})],
)
def test_copies_of_the_network_start_again_from_what_was_loaded(kind: str, learn: dict[str, Any]) -> None:
    """The copies: the average used as proximal policy, and the values that plasticity pulls parameters back to."""
    old, new = moved_by_half(kind), policy_of(kind, learn=learn)
    new.load_state_dict(old.state_dict(), strict=False)
    expected = dict(old.model.named_parameters())
    if learn:
        kept = new.state_dict()['learn']['plasticity']['initial']
    else:
        kept = new.optimizers['actor' if kind == 'ppg_ewma' else 'all'].averaged
    assert len(kept) > 4 and all(torch.equal(x, expected[name]) for name, x in kept.items())


def test_target_network_of_dqn_is_what_was_loaded() -> None:
    old, new = moved_by_half('dqn'), policy_of('dqn')
    new.load_state_dict(old.state_dict(), strict=False)
    state = old.model.state_dict()
    assert all(torch.equal(x, state[name]) for name, x in new.target_model.state_dict().items())
