"""Section `cluster` of the config: the sizes of a distributed run, their checks, and one rank's share of each size."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field

from zoo.config.components import name_of
from zoo.config.section import ConfigLike, Job, S, Section, frozen, put_at, value_at
from zoo.core.errors import around, install_extra
from zoo.core.registry import POLICY_REGISTRY
from zoo.env.config import EnvConfig
from zoo.policy.config import PolicyConfig


class ClusterConfig(Section):
    """The processes and machines that take part in a run. Sizes in other sections are totals over all of them."""

    runner_num: int = Field(
        0,
        ge=0,
        description='processes that step the training envs and act, for each learner; 0: the learner does; pays where envs '
        'take a millisecond or more; divides env.collector_env_num',
    )
    engine: Literal['auto', 'inline', 'process', 'ray'] = Field(
        'auto',
        description='what carries the runners: processes of this machine, ray (machines), inline (in the learner, one after '
        'the other, for tests); auto: process',
    )
    max_lag: int = Field(
        0,
        ge=0,
        description='updates that the weights of a rollout may be old: 0: learning waits for it; 1: it is collected during '
        'the update before, reproducibly; more: runners run ahead, which needs policy.learn.correction',
    )
    address: str | None = Field(
        None,
        description='Ray cluster to join, host:port or auto; null: RAY_ADDRESS, else one of this machine for the run',
    )
    runner_cpu: float = Field(
        1.0, ge=0, description='CPUs that each runner asks Ray for; a fraction packs them tighter'
    )
    runner_gpu: float = Field(
        0.0, ge=0, description='GPUs that each runner asks Ray for; above 0 the policy acts there'
    )
    runner_timeout: Annotated[float, Field(gt=0)] | None = Field(
        300.0, description='seconds without a rollout after which a runner is ended and replaced; null: never'
    )
    start_timeout: float = Field(120.0, gt=0, description='seconds that all runners may take to start')
    restart_limit: int = Field(
        20,
        ge=0,
        description='runners that may be lost within an hour, or starts again of learners that Ray carries; one more stops the '
        'run, with its state saved',
    )
    learner_num: int = Field(
        1, ge=1, description='learners that step together, as actors of Ray; under torchrun it is --nproc-per-node'
    )
    working_dir: str | None = Field(
        None, description='folder that Ray sends to its nodes, with the modules of your envs and policies; null: none'
    )

    def problems(self, job: Job) -> Iterator[str]:
        yield from engine_problems(job)
        yield from reset_problems(job)
        yield from age_problems(job)


class RunConfig(Protocol):
    """The fields of a run's config that its processes read."""

    @property
    def seed(self) -> int: ...
    @property
    def env(self) -> EnvConfig: ...
    @property
    def policy(self) -> PolicyConfig: ...
    @property
    def cluster(self) -> ClusterConfig: ...
    def to_dict(self) -> dict[str, Any]: ...


def engine_of(cluster: ConfigLike) -> Literal['inline', 'process', 'ray'] | None:
    """Returns the name of the engine that carries the runners; None if there are no runners."""
    if not cluster['runner_num']:
        return None
    if cluster['engine'] == 'auto':
        return 'process'
    return cluster['engine']


def engine_problems(job: Job) -> Iterator[str]:
    """Yields a sentence for each setting of section `cluster` that this machine lacks, or that has no effect."""
    cluster = job.cluster
    n_env = job.env.collector_env_num
    n_runner = cluster.runner_num
    n_learner = cluster.learner_num
    n_group = job.env.collector_group_num
    engine = engine_of(cluster)
    uses_ray = engine == 'ray' or n_learner > 1
    fields = ClusterConfig.model_fields
    only_ray = ('address', 'working_dir', 'runner_gpu', 'runner_cpu')
    changed = [key for key in ('engine', 'max_lag', *only_ray) if cluster[key] != fields[key].default]
    if engine is None:
        for key in ('engine', 'max_lag'):
            if key in changed:
                yield (
                    f'cluster.{key} is {cluster[key]!r} but cluster.runner_num is 0: nothing runs apart from the learner; '
                    'set runner_num, e.g. 2, or leave it out.'
                )
        if cluster.engine != 'auto' or cluster.max_lag:
            return
    elif n_env % (n_runner * n_learner):
        n_all = n_runner * n_learner
        for_each = ''
        if n_learner > 1:
            for_each = f' for each of {n_learner} learners'
        yield (
            f'cluster.runner_num is {n_runner}{for_each} but env.collector_env_num is {n_env}: {n_env} % {n_all} = '
            f'{n_env % n_all}; use a divisor, e.g. {around(n_env // n_learner or 1, n_runner)}.'
        )
    if n_runner and n_group is not None and n_group % n_runner:
        yield (
            f'env.collector_group_num is {n_group} but cluster.runner_num is {n_runner}: {n_group} % {n_runner} = '
            f'{n_group % n_runner}; use a multiple, or leave it out.'
        )
    if uses_ray and find_spec('ray') is None:
        if engine == 'ray':
            key = "cluster.engine is 'ray'"
        else:
            key = f'cluster.learner_num is {n_learner}'
        yield f'{key} but ray is not installed: {install_extra("ray")}.'
    if engine == 'process' and os.name != 'posix':
        yield "cluster.engine is 'process', which needs Linux or macOS; use ray, or env.vectorization=async."
    for key in only_ray:
        if key in changed and not uses_ray:
            yield f'cluster.{key} is {cluster[key]!r}, which only Ray reads; set cluster.engine=ray too, or leave it out.'
    if n_learner > 1 and n_env % n_learner:
        yield (
            f'cluster.learner_num is {n_learner} but env.collector_env_num is {n_env}: {n_env} % {n_learner} = '
            f'{n_env % n_learner}; use a divisor, e.g. {around(n_env, n_learner)}.'
        )


def reset_problems(job: Job) -> Iterator[str]:
    """Yields a sentence for each setting that resets all envs, if cluster.max_lag lets the runners run ahead."""
    lag = job.cluster.max_lag
    if not lag:
        return
    why = f'cluster.max_lag is {lag}: runners have begun the next rollout when the envs are to be reset'
    if job.env.reset_every is not None:
        yield f'env.reset_every is {job.env.reset_every} but {why}; use cluster.max_lag=0, or leave it out.'
    if job.policy.collect.get('batch_mode') == 'episode':
        yield f"policy.collect.batch_mode is 'episode' but {why}; use cluster.max_lag=0, or batch_mode=fragment."


def age_problems(job: Job) -> Iterator[str]:
    """Yields a sentence if samples may come from older policies than the update expects."""
    max_lag = job.cluster.max_lag
    if max_lag <= 1:
        return
    learn = job.policy.learn
    age = f'samples may then be up to {max_lag} updates old'
    if 'correction' not in learn:
        sections = {name: POLICY_REGISTRY.get(name).config.model_fields['learn'] for name in POLICY_REGISTRY.names()}
        has_key = (name for name, x in sections.items() if 'correction' in getattr(x.annotation, 'model_fields', {}))
        yield (
            f'cluster.max_lag is {max_lag} but policy {job.policy.type!r} has no key policy.learn.correction: {age}; use '
            f'max_lag 0 or 1, or a policy that has it: {", ".join(has_key)}.'
        )
    elif name_of(learn.correction) == 'none' and name_of(learn.proximal) == 'behaviour':
        yield (
            f"cluster.max_lag is {max_lag} but policy.learn.correction is 'none': {age}; use decoupled or vtrace, or max_lag "
            '0 or 1.'
        )


SIZES = (
    'env.collector_env_num',
    'policy.collect.n_sample',
    'policy.learn.batch_size',
    'policy.learn.critic_batch_size',
    'policy.learn.aux_batch_size',
    'policy.learn.intrinsic.batch_size',
    *(f'buffer.{part}{key}' for part in ('', 'policy.', 'value.') for key in ('size', 'n_sample')),
)
"""Keys of numbers that are divided among the ranks: envs and samples. Numbers of steps, passes and rollouts are per rank."""
N_EPISODE = 'policy.eval.n_episode'
STARTED_BY = 'ZOO_RANKS_BY'  # environment variable with the name of what started the ranks, if it was not torchrun


def split_config(cfg: S, size: int, rank: int) -> S:
    """Returns the config of one rank of `size`, with its own device, envs, samples and evaluation episodes.

    All other values are those of the run. If the evaluation episodes do not divide evenly, the first ranks get one more.
    """
    local = cfg.to_dict()
    split_sizes(local, size)
    n_episode = value_at(cfg, N_EPISODE)
    n_env = value_at(cfg, 'env.evaluator_env_num')
    put_at(local, N_EPISODE, n_episode // size + (rank < n_episode % size))
    put_at(local, 'env.evaluator_env_num', max(n_env // size, 1))
    local['policy']['device'] = rank_device(value_at(cfg, 'policy.device') or 'auto')
    return frozen(type(cfg), local)


def split_sizes(config: dict[str, Any], size: int) -> None:
    """Divides the numbers of envs and samples in a resolved config among `size` ranks, in place."""
    for path, whole in _sizes(config):
        put_at(config, path, whole // size)


def rank_device(device: str, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the device of this rank: for auto or cuda, the GPU with the number LOCAL_RANK if this machine has GPUs."""
    if device in ('auto', 'cuda') and torch.cuda.is_available():
        return f'cuda:{environ.get("LOCAL_RANK", "0")}'
    if device == 'auto':
        return 'cpu'
    return device


def split_problems(job: Job, size: int, by: str = 'torchrun') -> Iterator[str]:
    """Yields sentences about numbers that cannot be divided among the ranks, and about settings that several ranks exclude.

    Args: by: what starts the ranks, 'torchrun' or 'ray'.
    """
    for path, whole in _sizes(job):
        if whole % size:
            fits = ' or '.join(str(x) for x in (whole // size * size, -(-whole // size) * size) if x)
            yield f'{path} is {whole} but there are {size} ranks: {whole} % {size} = {whole % size}; use a multiple, e.g. {fits}.'
            return
    n_episode = job.policy.eval.n_episode
    if n_episode < size:
        yield f'{N_EPISODE} is {n_episode} but there are {size} ranks, which share the episodes; use {size} or more.'
    n_env = job.env.collector_env_num // size
    divisors = {
        'cluster.runner_num': job.cluster.runner_num,
        'env.collector_group_num': job.env.collector_group_num,
    }
    for key, n in divisors.items():
        if n and n_env % n:
            yield (
                f'{key} is {n}, for each of {size} ranks, but each of them has {n_env} envs: {n_env} % {n} = {n_env % n}; use a '
                f'divisor, e.g. {around(n_env, n)}.'
            )
    yield from _sequence_problems(job, size)
    n_learner = job.cluster.learner_num
    if n_learner > 1 and by == 'torchrun':
        yield (
            f'cluster.learner_num is {n_learner} but torchrun started {size} ranks, which are the learners; leave one of the '
            'two out.'
        )


def _sequence_problems(job: Job, size: int) -> Iterator[str]:
    """Yields a sentence if a rank's share of a minibatch is not a whole number of sequences."""
    learn = job.policy.learn
    if learn.get('sequence') is None or job.policy.model.get('recurrent') is None:
        return
    length = learn.sequence.len
    for key in ('batch_size', 'critic_batch_size', 'aux_batch_size'):
        n = learn.get(key)
        if n is not None and n // size % length:
            yield (
                f'policy.learn.{key} is {n}, {n // size} for each of {size} ranks, but policy.learn.sequence.len is {length}; '
                f'use a multiple of {size} x {length} = {size * length}.'
            )


def _sizes(config: Any) -> Iterator[tuple[str, int]]:
    """The numbers of a resolved config, typed or as dicts, that are divided among the ranks, with their keys."""
    for path in SIZES:
        whole = value_at(config, path)
        if isinstance(whole, int) and not isinstance(whole, bool):
            yield path, whole
