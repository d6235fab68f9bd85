"""The registered optimisers: options from a config, the policy's epsilon, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from tests.rl_utils.test_muon import make_net
from zoo.config.components import checked_spec, make_part
from zoo.config.section import ConfigError
from zoo.core.registry import OPTIMIZER_REGISTRY
from zoo.rl_utils.optimizer import FlatAdam, FlatOptimizer
from zoo.rl_utils.optimizers import Matrix, MuonRule
from zoo.rl_utils.update_rules import AdamRule, RMSpropRule, SGDRule

PATH = 'policy.learn.optimizer'


def optimizer_of(spec: Any, net: nn.Module, *args: Any) -> FlatOptimizer:
    part = make_part(OPTIMIZER_REGISTRY, checked_spec(OPTIMIZER_REGISTRY, spec, PATH))
    return part(net.named_parameters(), *args)


@pytest.mark.parametrize(
    'spec, rule',
    [
        ('adam', AdamRule(eps=1e-4)),
        ({'type': 'adam', 'betas': [0.8, 0.9], 'eps': 1e-3}, AdamRule((0.8, 0.9), 1e-3)),
        ({'type': 'adamw', 'weight_decay': 0.1}, AdamRule((0.9, 0.999), 1e-4, 0.1)),
        ({'type': 'rmsprop', 'momentum': 0.5}, RMSpropRule(0.99, 1e-4, 0.5)),
        ({'type': 'sgd', 'momentum': 0.5, 'nesterov': True}, SGDRule(0.5, True)),
        # 3 * 8 + 8 numbers before it; then 6 * 8 + 6
        ({'type': 'muon'}, MuonRule((Matrix(32, 6, 8), Matrix(86, 8, 6)), adam=AdamRule(eps=1e-4))),
    ],
)
def test_options_make_the_rule_and_null_is_the_epsilon_of_the_policy(spec: Any, rule: Any) -> None:
    assert optimizer_of(spec, make_net(), 1e-4).rule == rule


def test_only_adam_is_the_class_that_c_knows() -> None:
    kinds = {name: type(optimizer_of(name, make_net())) for name in OPTIMIZER_REGISTRY.names()}
    assert {name for name, kind in kinds.items() if kind is FlatAdam} == {'adam'}
    assert optimizer_of('adam', make_net(), 1e-3).rates == (1e-3, 0.9, 0.999, 1e-3)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    'spec, sentence',
    [
        ('adma', "unknown optimizer 'adma': did you mean 'adam' or 'adamw'?"),
        ({'type': 'sgd', 'nesterovv': True}, f'unknown key {PATH}.nesterovv: did you mean {PATH}.nesterov?'),
        ({'type': 'adam', 'betas': [0.9, 1.0]}, r'betas is \[0.9, 1.0\] \(list\) but must be \[a number >= 0 and < 1'),
        ({'type': 'adam', 'weight_decay': 0.1}, f'unknown key {PATH}.weight_decay'),
        ({'type': 'rmsprop', 'eps': 0}, rf'{PATH}.eps is 0 \(integer\) but must be a number > 0 or null'),
    ],
)
def test_option_out_of_range_or_of_another_optimizer_is_refused(spec: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace('?', r'\?')):
        checked_spec(OPTIMIZER_REGISTRY, spec, PATH)
