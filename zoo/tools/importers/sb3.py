"""Settings of stable-baselines3's PPO, RecurrentPPO, A2C and TRPO (rl-zoo3's YAML files, arguments) -> a config of zoo."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from zoo.config.names import data_file
from zoo.config.section import ConfigError
from zoo.core.errors import shown
from zoo.tools.importers.conversion import (
    Conversion,
    Draft,
    as_number,
    as_size,
    defaults,
    is_image_env,
    linear,
    mapping,
    nearest_divisor,
    one_of,
    put_env,
    put_frame_stack,
    rows_of,
    sizes,
    translate,
)
from zoo.tools.importers.files import literal_text

WHO = 'stable-baselines3'


def schedule(value: Any) -> Any:
    """Converts a number, or 'lin_2.5e-4' to a schedule that ends at 0. Raises: ValueError."""
    if isinstance(value, str) and value.startswith('lin_'):
        return linear(value.removeprefix('lin_'))
    return as_number(value)


def _wrappers(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """Returns the class name and the arguments of each wrapper. Raises: ValueError."""
    if isinstance(value, list):
        return [_wrapper(item) for item in value]
    return [_wrapper(value)]


def _wrapper(item: object) -> tuple[str, dict[str, Any]]:
    name = item
    options = None
    if isinstance(item, Mapping) and item:
        name, options = next(iter(item.items()))
    if not isinstance(name, str) or '.' not in name:
        raise ValueError('it must be the dotted name of a class, or {name: {its arguments}}, or a list of them')
    return name, mapping(options)


def _normalize(value: Any) -> dict[str, Any]:
    """Returns the arguments of VecNormalize. Raises: ValueError."""
    if isinstance(value, str):
        value = literal_text(value)
    if isinstance(value, bool | None):
        if value:
            return {'norm_obs': True, 'norm_reward': True}
        return {}
    arguments = {'norm_obs': True, 'norm_reward': True, **mapping(value)}
    if 'gamma' in arguments:
        arguments['gamma'] = as_number(arguments['gamma'])
    return arguments


class _Widths(NamedTuple):
    """Widths of the layers that actor and critic share (SB3 before 1.8), of the actor's and of the critic's."""

    shared: list[int]
    actor: list[int]
    critic: list[int]

    @property
    def text(self) -> str:
        """The setting as text."""
        return f'policy_kwargs.net_arch={self.shared or ""} pi={self.actor} vf={self.critic}'


def _widths(value: object) -> _Widths | None:
    """Returns the widths of net_arch; None for None. Raises: ValueError."""
    if value is None:
        return None
    items = [value]
    if isinstance(value, list | tuple):
        items = list(value)
    separate = next((item for item in items if isinstance(item, Mapping)), None)
    if separate is None:
        return _Widths([], sizes(value), sizes(value))
    shared = sizes([item for item in items if not isinstance(item, Mapping)])
    return _Widths(shared, sizes(separate.get('pi', [])), sizes(separate.get('vf', [])))


def _betas(value: object) -> list[float]:
    if isinstance(value, list | tuple):
        return [as_number(beta) for beta in value]
    return [as_number(value)]


TABLES = data_file('zoo.tools.importers', 'sb3.yaml')
ROWS = rows_of(TABLES['keys'], schedule=schedule, wrappers=_wrappers, normalize=_normalize)
OF_ALGORITHM = {
    name: rows_of(keys, schedule=schedule, one_less=lambda value: as_size(value) - 1)
    for name, keys in TABLES['of_algorithm'].items()
}
KWARGS_ROWS = rows_of(
    TABLES['policy_kwargs'],
    widths=_widths,
    optimizer=one_of(TABLES['optimizers']),
    betas=_betas,
)
OTHERS: list[str] = TABLES['others']
"""Names of rl-zoo3's files for algorithms that are not translated."""


def is_sb3(block: Any) -> bool:
    """Whether a mapping has arguments of a class of stable-baselines3, as the files of rl-zoo3 do."""
    known = set(ROWS).union(*OF_ALGORITHM.values()) - {'env', 'seed', 'gamma', 'algo'}
    return isinstance(block, Mapping) and len(set(block) & known) >= 2


def algorithm_of(block: Mapping[str, Any], file: str = '') -> str:
    """Returns one of OF_ALGORITHM: the key algo, else the name of the file, else what keys of the block belong to.

    Args: file: the name of a file of rl-zoo3, without .yml. Raises: ConfigError for the name of another algorithm.
    """
    name = str(block.get('algo', file))  # a value that is no text is no algorithm either
    if name in OF_ALGORITHM:
        return name
    if 'algo' in block or name in OTHERS:
        raise ConfigError(
            f"the settings are rl-zoo3's of {name}; only those of {', '.join(OF_ALGORITHM)} are translated."
        )
    if str(block.get('policy')).endswith('LstmPolicy'):
        return 'ppo_lstm'
    return next((kind for key, kind in TABLES['marks'].items() if key in block), 'ppo')


def from_sb3(block: Mapping[str, Any], env: str | None = None, file: str = '') -> Conversion:
    """Translates a block of a file of rl-zoo3, or the arguments of PPO, RecurrentPPO, A2C or TRPO.

    Args: env: the id, which is the name of the block; file: as for `algorithm_of`.
    Raises: ConfigError with a sentence for every key that has no counterpart.
    """
    draft = Draft()
    kind = algorithm_of(block, file)
    rows = ROWS | OF_ALGORITHM[kind]
    kwargs = _kwargs(draft, block.get('policy_kwargs'))
    name = env or block.get('env')
    none = "the env is not named; give the name of the block, zoo convert --name CartPole-v1, or a key 'env'."
    if name == 'default':
        draft.became.append(('block default', 'it names no env: give one, e.g. zoo train .. env.id=CartPole-v1'))
    else:
        put_env(draft, name, f'env {name}', none)
    if kind == 'ppo_lstm':
        policy = 'ppo'
    else:
        policy = kind
    draft.put('policy.type', policy, kind)
    translate(draft, rows, block, WHO)
    translate(draft, KWARGS_ROWS, {'policy_kwargs': kwargs}, WHO)
    defaults(draft, rows, TABLES['defaults'][kind], block, WHO)
    if not draft.unreadable:
        _put_batch(draft, kind)
        _put_env_parts(draft)
        _put_policy(draft, kind)
        _put_optimizer(draft, kind)
    return draft.finish('settings of stable-baselines3, as in rl-zoo3')


def _kwargs(draft: Draft, value: Any) -> dict[str, Any]:
    kwargs = value or {}
    with suppress(ValueError):
        if isinstance(value, str):
            kwargs = literal_text(value)
        if isinstance(kwargs, Mapping):
            return dict(kwargs)
    draft.refuse(f'policy_kwargs is {shown(value)}, which cannot be read; write dict(net_arch=[64, 64], ...).')
    return {}


def _put_batch(draft: Draft, kind: str) -> None:
    """Sets the minibatch; for a memory also the sequences, which are as long as a minibatch or a rollout allows."""
    n_step = draft.at('policy.collect.n_step')
    n = n_step * draft.at('env.collector_env_num', 1)
    wanted = draft.parts.get('batch_size')
    if kind == 'a2c':
        draft.became.append(('A2C', 'policy.learn.batch_size: all of a rollout, once'))
        return
    n_seq = 1
    whole = ''
    if kind == 'ppo_lstm':
        n_seq = nearest_divisor(n_step, min(wanted, n_step))
        draft.put('policy.learn.sequence', {'len': n_seq}, 'RecurrentPPO', 'the steps of an env in a minibatch')
        whole = f', in whole sequences of {n_seq}'
    size = nearest_divisor(n, min(wanted, n), n_seq)
    note = ''
    if size != wanted:
        note = f'a divisor of the rollout, {n}{whole}; SB3 makes the last minibatch smaller'
    draft.put('policy.learn.batch_size', size, f'batch_size={wanted}', note)


def _put_env_parts(draft: Draft) -> None:
    parts = draft.parts
    if 'frame_stack' in parts:
        put_frame_stack(draft, parts['frame_stack'], f'frame_stack={parts["frame_stack"]}', is_filled=False)
    wrappers: list[Any] = []
    for name, options in parts.get('env_wrapper', []):
        if name.endswith('AtariWrapper') and is_image_env(draft):
            draft.drop(f'env_wrapper {name}', "env.id 'atari' has what it does")
        elif options:
            wrappers.append({'type': _place(name), **options})
        else:
            wrappers.append(_place(name))
    if wrappers:
        draft.put('env.wrappers', wrappers, 'env_wrapper', 'their packages must be installed')
    for key, value in (parts.get('normalize') or {}).items():
        if key in TABLES['normalize']:
            new = value
            if key != 'gamma':
                new = bool(value)
            draft.put(TABLES['normalize'][key], new, f'normalize: {key}={value}')
        elif key == 'clip_obs' and value != TABLES['normalize_fixed'][key]:
            _put_clip(draft, value)
        else:
            _refuse_normalize(draft, key, value)


def _place(name: str) -> str:
    """Returns the 'module:class' of a wrapper for its dotted name, with gymnasium's name for one of gym."""
    home, _, last = name.rpartition('.')
    if home.partition('.')[0] in ('gym', 'gymnasium'):
        home = 'gymnasium.wrappers'
    return f'{home}:{TABLES["wrappers"].get(last, last)}'


def _put_clip(draft: Draft, value: object) -> None:
    if not draft.parts['normalize'].get('norm_obs', True):
        draft.drop(f'normalize: clip_obs={shown(value)}', 'observations are not normalised')
    else:
        draft.put('policy.model.obs_clip', value, f'normalize: clip_obs={value}')


def _refuse_normalize(draft: Draft, key: str, value: object) -> None:
    """Drops an argument of VecNormalize that asks for what zoo does; any other is a problem."""
    if key in TABLES['normalize_fixed'] and value == TABLES['normalize_fixed'][key]:
        draft.drop(f'normalize: {key}={shown(value)}', 'that is how it is here')
    elif key == 'clip_reward':
        draft.refuse(
            f'normalize: {key} is {shown(value)}, but normalised rewards are clipped to +-10 here; leave it out.'
        )
    elif key == 'norm_obs_keys':
        draft.refuse(
            f'normalize: norm_obs_keys is {shown(value)}, but policy.model.obs_norm normalises all entries that are no '
            'images; leave it out, or normalise these entries in a wrapper of your env.'
        )
    else:
        draft.refuse(f'normalize: {key} is {shown(value)}, which has no counterpart here; leave it out.')


def _put_policy(draft: Draft, kind: str) -> None:
    parts = draft.parts
    if kind == 'trpo':
        _put_trpo(draft)
    limit = parts.get('clip_range_vf')
    if limit is not None:
        value = {'type': 'clip', 'range': limit}
        draft.put('policy.learn.value_loss', value, f'clip_range_vf={limit}', ROWS['clip_range_vf'].note)
    kl = parts.get('target_kl')
    if kl is not None:
        draft.put('policy.learn.target_kl', kl, f'target_kl={kl}', 'both stop above 1.5 times it')
        draft.put('policy.learn.target_kl_at', 'minibatch', f'target_kl={kl}')
    _put_sde(draft)
    names = TABLES['policies'].get(kind, TABLES['policies']['others'])
    if parts.get('policy') not in (None, *names):
        draft.refuse(f'policy is {shown(parts["policy"])}, which has no counterpart; use {", ".join(names)}.')
    of_images = str(parts.get('policy')).startswith('Cnn')
    if of_images:
        draft.put('policy.model.encoder', 'nature', f'policy={parts["policy"]}')
        if draft.at('policy.model.shared_encoder') is None:
            draft.put('policy.model.shared_encoder', True, f'policy={parts["policy"]}')
    widths = parts.get('policy_kwargs.net_arch')
    if kind == 'ppo_lstm':
        _put_memory(draft, widths, of_images)
    elif widths is not None:  # the default is the same: 2 x 64, none for images
        _put_layers(draft, widths, of_images)


def _put_trpo(draft: Draft) -> None:
    draft.put('policy.learn.grad_clip', None, 'TRPO, which clips no gradients of the critic')
    draft.put('policy.learn.adam_eps', 5e-6, "SB3's Adam, with epsilon 1e-5", 'half of it: the squared error is halved')
    norm = draft.at('policy.learn.adv_norm')
    if norm == 'off':
        draft.put('policy.learn.adv_norm', 'off', 'normalize_advantage=False')
    elif norm is not None:
        draft.put('policy.learn.adv_norm', 'batch', 'normalize_advantage=True')


def _put_sde(draft: Draft) -> None:
    """Sets exploration with state-dependent noise."""
    freq = draft.parts.get('sde_sample_freq')
    if draft.parts.get('use_sde'):
        draft.put('policy.model.distribution', 'gsde', 'use_sde=True')
        if freq is not None and 0 < freq < 1e9:
            draft.put('policy.model.sde_sample_freq', int(freq), f'sde_sample_freq={freq:g}')
    elif freq is not None:
        draft.drop(f'sde_sample_freq={freq:g}', 'read only with use_sde')


def _put_memory(draft: Draft, widths: _Widths | None, of_images: bool) -> None:
    """Sets the LSTMs of actor and critic, which see the observation or the features of an image; net_arch comes after them."""
    parts = {key.removeprefix('policy_kwargs.'): value for key, value in draft.parts.items()}
    size = parts.get('lstm_hidden_size', 256)
    n_layer = parts.get('n_lstm_layers', 1)
    has_critic = bool(parts.get('enable_critic_lstm', True))
    value = {'cell': 'lstm', 'hidden_size': size, 'n_layer': n_layer, 'critic': has_critic}
    draft.put('policy.model.recurrent', value, f'lstm_hidden_size={size}, enable_critic_lstm={has_critic}')
    if not has_critic:
        draft.drop('a linear layer of the critic', 'with the next layer it is one linear layer')
    if not of_images and parts.get('policy') != 'MultiInputLstmPolicy':
        draft.put('policy.model.encoder', 'flat', 'RecurrentPPO', 'the LSTM sees the observation itself')
    if widths is None and of_images:
        widths = _Widths([], [], [])
    elif widths is None:
        widths = _Widths([], [64, 64], [64, 64])
    if widths.shared:
        draft.refuse(f'policy_kwargs.net_arch has shared layers, {widths.shared}; give dict(pi=[..], vf=[..]).')
    draft.put('policy.model.actor_head', list(widths.actor), widths.text)
    draft.put('policy.model.critic_head', list(widths.critic), widths.text)


def _put_optimizer(draft: Draft, kind: str) -> None:
    """Sets the optimizer with its options as one component; torch's Adam with a weight decay becomes adamw."""
    start = 'policy_kwargs.optimizer_'
    if kind == 'a2c' and draft.parts.get('use_rms_prop') and f'{start}class' not in draft.parts:
        eps = draft.parts['rms_prop_eps']
        value = {'type': 'rmsprop', 'alpha': 0.99, 'eps': eps}
        draft.put('policy.learn.optimizer', value, f'use_rms_prop=True, rms_prop_eps={eps}')
        return
    settings = {key: value for key, value in draft.parts.items() if key.startswith(start)}
    if not settings:
        return
    old = ', '.join(f'{key}={value}' for key, value in settings.items())
    options = {key.rpartition('.')[2]: value for key, value in settings.items() if value}  # no weight_decay of 0
    optimizer = options.pop('optimizer_class', 'adam')
    note = ''
    if optimizer == 'adam' and 'weight_decay' in options:
        optimizer = 'adamw'
        note = 'decays separately from the gradient'
    draft.put('policy.learn.optimizer', {'type': optimizer, **options}, old, note)


def _put_layers(draft: Draft, widths: _Widths, of_images: bool) -> None:
    """Sets the layers of actor and critic: an encoder each if their widths are equal, else heads on the observation."""
    old = widths.text
    if widths.shared and not of_images:
        draft.put('policy.model.hidden_sizes', widths.shared, old)
        draft.put('policy.model.shared_encoder', True, old)
    elif widths.actor and widths.actor == widths.critic and not of_images:
        draft.put('policy.model.hidden_sizes', widths.actor, old)
        return
    elif not of_images:
        draft.put('policy.model.encoder', 'flat', old, 'actor and critic differ')
    draft.put('policy.model.actor_head', widths.actor, old)
    draft.put('policy.model.critic_head', widths.critic, old)
