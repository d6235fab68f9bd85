"""Fused GPU versions of the losses and estimators of `zoo.rl_utils`, one op per file; their callers need not know them.

`find` chooses: the kernel where the tensors are on a GPU and the case is covered, else the reference, which is the code
in `zoo.rl_utils` itself. The environment variable ZOO_KERNELS, read when zoo is imported, overrides that:
0: always the reference; interpret: kernels on CPU tensors too, which Triton runs under TRITON_INTERPRET=1 (slowly, for
tests).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from zoo.rl_utils.distribution import ActionDist, Logit, from_logits

MAX_COLUMN = 16384  # choices or action dimensions: a row is held in the registers of one block
MODE = os.environ.get('ZOO_KERNELS', 'auto')
if MODE not in ('auto', '0', 'interpret'):
    raise ValueError(
        f"the environment variable ZOO_KERNELS is {MODE!r} but must be 'auto', '0' or 'interpret'; unset it for 'auto'"
    )

ENABLED = MODE == 'interpret' or (MODE == 'auto' and torch.backends.cuda.is_built())
"""False where no tensor can have a kernel: `find` need not be asked."""
_FILES = {
    'gae': 'gae',
    'ppo_policy_error': 'ppo_policy',
    'ppo_value_error': 'ppo_value',
    'ppg_joint_error': 'ppg_joint',
}
_HAS_TRITON = find_spec('triton') is not None
_OF_POLICIES = ('ppo_policy_error', 'ppg_joint_error')  # whose first two tensors are logits
_DISTRIBUTIONS = ('categorical', 'gaussian')
_FLOATS = (torch.float32, torch.bfloat16)
_disabled = False
_loaded: dict[str, Callable[..., Any]] = {}
_ready: set[tuple[str, str]] = set()


def find(
    op: str, *tensors: Tensor | None, dist: ActionDist | None = None, numbers: tuple[Any, ...] = ()
) -> Callable[..., Any] | None:
    """The kernel of an op for these tensors; None: use the reference.

    Args: dist: the distribution that the op's first two tensors are parameters of; numbers: arguments that a kernel
      takes as plain numbers: with a tensor among them the reference is used.
    """
    first = tensors[0]
    if first is None or (not first.is_cuda and MODE != 'interpret'):
        return None
    if _disabled or any(isinstance(x, Tensor) for x in numbers) or _obstacle(op, tensors, dist):
        return None
    return _loaded[op] if _load(op, str(first.device)) else None


@contextmanager
def disabled() -> Iterator[None]:
    """Inside, every op uses its reference: a compiler that traces one can fuse it with the operations around it."""
    global _disabled
    before, _disabled = _disabled, True
    try:
        yield
    finally:
        _disabled = before


def explain(op: str, *tensors: Logit | None, dist: ActionDist | None = None) -> str:
    """Says which version an op uses on these tensors, and why.

    Args:
      op: 'gae', 'ppo_policy_error', 'ppo_value_error' or 'ppg_joint_error'.
      tensors: its inputs in their order, logits in any form that the op takes; not logit_pretrained, whose divergence
        the reference always computes.
      dist: as the op takes it.
    Returns: 'kernel: ...' or 'reference: ...'. Raises: ValueError if no op has that name, or there is no tensor.
    """
    if op not in _FILES:
        raise ValueError(f'op is {op!r} but kernels are for {", ".join(_FILES)}; give one of these')
    if dist is None and op in _OF_POLICIES and tensors and tensors[0] is not None:
        dist, *logits = from_logits(tensors[0], *tensors[1:2])
        tensors = (*logits, *tensors[2:])
    given = [x for x in tensors if x is not None]
    if not given or not all(isinstance(x, Tensor) for x in given):
        raise ValueError(
            f'{op} got {[type(x).__name__ for x in tensors]}; give its tensors one by one, as explain(op, *data)'
        )
    obstacle = _obstacle(op, given, dist)
    return f'reference: {obstacle}' if obstacle else f'kernel: zoo.rl_utils.kernels.{_FILES[op]}'


def _obstacle(op: str, tensors: Sequence[Any], dist: ActionDist | None) -> str:
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
    if dist is not None:
        if dist.name not in _DISTRIBUTIONS:
            return f'the distribution {dist.name!r} is not covered, only {" and ".join(_DISTRIBUTIONS)}'
        n_column = dist.n_action or dist.n_param
        if n_column > MAX_COLUMN:
            return f'rows of {n_column} are not covered, only up to {MAX_COLUMN}'
    return '' if _HAS_TRITON else 'triton is not installed; it comes with the CUDA builds of torch'


def _load(op: str, device: str) -> bool:
    if (op, device) not in _ready:
        _loaded[op] = import_module(f'{__name__}.{_FILES[op]}').apply
        import_module(f'{__name__}.launch').prepare(torch.device(device))
        _ready.add((op, device))
    return True


# What torch.compiler.assume_constant_result sets: a compiler then calls `_load` instead of tracing its imports. The
# decorator itself would load the compiler with `import zoo.rl_utils`.
_load._dynamo_marked_constant = True  # type: ignore[attr-defined]
