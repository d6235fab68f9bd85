"""Checkpoints of AgileRL's PPO with fully connected networks, as `save_checkpoint` writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil, isqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from zoo.core.errors import shown
from zoo.core.spaces import Box, Dict, Space, is_image
from zoo.tools.exchange.form import ForeignModel, ModelFileError, Moments, NewPlace, placed
from zoo.tools.exchange.sb3 import LOG_STD, both_spaces_of

KINDS = ('exp_avg', 'exp_avg_sq')
RATES = ('gamma', 'gae_lambda', 'lr', 'clip_coef', 'ent_coef', 'vf_coef', 'max_grad_norm')
COUNTS = ('update_epochs', 'batch_size', 'learn_step', 'num_envs')
MAX_NUMBER = 10**8
"""The largest setting that is believed."""
LAYER = re.compile(
    r'(encoder|head_net)\.(?:_wrapped\.)?model\.\w+?_(linear_layer|layer_norm)_(\d+|output)\.(weight|bias)'
)
"""A parameter there: part of the network, kind of the layer, its number, and which of its two tensors it is."""


class _Stack(NamedTuple):
    """Fully connected layers: their widths, and the tensors of each by (kind, number of the layer, weight or bias)."""

    widths: tuple[int, ...]
    names: Mapping[tuple[str, int, str], str]


def is_agilerl(content: object) -> bool:
    """Whether what torch.load gives is a checkpoint of AgileRL."""
    return isinstance(content, Mapping) and {'agilerl_version', 'algo'} <= set(content)


def of_agilerl(path: Path, content: Mapping[str, Any]) -> ForeignModel:
    """Reads a checkpoint. Raises: ModelFileError for other algorithms and networks than PPO's on vectors."""
    _refuse_others(path, content)
    modules = _modules(path, content)
    obs_space, action_space = both_spaces_of(path, content)
    if isinstance(obs_space, Dict) or is_image(obs_space) or isinstance(obs_space, Box) and len(obs_space.shape) != 1:
        raise ModelFileError(path, 'is of a PPO on images, tables or several entries; import one on vectors')
    tensors = _tensors(path, modules)
    model: dict[str, Any] = {'precision': 'fp32'}
    places = _places(path, tensors, modules, model, action_space)
    weights = placed(tensors, places, path)
    left_out = [
        ('registry, metrics, hp_config', 'of its population: they begin anew, and their objects are not opened'),
        ('GAE', 'there it takes the end of an episode one step too early; here it does not'),
    ]
    learn, collect, n_env = _settings(path, content, left_out)
    moments = _moments(content, list(tensors), places, tensors, left_out)
    became = [
        (f'{len(tensors)} tensors of actor and critic', f'{sum(x.numel() for x in weights.values()):,} parameters')
    ]
    train_iter = 0
    if moments is not None:
        train_iter = int(moments.step_count)
        became.append(('optimizer', f'{", ".join(KINDS)} and {train_iter} steps of Adam'))
    env: dict[str, Any] = {'collector_env_num': n_env}
    if isinstance(action_space, Box):
        env['action_mode'] = 'clip'
    return ForeignModel(
        path=path,
        source=f'AgileRL {str(content["agilerl_version"])[:20]} PPO',
        config={'env': env, 'policy': {'type': 'ppo', 'model': model, 'collect': collect, 'learn': learn}},
        obs_space=obs_space,
        action_space=action_space,
        weights=weights,
        moments=moments,
        became=became,
        left_out=left_out,
        env_step=_count(content.get('steps')),
        train_iter=train_iter,
        places=places,
    )


def _refuse_others(path: Path, content: Mapping[str, Any]) -> None:
    """Raises: ModelFileError if it is no PPO, or one of a form that zoo does not have."""
    if not isinstance(content['algo'], str) or content['algo'] != 'PPO':
        raise ModelFileError(path, f'is of {shown(content["algo"])} of AgileRL; its PPO is imported: name such a file')
    if content.get('recurrent'):
        raise ModelFileError(path, 'is of a PPO with a memory of AgileRL; import one without recurrent=True')


def _modules(path: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entries of the networks. Raises: ModelFileError if there are none."""
    info = content.get('network_info')
    modules = info.get('modules') if isinstance(info, Mapping) else None
    names = [f'{role}_{part}' for role in ('actor', 'critic') for part in ('state_dict', 'init_dict')]
    if not isinstance(modules, Mapping) or not all(isinstance(modules.get(name), Mapping) for name in names):
        raise ModelFileError(
            path, 'has no parameters, as the files of agents that a tournament has released; save an agent in training'
        )
    return modules


def _tensors(path: Path, modules: Mapping[str, Any]) -> dict[str, Tensor]:
    """All parameters in the order of the optimiser: 'actor.' and 'critic.' and their names there."""
    found = {}
    for role in ('actor', 'critic'):
        for name, x in modules[f'{role}_state_dict'].items():
            if not isinstance(x, Tensor) or not x.is_floating_point():
                raise ModelFileError(path, f'has other entries than parameters in {role}_state_dict; save it again')
            found[f'{role}.{name}'] = x
    return found


def _places(
    path: Path, tensors: Mapping[str, Tensor], modules: Mapping[str, Any], model: dict[str, Any], action_space: Space
) -> dict[str, NewPlace]:
    """The places of all parameters; sets the section `policy.model`. Raises: ModelFileError for other networks."""
    configs = {role: modules[f'{role}_init_dict'] for role in ('actor', 'critic')}
    for role, config in configs.items():
        if config.get('simba') or config.get('squash_output') or config.get('encoder_cls') is not None:
            raise ModelFileError(
                path, f'has an {role} with simba, squash_output or an encoder of its own; import one with MLPs'
            )
    stacks = {(role, part): _stack(path, tensors, role, part) for role in configs for part in ('encoder', 'head_net')}
    encoders = {'actor_encoder': stacks['actor', 'encoder']}
    if stacks['critic', 'encoder'].widths:
        encoders['critic_encoder'] = stacks['critic', 'encoder']
    if len({stack.widths for stack in encoders.values()}) != 1:
        raise ModelFileError(
            path, 'has encoders of actor and critic with other widths each; import one with equal ones'
        )
    model['shared_encoder'] = len(encoders) == 1
    model['hidden_sizes'] = list(encoders['actor_encoder'].widths)
    _put_norms(path, configs, model)
    places: dict[str, NewPlace] = {}
    for here, stack in encoders.items():
        places |= _stack_places(stack, here)
    for role, name, key in (('actor', 'policy_head', 'actor_head'), ('critic', 'value_head', 'critic_head')):
        stack = stacks[role, 'head_net']
        if not stack.widths:
            raise ModelFileError(path, f'has no layers in the head of the {role}; save it again')
        model[key] = list(stack.widths[:-1])
        end = name
        if model[key]:
            end = f'{name}.1'
        last = len(stack.widths) - 1
        places |= {
            there: NewPlace(f'{name}.0.{_kind(kind)}.{i}.{part}')
            for (kind, i, part), there in stack.names.items()
            if i < last
        }
        inner = '.layer' if role == 'critic' else ''
        if role == 'actor' and isinstance(action_space, Box):
            inner = '.mu'
            places['actor.head_net.log_std'] = NewPlace(f'{end}.log_std', Tensor.flatten)
            model |= LOG_STD
        places |= {there: NewPlace(f'{end}{inner}.{part}') for (_, i, part), there in stack.names.items() if i == last}
    return places


def _stack(path: Path, tensors: Mapping[str, Tensor], role: str, part: str) -> _Stack:
    """The layers of one network. Raises: ModelFileError if it has others than fully connected ones."""
    found: list[tuple[str, str, str, str]] = []
    start = f'{role}.{part}.'
    for name in tensors:
        match = LAYER.fullmatch(name.removeprefix(f'{role}.'))
        if name.startswith(start) and name != 'actor.head_net.log_std':
            if match is None:
                raise ModelFileError(path, f'has the entry {name!r} of no fully connected layer; import one with MLPs')
            found.append((match[2], match[3], match[4], name))
    n_hidden = len({number for _, number, _, _ in found if number != 'output'})
    names = {}
    for kind, number, tensor, name in found:
        i = n_hidden
        if number != 'output':
            i = int(number) - 1
        names[kind, i, tensor] = name
    widths = [
        len(tensors[names['linear_layer', i, 'weight']])
        for i in range(n_hidden + 1)
        if ('linear_layer', i, 'weight') in names
    ]
    return _Stack(tuple(widths), names)


def _kind(kind: str) -> str:
    """The name here of the list that holds such layers."""
    return {'linear_layer': 'layers', 'layer_norm': 'norms'}[kind]


def _stack_places(stack: _Stack, here: str) -> dict[str, NewPlace]:
    return {there: NewPlace(f'{here}.{_kind(kind)}.{i}.{part}') for (kind, i, part), there in stack.names.items()}


def _put_norms(path: Path, configs: Mapping[str, Mapping[str, Any]], model: dict[str, Any]) -> None:
    """Sets activations and layer normalisation. Raises: ModelFileError if networks differ in what is one key here."""
    encoders = [config.get('encoder_config') or {} for config in configs.values()]
    heads = [config.get('head_config') or {} for config in configs.values()]
    activations = {str(part.get('activation')).lower() for part in (*encoders, *heads)}
    activations |= {str(part.get('output_activation')).lower() for part in encoders}
    norms = {
        (part.get('layer_norm', True), part.get('output_layernorm', False), part.get('noisy', False))
        for part in encoders
    }
    of_heads = {
        (part.get('layer_norm', True), part.get('output_layernorm', False), part.get('noisy', False)) for part in heads
    }
    if len(activations) != 1 or not activations <= {'relu', 'tanh', 'elu', 'gelu', 'silu'}:
        names = ', '.join(sorted(activations))
        raise ModelFileError(
            path, f'has the activations {names}, but layers here have one of tanh, relu, elu, gelu, silu'
        )
    if len(norms) != 1 or len(of_heads) != 1 or any(is_last or noisy for _, is_last, noisy in of_heads):
        raise ModelFileError(
            path, 'has networks that normalise in ways that differ, or noisy layers; import one with the usual MLPs'
        )
    model['activation'] = activations.pop()
    model['layer_norm'] = bool(of_heads.pop()[0])
    has_norms, has_last, is_noisy = norms.pop()
    if is_noisy:
        raise ModelFileError(path, 'has noisy layers, which zoo does not have; import one with the usual MLPs')
    model['encoder'] = {
        'type': 'mlp',
        'layer_norm': bool(has_norms),
        'last_norm': {True: 'plain', False: 'none'}[bool(has_last)],
    }


def _nearest_divisor(n: int, size: int) -> int:
    """The divisor of n that is closest to size; of two, the smaller one."""
    low = [k for k in range(1, isqrt(n) + 1) if n % k == 0]
    return min([*low, *(n // k for k in low)], key=lambda k: (abs(k - size), k))


def _settings(
    path: Path, content: Mapping[str, Any], left_out: list[tuple[str, str]]
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The sections learn and collect of `policy`, and the number of envs. Raises: ModelFileError for no numbers."""
    numbers: dict[str, Any] = {name: content.get(name) for name in (*RATES, *COUNTS)}
    for name, value in numbers.items():
        is_number = type(value) is int or type(value) is float and name in RATES
        if not is_number or not 0 <= value <= MAX_NUMBER:
            raise ModelFileError(path, f'has {name} = {shown(value)}, which is no number of a PPO; save it again')
    n_env = max(int(numbers['num_envs']), 1)
    n_step = ceil(numbers['learn_step'] / n_env)
    n = n_env * n_step
    size = min(int(numbers['batch_size']), n)
    nearest = _nearest_divisor(n, size)
    if nearest != size:
        left_out.append((f'batch_size={size}', f'it does not divide the rollout of {n}: it is {nearest} here'))
    learn: dict[str, Any] = {
        'learning_rate': float(numbers['lr']),
        'critic_learning_rate': float(numbers['lr']),  # gradients of actor and critic are limited separately there
        'clip_ratio': float(numbers['clip_coef']),
        'entropy_weight': float(numbers['ent_coef']),
        'value_weight': float(numbers['vf_coef']),
        'value_loss': 'clip',
        'grad_clip': float(numbers['max_grad_norm']) or None,
        'epoch_per_collect': int(numbers['update_epochs']),
        'batch_size': nearest,
        'adv_norm': 'batch',
        'optimizer': {'type': 'adam', 'eps': 1e-8},
    }
    target_kl = content.get('target_kl')
    if isinstance(target_kl, int | float) and target_kl is not True and 0 < target_kl <= MAX_NUMBER:
        learn['target_kl'] = target_kl / 1.5
        left_out.append(
            (f'target_kl={target_kl:g}', 'there the mean over all passes is looked at, here that of each pass')
        )
    collect = {
        'n_step': n_step,
        'discount_factor': float(numbers['gamma']),
        'gae_lambda': float(numbers['gae_lambda']),
    }
    return learn, collect, n_env


def _moments(
    content: Mapping[str, Any],
    order: list[str],
    places: Mapping[str, NewPlace],
    tensors: Mapping[str, Tensor],
    left_out: list[tuple[str, str]],
) -> Moments | None:
    """The state of Adam, by index in the order of the parameters; None if the file has none that fits."""
    optimizers = content['network_info'].get('optimizers')
    state = optimizers.get('optimizer_state_dict') if isinstance(optimizers, Mapping) else None
    rows = state.get('state') if isinstance(state, Mapping) else None
    if not isinstance(rows, Mapping) or set(rows) != set(range(len(order))):
        left_out.append(('optimizer', 'its state is missing or does not fit the parameters: it begins anew'))
        return None
    found: dict[str, dict[str, Tensor]] = {kind: {} for kind in KINDS}
    for i, name in enumerate(order):
        for kind in KINDS:
            value = rows[i].get(kind)
            if not isinstance(value, Tensor) or value.shape != tensors[name].shape:
                left_out.append(('optimizer', 'its state does not fit the parameters: it begins anew'))
                return None
            found[kind][places[name].name] = places[name].changed(value.float())
    return Moments(found, float(np.asarray(rows[0].get('step', 0))))


def _count(value: Any) -> int:
    """The env steps so far, of which older versions keep a list."""
    if isinstance(value, list) and value:
        value = value[-1]
    if type(value) is int and value > 0:
        return value
    return 0
