"""Which parts the native executor says that it knows, and what it is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from zoo.backend.choose import Named
from zoo.backend.native import unknown_parts
from zoo.backend.native.bindings import Kind, Surrogate, ValueLoss
from zoo.backend.native.network import knows_parts, step_spec
from zoo.config.components import Part, make_part
from zoo.core.registry import PENALTY_REGISTRY, SURROGATE_REGISTRY, VALUE_LOSS_REGISTRY
from zoo.policy.gradient_steps import PolicyNumbers
from zoo.policy.ppg import AuxNumbers, ValueNumbers

KL = make_part(PENALTY_REGISTRY, 'kl')


def surrogate(spec: Any) -> Any:
    return make_part(SURROGATE_REGISTRY, spec)


def value_loss(spec: Any) -> Any:
    return make_part(VALUE_LOSS_REGISTRY, spec)


@pytest.mark.parametrize('name', ['clip', 'asymmetric_clip', 'none', 'spo'])
@pytest.mark.parametrize('loss', ['mse', 'clip', 'error_clip', 'huber'])
def test_parts_that_c_has_are_known(name: str, loss: str) -> None:
    parts = [surrogate(name), value_loss(loss), KL, Named('optimizer', 'adam'), Named('proximal policy', 'behaviour')]
    assert unknown_parts(parts) == ''


@pytest.mark.parametrize(
    ('part', 'said'),
    [
        (surrogate('dpo'), "the surrogate 'dpo'"),
        (value_loss('two_hot'), "the value loss 'two_hot'"),
        (value_loss({'type': 'huber', 'range': 3.0}), "the option 'range' of the value loss 'huber'"),
        (make_part(PENALTY_REGISTRY, 'reverse_kl'), "the penalty 'reverse_kl'"),
        (Named('optimizer', 'muon'), "the optimizer 'muon'"),
        (Named('proximal policy', 'ewma'), "the proximal policy 'ewma'"),
        (Named('option', 'policy.learn.accumulate'), 'policy.learn.accumulate'),
        (Part('surrogate', 'clip', pytest.approx), f"the surrogate 'clip' of {pytest.approx.__module__}"),
    ],
    ids=lambda x: x if isinstance(x, str) else '',
)
def test_first_part_that_c_does_not_have_is_named(part: Any, said: str) -> None:
    assert unknown_parts([surrogate('clip'), part]) == f'the native executor does not know {said}'


def test_two_penalties_are_more_than_c_takes() -> None:
    assert unknown_parts([KL, KL]) == 'the native executor takes one penalty, not 2'


def test_kinds_that_no_step_has_are_nothing_to_c() -> None:
    assert unknown_parts([Named('draw', 'prioritized'), Named('estimator', 'n_step')]) == ''


def test_each_step_asks_only_for_the_parts_that_it_reads() -> None:
    numbers = PolicyNumbers(value_loss=value_loss('two_hot'))
    assert knows_parts(Kind.POLICY, numbers) and not knows_parts(Kind.PPO, numbers)
    assert not knows_parts(Kind.VALUE, ValueNumbers(value_loss=value_loss('two_hot')))
    assert knows_parts(Kind.AUX, AuxNumbers())
    assert not knows_parts(Kind.PPO, PolicyNumbers(proximal='ewma'))
    assert not knows_parts(Kind.AUX, AuxNumbers(precision='bf16'))


def test_bounds_and_ranges_are_those_of_the_options_or_the_clip_ratio() -> None:
    asymmetric = surrogate({'type': 'asymmetric_clip', 'high': 0.4})
    found = step_spec(Kind.PPO, True, PolicyNumbers(0.1, surrogate=asymmetric, value_loss=value_loss('clip')))
    assert found[:2] == (Kind.PPO, True)
    assert (found.surrogate, found.clip_low, found.clip_high) == (Surrogate.CLIP, 0.1, 0.4)
    assert (found.value_loss, found.value_range) == (ValueLoss.CLIPPED_VALUE, 0.1)
    ranges = {'clip': 0.7, 'error_clip': 4.0}
    for name, limit in ranges.items():
        numbers = ValueNumbers(0.1, value_loss=value_loss({'type': name, 'range': limit}))
        assert step_spec(Kind.VALUE, False, numbers).value_range == limit
    huber = step_spec(Kind.VALUE, False, ValueNumbers(value_loss=value_loss({'type': 'huber', 'delta': 2.0})))
    assert (huber.value_loss, huber.value_range) == (ValueLoss.HUBER, 2.0)


def test_weight_of_the_penalty_is_an_option_of_the_step() -> None:
    numbers = PolicyNumbers(entropy_weight=0.02, surrogate=surrogate('spo'), penalties=(KL,), penalty_weights=(0.3,))
    found = step_spec(Kind.POLICY, False, numbers)
    assert (found.surrogate, found.kl_penalty, found.entropy_weight) == (Surrogate.SPO, 0.3, 0.02)
    assert step_spec(Kind.POLICY, False, PolicyNumbers()).kl_penalty is None
    assert step_spec(Kind.AUX, False, AuxNumbers(2.5, None)).bc_weight == 2.5
