"""Demonstrations: observations and actions of an expert, from a file .npz, a dataset of Minari, or recorded from a policy."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from torch import Tensor

from zoo.core.action_map import ActionMap
from zoo.core.data import Obs, Path as LeafPath, Timestep, leaf_items, leaves, map_tensors
from zoo.core.errors import UserError, need, of_entry, show_error
from zoo.core.files import refuse_failure, whole_file
from zoo.core.processes import machine_memory
from zoo.core.seeding import stream
from zoo.core.spaces import (
    ACTION_MASK,
    Box,
    Dict,
    Discrete,
    Leaf,
    MultiDiscrete,
    Raw,
    Space,
    leaf_names,
    leaf_spaces,
    leaves_by_path,
    n_lead,
    nested_leaves,
    obs_to_tensor,
)
from zoo.core.streams import printable
from zoo.env.adapter import convert_space
from zoo.policy.base import Policy
from zoo.worker.evaluation_env import open_env, refuse_other_spaces
from zoo.worker.evaluator import Evaluation, Evaluator

logger = logging.getLogger(__name__)
KEYS = ('obs', 'action', 'episode_ends', 'reward', 'terminated')


class Demonstrations(NamedTuple):
    """Whole episodes, one after the other.

    obs: [N, *O] in each leaf, as networks take them; action: [N, *A] by the leaf's name, as the env takes them ('' if the
    space is no Dict); episode_ends: [E] int64, rising, the number of steps up to the end of each episode; reward: [N],
    or None; terminated: [E] bool, the episode ended in a terminal state, not by a time limit; env_obs: [N, *O] by the leaf's
    name, the observations as the env gave them, with their own numbers and number types; None: files get `obs`.
    """

    obs: Obs
    action: dict[str, np.ndarray]
    episode_ends: np.ndarray
    reward: np.ndarray | None = None
    terminated: np.ndarray | None = None
    env_obs: Mapping[str, np.ndarray] | None = None

    @property
    def n_step(self) -> int:
        return int(self.episode_ends[-1])

    def episodes(self) -> list[slice]:
        """Returns the slice of steps of each episode."""
        ends = self.episode_ends.tolist()
        return list(map(slice, [0, *ends[:-1]], ends))

    def policy_action(self, policy: Policy) -> Tensor:
        """Returns the actions in the policy's form: [N] or [N, K] int64, or [N, D] float32. Raises: UserError if impossible."""
        space = policy.action_space
        mode = policy._action_map.mode
        parts = [_policy_part(leaf, self.action[path], mode) for path, leaf in leaf_spaces(space)]
        change = policy._env_action()
        action = parts[0]
        if isinstance(space, Dict):
            action = torch.cat([part.reshape(len(part), -1).to(torch.float32) for part in parts], -1)
        elif not isinstance(space, Discrete):
            action = action.reshape(len(action), -1)
        dist = getattr(policy, 'dist', None)
        if change is None or dist is None:
            return action
        return dist.from_env_action(action)


def read_demonstrations(source: str, policy: Policy) -> Demonstrations:
    """Reads demonstrations for the spaces of a policy, from a file .npz or a dataset of Minari by its id.

    Raises: UserError if something is missing or does not fit these spaces.
    """
    arrays, where = _arrays_of(source)
    present = {name: name.split('/')[0] for name in arrays}
    unknown = [printable(name) for name, first in present.items() if first not in KEYS]
    missing = [name for name in KEYS[:3] if name not in present.values()]
    if missing or unknown:
        problem = f'has {", ".join(unknown[:5])}, which is not known'
        if missing:
            problem = f'has no {" and no ".join(missing)}'
        raise UserError(f'{where} {problem}; demonstrations hold {", ".join(KEYS)}, see docs/weights_and_demos.md')
    for name in arrays:
        if name.startswith('obs') and arrays[name].dtype.kind not in 'biuf':
            raise UserError(f'{where} has {printable(name)} of type {arrays[name].dtype}, but observations are numbers')
    ends = _counts_of(arrays['episode_ends'], where)
    obs = _obs_of(arrays, policy.obs_space, where, policy._optional_obs())
    n_step = len(next(iter(leaves(obs)))[1])
    if ends.ndim != 1 or not len(ends) or (np.diff(ends, prepend=0) <= 0).any() or ends[-1] != n_step:
        raise UserError(
            f'{where} has episode_ends {ends.tolist()[:5]} for {n_step} observations, but they must rise from above 0 to that '
            'number: how many steps there are up to the end of each episode'
        )
    action = {path: _action_of(arrays, path, leaf, n_step, where) for path, leaf in leaf_spaces(policy.action_space)}
    return Demonstrations(
        obs=obs,
        action=action,
        episode_ends=ends,
        reward=_rewards_of(arrays, n_step, where),
        terminated=_terminated_of(arrays, len(ends), where),
        env_obs=_env_obs_of(arrays, policy.obs_space),
    )


def save_demonstrations(path: str | Path, demos: Demonstrations) -> None:
    """Writes them to a file .npz, whole or not at all. Raises: UserError if it cannot be written."""
    obs = demos.env_obs
    if obs is None:
        obs = {name: x.cpu().numpy() for name, x in leaves(demos.obs)}
    arrays: dict[str, np.ndarray] = {
        **{_key('obs', name): x for name, x in obs.items()},
        **{_key('action', name): x for name, x in demos.action.items()},
        'episode_ends': demos.episode_ends,
    }
    if demos.reward is not None:
        arrays['reward'] = demos.reward
    if demos.terminated is not None:
        arrays['terminated'] = demos.terminated
    with refuse_failure(f'{path} cannot be written', 'name another file'), whole_file(Path(path)) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def record_demonstrations(
    policy: Policy, env: Any, n_episode: int = 10, seed: int = 0, *, deterministic: bool | None = None
) -> tuple[Demonstrations, Evaluation]:
    """Plays a policy and records its demonstrations; the episodes are those of `evaluate` on one env with this seed.

    Args: as of `evaluate`.
    """
    if deterministic is None:
        deterministic = policy.cfg.eval.deterministic
    with open_env(env, policy, 1) as vector:
        refuse_other_spaces(policy, vector)
        tape: Any = _Tape(vector, policy)
        evaluator = Evaluator(tape, policy.eval_mode, n_episode, None, deterministic=deterministic, quiet=True)
        try:
            evaluation = evaluator.evaluate(stream(seed, 'evaluate'))
        finally:
            tape.stop()
    assert evaluation is not None, 'nothing stops it'
    return tape.demonstrations(), evaluation


class _TapedStep(NamedTuple):
    """A step of one env. obs: in zoo's form; env_obs: the same by leaf as the env gave it; action: of each leaf."""

    obs: Obs
    env_obs: dict[str, np.ndarray]
    action: list[np.ndarray]
    reward: float


class _Tape:
    """Wrapper of one env that records its steps, except steps that only reset the env."""

    def __init__(self, env: Any, policy: Policy) -> None:
        self._env = env
        self._map = ActionMap(policy.action_space, policy._action_map.mode)
        self._paths = [path for path, _ in leaf_spaces(policy.action_space)]
        self._raw: _RawObs | None = None
        if hasattr(env, 'reader'):  # tensor envs have none: their observations are in zoo's form already
            self._raw = env.reader = _RawObs(env.reader)
        self._steps: list[_TapedStep] = []
        self._ends: list[tuple[int, bool]] = []  # steps up to an end, whether it is a terminal state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, seed: np.random.SeedSequence) -> Obs:
        obs = self._env.reset(seed)
        self._keep(obs)
        return obs

    def _keep(self, obs: Obs) -> None:
        """Copies the observations on which the next action acts."""
        self._now: Obs = map_tensors(torch.clone, obs)
        raw = None
        if self._raw is not None:
            raw = self._raw.last
        self._env_obs = as_env_gives(self._env.obs_space, obs, raw)

    def step(self, action: Tensor) -> Timestep:
        timestep = self._env.step(action)
        if timestep.is_reset is None or not bool(timestep.is_reset[0]):
            env_action = [x.numpy().copy() for x in self._map.tensors(action.detach().cpu())]
            self._steps.append(_TapedStep(self._now, self._env_obs, env_action, float(timestep.reward[0])))
            if bool(timestep.terminated[0] | timestep.truncated[0]):
                self._ends.append((len(self._steps), bool(timestep.terminated[0])))
        self._keep(timestep.obs)
        return timestep

    def stop(self) -> None:
        """Gives the env, which may belong to the caller, its own reader back."""
        if self._raw is not None:
            self._env.reader = self._raw.reader

    def demonstrations(self) -> Demonstrations:
        if not self._ends:
            raise UserError('no episode ended, so there is nothing to keep; set env.max_episode_steps')
        ends = [n_step for n_step, _ in self._ends]
        steps = self._steps[: ends[-1]]  # without an episode that was cut off
        return Demonstrations(
            obs=map_tensors(lambda *rows: torch.cat(rows), *(step.obs for step in steps)),
            action={path: np.concatenate([step.action[i] for step in steps]) for i, path in enumerate(self._paths)},
            episode_ends=np.array(ends),
            reward=np.array([step.reward for step in steps]),
            terminated=np.array([is_terminal for _, is_terminal in self._ends]),
            env_obs={name: np.concatenate([step.env_obs[name] for step in steps]) for name in steps[0].env_obs},
        )


class _RawObs:
    """Wrapper of the reader of a vector env that remembers the last observations which the env gave."""

    last: Raw = None

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reader, name)

    def read(self, raw: Raw) -> Obs:
        self.last = raw
        return self.reader.read(raw)


def as_env_gives(space: Space, obs: Obs, raw: Raw = None) -> dict[str, np.ndarray]:
    """Copies of observations [N, *O] by leaf, with the numbers and number types of the env.

    Args: obs: in zoo's form; raw: the same as the env gave them, None if that is not known: then only the start of indices is
      added.
    """
    names = leaf_names(space)
    tensors = dict(leaf_items(obs))
    arrays = {}
    for path, leaf in leaves_by_path(space).items():
        array = tensors[path].cpu().numpy()
        env_array = None
        if raw is not None and path != (ACTION_MASK,):
            env_array = _raw_at(raw, path, array.shape)
        if env_array is not None:
            array = env_array
        elif isinstance(leaf, Discrete | MultiDiscrete):
            array = array + _shaped(leaf, leaf.start)
        arrays[names[path]] = np.array(array)
    return arrays


def _raw_at(raw: Raw, path: LeafPath, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array of numbers at a path of raw observations; None if there is none of this shape."""
    for name in path:
        if isinstance(raw, tuple):
            raw = raw[int(name)]
        else:
            raw = raw[name]
    array = np.asarray(raw)
    if array.shape == shape and array.dtype.kind in 'biuf':
        return array
    return None


def _arrays_of(source: str) -> tuple[dict[str, np.ndarray], str]:
    """Returns the arrays of a file or dataset, and its name for messages."""
    path = Path(source)
    if path.suffix == '.npz' or path.exists():
        return _file_arrays(path), str(path)
    return _minari_arrays(source), f'the dataset {source}'


def _file_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with ZipFile(path) as file:
            if sum(entry.file_size for entry in file.infolist()) > machine_memory():
                raise MemoryError
        with np.load(path, allow_pickle=False) as file:
            return {name: np.asarray(file[name]) for name in file.files}
    except MemoryError as error:
        raise UserError(f'{path} claims more memory than this machine has; name a smaller file') from error
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror or error}); name a file of demonstrations') from error
    except (ValueError, BadZipFile, EOFError, zlib.error) as error:
        raise UserError(
            f'{path} is no file of arrays (.npz) without pickles, or was cut off; write one with numpy.savez'
        ) from error


def _minari_arrays(name: str) -> dict[str, np.ndarray]:
    need('minari', 'minari', f'{name!r}, which is no file and so an id of a dataset of Minari,')
    import minari

    try:
        dataset = minari.load_dataset(name)
        episodes = list(dataset.iterate_episodes())
    except Exception as error:  # Minari raises errors of several kinds
        known = sorted(minari.list_local_datasets())
        if name in known:
            remedy = 'download or record it again'
            if isinstance(error, ImportError):
                remedy = 'install what it needs'
            raise UserError(f'the dataset {name!r} of Minari cannot be read ({show_error(error)}); {remedy}') from error
        raise UserError(
            f'{name!r} is neither a file nor a dataset of Minari on this machine; there are: {", ".join(known) or "none"}; '
            f'minari download {name} gets one'
        ) from error
    images = _images_as_jpeg(dataset)
    if images:
        logger.warning(
            'the dataset %s keeps the observations%s as JPEG, so they differ from those of the env; record it with '
            'jpeg_encoding=False to have these',
            name,
            ','.join(map(of_entry, images)),
        )
    lengths = [len(episode.rewards) for episode in episodes]
    arrays = {
        'episode_ends': np.cumsum(lengths),
        'reward': np.concatenate([episode.rewards for episode in episodes]),
        'terminated': np.array([bool(episode.terminations[-1]) for episode in episodes]),
    }
    _join_episodes(arrays, 'obs', [episode.observations for episode in episodes], lengths)
    _join_episodes(arrays, 'action', [episode.actions for episode in episodes], lengths)
    return arrays


def _join_episodes(arrays: dict[str, np.ndarray], key: str, trees: Sequence[Any], lengths: Sequence[int]) -> None:
    """Adds the leaves of the episodes' trees, without the observation after the last step."""
    episodes = [dict(leaves(_named_parts(tree))) for tree in trees]
    for path in episodes[0]:
        parts = [np.asarray(episode[path])[:n] for episode, n in zip(episodes, lengths, strict=True)]
        arrays[_key(key, path)] = np.concatenate(parts)


def _images_as_jpeg(dataset: Any) -> list[str]:
    """The names of the leaves of the observations that Minari compresses with loss.

    Minari keeps bytes from 0 to 255 so that have two or three dimensions, of which the first two are 32 or more.
    """
    if not getattr(dataset.storage, 'metadata', {}).get('jpeg_encoding'):
        return []
    space = convert_space(dataset.observation_space, 'observation', dataset.spec.dataset_id)
    return [name for name, leaf in leaf_spaces(space) if _is_kept_as_jpeg(leaf)]


def _is_kept_as_jpeg(leaf: Leaf) -> bool:
    if not (isinstance(leaf, Box) and leaf.dtype == 'uint8'):
        return False
    has_size = len(leaf.shape) in (2, 3) and min(leaf.shape[:2]) >= 32
    return bool(has_size and (leaf.low == 0).all() and (leaf.high == 255).all())


def _named_parts(tree: Any) -> Any:
    """A tree in which the parts of a tuple are named '0', '1', ..."""
    if isinstance(tree, tuple):
        tree = {str(i): part for i, part in enumerate(tree)}
    if isinstance(tree, dict):
        return {name: _named_parts(part) for name, part in tree.items()}
    return tree


def _key(name: str, path: str) -> str:
    if path:
        return f'{name}/{path}'
    return name


def _obs_of(arrays: Mapping[str, np.ndarray], space: Space, where: str, optional: Sequence[str]) -> Obs:
    raw: Any = arrays.get('obs')
    if isinstance(space, Dict):
        raw = {key.removeprefix('obs/'): x for key, x in arrays.items() if key.startswith('obs/')}
        raw = nested_leaves(space, raw) or raw
    if raw is None:
        raise UserError(
            f'{where} has observations with leaves but those of the env are one array; they are of another env'
        )
    try:
        obs = obs_to_tensor(space, raw, optional=tuple(optional))
    except UserError as error:
        raise UserError(f'{where} has observations that are not of this env: {error}') from error
    if n_lead(space, obs) != 1:
        raise UserError(
            f'{where} must have its observations in one row, [N, ...]; got one, or several dimensions in front'
        )
    return obs


def _env_obs_of(arrays: Mapping[str, np.ndarray], space: Space) -> dict[str, np.ndarray]:
    """The observations of a file, by the names of the leaves."""
    return {name: arrays[_key('obs', name)] for name in leaf_names(space).values() if _key('obs', name) in arrays}


def _action_of(arrays: Mapping[str, np.ndarray], path: str, leaf: Leaf, n_step: int, where: str) -> np.ndarray:
    key = _key('action', path)
    if key not in arrays:
        raise UserError(f'{where} has no {key}, which the action space of the env has; they are of another env')
    action = arrays[key]
    if action.shape != (n_step, *leaf.shape):
        raise UserError(
            f'{where} has {key} of shape {list(action.shape)} but {n_step} observations and an action space of shape '
            f'{list(leaf.shape)}, which is {[n_step, *leaf.shape]}; they are of another env'
        )
    kinds = 'iub'
    if isinstance(leaf, Box):
        kinds = 'iubf'
    if action.dtype.kind not in kinds:
        raise UserError(f'{where} has {key} of type {action.dtype} but the env takes {leaf}; they are of another env')
    outside = _outside(leaf, action)
    if outside:
        raise UserError(f'{where} has {key} {outside}, outside of the action space {leaf}; they are of another env')
    return action


def _outside(leaf: Leaf, action: np.ndarray) -> str:
    """Returns the first number of an action that its space does not have; '' if there is none."""
    if isinstance(leaf, Box):
        is_outside = ~np.isfinite(action) | (action < leaf.low) | (action > leaf.high)
    else:
        index = action - _shaped(leaf, getattr(leaf, 'start', 0))
        n_choice = _shaped(leaf, getattr(leaf, 'nvec', getattr(leaf, 'n', 2)))
        is_outside = (index < 0) | (index >= n_choice)
    if is_outside.any():
        return str(action[is_outside].flat[0])
    return ''


def _shaped(leaf: Leaf, numbers: Any) -> np.ndarray:
    """Returns one number for all entries of a leaf, or an array of its shape."""
    array = np.asarray(numbers)
    if array.ndim == 0:
        return array
    return array.reshape(leaf.shape)


def _counts_of(ends: np.ndarray, where: str) -> np.ndarray:
    """Returns episode_ends as integers. Raises: UserError for fractions, infinite values and what is no number."""
    is_wrong = np.ones(ends.shape, bool)
    if ends.dtype.kind in 'iuf':
        is_wrong = (ends != np.floor(ends)) | ~np.isfinite(ends)
    if is_wrong.any():
        raise UserError(
            f'{where} has episode_ends {_first_wrong(ends, is_wrong)} but each must be an integer: how many steps there are up '
            'to the end of an episode'
        )
    return ends.astype(np.int64)


def _first_wrong(array: np.ndarray, is_wrong: np.ndarray) -> str:
    """Returns the first wrong value as text, or the type of an array that does not hold numbers."""
    if array.dtype.kind in 'biuf' and is_wrong.any():
        return str(array[is_wrong].flat[0])
    return f'of type {array.dtype}'


def _rewards_of(arrays: Mapping[str, np.ndarray], n_step: int, where: str) -> np.ndarray | None:
    """Returns the rewards of a file as float64 [N]; None if it has none. Raises: UserError if they are not finite."""
    if 'reward' not in arrays:
        return None
    reward = arrays['reward']
    _check_numbers('reward', reward, n_step, where)
    if not np.isfinite(reward).all():
        raise _not_finite('reward', f'shape {list(reward.shape)}', n_step, where)
    return reward.astype(np.float64)


def _terminated_of(arrays: Mapping[str, np.ndarray], n_episode: int, where: str) -> np.ndarray | None:
    """Returns whether each episode ended in a terminal state; None if the file does not say it. Raises: UserError."""
    if 'terminated' not in arrays:
        return None
    terminated = arrays['terminated']
    is_wrong = np.ones(terminated.shape, bool)
    if terminated.dtype.kind in 'biuf':
        is_wrong = (terminated != 0) & (terminated != 1)
    if is_wrong.any():
        raise UserError(
            f'{where} has terminated {_first_wrong(terminated, is_wrong)} but each must be true or false (1 or 0): whether '
            'the episode ended in a terminal state'
        )
    _check_numbers('terminated', terminated, n_episode, where)
    return terminated.astype(bool)


def _check_numbers(name: str, array: np.ndarray, n: int, where: str) -> None:
    if array.dtype.kind not in 'biuf':
        raise _not_finite(name, f'type {array.dtype}', n, where)
    if array.shape != (n,):
        raise _not_finite(name, f'shape {list(array.shape)}', n, where)


def _not_finite(name: str, description: str, n: int, where: str) -> UserError:
    return UserError(f'{where} has {name} of {description}, but it must be {n} finite numbers, [{n}]')


def _policy_part(leaf: Leaf, action: np.ndarray, mode: str) -> Tensor:
    """Converts the env's actions of a leaf to the form of the policy."""
    if not isinstance(leaf, Box):
        index = action.astype(np.int64) - _shaped(leaf, getattr(leaf, 'start', 0))
        return torch.from_numpy(np.ascontiguousarray(index))
    low = leaf.low.astype(np.float64)
    high = leaf.high.astype(np.float64)
    action = action.astype(np.float64)
    if mode == 'rescale':
        bounded = np.isfinite(low) & np.isfinite(high)
        with np.errstate(invalid='ignore'):
            action = np.where(bounded, (action - (high + low) / 2) / ((high - low) / 2), action)
    return torch.from_numpy(action.astype(np.float32))
