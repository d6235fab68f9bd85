"""Whether a layer may be computed from its tensors, without the call of its module, which takes longer."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.module import _has_any_global_hook


def may_skip_call(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of the module only runs `kind.forward`: it has no hook, no `forward` of its own and is of no subclass."""
    return may_skip_calls((module,), kind)


def may_skip_calls(modules: Iterable[nn.Module], kind: type[nn.Module]) -> bool:
    """Whether this holds for each of the modules. One question about all layers takes a third of the time of one for each."""
    if _has_any_global_hook():
        return False
    for module in modules:
        own = module.__dict__
        if type(module) is not kind or 'forward' in own:
            return False
        if own['_forward_hooks'] or own['_forward_pre_hooks'] or own['_backward_hooks'] or own['_backward_pre_hooks']:
            return False
    return True
