"""Looks through the wrappers of an env: for statistics that run along with it, and for a limit of steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

INNER = ('env', '_env', 'venv')
"""Where a wrapper keeps what it wraps: gymnasium's and old gym's; zoo's adapters; those of SB3's vector envs."""

Stream = Literal['observation', 'reward']


class Statistics(NamedTuple):
    """A wrapper that normalises by running statistics."""

    stream: Stream  # what it normalises
    wrapper: str  # its class
    is_sure: bool  # it has such statistics; false: only its name says so
    key: str  # of zoo's config, for the same

    def sentence(self, name: str) -> str:
        """The warning about it. name: of the env."""
        whose = (
            f'has the wrapper {self.wrapper}, which normalises {self.stream}s by statistics of what this one env has'
        )
        return (
            f'env {name!r} {whose} seen: each training and evaluation env has others, no checkpoint has them, and no seed '
            f'repeats them; leave the wrapper out and set {self.key}=true.'
        )


class _Kind(NamedTuple):
    stream: Stream
    key: str
    attributes: tuple[str, ...]  # of the statistics
    switch: str  # attribute of a wrapper for both streams that is false where it leaves this one alone
    name: re.Pattern[str]


KINDS = (
    _Kind(
        'observation',
        'policy.model.obs_norm',
        ('obs_rms', 'ob_rms', 'obs_stats', 'running_obs'),
        'norm_obs',
        re.compile(r'norm\w*(obs|state)|(obs|state)\w*norm|vecnorm', re.IGNORECASE),
    ),
    _Kind(
        'reward',
        'policy.learn.reward_norm',
        ('return_rms', 'ret_rms', 'reward_rms', 'rew_rms', 'return_stats', 'reward_stats'),
        'norm_reward',
        re.compile(r'norm\w*(reward|return)|(reward|return)\w*norm|vecnorm', re.IGNORECASE),
    ),
)


def layers(env: Any) -> Iterator[Any]:
    """An env, then what each wrapper is around; of a vector of envs in this process, then the first of them."""
    seen = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        held = getattr(env, '__dict__', {})
        envs = held.get('envs')
        inner = [held[key] for key in INNER if held.get(key) is not None]
        env = inner[0] if inner else envs[0] if isinstance(envs, list | tuple) and envs else None


def running_statistics(env: Any) -> list[Statistics]:
    """The wrappers with running statistics that still change: gymnasium's, old gym's, SB3's, and any like them."""
    return [found for layer in layers(env) for kind in KINDS if (found := _statistics(layer, kind)) is not None]


def _statistics(layer: Any, kind: _Kind) -> Statistics | None:
    held = getattr(layer, '__dict__', {})
    is_still = held.get('_update_running_mean') is False or held.get('training') is False
    if is_still or held.get(kind.switch) is False:
        return None
    wrapper = type(layer).__name__
    is_wrapper = any(held.get(key) is not None for key in INNER)
    is_sure = is_wrapper and any(held.get(key) is not None for key in kind.attributes)
    if not is_sure and not (is_wrapper and kind.name.search(wrapper)):
        return None
    return Statistics(kind.stream, wrapper, is_sure, kind.key)


def step_limit(env: Any) -> int | None:
    """The steps after which a TimeLimit (gymnasium's, or old gym's) ends an episode; None without one."""
    limits = [
        vars(layer).get('_max_episode_steps')
        for layer in layers(env)
        if any(kind.__name__ == 'TimeLimit' for kind in type(layer).__mro__)
    ]
    known = [int(limit) for limit in limits if limit is not None]
    return min(known) if known else None
