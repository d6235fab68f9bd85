"""Data of each stage of a round: Transition, Timestep, Rollout, Sample, Minibatch; trees of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np
import torch
from torch import Tensor

from zoo.core.errors import UserError, shown
from zoo.core.ranks import ALONE, Ranks, weight_scale


def send(x: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor to a device. From the host the copy goes through pinned memory, and the host does not wait for it.

    A tensor that is already pinned may be read later: do not change it until the device is synchronised.
    """
    if x.device.type != 'cpu' or device.type == 'cpu':
        return x.to(device)
    if device.type == 'cuda' and x.numel() and not x.is_pinned():
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def wide(x: Tensor) -> Tensor:
    """The tensor in at least float32: 8 bits of mantissa are too few for a ratio of probabilities."""
    if x.dtype in (torch.bfloat16, torch.float16):
        return x.float()
    return x


Columns = Mapping[str, Any]
"""Tensors by name, or nested mappings of tensors, with common leading dimensions."""
Metrics = dict[str, Tensor]
"""Detached tensors by name, 0-dim, or one number for each step of an update."""
Tree = Any
"""A tensor or array, or a nested mapping from names to tensors or arrays."""
State = Tree
"""The recurrent state of a model: a tensor [B, ...] or a nested dict of tensors; None for a model without one."""
Obs = Tree
"""Observations: a tensor [..., *O], or for Dict and Tuple spaces a nested dict of tensors."""

PASS_CELLS = 1 << 24  # most numbers in the observations of one pass of the critic over a rollout: 64 MB of float32


class Transition(TypedDict, total=False):
    """The columns of a rollout that `_process_transition` keeps, [T, B, ...]; `done` and `traj_flag` are never merged."""

    obs: Obs  # [T, B, *O]
    action: Tensor  # [T, B] or [T, B, K] int64, or [T, B, D] f32; raw, never clipped
    logit: Tensor  # [T, B, P], the distribution's parameters when the action was drawn
    reward: Tensor  # [T, B] f32
    done: Tensor  # [T, B] bool, the reached state is terminal: no bootstrap
    traj_flag: Tensor  # [T, B] bool, the trace stops: terminal or time limit
    value: Tensor  # [T, B], only if acting computes it anyway; in the unit of the critic's output
    is_reset: Tensor  # [T, B] bool, no sample: the row only reset its env, or the env failed in this episode
    # [T, B] bool, traj_flag is set only because the rollout has no more steps of this row; of agents that wait for turns
    is_open: Tensor
    age: Tensor  # [T, B] f32, updates between the action and the end of the rollout; only with env.ready_num
    # [T, B] int64, the env of each row: columns hold the steps of several envs, one env after the other; with env.ready_num
    env_index: Tensor
    # [T, B, ...], the recurrent state after the row, or what a `StateRecorder` keeps of it; only for models with one
    state: State
    is_first: Tensor  # [T, B] bool, an episode begins with the row; only together with `state`


class Sample(TypedDict, total=False):
    """The samples of a rollout from `_get_train_sample`: [N], N = T * B, or sequences [S, L], see policy/sequences.py."""

    obs: Obs
    action: Tensor
    logit: Tensor
    value: Tensor  # [N], in return units
    adv: Tensor  # [N]
    return_: Tensor  # [N], in return units
    # mean 1; only if samples differ in weight: losses are mean(x * weight), statistics are of samples with weight > 0
    weight: Tensor  # [N]
    state: State  # [S, ...], before the first row of each sequence; only for models with a state
    is_first: Tensor  # [S, L] bool, together with `state`


STATE_COLUMNS = frozenset(('state', 'is_first', 'is_burned'))  # only sequences have them


class Minibatch(Sample, total=False):
    """Samples of one gradient step: values and returns in the unit of the critic's output, adv normalised."""

    log_old: Tensor  # [N], log-probability of the action by `logit`


class Timestep(NamedTuple):
    """One step of B envs, in one form for every autoreset mode; in a rollout T steps, [T, B, ...], without final_obs.

    The tensors are on the CPU; those of tensor programs are on their device. The next step may overwrite them.

    The true last observation of an episode is in `final_obs` if `obs` already is the first one of the next episode
    (same_step, disabled). It is `obs` itself if the reset comes with the next step (next_step).
    """

    obs: Obs  # [B, *O], of the dtypes of `zoo.core.spaces.obs_dtype`
    reward: Tensor  # [B] f32
    terminated: Tensor  # [B] bool, the reached state is terminal
    truncated: Tensor  # [B] bool, cut off from outside, such as by a time limit
    final_obs: Obs | None  # [K, *O], of the K envs whose episode ended; None if none did or `obs` is it
    final_index: Tensor | None  # [K] int64, the indices of these envs
    info: dict[str, Any]  # of the vector env; in a rollout {entry: [T, B, ...] f32} of env.info_columns
    is_reset: Tensor | None = None  # [B] bool, the row is only a reset, no sample; None if there are no such rows.
    # In a rollout it is also set in all rows of an episode that is broken off, see `is_broken`.
    raw_reward: Tensor | None = None  # [B] f32, of the game, if `reward` is changed for training; None: as `reward`
    raw_end: Tensor | None = None  # [B] bool, the game is over, if a lost life ends an episode; None: with the episode
    next_obs: Obs | None = None  # [B, *O], the true next obs of every row; then final_obs and final_index are None
    begins: Tensor | None = None  # [B] bool, an episode begins with `obs`; None: see `begins_of`
    is_broken: Tensor | None = (
        None  # [B] bool, the env failed in this step and was made again (env.on_error); None: no env
    )
    # can fail so. Such a row is also `truncated` and `is_reset`.


def ends_of(timestep: Timestep) -> Transition:
    """The columns of `Transition` that every policy keeps: reward, done, traj_flag, and is_reset if envs give it."""
    found: Transition = {
        'reward': timestep.reward,
        'done': timestep.terminated,
        'traj_flag': timestep.terminated | timestep.truncated,
    }
    if timestep.is_reset is None:
        return found
    return {**found, 'is_reset': timestep.is_reset}


def valid_weight(is_reset: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Weights [T, B] of mean 1 over all ranks: rows that only reset an env have 0, the others are equal."""
    valid = (~is_reset).to(torch.float32)
    return valid * (valid.numel() / valid.sum().clamp(min=1) if ranks is ALONE else weight_scale(valid, ranks))


Finals = list[tuple[int, np.ndarray, Any]]
"""The true last observations of episodes: (t, indices of k envs, their observations [k, *O])."""


def final_rows(finals: Finals, obs: Obs) -> tuple[Obs, Tensor]:
    """`finals` as tensors: observations [K, *O] and [K, 2] int64, (t, b). Args: obs: of the rollout, [T + 1, B, *O]."""
    if not finals:
        return map_tensors(lambda x: x[-1, :0], obs), first_leaf(obs).new_empty((0, 2), dtype=torch.int64)
    index = [np.stack((np.full_like(envs, t), envs), 1) for t, envs, _ in finals]
    rows = map_tensors(lambda *parts: torch.from_numpy(np.concatenate(parts)), *(rows for *_, rows in finals))
    return rows, torch.from_numpy(np.concatenate(index))


class StateRecorder(Protocol):
    """Keeps a part of the recurrent states of a rollout, and makes the states where they are needed, as where sequences begin.

    A model whose state is large and changes little with a row returns one from its method `state_recorder`.
    """

    def record(self, state: State) -> State:
        """What is kept of the states after a row, [B, ...] -> [B, ...], a tree with the same names."""

    def restore(self, before: State, records: State, is_first: Tensor, t: Tensor, b: Tensor) -> State:
        """The states after rows (t, b) of a rollout, [N] int64 each -> [N, ...]; t is -1 for the state before row 0.

        Args: before: the states before row 0, [B, ...]; records: [T, B, ...]; is_first: an episode begins with the row, [T, B].
        """


@dataclass
class Rollout:
    """Transitions of B envs over T steps, and the observations that follow them.

    data: [T, B], the keys that the policy's `_process_transition` gave; row t holds obs_t, action_t and
      what the step returned.
    last_obs: [B, *O], the observation of each env after row T - 1.
    final_obs: [K, *O], the true last observations of the K episodes whose last observation is not in the next row.
    final_index: [K, 2] int64, (t, b) of these ends.
    successor: [T, B, *O], the true next observation of every row, if the envs return it (envs on a device); K is then 0.
    state: the recurrent state before row 0, [B, ...]; None for a model without one.
    recorder: keeps the states of the rows: `data['state']` is what it recorded; None: it is the whole states.
    """

    data: Transition
    last_obs: Obs
    final_obs: Obs
    final_index: Tensor
    successor: Obs | None = None
    state: State = None
    recorder: StateRecorder | None = None

    def to(self, device: torch.device) -> Rollout:
        """The same rollout on a device; pinned memory is still being read when this returns, see `send`."""
        if first_leaf(self.last_obs).device == device:
            return self
        parts = {name: tree for name, tree in vars(self).items() if name != 'recorder'}
        trees: Any = {name: tree if tree is None else to_device(tree, device) for name, tree in parts.items()}
        return Rollout(**trees, recorder=self.recorder)

    def states_after(self, t: Tensor, b: Tensor) -> State:
        """The recurrent states after the rows (t, b), [N] int64 each -> [N, ...]; t is -1 for the state before row 0."""
        records = self.data['state']
        if self.recorder is not None:
            return self.recorder.restore(self.state, records, self.data['is_first'], t, b)

        def taken(after: Tensor, before: Tensor) -> Tensor:
            is_start = (t < 0).view(-1, *[1] * (before.dim() - 1))
            return torch.where(is_start, before[b].to(after.device), after[t.clamp(min=0), b])

        return map_tensors(taken, records, self.state)

    def next_obs(self) -> Obs:
        """The true next observation of every row, [T, B, *O]."""
        if self.successor is not None:
            return self.successor

        def following(obs: Tensor, last: Tensor, final: Tensor) -> Tensor:
            return torch.cat((obs[1:], last.unsqueeze(0))).index_put_(self.final_index.unbind(1), final.to(obs.dtype))

        return map_tensors(following, self.data['obs'], self.last_obs, self.final_obs)


def keeps_state(model: object) -> bool:
    """Whether a model keeps a state between steps: it has a method `initial_state`, which a model without one may set to None."""
    return callable(getattr(model, 'initial_state', None))


def recorder_of(model: object) -> StateRecorder | None:
    """The recorder of a model whose method `state_recorder` gives one; None: rollouts keep whole states."""
    make = getattr(model, 'state_recorder', None)
    if make is None:
        return None
    return make()


Path = tuple[str, ...]
"""The names on the way to a leaf of a tree or of a space; () where there is no mapping."""


def leaf_items(tree: Tree, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """The tensors of a (nested) mapping with their paths, in order."""
    if not isinstance(tree, Mapping):
        yield path, tree
        return
    for name, x in tree.items():
        if isinstance(x, Mapping):
            yield from leaf_items(x, (*path, name))
        else:
            yield (*path, name), x


def leaves(tree: Tree) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a (nested) mapping with the names of their paths, see `path_names`, in order."""
    items = list(leaf_items(tree))
    names = path_names([path for path, _ in items])
    for path, x in items:
        yield names[path], x


def path_names(paths: Sequence[Path]) -> dict[Path, str]:
    """A name for each path, which no other has: its parts with dots between them; '' for ().

    Names with dots may give two paths the same text, {'a.b': .., 'a': {'b': ..}}. The shorter path then keeps it, and the others
    get '_' at their ends. The one empty name becomes '_'. The order of the paths does not matter.
    """
    names = {path: '.'.join(path) for path in paths}
    if len(set(names.values())) == len(names) and ('',) not in names:
        return names
    texts = list(names.values())
    taken = {text for text in texts if texts.count(text) == 1 and text}
    for path in sorted((path for path in paths if names[path] not in taken), key=lambda path: (len(path), path)):
        while path and (names[path] in taken or not names[path]):
            names[path] += '_'
        taken.add(names[path])
    return names


def first_leaf(tree: Tree) -> Any:
    """The first tensor or array of a tree: its leading dimensions and its device are those of all."""
    while isinstance(tree, Mapping):
        tree = next(iter(tree.values()))
    return tree


def map_tensors(function: Callable[..., Any], tree: Tree, *others: Tree) -> Any:
    """Applies a function to each tensor of a tree, together with the tensors at the same place of the other trees."""
    if isinstance(tree, Mapping):
        return {name: map_tensors(function, x, *(other[name] for other in others)) for name, x in tree.items()}
    return function(tree, *others)


def as_tensors(tree: Tree, what: str) -> Any:
    """A tree whose arrays, lists and numbers are tensors; tensors stay as they are.

    Args: what: the tree in messages, such as "the policy's output".
    Raises: UserError for a leaf that is no number, such as a text.
    """
    if isinstance(tree, Mapping):
        names = {path: name for (path, _), (name, _) in zip(leaf_items(tree), leaves(tree), strict=True)}
        return _as_tensors(tree, what, names, ())
    return _leaf_tensor(tree, what)


def _as_tensors(tree: Tree, what: str, names: Mapping[Path, str], path: Path) -> Any:
    if isinstance(tree, Mapping):
        return {key: _as_tensors(x, what, names, (*path, key)) for key, x in tree.items()}
    return _leaf_tensor(tree, f'{what} {names[path]!r}')


def _leaf_tensor(x: Any, what: str) -> Tensor:
    if isinstance(x, Tensor):
        return x
    try:
        array = np.asarray(x)
    except ValueError:  # lists of several lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in 'biuf':
        raise UserError(
            f'{what} is {shown(x)}, which holds no numbers; give numbers, such as the index of a text in a list that the policy '
            'keeps'
        )
    return torch.as_tensor(array)


def to_device(tree: Tree, device: torch.device) -> Tree:
    """A tree of tensors on a device, see `send`; the same tree if it is already there."""
    if first_leaf(tree).device == device:
        return tree
    return map_tensors(lambda x: send(x, device), tree)


def unbind_rows(tree: Tree, arrays: bool = False) -> list[Any]:
    """Splits a tree along its first dimension into a list of trees, as views. Args: arrays: whether they are numpy arrays."""
    if isinstance(tree, Mapping):
        parts = [unbind_rows(x, arrays) for x in tree.values()]
        return [dict(zip(tree, row, strict=True)) for row in zip(*parts, strict=True)]
    return list(tree.numpy() if arrays else tree.unbind(0))


def split_rows(tree: Tree, n_row: int) -> Iterator[Tree]:
    """Yields blocks of n_row rows of a tree, as views; the last may be shorter."""
    for start in range(0, len(first_leaf(tree)), n_row):
        yield map_tensors(lambda x: x[start : start + n_row], tree)  # noqa: B023
