"""Collection by runners: starts them, joins their rollouts in the learner's own block, and passes commands to their envs."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo.backend.choose import Compile
from zoo.cluster.config import ClusterConfig, RunConfig, engine_of
from zoo.cluster.engine import Engine, InlineEngine
from zoo.cluster.messages import Reply, RunnerLostError, WeightLayout, nested, placements
from zoo.cluster.pickled_code import RunnerPayload, packed, versions
from zoo.cluster.runner import RunnerSpec, acting_state
from zoo.cluster.scheduler import RolloutScheduler, entropy_of
from zoo.config.section import ConfigLike, plain
from zoo.core.data import leaves
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.core.spaces import Leaf, Space, map_spaces, obs_dtype
from zoo.env import EnvConfig
from zoo.env.errors import EnvError
from zoo.env.interface import BlockField, EnvCommand, StepBlock
from zoo.env.restarts import Restarts
from zoo.env.settings import keep_setting, sendable
from zoo.policy.base import Policy
from zoo.policy.modes import CollectMode
from zoo.worker.collector import Collector, EnvGroup, RolloutExtras
from zoo.worker.info_columns import joined_infos
from zoo.worker.infos import InfoKeys
from zoo.worker.own_numbers import Logged
from zoo.worker.runner_view import TellRunner

TakeNumbers = Callable[[Sequence[Logged]], None]


class RemoteEnvs:
    """A proxy in `Parts.envs` for the envs of one runner, which step only when the runner collects.

    A command waits until the runner has served its earlier requests. A replaced runner gets the same settings again.
    """

    steps_async = True  # the time of these envs is the time spent waiting

    def __init__(
        self,
        engine: Engine,
        scheduler: RolloutScheduler,
        group: int,
        n_env: int,
        name: str,
        spaces: tuple[Space, Space],
    ) -> None:
        self.engine = engine
        self._scheduler = scheduler
        self._group = group
        self.n_env = n_env
        self.name = name
        self.obs_space, self.action_space = spaces

    def command(self, command: EnvCommand) -> list[Any]:
        found: list[Any] = self._call('command', sendable(command))
        if command.kind == 'set':
            keep_setting(self._scheduler.commands, command)  # only after it has succeeded
        return found

    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        self._call('set_reset_options', options)
        self._scheduler.reset_options = options

    def compile(self, compile: Compile) -> None:
        """Does nothing: these envs are not tensor programs."""

    def close(self) -> None:
        """Does nothing: the engine ends its runners."""

    def _call(self, method: str, *args: Any) -> Any:
        while True:  # the limit on losses ends it
            try:
                return self.engine.call(self._group, method, *args)
            except RunnerLostError:
                self._scheduler.settle()


FIELDS: tuple[BlockField, ...] = ('is_reset', 'raw_reward', 'raw_end', 'begins', 'is_broken')
MEGABYTE = 1e6


class RemoteCollector(Collector):
    """Collector that requests rollouts from runners and joins them along the env dimension of one block.

    max_lag 0: publishes the weights, requests the rollout and waits for it. 1: requests a rollout before the last update,
    with the weights of that time, so that it is collected during the update. More: runners run ahead, and each begins a
    rollout with the newest weights that it has.

    Args: envs: of each runner; mode: of the policy that learns; scheduler: over the engine; layout: of the weights that acting
      needs; restarts: counts restarted envs; info_columns: of the section env; reader: a GPU that reads the block, see
      `StepBlock`; take_numbers: gets what the callbacks of runners logged, runner by runner.
    """

    def __init__(
        self,
        envs: Sequence[RemoteEnvs],
        mode: CollectMode,
        engine: Engine,
        scheduler: RolloutScheduler,
        layout: WeightLayout,
        max_lag: int,
        restarts: Restarts,
        info_columns: Sequence[str] = (),
        reader: torch.device | None = None,
        take_numbers: TakeNumbers | None = None,
    ) -> None:
        super().__init__(envs, mode)  # type: ignore[arg-type]  # these envs step elsewhere
        self._env_time = 0.0
        self._envs = envs
        self.engine = engine
        self._scheduler = scheduler
        self._layout = layout
        self._max_lag = max_lag
        self._restarts = restarts
        self._columns = info_columns
        self._reader = reader
        self._take_numbers = take_numbers
        self._whole: dict[str, Tensor] = {}  # memory for all envs, by the name of a reply's block
        self._asked_to = -1  # index of the last rollout that was requested
        self._seed: tuple[int, ...] | None = None  # of the reset before the next rollout
        self._version = -1
        self._n_restart: dict[tuple[int, int], int] = {}  # restarted envs, by runner and attempt
        self._begin_metrics()

    @property
    def env_time(self) -> float:
        return self._env_time

    def _make_groups(self, envs: Sequence[object], infos: InfoKeys, first: int) -> list[EnvGroup]:
        """Returns no groups: the block is created when the first reply arrives."""
        return []

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Begins new episodes in all envs before the next rollout. Raises: UserError if runners are ahead of the run."""
        if not self._scheduler.is_idle:
            raise UserError(
                f'the training envs cannot be reset now: cluster.max_lag is {self._max_lag}, and runners have begun the next '
                'rollout; use cluster.max_lag=0'
            )
        super().reset(seed)
        self._seed = entropy_of(seed)
        self._asked_to = -1

    def fill_block(self) -> RolloutExtras:
        """Fills the block with the rollout of all runners."""
        start = perf_counter()
        collect_iter = self.collect_iter
        env_step = self.env_step
        if self._whole:
            self.block.restart()
        if collect_iter > self._asked_to:
            self._ask(collect_iter, collect_iter, env_step)
        if self._max_lag > 1:
            for i in range(self._asked_to + 1, collect_iter + self._max_lag + 1):
                self._ask(i, collect_iter, env_step)
        found: dict[int, Reply] = {}
        infos: dict[int, dict[str, np.ndarray]] = {}
        fresh: list[slice] = []
        join_s = 0.0
        wait_from = perf_counter()

        def use(reply: Reply, is_fresh: bool) -> None:
            nonlocal join_s
            before = perf_counter()
            envs = self._envs_of(reply.group)
            fresh.extend([envs] if is_fresh else [])
            infos[reply.group] = self._place(reply)
            found[reply.group] = reply._replace(blocks={})
            self._note(reply, collect_iter)
            join_s += perf_counter() - before

        self._scheduler.wait(collect_iter, use)
        self._times['wait'] += perf_counter() - wait_from - join_s
        self._times['join'] += join_s
        if self._max_lag == 1:
            self._ask(collect_iter + 1, collect_iter, env_step)
        replies = [found[group] for group in sorted(found)]
        finals = [
            (t, envs + self._envs_of(reply.group).start, obs) for reply in replies for t, envs, obs in reply.finals
        ]
        if self._take_numbers is not None:
            for reply in replies:
                self._take_numbers(reply.numbers)
        self._times['n'] += 1
        self._env_time += perf_counter() - start
        groups = [(env.n_env, infos[group]) for group, env in enumerate(self._envs)]
        joined = joined_infos(groups, self._columns, self._n_step, self._envs[0].name)
        whole = nested({name: x for name, x in self._whole.items() if name.partition('.')[0] in ('output', 'state')})
        # the same order as with one process: by t, then by env
        episodes = sorted((each for reply in replies for each in reply.episodes), key=lambda episode: episode[0])
        return RolloutExtras(whole['output'], whole.get('state'), finals, joined, episodes, fresh)

    def metrics(self, ranks: Ranks = ALONE) -> dict[str, float]:
        """Returns the metrics of this rank's runners for the log; times are means over the rollouts since the last call."""
        times = self._times
        n = max(self._times['n'], 1.0)
        found: dict[str, float] = {
            'cluster/runner': len(self.engine.pids()),
            'cluster/restart': self._scheduler.n_restart,
            'cluster/discarded_step': self._scheduler.n_discarded,
            'cluster/mb_per_s': times['n_byte'] / MEGABYTE / max(perf_counter() - self._since, 1e-9),
            **{f'cluster/{name}_s': times[name] / n for name in ('put', 'wait', 'join')},
            **{f'time/runner_{name}_s': times[name] / n / len(self._envs) for name in ('env', 'act')},
        }
        if self._lags:
            found |= {'collect/lag_mean': sum(self._lags) / len(self._lags), 'collect/lag_max': max(self._lags)}
        self._begin_metrics()
        return found

    def _begin_metrics(self) -> None:
        self._times = dict.fromkeys(('put', 'wait', 'join', 'env', 'act', 'n', 'n_byte'), 0.0)
        self._lags = list[int]()
        self._since = perf_counter()

    def _ask(self, i: int, version: int, env_step: int) -> None:
        """Requests rollout i with the current weights. They are of version `version` and are published once."""
        if version != self._version:
            before = perf_counter()
            self.engine.publish(self._layout.pack(), version)
            self._version = version
            self._times['put'] += perf_counter() - before
            self._times['n_byte'] += self._layout.n_byte * len(self._envs)
        self._scheduler.ask(i, version if self._max_lag <= 1 else None, env_step, self._seed)
        self._seed = None
        self._asked_to = i

    def _envs_of(self, group: int) -> slice:
        n_env = self._envs[group].n_env  # the same for all runners
        return slice(group * n_env, (group + 1) * n_env)

    def _place(self, reply: Reply) -> dict[str, np.ndarray]:
        """Copies a reply's blocks to the columns of its rows. Returns: the blocks of infos; not every reply has each of them."""

        def like(leaf: Leaf) -> Tensor:
            return torch.empty((self.n_env, *leaf.shape), dtype=obs_dtype(leaf))

        if not self._whole:
            also = [name for name in FIELDS if f'steps.{name}' in reply.blocks]
            self.block = StepBlock(self._n_step, map_spaces(like, self._envs[0].obs_space), also, reader=self._reader)
            columns = {name: x for name, x in self.block.columns().items() if name != 'obs'}
            self._whole |= leaves({'obs': self.block.obs, 'steps': columns})
        infos = {}
        for name, rows in reply.blocks.items():
            if name.startswith('info.'):
                infos[name[len('info.') :]] = rows.copy()
                continue
            is_state = name.partition('.')[0] == 'state'
            # a policy of several agents has as many rows in each env
            n_row = rows.shape[0 if is_state else 1]
            if name not in self._whole:
                n_whole = n_row * len(self._envs)
                if is_state:
                    shape = (n_whole, *rows.shape[1:])
                else:
                    shape = (len(rows), n_whole, *rows.shape[2:])
                self._whole[name] = torch.empty(shape, dtype=torch.from_numpy(rows[:0].copy()).dtype)
            own = slice(reply.group * n_row, (reply.group + 1) * n_row)
            self._whole[name].numpy()[own if is_state else (slice(None), own)] = rows
        return infos

    def _note(self, reply: Reply, collect_iter: int) -> None:
        self._lags.append(collect_iter - reply.version)
        self._times['n_byte'] += reply.n_byte
        for name in ('env', 'act'):
            self._times[name] += reply.time[name]
        key = (reply.group, reply.attempt)
        restarts = self._restarts
        restarts.count += reply.n_restart - self._n_restart.get(key, 0)
        self._n_restart[key] = reply.n_restart
        if restarts.count > restarts.limit:
            raise EnvError(
                f'envs were made anew {restarts.count} times, wanted at most {restarts.limit} times in a run; fix the env, or '
                'raise env.max_restarts.'
            )


logger = logging.getLogger(__name__)


def start_runners(
    engine: Engine,
    run_id: str,
    cfg: RunConfig,
    policies: Mapping[str, Policy],
    env: tuple[str, Space, Space],
    payload: RunnerPayload,
    restarts: Restarts,
    rank: int = 0,
    take_numbers: TakeNumbers | None = None,
) -> tuple[RemoteCollector, list[RemoteEnvs]]:
    """Starts the runners of one process that learns. Returns: the collector of blocks and the envs that this process uses.

    Args: cfg: of this process, resolved; policies: the complete policies with whose weights runners act, by learner; env:
      name, observation space and action space of the training envs; payload: of `payload_of`; restarts: counts the envs that
      runners restart; rank: of this process; take_numbers: see `RemoteCollector`.
    Raises: as `Engine.start`; UserError for code that cannot be sent.
    """
    n_runner = cfg.cluster.runner_num
    cluster = cfg.cluster
    n_env = cfg.env.collector_env_num // n_runner
    n_group = cfg.env.collector_group_num
    acting = acting_state(policies)
    layout = WeightLayout(acting)
    placed = placements(acting)
    policy = next(iter(policies.values()))
    data = packed(payload)
    if n_group is not None:
        n_group //= n_runner
    n_thread = cfg.policy.n_thread or 1
    firsts = [rank * cfg.env.collector_env_num + group * n_env for group in range(n_runner)]
    engine.start(
        [
            RunnerSpec(group, first, n_env, n_group, versions(), layout.digest, data, n_thread, placed)
            for group, first in enumerate(firsts)
        ]
    )
    logger.info(_placed(cluster, n_runner, n_env, engine.pids()))
    timeout = cluster.runner_timeout
    limit = cluster.restart_limit
    start_s = cluster.start_timeout
    scheduler = RolloutScheduler(engine, run_id, n_runner, cfg.seed, cluster.max_lag, timeout, limit, start_s)
    reader = None
    if policy.device.type == 'cuda':
        reader = policy.device
    mode = policy.collect_mode
    columns = cfg.env.info_columns
    envs = [RemoteEnvs(engine, scheduler, group, n_env, env[0], env[1:]) for group in range(n_runner)]
    lag = cluster.max_lag
    return RemoteCollector(envs, mode, engine, scheduler, layout, lag, restarts, columns, reader, take_numbers), envs


def _placed(cluster: ClusterConfig, n_runner: int, n_env: int, pids: Mapping[int, tuple[str, int]]) -> str:
    """Returns a line for the log: the number of runners, their hosts and their processes."""
    where = {'inline': 'this process', 'process': 'processes of this machine'}.get(str(engine_of(cluster)), 'Ray')
    hosts: dict[str, list[str]] = {}
    for host, pid in pids.values():
        hosts.setdefault(host, []).append(str(pid))
    places = ', '.join(f'{host} (processes {" ".join(dict.fromkeys(found))})' for host, found in hosts.items())
    lag = cluster.max_lag
    return (
        f'{n_runner} runner{"s" if n_runner > 1 else ""} in {where}, {n_env} env{"s" if n_env > 1 else ""} each, weights at most '
        f'{lag} update{"" if lag == 1 else "s"} old: {places}'
    )


def payload_of(
    cfg: RunConfig,
    policies: Mapping[str, Policy],
    env: EnvConfig,
    spaces: tuple[Space, Space],
    infos: InfoKeys,
    collector: Callable[..., Collector],
    tell: TellRunner | None = None,
) -> RunnerPayload:
    """Returns the data from which runners create their envs and policies.

    Args: cfg: of the run; policies: by learner; env: the section from which envs are made; others: as in `RunnerPayload`.
    """
    made_of = {name: _made_of(cfg, policy) for name, policy in policies.items()}
    return RunnerPayload(made_of, plain(env), InfoKeys(infos.last, infos.step), cfg.seed, spaces, collector, tell)


def _made_of(cfg: RunConfig, policy: Policy) -> dict[str, Any]:
    """The class of a policy, and the arguments with which a runner makes one that acts as it does."""
    section = plain(policy.cfg)
    if cfg.cluster.runner_gpu:
        device = 'cuda'
    else:
        device = 'cpu'
    if device != policy.device.type and 'executor' in section.get('learn', {}):
        section['learn']['executor'] = 'auto'  # the learner's executor was chosen for its own device
    given: nn.Module | None = None
    if policy.given_model is not None:
        given = copy.deepcopy(policy.model).to('cpu')
    options: dict[str, Any] = {
        'obs_space': policy.obs_space,
        'action_space': policy.action_space,
        'seed': policy.seed,
        'action_mode': cfg.env.action_mode,
        'run': policy.run,
        'model': given,
    }
    return {'class': type(policy), 'cfg': {**section, 'device': device}, 'device': device, 'options': options}


def make_engine(cluster: ConfigLike, run_id: str) -> Engine:
    """Returns the engine that section `cluster` names, without runners. Args: run_id: part of the names of its processes."""
    name = engine_of(cluster)
    if name == 'process':
        from zoo.cluster.process_engine import ProcessEngine

        return ProcessEngine(cluster, run_id)
    if name == 'ray':
        from zoo.cluster.ray_engine import RayEngine

        return RayEngine(cluster, run_id)
    return InlineEngine()
