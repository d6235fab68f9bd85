"""Rules of rows that a vector env has beside its plain form: autoreset in the same step or by zoo, masks, raw rewards, restarts."""

from __future__ import annotations

from typing import Any

import numpy as np

from zoo.core.data import BlockField, StepBlock
from zoo.core.spaces import ACTION_MASK, Space
from zoo.env.errors import BROKEN, RAW_END, RAW_REWARD, Place
from zoo.env.masks import ChoiceCheck
from zoo.env.stepping import RowRule, RowVectorEnv


def ended_envs(block: StepBlock, t: int) -> np.ndarray:
    """Which episodes ended in row t, [B] bool."""
    ended: np.ndarray = block.rows[t].terminated | block.rows[t].truncated
    return ended


class SameStep(RowRule):
    """Autoreset by the envs in the step that ends an episode; the info has the true last observations."""

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        ended = ended_envs(block, t)
        if np.count_nonzero(ended):
            index = ended.nonzero()[0]
            final = env.reader.final(info['final_obs'], index)
            env.reader.check(final, env.sent, index)
            block.finals.append((t, index, final))


class Disabled(RowRule):
    """Envs that reset none of themselves: zoo does, after the step that ended an episode."""

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        ended, row = ended_envs(block, t), block.rows[t]
        if np.count_nonzero(ended):
            index = ended.nonzero()[0]
            final = env.reader.take(row.obs, index)
            obs, _ = env.reset_envs('step', options={'reset_mask': ended})
            env.reader.write(row.obs, obs)
            env.reader.check(row.obs, env.sent)
            block.finals.append((t, index, final))


class Masks(RowRule):
    """Refuses action masks that leave nothing to choose; at the end of an episode, where nobody acts, all becomes true.

    Args: shows_ends: whether rows have the last observations of episodes (autoreset next_step).
    """

    def __init__(self, action_space: Space, place: Place, shows_ends: bool) -> None:
        self._choices, self._place, self._shows_ends = ChoiceCheck(action_space), place, shows_ends

    def on_reset(self, obs: Any) -> None:
        self._refuse(obs[ACTION_MASK], self._choices.empty(obs[ACTION_MASK]))

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        for at, _, final in block.finals[-1:]:
            if at == t:
                final[ACTION_MASK][self._choices.empty(final[ACTION_MASK])] = True
        mask = block.rows[t].obs[ACTION_MASK]
        empty = self._choices.empty(mask)
        if self._shows_ends and np.count_nonzero(empty):
            ended = ended_envs(block, t)
            mask[empty & ended] = True
            empty &= ~ended
        self._refuse(mask, empty)

    def _refuse(self, mask: np.ndarray, empty: np.ndarray) -> None:
        if np.count_nonzero(empty):
            index = int(np.flatnonzero(empty)[0])
            raise self._place.error(index, *self._choices.fault(mask[index]))


class RawRewards(RowRule):
    """The game's own rewards and ends, none of them in rows that are only a reset."""

    columns = ('raw_reward', 'raw_end')

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        row = block.rows[t]
        row.raw_reward[:], row.raw_end[:] = info[RAW_REWARD], info[RAW_END]
        if row.is_reset is not None:
            row.raw_reward[row.is_reset], row.raw_end[row.is_reset] = 0.0, False


class BrokenEpisodes(RowRule):
    """Marks episodes that broke off since their env was made anew (env.on_error=restart).

    Args: marks_resets: whether another rule writes `is_reset` (autoreset next_step).
    """

    def __init__(self, marks_resets: bool) -> None:
        self._marks_resets = marks_resets
        self.columns: tuple[BlockField, ...] = ('begins',) if marks_resets else ('is_reset', 'begins')

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        row = block.rows[t]
        if self._marks_resets:
            row.begins[:] = row.is_reset
        else:
            row.is_reset[:], row.begins[:] = False, ended_envs(block, t)
        if BROKEN in info:  # the row is no transition, and the trajectory ends with it
            broken = info[BROKEN]
            row.begins[broken] = row.is_reset[broken] = row.truncated[broken] = True
