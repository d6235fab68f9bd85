"""The place in an update where callbacks see gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from zoo.policy.hooks import gradient_ready, listening

LOSS = torch.ones((), requires_grad=True)


def test_gradient_is_shown_to_the_listener_alone_and_only_inside_the_context() -> None:
    seen: list[Any] = []
    gradient_ready(['outside'], LOSS)
    with listening(lambda optimizers, loss: seen.append((optimizers, loss.requires_grad))):
        gradient_ready(['inside'], LOSS)
        with listening(None):
            gradient_ready(['nobody'], LOSS)
        gradient_ready(['again'], LOSS)
    gradient_ready(['outside'], LOSS)
    assert seen == [(['inside'], False), (['again'], False)]


def test_listener_that_raises_is_gone_afterwards() -> None:
    def refuse(optimizers: Any, loss: Any) -> None:
        raise RuntimeError('no')

    with pytest.raises(RuntimeError, match='no'), listening(refuse):
        gradient_ready([], LOSS)
    gradient_ready([], LOSS)
