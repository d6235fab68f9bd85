"""Section `cluster`: where a run is done, not what; its checks against the rest of the config."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import Field

from zoo.config.section import Section
from zoo.core.divisors import around

EngineName = Literal['inline', 'process', 'ray']


class ClusterConfig(Section):
    """Which processes and machines take part. Sizes elsewhere in the config are totals over all of them."""

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
        300.0, description='seconds without a rollout after which a runner is ended and made anew; null: never'
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


def engine_of(cluster: Any) -> EngineName | None:
    """What carries the runners; None where there are none."""
    if not cluster['runner_num']:
        return None
    return 'process' if cluster['engine'] == 'auto' else cluster['engine']


def cluster_problems(config: dict[str, Any]) -> Iterator[str]:
    """A sentence for each value of the section `cluster` that does not fit the rest, or has no effect."""
    cluster, n_env = config['cluster'], config['env']['collector_env_num']
    n_runner, engine, n_learner = cluster['runner_num'], engine_of(cluster), cluster['learner_num']
    if engine is None:
        for key in ('engine', 'max_lag'):
            if cluster[key] != ClusterConfig.model_fields[key].default:
                yield (
                    f'cluster.{key} is {cluster[key]!r} but cluster.runner_num is 0: nothing runs apart from the learner; '
                    'set runner_num, e.g. 2, or leave it out.'
                )
        if cluster['engine'] != 'auto' or cluster['max_lag']:
            return
    elif n_env % (n_runner * n_learner):
        yield _uneven(n_runner, n_learner, n_env)
    n_group = config['env'].get('collector_group_num')
    if n_runner and n_group is not None and n_group % n_runner:
        yield (
            f'env.collector_group_num is {n_group} but cluster.runner_num is {n_runner}: {n_group} % {n_runner} = '
            f'{n_group % n_runner}; use a multiple, or leave it out.'
        )
    if 'ray' in (engine, 'ray' if n_learner > 1 else None) and find_spec('ray') is None:
        key = "cluster.engine is 'ray'" if engine == 'ray' else f'cluster.learner_num is {n_learner}'
        yield f"{key} but ray is not installed: pip install 'policy-zoo[ray]'."
    if engine == 'process' and os.name != 'posix':
        yield "cluster.engine is 'process', which needs Linux or macOS; use ray, or env.vectorization=async."
    only_ray = [key for key in ('address', 'working_dir') if cluster[key] is not None]
    only_ray += ['runner_gpu'] if cluster['runner_gpu'] else []
    only_ray += ['runner_cpu'] if cluster['runner_cpu'] != 1.0 else []
    for key in only_ray if 'ray' not in (engine, 'ray' if n_learner > 1 else None) else ():
        yield f'cluster.{key} is {cluster[key]!r}, which only Ray reads; set cluster.engine=ray too, or leave it out.'
    if n_learner > 1 and n_env % n_learner:
        yield (
            f'cluster.learner_num is {n_learner} but env.collector_env_num is {n_env}: {n_env} % {n_learner} = '
            f'{n_env % n_learner}; use a divisor, e.g. {around(n_env, n_learner)}.'
        )


def lag_problems(config: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each value that needs runners to wait for the learner, where cluster.max_lag lets them go ahead."""
    lag = config['cluster']['max_lag']
    if not lag:
        return
    why = f'cluster.max_lag is {lag}: runners have begun the next rollout when the envs are to be reset'
    if config['env'].get('reset_every') is not None:
        yield f'env.reset_every is {config["env"]["reset_every"]} but {why}; use cluster.max_lag=0, or leave it out.'
    if config['policy']['collect'].get('batch_mode') == 'episode':
        yield f"policy.collect.batch_mode is 'episode' but {why}; use cluster.max_lag=0, or batch_mode=step."


def _uneven(n_runner: int, n_learner: int, n_env: int) -> str:
    n_all = n_runner * n_learner
    each = '' if n_learner == 1 else f' for each of {n_learner} learners'
    return (
        f'cluster.runner_num is {n_runner}{each} but env.collector_env_num is {n_env}: {n_env} % {n_all} = {n_env % n_all}; '
        f'use a divisor, e.g. {around(n_env // n_learner or 1, n_runner)}.'
    )
