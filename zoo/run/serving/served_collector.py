"""Collector of a run whose clients drive the loop: makes rollouts [N, 1] from the steps of a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.core.action_map import first_row
from zoo.core.data import Obs, Rollout, Timestep, map_tensors
from zoo.core.errors import UserError
from zoo.core.processes import may_be_given_up
from zoo.core.ranks import ALONE, Ranks
from zoo.core.spaces import Dict
from zoo.env import AnyVectorEnv
from zoo.policy.base import Policy
from zoo.policy.inference import read_obs
from zoo.run.serving.http_server import plain_action
from zoo.run.serving.ledger import EpisodeLedger, ServedAction, ServedRollout
from zoo.worker.collector import Collector, EnvGroup
from zoo.worker.infos import Episodes, InfoKeys


def read_one(policy: Policy, raw: Any) -> Obs:
    """A raw observation of a message as one of the policy, [1, *O]. Raises: UserError if it is not in the observation space."""
    space = policy.obs_space
    if isinstance(space, Dict) and space.is_tuple and isinstance(raw, np.ndarray):
        raw = tuple(raw)
    obs, is_single = read_obs(policy, raw)
    if not is_single:
        raise UserError('observation is a batch; send that of one env')
    return obs


class ServedCollector(Collector):
    """Makes rollouts of the steps that clients take. Each has N = n_step * n_env of them, however many clients there are.

    Args: envs: one env, of which only the spaces are read; policy: acts for the clients; n_sample: N; silence_s: of the ledger.
    Attributes: ledger: takes the messages of clients.
    """

    def __init__(self, envs: Sequence[AnyVectorEnv], policy: Policy, n_sample: int, silence_s: float) -> None:
        super().__init__(envs, policy.collect_mode)
        self._policy = policy
        self.ledger = EpisodeLedger(n_sample, self._act, silence_s)
        self._waited = 0.0
        self._ages: list[np.ndarray] = []

    def _make_groups(self, envs: Sequence[AnyVectorEnv], infos: InfoKeys, first: int) -> list[EnvGroup]:
        """Returns no groups: the envs are where the clients are."""
        self.block = envs[0].block(1)  # its steps are those of the last rollout, for the log
        return []

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Begins nothing: clients begin episodes."""
        self.mode.reset()
        self.reset_iter = self.collect_iter

    @property
    def env_time(self) -> float:
        return self._waited

    def read(self, raw: Any) -> Obs:
        """A raw observation as one of the policy, [1, *O]. Raises: UserError if it is not in the observation space."""
        return read_one(self._policy, raw)

    def collect(self) -> Rollout:
        """Waits until the clients have taken N steps."""
        return self.timed(lambda: self._rollout_of(self._filled()))

    def metrics(self, ranks: Ranks = ALONE) -> dict[str, float]:
        ages = np.concatenate([*self._ages, np.zeros(0)])
        self._ages = []
        if not len(ages):
            return {}
        return {'collect/age_mean': float(ages.mean()), 'collect/age_max': float(ages.max())}

    def _act(self, obs: Obs) -> ServedAction:
        output = map_tensors(torch.clone, self.mode.forward(obs, None))
        action = first_row(self._policy.env_action(output['action']))
        return ServedAction(output, plain_action(action))

    def _filled(self) -> ServedRollout:
        self.mode.begin(self.collect_iter, self.env_step)
        start = perf_counter()
        with may_be_given_up():
            found = self.ledger.fill(self.collect_iter)
        self._waited += perf_counter() - start
        return found

    def _rollout_of(self, served: ServedRollout) -> Rollout:
        for slot in served.lost:
            self.mode.forget(slice(slot, slot + 1))
        steps = sorted(served.steps, key=lambda step: step.slot)  # stable: of a slot in order of time
        slots = np.array([step.slot for step in steps])
        is_last = np.concatenate((slots[1:] != slots[:-1], [False]))
        ended = np.array([step.terminated or step.truncated for step in steps])
        is_open = (is_last | np.array([step.is_cut for step in steps])) & ~ended
        age = np.array([self.collect_iter - step.rollout for step in steps], dtype=np.float32)
        self._ages.append(age)

        def column(values: Sequence[Any], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype).unsqueeze(1)

        timestep = Timestep(
            obs=_stacked([step.next_obs for step in steps]),
            reward=column([step.reward for step in steps], torch.float32),
            terminated=column([step.terminated for step in steps], torch.bool),
            truncated=column([step.truncated for step in steps], torch.bool) | torch.from_numpy(is_open).unsqueeze(1),
            final_obs=None,
            final_index=None,
            info={},
        )
        output = _stacked([step.output for step in steps])
        obs = _stacked([step.obs for step in steps])
        for watch in self.watchers:
            truncated = column([step.truncated for step in steps], torch.bool)
            results = {'reward': timestep.reward, 'terminated': timestep.terminated, 'truncated': truncated}
            watch({'obs': obs, **output, **results})
        data: Any = self.mode.process_transition(obs, output, timestep)
        data = {
            **data,
            'is_open': torch.from_numpy(is_open).unsqueeze(1),
            'age': torch.from_numpy(age).unsqueeze(1),
            'env_index': torch.from_numpy(slots).unsqueeze(1),
        }
        self.block.steps = timestep
        self._record(served)
        self.env_step += len(steps)
        self.collect_iter += 1
        cuts = torch.from_numpy(np.flatnonzero(ended | is_open))
        final_obs = map_tensors(lambda x: x[cuts, 0], timestep.obs)
        index = torch.stack((cuts, torch.zeros_like(cuts)), 1)
        return Rollout(data, map_tensors(lambda x: x[-1], timestep.obs), final_obs, index)

    def _record(self, served: ServedRollout) -> None:
        """Adds the episodes that ended to the statistics."""
        episodes = self.episodes
        episodes.newest = Episodes(served.returns, served.lengths)
        episodes.returns.add(served.returns)
        episodes.lengths.add(served.lengths)
        episodes.n_episode += len(served.returns)


def _stacked(trees: Sequence[Any]) -> Any:
    """Trees of tensors [1, ...] as one of tensors [N, 1, ...]."""
    return map_tensors(lambda *x: torch.stack(x), *trees)
