"""How many torch threads each phase of a run works with."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from zoo.core.spaces import obs_dtype
from zoo.policy.base import Policy

PER_THREAD = 1 << 23
"""Multiply-adds of acting on the rows of a phase, that is one minibatch or one env step, for which a thread is used.

So a second thread comes with 2 * PER_THREAD = 16.8M: two hidden layers of 64 at some 3,500 rows, of 256 at 245, of 512
at 64; the Nature network at 2 images of 84x84, IMPALA at 1 of 64x64. What it gains was measured on 2 cores (AMD Zen 4,
torch 2.13, `ppo_step` and `compute_actor`, 8 inputs, 4 actions; two layers of the width named), time on 1 thread
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

That is an idle machine. Threads wait for each other, and where another process is busy on one of the two cores, two
of them take 2 to 3 times as long as one below 16.8M, 1.3 to 2 times from there on: a gain of less than a third is not
worth that. Two runs at once with two threads each took 17 (64 x 4096) and 4 times (256 x 256) as long as with one
each, 1.3 and 1.6 times with the environment variable GOMP_SPINCOUNT=1000, which the command `zoo` sets (a thread that
waits then soon leaves its core to others) at no cost but in acting on few images. So several runs on one machine are
best with `policy.n_thread=1`.
"""

Phase = Literal['collect', 'learn', 'evaluate']


class Rows(NamedTuple):
    """Observations that a network is given at once: training envs, a minibatch, evaluation envs."""

    collect: int
    learn: int
    evaluate: int


def use_threads(n_thread: int) -> None:
    """Makes torch work with that many threads from here on."""
    if torch.get_num_threads() != n_thread:
        torch.set_num_threads(n_thread)


def phase_threads(policy: Policy, rows: Rows, limit: int) -> dict[Phase, int]:
    """The threads of each phase: one for every PER_THREAD multiply-adds, from 1 to `limit`; 1 where a GPU computes.

    Args: policy: with eval mode; limit: what torch had when the run began, as OMP_NUM_THREADS says or its cores.
    """
    work = multiply_adds(policy) if limit > 1 and policy.device.type == 'cpu' else 0
    return {
        'collect': _threads(work * rows.collect, limit),
        'learn': _threads(work * rows.learn, limit),
        'evaluate': _threads(work * rows.evaluate, limit),
    }


def multiply_adds(policy: Policy) -> int:
    """Those of the matrix products and convolutions in one greedy action, as torch counts them."""
    obs = torch.zeros(
        1, *getattr(policy.obs_space, 'shape', ()), dtype=obs_dtype(policy.obs_space), device=policy.device
    )
    with FlopCounterMode(display=False) as counter:
        policy.eval_mode.forward(obs, None)
    return counter.get_total_flops() // 2


def _threads(multiply_adds: int, limit: int) -> int:
    return max(1, min(limit, multiply_adds // PER_THREAD))
