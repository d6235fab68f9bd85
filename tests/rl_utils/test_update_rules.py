"""Update rules against torch.optim, run eagerly; compiled ones are in tests/backend/test_graph.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.rl_utils.small_net import CLOSE, loss_of, make_net, parameters, train
from zoo.core.errors import UserError
from zoo.rl_utils.optimizer import FlatAdam, FlatOptimizer
from zoo.rl_utils.update_rules import AdamRule, RMSpropRule, SGDRule, UpdateRule

LR = 0.01
CASES: dict[str, tuple[UpdateRule, Callable[[Any], torch.optim.Optimizer]]] = {
    'adam': (AdamRule(eps=1e-8), lambda p: torch.optim.Adam(p, LR)),
    'adam, first moment off': (AdamRule((0.0, 0.99), 1e-3), lambda p: torch.optim.Adam(p, LR, (0.0, 0.99), 1e-3)),
    'adamw': (
        AdamRule((0.8, 0.95), 1e-5, 0.1),
        lambda p: torch.optim.AdamW(p, LR, (0.8, 0.95), 1e-5, weight_decay=0.1),
    ),
    'rmsprop': (RMSpropRule(eps=1e-3), lambda p: torch.optim.RMSprop(p, LR, eps=1e-3)),
    'rmsprop with momentum': (
        RMSpropRule(0.9, 1e-3, 0.5, 0.1),
        lambda p: torch.optim.RMSprop(p, LR, 0.9, 1e-3, weight_decay=0.1, momentum=0.5),
    ),
    'sgd': (SGDRule(), lambda p: torch.optim.SGD(p, LR)),
    'sgd with momentum': (
        SGDRule(0.9, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, LR, momentum=0.9, weight_decay=0.1),
    ),
    'sgd with nesterov': (SGDRule(0.9, True), lambda p: torch.optim.SGD(p, LR, momentum=0.9, nesterov=True)),
}


@pytest.mark.parametrize('name', CASES)
def test_forty_steps_equal_those_of_torch(name: str) -> None:
    rule, reference = CASES[name]
    net, other = make_net(), make_net()
    optimizer = FlatOptimizer(net.named_parameters(), rule, LR)
    train(net, optimizer, range(20))
    train(net, optimizer, range(20, 40), 0.5)
    torch_optimizer = reference(other.parameters())
    for step in range(40):
        torch_optimizer.zero_grad()
        loss_of(other, step).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.5 if step >= 20 else float('inf'))
        torch_optimizer.step()
    torch.testing.assert_close(parameters(net), parameters(other), rtol=0, atol=1e-6)
    assert optimizer.step_count == 40


@pytest.mark.parametrize('grad_clip, options', [(None, {}), (0.5, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-8))])
def test_adam_rule_equals_the_fused_step(grad_clip: float | None, options: dict[str, Any]) -> None:
    """All buffers agree, also after a step in the middle whose gradient is not finite."""
    net, other = make_net(), make_net()
    fused = FlatAdam(net.named_parameters(), **options)
    written_out = FlatOptimizer(other.named_parameters(), fused.rule, fused.lr)
    for step in range(12):
        before = [x.clone() for x in written_out.buffers.values()]
        for each, optimizer in ((net, fused), (other, written_out)):
            optimizer.zero_grad()
            loss_of(each, step, 10.0).backward()
            if step == 5:
                optimizer.grad[7] = float('nan')
            optimizer.step(grad_clip)
        states = fused.buffers.items(), written_out.buffers.values()
        for (name, x), y, old in zip(*states, before, strict=True):
            torch.testing.assert_close(x, y, equal_nan=True, **CLOSE)
            assert step != 5 or name == 'grad' or torch.equal(y, old)
    assert written_out.step_count == fused.step_count == 11


@pytest.mark.parametrize('name', CASES)
def test_rule_is_pure_and_hashable(name: str) -> None:
    rule = CASES[name][0]
    n = 5
    state = {key: torch.rand(n, generator=torch.Generator().manual_seed(1)) for key in ('param', *rule.moments)}
    state['step_count'] = torch.tensor(3.0)
    before: dict[str, Tensor] = {key: x.clone() for key, x in state.items()}
    new = rule(state, torch.ones(n), LR)
    assert all(torch.equal(x, before[key]) for key, x in state.items())
    assert set(new) == {'param', *rule.moments} and not torch.equal(new['param'], state['param'])
    assert hash(rule) == hash(CASES[name][0])


def test_nesterov_without_momentum_is_refused() -> None:
    with pytest.raises(UserError, match='nesterov without momentum, which it looks ahead along; set momentum'):
        SGDRule(nesterov=True)
