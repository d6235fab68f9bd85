"""Numbers of episodes for the log: returns, lengths, and the envs' own, read from infos of steps (logger.info_keys)."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core.errors import closest, shown
from zoo.env import AnyVectorEnv
from zoo.env.infos import BROKEN, FINAL_INFO, OWN_KEYS, end_infos, step_values
from zoo.env.interface import RowObserver, StepRow

logger = logging.getLogger(__name__)


NOT_THE_ENVS = {
    'TimeLimit.truncated', 'action_mask', 'episode', 'final_info', 'final_obs', 'final_observation', 'terminal_observation',
    'elapsed_step', 'env_id', 'players.env_id', 'reset_mask', 'terminated', 'truncated', 'done',
    'lives', 'frame_number', 'episode_frame_number', 'level_seed', 'prev_level_seed',
}  # fmt: skip
"""Info entries that 'auto' leaves out: those that wrappers and vector envs write, and counters of Atari and Procgen, which
say nothing about how well an episode went, and belong to the next episode already."""
SUCCESS = 'is_success', 'success'  # the first one that exists is the success rate
MOST_KEYS = 64  # that 'auto' takes; an env that always adds new keys would fill the log
N_MISSED = 20  # episodes after which a key that no info has is worth a warning


@dataclass(frozen=True)
class InfoKeys:
    """The numbers of infos to keep: from an episode's last info, and from the infos of all its steps, as means."""

    last: tuple[str, ...] | Literal['auto'] = 'auto'  # auto: all numbers and bools
    step: tuple[str, ...] = ()
    told: set[tuple[str, str]] = field(default_factory=set, compare=False)  # (option, key) that a reader has warned of


ALL_NUMBERS = InfoKeys()
NO_NUMBERS = InfoKeys(())
_WITHOUT_NUMBERS = OWN_KEYS - {FINAL_INFO}  # entries of a vector env's info that have no numbers of an episode


class InfoReader:
    """Reads the numbers of episodes from the infos of one vector of envs, step by step.

    Args: n_env, autoreset: of the vector.
    Attributes: reads_all: whether it must read every step, also one whose info is empty.
    """

    def __init__(self, keys: InfoKeys, n_env: int, autoreset: str) -> None:
        self._keys = keys
        self._n_env = n_env
        self._autoreset = autoreset
        self.reads_all = bool(keys.step) or keys.last not in ('auto', ())
        self._seen: set[str] = set()
        self._n_end = 0
        self._has_warned = False
        self._is_full = False
        self.restart()

    def restart(self) -> None:
        """Called when all envs begin new episodes."""
        self._sums = {key: np.zeros(self._n_env) for key in self._keys.step}
        self._counts = {key: np.zeros(self._n_env, dtype=np.int64) for key in self._keys.step}

    def read(
        self, info: Mapping[str, Any], ended: np.ndarray, is_reset: np.ndarray | None = None
    ) -> dict[int, dict[str, float]]:
        """Takes the info of a step; returns the numbers of the episodes that ended in it, by index of the env.

        Args: ended: [B] bool, episodes that ended; is_reset: [B] bool, rows that are no step of an episode.
        """
        if self._keys.step:
            self._add(info, is_reset)
        index = ended.nonzero()[0]
        if not len(index):
            return {}
        if self._keys.last:
            lasts = end_infos(info, index, self._autoreset)
        else:
            lasts = [{} for _ in index]
        found = {i: self._chosen(last) | self.means(i) for i, last in zip(index.tolist(), lasts, strict=True)}
        for key in self._keys.step:
            self._sums[key][index] = 0.0
            self._counts[key][index] = 0
        broken = info.get(BROKEN)
        if broken is not None:
            found = {i: numbers for i, numbers in found.items() if not broken[i]}
        self._n_end += len(found)
        if self._n_end >= N_MISSED and not self._has_warned:
            self._warn_of_missing(lasts[-1])
        return found

    def _add(self, info: Mapping[str, Any], is_reset: np.ndarray | None) -> None:
        for key in self._keys.step:
            found = step_values(info, key, self._n_env)
            if found is None or found[0].ndim != 1:
                continue
            values, given = found
            rows = given & ~np.isnan(values) & (is_reset is None or ~is_reset)
            self._sums[key][rows] += values[rows]
            self._counts[key][rows] += 1

    def means(self, i: int) -> dict[str, float]:
        """The means over the steps of env i's episode so far; an episode that is cut off has no other numbers."""
        found = {key: float(self._sums[key][i] / n) for key in self._keys.step if (n := self._counts[key][i])}
        self._seen.update(found)
        return found

    def _chosen(self, last: Mapping[str, Any]) -> dict[str, float]:
        if self._keys.last == 'auto':
            names = [key for key in last if key not in NOT_THE_ENVS and (key in self._seen or self._take(key))]
        else:
            names = [key for key in self._keys.last if key in last]
            self._seen.update(names)
        return {key: float(last[key]) for key in names}

    def _take(self, key: str) -> bool:
        """Whether a new key is kept from now on; warns once if there are too many keys."""
        if len(self._seen) < MOST_KEYS:
            self._seen.add(key)
            return True
        if not self._is_full:
            self._is_full = True
            logger.warning(
                'the infos of episodes have more than %d numbers; the first are logged. Name those that matter in '
                'logger.info_keys, or switch them off by logger.info_keys=[]',
                MOST_KEYS,
            )
        return False

    def _warn_of_missing(self, last: Mapping[str, Any]) -> None:
        self._has_warned = True
        there = sorted(key for key in last if key not in NOT_THE_ENVS)
        named = {'info_keys': () if self._keys.last == 'auto' else self._keys.last, 'info_step_keys': self._keys.step}
        told = self._keys.told
        missing = dict.fromkeys(
            (option, key) for option, keys in named.items() for key in keys if key not in self._seen
        )
        for option, key in [each for each in missing if each not in told]:
            told.add((option, key))
            close = closest(key, there)
            if close:
                hint = f'did you mean {shown(close[0])}?'
            else:
                hint = f'numbers there are: {", ".join(there) or "none"}'
            logger.warning(
                'logger.%s has %r but none of the first %d episodes had a number of that name in its info; %s',
                option,
                key,
                self._n_end,
                hint,
            )


class EpisodeNumbers(InfoReader, RowObserver):
    """Row observer that reads the numbers of episodes that end in a rollout. Args: found: gets (t, numbers) of each episode."""

    def __init__(self, keys: InfoKeys, n_env: int, autoreset: str, found: list[tuple[int, dict[str, float]]]) -> None:
        super().__init__(keys, n_env, autoreset)
        self._is_default = keys == ALL_NUMBERS
        self._found = found

    def see(self, t: int, info: dict[str, Any], row: StepRow) -> None:
        if self._is_default and info.keys() <= _WITHOUT_NUMBERS:  # costs less than to read it
            return
        if row.raw_end is None:
            ended = row.terminated | row.truncated
        else:
            ended = row.raw_end
        self._found += [(t, numbers) for numbers in self.read(info, ended, row.is_reset).values()]


def row_observers(
    envs: Sequence[AnyVectorEnv], infos: InfoKeys, n_step: int, found: list[tuple[int, dict[str, float]]]
) -> tuple[list[list[RowObserver]], Callable[[], dict[str, Tensor]]]:
    """Makes the observers of the infos. Returns: those of each vector env; a function that gives the columns of a rollout.

    Args: infos: which numbers of episodes are kept; found: gets them, see `EpisodeNumbers`.
    """
    observers: list[list[RowObserver]] = [[] for _ in envs]
    for mine, env in zip(observers, envs, strict=True):
        if infos.step:
            env.request_infos(infos.step)
        if (infos.last or infos.step) and not env.is_tensor_program:  # which has no infos
            mine.append(EpisodeNumbers(infos, env.n_env, env.autoreset, found))
    keys = envs[0].info_columns
    name = envs[0].name
    if not keys:
        return observers, dict
    from zoo.worker.info_columns import InfoBlock, joined_infos

    blocks = [InfoBlock(keys, n_step, env.n_env, name) for env in envs]
    groups = [(env.n_env, block.columns) for env, block in zip(envs, blocks, strict=True)]
    return [[*mine, block] for mine, block in zip(observers, blocks, strict=True)], lambda: joined_infos(
        groups, keys, n_step, name
    )


N_RECENT = 100  # episodes that means for the log are taken over, at least


class Recent(Sequence[float]):
    """Numbers of the last episodes: all those of the newest rollouts, as few rollouts as have 100 together.

    A rollout is kept whole. Its episodes are in the order of their envs where they end at the same time, so that a part of
    them would be the episodes of some envs alone.
    """

    def __init__(self) -> None:
        self._numbers: list[float] = []
        self._n_each: deque[int] = deque()  # of each rollout

    def add(self, numbers: Sequence[float]) -> None:
        """Adds the numbers of a rollout."""
        if not numbers:
            return
        self._numbers += numbers
        self._n_each.append(len(numbers))
        n_old = 0
        while len(self._numbers) - n_old - self._n_each[0] >= N_RECENT:
            n_old += self._n_each.popleft()
        del self._numbers[:n_old]

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[float]:
        return iter(self._numbers)  # a Sequence without it calls `__getitem__` for each number

    def __getitem__(self, i: Any) -> Any:
        return self._numbers[i]


class InfoTally:
    """The numbers of the last episodes that had them, by key, see `Recent`."""

    def __init__(self) -> None:
        self.values: dict[str, Recent] = {}

    def add(self, episodes: Iterable[Mapping[str, float]]) -> None:
        """Adds the numbers of the episodes of a rollout."""
        by_key: dict[str, list[float]] = {}
        for numbers in episodes:
            for key, value in numbers.items():
                if not math.isnan(value):  # nan: the env had no number
                    by_key.setdefault(key, []).append(value)
        for key, values in by_key.items():
            self.values.setdefault(key, Recent()).add(values)

    def metrics(self) -> dict[str, float]:
        """The means for the log, without the group's name: info/<key>_mean, and success_rate."""
        means = {key: sum(values) / len(values) for key, values in self.values.items()}
        found = {f'info/{key}_mean': mean for key, mean in means.items()}
        rate = success_of(means)
        if rate is None:
            return found
        return found | {'success_rate': rate}


def success_of(means: Mapping[str, float]) -> float | None:
    """The success rate among means of info keys; None if there is none."""
    return next((means[key] for key in SUCCESS if key in means), None)


class Episodes(NamedTuple):
    """Undiscounted returns and lengths of the episodes that ended in a rollout, in order of time."""

    returns: list[float]
    lengths: list[int]


class EpisodeTracker:
    """Undiscounted returns and lengths of the last training episodes (see `Recent`), updated once per rollout.

    Attributes: newest: the episodes that ended in the last rollout; infos: the env's own numbers of episodes, which come
      when an episode ends; n_reset: episodes begun.
    """

    def __init__(self, n_env: int) -> None:
        self.returns = Recent()
        self.lengths = Recent()
        self.n_episode = 0
        self.n_reset = 0
        self.newest = Episodes([], [])
        self.infos = InfoTally()
        self._return = np.zeros(n_env)
        self._length = np.zeros(n_env, dtype=np.int64)

    def drop(self, envs: slice) -> None:
        """Drops the running episodes of these envs, which begin new ones."""
        self._return[envs] = 0.0
        self._length[envs] = 0
        self.n_reset += len(self._length[envs])

    def record(self, reward: Tensor, end: Tensor, is_reset: Tensor | None, is_broken: Tensor | None = None) -> None:
        """Takes the steps of a rollout, [T, B] each.

        is_reset: rows that are no transitions; None: there are none.
        is_broken: ends of episodes that broke off because their env failed: these are not counted.
        """
        # torch sums: numpy's cumsum takes three times as long
        total = _from_zero(reward.cumsum(0, dtype=torch.float64).numpy(force=True) + self._return)
        if is_reset is None:
            n_row = np.arange(1, len(total))[:, None]
        else:
            n_row = (~is_reset).cumsum(0).numpy(force=True)
        length = _from_zero(n_row + self._length)
        ends = end.numpy(force=True)
        envs = np.arange(end.shape[1])
        # the row of the sums at the last end before each step, 0 if there is none
        before = _from_zero(np.maximum.accumulate(ends * np.arange(1, len(total))[:, None]))
        t, b = np.nonzero(ends)  # in order of time
        if is_broken is None:
            whole = np.ones(len(t), dtype=bool)
        else:
            whole = ~is_broken.numpy(force=True)[t, b]
        self.newest = Episodes(*((sums[t + 1, b] - sums[before[t, b], b])[whole].tolist() for sums in (total, length)))
        self.returns.add(self.newest.returns)
        self.lengths.add(self.newest.lengths)
        self.n_episode += len(self.newest.returns)
        self.n_reset += len(t)
        self._return, self._length = (sums[-1] - sums[before[-1], envs] for sums in (total, length))


def _from_zero(sums: np.ndarray) -> np.ndarray:
    """[T, B] -> [T + 1, B], row 0 being 0."""
    return np.concatenate((np.zeros_like(sums[:1]), sums))
