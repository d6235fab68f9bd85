"""Spaces of a sweep, written as texts such as 'log(1e-4,1e-2)', and the default spaces of each policy."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from zoo.config.components import name_of
from zoo.config.names import data_file
from zoo.config.section import ConfigError
from zoo.config.source import split_override
from zoo.core.errors import closest, shown
from zoo.core.registry import POLICY_REGISTRY
from zoo.policy.checks import NO_CLIP_RATIO, NO_LAMBDA
from zoo.run.base_config import JobConfig

Kind = Literal['log', 'uniform', 'int', 'choice']
KINDS: tuple[Kind, ...] = ('log', 'uniform', 'int', 'choice')
FORMS = 'log(LOW,HIGH), uniform(LOW,HIGH), int(LOW,HIGH), choice(A,B,...) or {A,B,...}'
DIGITS = 4  # significant digits of a sampled float: more have no effect and make tables hard to read
MAX_GRID = 1000  # most values of one key
CLIP = 'policy.learn.clip_ratio'
LAMBDA = 'policy.collect.gae_lambda'
DEFAULT_SPACES: dict[str, dict[str, str]] = data_file('zoo.tools.sweep', 'spaces.yaml')['policies']
"""By policy.type. A user's policy has the spaces of the nearest bundled class in its bases, else those of ppo."""
_CALL = re.compile(r'([A-Za-z_]\w*)\s*\((.*)\)')
_EXAMPLES = {'log': 'log(1e-4,1e-2)', 'uniform': 'uniform(.1,.4)', 'int': 'int(1,10)'}
_OTHER_NAMES = {'loguniform': 'log', 'log_uniform': 'log', 'randint': 'int', 'range': 'int', 'float': 'uniform'}


class Space(NamedTuple):
    """The values that one key may take.

    Numbers lie in [low, high], both included; `n_point`: number of grid points (log and uniform). Choices are texts, as in
    an override.
    """

    kind: Kind
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()
    n_point: int | None = None

    def __str__(self) -> str:
        if self.kind == 'choice':
            return f'choice({",".join(self.choices)})'
        numbers = [_short(self.low), _short(self.high)]
        if self.n_point:
            numbers.append(str(self.n_point))
        return f'{self.kind}({",".join(numbers)})'

    def text(self, value: float | str) -> str:
        """Formats a value of the space for an override; a float gets 4 significant digits if it then stays in the space."""
        match self.kind:
            case 'choice':
                return str(value)
            case 'int':
                return str(int(value))
        rounded = float(f'{value:.{DIGITS}g}')
        if self.low <= rounded <= self.high:
            return repr(rounded)
        return repr(float(value))

    def probes(self) -> list[str]:
        """Returns values to check before a sweep: all choices; or both ends, and for floats a non-integer between them."""
        if self.kind == 'choice':
            return list(self.choices)
        values = [self.low, self.high]
        if self.kind != 'int':
            values.append(self._between(0.618))
        return list(dict.fromkeys(map(self.text, values)))

    def grid(self) -> list[str]:
        """Returns all values of a grid; [] if a number of points is needed and not given."""
        match self.kind:
            case 'choice':
                return list(self.choices)
            case 'int':
                return [str(i) for i in range(int(self.low), int(self.high) + 1)]
        n_point = self.n_point or 0
        return list(dict.fromkeys(self.text(self._between(i / max(n_point - 1, 1))) for i in range(n_point)))

    def distribution(self, distributions: Any) -> Any:
        """Returns the space as a distribution of optuna. Args: distributions: the module `optuna.distributions`."""
        match self.kind:
            case 'choice':
                return distributions.CategoricalDistribution(self.choices)
            case 'int':
                return distributions.IntDistribution(int(self.low), int(self.high))
        return distributions.FloatDistribution(self.low, self.high, log=self.kind == 'log')

    def _between(self, share: float) -> float:
        if self.kind == 'log':
            return math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        return self.low + share * (self.high - self.low)


def split_spaces(texts: Sequence[str]) -> tuple[dict[str, Space], list[str]]:
    """Splits texts into spaces by key, and overrides. Raises: ConfigError with a sentence for every problem."""
    spaces: dict[str, Space] = {}
    fixed: list[str] = []
    problems: list[str] = []
    seen: set[str] = set()
    for text in texts:
        try:
            key, raw = split_override(text)
            space = parse_space(key, raw)
            if space is None:
                fixed.append(text)
            else:
                spaces[key] = space
            if key in seen:
                raise ConfigError(
                    f'{key} is given twice; give it once (a shell makes several words of {{A,B}}: put it in quotes)'
                )
            seen.add(key)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return spaces, fixed


def parse_space(key: str, raw: str) -> Space | None:
    """Parses the space that a text describes; None for a plain value. Raises: ConfigError if it only looks like a space."""
    if raw.startswith('{') and raw.endswith('}') and not any(':' in part for part in parts_of_text(raw[1:-1])):
        return _choice(key, raw, raw[1:-1])
    call = _CALL.fullmatch(raw)
    if call:
        kind, inner = call.groups()
        if kind == 'choice':
            return _choice(key, raw, inner)
        if kind in KINDS:
            return _numbers(key, raw, kind, inner)
        raise _unknown_space(key, raw, kind)
    if re.match(r'(log|uniform|int|choice)\s*\(', raw) or raw.startswith('{') != raw.endswith('}'):
        raise ConfigError(f'{key}={raw} is cut off: its brackets do not match; the spaces are {FORMS}')
    if len(parts_of_text(raw)) > 1:  # as zoo train reads it
        return _choice(key, raw, raw)
    return None


def _unknown_space(key: str, raw: str, kind: str) -> ConfigError:
    guess = ''
    guesses = [_OTHER_NAMES[kind]] if kind in _OTHER_NAMES else closest(kind, KINDS)
    if guesses:
        guess = f'did you mean {guesses[0]}? '
    return ConfigError(f'{key}={shown(raw)[1:-1]}: there is no space {kind!r}; {guess}the spaces are {FORMS}')


def _choice(key: str, raw: str, inner: str) -> Space:
    choices = tuple(part.strip() for part in parts_of_text(inner))
    if not all(choices) or len(set(choices)) < 2:
        raise ConfigError(f'{key}={raw} has no two values to choose from; write e.g. choice(64,128)')
    return Space('choice', choices=tuple(dict.fromkeys(choices)))


def _numbers(key: str, raw: str, kind: Kind, inner: str) -> Space:
    texts = [part.strip() for part in parts_of_text(inner)]
    numbers = [_number(text) for text in texts]
    max_number = 3
    third = ', or three where the last is the number of points of a grid'
    if kind == 'int':
        max_number = 2
        third = ''
    if not 2 <= len(numbers) <= max_number or None in numbers:
        raise ConfigError(f'{key}={raw} must have two numbers{third}; e.g. {_EXAMPLES[kind]}')
    low, high, *points = (float(number) for number in numbers if number is not None)
    if low >= high:
        remedy = f'for one value write {key}={texts[0]}'
        if low > high:
            remedy = f'write {kind}({texts[1]},{texts[0]})'
        raise ConfigError(
            f'{key}={raw} has the low end {texts[0]}, which is not below the high end {texts[1]}; {remedy}'
        )
    if kind == 'log' and low <= 0:
        raise ConfigError(
            f'{key}={raw} has the low end {texts[0]}, which has no logarithm; give one above 0, or write uniform({inner})'
        )
    if kind == 'int' and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f'{key}={raw} must have two integers; e.g. int(1,10), or write uniform({inner})')
    if not points:
        return Space(kind, low, high)
    if not (points[0].is_integer() and 2 <= points[0] <= MAX_GRID):
        raise ConfigError(f'{key}={raw} has {texts[2]} points; give an integer from 2 to {MAX_GRID}')
    return Space(kind, low, high, n_point=int(points[0]))


def _short(number: float) -> str:
    if float(f'{number:g}') == number:
        return f'{number:g}'
    return repr(number)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    if math.isfinite(number):
        return number
    return None


def parts_of_text(text: str) -> list[str]:
    """Splits a text at the commas outside brackets and quotes."""
    parts = ['']
    depth = 0
    quote = ''
    for letter in text:
        if quote:
            if letter == quote:
                quote = ''
        elif letter in '\'"':
            quote = letter
        if not quote:
            depth += (letter in '([{') - (letter in ')]}')
        if letter == ',' and depth == 0 and not quote:
            parts.append('')
        else:
            parts[-1] += letter
    return parts


def default_spaces(cfg: JobConfig) -> dict[str, str]:
    """Returns the spaces for the policy of a config, as texts by key, without keys that have no effect in this config."""
    name_of_class = {POLICY_REGISTRY.get(name): name for name in DEFAULT_SPACES}
    bases = POLICY_REGISTRY.get(cfg.policy.type).__mro__
    bundled = next((name_of_class[base] for base in bases if base in name_of_class), 'ppo')
    surrogate = name_of(cfg.policy.learn.get('surrogate', ''))
    estimator = name_of(cfg.policy.collect.get('estimator', ''))
    is_idle = {
        CLIP: surrogate in NO_CLIP_RATIO or cfg.policy.learn.get('policy_loss') == 'kl',
        LAMBDA: estimator in NO_LAMBDA,
    }
    return {key: text for key, text in DEFAULT_SPACES[bundled].items() if not is_idle.get(key)}
