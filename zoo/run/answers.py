"""What the functions that a user gives to a run did: the answer of on_evaluation, and whether on_gradient was called."""

from __future__ import annotations

from typing import Any

from zoo.config.messages import shown
from zoo.core.errors import UserError
from zoo.run.callbacks import Callbacks


def asks_to_stop(answer: Any) -> bool:
    """Whether on_evaluation returned 'stop'. Raises: UserError if it returned anything else but None."""
    if answer not in (None, 'stop'):
        raise UserError(f"on_evaluation returned {shown(answer)} but must return 'stop' or None")
    return answer == 'stop'


def no_gradient_seen(callbacks: Callbacks, n_step: int) -> UserError:
    """The error for callbacks with on_gradient that no gradient step called."""
    return UserError(
        f'callback {callbacks.names("on_gradient")} has on_gradient, which none of the first {n_step} gradient steps called: '
        'the policy has steps of its own; call zoo.policy.hooks.gradient_ready(optimizers, loss) in them after each '
        'backward pass, or leave on_gradient out'
    )
