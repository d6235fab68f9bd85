"""Chooses the number of torch threads for each phase of a run."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from zoo.core.spaces import empty_obs
from zoo.policy.base import Policy

PER_THREAD = 1 << 23
"""Multiply-adds per thread in one forward pass on the rows of a phase: one minibatch, or one env step of all envs.

A second thread is used from 2 * PER_THREAD = 16.8M: two hidden layers of 64 at some 3,500 rows, of 256 at 245, of 512
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

That is on an idle machine. Threads wait for each other: where another process uses one of the two cores, two threads
take 2 to 3 times as long as one below 16.8M, and 1.3 to 2 times above. A gain of less than a third is not worth that.
Two runs at once with two threads each took 17 (64 x 4096) and 4 times (256 x 256) as long as with one thread each.
With the environment variable GOMP_SPINCOUNT=1000 it was 1.3 and 1.6 times: a waiting thread then soon yields its core.
The command `zoo` sets it; it slows down only acting on few images. Use `policy.n_thread=1` for several runs on one
machine.
"""

Phase = Literal['collect', 'learn', 'evaluate']


class Rows(NamedTuple):
    """Rows of one forward pass in each phase: training envs, a minibatch, evaluation envs."""

    collect: int
    learn: int
    evaluate: int


def use_threads(n_thread: int) -> None:
    """Sets torch's number of threads."""
    if torch.get_num_threads() != n_thread:
        torch.set_num_threads(n_thread)


def phase_threads(policy: Policy, rows: Rows, limit: int) -> dict[Phase, int]:
    """The threads of each phase: one for every PER_THREAD multiply-adds, from 1 to `limit`; 1 on a GPU.

    Args: policy: with eval mode; limit: torch's threads at the start (OMP_NUM_THREADS, or the number of cores).
    """
    work = multiply_adds(policy) if limit > 1 and policy.device.type == 'cpu' else 0
    return {
        'collect': _threads(work * rows.collect, limit),
        'learn': _threads(work * rows.learn, limit),
        'evaluate': _threads(work * rows.evaluate, limit),
    }


def multiply_adds(policy: Policy) -> int:
    """Multiply-adds of the matrix products and convolutions in one greedy action."""
    obs = empty_obs(policy.obs_space, (1,), policy.device)
    with MultiplyAdds() as counter:
        policy.eval_mode.forward(obs, None)
    return counter.total


class MultiplyAdds(TorchFunctionMode):
    """Counts those of the matrix products and convolutions that are called inside.

    torch's FlopCounterMode counts more kinds, but it loads torch's compiler and Triton: 140 MB and a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        output, name = func(*args, **(kwargs or {})), getattr(func, '__name__', '')
        if name == 'linear' or name.startswith('conv'):
            self.total += output.numel() * args[1][0].numel()
        elif name in ('matmul', 'mm', 'bmm'):
            self.total += output.numel() * args[0].shape[-1]
        elif name in ('addmm', 'baddbmm'):
            self.total += output.numel() * args[1].shape[-1]
        return output


def _threads(multiply_adds: int, limit: int) -> int:
    return max(1, min(limit, multiply_adds // PER_THREAD))
