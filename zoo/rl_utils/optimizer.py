"""Optimisers over one flat buffer of parameters, by any update rule, with mechanics around it; Adam's steps are one fused operation.

Mechanics are limits, accumulation, an average and a loss scale. They are pure functions of flat buffers, as the rules are, which
eager steps and compiled programs share.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from zoo.core.errors import NonFiniteGradientError as NonFiniteGradientError
from zoo.core.ranks import ALONE, Ranks, mean_over_
from zoo.rl_utils.check import Number
from zoo.rl_utils.update_rules import AdamRule, UpdateRule

Own = TypeVar('Own', bound='FlatOptimizer')

FIRST_SCALE = 2.0**16
MIN_SCALE = 1.0
N_GOOD_STEPS = 2000  # number of steps without an overflow after which the loss scale doubles


class Mechanics(NamedTuple):
    """The operations of an optimiser around its rule; with the defaults there are none.

    grad_clip_value: every element of the gradient is limited to -value .. value, before the limit of the norm.
    accumulate: number of gradients whose mean makes one step.
    average_decay: an average of the parameters is kept, in which those of s steps ago have the weight decay ** s.
    loss_scale: the loss is multiplied by an adaptive number, so that fp16 gradients do not underflow,
      see `zoo.rl_utils.optimizer.backward`.
    """

    grad_clip_value: float | None = None
    accumulate: int = 1
    average_decay: float | None = None
    loss_scale: bool = False

    def check(self) -> None:
        """Raises ValueError if a number is out of range; it says which."""
        if self.grad_clip_value is not None and not self.grad_clip_value > 0:
            raise ValueError(f'grad_clip_value is {self.grad_clip_value} but must be > 0; leave it out for no limit')
        if self.accumulate < 1:
            raise ValueError(
                f'accumulate is {self.accumulate} but must be 1 or more gradients a step; use 1 for no accumulation'
            )
        if self.average_decay is not None and not 0 <= self.average_decay < 1:
            raise ValueError(
                f'average_decay is {self.average_decay} but must be in [0, 1); leave it out for no average'
            )


def first_values(mechanics: Mechanics, param: Tensor) -> dict[str, Tensor]:
    """Initial values of the tensors that an optimiser keeps for its mechanics."""
    values: dict[str, Tensor] = {}
    if mechanics.average_decay is not None:
        values['average'] = param.clone()
        values['average_weight'] = torch.ones((), device=param.device)
    if mechanics.loss_scale:
        values['loss_scale'] = torch.full((), FIRST_SCALE, device=param.device)
        values['n_good_step'] = torch.zeros((), device=param.device)
    return values


def limited(
    grad: Tensor, grad_clip: Number | None, mechanics: Mechanics, divisor: Number | None = None
) -> tuple[Tensor, Tensor]:
    """The gradient divided by `divisor`, with elements and norm limited; and its norm before both limits.

    Args: grad: [n]; grad_clip: largest norm, a number, 0-dim or None for no limit; divisor: a number, 0-dim or None.
    """
    if divisor is not None:
        grad = grad / divisor
    norm = size = torch.linalg.vector_norm(grad)
    if mechanics.grad_clip_value is not None:
        grad = grad.clamp(-mechanics.grad_clip_value, mechanics.grad_clip_value)
        size = torch.linalg.vector_norm(grad)
    if grad_clip is not None:
        grad = grad / (size / grad_clip).clamp(min=1.0)
    return grad, norm


def moved(
    rule: UpdateRule,
    mechanics: Mechanics,
    state: Mapping[str, Tensor],
    grad: Tensor,
    lr: Number,
    finite: Tensor,
    scale: Tensor | None,
) -> dict[str, Tensor]:
    """All buffers of an optimiser after a step; if the gradient is not finite, only those of the loss scale change.

    Args:
      state: param, grad, the moments of the rule, step_count, and the tensors of `first_values`.
      grad: [n], after all limits; finite: 0-dim bool.
      scale: factor that the loss was multiplied by, 0-dim; None: there was none, and the loss scale stays.
    """
    new = {**state, 'grad': grad, 'step_count': state['step_count'] + 1}
    new |= rule(new, grad, lr)
    if mechanics.average_decay is not None:
        weight = mechanics.average_decay * state['average_weight']
        new['average_weight'] = weight + 1
        new['average'] = state['average'] * (weight / (weight + 1)) + new['param'] / (weight + 1)
    new = {name: torch.where(finite, x, state[name]) for name, x in new.items()}
    if scale is not None and mechanics.loss_scale:
        new['loss_scale'], new['n_good_step'] = _next_scale(scale, state['n_good_step'], finite)
    return new


def _next_scale(scale: Tensor, n_good_step: Tensor, finite: Tensor) -> tuple[Tensor, Tensor]:
    """The loss scale after a step: halved by an overflow, doubled after N_GOOD_STEPS steps without one.

    Source: Micikevicius et al. 2018, arXiv:1710.03740, sec. 3.2; torch.amp.GradScaler.
    """
    n_good_step = torch.where(finite, n_good_step + 1, 0.0)
    grows = n_good_step >= N_GOOD_STEPS
    scale = torch.where(finite, torch.where(grows, scale * 2, scale), (scale / 2).clamp(min=MIN_SCALE))
    return scale, torch.where(grows, 0.0, n_good_step)


class FlatOptimizer:
    """Steps by an update rule over a flat buffer of parameters and one of their gradients, with mechanics around the rule.

    The trainable parameters of the model and their gradients are views of these buffers. A step whose gradient is not finite
    changes nothing and is counted; only `count_skipped` waits for the device. If an optimiser is copied or pickled together
    with its model, the copy updates the copied model.
    Args: named_parameters: as of `nn.Module.named_parameters()`, float32, on one device.
    Raises: ValueError if no parameter requires a gradient.
    Attributes: ranks: the processes over which the gradient of a step is averaged, before all limits. is_plain: whether all
      of `mechanics` is off, so that a step is that of the rule alone. loss_scale: factor that the next loss must be
      multiplied by, 0-dim; None: no scaling.
    """

    def __init__(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]], rule: UpdateRule, lr: float = 1e-3
    ) -> None:
        self._named = [(name, p) for name, p in named_parameters if p.requires_grad]
        if not self._named:
            raise ValueError(
                f'{type(self).__name__} got no parameter that requires a gradient; give the model at least one'
            )
        self.param = torch.cat([p.detach().flatten() for _, p in self._named])
        self.grad = torch.zeros_like(self.param)
        self.lr = lr
        self.rule = rule
        self.ranks: Ranks = ALONE
        self._begin_with(Mechanics())
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

    def _begin_with(self, mechanics: Mechanics) -> None:
        """Sets the mechanics, and resets moments and counters to their values before the first step."""
        self.mechanics = mechanics
        self.is_plain = mechanics == Mechanics()
        self._kept = {name: torch.zeros_like(self.param) for name in self.rule.moments}
        self._kept['step_count'] = torch.zeros((), device=self.param.device)  # steps taken, without the skipped ones
        self._kept |= first_values(self.mechanics, self.param)
        self.loss_scale = self._kept.get('loss_scale')
        self.scaled_by: Tensor | None = None  # the factor of the loss of this gradient, see `scaled_backward`
        self.n_skipped = 0
        self._n_in_row = 0
        self._norms: list[Tensor] = []
        self._is_shared = False  # the gradient is already the mean over all ranks
        self.expect_steps(0)

    def configure(
        self,
        *,
        grad_clip_value: float | None = None,
        accumulate: int = 1,
        average_decay: float | None = None,
        precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    ) -> None:
        """Sets the mechanics around the rule, before the first step; precision 'fp16' turns on a loss scale.

        Args: see `Mechanics`.
        Raises: ValueError if a number is out of range.
        """
        mechanics = Mechanics(grad_clip_value, accumulate, average_decay, precision == 'fp16')
        mechanics.check()
        self._begin_with(mechanics)

    @property
    def grad_clip_value(self) -> float | None:
        """Limit of each element of the gradient; None: off."""
        return self.mechanics.grad_clip_value

    @property
    def accumulate(self) -> int:
        """Number of gradients that make one step."""
        return self.mechanics.accumulate

    @property
    def buffers(self) -> dict[str, Tensor]:
        """All tensors that a step reads and writes: param, grad, moments, step_count, and those of the mechanics."""
        return {'param': self.param, 'grad': self.grad, **self._kept}

    @property
    def state(self) -> Any:
        """`buffers` as a named tuple."""
        return namedtuple('FlatState', self.buffers)(**self.buffers)

    @property
    def step_count(self) -> Tensor:
        """Number of steps taken, 0-dim."""
        return self._kept['step_count']

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

    @torch.no_grad()
    def reset_average(self) -> None:
        """Resets the average to the current parameters; does nothing if no average is kept."""
        if 'average' in self._kept:
            self._kept['average'].copy_(self.param)
            self._kept['average_weight'].fill_(1)

    @torch.no_grad()
    def reset(self) -> None:
        """Sets moments, counters, the average and the loss scale to their values before the first step; parameters stay."""
        first = first_values(self.mechanics, self.param)
        for name, x in self._kept.items():
            if name in first:
                x.copy_(first[name])
            else:
                x.zero_()
        self.expect_steps(0)
        self.zero_grad()
        self.scaled_by = None
        self.n_skipped = 0
        self._n_in_row = 0
        self._norms.clear()

    def sibling(self: Own) -> Own:
        """Another optimiser over the same parameters and gradients, with its own rate, moments and counters, but no average."""
        other = copy(self)
        other._begin_with(self.mechanics._replace(average_decay=None))
        return other

    def zero_grad(self) -> None:
        """Sets the gradient to zero, in place; if gradients accumulate, only before the first one of a step."""
        if not self._gathered:
            self.grad.zero_()
            self._is_shared = False

    def share_gradient(self) -> None:
        """Averages the gradient of the next step over all ranks, once; does nothing while gradients still accumulate."""
        if not self._is_shared and self.upcoming[1]:
            mean_over_(self.grad, self.ranks)
            self._is_shared = True

    @torch.no_grad()
    def step(self, grad_clip: float | None = None) -> Tensor:
        """Takes one step with the gradient, its global norm limited to grad_clip; with `accumulate` k, at each k-th call.

        Returns: the norm before all limits, 0-dim; if it is not finite the step was skipped. Before the k-th call it is the
          norm of the mean so far.
        """
        if self.ranks is not ALONE:
            self.share_gradient()
        n_gathered, moves = self.upcoming
        grad, norm = limited(self.grad, grad_clip, self.mechanics, self.divisor(n_gathered, self.scaled_by))
        if moves:
            buffers = self.buffers
            new = moved(self.rule, self.mechanics, buffers, grad, self.lr, norm.isfinite(), self.scaled_by)
            for name, x in new.items():
                buffers[name].copy_(x)
            self.note_step(norm)
        self.advance()
        return norm

    def expect_steps(self, n_call: int, rows: Sequence[int] = ()) -> None:
        """Tells how many calls of `step` follow, of which the last takes a step; rows: of the minibatch of each, if not equal."""
        self._gathered: list[int] = []  # rows of the gradients that are there for the next step
        self._to_come = list(rows) or [1] * n_call

    def expect_passes(self, order: Tensor, batch_size: int) -> None:
        """Tells which minibatches follow, so that gathered gradients always make a step at the last one. Args: see `StepPlan`."""
        if self.mechanics.accumulate > 1:
            rows = [len(index) for each in order for index in each.split(batch_size)]
            self.expect_steps(len(rows), rows)

    @property
    def upcoming(self) -> tuple[float, bool]:
        """The number of gradients with that of the next `step`, in minibatches as large as its own; and whether it takes a step."""
        n_gathered = 1 + sum(self._gathered) / (self._to_come or [1])[0]
        return n_gathered, len(self._gathered) + 1 >= self.accumulate or len(self._to_come) == 1

    def divisor(self, n_gathered: Number, scale: Tensor | None) -> Number | None:
        """The number that a sum of gradients of scaled losses must be divided by; None: no division."""
        if self.mechanics.accumulate == 1:
            return scale
        if scale is None:
            return n_gathered
        return n_gathered * scale

    def advance(self) -> None:
        """Records a call of `step`, or of a program that does the same."""
        moves = self.upcoming[1]
        now, *to_come = self._to_come or [1]
        if moves:
            self._gathered = []
        else:
            self._gathered = [*self._gathered, now]
        self._to_come = to_come
        if self._gathered and to_come and to_come[0] != now:  # the next one counts as 1
            self.grad.mul_(now / to_come[0])
        self.scaled_by = None
        self._is_shared = False

    def note_step(self, norm: Tensor) -> None:
        """Records the norm of the gradient of one step, or of several steps ([n]), for `count_skipped`."""
        self._norms.append(norm)

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

    def not_finite_error(self) -> NonFiniteGradientError:
        """The error for too many skipped steps in a row; names the first parameter whose gradient is not finite."""
        largest = {
            name: max(grad.abs().nan_to_num(torch.inf, torch.inf).flatten().tolist(), default=0.0)
            for name, grad in self.cut(self.grad).items()
        }
        culprit = max(largest, key=largest.__getitem__)  # if all are finite, only their norm overflowed
        return NonFiniteGradientError(
            f'the gradient of {self._n_in_row} steps in a row was not finite, first in parameter {culprit!r}; lower '
            'policy.learn.learning_rate, set policy.learn.grad_clip, or look at the scale of rewards and observations'
        )

    def state_dict(self) -> dict[str, Tensor | int]:
        """Moments and counters; the parameters are in the state of the model."""
        return {**self._kept, 'n_skipped': self.n_skipped, 'n_in_row': self._n_in_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a `state_dict`; shapes must be equal.

        Buffers of the mechanics may be missing: an average then starts from the current parameters. The state may be that
        of another rule with the same moments, e.g. of adam for adamw.
        Raises: ValueError if it lacks a moment of this rule.
        """
        missing = [name for name in (*self.rule.moments, 'step_count') if name not in state]
        if missing:
            raise ValueError(
                f'the state is that of an optimiser with {", ".join(state)} but this one needs {", ".join(missing)} too; '
                'continue with the policy.learn.optimizer that it was trained with'
            )
        begun = first_values(self.mechanics, self.param)
        for name, x in self._kept.items():
            x.copy_(state[name] if name in state else begun[name])
        self.n_skipped = state['n_skipped']
        self._n_in_row = state['n_in_row']


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


def scaled_backward(loss: Tensor, optimizers: Sequence[Any]) -> None:
    """Adds the gradient of a loss times the smallest loss scale of its optimisers, whose steps divide by that scale again."""
    scales = [x for x in (getattr(optimizer, 'loss_scale', None) for optimizer in optimizers) if x is not None]
    if len(scales) == 1:
        scale = scales[0].clone()
    else:
        scale = torch.stack(scales).amin()
    (loss * scale).backward()
    for optimizer in optimizers:
        optimizer.scaled_by = scale
