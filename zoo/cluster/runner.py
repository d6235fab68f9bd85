"""Runner: envs and a policy that only acts; it collects rollouts when a learner requests them."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.backend.trace import named_tensors
from zoo.cluster.messages import Placement, Reply, Request, WeightLayout, flat, place
from zoo.cluster.pickled_code import check_versions, unpacked
from zoo.config.section import Config
from zoo.core.data import as_tensors
from zoo.core.errors import UserError
from zoo.env import make_env_groups
from zoo.env.interface import EnvCommand
from zoo.env.restarts import Restarts
from zoo.policy.base import Policy
from zoo.worker.collector import rollout_columns
from zoo.worker.env_watch import watch_calls
from zoo.worker.own_numbers import Logged
from zoo.worker.runner_view import RunnerView, TellRunner


@dataclass(frozen=True)
class RunnerSpec:
    """The data that a runner is created from; plain values, so that any pickler can send it.

    group: index of the runner; first: index of its first env among all envs of the run; n_env: number of its envs.
    n_group: groups of its envs that take turns; None: the runner chooses.
    versions: of zoo, torch and Python at the learner; digest: of the layout of the learner's weights.
    payload: policy, config and the user's own code, see `zoo.cluster.pickled_code`; the same for all runners.
    n_thread: threads of torch.   placements: of the learner's weights in memory, by name.
    """

    group: int
    first: int
    n_env: int
    n_group: int | None
    versions: Mapping[str, str]
    digest: str
    payload: bytes
    n_thread: int = 1
    placements: Mapping[str, Placement] = field(default_factory=dict)


class Runner:
    """Collects rollouts of its envs. It knows no engine, no algorithm and no other runner.

    Raises: UserError if versions, spaces or weights differ from the learner's, or if code cannot be imported here; the
      exceptions of creating the envs.
    """

    def __init__(self, spec: RunnerSpec) -> None:
        self._spec = spec
        host = socket.gethostname()
        check_versions(spec.versions, host)
        payload = unpacked(spec.payload, host)
        device = next(iter(payload.policies.values()))['device']
        env = {**payload.env, 'collector_env_num': spec.n_env, 'collector_group_num': spec.n_group}
        self._restarts = Restarts(env['max_restarts'])
        self._timeout = env['step_timeout']
        with ExitStack() as undo, _threads(spec.n_thread), watch_calls(self._timeout):
            envs = make_env_groups(env, device, self._restarts, spec.first, payload.seed)
            self._envs = [undo.enter_context(closing(each)) for each in envs]
            spaces = payload.spaces
            if (envs[0].obs_space, envs[0].action_space) != spaces:
                raise UserError(
                    f'the envs on {host} have {envs[0].obs_space} and {envs[0].action_space} but the learner found '
                    f'{spaces[0]} and {spaces[1]}; install the same version of the env on both'
                )
            policies = {name: _made(made_of) for name, made_of in payload.policies.items()}
            if WeightLayout(acting_state(policies)).digest != spec.digest:
                raise UserError(
                    f'the policy made on {host} has other weights than that of the learner; install the same code on both'
                )
            of_models = joined_names({name: named_tensors(each.model) for name, each in policies.items()})
            place(of_models, {name: where for name, where in spec.placements.items() if name in of_models})
            self._layout = WeightLayout(acting_state(policies))
            modes = {name: each.collect_mode for name, each in policies.items()}
            self._collector = payload.collector(self._envs, modes, payload.infos, spec.first)
            self._tell: TellRunner | None = payload.tell
            self._view = RunnerView(spec.group, self._envs)
            self._undo = undo.pop_all()
        self._version = -1
        self._has_reset = False

    def load(self, weights: np.ndarray, version: int) -> None:
        """Acts with these weights [n_byte] u8 from now on; they are copied."""
        if version != self._version:
            self._layout.unpack(weights)
            self._version = version

    def collect(self, request: Request) -> Reply:
        """Collects the requested rollout. Its blocks are this runner's memory, valid until the next call.

        The reply has no blocks if the envs were never reset: then the request was meant for a lost runner before this one.
        """
        if request.reset_seed is None and not self._has_reset:
            key = request.run_id, request.group, request.collect_iter, self._version
            return Reply(*key, {}, [], [], {}, request.attempt)
        with _threads(self._spec.n_thread), watch_calls(self._timeout):
            self._prepare(request)
            start = perf_counter()
            before = self._collector.env_time
            self._collector.collect_iter = request.collect_iter
            self._collector.env_step = request.env_step
            steps = self._collector.fill_block()
            env_s = self._collector.env_time - before
            time = {'env': env_s, 'act': perf_counter() - start - env_s}
            numbers: Sequence[Logged] = ()
            if self._tell is not None:
                numbers = self._view.see(self._tell, self._collector, rollout_columns(self._collector.block, steps))
        block = self._collector.block
        columns = {name: tree for name, tree in block.columns().items() if name != 'obs'}
        trees = {'obs': block.obs, 'steps': columns, 'output': steps.output, 'state': steps.state, 'info': steps.infos}
        blocks = flat({name: tree for name, tree in trees.items() if tree is not None})
        key = request.run_id, request.group, request.collect_iter, self._version
        counts = request.attempt, self._restarts.count
        return Reply(*key, blocks, steps.finals, list(steps.episodes), time, *counts, numbers)

    def command(self, command: EnvCommand) -> list[Any]:
        """Sends a command to each env and returns the results, see `VectorEnv.command`."""
        return [value for env in self._envs for value in env.command(command)]

    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        for env in self._envs:
            env.set_reset_options(options)

    def close(self) -> None:
        self._undo.close()

    def _prepare(self, request: Request) -> None:
        for command in request.commands:
            self.command(command)
        if request.reset_options is not None:
            self.set_reset_options(dict(request.reset_options))
        if request.reset_seed is not None:
            self._collector.reset(np.random.SeedSequence(list(request.reset_seed)))
            self._has_reset = True


def _made(made_of: Mapping[str, Any]) -> Policy:
    """A policy that only acts. Args: made_of: one of `RunnerPayload.policies`."""
    policy: Policy = made_of['class'](Config(made_of['cfg']), enable_field=['collect'], **made_of['options'])
    return policy


def acting_state(policies: Mapping[str, Policy]) -> dict[str, Tensor]:
    """The tensors that acting needs of all policies. Args: policies: by learner."""
    found: dict[str, Tensor] = as_tensors(
        joined_names({name: policy.acting_state() for name, policy in policies.items()}), 'acting_state()'
    )
    return found


def joined_names(tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of each learner, with its name in front of theirs; the only learner of a run has the name ''."""
    return {
        f'{name}/{key}' if name else key: x for name, of_learner in tensors.items() for key, x in of_learner.items()
    }


@contextmanager
def _threads(n: int) -> Iterator[None]:
    """Makes torch compute with n threads in this context."""
    before = torch.get_num_threads()
    if before == n:
        yield
        return
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
