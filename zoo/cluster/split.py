"""The share of one rank in a run: sizes in a config are totals over all ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from zoo.config.section import Config, value_at
from zoo.core.divisors import around

SIZES = (
    'env.collector_env_num',
    'policy.collect.n_sample',
    'policy.learn.batch_size',
    'policy.learn.critic_batch_size',
    'policy.learn.aux_batch_size',
    'policy.learn.intrinsic.batch_size',
    *(f'buffer.{part}{key}' for part in ('', 'policy.', 'value.') for key in ('size', 'n_sample')),
)
"""Numbers of envs and samples, which ranks share; steps, passes and rollouts are those of each."""
N_EPISODE = 'policy.eval.n_episode'
STARTED_BY = 'ZOO_RANKS_BY'
"""Variable of the environment that names what started the ranks, where it was not torchrun."""


def split_config(cfg: Config, size: int, rank: int) -> Config:
    """The config of one of `size` ranks: its device, envs, samples and evaluation episodes; all else is the whole run's.

    Args: rank: which one; evaluation episodes that do not divide go to the first ranks.
    """
    local = Config(cfg.to_dict())
    for path, whole in _sizes(local):
        _put(local, path, whole // size)
    n_episode, n_env = local.policy.eval.n_episode, local.env.evaluator_env_num
    _put(local, N_EPISODE, n_episode // size + (rank < n_episode % size))
    _put(local, 'env.evaluator_env_num', max(n_env // size, 1))
    local['policy']['device'] = rank_device(cfg.policy.get('device', 'auto'))
    return local.read_only()


def rank_device(device: str, environ: Mapping[str, str] = os.environ) -> str:
    """The device of this rank: the GPU of its number on this machine, where policy.device is auto or cuda."""
    if device in ('auto', 'cuda') and torch.cuda.is_available():
        return f'cuda:{environ.get("LOCAL_RANK", "0")}'
    return 'cpu' if device == 'auto' else device


def split_problems(config: Any, size: int, by: str = 'torchrun') -> Iterator[str]:
    """A sentence for each number that does not divide among the ranks, and for settings that several ranks do not have.

    Args: by: what starts the ranks, 'torchrun' or 'ray'.
    """
    for path, whole in _sizes(config):
        if whole % size:
            fits = ' or '.join(str(x) for x in (whole // size * size, -(-whole // size) * size) if x)
            yield f'{path} is {whole} but there are {size} ranks: {whole} % {size} = {whole % size}; use a multiple, e.g. {fits}.'
            return
    if (n_episode := value_at(config, N_EPISODE)) < size:
        yield f'{N_EPISODE} is {n_episode} but there are {size} ranks, which share the episodes; use {size} or more.'
    each = value_at(config, 'env.collector_env_num') // size
    for key in ('cluster.runner_num', 'env.collector_group_num'):
        n = value_at(config, key)
        if n and each % n:
            yield (
                f'{key} is {n}, for each of {size} ranks, but each of them has {each} envs: {each} % {n} = {each % n}; use a '
                f'divisor, e.g. {around(each, n)}.'
            )
    yield from _sequence_problems(config, size)
    if (n_learner := value_at(config, 'cluster.learner_num') or 1) > 1 and by == 'torchrun':
        yield (
            f'cluster.learner_num is {n_learner} but torchrun started {size} ranks, which are the learners; leave one of the '
            'two out.'
        )


def _sequence_problems(config: Any, size: int) -> Iterator[str]:
    """A sentence if a rank's share of a minibatch is no whole number of sequences."""
    learn = value_at(config, 'policy.learn') or {}
    if learn.get('sequence') is None or value_at(config, 'policy.model.recurrent') is None:
        return
    for key in ('batch_size', 'critic_batch_size', 'aux_batch_size'):
        n, length = learn.get(key), learn['sequence']['len']
        if n is not None and n // size % length:
            yield (
                f'policy.learn.{key} is {n}, {n // size} for each of {size} ranks, but policy.learn.sequence.len is {length}; '
                f'use a multiple of {size} x {length} = {size * length}.'
            )


def _sizes(config: Any) -> Iterator[tuple[str, int]]:
    for path in SIZES:
        whole = value_at(config, path)
        if isinstance(whole, int) and not isinstance(whole, bool):
            yield path, whole


def _put(config: Any, path: str, value: int) -> None:
    *parents, key = path.split('.')
    for parent in parents:
        config = config[parent]
    config[key] = value
