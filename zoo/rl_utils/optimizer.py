"""Optimisers over one flat buffer of parameters, by any update rule; Adam's steps are one fused operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zoo.core.errors import RunError
from zoo.core.ranks import ALONE
from zoo.rl_utils.update_rules import MIN_SCALE, AdamRule, RuleOptimizer, UpdateRule, first_values, scaled_backward


class NonFiniteGradientError(RunError):
    """Too many gradient steps in a row were not finite."""


class FlatOptimizer(RuleOptimizer):
    """An optimiser of a model, whose trainable parameters and their gradients are views of its flat buffers.

    A step whose gradient is not finite changes nothing and is counted; only `count_skipped` waits for the device. If an
    optimiser is copied or pickled together with its model, the copy updates the copied model.
    Args: named_parameters: as of `nn.Module.named_parameters()`, float32, on one device.
    Raises: ValueError if no parameter requires a gradient.
    """

    def __init__(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]], rule: UpdateRule, lr: float = 1e-3
    ) -> None:
        self._named = [(name, p) for name, p in named_parameters if p.requires_grad]
        if not self._named:
            raise ValueError(
                f'{type(self).__name__} got no parameter that requires a gradient; give the model at least one'
            )
        super().__init__(torch.cat([p.detach().flatten() for _, p in self._named]), rule, lr)
        self._tie()

    def _tie(self) -> None:
        """Makes the parameters and their gradients views of the flat buffers, whose values they take."""
        values, grads = self.cut(self.param), self.cut(self.grad)
        for name, p in self._named:
            p.data, p.grad = values[name], grads[name]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes views again, since parameters copied by `copy.deepcopy` or pickle have their own memory and no gradient."""
        self.__dict__.update(state)
        self._tie()

    @property
    def names(self) -> list[str]:
        """Names of the parameters, in the order of the buffers."""
        return [name for name, _ in self._named]

    def cut(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat buffer with the layout of `param`: one for each parameter, by name, in its shape."""
        pieces = flat.split([p.numel() for _, p in self._named])
        return {name: piece.view(p.shape) for (name, p), piece in zip(self._named, pieces, strict=True)}

    @property
    def averaged(self) -> dict[str, Tensor]:
        """The average of the parameters by name, as views. Raises: ValueError if none is kept."""
        if 'average' not in self._kept:
            raise ValueError('this optimiser keeps no average of its parameters; give it an average_decay, e.g. 0.99')
        return self.cut(self._kept['average'])

    def zero_grad(self) -> None:
        """Sets the gradient to zero, in place; if gradients accumulate, only before the first one of a step."""
        if not self._gathered:
            self.grad.zero_()
            self._is_shared = False

    def count_skipped(self, limit: int) -> int:
        """Number of steps skipped so far. Waits for the device, so call it once per rollout.

        Raises: NonFiniteGradientError if the last `limit` steps or more were all skipped; names the first parameter whose
          gradient is not finite. With a loss scale, only once the scale cannot be lowered any more.
        """
        norms = [norm.reshape(-1) for norm in self._norms]
        for finite in torch.cat(norms).isfinite().tolist() if norms else []:
            self.n_skipped += not finite
            self._n_in_row = 0 if finite else self._n_in_row + 1
        self._norms.clear()
        if self._n_in_row >= limit and (self.loss_scale is None or self.loss_scale <= MIN_SCALE):
            largest = {
                name: max(grad.abs().nan_to_num(torch.inf, torch.inf).flatten().tolist(), default=0.0)
                for name, grad in self.cut(self.grad).items()
            }
            culprit = max(largest, key=largest.__getitem__)  # if all are finite, only their norm overflowed
            raise NonFiniteGradientError(
                f'the gradient of {self._n_in_row} steps in a row was not finite, first in parameter '
                f'{culprit!r}; lower policy.learn.learning_rate, set policy.learn.grad_clip, or look at the '
                'scale of rewards and observations'
            )
        return self.n_skipped

    def state_dict(self) -> dict[str, Tensor | int]:
        """Moments and counters; the parameters are in the state of the model."""
        return {**self._kept, 'n_skipped': self.n_skipped, 'n_in_row': self._n_in_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a `state_dict`; shapes must be equal.

        Buffers of the mechanics may be missing: an average then starts from the current parameters. The state may be that
        of another rule with the same moments, e.g. of adam for adamw.
        Raises: ValueError if it lacks a moment of this rule.
        """
        if missing := [name for name in (*self.rule.moments, 'step_count') if name not in state]:
            raise ValueError(
                f'the state is that of an optimiser with {", ".join(state)} but this one needs {", ".join(missing)} too; '
                'continue with the policy.learn.optimizer that it was trained with'
            )
        begun = first_values(self.mechanics, self.param)
        for name, x in self._kept.items():
            x.copy_(state[name] if name in state else begun[name])
        self.n_skipped, self._n_in_row = state['n_skipped'], state['n_in_row']


class FlatAdam(FlatOptimizer):
    """Adam, the only rule that the C code knows; a step without mechanics is one of torch's fused Adam.

    Args: named_parameters: as of `FlatOptimizer`.
    Source: Kingma & Ba 2015, arXiv:1412.6980.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-5,
    ) -> None:
        self._fixed: dict[str, Any] = dict(
            beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=0.0, amsgrad=False, maximize=False
        )
        super().__init__(named_parameters, AdamRule(betas, eps), lr)

    @property
    def exp_avg(self) -> Tensor:
        """The first moment, [n]."""
        return self._kept['exp_avg']

    @property
    def exp_avg_sq(self) -> Tensor:
        """The second moment, [n]."""
        return self._kept['exp_avg_sq']

    @property
    def rates(self) -> tuple[float, float, float, float]:
        """The hyper-parameters of the next step: lr, beta1, beta2, eps."""
        return self.lr, self._fixed['beta1'], self._fixed['beta2'], self._fixed['eps']

    @torch.no_grad()
    def step(self, grad_clip: float | None = None) -> Tensor:
        if not self.is_plain:
            return super().step(grad_clip)
        if self.ranks is not ALONE:
            self.share_gradient()
            self._is_shared = False
        norm = torch.linalg.vector_norm(self.grad)
        bad = (norm * 0).nan_to_num_(nan=1.0).float()  # 0, or 1 where the norm is infinite or NaN
        scale = None if grad_clip is None else (norm / grad_clip).clamp_(min=1.0).float()
        step_count = self._kept['step_count'].add_(1)
        moments = [self._kept['exp_avg']], [self._kept['exp_avg_sq']]
        # what torch.optim.Adam(fused=True) calls, without its search for devices and types: 20 us
        numbers = {**self._fixed, 'lr': self.lr, 'grad_scale': scale, 'found_inf': bad}
        torch._fused_adam_([self.param], [self.grad], *moments, [], [step_count], **numbers)
        step_count.sub_(bad)
        self._norms.append(norm)
        return norm


def backward(loss: Tensor, optimizers: Sequence[Any]) -> None:
    """Adds the gradient of a loss to those of its optimisers; if they have loss scales, of the loss times the smallest."""
    if all(getattr(optimizer, 'loss_scale', None) is None for optimizer in optimizers):
        loss.backward()
    else:
        scaled_backward(loss, optimizers)
