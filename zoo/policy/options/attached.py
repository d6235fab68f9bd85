"""Options of an older form, until zoo 0.4: `attach` and `attach_learn` set attributes of the policy's samples and losses.

Such an option gets a `PolicyView` in place of the policy. What it sets there fills the slot that took its place, with a
DeprecationWarning that names the slot.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from zoo.backend.step import LossAndNumbers, LossSpec, StepNumbers
from zoo.core.errors import UserError
from zoo.policy.options.base import UpdateOption
from zoo.policy.update import UpdateBuilder

SAMPLE_SLOTS = {
    'units': 'units',
    'reference': 'baseline',
    'scaled_reward': 'reward_scale',
    'estimator': 'estimator',
}
"""Attributes of samples, and the slots that took their place."""
ENTRY_FIELDS = {'entries': 'cut', 'entry_len': 'length', 'rows_once': 'rows_once'}
"""Attributes of samples, and the fields of `zoo.policy.samples.Entries` that took their place."""
LOSS_SLOTS = ('surrogate', 'value_loss', 'proximal', 'extra_columns')
NO_SLOT = '{title} sets {name}, for which an update has no slot; write a step of your own, or set it in the config'


def attach(option: UpdateOption, update: UpdateBuilder, policy: Any) -> None:
    """Calls `attach` of an option, whose settings fill slots of the update."""
    option.attach(PolicyView(option, policy, update))


def attach_learn(option: UpdateOption, policy: Any) -> None:
    """Calls `attach_learn` of an option that fills no slots; the update of the policy exists, and changes in place."""
    option.attach_learn(PolicyView(option, policy, None))


def warn_of_slot(option: UpdateOption, attribute: str, slot: str, level: int = 3) -> None:
    """Warns that an option sets an attribute of the policy in place of filling a slot.

    Args: level: `stacklevel` that gives the line of the option, which Python shows only if the warning is of that line.
    """
    warnings.warn(
        f'{option.title} sets policy.{attribute}; define fill(self, update, policy) and use update.{slot} instead',
        DeprecationWarning,
        stacklevel=level,
    )


class View:
    """Attributes of another object, by `_find`. A copy has none before it has its state, and special methods of its own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__') or '_policy' not in vars(self):
            raise AttributeError(f'{type(self).__name__!r} object has no attribute {name!r}')
        return self._find(name)

    def _find(self, name: str) -> Any:
        raise NotImplementedError


class PolicyView(View):
    """A policy as options of the older form see it. Args: update: None once the policy has its update."""

    def __init__(self, option: UpdateOption, policy: Any, update: UpdateBuilder | None) -> None:
        self.__dict__.update(_option=option, _policy=policy, _update=update)
        self.__dict__['objective'] = ObjectiveView(option, policy, update)
        if update is not None:
            self.__dict__['samples'] = SamplesView(option, policy, update)
            self.__dict__['normalizers'] = update.normalizers
        else:
            self.__dict__['passes'] = PassesView(option, policy)

    def _find(self, name: str) -> Any:
        return getattr(self._policy, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == 'passes' or name == 'samples':
            raise UserError(f'{self._option.title} replaces policy.{name}; fill slots of the update instead')
        if self._update is None or name not in ('has_critic', 'memory'):
            setattr(self._policy, name, value)
            return
        warn_of_slot(self._option, name, f'{name}.fill(self, ..)')
        getattr(self._update, name).fill(self._option, value)


class SamplesView(View):
    """The samples of a policy that has no update yet, or has one since."""

    def __init__(self, option: UpdateOption, policy: Any, update: UpdateBuilder) -> None:
        self.__dict__.update(_option=option, _policy=policy, _update=update)
        self.__dict__['_warned_of_inputs'] = False

    def _find(self, name: str) -> Any:
        samples = vars(self._policy).get('samples')
        if samples is not None:
            return getattr(samples, name)
        if name == 'inputs':
            self._warn_of_inputs(level=5)
            return self._update.inputs
        if name in SAMPLE_SLOTS:
            return getattr(self._update, SAMPLE_SLOTS[name]).value
        if name in ENTRY_FIELDS:
            return getattr(self._update.entries.value, ENTRY_FIELDS[name])
        raise AttributeError(f'the samples of a policy have no {name!r} before the policy is built')

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SAMPLE_SLOTS:
            slot = SAMPLE_SLOTS[name]
            warn_of_slot(self._option, f'samples.{name}', f'{slot}.fill(self, ..)')
            getattr(self._update, slot).fill(self._option, value)
        elif name in ENTRY_FIELDS:
            warn_of_slot(self._option, f'samples.{name}', 'entries.fill(self, ..)')
            entries = self._update.entries.value._replace(**{ENTRY_FIELDS[name]: value})
            self._update.entries.fill(self._option, entries)
        elif name == 'inputs':
            self._warn_of_inputs(level=4)
            self._update.inputs[:] = value
        else:
            raise UserError(NO_SLOT.format(title=self._option.title, name=f'policy.samples.{name}'))

    def _warn_of_inputs(self, level: int) -> None:
        """Warns once for each option, which may read the list and then set a longer one."""
        if not self._warned_of_inputs:
            self.__dict__['_warned_of_inputs'] = True
            warn_of_slot(self._option, 'samples.inputs', 'inputs', level)

    def estimate_by(self, spec: str | Mapping[str, Any]) -> None:
        """Uses another estimator of advantages."""
        warn_of_slot(self._option, 'samples.estimate_by', 'estimator.fill(self, ..)')
        self._update.estimator.fill(self._option, spec)


class ObjectiveView(View):
    """The losses of a policy, with the attribute `fixed`: the parts of the loss of its steps, and constant numbers."""

    def __init__(self, option: UpdateOption, policy: Any, update: UpdateBuilder | None) -> None:
        self.__dict__.update(_option=option, _policy=policy, _update=update)

    def _find(self, name: str) -> Any:
        objective = self._policy.objective
        if name != 'fixed':
            return getattr(objective, name)
        learn = self._policy.cfg.learn
        weights = tuple(objective.weights)
        numbers = StepNumbers(dual_clip=learn.dual_clip, grad_clip=learn.grad_clip, term_weights=weights)
        return LossAndNumbers(self._loss(), numbers)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != 'fixed':
            setattr(self._policy.objective, name, value)
            return
        numbers = self.fixed.numbers
        for field in ('dual_clip', 'grad_clip', 'clip_ratio', 'entropy_weight', 'value_weight'):
            if getattr(numbers, field) != getattr(value.numbers, field):
                raise UserError(NO_SLOT.format(title=self._option.title, name=f'policy.objective.fixed.{field}'))
        loss = with_weights(value.loss, value.numbers.term_weights, len(self._policy.objective.weights))
        if self._update is None:
            warn_of_slot(self._option, 'objective.fixed', 'around_forward')
            self._policy.loss = loss
        else:
            self._fill(self._update, loss)

    def _loss(self) -> LossSpec:
        if self._update is None:
            loss: LossSpec = self._policy.loss
            return loss
        return self._update.loss()

    def _fill(self, update: UpdateBuilder, loss: LossSpec) -> None:
        """Fills a slot for each part of the loss that differs from the present one."""
        now = self._loss()
        for name in LOSS_SLOTS:
            part = getattr(loss, name)
            if part is not getattr(now, name):
                warn_of_slot(self._option, 'objective.fixed', f'{name}.fill(self, ..)', level=4)
                getattr(update, name).fill(self._option, part)
        if loss.forward is not now.forward:
            warn_of_slot(self._option, 'objective.fixed', 'around_forward', level=4)
            update.around_forward.append(partial(_replaced, loss.forward))  # which calls the one before already
        if loss.terms != now.terms:
            warn_of_slot(self._option, 'objective.fixed', 'terms', level=4)
            update.terms[:] = loss.terms
        if loss.measure_kl and not now.measure_kl:
            warn_of_slot(self._option, 'objective.fixed', 'measure_kl()', level=4)
            update.measure_kl()


def _replaced(forward: Callable[..., Any], before: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the first function: one of an older option calls the one before it by itself."""
    return forward


def with_weights(loss: LossSpec, weights: tuple[Any, ...], n_penalty: int) -> LossSpec:
    """A loss whose terms after the penalties have weight 1: they are multiplied by their weights."""
    pairs = zip(loss.terms[n_penalty:], weights[n_penalty:], strict=False)
    terms = tuple(term if weight == 1 else Weighted(term, weight) for term, weight in pairs)
    return loss._replace(terms=(*loss.terms[:n_penalty], *terms))


class Weighted:
    """A term of a loss times a constant."""

    def __init__(self, term: Callable[..., Tensor], weight: float) -> None:
        self.name = getattr(term, 'name', type(term).__name__)
        self._term = term
        self._weight = weight

    def __call__(self, *args: Any) -> Tensor:
        return self._term(*args) * self._weight


class PassesView(View):
    """The passes of a policy, with the attributes `steps` and `order_entries`."""

    def __init__(self, option: UpdateOption, policy: Any) -> None:
        self.__dict__.update(_option=option, _policy=policy)

    def _find(self, name: str) -> Any:
        passes = self._policy.passes
        if name == 'order_entries':
            return passes.draw
        if name != 'steps':
            return getattr(passes, name)
        return partial(_take_with_one_object, passes.take)  # no closure: a copy of the policy takes steps of its own

    def __setattr__(self, name: str, value: Any) -> None:
        passes = self._policy.passes
        if name == 'order_entries':
            warn_of_slot(self._option, 'passes.order_entries', 'draw.fill(self, ..)')
            passes.draw = value
        elif name == 'steps':
            warn_of_slot(self._option, 'passes.steps', 'each_pass.fill(self, ..)')
            passes.take = partial(_take_with_two_objects, value)
        else:
            setattr(passes, name, value)


def _take_with_one_object(take: Callable[..., Any], *args: Any) -> Any:  # step, optimizers, plan, numbers
    return take(*args[:-1], *args[-1])


def _take_with_two_objects(steps: Callable[..., Any], *args: Any) -> Any:  # step, optimizers, plan, loss, numbers
    return steps(*args[:-2], LossAndNumbers(*args[-2:]))
