"""Rules that end a run before max_env_step: by time, by count, on a plateau, by a bound on a metric, or the user's own."""

from __future__ import annotations

import inspect
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator

from zoo.config.components import component_object, section_of
from zoo.config.section import ConfigError, Section
from zoo.config.user_code import shown_name
from zoo.core.errors import RunError, did_you_mean, place_of, show_error, shown
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import STOP_REGISTRY
from zoo.run.observers.base import Observer, RunView

logger = logging.getLogger(__name__)


class StopRule:
    """Decides when a run ends. Derive a class whose options are keyword-only parameters of its constructor.

    A config names it, `stop: ['my_module:MyRule']` or `stop: [{type: 'my_module:MyRule', n: 3}]`. `see` gets every line of the
    log, `reason` is called after each round of collecting and learning, and when a run continues.
    """

    def see(self, job: RunView, metrics: Mapping[str, float]) -> None:
        """Gets one line of the log: training metrics, or those of an evaluation, which have 'eval/return_mean'."""

    def reason(self, job: RunView) -> str | None:
        """The reason to end the run now, as part of a sentence; None: it continues."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The state that a resume needs: numbers, texts and None by name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state from `state_dict`."""


class WallTimeConfig(Section):
    s: float = Field(gt=0, description='seconds of the run, those before a resume included')


class OptionRule(StopRule):
    """A rule with a section of options.

    Attributes: metric: the metric of the log that the rule reads, '' for none; a rule loads no state of another metric.
    """

    metric: str = ''

    def __init__(self, cfg: Section) -> None:
        self._cfg: Any = cfg
        self.metric = cfg.get('metric', '')


@STOP_REGISTRY.register('wall_time')
class WallTime(OptionRule):
    """Ends the run after s seconds, when the current round and its evaluation are finished."""

    config = WallTimeConfig

    def reason(self, job: RunView) -> str | None:
        if self._cfg.s >= 10:
            form = '{:,.0f} of {:,.0f} seconds'
        else:
            form = '{:,.2f} of {:,.2f} seconds'
        if job.wall_s >= self._cfg.s:
            return f'{form.format(job.wall_s, self._cfg.s)} have passed'
        return None


class IterationsConfig(Section):
    n: int = Field(ge=1, description='rounds of collecting and learning, those before a resume included')


@STOP_REGISTRY.register('iterations')
class Iterations(OptionRule):
    """Ends the run after n rounds of collecting and learning."""

    config = IterationsConfig

    def reason(self, job: RunView) -> str | None:
        if job.n_iteration >= self._cfg.n:
            return f'{job.n_iteration:,} rounds are done'
        return None


class TrainIterConfig(Section):
    n: int = Field(ge=1, description='gradient steps, those before a resume included; the round is finished')


@STOP_REGISTRY.register('train_iter')
class TrainIter(OptionRule):
    """Ends the run with the round that takes the n-th optimiser step."""

    config = TrainIterConfig

    def reason(self, job: RunView) -> str | None:
        if job.train_iter >= self._cfg.n:
            return f'{job.train_iter:,} gradient steps are done'
        return None


class EnvStepConfig(Section):
    n: int = Field(ge=1, description='env steps, those before a resume included; the round is finished')


@STOP_REGISTRY.register('env_step')
class EnvStep(OptionRule):
    """Ends the run with the round that reaches env step n, before max_env_step, which schedules may be as long as."""

    config = EnvStepConfig

    def reason(self, job: RunView) -> str | None:
        if job.env_step >= self._cfg.n:
            return f'{job.env_step:,} env steps are done'
        return None


class PatienceConfig(Section):
    n: int = Field(ge=1, description='evaluations in a row without a new best')
    min_eval: int = Field(0, ge=0, description='evaluations before which the run is never ended')
    min_delta: float = Field(0.0, ge=0, description='a new best is more than this above the best one before')
    metric: str = Field('eval/return_mean', description='metric of evaluations that is to rise')


@STOP_REGISTRY.register('patience')
class Patience(OptionRule):
    """Ends the run at the n-th evaluation in a row that brings no new best."""

    config = PatienceConfig

    def __init__(self, cfg: PatienceConfig) -> None:
        super().__init__(cfg)
        self._best = -math.inf
        self._n_eval = 0
        self._n_since = 0

    def see(self, job: RunView, metrics: Mapping[str, float]) -> None:
        value = metrics.get(self.metric)
        if value is None:
            return
        is_best = value > self._best + self._cfg.min_delta
        self._n_eval += 1
        if is_best:
            self._n_since = 0
        else:
            self._n_since += 1
        if is_best:
            self._best = value

    def reason(self, job: RunView) -> str | None:
        if self._n_since < self._cfg.n or self._n_eval < self._cfg.min_eval:
            return None
        return f'{self._n_since} evaluations in a row had no {self.metric} above {self._best:.6g}'

    def state_dict(self) -> dict[str, Any]:
        best = None
        if math.isfinite(self._best):
            best = self._best
        return {'best': best, 'n_eval': self._n_eval, 'n_since': self._n_since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state['best'] is None:
            self._best = -math.inf
        else:
            self._best = float(state['best'])
        self._n_eval = int(state['n_eval'])
        self._n_since = int(state['n_since'])


class BoundConfig(Section):
    metric: str = Field(description='name of a metric as the log has it, e.g. learn/approx_kl')
    above: float | None = Field(None, description='the run ends when the metric is above this')
    below: float | None = Field(None, description='the run ends when the metric is below this')

    @model_validator(mode='after')
    def _has_a_bound(self) -> BoundConfig:
        if self.above is None and self.below is None:
            raise ValueError(
                f'the rule on {self.metric} has neither above nor below; give one of them, e.g. above: 0.1.'
            )
        return self


@STOP_REGISTRY.register('bound')
class Bound(OptionRule):
    """Ends the run when a metric of the log is above or below a bound; NaN is neither."""

    config = BoundConfig

    def __init__(self, cfg: BoundConfig) -> None:
        super().__init__(cfg)
        self._value: float | None = None
        self._others: set[str] = set()  # metrics that were seen while this one was not

    def see(self, job: RunView, metrics: Mapping[str, float]) -> None:
        if self.metric in metrics:
            self._value = metrics[self.metric]
        elif self._value is None:  # warns once after lines of both kinds: the metric may be misspelt
            had = self._others
            both = {'eval/return_mean', 'learn/train_iter'}
            is_first = not both <= had
            had.update(metrics)
            if is_first and both <= had:
                guess = did_you_mean(self.metric, had, f'it had {", ".join(sorted(had))}.', str)
                logger.warning('stop: no line of the log has had the metric %r so far: %s', self.metric, guess)

    def reason(self, job: RunView) -> str | None:
        name = self.metric
        value = self._value
        above = self._cfg.above
        below = self._cfg.below
        if value is not None and above is not None and value > above:
            return f'{name} is {value:.6g}, above {above:g}'
        if value is not None and below is not None and value < below:
            return f'{name} is {value:.6g}, below {below:g}'
        return None

    def state_dict(self) -> dict[str, Any]:
        return {'value': self._value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state['value'] is None:
            self._value = None
        else:
            self._value = float(state['value'])


class StopRuleError(RunError):
    """A stop rule raised an error, which is the cause of this one."""


class FunctionRule(StopRule):
    """A function of the user's own, called at each line of the log if it takes `metrics`, otherwise after each round.

    Args: function: takes `job`, `metrics` or both, and returns whether to end the run, or a text that says why.
    Raises: ConfigError if it takes anything else.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        parameters = inspect.signature(function).parameters.values()
        taken = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        if not taken or not set(taken) <= {'job', 'metrics'}:
            raise ConfigError(
                f'stop names the function {name!r}, which takes ({", ".join(taken)}) but is called with job, metrics or '
                'both; write `def my_rule(metrics):` or `def my_rule(job):`.'
            )
        self._function = function
        self._name = name
        self._taken = taken
        self._answer: str | None = None

    def see(self, job: RunView, metrics: Mapping[str, float]) -> None:
        if 'metrics' in self._taken and self._answer is None:
            self._answer = self._ask(job, metrics)

    def reason(self, job: RunView) -> str | None:
        if 'metrics' in self._taken:
            return self._answer
        return self._ask(job, {})

    def state_dict(self) -> dict[str, Any]:
        if 'metrics' in self._taken:
            return {'answer': self._answer}
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        answer = state.get('answer')  # older states have none
        if not isinstance(answer, str | None):
            raise TypeError(f'the answer of {self._name} is {shown(answer)}; it should be a text')
        self._answer = answer

    def _ask(self, job: RunView, metrics: Mapping[str, float]) -> str | None:
        given = {'job': job, 'metrics': metrics}
        answer = self._function(*(given[name] for name in self._taken))
        if answer is not None and not isinstance(answer, str) and not hasattr(answer, '__bool__'):
            raise TypeError(f'it returned {shown(answer)}; return True or False, or a text that says why')
        if not answer:
            return None
        if isinstance(answer, str):
            return answer
        return f'{self._name} says so'


class StopRules(Observer):
    """Observer that calls the stop rules of one run after each round. Raises: ConfigError for an invalid rule.

    Args: specs: `stop` of the config; ranks: those that train together; all of them stop if rank 0 does.
    """

    def __init__(self, specs: Sequence[Any], ranks: Ranks = ALONE) -> None:
        self._rules = [_make(spec) for spec in specs]
        self._ranks = ranks

    def after_round(self, job: RunView) -> None:
        why = self._ranks.share(self.reason(job))
        if why:
            job.stop(why)

    def see(self, job: RunView, metrics: Mapping[str, float]) -> None:
        """Gives all rules a line of the log. Raises: StopRuleError."""
        for name, rule in self._rules:
            _guarded(name, rule.see, job, metrics)

    def reason(self, job: RunView) -> str | None:
        """The reason of the first rule that ends the run now; None: it continues. Raises: StopRuleError."""
        for name, rule in self._rules:
            answer = _guarded(name, rule.reason, job)
            if answer:
                return str(answer)
        return None

    def state_dict(self) -> dict[str, Any]:
        """The state of each rule, in order; empty without rules."""
        return {str(i): {**_own(name, rule), **rule.state_dict()} for i, (name, rule) in enumerate(self._rules)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of an earlier part of the run: each rule takes the first unused item of its name and metric.

        Older states have no metric: such an item is taken if there is only one rule of that name, then and now.
        Raises: LookupError, TypeError, ValueError for a state that no rule of that name wrote.
        """
        left = [dict(state[key]) for key in sorted(state, key=int)]
        n_then = Counter(item.get('rule') for item in left)
        n_now = Counter(name for name, _ in self._rules)
        for name, rule in self._rules:
            own = _own(name, rule)
            is_only = n_then[name] == n_now[name] == 1
            for item in left:
                its = {key: item[key] for key in own if key in item}
                if its == own or (is_only and its == {'rule': name}):
                    left.remove(item)
                    rule.load_state_dict({key: x for key, x in item.items() if key not in own})
                    break


def _own(name: str, rule: object) -> dict[str, str]:
    """The key of a rule in a state: its name, and its metric if it has one."""
    if isinstance(rule, OptionRule):
        metric = rule.metric
    else:
        metric = ''
    if metric:
        return {'rule': name, 'metric': metric}
    return {'rule': name}


def _make(spec: object) -> tuple[str, Any]:
    section = section_of(STOP_REGISTRY, spec, 'stop')
    name = section.type
    made = component_object(STOP_REGISTRY, section, 'stop')
    if callable(made) and not hasattr(made, 'reason'):
        return name, FunctionRule(made, shown_name(name))
    if not callable(getattr(made, 'reason', None)):
        raise ConfigError(
            f'stop names {name!r}, which is {shown(made)}; name a function of job or metrics that says whether to end the '
            'run, or a class derived from zoo.StopRule.'
        )
    return name, made


def _guarded(name: str, ask: Callable[..., Any], *args: object) -> Any:
    """Calls a rule. Raises: StopRuleError that names it."""
    try:
        return ask(*args)
    except Exception as error:
        raise StopRuleError(
            f'stop rule {shown_name(name)} raised {show_error(error)} ({place_of(error)}); --debug shows the traceback'
        ) from error
