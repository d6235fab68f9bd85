"""Operations that make the host wait for a device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Crossings(TorchDispatchMode):
    """Counts non-blocking copies from host to device; records every other operation with tensors on both.

    A 0-dim tensor of the host in an operation on a device is a kernel argument, not a crossing. Random numbers are no
    crossing either: those for a GPU are drawn there, but 'meta' has no generator.
    Args: counts_draws: random numbers count too; for code that draws them by a host generator for every device.
    """

    def __init__(self, counts_draws: bool = False) -> None:
        super().__init__()
        self._counts_draws = counts_draws
        self.waited: list[str] = []
        self.n_sent = 0
        self._drawn: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        drawn = ('aten::randperm', 'aten::exponential_', 'aten::normal_')
        if not self._counts_draws and func.name().split('.')[0] in drawn:
            self._drawn.append(out)
        where = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
        if func.name() not in ('aten::_to_copy', 'aten::copy_'):
            if len({x.device for x in where if x.dim()}) > 1:
                self.waited.append(func.name())
            return out
        target, source = (args[0], args[1]) if func.name() == 'aten::copy_' else (out, args[0])
        non_blocking = kwargs.get('non_blocking', args[2] if func.name() == 'aten::copy_' and len(args) > 2 else False)
        if target.device != source.device and not any(source.data_ptr() == x.data_ptr() for x in self._drawn):
            if non_blocking and source.device.type == 'cpu':
                self.n_sent += 1
            else:
                self.waited.append(func.name())
        return out
