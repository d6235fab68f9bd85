"""Zips of stable-baselines3 and sb3-contrib (PPO, A2C, TRPO, MaskablePPO), with the file of VecNormalize."""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.config.section import ConfigError, put_at
from zoo.core.errors import shown
from zoo.core.spaces import (
    ACTION_MASK,
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    is_image,
    leaf_spaces,
    mask_size,
)
from zoo.env.adapter import space_fault
from zoo.model.inputs import module_name
from zoo.tools.exchange.form import (
    ForeignModel,
    ModelFileError,
    Moments,
    NewPlace,
    SavedStatistics,
    channels_last,
    placed,
)
from zoo.tools.exchange.networks import Tower, head_name, layer_places, numbered_layers, put_towers
from zoo.tools.exchange.pickles import (
    ArchiveError,
    ClassName,
    Closed,
    PickleError,
    open_zip,
    read_entry,
    read_pickle,
    read_torch,
)
from zoo.tools.importers.sb3 import from_sb3

MARK = 'policy.pth'
"""The entry that only zips of stable-baselines3 have."""
POLICIES = {
    'ActorCriticPolicy': 'MlpPolicy',
    'ActorCriticCnnPolicy': 'CnnPolicy',
    'MultiInputActorCriticPolicy': 'MultiInputPolicy',
    'MaskableActorCriticPolicy': 'MlpPolicy',
    'MaskableActorCriticCnnPolicy': 'CnnPolicy',
    'MaskableMultiInputActorCriticPolicy': 'MultiInputPolicy',
    'RecurrentActorCriticPolicy': 'MlpLstmPolicy',
}
"""Class of the policy there -> the name that the settings of rl-zoo3 give it."""
SETTINGS = (
    'n_envs n_steps batch_size n_epochs gamma gae_lambda ent_coef vf_coef max_grad_norm normalize_advantage target_kl '
    'clip_range_vf use_sde sde_sample_freq cg_max_steps cg_damping line_search_max_iter line_search_shrinking_factor '
    'n_critic_updates sub_sampling_factor seed'
).split()
"""Entries of `data` that are arguments of the classes."""
IMPORTED = 'PPO, A2C, TRPO, MaskablePPO and RecurrentPPO'
OTHERS = 'ars crossq ddpg dqn her qrdqn sac td3 tqc'.split()
"""Algorithms that zoo does not have in a form that takes their networks, by the module of their policy class."""
NEEDS_NOTHING = {
    '_last_obs': 'the env is reset',
    '_last_original_obs': 'the env is reset',
    '_last_episode_starts': 'the env is reset',
    '_last_lstm_states': 'the env is reset, and with it the memory',
    'ep_info_buffer': 'returns of the last episodes, which the log shows',
    'ep_success_buffer': 'successes of the last episodes, which the log shows',
    'rollout_buffer_class': 'rollouts are blocks here',
    'action_noise': 'no policy here has it',
}
OF_CALLS = ('sde_sample_freq=-1',)
"""Lines of the translated settings that say nothing about a model."""
MOMENTS = ('exp_avg', 'exp_avg_sq', 'square_avg', 'momentum_buffer')
OF_NETWORK = ('net_arch', 'share_features_extractor')
"""Entries of `policy_kwargs` that the tensors say too."""
OF_LSTM = {'weight_ih': 'weight_x', 'weight_hh': 'weight_h', 'bias_ih': 'bias', 'bias_hh': 'bias_h'}
"""Parameter of torch's LSTM -> that of a layer of memory with two biases."""
LOG_STD = {'log_std_min': -20.0, 'log_std_max': 10.0}
"""There deviations have no bounds; these are the widest ones here."""


class _Zip(NamedTuple):
    """The entries of a zip: `data` as JSON, the parameters, the state of the optimiser (None: not saved), the version."""

    path: Path
    data: dict[str, Any]
    tensors: dict[str, Tensor]
    optimizer: dict[str, Any] | None
    version: str

    def opened(self, name: str) -> Any:
        """An entry of `data`; one that is a pickle is read, see `read_pickle`. Raises: ModelFileError."""
        value = self.data.get(name)
        if not isinstance(value, dict) or ':serialized:' not in value:
            return value
        try:
            return read_pickle(base64.b64decode(str(value[':serialized:']), validate=True))
        except (PickleError, binascii.Error) as error:
            raise ModelFileError(
                self.path, f'has an entry {name!r} that cannot be read: {error}; save the model again'
            ) from error


def is_sb3(names: list[str]) -> bool:
    """Whether a zip with entries of these names is one of stable-baselines3."""
    return MARK in names and 'data' in names


def read_sb3(path: Path, content: bytes, normalizer: bytes | None = None, env: str | None = None) -> ForeignModel:
    """Reads a zip, and the file that VecNormalize.save wrote, if there is one.

    Args: env: the id of the env, which the zip does not know. Raises: ModelFileError.
    """
    file = _read_zip(path, content)
    kind = _kind_of(file)
    obs_space, action_space = _spaces(file)
    reader = _SB3Reader(file, kind, obs_space, action_space)
    settings = reader.settings(env)
    places = reader.places()
    if normalizer is not None:
        reader.read_normalizer(normalizer)
    weights = placed(reader.own_tensors, places, path)
    moments = reader.moments(places)
    config = settings
    for name, section in (('model', reader.model), ('learn', reader.learn)):
        config['policy'][name] = {**config['policy'].get(name, {}), **section}
    if reader.takes_mask:
        obs_space = _masked(obs_space, action_space)
    return ForeignModel(
        path=path,
        source=f'stable-baselines3 {file.version} {reader.class_name}'.replace('  ', ' '),
        config=config,
        obs_space=obs_space,
        action_space=action_space,
        weights=weights,
        moments=moments,
        became=reader.became,
        left_out=reader.left_out,
        obs_statistics=reader.obs_statistics,
        reward_statistics=reader.reward_statistics,
        env_step=int(file.data.get('num_timesteps') or 0),
        train_iter=int(moments.step_count) if moments is not None else 0,
        takes_mask=reader.takes_mask,
        places=places,
    )


def _read_zip(path: Path, content: bytes) -> _Zip:
    try:
        archive = open_zip(io.BytesIO(content))
        names = archive.namelist()
        data = json.loads(read_entry(archive, 'data'))
        tensors = read_torch(read_entry(archive, 'policy.pth'))
        optimizer = None
        if 'policy.optimizer.pth' in names:
            optimizer = read_torch(read_entry(archive, 'policy.optimizer.pth'))
        version = ''
        if '_stable_baselines3_version' in names:
            version = read_entry(archive, '_stable_baselines3_version').decode(errors='replace').strip()[:20]
    except ArchiveError as error:
        raise ModelFileError(path, f'{error}; save it again with model.save(..)') from error
    except PickleError as error:
        raise ModelFileError(
            path, f'has parameters that cannot be read: {error}; save it again with model.save(..)'
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, 'has an entry data that is no JSON; save it again with model.save(..)') from error
    is_whole = isinstance(data, dict) and isinstance(tensors, dict)
    if not is_whole or not all(isinstance(x, Tensor) for x in tensors.values()):
        raise ModelFileError(path, 'has other entries than stable-baselines3 writes; save it again with model.save(..)')
    return _Zip(path, data, tensors, optimizer, version)


def _kind_of(file: _Zip) -> str:
    """The algorithm in the names of rl-zoo3: 'ppo', 'a2c', 'trpo'. Raises: ModelFileError for any other."""
    policy_class = str(file.opened('policy_class'))
    module = policy_class.split('.')[1:2]
    if 'replay_buffer_class' in file.data or set(module) & set(OTHERS):
        name = ''.join(module).upper() if set(module) & set(OTHERS) else 'an algorithm with a replay buffer'
        raise ModelFileError(
            file.path, f'is of {name}, whose networks no policy of zoo takes; {IMPORTED} of this library are imported'
        )
    if 'cg_max_steps' in file.data:
        return 'trpo'
    if 'clip_range' in file.data:
        return 'ppo'
    if 'rollout_buffer_class' in file.data or 'n_steps' in file.data:
        return 'a2c'
    raise ModelFileError(
        file.path,
        f'does not say its algorithm; {IMPORTED} of this library are imported',
    )


def _spaces(file: _Zip) -> tuple[Space, Space]:
    spaces = []
    for name in ('observation_space', 'action_space'):
        try:
            spaces.append(space_of(file.opened(name)))
        except ValueError as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(
                file.path, f'has an entry {name!r} that {error}; import a model of another space'
            ) from error
    return spaces[0], spaces[1]


def _masked(obs_space: Space, action_space: Space) -> Space:
    """The observations of a policy whose env gives masks, as zoo has them: with an entry 'action_mask'."""
    mask = MultiBinary((mask_size(action_space),))
    if isinstance(obs_space, Dict):
        return Dict({**obs_space.spaces, ACTION_MASK: mask})
    return Dict({'obs': obs_space, ACTION_MASK: mask})


class _SB3Reader:
    """Reads the parts of one zip, and keeps what became of them.

    Attributes: model, learn: the sections `policy.model` and `policy.learn`, as far as the network and statistics decide them; own_tensors: parameters, each once; became, left_out: as of a `Conversion`.
    """

    def __init__(self, file: _Zip, kind: str, obs_space: Space, action_space: Space) -> None:
        self._file = file
        self._kind = kind
        self._obs_space = obs_space
        self._action_space = action_space
        self.became: list[tuple[str, str]] = []
        self.left_out: list[tuple[str, str]] = []
        self.obs_statistics: dict[str, SavedStatistics] = {}
        self.reward_statistics: SavedStatistics | None = None
        self.learn: dict[str, Any] = {}
        policy_class = file.opened('policy_class')
        self._policy_name = ''
        if isinstance(policy_class, ClassName):
            self._policy_name = policy_class.rpartition('.')[2]
        self.takes_mask = self._policy_name.startswith('Maskable')
        self._is_recurrent = self._policy_name.startswith('Recurrent')
        if self._is_recurrent:
            self._kind = 'ppo_lstm'
        self.class_name = {'ppo': 'PPO', 'a2c': 'A2C', 'trpo': 'TRPO', 'ppo_lstm': 'RecurrentPPO'}[self._kind]
        if self.takes_mask:
            self.class_name = 'MaskablePPO'
        kwargs = file.opened('policy_kwargs')
        self._kwargs: dict[str, Any] = kwargs if isinstance(kwargs, dict) else {}
        self.own_tensors = _without_aliases(file.tensors)
        self._order = {name: tensor.shape for name, tensor in self.own_tensors.items()}  # in that of the optimiser
        self.model: dict[str, Any] = {'precision': 'fp32'}
        if self._policy_name not in POLICIES:
            name = self._policy_name or shown(policy_class)
            raise ModelFileError(
                file.path,
                f'has the policy class {name}, a class of its own, whose code is not opened; import a model with '
                'MlpPolicy, CnnPolicy or MultiInputPolicy of stable-baselines3',
            )

    def settings(self, env: str | None) -> dict[str, Any]:
        """The sections of zoo's config that its arguments become, without the network. Raises: ModelFileError."""
        file = self._file
        block: dict[str, Any] = {name: file.data[name] for name in SETTINGS if name in file.data}
        block['policy'] = POLICIES[self._policy_name]
        block['policy_kwargs'] = {
            name: value
            for name, value in self._kwargs.items()
            if name not in OF_NETWORK and not name.startswith('optimizer_')
        }
        if self._kind == 'trpo':  # it has these of its base class, and reads none
            block = {
                name: value for name, value in block.items() if name not in ('ent_coef', 'vf_coef', 'max_grad_norm')
            }
        if self._kind == 'a2c':
            block['use_rms_prop'] = False  # which optimiser it is, its state says
        self._check_extractor(block['policy_kwargs'])
        rollout = int(file.data.get('n_steps') or 1) * int(file.data.get('n_envs') or 1)
        block['n_timesteps'] = max(int(file.data.get('_total_timesteps') or 0), rollout)
        schedules = {}
        for name in ('learning_rate', 'clip_range'):
            if name in file.data:
                block[name], schedules[name] = self._schedule(name)
        clip_vf = file.opened('clip_range_vf')
        if isinstance(clip_vf, Closed):
            block['clip_range_vf'] = self._schedule('clip_range_vf')[0]
        try:
            found = from_sb3({'algo': self._kind, **block}, env or 'default')
        except ConfigError as error:
            raise ModelFileError(
                file.path, f'has settings without a counterpart: {" ".join(map(str, error.problems))}'
            ) from error
        config: dict[str, Any] = found.config
        for name, schedule in schedules.items():
            if schedule is not None:
                key = {'learning_rate': 'learning_rate', 'clip_range': 'clip_ratio'}[name]
                put_at(config, f'policy.learn.{key}', schedule)
        self.became += [line for line in found.became if line[0] not in ('block default', 'use_rms_prop=False')]
        self.left_out += [line for line in found.left_out if line[0] not in OF_CALLS]
        self._put_optimizer(config)
        self.left_out += [(name, why) for name, why in NEEDS_NOTHING.items() if file.data.get(name) is not None]
        return config

    def _put_optimizer(self, config: dict[str, Any]) -> None:
        """Sets the optimiser, whose numbers its state has. Raises: ModelFileError for one that zoo does not have."""
        name = str(self._kwargs.get('optimizer_class', '')).rpartition('.')[2]
        group: dict[str, Any] = {}
        if self._file.optimizer is not None:
            group = self._file.optimizer['param_groups'][0]
        if name == 'RMSpropTFLike':
            self.left_out.append(
                (name, 'its epsilon is in the root; here it is rmsprop, whose epsilon is outside of it')
            )
        if not name and 'alpha' in group:
            name = 'RMSprop'
        kind = {
            '': 'adam',
            'Adam': 'adam',
            'AdamW': 'adamw',
            'RMSprop': 'rmsprop',
            'RMSpropTFLike': 'rmsprop',
            'SGD': 'sgd',
        }
        if name not in kind:
            raise ModelFileError(
                self._file.path, f'has the optimizer_class {name}, which zoo does not have; import a model with Adam'
            )
        keys = {'adam': 'betas eps', 'adamw': 'betas eps weight_decay', 'rmsprop': 'alpha eps momentum weight_decay'}
        names = keys.get(kind[name], 'momentum nesterov weight_decay').split()
        options = {key: group[key] for key in names if key in group}
        if 'eps' in options and self._kind == 'trpo':
            options['eps'] /= 2  # the gradient of the critic is half of that there
        if kind[name] == 'adam' and group.get('weight_decay'):
            self.left_out.append(
                (f'weight_decay={group["weight_decay"]:g}', 'adam has none here; adamw has, of another form')
            )
        if 'betas' in options:
            options['betas'] = list(options['betas'])
        put_at(config, 'policy.learn.optimizer', {'type': kind[name], **options})
        self.became.append((f'optimizer {name or "Adam"}', f'policy.learn.optimizer={kind[name]}'))

    def _check_extractor(self, kwargs: dict[str, Any]) -> None:
        """Leaves out classes of feature extractors that are those of stable-baselines3. Raises: ModelFileError for others."""
        found = kwargs.pop('features_extractor_class', None)
        name = str(found or '').rpartition('.')[2]
        if name not in ('', 'FlattenExtractor', 'NatureCNN', 'CombinedExtractor'):
            raise ModelFileError(
                self._file.path,
                f'has the features_extractor_class {name}, a class of its own, whose code is not opened; register it as an '
                'encoder (docs/your_model.md) and copy its tensors by hand',
            )
        options = kwargs.pop('features_extractor_kwargs', None) or {}
        unknown = set(options) - {'features_dim', 'cnn_output_dim', 'normalized_image'}
        if unknown or options.get('normalized_image'):
            raise ModelFileError(
                self._file.path,
                f'has features_extractor_kwargs {shown(dict(options))}, which zoo does not have; import a model without them',
            )
        if kwargs.get('normalize_images') is not None:
            self.model['normalize_images'] = bool(kwargs.pop('normalize_images'))

    def _schedule(self, name: str) -> tuple[float, dict[str, Any] | None]:
        """The value of a number that may follow a schedule, now, and its schedule; None: it is constant."""
        value = self._file.opened(name)
        if isinstance(value, int | float):
            return float(value), None
        while isinstance(value, Closed) and value.get('value_schedule') is not None:
            value = value['value_schedule']
        if isinstance(value, int | float):
            return float(value), None
        kind = ''
        if isinstance(value, Closed):
            kind = value.name.rpartition('.')[2]
        total = int(self._file.data.get('_total_timesteps') or 0)
        with_numbers = isinstance(value, Closed) and isinstance(value.state, Mapping)
        if kind == 'ConstantSchedule' and with_numbers:
            return float(value['val']), None
        if kind == 'LinearSchedule' and with_numbers and total:
            start = float(value['start'])
            over = max(round(float(value['end_fraction']) * total), 1)
            schedule = {'start': start, 'end': float(value['end']), 'over': over}
            return start, schedule
        return self._last_value(name), None

    def _last_value(self, name: str) -> float:
        """The number that a function gave last. Raises: ModelFileError if no entry has it."""
        if name == 'learning_rate' and self._file.optimizer is not None:
            rate = float(self._file.optimizer['param_groups'][0]['lr'])
            why = f'it is a function, which is code and is not opened: {rate:g}, its last value, is kept as a constant'
            self.left_out.append(
                (name, f'{why}; policy.learn.learning_rate={{start: .., end: ..}} sets another schedule')
            )
            return rate
        usual = 0.2
        why = f'it is a function, which is code and is not opened: {usual:g}, the usual value, is used'
        self.left_out.append((name, f'{why}; policy.learn.clip_ratio={{start: .., end: ..}} sets another schedule'))
        return usual

    def places(self) -> dict[str, NewPlace]:
        """The place here of each parameter; sets the section `policy.model`. Raises: ModelFileError."""
        tensors = self.own_tensors
        activation = str(self._kwargs.get('activation_fn', 'Tanh')).rpartition('.')[2].lower()
        self.model['activation'] = activation
        self._join_layers()
        places, encoder = self._extractors()
        actor, critic = (
            Tower.of(tensors, numbered_layers(tensors, f'mlp_extractor.{name}_net')) for name in ('policy', 'value')
        )
        if encoder is None and is_image(self._obs_space):
            raise ModelFileError(
                self._file.path,
                'is an MlpPolicy on images, whose pixels come in another order here; import one with CnnPolicy',
            )
        if self._is_recurrent:
            encoder = 'flat'
            places |= self._memory_places()
        places |= put_towers(self.model, actor, critic, encoder)
        policy_head = head_name(self.model, 'policy')
        is_gaussian = 'log_std' in tensors
        if is_gaussian:
            places['log_std'] = NewPlace(f'{policy_head}.log_std')
            self.model |= LOG_STD
            policy_head += '.mu'
        places |= layer_places('action_net', policy_head)
        places |= layer_places('value_net', f'{head_name(self.model, "value")}.layer')
        n = sum(tensors[name].numel() for name in places if name in tensors)
        self.became.append((f'{len(places)} tensors of policy.pth', f'{n:,} parameters of the network'))
        return places

    def _join_layers(self) -> None:
        """Joins what is one layer here: two linear layers without an activation in between."""
        tensors = self.own_tensors
        if 'critic.weight' not in tensors:
            return
        first = 'mlp_extractor.value_net.0'
        if f'{first}.weight' not in tensors:
            first = 'value_net'
        weight = tensors[f'{first}.weight']
        tensors[f'{first}.bias'] = tensors[f'{first}.bias'] + weight @ tensors.pop('critic.bias')
        tensors[f'{first}.weight'] = weight @ tensors.pop('critic.weight')
        self.left_out.append(
            ('critic', f'with {first} it is one linear layer, whose moments begin anew with all others')
        )

    def _memory_places(self) -> dict[str, NewPlace]:
        """The places of the LSTMs; sets the section `policy.model.recurrent`."""
        if is_image(self._obs_space) or isinstance(self._obs_space, Dict):
            raise ModelFileError(
                self._file.path,
                'is a RecurrentPPO whose LSTMs share features of images or of a Dict; import one with MlpLstmPolicy',
            )
        names = {'lstm_actor': 'actor_core', 'lstm_critic': 'critic_core'}
        prefixes = [prefix for prefix in names if f'{prefix}.weight_ih_l0' in self.own_tensors]
        n_layer = sum(name.startswith('lstm_actor.weight_ih_l') for name in self.own_tensors)
        size = self.own_tensors['lstm_actor.weight_hh_l0'].shape[1]
        has_critic = 'lstm_critic' in prefixes
        self.model['encoder'] = 'flat'
        memory = {'cell': 'lstm', 'hidden_size': size, 'n_layer': n_layer, 'n_bias': 2, 'critic': has_critic}
        self.model['recurrent'] = memory
        places: dict[str, NewPlace] = {}
        for prefix in prefixes:
            for i in range(n_layer):
                here = f'{names[prefix]}.layers.{i}'
                for there, part in OF_LSTM.items():
                    places[f'{prefix}.{there}_l{i}'] = NewPlace(f'{here}.{part}')
        return places

    def _extractors(self) -> tuple[dict[str, NewPlace], str | None]:
        """The places of the networks for images, and the type of the encoder; None: there is no network."""
        tensors = self.own_tensors
        prefixes = {'features_extractor': 'actor_encoder', 'vf_features_extractor': 'critic_encoder'}
        found = [prefix for prefix in prefixes if any(name.startswith(f'{prefix}.') for name in tensors)]
        is_dict = isinstance(self._obs_space, Dict)
        if not found and not is_dict:
            return {}, None
        is_shared = bool(self._kwargs.get('share_features_extractor', True))
        self.model['shared_encoder'] = is_shared
        places: dict[str, NewPlace] = {}
        if is_dict:
            self._put_multi(found[:1])
        else:
            self.model['encoder'] = self._cnn('features_extractor')
        for prefix in found:
            here = prefixes[prefix]
            if not is_dict:
                places |= self._cnn_places(prefix, here)
                continue
            assert isinstance(self._obs_space, Dict)
            for i, key in enumerate(self._obs_space.spaces):
                inner = f'{prefix}.extractors.{key}'
                if f'{inner}.cnn.0.weight' in tensors:
                    places |= self._cnn_places(inner, f'{here}.parts.{module_name(i, (key,))}')
        return places, 'multi' if is_dict else 'cnn'

    def _put_multi(self, prefixes: list[str]) -> None:
        encoders = {}
        assert isinstance(self._obs_space, Dict)
        for key in self._obs_space.spaces:
            for prefix in prefixes:
                if f'{prefix}.extractors.{key}.cnn.0.weight' in self.own_tensors:
                    encoders[key] = self._cnn(f'{prefix}.extractors.{key}')
        self.model['encoder'] = {'type': 'multi', 'encoders': encoders, 'join': None}

    def _cnn(self, prefix: str) -> dict[str, Any]:
        """The section of an encoder like NatureCNN. Raises: ModelFileError if the layers are others."""
        width = self.own_tensors.get(f'{prefix}.linear.0.weight')
        if width is None:
            raise ModelFileError(
                self._file.path,
                f'has no entry {prefix}.linear.0.weight, as NatureCNN has it; import a model with NatureCNN',
            )
        return {'type': 'cnn', 'hidden_size': len(width)}

    def _cnn_places(self, there: str, here: str) -> dict[str, NewPlace]:
        places: dict[str, NewPlace] = {}
        for i, layer in enumerate((0, 2, 4)):
            places |= layer_places(f'{there}.cnn.{layer}', f'{here}.convs.{i}')
        n_channel = len(self.own_tensors.get(f'{there}.cnn.4.bias', torch.empty(1)))
        places |= {
            f'{there}.linear.0.weight': NewPlace(f'{here}.dense.weight', channels_last(n_channel)),
            f'{there}.linear.0.bias': NewPlace(f'{here}.dense.bias'),
        }
        return places

    def moments(self, places: Mapping[str, NewPlace]) -> Moments | None:
        """The state of the optimiser in the order of the parameters there; None if the file has none."""
        state = self._file.optimizer
        rows = state.get('state') if isinstance(state, dict) else None
        if not isinstance(rows, dict) or not rows:
            self.left_out.append(('policy.optimizer.pth', 'the file has no state of an optimiser: it begins anew'))
            return None
        names = list(self._order)
        first = next(iter(rows.values()))
        kinds = [kind for kind in MOMENTS if isinstance(first.get(kind), Tensor)]
        is_whole = set(rows) == set(range(len(names)))
        if self._kind == 'trpo':  # the optimiser steps the critic alone, and keeps nothing of the actor
            is_whole = set(rows) <= set(range(len(names)))
        fits = is_whole and all(
            isinstance(rows[i].get(kind), Tensor) and rows[i][kind].shape == self._order[names[i]]
            for i in rows
            for kind in kinds
        )
        if 'critic.weight' in self._order:
            return None
        if not kinds or not fits:
            self.left_out.append(
                ('policy.optimizer.pth', 'its state does not fit the parameters: the optimiser begins anew')
            )
            return None
        factors = {kind: 1.0 for kind in kinds}
        if self._kind == 'trpo':  # the error is halved here, and so are gradients; their squares are a quarter
            factors |= {'exp_avg': 0.5, 'exp_avg_sq': 0.25}
        tensors = {
            kind: {
                places[name].name: places[name].changed(rows[i][kind].float() * factors[kind])
                for i, name in enumerate(names)
                if name in places and i in rows
            }
            for kind in kinds
        }
        step = float(first.get('step', 0))
        self.became.append(('policy.optimizer.pth', f'{", ".join(kinds)} and {step:g} steps of the optimiser'))
        return Moments(tensors, step)

    def read_normalizer(self, content: bytes) -> None:
        """Reads a file of VecNormalize. Raises: ModelFileError."""
        path = self._file.path
        try:
            found = read_pickle(content)
        except PickleError as error:
            raise ModelFileError(
                path, f'got a file of VecNormalize that cannot be read: {error}; save it again'
            ) from error
        if (
            not isinstance(found, Closed)
            or not found.name.endswith('.VecNormalize')
            or not isinstance(found.state, Mapping)
        ):
            raise ModelFileError(path, 'got a normalizer that is no file of VecNormalize.save; give that one')
        if float(found.get('epsilon', 1e-8)) != 1e-8:
            raise ModelFileError(
                path, f'got a VecNormalize with epsilon {found["epsilon"]}, but it is 1e-8 here; normalise in the env'
            )
        if found.get('norm_obs', True):
            self._read_obs_statistics(found)
        if found.get('norm_reward', True):
            self.reward_statistics = _statistics(found.get('ret_rms'), path)
            self.learn = {'reward_norm': True, 'reward_norm_discount': float(found.get('gamma', 0.99))}
            self.became.append(('VecNormalize ret_rms', 'the statistics of rewards'))
            if float(found.get('clip_reward', 10.0)) != 10.0:
                self.left_out.append(
                    (f'clip_reward={found["clip_reward"]}', 'normalised rewards are clipped to +-10 here')
                )

    def _read_obs_statistics(self, found: Closed) -> None:
        path = self._file.path
        statistics = found.get('obs_rms')
        if isinstance(statistics, Mapping):
            self.obs_statistics = {str(key): _statistics(each, path) for key, each in statistics.items()}
        else:
            self.obs_statistics = {'': _statistics(statistics, path)}
        self._check_normalised()
        clip = float(found.get('clip_obs', 10.0))
        self.model |= {'obs_norm': True, 'obs_clip': clip}
        self.became.append(('VecNormalize obs_rms', f'the statistics of observations, clipped to +-{clip:g}'))

    def _check_normalised(self) -> None:
        """Raises: ModelFileError if other entries are normalised there than here, which are all Boxes but images."""
        leaves = leaf_spaces(self._obs_space)
        normalised = {name for name, leaf in leaves if isinstance(leaf, Box) and not is_image(leaf)}
        if set(self.obs_statistics) != normalised:
            raise ModelFileError(
                self._file.path,
                f'got a VecNormalize of the entries {sorted(self.obs_statistics)}, but obs_norm normalises '
                f'{sorted(normalised)}; normalise these entries in a wrapper of your env',
            )


def _statistics(value: object, path: Path) -> SavedStatistics:
    """The attributes of a RunningMeanStd. Raises: ModelFileError."""
    if isinstance(value, Closed):
        mean, var, count = (value.get(name) for name in ('mean', 'var', 'count'))
        if all(isinstance(part, np.ndarray | np.generic | float | int) for part in (mean, var, count)):
            mean = np.asarray(mean, np.float64)
            var = np.asarray(var, np.float64)
            if mean.shape == var.shape and np.isfinite(mean).all() and (var >= 0).all():
                return SavedStatistics(mean, var, float(count))
    raise ModelFileError(path, 'got a VecNormalize whose statistics cannot be read; save it again')


def _without_aliases(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters in their order, those that share their memory once, by their first name."""
    own = {}
    seen = set()
    for name, tensor in tensors.items():
        place = tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        own[name] = tensor
    return own


def both_spaces_of(path: Path, entries: Mapping[str, Any]) -> tuple[Space, Space]:
    """The spaces 'observation_space' and 'action_space' of the entries of a file. Raises: ModelFileError for others than zoo's."""
    spaces = []
    for name in ('observation_space', 'action_space'):
        try:
            spaces.append(space_of(entries.get(name)))
        except ValueError as error:
            raise ModelFileError(path, f'has an {name} that {error}; import a model of another space') from error
    return spaces[0], spaces[1]


def space_of(value: object) -> Space:
    """Converts a space of gymnasium, or of old gym. Raises: ValueError, with the end of a sentence about it."""
    kind = ''
    if isinstance(value, Closed):
        kind = value.name.rpartition('.')[2]
    if not isinstance(value, Closed) or not isinstance(value.state, Mapping) or kind not in _READERS:
        raise ValueError(f'is of the kind {kind or type(value).__name__}, which no policy of zoo has')
    try:
        space: Space = _READERS[kind](value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f'is a {kind} whose attributes cannot be read ({error})') from error
    if not isinstance(space, Dict):
        fault = space_fault(space)
        if fault:
            raise ValueError(fault)
    return space


def _box(value: Closed) -> Box:
    shape = _shape(value)
    low, high = (np.broadcast_to(np.asarray(value[name], np.float64), shape).copy() for name in ('low', 'high'))
    return Box(low, high, _dtype(value, 'float32'))


def _discrete(value: Closed) -> Discrete:
    return Discrete(int(value['n']), int(value.get('start', 0)), _dtype(value, 'int64'))


def _multi_discrete(value: Closed) -> MultiDiscrete:
    nvec = np.asarray(value['nvec'])
    start = np.broadcast_to(np.asarray(value.get('start', 0)), nvec.shape)
    return MultiDiscrete(tuple(map(int, nvec.ravel())), tuple(map(int, start.ravel())), nvec.shape)


def _multi_binary(value: Closed) -> MultiBinary:
    return MultiBinary(_shape(value))


def _dict(value: Closed) -> Dict:
    spaces = value['spaces']
    if not isinstance(spaces, Mapping) or not all(isinstance(name, str) for name in spaces):
        raise ValueError('its entries have no names')
    return Dict({name: space_of(each) for name, each in spaces.items()})


_READERS: dict[str, Any] = {
    'Box': _box,
    'Discrete': _discrete,
    'MultiDiscrete': _multi_discrete,
    'MultiBinary': _multi_binary,
    'Dict': _dict,
}


def _shape(value: Closed) -> tuple[int, ...]:
    shape = value.get('_shape')
    if shape is None:
        shape = value['shape']
    return tuple(int(n) for n in shape)


def _dtype(value: Closed, usual: str) -> str:
    """The name of the number type; an attribute that is no name of one means the usual one."""
    found = value.get('dtype')
    if isinstance(found, str):
        found = found.rpartition('.')[2]
    try:
        return np.dtype(found or usual).name
    except TypeError:
        return usual
