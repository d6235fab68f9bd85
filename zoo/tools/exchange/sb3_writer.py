"""Writer of zips that stable-baselines3 loads, and of the file of VecNormalize where observations are normalised."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from zoo.core.errors import RunError, UserError
from zoo.core.files import refuse_failure, whole_file
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, is_image
from zoo.env.adapter import gymnasium_space
from zoo.model.actor_critic import Networks
from zoo.model.cnn import ConvNet
from zoo.model.encoder import MLP, Flat
from zoo.model.inputs import NormedVector
from zoo.model.layers import Layers
from zoo.model.recurrent import RecurrentActorCritic
from zoo.policy.base import Policy
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.tools.exchange.build import policy_of
from zoo.tools.exchange.sb3 import read_sb3

VERSION = '2.9.2'
"""The version of stable-baselines3 whose form is written."""
ACTIVATIONS = {'tanh': 'Tanh', 'relu': 'ReLU', 'elu': 'ELU', 'gelu': 'GELU', 'silu': 'SiLU'}
NATURE = {'channels': [32, 64, 64], 'kernels': [8, 4, 3], 'strides': [4, 2, 1]}
N_CHECKED = 1000


class ByName(NamedTuple):
    """A class that is written by its name alone."""

    module: str
    name: str


class Instance(NamedTuple):
    """An object that is written as its class and its attributes."""

    kind: ByName
    state: dict[str, Any]


class WrittenZip(NamedTuple):
    """The files that were written, and how far the actions of the zip, read back, are from those of the policy."""

    path: Path
    normalizer: Path | None
    algorithm: str
    n: int
    error: float


def pickled(value: object) -> bytes:
    """The pickle of plain values, arrays and spaces, with classes by name: the library that has them is not needed."""
    return b'\x80\x02' + _body(value) + b'.'


def _body(value: object) -> bytes:
    if isinstance(value, ByName):
        return f'c{value.module}\n{value.name}\n'.encode()
    if isinstance(value, Instance):
        return _body(value.kind) + b')\x81' + _body(value.state) + b'b'
    if isinstance(value, dict):
        return b'}(' + b''.join(_body(item) for pair in value.items() for item in pair) + b'u'
    return pickle.dumps(value, 2)[2:-1]


def write_sb3(policy: Policy, path: Path) -> WrittenZip:
    """Writes a zip with the network and the settings of a policy, and reads it back to compare.

    Raises: UserError for a network that SB3's policies do not have, or a path that cannot be written; RunError if the zip acts
    differently.
    """
    model = policy.model
    _check(policy, model)
    tensors, kwargs, kind = _network(policy, model)
    content = _zip(policy, tensors, kwargs, kind)
    statistics = _normalizer(policy, model)
    error = _compare(policy, path, content, statistics)
    normalizer = None
    with refuse_failure(f'{path} cannot be written', 'name another file'), whole_file(path) as file:
        file.write(content)
    if statistics is not None:
        normalizer = path.with_suffix('.pkl')
        with refuse_failure(f'{normalizer} cannot be written', 'name another file'), whole_file(normalizer) as file:
            file.write(statistics)
    return WrittenZip(path, normalizer, _algorithm(policy), N_CHECKED, error)


def _algorithm(policy: Policy) -> str:
    return {'a2c': 'A2C'}.get(policy.cfg.type, 'PPO')


def _check(policy: Policy, model: Any) -> None:
    """Raises: UserError for what no policy of SB3 has."""
    why = ''
    if not isinstance(model, Networks):
        why = f'its network is a {type(model).__name__}'
    elif isinstance(model, RecurrentActorCritic):
        why = 'its network has a memory'
    elif isinstance(policy.obs_space, Dict):
        why = 'its observations are a Dict'
    elif isinstance(policy.action_space, Dict):
        why = 'its actions are a Dict'
    elif model.dist.name not in ('gaussian', 'gsde') and isinstance(policy.action_space, Box):
        why = f'its actions have the distribution {model.dist.name!r}'
    elif policy.cfg.model.get('state_dependent_std'):
        why = 'its deviation depends on the observation'
    elif policy._action_map.mode != 'clip' and isinstance(policy.action_space, Box):
        why = 'its actions are rescaled (env.action_mode=rescale), and those of SB3 are clipped'
    elif not getattr(policy, 'has_critic', False):
        why = 'it trains no critic'
    elif getattr(model, '_decode', None) is not None:
        why = 'its critic predicts a distribution of returns'
    if why:
        raise UserError(f'policy {policy.cfg.type!r} cannot be written as a zip of stable-baselines3: {why}; use onnx')


def _network(policy: Policy, model: Any) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """The parameters by SB3's names, in its order; policy_kwargs; and the class of the policy."""
    towers: dict[str, list[nn.Linear]] = {}
    tensors: dict[str, Tensor] = {}
    heads = {'policy': model.policy_head, 'value': model.value_head}
    encoders = {'policy': model.actor_encoder, 'value': model.critic_encoder}
    for role, head in heads.items():
        towers[role] = _layers(policy, encoders[role])
        if isinstance(head, nn.Sequential):
            towers[role] += _layers(policy, head[0])
            heads[role] = head[1]
    action: Any = heads['policy']
    if isinstance(policy.action_space, Box):
        tensors['log_std'] = action.log_std
        action = action.mu
    kwargs: dict[str, Any] = {
        'net_arch': {
            short: [layer.out_features for layer in towers[role]] for short, role in (('pi', 'policy'), ('vf', 'value'))
        },
        'activation_fn': ByName('torch.nn.modules.activation', ACTIVATIONS[policy.cfg.model.activation]),
    }
    kind = 'ActorCriticPolicy'
    if isinstance(model.actor_encoder, ConvNet):
        kind = 'ActorCriticCnnPolicy'
        tensors |= _extractors(model)
        kwargs['share_features_extractor'] = model.critic_encoder is model.actor_encoder
        kwargs['features_extractor_kwargs'] = {'features_dim': model.actor_encoder.n_feature}
    for role, layers in towers.items():
        for i, layer in enumerate(layers):
            # each network gets its own memory, also where they are one here
            tensors |= {f'mlp_extractor.{role}_net.{2 * i}.{part}': x.clone() for part, x in layer.named_parameters()}
    tensors |= {f'action_net.{part}': x for part, x in action.named_parameters()}
    tensors |= _value_net(policy, heads['value'].layer)
    return {name: x.detach().float().cpu().contiguous() for name, x in tensors.items()}, kwargs, kind


def _layers(policy: Policy, stage: object) -> list[Any]:
    """The linear layers of an encoder or head. Raises: UserError for other networks."""
    if isinstance(stage, Flat):
        return []
    if isinstance(stage, ConvNet):
        convs: list[Any] = list(stage.convs)
        sizes = [(conv.out_channels, conv.kernel_size[0], conv.stride[0]) for conv in convs]
        wanted = list(zip(NATURE['channels'], NATURE['kernels'], NATURE['strides'], strict=True))
        if sizes == wanted:
            return []
    if isinstance(stage, MLP | Layers) and stage.norms is None and not stage._of_pixels:
        return list(stage.layers)
    raise UserError(
        f'policy {policy.cfg.type!r} cannot be written as a zip of stable-baselines3: its {type(stage).__name__} is no network '
        "that SB3's policies have; use onnx"
    )


def _extractors(model: Any) -> dict[str, Tensor]:
    """The parameters of the networks for images, with the names under which SB3 keeps them a second time."""
    own = {'features_extractor': model.actor_encoder, 'pi_features_extractor': model.actor_encoder}
    own['vf_features_extractor'] = model.critic_encoder
    tensors: dict[str, Tensor] = {}
    for prefix, encoder in own.items():
        for i, conv in enumerate(encoder.convs):
            tensors |= {f'{prefix}.cnn.{2 * i}.{part}': x for part, x in conv.named_parameters()}
        n_channel = encoder.convs[-1].out_channels
        weight = encoder.dense.weight.detach()
        # columns from H, W, C to C, H, W
        by_channel = weight.reshape(len(weight), -1, n_channel).transpose(1, 2).reshape(len(weight), -1)
        tensors[f'{prefix}.linear.0.weight'] = by_channel
        tensors[f'{prefix}.linear.0.bias'] = encoder.dense.bias
    return tensors


def _value_net(policy: Policy, layer: nn.Linear) -> dict[str, Tensor]:
    """The last layer of the critic, in the unit of returns also where the critic's own unit is another."""
    weight = layer.weight.detach()
    bias = layer.bias.detach()
    if 'value' in policy._normalizers:
        norm = policy._normalizers['value']
        weight = weight / norm.scale
        bias = bias / norm.scale + norm.shift
    return {'value_net.weight': weight, 'value_net.bias': bias}


def _space(space: Space) -> Any:
    """The space in the zip: images have their channels first."""
    if is_image(space) and isinstance(space, Box) and space.shape[0] >= space.shape[2]:
        space = Box(space.low.transpose(2, 0, 1), space.high.transpose(2, 0, 1), space.dtype)
    return gymnasium_space(space)


def _zip(policy: Policy, tensors: Mapping[str, Tensor], kwargs: dict[str, Any], kind: str) -> bytes:
    learn = policy.cfg.learn
    collect: Any = policy.cfg.collect
    algorithm = _algorithm(policy)
    rates = getattr(policy, 'rates', {})
    rate = float(rates.get('learning_rate', 3e-4))
    config = policy.run.config or {}
    n_env = int((config.get('env') or {}).get('collector_env_num') or 1)
    classes = {'policy_class': ByName('stable_baselines3.common.policies', kind), 'policy_kwargs': kwargs}
    spaces = {'observation_space': _space(policy.obs_space), 'action_space': _space(policy.action_space)}
    data: dict[str, Any] = {name: _serialized(value) for name, value in {**classes, **spaces}.items()}
    data |= {
        'num_timesteps': policy.run.env_step,
        '_total_timesteps': int(config.get('max_env_step') or policy.run.max_env_step or 0),
        'n_envs': n_env,
        'n_steps': int(collect.n_step),
        'learning_rate': rate,
        'gamma': float(collect.discount_factor),
        'gae_lambda': float(collect.gae_lambda),
        'ent_coef': float(rates.get('entropy_weight', 0.0)),
        'vf_coef': float(learn.get('value_weight') or 0.5) / 2,  # the squared error is halved here
        'max_grad_norm': float(learn.get('grad_clip') or 1e9),
        'use_sde': policy._model.dist.name == 'gsde',
        'sde_sample_freq': int(policy.cfg.model.get('sde_sample_freq') or -1),
        'normalize_advantage': learn.get('adv_norm') != 'off',
        'seed': policy.seed,
        'verbose': 0,
    }
    if algorithm == 'PPO':
        data['clip_range'] = float(rates.get('clip_ratio', 0.2))
        data['batch_size'] = int(learn.get('batch_size') or 64)
        data['n_epochs'] = int(learn.get('epoch_per_collect') or 10)
    unique = [name for name in tensors if not _is_alias(name, kwargs)]
    group = {
        'lr': rate,
        'betas': (0.9, 0.999),
        'eps': 1e-5,
        'weight_decay': 0,
        'amsgrad': False,
        'params': list(range(len(unique))),
    }
    if algorithm == 'A2C':
        group = {
            'lr': rate,
            'alpha': 0.99,
            'eps': 1e-5,
            'momentum': 0,
            'centered': False,
            'weight_decay': 0,
            'params': group['params'],
        }
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w') as archive:
        archive.writestr('data', json.dumps(data, indent=1))
        archive.writestr('pytorch_variables.pth', _saved({}))
        archive.writestr('policy.pth', _saved(dict(tensors)))
        archive.writestr('policy.optimizer.pth', _saved({'state': {}, 'param_groups': [group]}))
        archive.writestr('_stable_baselines3_version', VERSION)
        archive.writestr('system_info.txt', '- written by zoo\n')
    return file.getvalue()


def _is_alias(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a parameter is one that SB3 keeps under a second name."""
    is_shared = kwargs.get('share_features_extractor', True)
    return name.startswith('pi_features') or (is_shared and name.startswith('vf_features'))


def _serialized(value: object) -> dict[str, str]:
    return {':type:': '', ':serialized:': base64.b64encode(pickled(value)).decode()}


def _saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _normalizer(policy: Policy, model: Any) -> bytes | None:
    """The file of VecNormalize; None where observations are not normalised."""
    norm = model.input
    if isinstance(norm, NormedVector):
        norm = norm.norm
    if not isinstance(norm, RunningMeanStd):
        return None
    shape = policy.obs_space.shape  # type: ignore[union-attr]
    collect: Any = policy.cfg.collect
    home = 'stable_baselines3.common'
    obs_rms: dict[str, Any] = {
        'mean': norm.mean.cpu().numpy().reshape(shape),
        'var': norm.var.cpu().numpy().reshape(shape),
    }
    obs_rms['count'] = max(float(norm.count), 1e-4)
    ret_rms = {'mean': np.zeros(()), 'var': np.ones(()), 'count': 1e-4}
    kind = ByName(f'{home}.running_mean_std', 'RunningMeanStd')
    state = {
        'num_envs': 1,
        'observation_space': gymnasium_space(policy.obs_space),
        'action_space': gymnasium_space(policy.action_space),
        'norm_obs': True,
        'norm_obs_keys': None,
        'obs_rms': Instance(kind, obs_rms),
        'ret_rms': Instance(kind, ret_rms),
        'clip_obs': float(norm.clip),
        'clip_reward': 10.0,
        'gamma': float(collect.discount_factor),
        'epsilon': 1e-8,
        'training': False,
        'norm_reward': False,
        'old_reward': np.array([]),
        'render_mode': None,
    }
    return pickled(Instance(ByName(f'{home}.vec_env.vec_normalize', 'VecNormalize'), state))


@torch.no_grad()
def _compare(policy: Policy, path: Path, content: bytes, statistics: bytes | None) -> float:
    """Reads the zip back, and returns how far its actions are from those of the policy. Raises: RunError if they differ."""
    model = read_sb3(path, content, statistics)
    twin, _ = policy_of(model, None)
    obs = _drawn(policy.obs_space)
    seen = obs
    if is_image(policy.obs_space) and policy.obs_space != twin.obs_space:
        seen = obs.transpose(0, 3, 1, 2)
    wanted = np.asarray(policy.act(obs), np.float64)
    got = np.asarray(twin.act(seen), np.float64).reshape(wanted.shape)
    error = float(np.abs(got - wanted).max())
    n_differ = int((got != wanted).reshape(len(got), -1).any(1).sum())
    is_index = isinstance(policy.action_space, Discrete | MultiDiscrete | MultiBinary)
    if (is_index and n_differ > N_CHECKED // 100) or (not is_index and error > 1e-4):
        raise RunError(f'the zip acts differently: actions differ by up to {error:g}; it was not written')
    return error


def _drawn(space: Space) -> np.ndarray:
    """Random observations; those without bounds are normal numbers."""
    drawn = gymnasium_space(space)
    drawn.seed(0)
    return np.stack([drawn.sample() for _ in range(N_CHECKED)])
