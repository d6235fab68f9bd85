"""Resources of a run: torch threads for each phase, the memory that a config needs, freed memory that is kept."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode

from zoo.buffer.base import PARTS
from zoo.config.section import ConfigLike, value_at
from zoo.core.processes import machine_memory, memory_words
from zoo.core.spaces import Space, empty_obs, leaf_spaces, obs_dtype
from zoo.policy.base import Policy
from zoo.policy.sequences import SequenceConfig, n_copy
from zoo.run.base_config import JobConfig
from zoo.run.observers.base import Observer

PER_THREAD = 1 << 23
"""Multiply-adds per thread in one forward pass on the rows of a phase: one minibatch, or one env step of all envs.

A second thread is used from 2 * PER_THREAD = 16.8M: two hidden layers of 64 at some 3,500 rows, of 256 at 245, of 512
at 64; the Nature network at 2 images of 84x84, IMPALA at 1 of 64x64. The gain was measured on 2 cores (AMD Zen 4,
torch 2.13, `ppo_step` and `compute_actor`, 8 inputs, 4 actions; two layers of the width named), as time on 1 thread
divided by time on 2:

  multiply-adds of acting     learning, 1 minibatch           acting, 1 env step
    0.3M  64 x 64 rows          1.00                            1.09
    1.2M  64 x 256              1.16  128 x 64    1.08          1.40
    5M    64 x 1024             1.33  128 x 256   1.28          1.82  1.68
    18M   64 x 4096             1.64  256 x 256   1.41          1.92  1.47
    18M   128 x 1024            1.63  512 x 64    1.28          1.88  1.69
    70M   256 x 1024            1.64  512 x 256   1.84          2.00  1.67
    280M  256 x 4096            1.90  512 x 1024  1.54          2.05  1.63
  networks for images, float32 and bfloat16; acting on 1, 8, 64 images, learning from 256
    Nature, 9.3M an image       1.72  1.47            1.06 1.69 1.91, 0.91 1.75 1.89
    IMPALA, 31M an image        1.77 (bfloat16)       1.28 (float32), 1.26 1.52 1.88

That is on an idle machine. Threads wait for each other: if another process uses one of the two cores, two threads take
2 to 3 times as long as one below 16.8M, and 1.3 to 2 times above. A gain of less than a third is not worth that risk.
Two runs at once with two threads each took 17 (64 x 4096) and 4 times (256 x 256) as long as with one thread each.
With the environment variable GOMP_SPINCOUNT=1000 it was 1.3 and 1.6 times: a waiting thread then soon yields its core.
The command `zoo` sets it; it slows down only acting on few images. Use `policy.n_thread=1` for several runs on one
machine.
"""
Phase = Literal['collect', 'learn', 'evaluate']


def use_threads(n_thread: int) -> None:
    """Sets torch's number of threads."""
    if torch.get_num_threads() != n_thread:
        torch.set_num_threads(n_thread)


def phase_threads(policy: Policy, rows: Mapping[Phase, int], limit: int) -> dict[Phase, int]:
    """The number of threads of each phase: one for every PER_THREAD multiply-adds, from 1 to `limit`; 1 on a GPU.

    Args: policy: with eval mode; rows: number of rows in one forward pass: training envs, a minibatch, evaluation envs;
      limit: torch's threads at the start (OMP_NUM_THREADS, or the number of cores).
    """
    work = 0
    if limit > 1 and policy.device.type == 'cpu':
        work = multiply_adds(policy)
    return {phase: max(1, min(limit, work * n // PER_THREAD)) for phase, n in rows.items()}


def multiply_adds(policy: Policy) -> int:
    """Multiply-adds of the matrix products and convolutions in one greedy action."""
    obs = empty_obs(policy.obs_space, (1,), policy.device)
    with MultiplyAdds() as counter:
        policy.eval_mode.forward(obs, None)
    return counter.total


class MultiplyAdds(TorchFunctionMode):
    """Counts the multiply-adds of the matrix products and convolutions that are called in this context.

    torch's FlopCounterMode counts more kinds, but it loads torch's compiler and Triton: 140 MB and a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = getattr(func, '__name__', '')
        if name == 'linear' or name.startswith('conv'):
            self.total += output.numel() * args[1][0].numel()
        elif name in ('matmul', 'mm', 'bmm'):
            self.total += output.numel() * args[0].shape[-1]
        elif name in ('addmm', 'baddbmm'):
            self.total += output.numel() * args[1].shape[-1]
        return output


ROW_BYTES = 64
STEP_BYTES = 1_000
"""Least memory of one sample without its observations: action, logit, value, reward and derived columns; and of one step
of a rollout: the Python objects of its rows."""
ENV_BYTES = {'sync': 2_000, 'async': 4 << 20}
"""Least memory of one env: CartPole, one of the smallest, takes 4.8 kB; a process has memory pages of its own."""
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
"""The config keys that the memory for samples depends on."""


OBS_COPIES = 2.2
"""Memory of the observations in an update, as a multiple of their own.

They are there as the rollout, as its rows in the order of minibatches, and as a minibatch.

Measured as the growth of the process over `sample_bytes`: 2.1 for ppo with vectors of 100,000 numbers, and 2.2 with images of
84x84x4 bytes; 2.0 for ppg, over the samples of its auxiliary phase.
"""


def training_bytes(config: ConfigLike, obs_space: Space | None = None) -> int:
    """The bytes that samples take while a policy learns from them: observations are copied then. Args: as `sample_bytes`."""
    n_collected, n_learned = _sample_counts(config)
    if _is_on_disk(config):
        n_learned = min(n_learned, n_collected)
    return sample_bytes(config, obs_space) + round((OBS_COPIES - 1) * n_learned * _obs_bytes(obs_space))


def sample_bytes(config: ConfigLike, obs_space: Space | None = None) -> int:
    """The least bytes that samples of a rollout, a buffer or the auxiliary phase take. Args: config: a resolved one."""
    n_collected, n_learned = _sample_counts(config)
    n_row = max(n_collected, n_learned)
    n_obs = n_row
    if _is_on_disk(config):
        n_obs = n_collected
    n_step = _whole(config, 'policy.collect.n_step')
    return n_obs * _obs_bytes(obs_space) + n_row * ROW_BYTES + n_step * STEP_BYTES


def _obs_bytes(obs_space: Space | None) -> int:
    if obs_space is None:
        return 0
    return sum(math.prod(leaf.shape) * obs_dtype(leaf).itemsize for _, leaf in leaf_spaces(obs_space))


def _is_on_disk(config: ConfigLike) -> bool:
    """Whether the observations of the auxiliary phase are in a file."""
    return value_at(config, 'policy.learn.aux_memory') == 'disk'


def _sample_counts(config: ConfigLike) -> tuple[int, int]:
    """The numbers of samples that are collected or kept in a buffer, and of those that one phase learns from."""
    n_step = _whole(config, 'policy.collect.n_step')
    n_rollout = _whole(config, 'env.collector_env_num') * n_step * _n_copy(config, n_step)
    size = _whole(config, 'buffer.size')
    sizes = [_whole(config, f'buffer.{part}.size', 0) or size for part in PARTS]
    n_drawn = max(_whole(config, 'buffer.n_sample', 0), _whole(config, 'buffer.policy.n_sample', 0))
    n_sample = n_drawn or _whole(config, 'policy.collect.n_sample')
    n_phase = max(_whole(config, 'policy.learn.aux_freq'), _whole(config, 'policy.learn.aux_window'))
    return max(round(n_rollout), *sizes), n_sample * n_phase


def memory_problem(job: JobConfig, obs_space: Space | None = None) -> str:
    """A sentence about the keys of a resolved config that need more memory than this machine has; '' if none do.

    Args: obs_space: of one env; None if there is no env yet: observations are then not counted.
    """
    n_env = job.env.collector_env_num
    n_eval_env = min(job.env.evaluator_env_num, job.policy.eval.n_episode)
    one_env = ENV_BYTES.get(job.env.vectorization, 0)
    memory = machine_memory()
    env_bytes = (n_env + n_eval_env) * one_env
    if env_bytes > memory:
        asked = f'env.collector_env_num {n_env} and env.evaluator_env_num {n_eval_env}'
        return _memory_sentence(asked, 'envs', env_bytes)
    samples_bytes = training_bytes(job, obs_space)
    if samples_bytes > memory:
        keys = [*SAMPLE_KEYS]
        if _n_copy(job, _whole(job, 'policy.collect.n_step')) > 1:
            keys.append(OVERLAP)
        values = {key: value_at(job, key) for key in keys}
        asked = ', '.join(f'{key} {value}' for key, value in values.items() if value is not None)
        return _memory_sentence(asked, 'samples', samples_bytes)
    return ''


def _memory_sentence(asked: str, things: str, n_byte: int) -> str:
    size = f'{n_byte / 1e9:,.2g}'
    if n_byte >= 10e9:
        size = f'{n_byte / 1e9:,.0f}'
    return f'{asked} ask for {things} that take {size} GB or more but {memory_words()}; use fewer.'


def _n_copy(config: ConfigLike, n_step: int) -> float:
    """The number of copies of each row that are kept because sequences of a recurrent model overlap."""
    sequence = value_at(config, 'policy.learn.sequence')
    if not sequence or value_at(config, 'policy.model.recurrent') is None:
        return 1.0
    return max(n_copy(SequenceConfig.model_construct(**sequence), n_step), 1.0)


def _whole(config: ConfigLike, key: str, default: int = 1) -> int:
    value = value_at(config, key)
    if isinstance(value, int):
        return value
    return default


PHASE_AT: dict[str, Phase] = {
    'before_rollout': 'collect',
    'after_rollout': 'learn',
    'before_update': 'learn',
    'before_evaluation': 'evaluate',
}
"""The phase that comes after an event of a run."""


class Threads(Observer):
    """Sets torch's number of threads for the next phase."""

    def __init__(self, n_thread: Mapping[Phase, int]) -> None:
        self._n_thread = n_thread

    def handler(self, event: str) -> Callable[..., None] | None:
        phase = PHASE_AT.get(event)
        if phase is None:
            return None
        return lambda *_: use_threads(self._n_thread[phase])


MAPPED_FROM = 128 << 20  # bytes; a larger block is returned to the system as soon as it is freed
_MAPPED_FROM_OLD = 32 << 20  # the largest value that an older glibc accepts for that: half of an arena's heap
KEPT = 512 << 20  # bytes, at most, that are kept at the end of the heap
# of mallopt(3)
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_SETTINGS = ('MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_THRESHOLD_', 'GLIBC_TUNABLES')


def keep_freed_memory() -> bool:
    """Lets glibc's malloc keep up to KEPT bytes, for the whole process and permanently; returns whether it was set.

    By default malloc returns the end of the heap to the system from some tens of MB on, and the system clears the
    pages again at every update: a tenth of the time of the Nature network (16 minibatches of 256 images on 2 threads:
    .90 s, and .81 with the memory kept). Nothing is changed where the user has set one of _SETTINGS, or where malloc
    is not glibc's.
    """
    if sys.platform != 'linux' or any(name in os.environ for name in _SETTINGS):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, 'gnu_get_libc_version'):
        return False
    is_set = any(libc.mallopt(_M_MMAP_THRESHOLD, size) for size in (MAPPED_FROM, _MAPPED_FROM_OLD))
    return is_set and bool(libc.mallopt(_M_TRIM_THRESHOLD, KEPT))
