"""Fused GPU kernels of the losses and estimators of `zoo.rl_utils`, one op per file; callers need not know of them.

`find` chooses the kernel if the tensors are on a GPU and a kernel covers the case. Otherwise it chooses the reference, which
is the code in `zoo.rl_utils` itself. The environment variable ZOO_KERNELS, read when zoo is imported, overrides that:
0: always the reference; interpret: kernels on CPU tensors too, which Triton runs under TRITON_INTERPRET=1 (slowly, for
tests).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from operator import index
from typing import Any

import torch
from torch import Tensor

from zoo.rl_utils.distribution import ActionDist, Logit, from_logits, own_name

MAX_COLUMN = 16384  # largest number of options of a choice, or of action dimensions: a block holds them in registers
MAX_PADDING = 8  # choices are padded to the largest of them: at most to this multiple of their logits
MODE = os.environ.get('ZOO_KERNELS', 'auto')
if MODE not in ('auto', '0', 'interpret'):
    raise ValueError(
        f"the environment variable ZOO_KERNELS is {MODE!r} but must be 'auto', '0' or 'interpret'; unset it for 'auto'"
    )

ENABLED = MODE == 'interpret' or (MODE == 'auto' and torch.backends.cuda.is_built())
"""False where no tensor can have a kernel, so that callers can skip `find`."""
_FILES = {
    'gae': 'gae',
    'ppo_policy_error': 'ppo_policy',
    'ppo_value_error': 'ppo_value',
    'ppg_joint_error': 'ppg_joint',
}
_HAS_TRITON = find_spec('triton') is not None
_OF_POLICIES = ('ppo_policy_error', 'ppg_joint_error')  # whose first two tensors are logits
# The exchangeable component of an op's loss: (its kind, names of zoo's own that are covered, the default first).
_PARTS = {'ppo_policy_error': ('surrogate', ('clip', 'spo')), 'ppo_value_error': ('value loss', ('mse', 'clip'))}
_DISTRIBUTIONS = ('categorical', 'multi_categorical', 'gaussian')  # zoo's own: a subclass may compute something else
_FLOATS = (torch.float32, torch.bfloat16)
_disabled = False
# The kernel of each op, once it is loaded. A compiler reads a container once for a whole function, so each op has its own.
_loaded: dict[str, list[Callable[..., Any]]] = {op: [] for op in _FILES}
_ready: set[tuple[str, str, tuple[int, ...]]] = set()


def find(
    op: str, *tensors: Tensor | None, dist: ActionDist | None = None, numbers: tuple[Any, ...] = (), part: Any = None
) -> Callable[..., Any] | None:
    """The kernel of an op for these tensors; None: use the reference.

    Args: dist: the distribution whose parameters are the op's first two tensors; numbers: arguments that a kernel takes as
      plain numbers (if one of them is a tensor, the reference is used); part: the surrogate or the value loss,
      a function or a `zoo.config.components.Component`; None: that of PPO.
    """
    first = tensors[0]
    if first is None or (not first.is_cuda and MODE != 'interpret'):
        return None
    if _disabled or any(isinstance(x, Tensor) for x in numbers) or _obstacle(op, tensors, dist, part):
        return None
    nvec: tuple[int, ...] = ()
    if dist is not None:
        _, nvec = layout_of(dist)
    if _load(op, str(first.device), nvec):
        return _loaded[op][0]
    return None


def reach(x: Tensor) -> bool:
    """Whether kernels may be used for tensors on the device of this one, if `ENABLED`."""
    return not _disabled and (x.is_cuda or MODE == 'interpret')


@contextmanager
def disabled() -> Iterator[None]:
    """Context in which every op uses its reference, which a compiler can fuse with the operations around it."""
    global _disabled
    before = _disabled
    _disabled = True
    try:
        yield
    finally:
        _disabled = before


def explain(op: str, *tensors: Logit | None, dist: ActionDist | None = None, part: Any = None) -> str:
    """Says which version an op uses on these tensors, and why.

    Args:
      op: 'gae', 'ppo_policy_error', 'ppo_value_error' or 'ppg_joint_error'.
      tensors: its inputs in their order, logits in any form that the op takes; not logit_pretrained, whose divergence
        the reference always computes.
      dist: as the op takes it. part: as `find` takes it.
    Returns: 'kernel: ...' or 'reference: ...'. Raises: ValueError if no op has that name, or there is no tensor.
    """
    if op not in _FILES:
        raise ValueError(f'op is {op!r} but kernels are for {", ".join(_FILES)}; give one of these')
    if dist is None and op in _OF_POLICIES and tensors and tensors[0] is not None:
        dist, *logits = from_logits(tensors[0], *tensors[1:2])
        tensors = (*logits, *tensors[2:])
    present = [x for x in tensors if x is not None]
    if not present or not all(isinstance(x, Tensor) for x in present):
        raise ValueError(
            f'{op} got {[type(x).__name__ for x in tensors]}; give its tensors one by one, as explain(op, *data)'
        )
    obstacle = _obstacle(op, present, dist, part)
    if obstacle:
        return f'reference: {obstacle}'
    return f'kernel: zoo.rl_utils.kernels.{_FILES[op]}'


def layout_of(dist: ActionDist) -> tuple[str, tuple[int, ...]]:
    """The layout of a row of parameters: (name of a distribution, the sizes of its choices if there are several).

    A multi_categorical of one choice has the layout of a categorical, so that both give the same numbers.
    """
    if hasattr(dist, 'nvec'):
        nvec = tuple(map(index, dist.nvec))  # plain integers: a compiler may have replaced them by symbols
        if len(nvec) > 1:
            return (dist.name, nvec)
        return ('categorical', ())
    return dist.name, ()


def part_name(op: str, part: Any) -> str:
    """The name of an op's surrogate or value loss, a function or a Component; empty if it is a user's own."""
    if part is None:
        return _PARTS[op][1][0]
    is_own = getattr(part, 'function', part).__module__.startswith('zoo.rl_utils.')
    if is_own:
        return _any_name(part)
    return ''


def _any_name(part: Any) -> str:
    return str(getattr(part, 'name', getattr(part, '__name__', type(part).__name__)))


def columns_of(kind: str, nvec: Sequence[int], n_param: int) -> int:
    """The number of columns of a row that are needed at once: those of the largest choice, or one per action dimension."""
    if nvec:
        return max(nvec)
    if kind == 'gaussian':
        return n_param // 2
    return n_param


def _obstacle(op: str, tensors: Sequence[Any], dist: ActionDist | None, part: Any = None) -> str:
    """Why the kernel can't be used; empty if it can."""
    present = [x for x in tensors if x is not None]
    first = present[0]
    if MODE == '0':
        return 'ZOO_KERNELS=0'
    if not first.is_cuda and MODE != 'interpret':
        return f'the tensors are on {first.device}, kernels need CUDA'
    for x in present:
        if x.device != first.device:
            return f'tensors are on {first.device} and {x.device}'
        if x.is_floating_point() and x.dtype not in _FLOATS:
            return f'{str(x.dtype).removeprefix("torch.")} is not covered, only float32 and bfloat16'
    if dist is not None and (obstacle := _obstacle_of(dist)):
        return obstacle
    if op in _PARTS and part_name(op, part) not in _PARTS[op][1]:
        kind, names = _PARTS[op]
        return f'the {kind} {_any_name(part)!r} is not covered, only {" and ".join(names)} of zoo'
    if _HAS_TRITON:
        return ''
    return 'triton is not installed; it comes with the CUDA builds of torch'


def _obstacle_of(dist: ActionDist) -> str:
    if own_name(dist) not in _DISTRIBUTIONS:
        covered = f'{", ".join(_DISTRIBUTIONS[:-1])} and {_DISTRIBUTIONS[-1]}'
        return f'the distribution {dist.name!r} ({type(dist).__name__}) is not covered, only {covered}'
    kind, nvec = layout_of(dist)
    n_column = columns_of(kind, nvec, dist.n_param)
    if n_column > MAX_COLUMN:
        return f'rows of {n_column} are not covered, only up to {MAX_COLUMN}'
    if len(nvec) * n_column > MAX_PADDING * dist.n_param:
        return (
            f'{len(nvec)} choices, the largest of {n_column} options, would take over {MAX_PADDING} times their '
            f'{dist.n_param} logits'
        )
    return ''


def _load(op: str, device: str, nvec: tuple[int, ...]) -> bool:
    if (op, device, nvec) not in _ready:
        _loaded[op][:] = [import_module(f'{__name__}.{_FILES[op]}').apply]
        import_module(f'{__name__}.launch').prepare(torch.device(device), nvec)
        _ready.add((op, device, nvec))
    return True


# The mark that torch.compiler.assume_constant_result sets: a compiler then calls `_load` instead of tracing its imports. The
# decorator itself would make `import zoo.rl_utils` load the compiler.
_load._dynamo_marked_constant = True  # type: ignore[attr-defined]
