"""Callbacks: user code that a run calls at its events; its loading, its checks, its errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any

from torch import Tensor

from zoo.buffer.base import Batch
from zoo.config.section import ConfigError
from zoo.config.user_code import load_code, names_code, shown_name
from zoo.config.yaml_io import function_name
from zoo.core.data import Metrics
from zoo.core.errors import CallbackError, UserError, did_you_mean, place_of, show_error, shown
from zoo.core.processes import STOP_REQUESTS
from zoo.env import AnyVectorEnv
from zoo.policy.hooks import listening
from zoo.policy.metrics import scalar_metrics
from zoo.run.observers.base import Callback, Observer, RunView
from zoo.worker.collector import Collector
from zoo.worker.evaluator import Evaluation, OnEvaluation
from zoo.worker.own_numbers import Logged
from zoo.worker.runner_view import RunnerView, TellRunner

Learn = Callable[[Batch], Metrics]
STOP_FOR = 'stop: '
"""How an answer of `on_evaluation` begins that ends a run and gives the reason."""


def tell_listener(listener: OnEvaluation, job: RunView, evaluation: Evaluation) -> None:
    """Calls `on_evaluation` of `serial_pipeline`; ends the run if that returns 'stop', or 'stop: ' and a reason.

    Raises: UserError for other answers.
    """
    answer = listener(job.env_step, evaluation)
    if answer is None:
        return
    if answer == 'stop':
        job.stop('on_evaluation asked for it')
    elif isinstance(answer, str) and answer.startswith(STOP_FOR):
        job.stop(answer.removeprefix(STOP_FOR))
    else:
        raise UserError(f"on_evaluation returned {shown(answer)} but must return 'stop' or None")


EVENTS = {  # the methods of a callback, each with the names of its arguments
    name: [p for p in inspect.signature(method).parameters if p != 'self']
    for name, method in vars(Callback).items()
    if name.startswith('on_')
}


class Callbacks(Observer):
    """Observer that calls the callbacks of one run. Args: specs: names, classes, objects or functions, see `Callback`.

    Attributes: has_failed: one of them raised an error; from then on none is called.
    Raises: ConfigError for an invalid callback.
    """

    def __init__(self, specs: Sequence[Any]) -> None:
        problems = list(callback_problems(specs))
        if problems:
            raise ConfigError(problems)
        self.has_failed = False
        self._methods: dict[str, list[tuple[str, Any]]] = {event: [] for event in EVENTS}
        for spec in specs:
            if isinstance(spec, str):
                found = _load(spec, 'callbacks')
            else:
                found = spec
            name = _name_of(found)
            if isinstance(found, type):
                item = self._guarded(f'{name} raised when it was made', found)
            else:
                item = found
            for event, method in _methods_of(item).items():
                self._methods[event].append((name, method))

    def names(self, event: str) -> str:
        """The callbacks that have this event, for messages; '' if none has."""
        return ', '.join(name for name, _ in self._methods[event])

    def only(self, event: str) -> Callbacks:
        """A copy that has only the methods of one event."""
        part = copy(self)
        part._methods = {each: methods if each == event else [] for each, methods in self._methods.items()}
        return part

    def call(self, event: str, *args: object) -> None:
        """Calls all that have the event. Raises: CallbackError, which names the first that raised an error."""
        for name, answer in self._answers(event, *args):
            if answer is not None:
                if answer is True:
                    what = 'call job.stop() to end the run'
                else:
                    what = 'change its argument in place'
                self._fail(f'{name} returned {shown(answer)} from {event}, whose answer nothing reads; {what}')

    def handler(self, event: str) -> Callable[..., None] | None:
        """As `Observer.handler`; None for an event that no callback has."""
        if not self._methods.get(event):
            return None
        if event == 'on_update':
            return self.on_update
        return partial(self.call, event)

    def on_update(self, job: RunView, metrics: dict[str, Any]) -> None:
        """Adds the metrics that callbacks return, or write into them."""
        found = dict(metrics)
        for name, answer in self._answers('on_update', job, found):
            if answer is not None and not isinstance(answer, dict):
                self._fail(f'{name} returned {shown(answer)} from on_update; return a dict of metrics, or None')
            found |= answer or {}
            for key in found:
                if not isinstance(key, str):
                    self._fail(f'{name} named a metric {shown(key)} in on_update; give it a text as name')
            try:
                found = scalar_metrics(found)
            except ValueError as error:
                self._fail(f'{name} gave a metric in on_update that the log cannot take: {error}')
        metrics.clear()
        for key, x in found.items():
            metrics[key] = x.detach()

    def _answers(self, event: str, *args: object) -> Iterator[tuple[str, Any]]:
        for name, method in self._methods[event]:
            if not self.has_failed:
                yield name, self._guarded(f'{name} raised in {event}', method, *args)

    def _guarded(self, words: str, function: Callable[..., Any], *args: object) -> Any:
        try:
            return function(*args)
        except STOP_REQUESTS:
            raise
        except BaseException as error:  # also SystemExit, which would end the run without a word
            self.has_failed = True
            said = f'{show_error(error)} ({place_of(error)})'
            raise CallbackError(f'callback {words} {said}; --debug shows the traceback') from error

    def _fail(self, sentence: str) -> None:
        self.has_failed = True
        raise CallbackError(f'callback {sentence}')


class GradientEvents(Observer):
    """Shows callbacks with on_gradient the gradients of a run. Raises: UserError if no step of the first updates shows any."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._has_seen = False
        self._n_before = 0
        self._job: RunView | None = None

    def showing(self, learn: Learn) -> Learn:
        """Wraps a learn function so that its gradients are shown to the callbacks."""

        def forward(batch: Batch) -> Metrics:
            with listening(self._show):
                return learn(batch)

        return forward

    def before_update(self, job: RunView, env_step: int) -> None:
        self._job = job
        self._n_before = job.train_iter

    def after_update(self, job: RunView) -> None:
        """Checks that gradients were shown if there were steps."""
        if not self._has_seen and job.train_iter > self._n_before:
            raise UserError(
                f'callback {self._callbacks.names("on_gradient")} has on_gradient, which none of the first '
                f'{job.train_iter - self._n_before} gradient steps called: the policy has steps of its own; call '
                'zoo.policy.hooks.gradient_ready(optimizers, loss) in them after each backward pass, or leave on_gradient out'
            )

    def _show(self, optimizers: Sequence[Any], loss: Tensor) -> None:
        self._has_seen = True
        with listening(None):  # a run that a callback makes has callbacks of its own
            self._callbacks.call('on_gradient', self._job, optimizers, loss)


class RunnerEvents(Observer):
    """Shows callbacks with on_runner_rollout each rollout, where it is collected, and gives the run what they log.

    Attributes: tell: calls copies of the callbacks in a runner; entries: what they logged since the last rollout.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self.tell: TellRunner = partial(callbacks.only('on_runner_rollout').call, 'on_runner_rollout')
        self.entries: list[Logged] = []

    def watch(self, collector: Collector, envs: Sequence[AnyVectorEnv]) -> None:
        """Calls the callbacks themselves, in a run without runners."""
        view = RunnerView(0, envs)
        tell = partial(self._callbacks.call, 'on_runner_rollout')
        collector.watchers.append(lambda columns: self.entries.extend(view.see(tell, collector, columns)))

    def after_rollout(self, job: RunView) -> None:
        job.own_numbers.extend(self.entries)
        self.entries.clear()


def callback_problems(specs: object) -> Iterator[str]:
    """Yields a sentence for each spec that cannot be a callback or has methods that nothing would call; makes no callback."""
    for i, spec in enumerate(specs if isinstance(specs, list | tuple) else [specs]):
        try:
            _check(_load(spec, f'callbacks[{i}]') if isinstance(spec, str) else spec)
        except ConfigError as error:
            yield from error.problems


def _load(name: str, path: str) -> Any:
    """The class or function that 'module:Class' or 'path/file.py:Class' names. Raises: ConfigError."""
    if not names_code(name):
        raise ConfigError(
            f"{path} is {shown(name)}, which is no 'module:Class' and no 'path/file.py:Class'; name a class by one of them."
        )
    found = load_code(name, path)
    if not isinstance(found, type) and not inspect.isfunction(found):
        raise ConfigError(
            f'{path} is {shown_name(name)!r} but that is {shown(found)}; name a class, or a function of an event.'
        )
    return found


def _check(item: object) -> None:
    """Raises: ConfigError unless it is a class, an object or a function whose events are known and take their arguments."""
    name = _name_of(item)
    is_class = isinstance(item, type)
    if inspect.isfunction(item) and item.__name__ not in EVENTS:
        raise ConfigError(
            f'callback {name} is a function, which is called at the event of its name: {_unknown(item.__name__)}'
        )
    if not inspect.isfunction(item):
        for event in dir(item):
            if event.startswith('on_') and event not in EVENTS:
                raise ConfigError(f'callback {name} has a method that nothing would call: {_unknown(event)}')
    methods = _methods_of(item)
    if not methods:
        raise ConfigError(f'callback {name} has nothing to call; give it one of the methods {", ".join(EVENTS)}.')
    for event, method in methods.items():
        is_unbound = is_class and not isinstance(inspect.getattr_static(item, event), staticmethod | classmethod)
        args = (*(['self'] if is_unbound else []), *EVENTS[event])
        if not callable(method) or not _takes(method, args):
            raise ConfigError(f'callback {name} must have {event} as a method that takes ({", ".join(EVENTS[event])}).')
    if is_class and not _takes(item, ()):
        raise ConfigError(
            f'callback {name} has a constructor that needs arguments; give defaults to all, or pass an object in Python: '
            'serial_pipeline(..., callbacks=[...]).'
        )


def _methods_of(item: object) -> dict[str, Any]:
    """The methods for events that an object or class defines itself, by event; for a function, the function."""
    if inspect.isfunction(item):
        return {item.__name__: item}
    if isinstance(item, type):
        owner = item
    else:
        owner = type(item)
    inherited = [event for event in EVENTS if getattr(owner, event, None) is vars(Callback)[event]]
    return {event: getattr(item, event) for event in EVENTS if hasattr(item, event) and event not in inherited}


def _takes(function: Any, args: Sequence[str]) -> bool:
    try:
        inspect.signature(function).bind(*args)
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)  # it has no signature, as code in C may
    return True


def _unknown(event: str) -> str:
    guess = did_you_mean(event, EVENTS, end=' ')
    return f'there is no event {event!r}; {guess}the events are {", ".join(EVENTS)}.'


def _name_of(item: object) -> str:
    return function_name(item if isinstance(item, type) or inspect.isfunction(item) else type(item))
