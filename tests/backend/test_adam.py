"""The Adam step that compilers fuse, against that of FlatAdam."""

from __future__ import annotations

import pytest
import torch

from tests.rl_utils.test_optimizer import CLOSE, loss_of, make_net
from zoo.backend.adam import adam_step
from zoo.rl_utils.optimizer import FlatAdam, FlatState


@pytest.mark.parametrize('grad_clip', [None, 0.5])
@pytest.mark.parametrize('options', [{}, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-8)])
def test_adam_step_equals_the_fused_step(grad_clip, options):
    """Of a compiled update; with a step in the middle that is not finite."""
    net = make_net()
    optimizer = FlatAdam(net.named_parameters(), **options)
    state = FlatState(*(x.clone() for x in optimizer.state))
    for step in range(12):
        optimizer.zero_grad()
        loss_of(net, step, 10.0).backward()
        if step == 5:
            optimizer.grad[7] = float('nan')
        state = state._replace(grad=optimizer.grad.clone())
        norm = torch.linalg.vector_norm(state.grad)
        before, state = state, adam_step(state, norm, grad_clip, optimizer.rates, norm.isfinite())
        optimizer.step(grad_clip)
        for x, y, old in zip(state, optimizer.state, before, strict=True):
            torch.testing.assert_close(x, y, equal_nan=True, **CLOSE)
            assert step != 5 or torch.equal(x.nan_to_num(), old.nan_to_num())
    assert state.step_count == optimizer.step_count == 11
