"""Columns of a rollout: entries of the infos of its steps (env.info_columns)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.env.errors import BrokenContractError, EnvContractError
from zoo.env.infos import other_shape_error, step_values
from zoo.env.interface import RowObserver, StepRow

logger = logging.getLogger(__name__)


class InfoBlock(RowObserver):
    """Row observer that keeps chosen entries of the infos of T steps of B envs, in memory that is reused.

    Args: keys: the entries, see `VectorEnv.request_infos`; name: of the env, for messages.
    Attributes: columns: [T, B, ...] f32 by entry, nan where a step had none; without entries that no step ever had.
    """

    def __init__(self, keys: Sequence[str], n_step: int, n_env: int, name: str = '') -> None:
        self._keys = keys
        self._n_step = n_step
        self._n_env = n_env
        self._name = name
        self.columns: dict[str, np.ndarray] = {}

    def begin(self) -> None:
        for column in self.columns.values():
            column.fill(np.nan)

    def see(self, t: int, info: dict[str, Any], row: StepRow) -> None:
        """Keeps the chosen entries of step t. Raises: EnvContractError for an entry that had another shape before."""
        for key in self._keys:
            found = step_values(info, key, self._n_env)
            if found is None:
                continue
            values, given = found
            if row.is_reset is not None:
                given = given & ~row.is_reset
            if key not in self.columns:
                self.columns[key] = np.full((self._n_step, *values.shape), np.nan, dtype=np.float32)
            column = self.columns[key]
            if values.shape[1:] != column.shape[2:]:
                broken = other_shape_error(key, values.shape[1:], 'of the steps before', column.shape[2:])
                raise _error(self._name, f'step {t + 1} of a rollout', broken)
            column[t, given] = values[given]


def joined_infos(
    groups: Sequence[tuple[int, Mapping[str, np.ndarray]]], keys: Sequence[str], n_step: int, name: str
) -> dict[str, Tensor]:
    """Joins the columns of all groups of envs into copies, {key: [T, B, ...] f32}; nan where a step had no value.

    Args: groups: for each group (its number of envs, its `InfoBlock.columns`); name: of the env.
    Raises: EnvContractError for an entry that has another shape in another group.
    """
    found: dict[str, Tensor] = {}
    for key in keys:
        shape = next((columns[key].shape[2:] for _, columns in groups if key in columns), ())
        parts = [
            columns[key] if key in columns else np.full((n_step, n_env, *shape), np.nan, dtype=np.float32)
            for n_env, columns in groups
        ]
        for part in parts:
            if part.shape[2:] != shape:
                broken = other_shape_error(key, part.shape[2:], 'of the other envs', shape)
                raise _error(name, f'{part.shape[1]} envs of a group', broken)
        found[key] = torch.from_numpy(np.concatenate(parts, 1))
    return found


def _error(name: str, where: str, broken: BrokenContractError) -> EnvContractError:
    got, wanted, do = broken.args
    return EnvContractError(f'env {name!r}, {where}: {got}, wanted {wanted}; {do}.')


def _warn_of_missing(entries: Sequence[str]) -> None:
    if entries:
        logger.warning(
            'env.info_columns has %s, but no step of the first rollout had a number of that name in its info: the column is '
            'nan there; correct the name, or read it only where it is given',
            ', '.join(map(repr, entries)),
        )


def add_infos(data: Mapping[str, Any], infos: Mapping[str, Tensor], is_first: bool) -> dict[str, Any]:
    """The columns of a rollout with its infos as 'info/<entry>'; warns of entries that no step of the first rollout had."""
    if is_first:
        _warn_of_missing([key for key, column in infos.items() if bool(column.isnan().all())])
    return {**data, **{f'info/{key}': x for key, x in infos.items()}}
