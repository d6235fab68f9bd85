"""Fused GPU versions of the losses and estimators beside, one op per file; who calls `zoo.rl_utils` need not know them.

`find` picks: the kernel where the tensors are on a GPU and the case is covered, else the reference. The environment
variable ZOO_KERNELS, read when zoo is imported, says otherwise: 0, always the reference; interpret, kernels on CPU
tensors too, which Triton runs under TRITON_INTERPRET=1 (slowly, for tests).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from zoo.backend.trace import is_tracing

MAX_COLUMN = 16384  # choices or action dimensions: a row is held in the registers of one block
MODE = os.environ.get('ZOO_KERNELS', 'auto')
if MODE not in ('auto', '0', 'interpret'):
    raise ValueError(
        f"the environment variable ZOO_KERNELS is {MODE!r} but must be 'auto', '0' or 'interpret'; unset it for 'auto'"
    )

_FILES = {
    'gae': 'gae',
    'ppo_policy_error': 'ppo_policy',
    'ppo_value_error': 'ppo_value',
    'ppg_joint_error': 'ppg_joint',
}
_HAS_TRITON = find_spec('triton') is not None
_FLOATS = (torch.float32, torch.bfloat16)
_loaded: dict[str, Callable[..., Any]] = {}
_ready: set[tuple[str, str]] = set()


def find(op: str, *tensors: Tensor | None) -> Callable[..., Any] | None:
    """The kernel of an op for these tensors, its arguments in the reference's order; None: use the reference."""
    first = tensors[0]
    if first is not None and not first.is_cuda and MODE != 'interpret':  # the hot case on a CPU
        return None
    if is_tracing():  # a graph of zoo.backend.trace: of the reference, whose operations it fuses with those around them
        return None
    if _obstacle(op, tensors) or not _load(op, str(first.device) if first is not None else 'cpu'):
        return None
    return _loaded[op]


def explain(op: str, *tensors: Tensor | Mapping[str, Tensor] | None) -> str:
    """Says which version an op uses on these tensors, and why.

    Args: op: 'gae', 'ppo_policy_error', 'ppo_value_error' or 'ppg_joint_error'; tensors: its inputs in their order, but
      not logit_pretrained, whose divergence the reference computes in any case.
    Returns: 'kernel: ...' or 'reference: ...'. Raises: ValueError if no op has that name, or there is no tensor.
    """
    if op not in _FILES:
        raise ValueError(f'op is {op!r} but kernels are for {", ".join(_FILES)}; give one of these')
    parts = [part for x in tensors for part in (x.values() if isinstance(x, Mapping) else [x]) if part is not None]
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise ValueError(
            f'{op} got {[type(x).__name__ for x in tensors]}; give its tensors one by one, as explain(op, *data)'
        )
    obstacle = _obstacle(op, tuple(parts))
    return f'reference: {obstacle}' if obstacle else f'kernel: zoo.rl_utils.kernels.{_FILES[op]}'


def _obstacle(op: str, tensors: tuple[Tensor | None, ...]) -> str:
    """Why the kernel can't be used; empty if it can."""
    given = [x for x in tensors if x is not None]
    first = given[0]
    if MODE == '0':
        return 'ZOO_KERNELS=0'
    if not first.is_cuda and MODE != 'interpret':
        return f'the tensors are on {first.device}, kernels need CUDA'
    for x in given:
        if x.device != first.device:
            return f'tensors are on {first.device} and {x.device}'
        if x.is_floating_point() and x.dtype not in _FLOATS:
            return f'{str(x.dtype).removeprefix("torch.")} is not covered, only float32 and bfloat16'
    if op in ('ppo_policy_error', 'ppg_joint_error') and first.shape[-1] > MAX_COLUMN:
        return f'rows of {first.shape[-1]} are not covered, only up to {MAX_COLUMN}'
    return '' if _HAS_TRITON else 'triton is not installed; it comes with the CUDA builds of torch'


def _load(op: str, device: str) -> bool:
    if (op, device) not in _ready:
        _loaded[op] = import_module(f'{__name__}.{_FILES[op]}').apply
        import_module(f'{__name__}.launch').prepare(torch.device(device))
        _ready.add((op, device))
    return True


# What torch.compiler.assume_constant_result sets, so that the import is not traced, only what it brings; the decorator
# itself would load the compiler with `import zoo.rl_utils`.
_load._dynamo_marked_constant = True  # type: ignore[attr-defined]
