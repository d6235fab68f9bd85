"""Rows of envs in other processes: what runners collect, in the learner's own block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.cluster.engine import Engine
from zoo.cluster.orders import Orders, entropy_of
from zoo.cluster.parcel import Parcel, tensor_like, tree_of
from zoo.cluster.weights import WeightLayout
from zoo.core.data import BlockField, StepBlock, leaves
from zoo.core.errors import UserError
from zoo.core.spaces import Leaf, Space, map_spaces, obs_dtype
from zoo.env.errors import EnvError
from zoo.env.restarts import Restarts
from zoo.worker.info_columns import joined_infos
from zoo.worker.rows import Steps

FIELDS: tuple[BlockField, ...] = ('is_reset', 'raw_reward', 'raw_end', 'begins')
MEGABYTE = 1e6


class Shape(NamedTuple):
    """Of what runners send. name: of the env; reader: a GPU that reads the block, see `StepBlock`."""

    n_runner: int
    n_env: int  # of one runner
    n_step: int
    obs_space: Space
    info_columns: tuple[str, ...] = ()
    name: str = ''
    reader: torch.device | None = None


class RemoteRows:
    """Asks runners for rollouts and puts their rows into one block, of which each runner has its envs.

    max_lag 0: the weights are published, and the rollout is waited for. 1: it was asked before the last update, with the
    weights of then, so that it is collected during that update. More: runners run ahead, each with the newest weights
    that it has as it begins a rollout.

    Args: orders: over the engine; layout: of the weights that acting needs; restarts: counts the envs made anew.
    """

    def __init__(
        self, engine: Engine, orders: Orders, layout: WeightLayout, shape: Shape, max_lag: int, restarts: Restarts
    ) -> None:
        self.n_env, self.env_time = shape.n_runner * shape.n_env, 0.0
        self._engine, self._orders, self._layout, self._shape = engine, orders, layout, shape
        self._max_lag, self._restarts = max_lag, restarts
        self._block: StepBlock | None = None
        self._whole: dict[str, Tensor] = {}  # memory for all envs, by the name of a parcel's block
        self._asked_to = -1  # the last rollout that was asked
        self._seed: tuple[int, ...] | None = None  # of the reset that comes before the next one
        self._version = -1
        self._n_restart: dict[tuple[int, int], int] = {}  # envs made anew, by runner and attempt
        self._lags: list[int] = []
        self._times = {'put': 0.0, 'wait': 0.0, 'join': 0.0, 'env': 0.0, 'act': 0.0, 'n': 0.0, 'n_byte': 0.0}
        self._begin_metrics()

    @property
    def block(self) -> StepBlock:
        """The last rollout's rows."""
        assert self._block is not None, 'there is a rollout'
        return self._block

    def reset(self, seed: np.random.SeedSequence) -> None:
        """New episodes in all envs, before the next rollout. Raises: UserError where runners are ahead of the run."""
        if not self._orders.is_idle:
            raise UserError(
                f'the training envs cannot be reset now: cluster.max_lag is {self._max_lag}, and runners have begun the next '
                'rollout; use cluster.max_lag=0'
            )
        self._seed, self._asked_to = entropy_of(seed), -1

    def collect(self, collect_iter: int, env_step: int) -> Steps:
        """The rollout of all runners."""
        start = perf_counter()
        if collect_iter > self._asked_to:
            self._ask(collect_iter, collect_iter, env_step)
        if self._max_lag > 1:
            for i in range(self._asked_to + 1, collect_iter + self._max_lag + 1):
                self._ask(i, collect_iter, env_step)
        found: dict[int, Parcel] = {}
        infos: dict[int, dict[str, np.ndarray]] = {}
        fresh: list[slice] = []
        join_s, wait_from = 0.0, perf_counter()

        def use(parcel: Parcel, is_fresh: bool) -> None:
            nonlocal join_s
            before, envs = perf_counter(), self._envs_of(parcel.group)
            fresh.extend([envs] if is_fresh else [])
            infos[parcel.group] = self._place(parcel, envs)
            found[parcel.group] = parcel._replace(blocks={})
            self._note(parcel, collect_iter)
            join_s += perf_counter() - before

        self._orders.wait(collect_iter, use)
        self._times['wait'] += perf_counter() - wait_from - join_s
        self._times['join'] += join_s
        if self._max_lag == 1:
            self._ask(collect_iter + 1, collect_iter, env_step)
        parcels = [found[group] for group in sorted(found)]
        self.block.finals[:] = [
            (t, envs + self._envs_of(parcel.group).start, obs) for parcel in parcels for t, envs, obs in parcel.finals
        ]
        self._times['n'] += 1
        self.env_time += perf_counter() - start
        joined = joined_infos(
            [_Columns(infos[group], self._shape) for group in sorted(infos)],
            self._shape.info_columns,
            self._shape.n_step,
        )
        output, state = tree_of(self._whole, 'output'), tree_of(self._whole, 'state')
        return Steps(output, state, joined, _merged(parcels), fresh)

    def metrics(self) -> dict[str, float]:
        """What the log has of runners, times as means over the rollouts since the last call."""
        times, counts, n = self._times, self._orders.counts, max(self._times['n'], 1.0)
        found: dict[str, float] = {
            'cluster/runner': len(self._engine.pids()),
            'cluster/restart': counts.restart,
            'cluster/discarded_step': counts.discarded_step,
            'cluster/mb_per_s': times['n_byte'] / MEGABYTE / max(perf_counter() - self._since, 1e-9),
            **{f'cluster/{name}_s': times[name] / n for name in ('put', 'wait', 'join')},
            **{f'time/runner_{name}_s': times[name] / n / self._shape.n_runner for name in ('env', 'act')},
        }
        if self._lags:
            found |= {
                'collect/lag_mean': sum(self._lags) / len(self._lags),
                'collect/lag_max': max(self._lags),
            }
        self._begin_metrics()
        return found

    def _begin_metrics(self) -> None:
        self._times = dict.fromkeys(self._times, 0.0)
        self._lags, self._since = [], perf_counter()

    def _ask(self, i: int, version: int, env_step: int) -> None:
        """Asks for rollout i, with the weights as they are now, those of `version`, which are published once."""
        if version != self._version:
            before = perf_counter()
            self._engine.publish(self._layout.pack(), version)
            self._version = version
            self._times['put'] += perf_counter() - before
            self._times['n_byte'] += self._layout.n_byte * self._shape.n_runner
        self._orders.ask(i, version if self._max_lag <= 1 else None, env_step, self._seed)
        self._seed, self._asked_to = None, i

    def _envs_of(self, group: int) -> slice:
        return slice(group * self._shape.n_env, (group + 1) * self._shape.n_env)

    def _place(self, parcel: Parcel, envs: slice) -> dict[str, np.ndarray]:
        """Copies the blocks of a runner to where its envs are; returns those of infos, which need not be there always."""
        if self._block is None:
            self._block = self._new_block(parcel)
            self._whole |= {f'obs.{path}' if path else 'obs': x for path, x in leaves(self._block.obs)}
            columns = {name: x for name, x in self._block.columns().items() if name != 'obs'}
            self._whole |= {f'steps.{path}': x for path, x in leaves(columns)}
        infos = {}
        for name, rows in parcel.blocks.items():
            if name.startswith('info.'):
                infos[name[len('info.') :]] = rows.copy()
                continue
            is_state = name.partition('.')[0] == 'state'
            if name not in self._whole:
                self._whole[name] = tensor_like(rows, self.n_env, 0 if is_state else 1)
            whole = self._whole[name].numpy()
            whole[envs if is_state else (slice(None), envs)] = rows
        return infos

    def _new_block(self, parcel: Parcel) -> StepBlock:
        def like(leaf: Leaf) -> Tensor:
            return torch.empty((self.n_env, *leaf.shape), dtype=obs_dtype(leaf))

        shape, also = self._shape, [name for name in FIELDS if f'steps.{name}' in parcel.blocks]
        return StepBlock(shape.n_step, map_spaces(like, shape.obs_space), also, reader=shape.reader)

    def _note(self, parcel: Parcel, collect_iter: int) -> None:
        """What the log says of a parcel."""
        self._lags.append(collect_iter - parcel.version)
        self._times['n_byte'] += parcel.n_byte
        for name in ('env', 'act'):
            self._times[name] += parcel.time[name]
        key, restarts = (parcel.group, parcel.attempt), self._restarts
        restarts.count += parcel.n_restart - self._n_restart.get(key, 0)
        self._n_restart[key] = parcel.n_restart
        if restarts.count > restarts.limit:
            raise EnvError(
                f'envs were made anew {restarts.count} times, wanted at most {restarts.limit} times in a run; mend the env, or '
                'raise env.max_restarts.'
            )


class _Columns(NamedTuple):
    """The infos of one runner, for `joined_infos`."""

    columns: Mapping[str, np.ndarray]
    shape: Shape

    @property
    def n_env(self) -> int:
        return self.shape.n_env

    @property
    def name(self) -> str:
        return self.shape.name

    def column(self, key: str) -> np.ndarray | None:
        return self.columns.get(key)


def _merged(parcels: Sequence[Parcel]) -> list[tuple[int, dict[str, float]]]:
    """The numbers of all runners' episodes in the order of one process: by t, then by env."""
    return sorted((episode for parcel in parcels for episode in parcel.episodes), key=lambda episode: episode[0])
