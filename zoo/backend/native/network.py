"""Models and updates that the native executor knows: their description for it, or why it cannot run them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from zoo.backend.executor import forward_rows
from zoo.backend.native.bindings import MAX_LAYER, Activation, Dist, Input, Kind, Model, StepSpec, Surrogate, ValueLoss
from zoo.model.actor_critic import PPG, VAC, ActorCritic
from zoo.model.encoder import MLP
from zoo.model.images import Pixels
from zoo.model.inputs import DictInput, NormedVector, OneHot, OneHots, ToVector
from zoo.model.layers import ValueHead
from zoo.rl_utils.distribution import ActionDist, own_name
from zoo.rl_utils.distributions.gaussian import Gaussian, GaussianHead
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
_HEADS = {'categorical': nn.Linear, 'multi_categorical': nn.Linear, 'gaussian': GaussianHead}
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
    if own_name(dist) not in _HEADS:
        return f'the native executor does not know the action distribution {type(dist).__name__}'
    if not isinstance(model, ActorCritic) or kind not in (VAC, PPG):
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


def _is_other_head(model: ActorCritic, dist: ActionDist) -> bool:
    """Whether the policy head does not fit the distribution, or the model's own distribution is another one."""
    head, own, n_out = model.policy_head, model.dist, dist.n_param
    if type(own) is not type(dist) or getattr(own, 'nvec', None) != getattr(dist, 'nvec', None):
        return True
    if type(head) is not _HEADS[dist.name] or any(map(_has_own_method, (own, dist))):
        return True
    if isinstance(head, GaussianHead):
        head, n_out = head.mu, dist.n_action
    return bool(head.out_features != n_out)


def modules_of(module: nn.Module) -> list[nn.Module]:
    """The module and all below it, a module with two names twice; faster than `nn.Module.modules`."""
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


def _has_own_method(x: object) -> bool:
    return _hides_method(type(x), tuple(vars(x)))  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _hides_method(kind: type, names: tuple[str, ...]) -> bool:
    """Whether one of these attributes of an object hides a method of its class."""
    return any(callable(getattr(kind, name, None)) for name in names)


def _is_changed(model: ActorCritic) -> bool:
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


def model_of(model: ActorCritic, dist: ActionDist, obs_dtype: torch.dtype = torch.float32) -> Model:
    """Describes a model without obstacle by its tensors; obs_dtype: that of the observations that the networks see."""
    head, is_shared = model.policy_head, model.critic_encoder is model.actor_encoder
    stage = model.input.norm if isinstance(model.input, NormedVector) else model.input
    options: dict[str, Any] = {'input': Input.BOOL if obs_dtype == torch.bool else Input.FLOAT, 'policy_head': head}
    if isinstance(head, GaussianHead):
        options |= {'policy_head': head.mu, 'log_std_min': head.log_std_min, 'log_std_max': head.log_std_max}
        options |= {'log_std': head.log_std} if head.log_std_layer is None else {'std_head': head.log_std_layer}
    if isinstance(stage, OneHot):
        options['input'] = Input.INDEX
    elif isinstance(stage, RunningMeanStd):
        options |= {'input': Input.NORMALIZED, 'shift': stage.shift, 'scale': stage.scale, 'obs_clip': stage.clip}
    return Model(
        n_input=model.actor_encoder.layers[0].in_features,
        activation=Activation[model.actor_encoder.activation.upper()],
        actor=model.actor_encoder.layers,
        critic=None if is_shared else model.critic_encoder.layers,
        distribution=Dist.GAUSSIAN if isinstance(dist, Gaussian) else Dist.CATEGORICAL,
        nvec=getattr(dist, 'nvec', None),
        value_head=cast(nn.Linear, model.value_head.layer),
        aux_head=model.aux_head.layer if isinstance(model, PPG) else None,
        stop_value_gradient=model.arch == 'detach',
        **options,
    )


_SURROGATES = {
    'clip': Surrogate.CLIP,
    'asymmetric_clip': Surrogate.CLIP,
    'none': Surrogate.UNCLIPPED,
    'spo': Surrogate.SPO,
}
_VALUE_LOSSES = {
    'mse': ValueLoss.MSE,
    'clip': ValueLoss.CLIPPED_VALUE,
    'error_clip': ValueLoss.CLIPPED_ERROR,
    'huber': ValueLoss.HUBER,
}
_KNOWN_COMPONENTS: dict[str, tuple[str, ...]] = {
    'surrogate': tuple(_SURROGATES),
    'value loss': tuple(_VALUE_LOSSES),
    'penalty': ('kl',),
    'optimizer': ('adam',),
    'proximal policy': ('behaviour',),
}
_OPTIONS = {'asymmetric_clip': ('high',), 'clip': ('range',), 'error_clip': ('range',), 'huber': ('delta',)}
_OF_STEPS = ('surrogate', 'value_loss', 'terms', 'term_weights', 'policy_loss', 'forward', 'columns')


def unknown_parts(components: Sequence[Any]) -> str:
    """Why the native executor cannot run updates that have these components, as the end of a sentence; empty if it can.

    Args: components: each with `kind` and `name`, as a `zoo.config.components.Component`; those of the kind 'option' are keys
      of the config that C does not know. Other kinds that no gradient step has are ignored.
    """
    for component in components:
        if component.kind == 'option':
            return f'the native executor does not know {component.name}'
        if component.kind not in _KNOWN_COMPONENTS:
            continue
        if component.name not in _KNOWN_COMPONENTS[component.kind]:
            return f'the native executor does not know the {component.kind} {component.name!r}'
        home = getattr(getattr(component, 'function', None), '__module__', 'zoo')
        if home.partition('.')[0] != 'zoo':  # registered in place of zoo's own, by `register(name, force=True)`
            return f'the native executor does not know the {component.kind} {component.name!r} of {home}'
        known = _OPTIONS.get(component.name, ())
        given = [] if component.kind == 'optimizer' else getattr(component, 'options', ())
        for name in [name for name, x in given if x is not None and name not in known]:
            return f'the native executor does not know the option {name!r} of the {component.kind} {component.name!r}'
    n = sum(component.kind == 'penalty' for component in components)
    return f'the native executor takes one penalty, not {n}' if n > 1 else ''


def knows_components(kind: Kind, numbers: Any) -> bool:
    """Whether C has all components that a step of this kind reads from its numbers."""
    is_plain = getattr(numbers, 'policy_loss', None) is None and numbers.forward is forward_rows
    return is_plain and not unknown_parts(_components_of(kind, numbers))


def step_spec(kind: Kind, normalize_adv: bool, numbers: Any) -> StepSpec:
    """The options of a step, from its numbers (see zoo.policy.gradient_steps), whose components are all known."""
    fields = {name: x for name, x in numbers._asdict().items() if name not in _OF_STEPS}
    clip_ratio = fields.pop('clip_ratio', None)
    if clip_ratio is not None:
        fields |= {'clip_low': clip_ratio, 'clip_high': clip_ratio}
    for component in _components_of(kind, numbers):
        options = dict(component.options)
        if component.kind == 'surrogate':
            fields['surrogate'] = _SURROGATES[component.name]
            fields['clip_high'] = options.get('high', clip_ratio)
        elif component.kind == 'value loss':
            fields['value_loss'] = _VALUE_LOSSES[component.name]
            limit = options.get('delta' if component.name == 'huber' else 'range')
            fields['value_range'] = clip_ratio if limit is None else limit
        else:
            (fields['kl_penalty'],) = numbers.term_weights
    return StepSpec(kind=kind, normalize_adv=normalize_adv, **fields)


def _components_of(kind: Kind, numbers: Any) -> list[Any]:
    """The components that a step of this kind reads; the numbers of a step on the policy alone name an unread value loss too."""
    components = [numbers.surrogate, *numbers.terms] if kind in (Kind.PPO, Kind.POLICY) else []
    return [*components, numbers.value_loss] if kind in (Kind.PPO, Kind.VALUE) else components
