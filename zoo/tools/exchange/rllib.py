"""Checkpoint folders of RLlib's PPO, as `Algorithm.save_to_path` writes them, with fully connected networks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.config.section import ConfigError, put_at
from zoo.core.errors import shown
from zoo.core.spaces import Box, Dict, Space, is_image
from zoo.tools.exchange.form import ForeignModel, ModelFileError, Moments, NewPlace, placed
from zoo.tools.exchange.networks import layer_places, numbered_layers
from zoo.tools.exchange.pickles import Closed, PickleError, read_pickle
from zoo.tools.exchange.sb3 import both_spaces_of
from zoo.tools.importers.rllib import from_rllib

MARK = 'rllib_checkpoint.json'
"""The file that only folders of RLlib have."""
MODULE = 'learner_group/learner/rl_module/default_policy'
SETTINGS = (
    'env gamma lambda_ lr clip_param vf_clip_param vf_loss_coeff entropy_coeff kl_coeff kl_target use_kl_loss grad_clip '
    'num_epochs minibatch_size num_env_runners num_envs_per_env_runner seed'
).split()
"""Attributes of the PPOConfig that are read, where they are plain values."""
CONSTANT = 'log_std_clip_param_const'


def read_rllib(folder: Path, env: str | None = None) -> ForeignModel:
    """Reads a checkpoint. Args: env: None: the id in the checkpoint. Raises: ModelFileError."""
    state = _pickle(folder, f'{MODULE}/module_state.pkl')
    module = _pickle(folder, f'{MODULE}/class_and_ctor_args.pkl')
    if not isinstance(state, dict) or not all(isinstance(x, np.ndarray) for x in state.values()):
        raise ModelFileError(folder, f'has other entries than arrays in {MODULE}/module_state.pkl; save it again')
    arguments = _arguments(module)
    obs_space, action_space = _spaces(folder, arguments)
    _refuse_filters(folder)
    tensors = {name: torch.from_numpy(x) for name, x in state.items() if not name.endswith(CONSTANT)}
    order = {name: tuple(x.shape) for name, x in tensors.items()}
    model: dict[str, Any] = {'activation': _activation(folder, arguments)}
    places = _places(folder, tensors, model, action_space)
    became = [(f'{len(order)} arrays of module_state.pkl', f'{sum(x.numel() for x in tensors.values()):,} parameters')]
    left_out: list[tuple[str, str]] = [
        ('metrics, connectors and env runners', 'their states begin anew, and their objects are not opened')
    ]
    config = _settings(folder, env, became, left_out)
    section = config.setdefault('policy', {})
    section['model'] = {**section.get('model', {}), **model}
    if isinstance(action_space, Box):
        put_at(config, 'env.action_mode', 'rescale')
    weights = placed(tensors, places, folder)
    moments = _moments(folder, order, tensors, places, left_out)
    return ForeignModel(
        path=folder,
        source=f'RLlib {_version(folder)} PPO'.replace('  ', ' '),
        config=config,
        obs_space=obs_space,
        action_space=action_space,
        weights=weights,
        moments=moments,
        became=became,
        left_out=left_out,
        train_iter=int(moments.step_count) if moments is not None else 0,
        places=places,
    )


def env_of(folder: Path) -> str | None:
    """The id of the env that a checkpoint names; None if it is no text."""
    env = _algorithm_config(folder).get('env')
    if isinstance(env, str):
        return env
    return None


def _pickle(folder: Path, name: str) -> Any:
    path = folder / name
    if not path.is_file():
        raise ModelFileError(
            folder,
            f'lacks the file {name}, which a checkpoint of PPO with one policy has; name the folder of save_to_path',
        )
    try:
        return read_pickle(path.read_bytes())
    except PickleError as error:
        raise ModelFileError(folder, f'has a file {name} that cannot be read: {error}; save it again') from error


def _arguments(module: object) -> dict[str, Any]:
    """The keyword arguments of a class in a class_and_ctor_args.pkl; {} if there are none."""
    parts = module.get('ctor_args_and_kwargs') if isinstance(module, dict) else None
    if isinstance(parts, tuple) and len(parts) == 2 and isinstance(parts[1], dict):
        return parts[1]
    return {}


def _version(folder: Path) -> str:
    try:
        found = json.loads((folder / MARK).read_text(encoding='utf-8'))
        return str(found.get('ray_version', ''))[:20]
    except (OSError, ValueError, AttributeError):
        return ''


def _spaces(folder: Path, arguments: Mapping[str, Any]) -> tuple[Space, Space]:
    obs_space, action_space = both_spaces_of(folder, arguments)
    if isinstance(obs_space, Dict) or is_image(obs_space):
        raise ModelFileError(folder, 'is of a policy on images or a Dict; import one on vectors')
    return obs_space, action_space


def _refuse_filters(folder: Path) -> None:
    """Raises: ModelFileError if observations are normalised by a connector, whose statistics are not read."""
    path = folder / 'env_runner' / 'env_to_module_connector' / 'class_and_ctor_args.pkl'
    if path.is_file() and b'MeanStdFilter' in path.read_bytes():
        raise ModelFileError(
            folder, 'normalises observations by a MeanStdFilter, which is not read; import a model without it'
        )


def _activation(folder: Path, arguments: Mapping[str, Any]) -> str:
    config = arguments.get('model_config')
    values: Mapping[str, Any] = {}
    if isinstance(config, Closed) and isinstance(config.state, Mapping):
        values = config.state
    elif isinstance(config, Mapping):
        values = config
    name = str(values.get('fcnet_activation', 'tanh')).lower()
    name = {'swish': 'silu'}.get(name, name)
    if name not in ('tanh', 'relu', 'elu', 'gelu', 'silu'):
        raise ModelFileError(
            folder, f'has the activation {shown(name)}, which zoo does not have; import a model with tanh'
        )
    return name


def _places(
    folder: Path, tensors: dict[str, Tensor], model: dict[str, Any], action_space: Space
) -> dict[str, NewPlace]:
    """The places of all parameters; sets the section `policy.model`, and cuts the layer of means and deviations in two."""
    places: dict[str, NewPlace] = {}
    shared = numbered_layers(tensors, 'encoder.encoder.net.mlp')
    encoders = {'actor_encoder': shared}
    if not shared:
        encoders = {
            f'{role}_encoder': numbered_layers(tensors, f'encoder.{role}_encoder.net.mlp')
            for role in ('actor', 'critic')
        }
    widths = {tuple(len(tensors[f'{layer}.weight']) for layer in layers) for layers in encoders.values()}
    heads = {name: numbered_layers(tensors, f'{name}.net.mlp') for name in ('pi', 'vf')}
    if len(widths) != 1 or not all(widths) or not all(heads.values()):
        raise ModelFileError(
            folder, 'has networks that are no stacks of layers, as RLlib makes them; copy its arrays by hand'
        )
    model['shared_encoder'] = bool(shared)
    model['hidden_sizes'] = list(widths.pop())
    for here, layers in encoders.items():
        for i, there in enumerate(layers):
            places |= layer_places(there, f'{here}.layers.{i}')
    ends = {}
    for name, (role, key) in {'pi': ('policy', 'actor_head'), 'vf': ('value', 'critic_head')}.items():
        *hidden, last = heads[name]
        model[key] = [len(tensors[f'{layer}.weight']) for layer in hidden]
        for i, there in enumerate(hidden):
            places |= layer_places(there, f'{role}_head.0.layers.{i}')
        ends[role] = f'{role}_head.1' if hidden else f'{role}_head', last
    here, last = ends['value']
    places |= layer_places(last, f'{here}.layer')
    here, last = ends['policy']
    if not isinstance(action_space, Box):
        return places | layer_places(last, here)
    model |= {'log_std_min': -20.0, 'log_std_max': 10.0}
    if 'pi.log_std' in tensors:
        places['pi.log_std'] = NewPlace(f'{here}.log_std')
        return places | layer_places(last, f'{here}.mu')
    model['state_dependent_std'] = True
    cut_in_two(tensors, last)
    return (
        places | layer_places(f'{last}.mean', f'{here}.mu') | layer_places(f'{last}.log_std', f'{here}.log_std_layer')
    )


def cut_in_two(tensors: dict[str, Tensor], layer: str) -> None:
    """Makes two layers of one whose first half of rows gives means, and the second log deviations."""
    for part in ('weight', 'bias'):
        mean, log_std = tensors.pop(f'{layer}.{part}').chunk(2)
        tensors[f'{layer}.mean.{part}'] = mean
        tensors[f'{layer}.log_std.{part}'] = log_std


def _algorithm_config(folder: Path) -> Mapping[str, Any]:
    """The attributes of the PPOConfig; {} if they cannot be read."""
    path = folder / 'class_and_ctor_args.pkl'
    if not path.is_file():
        return {}
    try:
        found = read_pickle(path.read_bytes())
    except PickleError:
        return {}
    parts = found.get('ctor_args_and_kwargs') if isinstance(found, dict) else None
    candidates: list[Any] = []
    if isinstance(parts, tuple) and len(parts) == 2:
        candidates = [*parts[0], *parts[1].values()]
    for each in candidates:
        if isinstance(each, Closed) and isinstance(each.state, Mapping):
            return each.state
        if isinstance(each, Mapping):
            return each
    return {}


def _settings(
    folder: Path, env: str | None, became: list[tuple[str, str]], left_out: list[tuple[str, str]]
) -> dict[str, Any]:
    """The sections of zoo's config that the PPOConfig becomes. Raises: ModelFileError."""
    found = _algorithm_config(folder)
    block: dict[str, Any] = {}
    for name in SETTINGS:
        value = found.get(name, found.get(f'_{name}'))
        if isinstance(value, int | float | str) or value is None and name in ('grad_clip', 'seed'):
            block[name] = value
        elif value is not None:
            left_out.append((name, f'it is {shown(value)}, which is not opened'))
    size = found.get('_train_batch_size_per_learner') or found.get('train_batch_size')
    if isinstance(size, int):
        block['train_batch_size'] = size
    block['env'] = env or block.get('env') or 'CartPole-v1'
    block = {name: value for name, value in block.items() if value is not None}
    try:
        conversion = from_rllib(block)
    except ConfigError as error:
        problems = ' '.join(map(str, error.problems))
        raise ModelFileError(folder, f'has settings without a counterpart: {problems}') from error
    became += conversion.became
    left_out += conversion.left_out
    return conversion.config


def _moments(
    folder: Path,
    order: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, Tensor],
    places: Mapping[str, NewPlace],
    left_out: list[tuple[str, str]],
) -> Moments | None:
    """The state of Adam, by index in the order of the parameters; None if the checkpoint has none that fits."""
    path = folder / 'learner_group' / 'learner' / 'state.pkl'
    rows: Any = {}
    if path.is_file():
        state = _pickle(folder, 'learner_group/learner/state.pkl')
        optimizer = state.get('optimizer', {}) if isinstance(state, dict) else {}
        rows = optimizer.get('default_policy_default_optimizer', {}).get('state', {}).get('state', {})
    kinds = ('exp_avg', 'exp_avg_sq')
    found: dict[str, dict[str, Tensor]] = {kind: {} for kind in kinds}
    for i, (name, shape) in enumerate(order.items()):
        row = rows.get(i, {}) if isinstance(rows, dict) else {}
        for kind in kinds:
            value = row.get(kind)
            if not isinstance(value, np.ndarray) or value.shape != shape:
                left_out.append(
                    ('optimizer', 'its state is missing or does not fit the parameters: the optimiser begins anew')
                )
                return None
            parts = {name: torch.from_numpy(value)}
            if name not in tensors:
                layer, _, _ = name.rpartition('.')
                mean, log_std = parts[name].chunk(2)
                part = name.removeprefix(f'{layer}.')
                parts = {f'{layer}.mean.{part}': mean, f'{layer}.log_std.{part}': log_std}
            for each, tensor in parts.items():
                found[kind][places[each].name] = places[each].changed(tensor.float())
    step = rows[0].get('step', 0)
    return Moments(found, float(np.asarray(step)))
