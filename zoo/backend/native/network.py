"""Describes a stock model to the native executor, or says why it cannot run it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from zoo.backend.native.arguments import Linear, ModelSpec
from zoo.backend.native.structures import MAX_LAYER, Activation, Dist, Input
from zoo.model.actor_critic import VAC
from zoo.model.images import Pixels
from zoo.model.inputs import DictInput, NormedVector, OneHots, ToVector
from zoo.model.mlp import MLP, OneHot, ValueHead
from zoo.model.ppg import PPG
from zoo.rl_utils.categorical import Categorical
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.gaussian import Gaussian, GaussianHead
from zoo.rl_utils.multi_categorical import MultiCategorical
from zoo.rl_utils.normalizer import RunningMeanStd

_OTHER_INPUTS = {Pixels: 'images', OneHots: 'several indices', DictInput: 'several entries'}
_PARTS: dict[str, tuple[type, ...]] = {
    'input': (nn.Identity, OneHot, RunningMeanStd, ToVector, NormedVector),
    'actor_encoder': (MLP,),
    'critic_encoder': (MLP,),
    'policy_head': (nn.Linear, GaussianHead),
    'value_head': (ValueHead,),
    'aux_head': (ValueHead,),
}
_HEADS = {Categorical: nn.Linear, MultiCategorical: nn.Linear, Gaussian: GaussianHead}
_KNOWN = {VAC, PPG, nn.Linear, nn.ModuleList, *(kind for kinds in _PARTS.values() for kind in kinds)}
_HOOKS = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks')


def obstacle_of_model(model: nn.Module, dist: ActionDist, device: torch.device) -> str:
    """Why the native executor cannot run a model, as the end of a sentence; empty if it can.

    It knows the classes `VAC` and `PPG` and their fully connected parts exactly: a subclass, a replaced part or a hook
    may compute something else.
    """
    kind = type(model)
    if device.type != 'cpu':
        return f'the native executor runs on a CPU and the policy is on {device}'
    if type(dist) not in _HEADS:
        return f'the native executor does not know the action distribution {type(dist).__name__}'
    if kind not in (VAC, PPG):
        return f'the native executor runs the models VAC and PPG of zoo, not {kind.__name__}'
    for name, part in model.named_children():
        if why := _obstacle_of_part(name, part):
            return why
    if _is_other_head(model, dist) or _is_changed(model):
        return 'a part of the model was replaced or has a hook, which the native executor does not run'
    if _has_any_global_hook():
        return 'there is a hook on all modules, which the native executor does not run'
    if any(type(p) is not nn.Parameter or p.dtype != torch.float32 for p in parameters_of(modules_of(model))):
        return 'the native executor computes in float32 and a parameter of the model is of another type'
    return ''


def _obstacle_of_part(name: str, part: Any) -> str:
    if type(part) in _OTHER_INPUTS and name == 'input':
        return f'the native executor takes a vector or an index as input, not {_OTHER_INPUTS[type(part)]}'
    if type(part) is nn.Sequential and name in ('policy_head', 'value_head'):
        return f'the native executor has no hidden layers in {name}'
    if type(part) not in _PARTS.get(name, ()):
        return f'the native executor has no {type(part).__name__} as {name}'
    if type(part) is not MLP:
        return ''
    if len(part.layers) > MAX_LAYER:
        return f'the native executor takes up to {MAX_LAYER} layers and {name} has {len(part.layers)}'
    if part.norms is not None:
        return f'the native executor has no layer normalisation, as in {name}'
    if part.activation.upper() not in Activation.__members__:
        return f'the native executor has the activations tanh and relu, not {part.activation}'
    return ''


def _is_other_head(model: Any, dist: ActionDist) -> bool:
    """Whether the policy head gives other numbers than the distribution takes, or the model's is another one."""
    head, own, n_out = model.policy_head, model.dist, dist.n_param
    if type(own) is not type(dist) or getattr(own, 'nvec', None) != getattr(dist, 'nvec', None):
        return True
    if type(head) is not _HEADS[type(dist)] or any(map(_has_own_method, (own, dist))):
        return True
    if isinstance(head, GaussianHead):
        head, n_out = head.mu, dist.n_action
    return head.out_features != n_out


def modules_of(module: nn.Module) -> list[nn.Module]:
    """The module and all below it, one that has two names twice; quicker than `nn.Module.modules`."""
    found = [module]
    for child in module._modules.values():
        if child is not None:
            found += modules_of(child)
    return found


def parameters_of(modules: list[nn.Module]) -> list[nn.Parameter]:
    """The modules' own parameters, without those of modules below them."""
    return [p for module in modules for p in module._parameters.values() if p is not None]


def buffers_of(modules: list[nn.Module]) -> list[Tensor]:
    """The modules' own buffers, without those of modules below them."""
    return [x for module in modules for x in module._buffers.values() if x is not None]


def _has_own_method(x: Any) -> bool:
    return _hides_method(type(x), tuple(vars(x)))  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _hides_method(kind: type, names: tuple[str, ...]) -> bool:
    """Whether one of these attributes of an object hides a method of its class."""
    return any(callable(getattr(kind, name, None)) for name in names)


def _is_changed(model: Any) -> bool:
    """Whether a part is of another class, has a hook or a method of its own, or shares a parameter with another."""
    children = dict.fromkeys(child for child in model._modules.values() if child is not None)  # each once
    parts = [part for child in children for part in modules_of(child)]
    for part in (model, *parts):
        if type(part) not in _KNOWN or _has_own_method(part) or any(vars(part).get(hook) for hook in _HOOKS):
            return True
        if type(part) is nn.Linear and part.bias is None:
            return True
    stage = model.input
    if type(stage) is NormedVector and (type(stage.vector), type(stage.norm)) != (ToVector, RunningMeanStd):
        return True
    params = parameters_of(parts)
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in params):
        return True
    is_shared = len({id(p) for p in params}) != len(params) or any(p is not None for p in model._parameters.values())
    if is_shared or (model.critic_encoder is not model.actor_encoder) != (model.arch == 'dual'):
        return True
    return model.actor_encoder.activation != model.critic_encoder.activation


def spec_of(model: Any, dist: ActionDist, obs_dtype: torch.dtype = torch.float32) -> ModelSpec:
    """A model without obstacle in terms of its tensors; obs_dtype: of the observations that the networks see."""
    head, is_shared = model.policy_head, model.critic_encoder is model.actor_encoder
    stage = model.input.norm if isinstance(model.input, NormedVector) else model.input
    first = model.actor_encoder.layers[0]
    spec = ModelSpec(
        input=Input.BOOL if obs_dtype == torch.bool else Input.FLOAT,
        n_input=first.in_features,
        activation=Activation[model.actor_encoder.activation.upper()],
        actor=_layers(model.actor_encoder),
        critic=None if is_shared else _layers(model.critic_encoder),
        distribution=Dist.GAUSSIAN if isinstance(dist, Gaussian) else Dist.CATEGORICAL,
        nvec=dist.nvec if isinstance(dist, MultiCategorical) else None,
        policy_head=_layer(head.mu if isinstance(head, GaussianHead) else head),
        value_head=_layer(model.value_head.layer),
        stop_value_gradient=model.arch == 'detach',
    )
    if isinstance(model, PPG):
        spec = spec._replace(aux_head=_layer(model.aux_head.layer))
    if isinstance(head, GaussianHead):
        spec = spec._replace(log_std_min=head.log_std_min, log_std_max=head.log_std_max)
        if head.log_std_layer is not None:
            spec = spec._replace(std_head=_layer(head.log_std_layer))
        else:
            spec = spec._replace(log_std=head.log_std)
    if isinstance(stage, OneHot):
        return spec._replace(input=Input.INDEX)
    if isinstance(stage, RunningMeanStd):
        return spec._replace(input=Input.NORMALIZED, shift=stage.shift, scale=stage.scale, obs_clip=stage.clip)
    return spec


def _layer(layer: nn.Linear) -> Linear:
    return Linear(layer.weight, layer.bias)


def _layers(mlp: MLP) -> list[Linear]:
    return [_layer(layer) for layer in mlp.layers]  # type: ignore[arg-type]
