"""The envs of a runner, as the learner's side sees them: what may be asked of them, and what may be set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoo.cluster.engine import Engine, RunnerLostError
from zoo.cluster.orders import Orders
from zoo.core.spaces import Space
from zoo.env.attributes import EnvCommand, sendable


class RemoteEnvs:
    """Stands for the envs of one runner in `Parts.envs`; they step only when their runner collects.

    Commands wait for what the runner was asked before. What was set is set again where the runner is made anew.
    """

    steps_async = True  # so that the time of a rollout is that of waiting
    autoreset = 'same_step'  # without a meaning here: the learner reads no infos

    def __init__(
        self, engine: Engine, orders: Orders, group: int, n_env: int, name: str, spaces: tuple[Space, Space]
    ) -> None:
        self._engine, self._orders, self._group = engine, orders, group
        self.n_env, self.name = n_env, name
        self.obs_space, self.action_space = spaces
        self.watched: tuple[str, ...] = ()
        self.info_columns: tuple[str, ...] = ()

    def command(self, command: EnvCommand) -> list[Any]:
        """As `VectorEnv.command`, for the envs of the runner."""
        sendable(command)
        if command.kind == 'set':
            found = self._call('command', command)
            self._orders.commands[command.name] = command  # only once it is known to be good
            return found
        return self._call('command', command)

    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        """As `VectorEnv.set_reset_options`."""
        self._call('set_reset_options', options)
        self._orders.reset_options = options

    def watch(self, keys: Sequence[str]) -> None:
        """Nothing: the runner knows which entries are kept."""

    def compile(self, compile: Any) -> None:
        """Nothing to compile: these envs are no tensor programs."""

    def check(self) -> None:
        """Nothing: the runner has looked at every step."""

    def close(self) -> None:
        """Nothing: the engine ends its runners."""

    def _call(self, method: str, *args: Any) -> Any:
        while True:  # ends by the limit on losses at the latest
            try:
                return self._engine.call(self._group, method, *args)
            except RunnerLostError:
                self._orders.settle()
