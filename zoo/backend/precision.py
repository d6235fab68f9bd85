"""Number formats of updates: forward passes in bfloat16 or float16, with float32 parameters and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from zoo.core.data import Columns, map_tensors

UpdatePrecision = Literal['fp32', 'bf16', 'fp16']
DTYPES = {'bf16': torch.bfloat16, 'fp16': torch.float16}


@dataclass(frozen=True)
class ForwardInPrecision:
    """Runs a method of a model on a minibatch by `forward`, which computes in a number format; the output is float32."""

    precision: Literal['bf16', 'fp16']
    forward: Callable[..., Any]

    def __call__(self, model: nn.Module, method: str, minibatch: Columns) -> Any:
        if not torch.is_grad_enabled():  # no step: passes that only measure the policy stay in float32
            return self.forward(model, method, minibatch)
        device = next(iter(model.parameters())).device
        with torch.autocast(device.type, DTYPES[self.precision]):  # only forward passes belong in it
            output, rows = self.forward(model, method, minibatch)
        return map_tensors(lambda x: x.float() if x is not None and x.is_floating_point() else x, output), rows


def precision_problem(precision: UpdatePrecision, device: torch.device) -> str:
    """Why a device cannot train in a format, in a sentence; empty if it can."""
    if precision != 'fp16' or device.type == 'cuda':
        return ''
    return (
        f"policy.learn.precision is 'fp16' but the device is {device.type}, and fp16 is for CUDA GPUs; "
        "use 'bf16' or 'fp32', or policy.device=cuda"
    )
