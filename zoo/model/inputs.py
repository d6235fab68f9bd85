"""First stage of a model, shared by its encoders: turns each leaf of an observation into the input of an encoder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from zoo.core.action_map import action_width
from zoo.core.data import Obs
from zoo.core.errors import UserError, of_entry, shown
from zoo.core.spaces import (
    ACTION_MASK,
    WINDOW_MASK,
    Box,
    Dict,
    Discrete,
    Leaf,
    MultiDiscrete,
    Space,
    leaf_names,
    leaf_spaces,
    leaves_by_path,
    mask_space,
    window_len,
    with_entries,
)
from zoo.model.images import Pixels, holds_images
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.normalizer import RunningMeanStd, WindowMeanStd

OBS_CLIP = 10.0  # of normalised observations, by default
LARGE_BYTE = 100
"""Bytes up to this number may enter a network unscaled without a word; networks learn slowly from numbers far beyond 1."""


def make_input(
    obs_space: Space,
    obs_norm: bool = False,
    normalize_images: bool = True,
    window: int | None = None,
    obs_clip: float = OBS_CLIP,
) -> nn.Module:
    """The first stage of a model: observations -> the input of the networks of `make_encoder(obs_space)`.

    Indices become one-hot vectors, side by side if there are several. Images become [..., C, H, W], other leaves vectors
    [..., O] f32. Observations that are a Dict become {name of the leaf: its tensor}, without an action mask; the name is the
    dotted path, see `leaf_names`.
    Images of bytes from 0 to 255 stay bytes: the networks of `make_encoder` scale them, and your own network must do so too.
    Images of bytes with another upper bound become numbers from 0 to 1.

    Args: obs_norm: Boxes that are no images are normalised, see `RunningMeanStd`; normalize_images: see `Pixels`; window: the
      number of observations in the windows of which the space is a part; None: see `window_len`; obs_clip: bound of normalised
      observations.
    Raises: UserError if obs_norm is true and the observations are images, not a Dict.
    """
    if window is None:
        window = window_len(obs_space)
    if isinstance(obs_space, Dict):
        return DictInput(without_mask(obs_space), obs_norm, normalize_images, window, obs_clip)
    if obs_norm and holds_images(obs_space):
        raise UserError(
            f'policy.model.obs_norm is true but the observations are images of shape {obs_space.shape},'
            ' whose pixels are scaled already; set policy.model.obs_norm=false'
        )
    return _leaf_input(obs_space, obs_norm, normalize_images, window, obs_clip)


def update_input(stage: nn.Module, obs: Obs, weight: Tensor | None = None, marks: Tensor | None = None) -> None:
    """Adds observations [N, *O] to the statistics of a stage of `make_input`, if it keeps any.

    Args: marks: [N, n], the places of windows that hold an observation; None: from the observations, if these are a Dict.
    """
    if isinstance(stage, DictInput):
        for path, inner in stage.named_stages():
            update_input(inner, entry_at(obs, path), weight, stage.marks(obs))
    elif isinstance(stage, NormedVector):
        _update(stage.norm, stage.vector(obs), weight, marks)
    elif isinstance(stage, RunningMeanStd):
        _update(stage, obs, weight, marks)


def _update(norm: RunningMeanStd, x: Tensor, weight: Tensor | None, marks: Tensor | None) -> None:
    if isinstance(norm, WindowMeanStd) and marks is not None:
        norm.update_places(x, real_places(marks, x.shape[-1]), weight)
    else:
        norm.update(x, weight)


def has_windows(stage: nn.Module) -> bool:
    """Whether a stage for one leaf normalises windows, whose empty places are to be 0."""
    norm = stage
    if isinstance(stage, NormedVector):
        norm = stage.norm
    return isinstance(norm, WindowMeanStd) and norm.entry_count is not None


def real_places(marks: Tensor, n_entry: int) -> Tensor:
    """The entries of flat windows [.., n_entry] bool that hold an observation. Args: marks: [.., n], the same of the n places."""
    n_each = n_entry // marks.shape[-1]
    return (marks != 0).unsqueeze(-1).expand(*marks.shape, n_each).flatten(-2)


def real_entries(stage: nn.Module, x: Tensor, marks: Tensor) -> Tensor:
    """The entries of the output x of a stage for windows that hold an observation, bool that broadcasts to x."""
    if isinstance(stage, Pixels):
        return stage.real_places(marks)
    return real_places(marks, x.shape[-1])


def without_empty(x: Tensor, marks: Tensor) -> Tensor:
    """Flat windows [.., n_entry] with zeros at the places that hold no observation."""
    return x.masked_fill(~real_places(marks, x.shape[-1]), 0.0)


def _leaf_input(space: Leaf, obs_norm: bool, normalize_images: bool, window: int | None, obs_clip: float) -> nn.Module:
    if isinstance(space, Discrete):
        return OneHot(space.n)  # of unit scale: nothing to normalise
    if isinstance(space, MultiDiscrete):
        return OneHots(space)
    if isinstance(space, Box) and holds_images(space):
        return Pixels(space, normalize_images)
    if not isinstance(space, Box):
        return ToVector(len(space.shape))
    norm: RunningMeanStd | None = None
    if obs_norm:
        is_window = window is not None and space.shape[:1] == (window,)
        norm = (WindowMeanStd if is_window else RunningMeanStd)((input_width(space),), obs_clip)
    if len(space.shape) == 1:
        if norm is None:
            return nn.Identity()
        return norm
    vector = ToVector(len(space.shape))
    if norm is None:
        return vector
    return NormedVector(vector, norm)


class OneHot(nn.Module):
    """[...] int64 index below n -> [..., n] f32."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, obs: Tensor) -> Tensor:
        return one_hot(obs, self.n).to(torch.float32)


class OneHots(nn.Module):
    """[..., *shape] int64 indices, entry i below nvec[i] -> [..., sum(nvec)] f32, one-hot vectors side by side."""

    first: Tensor

    def __init__(self, space: MultiDiscrete) -> None:
        super().__init__()
        self._n_dim = len(space.shape)
        self._width = sum(space.nvec)
        first = torch.tensor([0, *accumulate(space.nvec)][: len(space.nvec)])
        self.register_buffer('first', first, persistent=False)  # place of each entry's vector

    def forward(self, obs: Tensor) -> Tensor:
        index = _flattened(obs, self._n_dim) + self.first
        return torch.zeros(*index.shape[:-1], self._width, device=index.device).scatter_(-1, index, 1.0)


class ToVector(nn.Module):
    """[..., *O], where O has n_dim dimensions, of numbers or bools -> [..., product of O] of floats."""

    def __init__(self, n_dim: int) -> None:
        super().__init__()
        self._n_dim = n_dim

    def forward(self, obs: Tensor) -> Tensor:
        x = _flattened(obs, self._n_dim)
        if x.is_floating_point():
            return x
        return x.to(torch.float32)


class NormedVector(nn.Module):
    """As `ToVector`, normalised."""

    def __init__(self, vector: ToVector, norm: RunningMeanStd) -> None:
        super().__init__()
        self.vector = vector
        self.norm = norm

    def forward(self, obs: Tensor) -> Tensor:
        return self.norm(self.vector(obs))


class DictInput(nn.Module):
    """Passes each leaf of nested observations through its own stage -> {name of the leaf: tensor}, see `leaf_names`.

    Missing entries are left out, so that a network that does not need them can run.
    """

    def __init__(
        self,
        space: Dict,
        obs_norm: bool = False,
        normalize_images: bool = True,
        window: int | None = None,
        obs_clip: float = OBS_CLIP,
    ) -> None:
        super().__init__()
        self.space = space
        self._names = leaf_names(space)
        self._paths = list(self._names)
        stages = {
            module_name(i, path): _leaf_input(leaf, obs_norm, normalize_images, window, obs_clip)
            for i, (path, leaf) in enumerate(leaves_by_path(space).items())
        }
        self.stages = nn.ModuleDict(stages)

    @property
    def entry_names(self) -> list[str]:
        """Names of the leaves, in the order of `named_stages`."""
        return list(self._names.values())

    def named_stages(self) -> Iterator[tuple[tuple[str, ...], nn.Module]]:
        """Path and stage of each leaf."""
        yield from zip(self._paths, self.stages.values(), strict=True)

    def forward(self, obs: Obs) -> dict[str, Tensor]:
        inputs = {}
        for path, stage in self.named_stages():
            x = entry_at(obs, path)
            if x is None:
                continue
            x = stage(x)
            if has_windows(stage):
                inputs[self._names[path]] = without_empty(x, obs[WINDOW_MASK])
            else:
                inputs[self._names[path]] = x
        return inputs

    def marks(self, obs: Obs) -> Tensor | None:
        """The entry that says which places of windows hold an observation; None if no statistics need it."""
        if any(map(has_windows, self.stages.values())):
            return obs[WINDOW_MASK]
        return None


def without_mask(space: Dict) -> Dict:
    """The space that encoders see: without an action mask."""
    if mask_space(space) is None:
        return space
    return with_entries(space, space.spaces.keys() - {ACTION_MASK})


def check_mask(obs_space: Space, dist: ActionDist) -> bool:
    """Whether observations hold an action mask. Raises: UserError if the distribution cannot use it."""
    mask = mask_space(obs_space)
    if mask is None:
        return False
    if not dist.n_mask:
        raise UserError(
            f'the observations hold an {ACTION_MASK!r} but actions of a {dist.name} distribution take no mask; '
            'set env.action_mask=off'
        )
    if mask.shape != (dist.n_mask,):
        raise UserError(
            f'the {ACTION_MASK!r} of the observations has shape {mask.shape} but must have ({dist.n_mask},), one entry '
            f'for each choice of the {dist.name} distribution; change the env'
        )
    return True


def unscaled_bytes(obs_space: Space) -> list[str]:
    """A sentence about each leaf of large bytes that is no image, so that networks without obs_norm see it unscaled."""
    return [
        f'the observations{of_entry(name)} are bytes up to {leaf.high.max():g} of shape {leaf.shape}, and enter the '
        'network unscaled, since only arrays of three dimensions are images; set policy.model.obs_norm=true, or give '
        f'pictures a channel{_with_channel(leaf)}, so that they are scaled and get a network for images'
        for name, leaf in leaf_spaces(obs_space)
        if isinstance(leaf, Box) and leaf.dtype == 'uint8' and not holds_images(leaf) and leaf.high.max() > LARGE_BYTE
    ]


def _with_channel(leaf: Box) -> str:
    if len(leaf.shape) == 2:
        return f', shape {(*leaf.shape, 1)}'
    return ''


def input_width(space: Leaf) -> int:
    """The number of values that `make_input` makes of one observation of a leaf."""
    if isinstance(space, Discrete):
        return space.n
    if isinstance(space, MultiDiscrete):
        return sum(space.nvec)
    return action_width(space)


def entry_at(obs: Obs, path: tuple[str, ...]) -> Any:
    """The tensor at a path of names; None if it is missing."""
    for name in path:
        if obs is not None:
            obs = obs.get(name)
    return obs


def module_name(i: int, path: tuple[str, ...]) -> str:
    """A valid module name for the i-th leaf, e.g. '2_camera_left'; the number makes it unique."""
    return f'{i}_{re.sub(r"[^0-9A-Za-z]+", "_", "_".join(path))}'


def _flattened(obs: Tensor, n_dim: int) -> Tensor:
    if n_dim:
        return obs.flatten(-n_dim)
    return obs.unsqueeze(-1)


class Views(NamedTuple):
    """The spaces that the networks see of observations, without an action mask.

    input: all that either network sees; actor, critic: the space that each sees, one object if they are equal.
    leaf: name of the single entry that they see, if its space replaces the Dict in `input`; None if they see the whole
      observation, or a Dict of some entries.
    acting: names of the entries that acting needs; None if it needs all.
    """

    input: Space
    actor: Space
    critic: Space
    leaf: str | None
    acting: tuple[str, ...] | None


def views_of(
    obs_space: Space,
    actor_obs: Sequence[str] | None,
    critic_obs: Sequence[str] | None,
    keep_dict: bool = False,
    share_encoder: bool = False,
    needs_marks: bool = False,
) -> Views:
    """The views for the entries that actor and critic see; None means all entries.

    Args: keep_dict: a single entry stays in a Dict; share_encoder: both must see the same; needs_marks: windows are normalised,
      so acting needs the entry that says which of their places are empty.
    Raises: UserError if a name is no entry of the observations, or if they are no Dict, or hold only a mask.
    """
    seen_names = {'actor_obs': actor_obs, 'critic_obs': critic_obs}
    if not isinstance(obs_space, Dict):
        for key, names in seen_names.items():
            if names is not None:
                raise UserError(
                    f'policy.model.{key} is {shown(list(names))} but the observations are no Dict, so they have no entries '
                    f'to choose from; leave {key} out'
                )
        return Views(obs_space, obs_space, obs_space, None, None)
    known = without_mask(obs_space).spaces
    if not known:
        raise UserError(f'the observations hold nothing but {ACTION_MASK!r}; add an entry that a network can see')
    for key, names in seen_names.items():
        unknown = [name for name in names or () if name not in known]
        if unknown:
            raise UserError(
                f'policy.model.{key} names {", ".join(map(repr, unknown))} but the entries of the observations are '
                f'{", ".join(map(repr, known))}; use some of these'
            )
    actor, critic = (set(known if names is None else names) for names in seen_names.values())
    if mask_space(obs_space) is None:
        needed = actor
    else:
        needed = actor | {ACTION_MASK}
    if needs_marks:
        needed = needed | {WINDOW_MASK}
    if actor == set(known):
        acting = None
    else:
        acting = tuple(name for name in obs_space.spaces if name in needed)
    if actor == critic and len(actor) == 1 and not keep_dict:
        (leaf,) = actor
        if not isinstance(known[leaf], Dict):
            return Views(known[leaf], known[leaf], known[leaf], leaf, acting)
    view = with_entries(obs_space, actor)
    if actor == critic:
        return Views(view, view, view, None, acting)
    if share_encoder:
        raise UserError(
            f'policy.model.actor_obs is {shown(actor_obs)} and critic_obs {shown(critic_obs)} but actor and critic '
            "share their encoder; give both the same entries, or each an encoder: shared_encoder 'off', of ppg arch 'dual'"
        )
    return Views(with_entries(obs_space, actor | critic), view, with_entries(obs_space, critic), None, acting)
