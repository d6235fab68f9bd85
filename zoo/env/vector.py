"""A vector of envs that returns Timesteps, for any library, vectorization and autoreset mode."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from zoo.core.action_map import ActionMap
from zoo.core.data import BlockField, Row, StepBlock, Timestep
from zoo.core.spaces import Box, Discrete, obs_dtype
from zoo.env.adapter import convert_space
from zoo.env.config import EnvConfig
from zoo.env.diagnosis import RAW_ERRORS, bad_obs, not_finite_error, raise_if_contract, wrong_shape_error
from zoo.env.errors import EnvContractError, EnvError, contract_error, location_of
from zoo.env.families.family import RAW, RAW_END, RAW_REWARD


class VectorEnv:
    """B envs that step together: tensors in, Timesteps out, every observation and reward known to be finite."""

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        cfg: EnvConfig,
        name: str,
        one_seed: bool = False,
        reader: torch.device | None = None,
        first: int = 0,
    ) -> None:
        """
        Args:
          env: any gymnasium vector env that says its autoreset mode in its metadata. If its class says `steps_async`,
            `step_async` begins a step that continues asynchronously, and `step_wait` ends it.
          one_seed: its reset takes one int rather than one for each env.   reader: see `StepBlock`.
          first: index of its first env, where it is one of several groups.
        """
        self.name = name
        self.n_env: int = env.num_envs
        self.obs_space = convert_space(env.single_observation_space, 'observation', name)
        self.action_space = convert_space(env.single_action_space, 'action', name)
        self.autoreset = autoreset_name(env.metadata.get('autoreset_mode'))
        self._env = env
        self._one_seed = one_seed
        self._to_env = ActionMap(self.action_space, cfg.action_mode)
        self._discrete = self.obs_space if isinstance(self.obs_space, Discrete) else None
        self._is_bytes = obs_dtype(self.obs_space) == torch.uint8  # then every value is finite
        self._has_raw = bool(env.metadata.get(RAW))
        self._obs_shape = (self.n_env, *(self.obs_space.shape if isinstance(self.obs_space, Box) else ()))
        self._reader, self._first = reader, first
        self.steps_async: bool = vars(type(env)).get('steps_async', False)  # a subclass may have a step of its own
        self._ended = np.zeros(self.n_env, dtype=bool)
        self._step_count = 0

    def reset(self, seed: np.random.SeedSequence | int) -> Tensor:
        """Start new episodes; returns their first observations.

        Args:
          seed: env i (counted over all groups) is seeded from the i-th child of this sequence, the same whenever it is
            called; a batched env, which draws for all its envs together, from the child of the first of them.
        """
        seeds = _child_seeds(seed, self._first, self.n_env)
        self._ended = np.zeros(self.n_env, dtype=bool)
        self._step_count = 0
        try:
            raw, _ = self._env.reset(seed=seeds[0] if self._one_seed else seeds)  # type: ignore[arg-type]
            obs = self._convert(raw)
        except RAW_ERRORS as error:
            raise_if_contract(error, self._env, self.name, self._step_count)
            raise
        if obs.shape != self._obs_shape:
            raise contract_error(
                self.name,
                None,
                0,
                f'reset returned observations of shape {obs.shape}',
                str(self._obs_shape),
                'make them fit its single_observation_space',
            )
        self._check_obs(obs)
        return torch.from_numpy(obs)

    def block(self, n_step: int, n_env: int | None = None) -> StepBlock:
        """Storage for n_step steps of `receive`, or for those of n_env envs, of which these are a part."""
        like = torch.empty((n_env or self.n_env, *self._obs_shape[1:]), dtype=obs_dtype(self.obs_space))
        also: list[BlockField] = ['is_reset'] if self.autoreset == 'next_step' else []
        also += ['raw_reward', 'raw_end'] if self._has_raw else []
        return StepBlock(n_step, like, also, arrays=True, reader=self._reader)

    def step(self, action: Tensor) -> Timestep:
        """One step, in tensors of its own.

        action: [B] int64 index or [B, *A] f32, as the policy made it; the env is sent a mapped copy.
        Raises: EnvContractError if an env returns what no step may, such as an observation of another shape or one
          that is not finite; EnvError if a worker died or hung. What the env itself raises passes through, with a note.
        """
        block = self.block(1)
        self.send(action)
        info = self.receive(block, 0)
        final_obs = final_index = None
        for _, index, obs in block.finals:
            final_obs, final_index = torch.from_numpy(obs), torch.from_numpy(index)
        row: dict[str, Any] = {name: x[0] for name, x in block.steps._asdict().items() if isinstance(x, Tensor)}
        return Timestep(**row, final_obs=final_obs, final_index=final_index, info=info)

    def send(self, action: Tensor) -> None:
        """Begins a step, which continues asynchronously if `steps_async`; `receive` ends it. Takes and raises as `step`."""
        self._step_count += 1
        self._sent = self._to_env(action)
        if self.steps_async:
            try:
                self._env.step_async(self._sent)  # type: ignore[attr-defined]
            except RAW_ERRORS as error:
                self._explain(error)
                raise

    def receive(self, block: StepBlock, t: int) -> dict[str, Any]:
        """Writes what the step returns into row t of a block; returns the info of the vector env."""
        try:
            return self._write(block, t, self._sent)
        except RAW_ERRORS as error:
            self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        if len(self._sent) == self.n_env:  # else the caller is to blame
            raise_if_contract(error, self._env, self.name, self._step_count)

    def check(self) -> None:
        """Called once per rollout; here every step was looked at when it was made."""

    def compile(self, compile: Any) -> None:
        """Nothing to compile: these envs are no tensor programs."""

    def close(self) -> None:
        """End the envs and their processes; may be called again."""
        self._env.close()

    def _write(self, block: StepBlock, t: int, sent: np.ndarray) -> dict[str, Any]:
        returned = self._env.step_wait() if self.steps_async else self._env.step(sent)  # type: ignore[attr-defined]
        raw, env_reward, terminated, truncated, info = returned
        row, obs, reward = block.rows[t], self._convert(raw), np.asarray(env_reward)
        if (
            obs.shape != self._obs_shape
            or not reward.shape == np.shape(terminated) == np.shape(truncated) == self._ended.shape
        ):
            raise self._wrong_shape(observations=obs, rewards=reward, terminated=terminated, truncated=truncated)
        row.obs[...], row.reward[:], row.terminated[:], row.truncated[:] = obs, reward, terminated, truncated
        if row.is_reset is not None:
            row.is_reset[:] = self._ended
            if np.count_nonzero(self._ended):  # such a row is no transition: nothing was earned or ended in it
                row.reward[self._ended], row.terminated[self._ended], row.truncated[self._ended] = 0.0, False, False
        self._check_obs(row.obs, sent)
        if np.count_nonzero(np.isfinite(row.reward)) != self.n_env:
            raise not_finite_error(self._where, 'reward', row.reward, sent)
        if row.raw_reward is not None:
            self._write_raw(row, info)
        ended = row.terminated | row.truncated
        if self.autoreset == 'next_step':
            self._ended = ended
        elif np.count_nonzero(ended):
            index = ended.nonzero()[0]
            block.finals.append((t, index, self._begin_next(row, ended, index, info, sent)))
        return info

    def _begin_next(
        self,
        row: Row,
        ended: np.ndarray,
        index: np.ndarray,
        info: dict[str, Any],
        sent: np.ndarray,
    ) -> np.ndarray:
        """The true last observations [K, *O] of the episodes that ended, with the first of the next ones in the row."""
        if self.autoreset == 'same_step':
            final = self._convert(self._final_rows(info, index))
            self._check_obs(final, sent, index)
            return final
        final = row.obs[index]
        raw, _ = self._env.reset(options={'reset_mask': ended})
        obs = self._convert(raw)
        if obs.shape != self._obs_shape:
            raise self._wrong_shape(observations=obs)
        row.obs[...] = obs
        self._check_obs(row.obs, sent)
        return final

    def _write_raw(self, row: Row, info: dict[str, Any]) -> None:
        """The game's own rewards and ends, none of them in rows that are only a reset."""
        row.raw_reward[:], row.raw_end[:] = info[RAW_REWARD], info[RAW_END]
        if row.is_reset is not None:
            row.raw_reward[row.is_reset], row.raw_end[row.is_reset] = 0.0, False

    def _convert(self, raw: Any) -> np.ndarray:
        if self._discrete is not None:
            return np.asarray(raw).astype(np.int64) - self._discrete.start
        if not self._is_bytes:
            return np.asarray(raw, dtype=np.float32)  # no copy where it is f32 already
        obs = np.asarray(raw)
        if obs.dtype != np.uint8:
            raise contract_error(
                self.name,
                None,
                self._step_count,
                f'the observations are of {obs.dtype}',
                'uint8 as in observation_space',
                'return obs.astype(np.uint8), or correct the space',
            )
        return obs

    def _check_obs(self, obs: np.ndarray, sent: np.ndarray | None = None, index: np.ndarray | None = None) -> None:
        if self._discrete is None:
            if not self._is_bytes and np.count_nonzero(np.isfinite(obs)) != obs.size:
                raise not_finite_error(self._where, 'observation', obs, sent, index)
        elif obs.min() < 0 or obs.max() >= self._discrete.n:
            row = int(np.flatnonzero((obs < 0) | (obs >= self._discrete.n))[0])
            start, n = self._discrete.start, self._discrete.n
            raise EnvContractError(
                f'{self._where(row, index)}: observation is {obs[row] + start}, outside of the space '
                f'{start} .. {start + n - 1}; make the space as large as what the env returns.'
            )

    def _final_rows(self, info: dict[str, Any], index: np.ndarray) -> np.ndarray:
        rows = info['final_obs'][index]
        if rows.dtype != object:  # one array for all envs
            return rows
        for i, row in zip(index, rows, strict=True):  # one array per env (gymnasium), which nothing has looked at yet
            if np.shape(row) != self._obs_shape[1:] or row is None:
                raise bad_obs(self.name, int(i), self._step_count, row, self._obs_shape[1:])
        return np.stack(rows)

    def _wrong_shape(self, **returned: Any) -> EnvContractError:
        return wrong_shape_error(self.name, self._step_count, self._obs_shape, self._ended.shape, returned)

    def _where(self, row: int, index: np.ndarray | None) -> str:
        return location_of(self.name, row if index is None else int(index[row]), self._step_count)


def autoreset_name(mode: Any) -> Literal['same_step', 'next_step', 'disabled']:
    names: dict[AutoresetMode, Literal['same_step', 'next_step', 'disabled']] = {
        AutoresetMode.SAME_STEP: 'same_step',
        AutoresetMode.NEXT_STEP: 'next_step',
        AutoresetMode.DISABLED: 'disabled',
    }
    if mode not in names:
        raise EnvError(
            f"metadata['autoreset_mode'] of the vector env is {mode!r}; "
            'set it to one of gymnasium.vector.AutoresetMode.'
        )
    return names[mode]


def _child_seeds(seed: np.random.SeedSequence | int, first: int, n: int) -> list[int]:
    """One 31-bit int (some simulators take no more) for each of `n` children of a seed sequence, from `first` on."""
    parent = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    # spawn() would count up, and give other children the next time
    children = (
        np.random.SeedSequence(parent.entropy, spawn_key=(*parent.spawn_key, i), pool_size=parent.pool_size)
        for i in range(first, first + n)
    )
    return [int(child.generate_state(1)[0]) >> 1 for child in children]
