"""Symmetry: samples of a task that looks the same in a mirror also count mirrored, and a loss pulls the policy to its mirror image.

A mirror is given for observations and actions: an order and signs of their numbers, or a function.
Source: Mittal et al. 2024, arXiv:2403.04359 (augmentation and mirror loss, as in rsl_rl).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from zoo.backend.step import LossSpec
from zoo.config.user_code import load_code
from zoo.core.data import leaves, map_tensors
from zoo.core.errors import UserError, shown
from zoo.core.registry import Component
from zoo.core.spaces import Box, Discrete, Space, empty_obs
from zoo.policy.options import Owner, UpdateOption
from zoo.rl_utils.distribution import ActionDist

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots

KEY = 'policy.learn.symmetry'
WITH_SIGMA = 'gaussian', 'squashed_gaussian'
"""Distributions of numbers whose parameters are mu, then sigma."""
Mirror = Callable[[Any], Any]


class Symmetry(UpdateOption):
    """Steps read every sample twice, as it is and mirrored (`augment`), with the loss of a mirror in addition (`mirror_loss`).

    A mirrored sample has the mirrored observation, action and parameters of the distribution, and the same value, advantage,
    return and weight. A pass over a batch so has twice as many minibatches. PPG's auxiliary phase sees the samples alone.
    """

    key = KEY

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        cfg = policy.cfg.learn.symmetry
        assert cfg is not None, 'options_of chose it'
        if policy.has_state:
            raise UserError(
                f'{KEY} mirrors observations, but not the state of a memory; use a model without policy.model.recurrent'
            )
        obs_mirror = obs_mirror_of(cfg.obs, policy.obs_space)
        self.mirror = ActionMirror(cfg.action, policy.action_space, policy.dist)
        check_obs_mirror(obs_mirror, policy.obs_space, policy.device)
        if cfg.augment:
            update.inputs.append(partial(with_mirrored, obs_mirror, self.mirror))
        if cfg.mirror_loss > 0:
            update.extra_columns.fill(self, MirroredLogit(obs_mirror, self.mirror))
            term = Component('symmetry', 'mirror', mirror_loss, (('factor', cfg.mirror_loss),))
            update.terms.append(term)
            self.names = ('penalty_mirror',)


def with_mirrored(obs_mirror: Mirror, action_mirror: ActionMirror, columns: dict[str, Any]) -> dict[str, Any]:
    """The rows [N] that a step reads, followed by their mirror images: [2 N]."""
    found = {}
    for name, x in columns.items():
        if name == 'obs':
            image = obs_mirror(x)
        elif name == 'action':
            image = action_mirror.action(x)
        elif name.startswith('logit'):
            image = action_mirror.logit(x)
        else:
            image = x
        found[name] = map_tensors(lambda a, b: torch.cat((a, b.to(a.dtype))), x, image)
    return found


def mirror_loss(
    dist: ActionDist, output: Mapping[str, Tensor], minibatch: Mapping[str, Any], *, factor: float
) -> Tensor:
    """factor * KL(mirror image || policy), [N]: the image of what the policy does in the mirrored observation, without gradient."""
    return factor * dist.kl(minibatch['logit_image'].detach(), output['logit'])


class MirroredLogit:
    """Column 'logit_image' of a step: the policy in the mirrored observations, mirrored back.

    For a symmetry that does not undo itself, such as a quarter turn, that is not the same as mirrored again.
    """

    def __init__(self, obs_mirror: Mirror, action_mirror: ActionMirror) -> None:
        self._obs_mirror = obs_mirror
        self._action_mirror = action_mirror

    def __call__(
        self, model: nn.Module, optimizers: Sequence[Any], minibatch: Mapping[str, Any], loss: LossSpec
    ) -> dict[str, Tensor]:
        image = {**minibatch, 'obs': self._obs_mirror(minibatch['obs'])}
        output, _ = loss.forward(model, 'compute_actor', image)
        return {'logit_image': self._action_mirror.undone(output['logit'].detach())}


class Reordered:
    """x[..., i] -> sign[i] * x[..., index[i]] + offset[i], and what undoes it."""

    def __init__(self, index: Sequence[int], sign: Sequence[float], offset: Sequence[float] | None = None) -> None:
        self._index = torch.tensor(index)
        self._sign = torch.tensor(sign)
        self._offset: Tensor | None = None
        if offset is not None and any(offset):
            self._offset = torch.tensor(offset)

    def __call__(self, x: Tensor) -> Tensor:
        found = self.places(x) * self._sign.to(x.device, x.dtype)
        if self._offset is not None:
            found = found + self._offset.to(x.device, x.dtype)
        return found

    def places(self, x: Tensor) -> Tensor:
        """x[..., index[i]]: the places that the numbers get, without signs and offsets."""
        return x[..., self._index.to(x.device)]

    def undone(self) -> Reordered:
        """x_{index[i]} = sign[i] * (y_i - offset[i])."""
        place = torch.argsort(self._index)
        sign = self._sign[place]
        offset = None
        if self._offset is not None:
            offset = (-sign * self._offset[place]).tolist()
        return Reordered(place.tolist(), sign.tolist(), offset)


def reordered(spec: Mapping[str, Any], n: int, key: str) -> Reordered:
    """The mirror that `index` and `sign` describe. Raises: UserError if they do not fit n numbers, or are no mirror."""
    unknown = [name for name in spec if name not in ('index', 'sign')]
    if unknown or not spec:
        raise UserError(f'{key} is {shown(dict(spec))} but must have index, sign or both, lists of {n} numbers')
    index = list(spec.get('index', range(n)))
    sign = list(spec.get('sign', [1] * n))
    if sorted(index) != list(range(n)):
        raise UserError(
            f'{key}.index is {index} but must have each of 0 to {n - 1} once: the place that each number comes from'
        )
    if len(sign) != n or any(x not in (-1, 1) for x in sign):
        raise UserError(f'{key}.sign is {sign} but must be {n} numbers, 1 or -1 each')
    if any(index[index[i]] != i or sign[i] * sign[index[i]] != 1 for i in range(n)):
        raise UserError(
            f'{key} is no mirror: applied twice, it does not give back what it was applied to; correct index or sign'
        )
    return Reordered(index, sign)


def obs_mirror_of(spec: Any, space: Space) -> Mirror:
    """The mirror of observations [N, *O]."""
    key = f'{KEY}.obs'
    if isinstance(spec, str):
        return load_code(spec, key)
    if callable(spec):
        return spec
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise UserError(
            f'{key} is {shown(spec)}, for vectors, but observations are {space}; give a function of their tensors, as '
            "'module:function'"
        )
    return reordered(spec, space.shape[0], key)


def check_obs_mirror(mirror: Mirror, space: Space, device: torch.device) -> None:
    """Raises: UserError if a mirror of observations changes their form."""
    obs = empty_obs(space, (2,), device)
    image = mirror(obs)
    was = {path: x.shape for path, x in leaves(obs)}
    try:
        now = {path: x.shape if isinstance(x, Tensor) else None for path, x in leaves(image)}
    except AttributeError:
        now = {}
    if was != now:
        raise UserError(
            f'{KEY}.obs, a function, returned {shown(image)} for observations of the form {shown(was)}; return tensors of that form'
        )


def reordered_by(function: Mirror, n: int, has_offset: bool, key: str) -> Reordered:
    """The order, signs and offsets of a function of n numbers. Raises: UserError if it does something else with them.

    Args: has_offset: whether it may add constants, as in 1 - x.
    """
    points = torch.cat((torch.zeros(1, n), torch.eye(n), torch.linspace(-0.7, 0.9, n).unsqueeze(0)))
    images = function(points.clone())
    if not isinstance(images, Tensor) or images.shape != points.shape:
        raise UserError(
            f'{key}, a function, returned {shown(images)} for actions of the form {shown(points.shape)}; return a tensor of that form'
        )
    offset = images[0]
    index = (images[1:-1] - offset).abs().argmax(0)
    sign = (images[1:-1] - offset).gather(0, index.unsqueeze(0)).squeeze(0).round()
    found = Reordered(index.tolist(), sign.tolist(), offset.tolist())
    is_exact = bool((sign.abs() == 1).all()) and torch.allclose(found(points), images, atol=1e-5)
    if sorted(index.tolist()) != list(range(n)) or not is_exact:
        raise UserError(
            f'{key}, a function, does more than change the places and signs of {n} numbers and add constants, so that the image '
            'of a Gaussian of independent numbers has no such form; use a mirror that does no more'
        )
    if offset.any() and not has_offset:
        raise UserError(
            f'{key}, a function, adds {shown(offset.tolist())} to actions, but it gets them before they are squashed to the bounds, '
            'with 0 in the middle; change places and signs alone'
        )
    return found


class ActionMirror:
    """The mirror of actions, and of the parameters of their distribution.

    A mirror of choices is a permutation of them. One of numbers changes mu as the numbers, and the places of sigma.
    """

    def __init__(self, spec: Any, space: Space, dist: ActionDist) -> None:
        key = f'{KEY}.action'
        self.is_choice = isinstance(space, Discrete) and dist.name == 'categorical'
        if not self.is_choice and dist.name not in WITH_SIGMA:
            raise UserError(
                f'{KEY} mirrors one choice or numbers, but the actions are {space} with the distribution {dist.name!r}; use '
                "'categorical', 'gaussian' or 'squashed_gaussian', or mirror samples in an option of your own"
            )
        n = int(space.n) if isinstance(space, Discrete) else dist.n_param // 2
        function = spec
        if isinstance(spec, str):
            function = load_code(spec, key)
        if self.is_choice:
            self._choices = torch.tensor(choices_of(function, n, key))
            return
        if callable(function):
            self._of_numbers = reordered_by(function, n, dist.name == 'gaussian', key)
        else:
            self._of_numbers = reordered(function, n, key)
        self._back = self._of_numbers.undone()

    def action(self, action: Tensor) -> Tensor:
        """The images of actions [N] or [N, D]."""
        if self.is_choice:
            return self._choices.to(action.device)[action]
        return self._of_numbers(action)

    def logit(self, logit: Tensor) -> Tensor:
        """The parameters [N, P] of the image of a distribution."""
        if self.is_choice:  # choice k of the image is what choice j was, where choices[j] is k
            return logit[..., torch.argsort(self._choices).to(logit.device)]
        return _of_gaussian(self._of_numbers, logit)

    def undone(self, logit: Tensor) -> Tensor:
        """The parameters [N, P] of the distribution whose image these are of."""
        if self.is_choice:
            return logit[..., self._choices.to(logit.device)]
        return _of_gaussian(self._back, logit)


def choices_of(spec: Mirror | Mapping[str, Any], n: int, key: str) -> list[int]:
    """The images of n choices. Raises: UserError if they are no permutation, or have signs."""
    if not callable(spec):
        reordered(spec, n, key)
        if 'sign' in spec:
            raise UserError(
                f'{key}.sign is given, but actions are one of {n} choices, which have no sign; give index alone'
            )
        return list(spec['index'])
    images = [int(x) for x in torch.as_tensor(spec(torch.arange(n)))]
    if sorted(images) != list(range(n)):
        raise UserError(f'{key}, a function, turned the choices 0 to {n - 1} into {images}; return each of them once')
    return images


def _of_gaussian(mirror: Reordered, logit: Tensor) -> Tensor:
    mu, sigma = logit.chunk(2, -1)
    return torch.cat((mirror(mu), mirror.places(sigma)), -1)
