"""Config values that are derived from other values, and checks of values against each other and this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zoo.cluster.config import cluster_problems, lag_problems
from zoo.config.section import Config, ConfigError, value_at
from zoo.core.errors import around
from zoo.core.registry import POLICY_REGISTRY
from zoo.env import UnknownEnvError
from zoo.env.make import check_source
from zoo.policy.config import why_not_here
from zoo.policy.options.off_policy_correction import correction_problems
from zoo.policy.sequences import sequence_problem
from zoo.run.observers.callbacks import callback_problems
from zoo.run.resources import memory_problem
from zoo.worker.evaluation_env import evaluation_problems

N_STEP = 'policy.collect.n_step'
N_SAMPLE = 'policy.collect.n_sample'


def fill_rollout(config: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """Derives n_step from n_sample or the reverse, in policies that have them; returns the paths filled.

    Args: given: the keys of policy.collect that the user gave.
    Raises: ConfigError if they contradict each other, or n_sample is not a multiple of the number of envs.
    """
    collect = value_at(config, 'policy.collect')
    n_env = config['env']['collector_env_num']
    if not isinstance(collect, dict) or not {'n_step', 'n_sample'} <= collect.keys():
        return []
    n_step = given.get('n_step')
    n_sample = given.get('n_sample')
    if n_step is None and n_sample is None:  # the defaults
        n_step = collect['n_step']
        if n_step is None:
            n_sample = collect['n_sample']
    filled = []
    if given.get('n_step') is None and n_sample is not None:
        filled.append(N_STEP)
    if given.get('n_sample') is None and n_sample is None:
        filled.append(N_SAMPLE)
    if n_step is None and n_sample is None:
        raise ConfigError(f'{N_STEP} is missing: give the env steps per rollout and env, or {N_SAMPLE}, over all envs.')
    if n_step is None and n_sample % n_env:
        raise ConfigError(
            f'{N_SAMPLE} is {n_sample} but env.collector_env_num is {n_env}: {n_sample} % {n_env} = '
            f'{n_sample % n_env}; use a multiple, e.g. {max(n_sample // n_env, 1) * n_env}.'
        )
    n_step = n_step or n_sample // n_env
    if n_sample not in (None, n_step * n_env):
        raise ConfigError(
            f'{N_SAMPLE} is {n_sample} but {N_STEP} is {n_step} and env.collector_env_num is {n_env}: '
            f'{n_step} * {n_env} = {n_step * n_env}; give one of the two, the other follows.'
        )
    collect |= {'n_step': n_step, 'n_sample': n_step * n_env}
    return filled


def cross_check(config: dict[str, Any]) -> Iterator[str]:
    """Yields a sentence for each contradiction between keys, and for each unknown name or missing device."""
    problem = memory_problem(config)
    if problem:
        yield problem
        return  # the checks below may take long for such numbers
    n_sample = value_at(config, N_SAMPLE)
    if isinstance(n_sample, int):
        yield from _rollout_problems(config, n_sample)
    yield from _buffer_problems(config)
    yield from callback_problems(config['callbacks'])
    device = str(config['policy'].get('device', 'auto'))
    problem = why_not_here(device)
    if problem:
        yield f"policy.device is {device!r} but {problem}; use 'auto' or 'cpu'."
    try:
        check_source(config['env'])
    except UnknownEnvError as error:
        yield str(error)
    except ConfigError as error:
        yield from error.problems
    yield from evaluation_problems(config)
    yield from cluster_problems(config)
    yield from lag_problems(config)
    yield from correction_problems(config)


def _rollout_problems(config: dict[str, Any], n_sample: int) -> Iterator[str]:
    """Problems of numbers of samples that do not fit a rollout of n_sample."""
    batch_size = value_at(config, 'policy.learn.batch_size')
    size = f'{n_sample} samples ({value_at(config, N_STEP)} x {config["env"]["collector_env_num"]} envs)'
    for key in ('batch_size', 'critic_batch_size'):
        n = value_at(config, f'policy.learn.{key}')
        if isinstance(n, int) and config['buffer']['type'] == 'rollout' and n_sample % n:
            yield (
                f'policy.learn.{key} is {n} but a rollout has {size}: {_dropped(n_sample, n)}; use a divisor, e.g. '
                f'{around(n_sample, n)}.'
            )
    is_single = batch_size == 1 or (batch_size is None and n_sample == 1)
    if is_single and value_at(config, 'policy.learn.adv_norm') == 'minibatch':
        size_text = '1'
        if batch_size is None:
            size_text = 'null and a rollout has 1 sample'
        yield (
            f'policy.learn.batch_size is {size_text} but '
            "policy.learn.adv_norm is 'minibatch', which leaves one sample no advantage; use batch_size 2 or more, or "
            "adv_norm 'batch' or 'off'."
        )
    yield from _aux_problems(config, n_sample)
    yield from _sequence_problems(config)
    if config['buffer']['type'] in ('replay', 'multi') and isinstance(batch_size, int | None):
        from zoo.buffer.replay import draw_problems

        critic_size = value_at(config, 'policy.learn.critic_batch_size')
        yield from draw_problems(config['buffer'], n_sample, batch_size, config['max_env_step'], critic_size)
    if config['max_env_step'] < n_sample:
        yield (
            f'max_env_step is {config["max_env_step"]} but a rollout has {size}: nothing would be trained; '
            f'use {n_sample} or more, or a smaller {N_STEP}.'
        )


def _buffer_problems(config: dict[str, Any]) -> Iterator[str]:
    """Problems of buffers that do not fit the policy."""
    name = config['policy']['type']
    kind = config['buffer']['type']
    alpha = config['buffer'].get('alpha') or 0
    if alpha > 0 and not POLICY_REGISTRY.get(name).writes_priority:
        yield (
            f'buffer.alpha is {alpha:g} but policy {name!r} writes no priorities to draw by; use buffer.alpha=0, or set '
            'the class attribute writes_priority = True of a policy that writes them.'
        )
    if kind == 'multi' and not POLICY_REGISTRY.get(name).takes_separate_draws:
        yield (
            f"buffer.type is 'multi' but policy {name!r} learns policy and value from the same samples; use "
            "'replay' or 'rollout'."
        )
    if kind != 'rollout' and value_at(config, 'policy.learn.recompute_adv'):
        yield (
            f'policy.learn.recompute_adv is true but buffer.type is {kind!r}, which yields random draws: advantages are '
            "recomputed over whole rollouts; use recompute_adv=false or buffer.type 'rollout'."
        )
    if kind == 'multi' and value_at(config, 'policy.model.arch') == 'shared':
        yield (
            "policy.model.arch is 'shared' but buffer.type is 'multi': a network that shares all parameters cannot "
            "learn policy and value from different samples; use arch 'dual' or 'detach', or buffer.type 'replay'."
        )


def _sequence_problems(config: dict[str, Any]) -> Iterator[str]:
    """Problems of sequences for training that fit neither rollouts nor minibatches."""
    learn = config['policy']['learn']
    model = config['policy'].get('model') or {}
    sequence = learn.get('sequence')
    if sequence is None or model.get('recurrent') is None:
        return  # another model may have a state too: the policy checks that
    n_row = {key: learn[key] for key in ('batch_size', 'critic_batch_size', 'aux_batch_size') if key in learn}
    for key, n in n_row.items():
        if n is None:
            n = sequence['len']
        problem = sequence_problem(Config(sequence), config['policy']['collect']['n_step'], n, key)
        if problem:
            yield problem
            return
    if learn.get('recompute_adv'):
        yield (
            'policy.learn.recompute_adv is true but policy.model.recurrent is given, whose rollouts are cut into '
            'sequences; use recompute_adv=false.'
        )


def _aux_problems(config: dict[str, Any], n_sample: int) -> Iterator[str]:
    """Problems of an auxiliary minibatch that does not divide the memory of the phase."""
    n_batch, n_phase = (value_at(config, f'policy.learn.{key}') for key in ('aux_batch_size', 'aux_freq'))
    if not isinstance(n_batch, int) or not isinstance(n_phase, int):
        return
    buffer = config['buffer']
    sizes = {'rollout': n_sample, 'replay': buffer.get('n_sample'), 'multi': value_at(buffer, 'policy.n_sample')}
    n_drawn = sizes.get(buffer['type'])  # samples of a rollout or of a draw; unknown for other buffers
    if n_drawn is None:
        return
    for key in ('aux_freq', 'aux_window'):  # at the first phase, and once the memory is full
        n = (value_at(config, f'policy.learn.{key}') or n_phase) * n_drawn
        if n % n_batch:
            yield (
                f'policy.learn.aux_batch_size is {n_batch} but the memory holds {key} {n // n_drawn} x {n_drawn} = '
                f'{n} samples: {_dropped(n, n_batch)}; use a divisor, e.g. {around(n, n_batch)}.'
            )
            return


def _dropped(n_sample: int, batch_size: int) -> str:
    if batch_size > n_sample:
        return 'that fills no minibatch'
    return f'{n_sample} % {batch_size} = {n_sample % batch_size} would be dropped'
