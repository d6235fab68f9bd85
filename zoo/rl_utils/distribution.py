"""Action distributions: stateless functions over one flat parameter tensor [..., P], made once from an action space.

A distribution is added by registering a subclass of `ActionDist`; the code that uses distributions stays the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from zoo.core.data import send
from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from zoo.rl_utils.check import check_floating, check_not_empty, check_shape, checks_action_range
from zoo.rl_utils.init import POLICY_GAIN, orthogonal

_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
_SPACES: dict[str, type[Space] | tuple[()]] = {
    'bernoulli': MultiBinary,
    'beta': (),
    'categorical': Discrete,
    'composite': Dict,
    'gaussian': Box,
    'gsde': (),
    'multi_categorical': MultiDiscrete,
    'squashed_gaussian': (),
}
"""The space for which each of zoo's own distributions may be the default; the others need not be loaded for it."""
Logit = Tensor | Mapping[str, Tensor]
"""A policy's output as users give it to the losses: a flat tensor [..., P], or its named parts."""


class ActionDist(ABC):
    """Distribution of the actions of one space. `param` [..., P] holds its parameters in one row, P = n_param.

    Leading dimensions are free; everything is computed in float32 at least.
    Attributes: n_param: P. n_action: numbers in one action, 0 where an action is a bare index. n_noise: numbers that
      one draw needs. n_mask: choices that a mask may forbid, in the order of the parameters; 0: it takes no mask.
    """

    name: ClassVar[str]
    is_index: ClassVar[bool] = False
    """Whether an action is one integer or several; else it is real numbers."""
    is_default: ClassVar[bool] = False
    """Whether 'auto' may choose it; else it is used only where it is named."""
    reads: tuple[str, ...] | None = None
    """Fields of the model that `of_space` and `make_head` take from their options; None: not declared."""
    is_bounded: bool = False
    """Whether `env_action` changes actions; its results then lie within the bounds of the space."""
    n_mask: int = 0
    parts: Sequence[ActionDist] = ()
    """The distributions that a composite one is made of, side by side; () for any other."""

    def __init_subclass__(cls) -> None:
        if 'is_bounded' not in vars(cls):
            cls.is_bounded = cls.env_action is not ActionDist.env_action

    def __init__(self, n_param: int, n_action: int, n_noise: int | None = None) -> None:
        self.n_param = n_param
        self.n_action = n_action
        if n_noise is None:
            self.n_noise = n_action or n_param
        else:
            self.n_noise = n_noise

    @classmethod
    @abstractmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> ActionDist | None:
        """The distribution over a space; None if it cannot draw actions of that space.

        options: fields of the model (`policy.model`), and 'n_feature', the width of the features before the head.
        """

    def see_model(self, model: nn.Module) -> None:  # noqa: B027  # most need nothing of it
        """Gets the model of the policy once, when that is built, for a distribution that reads more of it than its outputs."""

    @classmethod
    def from_user_logit(cls, logit: Logit) -> tuple[ActionDist, Tensor] | None:
        """The distribution and the flat parameters that a user's logit describes; None if it is not of this class's form."""
        return None

    @abstractmethod
    def make_head(self, n_feature: int, options: Mapping[str, Any]) -> nn.Module:
        """The last layer of a policy: features [..., n_feature] -> param [..., P]. options: fields of the model."""

    @abstractmethod
    def noise(self, lead: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
        """Noise for draws of the leading shape `lead`, [*lead, n_noise] f32, drawn on the generator's device.

        For a rollout `lead` is (T, B): noise that an env keeps for several steps may be repeated along T.
        """

    @abstractmethod
    def sample(self, param: Tensor, noise: Tensor) -> Tensor:
        """An action per row, given its noise."""

    @abstractmethod
    def mode(self, param: Tensor) -> Tensor:
        """The most likely action per row."""

    @abstractmethod
    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        """Log-probability (density) of each row's action, [...]."""

    @abstractmethod
    def entropy(self, param: Tensor) -> Tensor:
        """Entropy per row, nats, [...]."""

    @abstractmethod
    def kl(self, param_p: Tensor, param_q: Tensor) -> Tensor:
        """KL(p || q) per row, nats, [...]."""

    def masked(self, param: Tensor, mask: Tensor) -> Tensor:
        """The parameters without the choices that mask [..., n_mask] bool forbids (False).

        This version is for parameters that are logits, one for each choice. Raises: UserError if n_mask is 0.
        """
        if not self.n_mask:
            raise UserError(f'actions of a {self.name} distribution take no mask; set env.action_mask=off')
        return param.masked_fill(~mask, -torch.inf)

    def env_action(self, action: Tensor) -> Tensor:
        """The action in the env's space, before any clipping; overridden if the distribution is over other numbers."""
        return action

    def from_env_action(self, action: Tensor) -> Tensor:
        """Inverse of `env_action`; at bounds that the distribution never reaches, the nearest action that it has."""
        return action

    @abstractmethod
    def split(self, param: Tensor) -> Logit:
        """The parameters by name, for reading; the public losses take forms that `from_user_logit` knows without `dist`."""

    def problem_of(self, param: Tensor) -> str:
        """The fault of parameters that a model gave, and its remedy, as the end of a sentence; empty if there is none."""
        return ''

    def check_action(self, action: Tensor, lead: torch.Size) -> None:
        """Checks shape and dtype of the actions of rows [*lead]. Raises: ValueError."""
        if self.n_action:
            shape = (*lead, self.n_action)
        else:
            shape = tuple(lead)
        if action.shape != shape:
            raise ValueError(
                f'action has shape {tuple(action.shape)} but what logit_new asks for {shape}; they must be equal'
            )
        if not self.is_index:
            check_floating('action', action)
        elif action.dtype not in _INTEGERS:
            raise ValueError(
                f'action has dtype {action.dtype} but is an index into the choices; convert it with .long()'
            )


class LogitDist(ActionDist):
    """Independent choices; `param` are their log-odds, or unnormalised log-probabilities. -inf: never taken."""

    is_index = True
    is_default = True
    reads = ()

    def __init__(self, n_param: int, n_action: int) -> None:
        super().__init__(n_param, n_action, n_param)
        self.n_mask = n_param

    def make_head(self, n_feature: int, options: Mapping[str, Any]) -> nn.Module:
        return orthogonal(nn.Linear(n_feature, self.n_param), POLICY_GAIN)

    def noise(self, lead: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
        """Noise of the distribution Gumbel(0, 1)."""
        return drawn(Tensor.exponential_, (*lead, self.n_param), generator, device).log_().neg_()

    def sample(self, param: Tensor, noise: Tensor) -> Tensor:
        return self.mode(param + noise)  # the Gumbel-max trick: exact, no normalisation needed

    def check_action(self, action: Tensor, lead: torch.Size) -> None:
        """If the environment variable ZOO_DEBUG is 1, this also checks the range of indices, which waits for a device."""
        super().check_action(action, lead)
        if checks_action_range():
            self.check_range(action)

    def check_range(self, action: Tensor) -> None:
        """Raises ValueError unless each number is that of a choice."""


def check_policies(dist: ActionDist, new: Tensor, old: Tensor, pretrained: Tensor | None = None) -> torch.Size:
    """Checks that parameters have one shape [..., P] and are floating. Returns: the shape without the last dimension."""
    if isinstance(new, Tensor) and not new.dim():
        raise ValueError('logit_new has shape () but its last dimension is that of the choices; give [..., A]')
    if not isinstance(new, Tensor) or new.shape[-1] != dist.n_param:
        wrong = f'is a {type(new).__name__}'
        if isinstance(new, Tensor):
            wrong = f'has shape {tuple(new.shape)}'
        raise ValueError(f'logit_new {wrong} but {dist.name!r} takes one tensor [..., {dist.n_param}]; give that')
    check_not_empty('logit_new', new)
    for name, param in (('logit_new', new), ('logit_old', old), ('logit_pretrained', pretrained)):
        if param is not None:
            check_shape(name, param, 'logit_new', new.shape)
            check_floating(name, param)
    return new.shape[:-1]


def make_dist(space: Space, name: str = 'auto', options: Mapping[str, Any] | None = None) -> ActionDist:
    """The distribution of a policy over an action space.

    Args: name: a registered distribution; 'auto': the default one for the space. For a Dict or Tuple of spaces a named
      one is used in the leaves that it fits, the default one in the others. options: see `ActionDist.of_space`.
    Raises: UserError if there is none, or the named one does not fit the space.
    """
    all_options = dict(options or {}, distribution=name)
    if name != 'auto' and not isinstance(space, Dict):
        dist = DISTRIBUTION_REGISTRY.get(name).of_space(space, all_options)
        if dist is None:
            raise UserError(
                f"policy.model.distribution is {name!r}, which cannot draw the actions {space}; use 'auto', or one of "
                f'{", ".join(fitting(space, all_options))}'
            )
        return dist
    for each in DISTRIBUTION_REGISTRY.names():
        if not isinstance(space, _SPACES.get(each, object)):
            continue
        kind = DISTRIBUTION_REGISTRY.get(each)
        if not kind.is_default:
            continue
        dist = kind.of_space(space, all_options)
        if dist is not None:
            return dist
    raise UserError(f'the actions are {space}, which no default distribution can draw; use another action space')


def own_name(dist: ActionDist) -> str:
    """The name of one of zoo's own distributions; empty for a user's, whose class may be a subclass of zoo's."""
    if type(dist).__module__.startswith('zoo.rl_utils.distributions.'):
        return dist.name
    return ''


def fitting(space: Space, options: Mapping[str, Any]) -> list[str]:
    """Names of the registered distributions that can draw the actions of a space."""
    registry = DISTRIBUTION_REGISTRY
    all_options = {'n_feature': 1, **options}
    return [name for name in registry.names() if registry.get(name).of_space(space, all_options) is not None]


def drawn(
    fill: Callable[..., Tensor], shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """Noise on `device`, drawn by a method such as `Tensor.normal_` on the device of the generator."""
    where = device
    if generator is not None:
        where = generator.device
    return send(fill(torch.empty(shape, dtype=torch.float32, device=where), generator=generator), device)


def distribution_of(logit: Logit) -> ActionDist:
    """The distribution that a user's logit describes. Raises: ValueError if it is of no known form."""
    return _read('a logit', logit)[0]


def from_logits(new: Logit, *others: Logit | None) -> tuple[Any, ...]:
    """Reads the logits that users give to the losses: (distribution, flat parameters of `new`, of each other one or None).

    Raises: ValueError if one is of no known form, or they are of different kinds or shapes.
    """
    dist, flat = _read('logit_new', new)
    params: list[Tensor | None] = [flat]
    for name, other in zip(('logit_old', 'logit_pretrained', 'logit_proximal'), others, strict=False):
        param = None
        if other is not None:
            other_dist, param = _read(name, other)
            if other_dist.name != dist.name:
                raise ValueError(f'{name} is {other_dist.name} but logit_new {dist.name}; give both as one kind')
            if not isinstance(other, Tensor) and param.shape != flat.shape:  # `check_policies` compares flat ones
                shapes = {key: tuple(x.shape) for key, x in other.items()}
                new_shapes = {key: tuple(x.shape) for key, x in dict(new).items()}  # of the same kind
                raise ValueError(f'{name} has shape {shapes} but logit_new {new_shapes}; they must be equal')
        params.append(param)
    return dist, *params


def _read(name: str, logit: Logit) -> tuple[ActionDist, Tensor]:
    for each in DISTRIBUTION_REGISTRY.names():
        try:
            distribution_and_logit = DISTRIBUTION_REGISTRY.get(each).from_user_logit(logit)
        except ValueError as error:
            raise ValueError(f'{name}: {error}') from error  # which of the inputs it was
        if distribution_and_logit is not None:
            return distribution_and_logit
    shown = type(logit).__name__
    if isinstance(logit, Mapping):
        shown = str(sorted(logit))
    raise ValueError(
        f"{name} is {shown} but must be a tensor [..., A] or a mapping with the tensors 'mu' and 'sigma'; "
        "pass the head's output unmodified, and where it is of another distribution that one as dist="
    )


class Bounds(NamedTuple):
    """Bounds of each number of a flattened action, low < high."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of_space(cls, space: Space) -> Bounds | None:
        """The bounds of a Box; None for other spaces, and if a bound is infinite or equal to the other one."""
        if not isinstance(space, Box) or not space.low.size:
            return None
        low, high = (x.astype(np.float64).ravel() for x in (space.low, space.high))
        with np.errstate(over='ignore', invalid='ignore'):
            width = high - low
        if not np.all(np.isfinite(width) & (width > 0)):
            return None
        return cls(tuple(low.tolist()), tuple(high.tolist()))

    @property
    def n_dim(self) -> int:
        return len(self.low)

    @property
    def log_width(self) -> float:
        """Logarithm of the volume between the bounds."""
        return float(np.log(np.subtract(self.high, self.low)).sum())

    def share(self, action: Tensor) -> Tensor:
        """Inverse of `scale`: an action [..., D] -> where it lies between the bounds, 0 to 1."""
        low, high = self._rows(action)
        return (action - low) / (high - low)

    def scale(self, x: Tensor) -> Tensor:
        """x [..., D] in [0, 1] -> low + x * (high - low)."""
        if len(set(self.low)) == len(set(self.high)) == 1:
            return x * (self.high[0] - self.low[0]) + self.low[0]
        low, high = self._rows(x)
        return torch.lerp(low, high, x)

    def _rows(self, like: Tensor) -> list[Tensor]:
        """low and high, [D] each; by new_full: torch.tensor would wait for a GPU, and cannot be part of a CUDA graph."""
        return [torch.cat([like.new_full((1,), bound) for bound in bounds]) for bounds in self]
