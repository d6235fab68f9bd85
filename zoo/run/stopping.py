"""The stop rules of one run: made from the config, asked in turn, saved with it."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoo.config.code import shown_name
from zoo.config.messages import shown
from zoo.config.parts import part_object, section_of
from zoo.config.section import ConfigError
from zoo.core.errors import RunError, place_of, show_error
from zoo.core.registry import STOP_REGISTRY
from zoo.run.stop_rules import MetricRule, StopRule

if TYPE_CHECKING:
    from zoo.run.job import SerialJob


class StopRuleError(RunError):
    """A stop rule raised an error, which is the cause of this one."""


class FunctionRule(StopRule):
    """A function of the user's own: given the job, asked after each round; given metrics, asked at each line of the log.

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
        self._function, self._name, self._taken = function, name, taken
        self._answer: str | None = None

    def see(self, job: SerialJob, metrics: Mapping[str, float]) -> None:
        if 'metrics' in self._taken and self._answer is None:
            self._answer = self._ask(job, metrics)

    def reason(self, job: SerialJob) -> str | None:
        return self._answer if 'metrics' in self._taken else self._ask(job, {})

    def state_dict(self) -> dict[str, Any]:
        return {'answer': self._answer} if 'metrics' in self._taken else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        answer = state.get('answer')  # older states have none
        if not isinstance(answer, str | None):
            raise TypeError(f'the answer of {self._name} is {shown(answer)}; it should be a text')
        self._answer = answer

    def _ask(self, job: SerialJob, metrics: Mapping[str, float]) -> str | None:
        given = {'job': job, 'metrics': metrics}
        answer = self._function(*(given[name] for name in self._taken))
        if answer is not None and not isinstance(answer, str) and not hasattr(answer, '__bool__'):
            raise TypeError(f'it returned {shown(answer)}; return True or False, or a text that says why')
        return (answer if isinstance(answer, str) else f'{self._name} says so') if answer else None


class StopRules:
    """The stop rules of one run. Args: specs: `stop` of the config. Raises: ConfigError for one that cannot be one."""

    def __init__(self, specs: Sequence[Any]) -> None:
        self._rules = [_make(spec) for spec in specs]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def see(self, job: SerialJob, metrics: Mapping[str, float]) -> None:
        """Gives all rules a line of the log. Raises: StopRuleError."""
        for name, rule in self._rules:
            _guarded(name, lambda rule=rule: rule.see(job, metrics))  # type: ignore[misc]

    def reason(self, job: SerialJob) -> str | None:
        """Why the run is to end now, of the first rule that says so; None: it continues. Raises: StopRuleError."""
        for name, rule in self._rules:
            answer = _guarded(name, lambda rule=rule: rule.reason(job))  # type: ignore[misc]
            if answer:
                return str(answer)
        return None

    def state_dict(self) -> dict[str, Any]:
        """The state of each rule, in order; empty without rules."""
        return {
            str(i): {'rule': name, **_metric_of(rule), **rule.state_dict()}
            for i, (name, rule) in enumerate(self._rules)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes the state of an earlier part of the run: each rule that of the first one of its name and metric that is left.

        Older states have no metric: theirs is taken where there is one rule of that name, then and now.
        Raises: LookupError, TypeError, ValueError for a state that no rule of that name wrote.
        """
        left = [dict(state[key]) for key in sorted(state, key=int)]
        n_then, n_now = Counter(item.get('rule') for item in left), Counter(name for name, _ in self._rules)
        for name, rule in self._rules:
            own = {'rule': name, **_metric_of(rule)}
            is_only = n_then[name] == n_now[name] == 1
            for item in left:
                its = {key: item[key] for key in own if key in item}
                if its == own or (is_only and its == {'rule': name}):
                    left.remove(item)
                    rule.load_state_dict({key: x for key, x in item.items() if key not in own})
                    break


def _metric_of(rule: Any) -> dict[str, str]:
    """What tells rules of one name apart in a state."""
    return {'metric': rule.metric} if isinstance(rule, MetricRule) else {}


def _make(spec: Any) -> tuple[str, Any]:
    """The name and the rule of a spec."""
    section = section_of(STOP_REGISTRY, spec, 'stop')
    name = section.type
    made = part_object(STOP_REGISTRY, section, 'stop')
    if callable(made) and not hasattr(made, 'reason'):
        return name, FunctionRule(made, shown_name(name))
    if not callable(getattr(made, 'reason', None)):
        raise ConfigError(
            f'stop names {name!r}, which is {shown(made)}; name a function of job or metrics that says whether to end the '
            'run, or a class derived from zoo.StopRule.'
        )
    return name, made


def _guarded(name: str, ask: Callable[[], Any]) -> Any:
    """Calls a rule. Raises: StopRuleError that names it."""
    try:
        return ask()
    except Exception as error:
        raise StopRuleError(
            f'stop rule {shown_name(name)} raised {show_error(error)} ({place_of(error)}); --debug shows the traceback'
        ) from error
