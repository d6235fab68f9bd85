"""What a rollout keeps of its envs' infos: chosen entries of every step, as blocks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from zoo.env.errors import BrokenContractError, EnvContractError
from zoo.env.infos import other_shape_error, step_values

COLUMN = 'info/{}'  # of an entry, among the columns of a transition

logger = logging.getLogger(__name__)


class InfoBlock:
    """Chosen entries of the infos of T steps of B envs, in memory that is reused.

    Args: keys: the entries, see `VectorEnv.watch`; name: of the env, for messages.
    """

    def __init__(self, keys: Sequence[str], n_step: int, n_env: int, name: str = '') -> None:
        self._keys, self._n_step, self.n_env, self.name = tuple(keys), n_step, n_env, name
        self._columns: dict[str, np.ndarray] = {}

    def begin(self) -> None:
        """Called before each rollout."""
        for column in self._columns.values():
            column.fill(np.nan)

    def write(self, t: int, info: dict[str, Any], is_reset: np.ndarray | None) -> None:
        """Keeps what the info of the vector has of step t. is_reset: [B] bool, rows that are no step, see `Timestep`.

        Raises: EnvContractError for an entry that had another shape before.
        """
        for key in self._keys:
            found = step_values(info, key, self.n_env)
            if found is not None:
                values, given = found
                given = given if is_reset is None else given & ~is_reset
                if key not in self._columns:
                    self._columns[key] = np.full((self._n_step, *values.shape), np.nan, dtype=np.float32)
                column = self._columns[key]
                if values.shape[1:] != column.shape[2:]:
                    broken = other_shape_error(key, values.shape[1:], 'of the steps before', column.shape[2:])
                    raise _error(self.name, f'step {t + 1} of a rollout', broken)
                column[t, given] = values[given]

    def column(self, key: str) -> np.ndarray | None:
        """[T, B, ...] f32 of an entry, nan where a step had none; None if no step ever had it."""
        return self._columns.get(key)


class InfoColumns(Protocol):
    """The entries of a group of envs."""

    @property
    def n_env(self) -> int: ...

    @property
    def name(self) -> str: ...

    def column(self, key: str) -> np.ndarray | None: ...


def joined_infos(blocks: Sequence[InfoColumns], keys: Sequence[str], n_step: int) -> dict[str, Tensor]:
    """{key: [T, B, ...] f32} of all groups of envs together, copies; nan where a step had none.

    Raises: EnvContractError for an entry that has another shape in another group.
    """
    found: dict[str, Tensor] = {}
    for key in keys:
        parts = [block.column(key) for block in blocks]
        shape = next((part.shape[2:] for part in parts if part is not None), ())
        for block, part in zip(blocks, parts, strict=True):
            if part is not None and part.shape[2:] != shape:
                broken = other_shape_error(key, part.shape[2:], 'of the other envs', shape)
                raise _error(block.name, f'{block.n_env} envs of a group', broken)
        missing = (np.full((n_step, block.n_env, *shape), np.nan, dtype=np.float32) for block in blocks)
        whole = [empty if part is None else part for part, empty in zip(parts, missing, strict=True)]
        found[key] = torch.from_numpy(np.concatenate(whole, 1))
    return found


def _error(name: str, where: str, broken: BrokenContractError) -> EnvContractError:
    got, wanted, do = broken.args
    return EnvContractError(f'env {name!r}, {where}: {got}, wanted {wanted}; {do}.')


def warn_of_missing(columns: dict[str, Tensor]) -> None:
    """Says which entries no step of a rollout had."""
    if never := [key for key, column in columns.items() if bool(column.isnan().all())]:
        logger.warning(
            'env.info_columns has %s, but no step of the first rollout had a number of that name in its info: the column is '
            'nan there; correct the name, or read it only where it is given',
            ', '.join(map(repr, never)),
        )
