"""A gradient step as data: the parts of its loss, its numbers, and the minibatches that it takes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial, update_wrapper
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from zoo.core.data import Columns, Metrics
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import Component
from zoo.rl_utils.check import Number, check_shape
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.ppo import clip, mse

Found = dict[str, Any]  # results of a step by name: tensors, or (nested) dicts of tensors
# (model, distribution, optimisers, minibatch, loss, numbers) -> metrics; zoo's own are `SplitStep`s
Step = Callable[..., Metrics]

CLIP = Component('surrogate', 'clip', clip)
MSE = Component('value loss', 'mse', mse)


F = TypeVar('F', bound=Callable[..., Any])


def own_forward(function: F) -> F:
    """Marks a forward function of zoo, see `LossSpec.forward`: executors know what it runs. A wrapper of it is not marked."""
    vars(function)['own'] = function
    return function


def is_own_forward(function: Any) -> bool:
    """Whether a function is a forward function of zoo."""
    return getattr(function, 'own', None) is function


@own_forward
def forward_rows(model: nn.Module, method: str, minibatch: Columns) -> tuple[dict[str, Tensor], Any]:
    """Runs a method of the model on a minibatch of rows; its output by name ('logit', 'value', ..), and the minibatch."""
    output = getattr(model, method)(minibatch['obs'])
    if isinstance(output, dict):
        return output, minibatch
    if method == 'compute_actor':
        name = 'logit'
    else:
        name = 'value'
    return {name: output}, minibatch


def n_output_of(value_loss: Callable[..., Tensor]) -> int:
    """Width of the critic's output for this loss: more than 1 for a distribution of returns."""
    return getattr(value_loss, 'n_output', 1)


class LossSpec(NamedTuple):
    """The parts of a loss. They stay the same for the whole run, so an executor may compile or describe them once.

    surrogate, value_loss: see zoo.core.registry.COMPONENTS. terms: further terms of the loss, (distribution, output, minibatch)
      -> [N], each with its factor in `StepNumbers.term_weights`.
    proximal: in place of `zoo.policy.ppo.surrogate_loss`, where samples need more than a ratio; called on GPUs, too, unless it
      has_kernel.
    forward: `forward_rows`, or another function of its form.
    extra_columns: (model, optimisers, minibatch, loss) -> columns of rows that `proximal` reads too; None: it reads no others.
    measure_kl: whether steps of the policy also give the metrics kl and ratio_max.
    """

    surrogate: Callable[..., Tensor] = CLIP
    value_loss: Callable[..., Tensor] = MSE
    terms: tuple[Any, ...] = ()
    proximal: Callable[..., tuple[Tensor, dict[str, Tensor]]] | None = None
    forward: Callable[..., Any] = forward_rows
    extra_columns: Callable[..., dict[str, Tensor]] | None = None
    measure_kl: bool = False


class StepNumbers(NamedTuple):
    """The numbers of a step, with schedules resolved: plain numbers or 0-dim tensors. None leaves a limit out.

    A step reads those that its loss has: bc_weight is of the auxiliary phase, entropy_weight of the policy.
    """

    clip_ratio: Number = 0.2
    entropy_weight: Number = 0.0
    value_weight: Number = 0.5
    bc_weight: Number = 1.0
    dual_clip: Number | None = None
    grad_clip: float | None = 0.5
    term_weights: tuple[Number, ...] = ()

    def flat(self) -> list[Number | None]:
        """All numbers in one list."""
        return [*self[:-1], *self.term_weights]

    @classmethod
    def from_flat(cls, flat: Sequence[Number | None]) -> StepNumbers:
        """The numbers of a list in the order of `flat`."""
        n_plain = len(cls._fields) - 1
        return cls._make([*flat[:n_plain], tuple(flat[n_plain:])])


class LossAndNumbers:
    """The one argument `numbers` of steps of an older form, with five parameters: it has the fields of both."""

    OLD_NAMES: ClassVar[dict[str, str]] = {'policy_loss': 'proximal', 'columns': 'extra_columns'}
    """Names of fields until zoo 0.3, and their names now."""

    def __init__(self, loss: LossSpec, numbers: StepNumbers) -> None:
        self.loss = loss
        self.numbers = numbers

    def __getattr__(self, name: str) -> Any:
        name = self.OLD_NAMES.get(name, name)
        if name in StepNumbers._fields:
            return getattr(self.numbers, name)
        if name in LossSpec._fields:
            return getattr(self.loss, name)
        raise AttributeError(f'a gradient step has no number {name!r}')

    def __iter__(self) -> Iterator[Any]:
        return iter((self.loss, self.numbers))

    def _replace(self, **fields: Any) -> LossAndNumbers:
        named = {self.OLD_NAMES.get(name, name): value for name, value in fields.items()}
        numbers = {name: value for name, value in named.items() if name in StepNumbers._fields}
        parts = {name: value for name, value in named.items() if name not in numbers}
        return LossAndNumbers(self.loss._replace(**parts), self.numbers._replace(**numbers))


def unprepared(dist: ActionDist, columns: Columns) -> Columns:
    """Returns the columns of a step unmodified."""
    return columns


def as_it_is(found: Found, dist: ActionDist, loss: LossSpec, numbers: StepNumbers) -> Metrics:
    """Returns the results of a step unmodified: they are its metrics."""
    return found


class SplitStep:
    """A gradient step in three parts, of which two can run for many minibatches at once. A call runs all parts for one minibatch.

    prepare: (distribution, columns) -> columns; runs once for all passes over them. Raises: ValueError if shapes do not fit.
    take: as a `Step`; changes the parameters and returns what `summarise` reads, of equal shapes for minibatches of equal shapes.
    summarise: (results of n steps, [n, ...] each, distribution, loss, numbers) -> metrics [n]; for one step, [...] -> 0-dim ones.
    """

    def __init__(
        self,
        take: Callable[..., Found],
        prepare: Callable[[ActionDist, Columns], Columns] = unprepared,
        summarise: Callable[..., Metrics] = as_it_is,
    ) -> None:
        self.take = take
        self.prepare = prepare
        self.summarise = summarise
        self.compiles = True  # False: its control flow depends on computed numbers, so it always runs eagerly

    def __call__(
        self,
        model: nn.Module,
        dist: ActionDist,
        optimizers: Sequence[object],
        minibatch: Columns,
        loss: LossSpec | LossAndNumbers | None = None,
        numbers: StepNumbers | LossAndNumbers | None = None,
    ) -> Metrics:
        both = numbers if loss is None else loss
        if isinstance(both, LossAndNumbers):  # called by a step of the older form, which has one argument for the two
            loss = both.loss
            numbers = both.numbers
        columns = self.prepare(dist, minibatch)
        found = self.take(model, dist, optimizers, columns, loss, numbers)
        return self.summarise(found, dist, loss, numbers)


class GradientStep(SplitStep):
    """Gradient step of zoo itself, not a user's own.

    Attributes: kind: its name in executors other than the eager one; kind_of: the step itself. A function that wraps the
      step copies both attributes; its kind_of is then another object, which tells executors that it is a wrapper.
    """

    __name__: str

    def __init__(
        self,
        take: Callable[..., Found],
        kind: str,
        prepare: Callable[[ActionDist, Columns], Columns] | None = None,
        summarise: Callable[..., Metrics] = as_it_is,
    ) -> None:
        super().__init__(take, prepare or checked, summarise)
        update_wrapper(self, take)
        self.kind = kind
        self.kind_of = self

    def __reduce__(self) -> str:
        return self.kind_of.__name__  # pickled by its name, as functions are


def checked(dist: ActionDist, columns: Columns) -> Columns:
    """Checks that columns with one number per sample have the same shape: [N, 1] and [N] would broadcast to [N, N]."""
    if 'logit' in columns:
        lead = columns['logit'].shape[:-1]
    else:
        lead = columns['return_'].shape
    for name in ('adv', 'return_', 'value', 'weight'):
        if name in columns and columns[name].shape != lead:
            check_shape(name, columns[name], 'logit_new without its last dimension', lead)
    return columns


@torch.no_grad()
def with_log_old(dist: ActionDist, columns: Columns) -> Columns:
    """Checks the columns, and adds log p_old(action) of each sample."""
    checked(dist, columns)
    return {**columns, 'log_old': dist.log_prob(columns['logit'], columns['action'])}


def as_step(function: Step) -> SplitStep:
    """A step as a `SplitStep`.

    Until zoo 0.4, a user's own step may have five parameters, without `loss`; its `numbers` then has the fields of both. The
    first use of such a step warns.
    """
    if isinstance(function, SplitStep):
        return function
    inner = function
    kinds = _kinds_of_parameters(function)
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        inner = inspect.unwrap(function)
        kinds = _kinds_of_parameters(inner)
    if len(kinds) != 5 or inspect.Parameter.VAR_POSITIONAL in kinds:
        return SplitStep(function)
    _warn_of_five_parameters(inner)

    def step(model: Any, dist: Any, optimizers: Any, minibatch: Any, loss: LossSpec, numbers: StepNumbers) -> Metrics:
        return function(model, dist, optimizers, minibatch, LossAndNumbers(loss, numbers))

    return SplitStep(step)


def _kinds_of_parameters(function: Step) -> list[Any]:
    parameters = inspect.signature(function, follow_wrapped=False).parameters
    return [parameter.kind for parameter in parameters.values()]


warned_of: set[Any] = set()


def _warn_of_five_parameters(function: Step) -> None:
    """Warns once of a step of the older form, at the line that defines it: of a class, this is its `__call__`."""
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    name = getattr(inner, '__name__', type(inner).__name__)
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    code = getattr(inner, '__code__', None)  # None: the step is not written in Python
    if (code or name) in warned_of:
        return
    warned_of.add(code or name)
    message = (
        f'the gradient step {name!r} has five parameters, which works until zoo 0.4; give it six, '
        '(model, dist, optimizers, minibatch, loss, numbers), and read the parts of the loss from `loss`, not from `numbers`: '
        'zoo.backend.step.LossSpec lists them'
    )
    if code is None:
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return
    warnings.warn_explicit(message, DeprecationWarning, code.co_filename, code.co_firstlineno, module=inner.__module__)


class StepPlan(NamedTuple):
    """Passes over samples in minibatches, `batch_size` rows a step.

    columns: [N, ...] each, on one device; device: where minibatches are used.
    order: [n_pass, n] int64 rows, on the device of the columns; the last step of a pass may have fewer than batch_size.
    normalize_adv: column 'adv' is normalised by the moments of its minibatch.
    gather: all minibatches are gathered at once, which is faster, and takes the memory of another copy.
    ranks: the processes whose minibatches count as one for these moments.
    """

    columns: Columns
    order: Tensor
    batch_size: int
    device: torch.device
    normalize_adv: bool = False
    gather: bool = True
    ranks: Ranks = ALONE
