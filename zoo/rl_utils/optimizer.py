"""Optimisers over one flat buffer of parameters, by any update rule; Adam's steps are one fused operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zoo.core.errors import NonFiniteGradientError as NonFiniteGradientError
from zoo.core.ranks import ALONE
from zoo.rl_utils.update_rules import MIN_SCALE, AdamRule, RuleOptimizer, UpdateRule, scaled_backward


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
        super().__init__(named_parameters, rule, lr)
        self._tie()

    def _tie(self) -> None:
        """Makes the parameters and their gradients views of the flat buffers, whose values they take."""
        values = self.cut(self.param)
        grads = self.cut(self.grad)
        for name, p in self._named:
            p.data = values[name]
            p.grad = grads[name]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes views again, since parameters copied by `copy.deepcopy` or pickle have their own memory and no gradient."""
        self.__dict__.update(state)
        self._tie()

    def zero_grad(self) -> None:
        """Sets the gradient to zero, in place; if gradients accumulate, only before the first one of a step."""
        if not self._gathered:
            self.grad.zero_()
            self._is_shared = False

    def count_skipped(self, limit: int) -> int:
        """Number of steps skipped so far. Waits for the device, so call it once per rollout.

        Raises: NonFiniteGradientError if the last `limit` steps or more were all skipped; with a loss scale, only once the
          scale cannot be lowered any more.
        """
        norms = [norm.reshape(-1) for norm in self._norms]
        for finite in torch.cat(norms).isfinite().tolist() if norms else []:
            self.n_skipped += not finite
            if finite:
                self._n_in_row = 0
            else:
                self._n_in_row += 1
        self._norms.clear()
        if self._n_in_row >= limit and (self.loss_scale is None or self.loss_scale <= MIN_SCALE):
            raise self.not_finite_error()
        return self.n_skipped


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
        scale = None
        if grad_clip is not None:
            scale = (norm / grad_clip).clamp_(min=1.0).float()
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
    if any(getattr(optimizer, 'loss_scale', None) is not None for optimizer in optimizers):
        scaled_backward(loss, optimizers)
    elif loss.dim() or not loss.is_floating_point():
        loss.backward()  # refuses more than one real number
    else:  # what loss.backward() calls, without its search for shapes, devices and kinds of graphs: 40 us
        run_backward = torch.autograd.Variable._execution_engine.run_backward
        run_backward((loss,), (torch.ones_like(loss),), False, False, (), True, True)
