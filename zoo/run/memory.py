"""How much memory there is, what a config needs of it, and a limit on what building a network may allocate."""

from __future__ import annotations

import math
import os
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from zoo.buffer.multi import PARTS
from zoo.config.section import value_at
from zoo.core.spaces import Space, leaf_spaces, obs_dtype
from zoo.policy.sequences import n_copy

ROW_BYTES, STEP_BYTES = 64, 1_000
"""Memory of one sample at least, without its observations: action, logit, value, reward and what is derived. And of one
step of a rollout: the Python objects of its rows."""
ENV_BYTES = {'sync': 2_000, 'async': 4 << 20}
"""Memory of one env at least: CartPole, which is as small as any, takes 4.8 kB; a process has pages of its own."""
OVERLAP = 'policy.learn.sequence.overlap'
SAMPLE_KEYS = (
    'env.collector_env_num',
    'policy.collect.n_step',
    'policy.collect.n_sample',
    'policy.learn.aux_freq',
    'buffer.size',
    'buffer.policy.size',
    'buffer.value.size',
    'policy.learn.aux_window',
)
"""What the memory for samples depends on."""


def machine_memory() -> int:
    """Bytes of this machine's memory; without a bound where the system does not say."""
    if not hasattr(os, 'sysconf') or 'SC_PHYS_PAGES' not in os.sysconf_names:
        return 2**63
    return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')


def sample_bytes(config: dict[str, Any], obs_space: Space | None = None) -> int:
    """Bytes that the samples of a rollout, of a buffer or of the auxiliary phase take at least; of a resolved config."""
    obs = 0
    if obs_space is not None:
        obs = sum(math.prod(leaf.shape) * obs_dtype(leaf).itemsize for _, leaf in leaf_spaces(obs_space))
    n_env, n_step, n_sample, n_phase, size = (_whole(config, key) for key in SAMPLE_KEYS[:5])
    n_phase = max(n_phase, _whole(config, 'policy.learn.aux_window'))
    n_draw = [_whole(config, key, 0) for key in ('buffer.n_sample', 'buffer.policy.n_sample')]
    parts = [_whole(config, f'buffer.{part}.size', 0) or size for part in PARTS]
    n_collected = max(round(n_env * n_step * _n_copy(config, n_step)), *parts)
    n_kept = (max(n_draw) or n_sample) * n_phase
    on_disk = value_at(config, 'policy.learn.aux_memory') == 'disk'
    n_obs = n_collected if on_disk else max(n_collected, n_kept)
    return n_obs * obs + max(n_collected, n_kept) * ROW_BYTES + n_step * STEP_BYTES


def memory_problem(config: dict[str, Any], obs_space: Space | None = None) -> str:
    """What of a resolved config takes more memory than this machine has, as a sentence; empty if nothing.

    Args: obs_space: of one env; None before there is one: then only the rest is counted.
    """
    n_env = config['env']['collector_env_num']
    n_eval_env = min(config['env']['evaluator_env_num'], config['policy']['eval']['n_episode'])
    one_env = ENV_BYTES.get(config['env']['vectorization'], 0)
    memory = machine_memory()
    if (n_byte := (n_env + n_eval_env) * one_env) > memory:
        what = f'env.collector_env_num {n_env} and env.evaluator_env_num {n_eval_env} ask for envs that take'
    elif (n_byte := sample_bytes(config, obs_space)) > memory:
        overlaps = _n_copy(config, config['policy']['collect']['n_step']) > 1
        given = {key: value_at(config, key) for key in (*SAMPLE_KEYS, *([OVERLAP] if overlaps else []))}
        asked = ', '.join(f'{key} {value}' for key, value in given.items() if value is not None)
        what = f'{asked} ask for samples that take'
    else:
        return ''
    return f'{what} {n_byte / 1e9:,.0f} GB or more but this machine has {memory / 1e9:,.0f} GB; use fewer.'


def _n_copy(config: dict[str, Any], n_step: int) -> float:
    """How often a row is kept, where sequences of a recurrent model overlap."""
    sequence = value_at(config, 'policy.learn.sequence')
    if not sequence or value_at(config, 'policy.model.recurrent') is None:
        return 1.0
    return max(n_copy(SimpleNamespace(**sequence), n_step), 1.0)


def _whole(config: dict[str, Any], key: str, default: int = 1) -> int:
    value = value_at(config, key)
    return value if isinstance(value, int) else default


class AllocationError(Exception):
    """More memory was asked for than the limit; holds the bytes asked for so far."""

    def __init__(self, n_byte: int) -> None:
        super().__init__(n_byte)
        self.n_byte = n_byte


class AllocationLimit(TorchDispatchMode):
    """Within this context, new tensors of more than n_byte in sum raise AllocationError before they are allocated.

    Each operation that makes a tensor on a device is first run on the device 'meta', which has sizes but no memory.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True, which is torch's default, would load the compiler: 140 MB and a second

    def __init__(self, n_byte: int) -> None:
        super().__init__()
        self._limit, self._total = n_byte, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(argument.name == 'device' for argument in func._schema.arguments):
            here = {**kwargs, 'device': torch.device('meta')}
            here |= {key: value for key, value in (('generator', None), ('pin_memory', False)) if key in kwargs}
            new = func(*args, **here)
            self._total += new.numel() * new.element_size()
            if self._total > self._limit:
                raise AllocationError(self._total)
        return func(*args, **kwargs)
