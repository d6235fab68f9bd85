"""Action distributions: stateless functions over one flat parameter tensor [..., P], made once from an action space.

A file of this package adds a distribution by registering a subclass of `ActionDist`; nothing else has to know of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Space

Logit = Tensor | Mapping[str, Tensor]
"""How users of the losses hold a policy's output: a flat tensor [..., P], or its named parts."""


class ActionDist(ABC):
    """Distribution of the actions of one space. `param` [..., P] holds its parameters in one row, P = n_param.

    Leading dimensions are free; everything is computed in float32 at least.
    Attributes: n_param: P. n_action: numbers in one action, 0 where an action is a bare index.
    """

    name: ClassVar[str]
    is_index: ClassVar[bool] = False
    """Whether an action is an integer, or several; else it is real numbers."""
    is_default: ClassVar[bool] = False
    """Whether 'auto' may choose it; else it is used only where it is named."""

    def __init__(self, n_param: int, n_action: int) -> None:
        self.n_param, self.n_action = n_param, n_action

    @classmethod
    @abstractmethod
    def of_space(cls, space: Space) -> ActionDist | None:
        """The distribution over a space; None if it cannot draw actions of that space."""

    @classmethod
    @abstractmethod
    def of_parts(cls, logit: Logit) -> tuple[ActionDist, Tensor] | None:
        """The distribution and the flat parameters that a user's logit stands for; None if it is not of this class."""

    @abstractmethod
    def make_head(self, n_feature: int, options: Mapping[str, Any]) -> nn.Module:
        """The last layer of a policy: features [..., n_feature] -> param [..., P]. options: fields of the model."""

    @abstractmethod
    def noise(self, lead: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
        """Noise for draws of the leading shape `lead`, [*lead, ...] f32, drawn on the generator's device."""

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

    @abstractmethod
    def split(self, param: Tensor) -> Logit:
        """The parameters under their names, as the public losses also take them; views."""

    def problem_of(self, param: Tensor) -> str:
        """What is wrong with parameters that a model gave, and what to do, as the end of a sentence; empty if nothing."""
        return ''

    @abstractmethod
    def check_action(self, action: Tensor, lead: torch.Size) -> None:
        """Looks at shape and dtype of the actions of rows [*lead]. Raises: ValueError."""


def make_dist(space: Space, name: str = 'auto') -> ActionDist:
    """The distribution of a policy over an action space.

    Args: name: a registered distribution; 'auto': the default one for the space.
    Raises: UserError if there is none, or the named one does not fit the space.
    """
    names = [name]
    if name == 'auto':
        names = [each for each in DISTRIBUTION_REGISTRY.names() if DISTRIBUTION_REGISTRY.get(each).is_default]
    found = (DISTRIBUTION_REGISTRY.get(each).of_space(space) for each in names)
    dist = next((each for each in found if each is not None), None)
    if dist is None:
        raise UserError(f'the actions are {space} but {" and ".join(names)} cannot draw such; use another action space')
    return dist


def distribution_of(logit: Logit) -> ActionDist:
    """The distribution that a user's logit stands for. Raises: ValueError if it is of no known form."""
    return _read('a logit', logit)[0]


def from_logits(new: Logit, *others: Logit | None) -> tuple[Any, ...]:
    """The public boundary of the losses: (distribution, flat parameters of `new`, of the others or None).

    Raises: ValueError if one is of no known form, or they are of different kinds or shapes.
    """
    dist, flat = _read('logit_new', new)
    params: list[Tensor | None] = [flat]
    for name, other in zip(('logit_old', 'logit_pretrained'), others, strict=False):
        param = None
        if other is not None:
            other_dist, param = _read(name, other)
            if other_dist.name != dist.name:
                raise ValueError(f'{name} is {other_dist.name} but logit_new {dist.name}; give both as one kind')
            if not isinstance(other, Tensor) and param.shape != flat.shape:  # flat ones are compared with the rest
                raise ValueError(f'{name} has shape {_shapes(other)} but logit_new {_shapes(new)}; they must be equal')
        params.append(param)
    return dist, *params


def _read(name: str, logit: Logit) -> tuple[ActionDist, Tensor]:
    for each in DISTRIBUTION_REGISTRY.names():
        try:
            found = DISTRIBUTION_REGISTRY.get(each).of_parts(logit)
        except ValueError as error:
            raise ValueError(f'{name}: {error}') from error  # which of the inputs it was
        if found is not None:
            return found
    got = sorted(logit) if isinstance(logit, Mapping) else type(logit).__name__
    raise ValueError(
        f"{name} is {got} but must be a tensor [..., A] or a mapping with the tensors 'mu' and 'sigma'; "
        "pass the head's output unmodified"
    )


def _shapes(logit: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(logit[name].shape) for name in logit.keys()}
