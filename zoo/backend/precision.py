"""Number formats of updates: a model that computes in bfloat16 or float16 with float32 parameters and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from zoo.core.data import map_tensors

UpdatePrecision = Literal['fp32', 'bf16', 'fp16']
DTYPES = {'bf16': torch.bfloat16, 'fp16': torch.float16}


def in_precision(model: nn.Module, precision: UpdatePrecision) -> Any:
    """A model whose methods `compute_*` calculate in a format and return float32; for fp32 the model itself."""
    return model if precision == 'fp32' else _LowPrecision(model, precision)


@dataclass(frozen=True)
class ForwardInPrecision:
    """Runs a method of a model on a minibatch by `forward`, in a number format; for gradient steps."""

    precision: UpdatePrecision
    forward: Callable[..., Any]

    def __call__(self, model: nn.Module, method: str, minibatch: Any) -> Any:
        return self.forward(in_precision(model, self.precision), method, minibatch)


def precision_problem(precision: UpdatePrecision, device: torch.device) -> str:
    """Why a device cannot train in a format, in a sentence; empty if it can."""
    if precision != 'fp16' or device.type == 'cuda':
        return ''
    return (
        f"policy.learn.precision is 'fp16' but the device is {device.type}, and fp16 is for CUDA GPUs; "
        "use 'bf16' or 'fp32', or policy.device=cuda"
    )


class _LowPrecision:
    """Passes all attributes of a model on; its methods `compute_*` run under autocast."""

    def __init__(self, model: nn.Module, precision: UpdatePrecision) -> None:
        self._model, self._precision = model, precision

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__') or '_model' not in vars(self):  # while it is copied or unpickled
            raise AttributeError(name)
        found = getattr(self._model, name)
        if not (name.startswith('compute_') and callable(found)):
            return found

        def compute(*args: Any) -> Any:
            device = next(iter(self._model.parameters())).device
            with torch.autocast(device.type, DTYPES[self._precision]):  # only forward passes belong in it
                output = found(*args)
            return _in_float32(output)

        return compute


def _in_float32(output: Any) -> Any:
    """Outputs of a model (tensors in tuples and dicts) with floats as float32; None stays."""
    if isinstance(output, tuple):
        return tuple(map(_in_float32, output))
    return map_tensors(lambda x: x.float() if x is not None and x.is_floating_point() else x, output)
