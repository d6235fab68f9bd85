"""How parameters move: Adam over one flat buffer."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.core.errors import RunError


class FlatState(NamedTuple):
    """The buffers of a FlatAdam: all that a step reads and writes."""

    param: Tensor
    grad: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step_count: Tensor


class AdamRates(NamedTuple):
    """The numbers of an Adam step, or 0-dim tensors of them."""

    lr: Any
    beta1: Any
    beta2: Any
    eps: Any


class NonFiniteGradientError(RunError):
    """Too many gradient steps in a row were not finite."""


class FlatAdam:
    """Adam over one flat buffer of parameters and one of gradients, of which the model's are views.

    Zeroing, the global norm, the finite check and the update are then one operation each. A step whose gradient is not
    finite changes nothing and is counted; only `count_skipped` waits for the device. Copied or pickled together with
    its model, the copy moves the copied model.
    Args: named_parameters: as of `nn.Module.named_parameters()`, float32, on one device; they become views
      of one buffer.
    Source: Kingma & Ba 2015, arXiv:1412.6980.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-5,
    ) -> None:
        self.lr, self._betas, self._eps = lr, betas, eps
        self._named = [(name, p) for name, p in named_parameters if p.requires_grad]
        if not self._named:
            raise ValueError('FlatAdam got no parameter that requires a gradient; give the model at least one')
        first = self._named[0][1]
        size = sum(p.numel() for _, p in self._named)
        self.param = torch.empty(size, dtype=first.dtype, device=first.device)
        self.grad, self.exp_avg, self.exp_avg_sq = (torch.zeros_like(self.param) for _ in range(3))
        self.step_count = torch.zeros((), device=first.device)  # steps taken; the skipped ones are not among them
        self.n_skipped, self._n_in_row = 0, 0
        self._norms: list[Tensor] = []
        for (_, p), value in zip(self._named, self.cut(self.param).values(), strict=True):
            value.copy_(p.detach())
        self._tie()

    def _tie(self) -> None:
        """Makes the parameters and their gradients views of the flat buffers, whose values count."""
        values, grads = self.cut(self.param), self.cut(self.grad)
        for name, p in self._named:
            p.data, p.grad = values[name], grads[name]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copies of parameters, by `copy.deepcopy` or pickle, have memory of their own and no gradient."""
        self.__dict__.update(state)
        self._tie()

    @property
    def state(self) -> FlatState:
        """The buffers themselves."""
        return FlatState(self.param, self.grad, self.exp_avg, self.exp_avg_sq, self.step_count)

    @property
    def names(self) -> list[str]:
        """Of the parameters, in the order of the buffers."""
        return [name for name, _ in self._named]

    @property
    def rates(self) -> AdamRates:
        """The numbers of the next step."""
        return AdamRates(self.lr, *self._betas, self._eps)

    def cut(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat buffer laid out as `param`, by name and in the shapes of the parameters."""
        pieces = flat.split([p.numel() for _, p in self._named])
        return {name: piece.view(p.shape) for (name, p), piece in zip(self._named, pieces, strict=True)}

    def sibling(self) -> FlatAdam:
        """Another Adam over the same parameters and gradients, with step size, moments and counters of its own."""
        other = copy(self)
        other.n_skipped, other._n_in_row, other._norms = 0, 0, []
        other.exp_avg, other.exp_avg_sq = torch.zeros_like(self.param), torch.zeros_like(self.param)
        other.step_count = torch.zeros_like(self.step_count)
        return other

    def zero_grad(self) -> None:
        """Sets the gradient to zero, in place."""
        self.grad.zero_()

    @torch.no_grad()
    def step(self, grad_clip: float | None = None) -> Tensor:
        """One Adam step with the accumulated gradient, its global norm limited to grad_clip.

        Returns: the norm before the limit, 0-dim; when it is not finite the step was skipped.
        """
        norm = torch.linalg.vector_norm(self.grad)
        bad = (norm * 0).nan_to_num_(nan=1.0).float()  # 0, or 1 where the norm is infinite or NaN
        scale = None if grad_clip is None else (norm / grad_clip).clamp_(min=1.0).float()
        self.step_count.add_(1)
        # what torch.optim.Adam(fused=True) calls, without its search for devices and types: 20 us
        torch._fused_adam_(
            [self.param],
            [self.grad],
            [self.exp_avg],
            [self.exp_avg_sq],
            [],
            [self.step_count],
            lr=self.lr,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
            grad_scale=scale,
            found_inf=bad,
        )
        self.step_count.sub_(bad)
        self.note_step(norm)
        return norm

    def note_step(self, norm: Tensor) -> None:
        """Notes the norm of the gradient of a step taken, or of several ([n]), for `count_skipped`."""
        self._norms.append(norm.reshape(-1))

    def count_skipped(self, limit: int) -> int:
        """How many steps were skipped so far. Waits for the device, so call it once per rollout.

        Raises: NonFiniteGradientError if the last `limit` steps or more were all skipped; names the first
          such parameter.
        """
        for finite in torch.cat(self._norms).isfinite().tolist() if self._norms else []:
            self.n_skipped += not finite
            self._n_in_row = 0 if finite else self._n_in_row + 1
        self._norms.clear()
        if self._n_in_row >= limit:
            raise NonFiniteGradientError(
                f'the gradient of {self._n_in_row} steps in a row was not finite, first in parameter '
                f'{self._culprit()!r}; lower policy.learn.learning_rate, set policy.learn.grad_clip, or look at the '
                'scale of rewards and observations'
            )
        return self.n_skipped

    def _culprit(self) -> str:
        """The first parameter whose gradient is not finite; if all are and only their norm overflowed, the largest."""
        grads = [(name, p.grad) for name, p in self._named if p.grad is not None]
        broken = [name for name, grad in grads if not bool(grad.isfinite().all())]
        return broken[0] if broken else max(grads, key=lambda item: float(item[1].abs().max()))[0]

    def state_dict(self) -> dict[str, Tensor | int]:
        """Moments and counters; the parameters are the model's own state."""
        return {
            'exp_avg': self.exp_avg,
            'exp_avg_sq': self.exp_avg_sq,
            'step_count': self.step_count,
            'n_skipped': self.n_skipped,
            'n_in_row': self._n_in_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies a `state_dict` in; shapes must be equal."""
        for name in ('exp_avg', 'exp_avg_sq', 'step_count'):
            getattr(self, name).copy_(state[name])
        self.n_skipped, self._n_in_row = state['n_skipped'], state['n_in_row']
