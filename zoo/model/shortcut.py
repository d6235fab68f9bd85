"""Whether a layer may be computed from its tensors, without the call of its module, which takes longer."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.module import _has_any_global_hook

_HOOKS = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks')


def may_skip_call(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of the module only runs `kind.forward`: it has no hook, no `forward` of its own and is of no subclass."""
    own = module.__dict__
    if type(module) is not kind or 'forward' in own or _has_any_global_hook():
        return False
    return not (own[_HOOKS[0]] or own[_HOOKS[1]] or own[_HOOKS[2]] or own[_HOOKS[3]])
