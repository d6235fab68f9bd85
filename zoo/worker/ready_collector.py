"""Collector of envs that step asynchronously: acts for those that have answered (env.ready_num).

A rollout has as many transitions as one of envs that step together, N = n_step * B, but a faster env gives more of them. They
are put into one column [N, 1], one env after the other, each in order of time. Where the transitions of an env end, the
trajectory is cut, and the value of what the env has shown since counts for the rest. A step that is not answered when the
rollout is full is a transition of a later one. Its action is then as many updates old as its column `age` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Finals, Obs, Rollout, Timestep, first_leaf, map_tensors
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.env import AnyVectorEnv
from zoo.env.ready import ReadyEnvs
from zoo.env.rules import mark_broken
from zoo.policy.modes import CollectMode
from zoo.worker.collector import Collector, EnvGroup, RolloutExtras
from zoo.worker.infos import NO_NUMBERS, InfoKeys, row_observers


class EnvOrder(NamedTuple):
    """The order of the N transitions of a rollout: env after env, each in order of time.

    result: [N], the places of what the envs answered, in blocks [S, K] of answers; source: [N], the places of what the policy
    did, in blocks of the same shape; -1: in a rollout before; env: [N], the env; place: [N], its number among those of its env.
    """

    result: np.ndarray
    source: np.ndarray
    env: np.ndarray
    place: np.ndarray


def env_order(ready: np.ndarray) -> EnvOrder:
    """Args: ready: [S + 1, K], the envs that the policy acts for in each row; row s + 1 are those whose answers are row s."""
    n_ready = ready.shape[1]
    env = ready.ravel()
    order = np.argsort(env, kind='stable')  # by env, then by time
    env = env[order]
    is_first = np.concatenate(([True], env[1:] != env[:-1]))
    before = np.where(is_first, -1, np.concatenate(([-1], order[:-1])))
    is_answer = order >= n_ready  # those of row 0 were transitions of the rollout before
    env = env[is_answer]
    starts = np.flatnonzero(np.concatenate(([True], env[1:] != env[:-1])))
    counts = np.diff([*starts, len(env)])
    place = np.arange(len(env)) - np.repeat(starts, counts)
    return EnvOrder(order[is_answer] - n_ready, before[is_answer], env, place)


class Unanswered:
    """The last action of each of B envs, with its observation, the policy's output, and its rollout.

    Args: obs: observations, [B, *O]; output: of acting, [B, ...] each.
    """

    def __init__(self, obs: Obs, output: dict[str, Any], collect_iter: int) -> None:
        self.obs = map_tensors(torch.clone, obs)
        self.output = map_tensors(torch.clone, output)
        self.rollout = np.full(len(first_leaf(obs)), collect_iter)

    def replace(self, envs: np.ndarray, obs: Obs, output: dict[str, Any], collect_iter: int) -> None:
        """Replaces the actions of some envs."""
        index = torch.from_numpy(envs)
        map_tensors(lambda x, new: _put(x, index, new), self.obs, obs)
        map_tensors(lambda x, new: _put(x, index, new), self.output, output)
        self.rollout[envs] = collect_iter


def _columns(obs: Obs, output: dict[str, Any], answered: Timestep) -> dict[str, Any]:
    """As `rollout_columns`, [N, 1, ...]: the transitions in their order, in which each action has its result."""
    steps = answered._asdict()
    del steps['obs'], steps['info']
    infos = {f'info/{name}': column for name, column in answered.info.items()}
    return {'obs': obs, **output, **{name: x for name, x in steps.items() if x is not None}, **infos}


def _put(x: Tensor, index: Tensor, new: Tensor) -> None:
    x[index.to(x.device)] = new.to(x.dtype)


class ReadyCollector(Collector):
    """Makes rollouts [N, 1] of envs that step asynchronously. Args: envs: a single `ReadyEnvs`; the others: as of `Collector`."""

    def __init__(
        self, envs: Sequence[AnyVectorEnv], mode: CollectMode, infos: InfoKeys = NO_NUMBERS, first: int = 0
    ) -> None:
        (env,) = envs
        assert isinstance(env, ReadyEnvs)
        self._env = env
        self._n_sample = mode.n_step * env.n_env
        n_ready = self._env.n_ready
        if self._n_sample % n_ready:
            raise UserError(
                f'env.ready_num is {n_ready} but a rollout has {self._n_sample} samples: {self._n_sample} % {n_ready} = '
                f'{self._n_sample % n_ready} would be left over; use a divisor of {self._n_sample}'
            )
        self._ready = np.zeros((self._n_sample // n_ready + 1, n_ready), dtype=np.int64)
        self._unanswered: Unanswered | None = None
        self._first_obs: Obs = None  # after a reset, until the policy has acted on them
        self._ages: list[np.ndarray] = []  # of the rollouts since the last line of the log
        self._n_each = np.zeros(self._env.n_env, dtype=np.int64)  # transitions of each env in these
        super().__init__(envs, mode, infos, first)

    def _make_groups(self, envs: Sequence[AnyVectorEnv], infos: InfoKeys, first: int) -> list[EnvGroup]:
        n_row = len(self._ready) - 1
        rows = self._env.rows
        self.block = rows.block(n_row)
        self._numbers: list[tuple[int, dict[str, float]]] = []
        (observers,), self._info_columns = row_observers([rows], infos, n_row, self._numbers)
        return [EnvGroup(rows, self.block, 0, self.mode, first, observers)]

    def metrics(self, ranks: Ranks = ALONE) -> dict[str, float]:
        """Ages of the samples, and the smallest share of an env in them, where 1 is that of each if all are equally fast."""
        found = ranks.gather((np.concatenate([*self._ages, np.zeros(0)]), self._n_each))
        age = np.concatenate([of_rank for of_rank, _ in found])
        n_each = np.concatenate([of_rank for _, of_rank in found])
        self._ages = []
        self._n_each = np.zeros_like(self._n_each)
        if not len(age):
            return {}
        return {
            'collect/age_mean': float(age.mean()),
            'collect/age_max': float(age.max()),
            'collect/env_share_min': float(n_each.min() / n_each.mean()),
        }

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Starts new episodes in all envs; steps that are not answered are dropped."""
        n_ready = self._env.n_ready
        self._first_obs = self._env.reset(seed)
        map_tensors(lambda block, x: block[-1].copy_(x[:n_ready]), self.block.obs, self._first_obs)
        self.mode.reset()
        self.episodes.drop(slice(None))
        self.reset_iter = self.collect_iter

    def in_turns(self) -> None:
        """Takes all steps of a rollout."""
        (group,) = self.groups
        view = self._env.view
        if self._first_obs is not None:
            self._open()
        self._ready[0] = view.indices
        group.act(0)
        for row in range(1, len(self._ready)):
            group.step(row - 1)
            self._ready[row] = view.indices
            if row < len(self._ready) - 1:
                group.act(row)

    @torch.no_grad()
    def _open(self) -> None:
        """Acts on the first observations of all envs but those of row 0, for which the policy acts next."""
        n_ready = self._env.n_ready
        obs = self._first_obs
        output = self.mode.forward(obs, None)
        self._unanswered = Unanswered(obs, output, self.collect_iter)
        self._first_obs = None
        rest = range(n_ready, self.n_env)
        action = output['action'][n_ready:]
        if self.mode.env_action is not None:
            action = self.mode.env_action(action)
        if len(rest):
            self._env.open(rest, action.cpu())

    def _rollout(self, extras: RolloutExtras) -> Rollout:
        order = env_order(self._ready)
        obs, output, age = self._acted(order, extras.output)
        self._ages.append(age)
        answered = self._answered(order, extras.infos)
        is_last = np.concatenate((order.env[1:] != order.env[:-1], [False]))  # the next row is of another env
        is_open = torch.from_numpy(is_last).unsqueeze(1) & ~(answered.terminated | answered.truncated)
        for watch in self.watchers:
            watch(_columns(obs, output, answered))
        n_transition = self._count(order, extras, answered)
        steps = answered._replace(truncated=answered.truncated | is_open)
        data: Any = self.mode.process_transition(obs, output, steps)
        if extras.infos:
            from zoo.worker.info_columns import add_infos

            data = add_infos(data, steps.info, self.collect_iter == 0)
        env_index = torch.from_numpy(order.env).unsqueeze(1)
        data = {**data, 'is_open': is_open, 'age': torch.from_numpy(age).unsqueeze(1), 'env_index': env_index}
        self._keep_unanswered(extras.output)
        self.env_step += n_transition
        self.collect_iter += 1
        last_obs = map_tensors(lambda x: x[-1], steps.obs)
        return Rollout(data, last_obs, *self._finals(order, extras.finals, is_open, steps.obs))

    def _acted(self, order: EnvOrder, output: dict[str, Any]) -> tuple[Obs, dict[str, Any], np.ndarray]:
        """The observations [N, 1, *O] that the policy acted on, its outputs, and the ages of the actions."""
        assert self._unanswered is not None
        is_old = order.source < 0
        old_envs = order.env[is_old]
        source = torch.from_numpy(np.maximum(order.source, 0))
        old_rows = torch.from_numpy(np.flatnonzero(is_old))

        def taken(x: Tensor, before: Tensor) -> Tensor:
            rows = x.flatten(0, 1)[source.to(x.device)]
            rows[old_rows.to(x.device)] = before[torch.from_numpy(old_envs).to(before.device)].to(rows.dtype)
            return rows.unsqueeze(1)

        age = np.zeros(len(source), dtype=np.float32)
        age[is_old] = self.collect_iter - self._unanswered.rollout[old_envs]
        obs = map_tensors(lambda x, before: taken(x[:-1], before), self.block.obs, self._unanswered.obs)
        before = {name: self._unanswered.output[name] for name in output}
        return obs, map_tensors(taken, output, before), age

    def _answered(self, order: EnvOrder, infos: dict[str, Tensor]) -> Timestep:
        """What the envs answered, [N, 1, ...]."""
        result = torch.from_numpy(order.result)

        def taken(x: Tensor) -> Tensor:
            return x.flatten(0, 1)[result].unsqueeze(1)

        columns = {name: map_tensors(taken, x) for name, x in self.block.columns().items()}
        return Timestep(**columns, final_obs=None, final_index=None, info={key: taken(x) for key, x in infos.items()})

    def _count(self, order: EnvOrder, extras: RolloutExtras, answered: Timestep) -> int:
        """Adds the episodes of a rollout to the statistics, and marks the rows of broken ones; returns the env steps."""
        n_each = np.bincount(order.env, minlength=self.n_env)
        at = torch.from_numpy(order.place), torch.from_numpy(order.env)

        def by_env(x: Tensor, empty: float) -> Tensor:
            """[N, 1] -> [most steps of an env, B]."""
            rows = torch.full((int(n_each.max()), self.n_env), empty, dtype=x.dtype)
            rows[at] = x[:, 0]
            return rows

        end = by_env(answered.terminated | answered.truncated, False)
        n_transition = len(order.env)
        is_broken: Tensor | None = None
        if answered.is_reset is None:
            is_reset = by_env(torch.zeros_like(answered.terminated), True)
        else:
            assert answered.is_broken is not None
            is_reset = by_env(answered.is_reset, True)
            is_broken = by_env(answered.is_broken, False)
            n_transition -= int(answered.is_reset.sum())
        self.episodes.record(by_env(answered.reward, 0.0), end, is_reset, is_broken)
        if answered.is_reset is not None and is_broken is not None:
            mark_broken(is_reset, end, is_broken)
            answered.is_reset[:, 0] = is_reset[at]
        if extras.episodes:
            self.episodes.infos.add(numbers for _, numbers in extras.episodes)
        self._n_each += n_each
        return n_transition

    def _finals(self, order: EnvOrder, finals: Finals, is_open: Tensor, next_obs: Obs) -> tuple[Obs, Tensor]:
        """The observations [K, *O] after ends of episodes and cuts, and their (row, 0), [K, 2]."""
        row_of = np.empty(len(order.result), dtype=np.int64)
        row_of[order.result] = np.arange(len(order.result))
        cuts = is_open[:, 0].nonzero()[:, 0]
        rows = [row_of[t * self._env.n_ready + envs] for t, envs, _ in finals]
        index = torch.cat((cuts, *map(torch.from_numpy, rows)))

        def joined(x: Tensor, *ends: Any) -> Tensor:
            return torch.cat((x[cuts, 0], *(torch.as_tensor(end).to(x.dtype) for end in ends)))

        obs = map_tensors(joined, next_obs, *(end for *_, end in finals))
        return obs, torch.stack((index, torch.zeros_like(index)), 1)

    def _keep_unanswered(self, output: dict[str, Any]) -> None:
        """Keeps what the policy did for envs that have not answered since, for the rollouts to come."""
        assert self._unanswered is not None
        acted = self._ready[:-1].ravel()
        place = np.zeros(self.n_env, dtype=np.int64)
        place[acted] = np.arange(len(acted))  # the last one of each env stays
        envs = np.unique(acted)
        index = torch.from_numpy(place[envs])

        def taken(x: Tensor) -> Tensor:
            return x.flatten(0, 1)[index.to(x.device)]

        obs = map_tensors(lambda x: taken(x[:-1]), self.block.obs)
        self._unanswered.replace(envs, obs, map_tensors(taken, output), self.collect_iter)
