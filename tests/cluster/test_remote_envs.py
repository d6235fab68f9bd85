"""What stands for the envs of a runner: commands reach it, and what was set is kept for the runner made anew."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.test_scheduler import RUN, FaultyEngine
from zoo.cluster.messages import RunnerLostError
from zoo.cluster.remote_collector import RemoteEnvs
from zoo.cluster.scheduler import Orders
from zoo.core.errors import UserError
from zoo.core.spaces import Discrete
from zoo.env.attributes import EnvCommand


class CallEngine(FaultyEngine):
    """Answers with the call itself; `n_loss` times its runner is lost instead."""

    def __init__(self, n_loss: int = 0) -> None:
        super().__init__(1)
        self.n_loss = n_loss

    def call(self, group: int, method: str, *args: Any) -> list[Any]:
        if self.n_loss:
            self.n_loss -= 1
            self.lose(group, 'a test')
            raise RunnerLostError('a test')
        if args and isinstance(args[0], EnvCommand) and args[0].name == 'typo':
            raise UserError('there is no typo')
        return [(group, method, *args)]


def made(engine: CallEngine) -> tuple[RemoteEnvs, Orders]:
    orders = Orders(engine, RUN, 1, 0)  # type: ignore[arg-type]
    return RemoteEnvs(engine, orders, 0, 3, 'x', (Discrete(2), Discrete(3))), orders  # type: ignore[arg-type]


def test_what_was_set_is_kept_and_a_mistake_is_not() -> None:
    envs, orders = made(CallEngine())
    command = EnvCommand('set', 'gravity', (5.0,))
    assert envs.command(command) == [(0, 'command', command)]
    envs.command(EnvCommand('get', 'mass'))
    with pytest.raises(UserError, match='no typo'):
        envs.command(EnvCommand('set', 'typo', (1,)))
    envs.set_reset_options({'low': 1})
    assert orders.commands == {'gravity': command} and orders.reset_options == {'low': 1}
    assert envs.action_space == Discrete(3) and envs.n_env == 3


def test_a_command_is_given_again_to_the_runner_made_anew() -> None:
    envs, orders = made(CallEngine(n_loss=2))
    command = EnvCommand('get', 'gravity')
    assert envs.command(command) == [(0, 'command', command)]
    assert orders.n_restart == 2


def test_a_value_that_cannot_be_sent_is_refused() -> None:
    envs, _ = made(CallEngine())
    with pytest.raises(UserError, match="set of 'gravity' has a value that cannot be sent"):
        envs.command(EnvCommand('set', 'gravity', (lambda: 1,)))
