"""Row rules: autoreset, the meaning of ends, masks, raw rewards and restarts, each of which changes rows of a block."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from zoo.core.data import map_tensors
from zoo.core.spaces import ACTION_MASK, Space
from zoo.env.config import EndsConfig
from zoo.env.errors import Place
from zoo.env.infos import BROKEN, FINAL_OBS, RAW_END, RAW_REWARD, Number, end_infos, last_obs
from zoo.env.interface import BlockField, StepBlock, StepRow
from zoo.env.readers import ArrayReader

N_END_SEEN = 100  # ends of episodes after which Ends warns of entries that no info had
logger = logging.getLogger(__name__)


class SteppedEnvs(Protocol):
    """The vector env whose rows a rule changes; `zoo.env.vector.VectorEnv` is one."""

    reader: ArrayReader
    sent: Any  # the last actions, as the envs got them

    def reset_envs(self, call: str, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Resets envs; returns the first observations and the info."""


class RowRule:
    """Hooks for a property of the envs or the config that changes rows of a block, such as autoreset."""

    columns: tuple[BlockField, ...] = ()  # the optional fields of Timestep that it writes

    def on_reset(self, obs: Any) -> None:
        """Called with the first observations of all envs."""

    def on_write(self, row: StepRow) -> None:
        """Called after a row was written, before its values are checked."""

    def on_step(self, env: SteppedEnvs, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        """Called after row t was written and checked; info: of the vector env."""


class NextStep(RowRule):
    """Rule for the autoreset of most batched envs: the next step only resets an ended env, and its row is no transition."""

    columns = ('is_reset',)
    _ended: np.ndarray | bool = False

    def on_reset(self, obs: Any) -> None:
        self._ended = False

    def on_write(self, row: StepRow) -> None:
        row.is_reset[:] = self._ended
        if np.count_nonzero(self._ended):  # such a row has no reward and no end
            row.reward[self._ended] = 0.0
            row.terminated[self._ended] = False
            row.truncated[self._ended] = False

    def on_step(self, env: SteppedEnvs, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        self._ended = block.rows[t].terminated | block.rows[t].truncated


def ended_envs(block: StepBlock, t: int) -> np.ndarray:
    """[B] bool, true for the envs whose episode ended in row t."""
    return block.rows[t].terminated | block.rows[t].truncated


class SameStep(RowRule):
    """Rule for envs that reset themselves in the step that ends an episode; the info has the true last observations."""

    def on_step(self, env: SteppedEnvs, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        ended = ended_envs(block, t)
        if np.count_nonzero(ended):
            index = ended.nonzero()[0]
            final = env.reader.final(_finals(info), index)
            env.reader.check(final, env.sent, index)
            block.finals.append((t, index, final))


def _finals(info: dict[str, Any]) -> Any:
    """The last observations in the info of a step that ended episodes. Raises: KeyError if it has none."""
    finals = last_obs(None, info)
    if finals is None:
        return info[FINAL_OBS]
    return finals


class Disabled(RowRule):
    """Rule for envs that never reset themselves: zoo resets them after the step that ended an episode."""

    def on_step(self, env: SteppedEnvs, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        ended = ended_envs(block, t)
        row = block.rows[t]
        if np.count_nonzero(ended):
            index = ended.nonzero()[0]
            final = map_tensors(lambda x: x[index], row.obs)
            obs, _ = env.reset_envs('step', options={'reset_mask': ended})
            env.reader.write(row.obs, obs)
            env.reader.check(row.obs, env.sent)
            block.finals.append((t, index, final))


AUTORESET_RULES: dict[str, type[RowRule]] = {'next_step': NextStep, 'same_step': SameStep, 'disabled': Disabled}


class Masks(RowRule):
    """Refuses action masks that allow nothing; at the end of an episode, where no action follows, makes such masks all true.

    Args: shows_ends: whether rows have the last observations of episodes (autoreset next_step).
    """

    def __init__(self, action_space: Space, place: Place, shows_ends: bool) -> None:
        from zoo.env.masks import ChoiceCheck  # few envs have masks

        self._choices = ChoiceCheck(action_space)
        self._place = place
        self._shows_ends = shows_ends

    def on_reset(self, obs: Any) -> None:
        self._refuse(obs[ACTION_MASK], self._choices.empty(obs[ACTION_MASK]))

    def on_step(self, env: SteppedEnvs, block: StepBlock, t: int, info: dict[str, Any]) -> None:
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


class Ends(RowRule):
    """Decides which ends of episodes are terminal, as env.ends says; whether an episode ends stays as it is."""

    def __init__(self, cfg: EndsConfig, name: str, autoreset: str) -> None:
        self._cfg = cfg
        self._name = name
        self._autoreset = autoreset
        self._both_is_terminal = (cfg.both or cfg.terminated) == 'terminal'
        self._unseen = {*cfg.bootstrap_if, *cfg.terminal_if}  # entries that no info has had so far
        self._has_marks = bool(self._unseen)
        self._n_end = 0

    def on_step(self, env: SteppedEnvs, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        row = block.rows[t]
        ended = ended_envs(block, t)
        if not np.count_nonzero(ended):
            return
        is_both = row.terminated & row.truncated
        is_terminal = is_both & self._both_is_terminal
        is_terminal |= row.terminated & ~is_both & (self._cfg.terminated == 'terminal')
        is_terminal |= row.truncated & ~is_both & (self._cfg.truncated == 'terminal')
        if self._has_marks:
            index = ended.nonzero()[0]
            for i, last in zip(index, end_infos(info, index, self._autoreset), strict=True):
                self._look_for_entries(last)
                if _has_any(last, self._cfg.bootstrap_if):
                    is_terminal[i] = False
                if _has_any(last, self._cfg.terminal_if):
                    is_terminal[i] = True
        row.terminated[:] = is_terminal
        row.truncated[:] = ended & ~is_terminal

    def is_terminal(self, terminated: bool, last: Mapping[str, Number]) -> bool:
        """Whether one end is terminal. Args: terminated: its flag, else it was truncated; last: the numbers of its info."""
        if terminated:
            is_terminal = self._cfg.terminated == 'terminal'
        else:
            is_terminal = self._cfg.truncated == 'terminal'
        if self._has_marks:
            self._look_for_entries(last)
            if _has_any(last, self._cfg.bootstrap_if):
                is_terminal = False
            if _has_any(last, self._cfg.terminal_if):
                is_terminal = True
        return is_terminal

    def _look_for_entries(self, last: Mapping[str, Number]) -> None:
        """Warns once of entries that no info has after N_END_SEEN ends: a wrong name would change nothing, in silence."""
        if not self._unseen:
            return
        self._unseen -= last.keys()
        self._n_end += 1
        if self._unseen and self._n_end == N_END_SEEN:
            logger.warning(
                'env %r: env.ends looks for %s in the infos, but at none of the first %d ends of episodes the info had a '
                'number or bool of that name; the last one had %s. Correct the name, or leave it out.',
                self._name,
                ', '.join(map(repr, sorted(self._unseen))),
                N_END_SEEN,
                ', '.join(map(repr, last)) or 'none',
            )


def _has_any(info: Mapping[str, Number], marks: Mapping[str, Number]) -> bool:
    return any(name in info and info[name] == value for name, value in marks.items())


class RawRewards(RowRule):
    """Writes the game's own rewards and ends; 0 and false in rows that are only a reset."""

    columns = ('raw_reward', 'raw_end')

    def on_step(self, env: SteppedEnvs, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        row = block.rows[t]
        row.raw_reward[:] = info[RAW_REWARD]
        row.raw_end[:] = info[RAW_END]
        if row.is_reset is not None:
            row.raw_reward[row.is_reset] = 0.0
            row.raw_end[row.is_reset] = False


class BrokenEpisodes(RowRule):
    """Marks episodes that broke off because their env failed and was recreated (env.on_error=restart).

    Args: resets_are_marked: whether another rule writes `is_reset` (autoreset next_step).
    """

    def __init__(self, resets_are_marked: bool) -> None:
        self._resets_are_marked = resets_are_marked
        self.columns: tuple[BlockField, ...] = ('is_broken', 'is_reset', 'begins')
        if resets_are_marked:
            self.columns = ('is_broken', 'begins')

    def on_step(self, env: SteppedEnvs, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        row = block.rows[t]
        row.is_broken[:] = False
        if self._resets_are_marked:
            row.begins[:] = row.is_reset
        else:
            row.is_reset[:] = False
            row.begins[:] = ended_envs(block, t)
        if BROKEN in info:  # the row is no transition, and the trajectory ends with it
            broken = info[BROKEN]
            for column in (row.is_broken, row.begins, row.is_reset, row.truncated):
                column[broken] = True


def mark_broken(is_reset: Tensor, end: Tensor, is_broken: Tensor) -> None:
    """Sets is_reset in the rows of broken episodes, from the row after the previous end to the break. All arguments: [T, B]."""
    for t, b in is_broken.nonzero().tolist():
        ends = end[:t, b].nonzero()
        start = 0
        if len(ends):
            start = int(ends[-1]) + 1
        is_reset[start:t, b] = True
