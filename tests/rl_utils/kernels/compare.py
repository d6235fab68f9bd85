"""The results of the losses as lists, and the allowed distance of a kernel from the float64 reference.

Tolerances: float32 has 24 bits, so a mean of numbers around 1 is accurate to about 1e-6; a gradient is of size 1/N and is
compared after multiplying by N. bfloat16 inputs are exact in float64 too. Only their gradients are rounded to 8 bits: by
2^-8 when they are scaled, and before that when they are stored, where the interpreter even truncates (2^-7).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gpu import with_gpu_too
from zoo.rl_utils import kernels, ppg_data, ppg_joint_error, ppo_policy_data, ppo_policy_error

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
ON_KERNELS = [
    with_gpu_too,
    pytest.mark.usefixtures('kernels_everywhere', 'poisoned_memory'),
    # the interpreter uses numpy, which warns of NaN and of the overflow of 9 * e^88
    pytest.mark.filterwarnings('ignore:(invalid value|overflow) encountered'),
]
"""Marks of a file whose tests all run the kernels."""


def set_mode(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """'interpret': use kernels wherever one exists; '0': use the references."""
    monkeypatch.setattr(kernels, 'MODE', mode)
    monkeypatch.setattr(kernels, 'ENABLED', mode == 'interpret')


def moved(data: Any, dtype: torch.dtype | None = None) -> Any:
    """A copy on the device under test, with leaves that require a gradient again; dtype: that of floating tensors."""

    def one(x: Any) -> Any:
        if x is None:
            return None
        copy = x.detach().to(DEVICE, dtype if x.is_floating_point() else None, copy=True)
        return copy.requires_grad_(x.requires_grad)

    return type(data)(*map(one, data))


def leaves(data: Any) -> list[Tensor]:
    """The tensors that require a gradient."""
    return [x for x in data if x is not None and x.requires_grad]


def policy_results(data: ppo_policy_data, **options: Any) -> list[Tensor]:
    """Losses, metrics and N times the gradient of 0.7 * policy_loss - 0.3 * entropy_loss, in float64 on the CPU."""
    loss, info = ppo_policy_error(data, **options)
    (0.7 * loss.policy_loss - 0.3 * loss.entropy_loss).backward()
    return finish([loss.policy_loss, loss.entropy_loss, *info], data, data.adv.numel())


def joint_results(data: ppg_data, **options: Any) -> list[Tensor]:
    """Both losses and N times the gradients of 1.3 * auxiliary_loss + 0.7 * behavioral_cloning_loss, in float64 on the CPU."""
    loss = ppg_joint_error(data, **options)
    (1.3 * loss.auxiliary_loss + 0.7 * loss.behavioral_cloning_loss).backward()
    return finish(list(loss), data, data.return_.numel())


def finish(results: list[Tensor], data: Any, n: int) -> list[Tensor]:
    """The results, then n times the gradients of the leaves; float64 on the CPU."""
    return [x.detach().double().cpu() for x in results] + [n * x.grad.double().cpu() for x in leaves(data)]


def assert_close(got: list[Tensor], wanted: list[Tensor], dtype: torch.dtype = torch.float32, n_sum: int = 4) -> None:
    """The first n_sum results are float32 sums for any dtype; the others are gradients in dtype."""
    for i, (x, y) in enumerate(zip(got, wanted, strict=True)):
        rounding = 1e-5 if dtype == torch.float32 or i < n_sum else 2**-6
        torch.testing.assert_close(x, y, rtol=rounding, atol=rounding)


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether all results have the same bits."""
    return all(torch.equal(x, y) for x, y in zip(one, other, strict=True))
