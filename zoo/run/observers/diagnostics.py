"""Diagnostics: warnings about a run from the lines of its log, each once in a run, with the cause and what to do."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from zoo.core.spaces import Discrete, MultiBinary, MultiDiscrete, Space
from zoo.policy.base import Policy
from zoo.run.base_config import JobConfig

logger = logging.getLogger(__name__)
VALUE_RATIO = 100.0  # of the value term of the loss to the policy term, on a trunk that both train
VALUE_FLOOR = 1.0  # a smaller value term moves the trunk little, also if the policy term is 0
CLIP_RATIO = 10.0  # of the returns to the range of a value loss that clips
SLOW_SHARE = 0.05  # of the updates of a run, in which a clipped value may move from 0 to the returns
RETURN_LIMIT = 1000.0  # |return| that a critic without normalisation is slow to reach
DISCOUNTED_LIMIT = 500.0  # the same of the discounted return, which is what a critic learns
ENTROPY_SHARE = 0.01  # of the entropy of uniform actions
EARLY = 0.25  # share of the run
KL_LIMIT = 1.0  # nats, the mean over an update
OUTSIDE_LIMIT = 0.1  # share of returns outside of a histogram of them
EPISODE_STEPS = 10_000  # env steps of each env
# lines in a row
SHORT = 5
LONG = 20
LEARNED_REWARD = 'reward_mean that is learned from'
"""Mean reward of a step as the policy gets it, where the env gives it another one than it logs (e.g. its sign)."""


class RunFacts(NamedTuple):
    """Facts about a run that the rules use in addition to its metrics.

    shares_trunk: the value loss moves a trunk of the policy. value_range: greatest error, in units of returns, that the
    value loss follows; None: any. scales_returns: an option brings returns to size 1. max_entropy: of uniform actions,
    nats; None for actions that are real numbers. horizon: 1 / (1 - gamma), env steps. n_move: updates of the run, each of which
    lets values move by value_range; None: values beyond it are not followed at all. first_env_step: env steps of the checkpoint
    that the run continues, which another library may have made.
    """

    max_env_step: int
    n_env: int
    shares_trunk: bool
    value_range: float | None
    scales_returns: bool
    max_entropy: float | None
    horizon: float = math.inf
    n_move: float | None = None
    first_env_step: int = 0


class Diagnostics:
    """Checks each line of training metrics and logs what its rules find, each rule once.

    Args: facts: see `RunFacts`; learner: name of the learner whose metrics it checks, '' in a run with one policy.
    """

    def __init__(self, facts: RunFacts, learner: str = '') -> None:
        self._facts = facts
        self._learner = learner
        self._counts: dict[str, int] = {}  # by rule, the number of lines in a row with its sign
        self._said: set[str] = set()

    def look(self, env_step: int, line: Mapping[str, float]) -> list[str]:
        """Checks a line, metrics by name; logs new findings as warnings, and returns their texts."""
        if self._learner:
            line = _line_of(self._learner, line)
        texts = dict(signs(self._facts, line, env_step))
        self._counts = {name: self._counts.get(name, 0) + 1 for name in texts}
        new = [name for name, n in RULES.items() if self._counts.get(name, 0) >= n and name not in self._said]
        self._said.update(new)
        for name in new:
            title = ''
            if self._learner:
                title = f'policy {self._learner}: '
            logger.warning('%s%s', title, texts[name])
        return [texts[name] for name in new]


def _line_of(learner: str, line: Mapping[str, float]) -> dict[str, float]:
    """A line with the metrics of one of several learners under the names that those of a single one have."""
    prefix = f'learn/{learner}/'
    own = {f'learn/{name.removeprefix(prefix)}': value for name, value in line.items() if name.startswith(prefix)}
    return {**line, **own}


def facts_of(cfg: JobConfig, policy: Policy, first_env_step: int = 0) -> RunFacts:
    """The facts of a run. Args: cfg: its resolved config; first_env_step: see `RunFacts`."""
    learn = cfg.policy.learn
    scales = any(learn.get(name, False) for name in ('value_norm', 'reward_norm'))
    objective = getattr(policy, 'objective', None)
    model = getattr(policy, '_model', None)
    value_loss = getattr(objective, 'value_loss', None)
    n_sample = cfg.policy.collect.get('n_sample')
    n_move = None
    if getattr(value_loss, 'name', '') == 'clip' and n_sample:
        n_move = cfg.max_env_step / n_sample
    return RunFacts(
        cfg.max_env_step,
        cfg.env.collector_env_num,
        bool(getattr(model, 'joint', getattr(model, 'one_trunk', False))),
        None if objective is None else _value_range(value_loss, learn),
        scales or getattr(objective, 'n_value', 1) > 1,  # another rule checks the returns outside of the range
        max_entropy(policy.action_space),
        1 / max(1 - cfg.policy.collect.get('discount_factor', 1.0), 1e-9),
        n_move,
        first_env_step,
    )


def critic_scale(facts: RunFacts, line: Mapping[str, float]) -> float:
    """Size of the discounted returns that the critic learns, about; NaN if no episode has ended.

    A return counts by the share of its episode that lies within the horizon. If the env changes rewards for training, e.g. to
    their sign, these count, not the rewards of the log.
    """
    length = line.get('collect/episode_len_mean', 1.0)
    size = abs(_number(line, 'collect/return_mean'))
    if LEARNED_REWARD in line:
        size = abs(line[LEARNED_REWARD]) * length
    return size * min(facts.horizon / length, 1.0)


def max_entropy(space: Space) -> float | None:
    """Entropy of uniform actions, nats; None if they are real numbers."""
    if isinstance(space, Discrete):
        return math.log(space.n)
    if isinstance(space, MultiDiscrete):
        return sum(map(math.log, space.nvec))
    if isinstance(space, MultiBinary):
        return math.prod(space.shape) * math.log(2)
    return None


def _value_range(value_loss: object, learn: Any) -> float | None:
    """Greatest error that a value loss follows, in the unit of the critic's output."""
    limit: Any = dict(getattr(value_loss, 'options', ())).get('range')
    name = getattr(value_loss, 'name', '')
    if name == 'error_clip':
        return math.sqrt(limit)
    if name != 'clip' or limit is not None:
        if name == 'clip':
            return limit
        return None
    clip_ratio = learn.get('clip_ratio')
    if isinstance(clip_ratio, float | int):
        return clip_ratio
    return getattr(clip_ratio, 'start', None)


def _number(line: Mapping[str, float], name: str) -> float:
    """A metric of the line; if the line lacks it, NaN, with which no comparison is true."""
    return line.get(name, math.nan)


RULES = {
    'kl_not_finite': 1,
    'kl_large': SHORT,
    'value_dominates': SHORT,
    'returns_beyond_clip': 1,
    'entropy_near_zero': 1,
    'returns_large': 1,
    'critic_useless': LONG,
    'returns_outside': SHORT,
    'no_episode': 1,
}
"""Number of lines in a row with the sign of a rule after which the rule warns; in the order of the warnings."""


def signs(facts: RunFacts, line: Mapping[str, float], env_step: int) -> Iterator[tuple[str, str]]:
    """Yields (name of the rule, warning) for each sign of trouble in a line."""
    yield from _policy_signs(facts, line, env_step)
    yield from _critic_signs(facts, line, env_step)
    n_own = env_step - facts.first_env_step
    if n_own >= EPISODE_STEPS * facts.n_env and line.get('collect/episode') == 0:
        yield (
            'no_episode',
            f'no training episode has ended in {n_own} env steps of {facts.n_env} envs, so there are no returns to log. If '
            'episodes never end, set env.max_episode_steps',
        )


def _policy_signs(facts: RunFacts, line: Mapping[str, float], env_step: int) -> Iterator[tuple[str, str]]:
    name = next((name for name in ('learn/kl', 'learn/approx_kl') if not math.isfinite(line.get(name, 0.0))), None)
    if name is not None:
        yield (
            'kl_not_finite',
            f'{name} is {line[name]} at env step {env_step}: the new policy has probability 0, or NaN, for actions that the '
            'old one took. Lower policy.learn.learning_rate, or stop updates early with policy.learn.target_kl=0.02',
        )
    kl = _number(line, 'learn/kl')
    if kl >= KL_LIMIT:
        yield (
            'kl_large',
            f'learn/kl is {kl:.3g} at env step {env_step} (below 0.05 is usual): an update changes the policy so much that '
            'the samples, drawn by the one before, say little about it. Lower policy.learn.learning_rate, take fewer passes '
            'over a rollout, or set policy.learn.target_kl=0.02',
        )
    entropy = _number(line, 'learn/entropy')
    most = facts.max_entropy
    length = facts.max_env_step
    if most and entropy <= ENTROPY_SHARE * most and env_step <= EARLY * length:
        yield (
            'entropy_near_zero',
            f'the entropy of the policy is {entropy:.2g} of at most {most:.3g} after {env_step} of {length} env steps: it '
            'tries out nothing more. Raise policy.learn.entropy_weight, or lower policy.learn.learning_rate',
        )


def _critic_signs(facts: RunFacts, line: Mapping[str, float], env_step: int) -> Iterator[tuple[str, str]]:
    value = _number(line, 'learn/value_weight') * _number(line, 'learn/value_loss')
    policy = abs(_number(line, 'learn/policy_loss'))
    if facts.shares_trunk and value >= VALUE_FLOOR and value >= VALUE_RATIO * policy:
        yield (
            'value_dominates',
            f'the value loss times its weight is {value:.3g} and the policy loss {policy:.3g} at env step {env_step}: the '
            'critic decides what the trunk that both share learns. Set policy.learn.value_norm=true, lower '
            'policy.learn.value_weight, or give the critic a network of its own',
        )
    size = abs(_number(line, 'collect/return_mean'))
    scale = critic_scale(facts, line)
    limit = facts.value_range
    least = math.inf  # size of returns that is worth a warning
    if limit is not None:
        least = limit * max(CLIP_RATIO, SLOW_SHARE * (facts.n_move or 0.0))
    if not facts.scales_returns and scale >= least:
        yield (
            'returns_beyond_clip',
            f'the critic learns returns of about {scale:.4g} at env step {env_step}, but the value loss follows errors up to {limit:.3g} only: '
            'the critic gets there slowly, or never. Set policy.learn.value_norm=true, raise the range of '
            'policy.learn.value_loss, or use mse',
        )
    if not facts.scales_returns and size > RETURN_LIMIT and scale > DISCOUNTED_LIMIT:
        yield (
            'returns_large',
            f'returns are about {size:.4g} at env step {env_step} and nothing scales them: a critic that starts near 0 takes '
            'long to reach them. Set policy.learn.reward_norm=true or policy.learn.value_norm=true',
        )
    if _number(line, 'learn/explained_variance') <= 0:
        yield (
            'critic_useless',
            f'learn/explained_variance was 0 or less in {LONG} lines of the log, up to env step {env_step}: the critic '
            'predicts returns no better than a constant. Set policy.learn.value_norm=true, raise '
            'policy.learn.learning_rate, or see whether the observation tells what the returns depend on',
        )
    outside = _number(line, 'learn/return_outside')
    if outside >= OUTSIDE_LIMIT:
        yield (
            'returns_outside',
            f'{outside:.0%} of the returns at env step {env_step} are outside of the range of policy.learn.value_loss, which '
            'counts them as its ends. Widen that range, or set policy.learn.value_norm=true',
        )
