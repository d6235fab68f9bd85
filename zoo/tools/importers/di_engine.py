"""DI-engine's pair (main_config, create_config) -> a config of zoo with the same policy and env, or an error."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from zoo.config.names import data_file
from zoo.config.section import ConfigError, plain, value_at
from zoo.core.errors import shown
from zoo.tools.importers.conversion import (
    Conversion,
    Draft,
    as_number,
    as_size,
    defaults,
    is_image_env,
    mapping,
    nearest_divisor,
    number_or_none,
    put_env,
    put_frame_stack,
    rows_of,
    translate,
)

WHO = 'DI-engine'
POLICIES = ('ppo', 'ppo_offpolicy', 'ppg', 'ppg_offpolicy')


def stop_value(value: object) -> float | None:
    """Converts a stop_value: 10^9 or more means that there is none. Raises: ValueError."""
    number = number_or_none(value)
    if number is not None and number < 1e9:
        return number
    return None


TABLES = data_file('zoo.tools.importers', 'di_engine.yaml')
MAIN_ROWS = rows_of(
    TABLES['main_config'],
    stop_value=stop_value,
    value_norm=lambda value: value == 'baseline' or value,
    folder_name=lambda name: str(name).strip('/').replace('/', '_'),
)
CREATE_ROWS = {key: row for key, row in MAIN_ROWS.items() if key.startswith('env')} | rows_of(TABLES['create_config'])
ENV_IDS = TABLES['env_types']


def is_main_config(data: Any) -> bool:
    """Whether a dict is DI-engine's main_config: it has two or more keys that only such configs have, and no `env.id`."""
    if not isinstance(data, Mapping) or value_at(data, 'env.id') is not None:
        return False
    return sum(value_at(data, mark) is not None for mark in TABLES['marks']) >= 2


def from_pair(main: Mapping[str, Any], create: Mapping[str, Any] | None = None) -> Conversion:
    """Translates DI-engine's pair of configs to a config of zoo.

    A main_config with `env.id` is a config of zoo: only the types of create_config are added to it.
    Args: create: DI-engine's create_config; None: main_config names the policy and the env itself.
    Raises: ConfigError with a sentence for every key that has no counterpart.
    """
    main = plain(main)  # an EasyDict with a key such as 'items' lacks the method of this name
    create = plain(create)
    if value_at(main, 'env.id') is not None:
        return _of_zoo(main, create or {})
    draft = Draft()
    kind = _policy_type(draft, main, create)
    translate(draft, CREATE_ROWS, _without_reward_model(create or {}), f"{WHO}'s create_config")
    translate(draft, MAIN_ROWS, _without_reward_model(main), f"{WHO}'s main_config")
    if kind:
        draft.config['policy'] = {'type': kind, **draft.config.get('policy', {})}
        draft.became.insert(0, (f'policy.type={kind}', f'policy.type={kind!r}'))
        defaults(draft, MAIN_ROWS, TABLES['defaults'][kind], main, WHO)
    _put_env(draft, main, create)
    _refuse_reward_model(draft, main, create or {})
    if kind and not draft.unreadable:
        put_rollout(draft, kind)
        put_network(draft, kind)
        put_update(draft, kind)
    return draft.finish("DI-engine's main_config and create_config")


def _of_zoo(main: Mapping[str, Any], create: Mapping[str, Any]) -> Conversion:
    """Adds the types of create_config to a config of zoo."""
    draft = Draft()
    draft.config = copy.deepcopy(dict(main))
    translate(draft, CREATE_ROWS, create, f"{WHO}'s create_config")
    main_type = value_at(main, 'policy.type')
    create_type = draft.parts.get('policy.type')
    if create_type is not None and main_type not in (None, create_type):
        draft.refuse(
            f'main_config.policy.type is {shown(main_type)} but create_config.policy.type is {shown(create_type)}; '
            'write the same one twice, or leave create_config out.'
        )
    elif create_type is not None:
        name = str(create_type).removesuffix('_command')
        draft.put('policy.type', name, f'create_config.policy.type={name}')
    kind = draft.parts.get('env.type')
    if kind is not None:
        draft.drop(f'create_config.env.type={kind!r}', f'main_config.env.id is {shown(main["env"]["id"])}')
    _put_vectorization(draft)
    return draft.finish("zoo's own config, with DI-engine's create_config")


def _policy_type(draft: Draft, main: Mapping[str, Any], create: Mapping[str, Any] | None) -> str:
    """Returns the policy that both configs name; '' if there is a problem, which the draft then has."""
    create_type = value_at(create, 'policy.type')
    main_type = value_at(main, 'policy.type')
    kinds = {str(value).removesuffix('_command') for value in (create_type, main_type) if value is not None}
    if not kinds:
        draft.refuse(
            "the config is DI-engine's main_config, which does not say what to train: pass (main_config, create_config), "
            'or add policy.type, one of ' + ', '.join(POLICIES) + '.'
        )
        return ''
    if len(kinds) > 1:
        draft.refuse(
            f'create_config.policy.type is {shown(create_type)} but main_config.policy.type is {shown(main_type)}; '
            'write the same one in both.'
        )
        return ''
    kind = kinds.pop()
    if kind not in POLICIES:
        why = TABLES['other_policies'].get(kind, 'which is not translated')
        raise ConfigError(  # another policy has keys that are not known here
            f'policy.type is {kind!r}, {why}; it must be one of {", ".join(POLICIES)}. '
            'For another policy of zoo write a config with its own keys, see zoo list policies.'
        )
    if value_at(main, 'policy.multi_agent'):
        raise ConfigError(  # so have several agents
            'policy.multi_agent is True, but an import takes one agent; several are in the section agents of zoo.'
        )
    _check_on_policy(draft, kind, value_at(main, 'policy.on_policy'))
    return kind


def _check_on_policy(draft: Draft, kind: str, on_policy: object) -> None:
    if on_policy is not None and bool(on_policy) == kind.endswith('_offpolicy'):
        other = f'{kind}_offpolicy'
        if on_policy:
            other = kind.removesuffix('_offpolicy')
        draft.refuse(
            f'policy.on_policy is {on_policy} but create_config.policy.type is {kind!r}; write {other!r} there, or take '
            'on_policy out.'
        )
    elif on_policy is not None:
        draft.drop(f'policy.on_policy={on_policy}', f'policy.type={kind!r} says it')


def _without_reward_model(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != 'reward_model'}


def _refuse_reward_model(draft: Draft, main: Mapping[str, Any], create: Mapping[str, Any]) -> None:
    """Refuses a reward model; both configs may have a section for it."""
    sections = [config['reward_model'] for config in (main, create) if config.get('reward_model')]
    if not sections:
        return
    settings: dict[str, Any] = {}
    for section in sections:
        if isinstance(section, Mapping):
            settings |= section
    kind = str(settings.get('type'))
    if 'type' not in settings and 'min_snippet_length' in settings:
        kind = 'trex'
    why = TABLES['reward_models'].get(kind, TABLES['reward_models']['others'])
    draft.refuse(f'reward_model.type is {kind!r}, which has no counterpart here: {why}.')


def _put_env(draft: Draft, main: Mapping[str, Any], create: Mapping[str, Any] | None) -> None:
    kind = draft.parts.get('env.type')
    name = draft.parts.get('env.env_id')
    if kind is None and name is None:
        draft.refuse(
            'the env is not named: create_config.env.type is missing; pass (main_config, create_config), or add env.env_id.'
        )
    elif name is None and not ENV_IDS.get(str(kind)):
        why = 'is not known here'
        if str(kind) in ENV_IDS:
            why = 'is that of many envs'
        draft.refuse(
            f"create_config.env.type is {shown(kind)}, which {why}; add env.env_id, e.g. 'HalfCheetah-v5' or the "
            "'module:function' that makes one env with gymnasium's interface."
        )
    else:
        keys = {'env.type': kind, 'env.env_id': name}
        old = ', '.join(f'{key}={value}' for key, value in keys.items() if value is not None)
        put_env(draft, str(name or ENV_IDS[str(kind)]), old)
    _put_env_options(draft)


def _put_env_options(draft: Draft) -> None:
    """Sets the wrappers of the env, and how envs step together."""
    if draft.parts.get('env.rew_clip'):
        value = [{'type': 'gymnasium.wrappers:ClipReward', 'min_reward': -10}]
        draft.put(
            'env.wrappers', value, 'env.rew_clip=True', 'rewards of -10 or more; an evaluation counts them unclipped'
        )
        draft.put('policy.eval.env', {'wrappers': []})
    if 'env.frame_stack' in draft.parts:
        n = draft.parts['env.frame_stack']
        put_frame_stack(draft, n, f'env.frame_stack={n}')
    _put_vectorization(draft)
    limit = draft.parts.get('env.manager.step_timeout')
    if limit is not None:
        draft.put('env.step_timeout', float(limit), f'env.manager.step_timeout={limit}')
    n_try = draft.parts.get('env.manager.max_retry') or 1
    if n_try > 1:
        draft.put('env.on_error', 'restart', f'env.manager.max_retry={n_try}')


def _put_vectorization(draft: Draft) -> None:
    kind = draft.parts.get('env_manager.type', draft.parts.get('env.manager.type'))
    if kind is None:
        return
    old = f'env_manager.type={kind}'
    if is_image_env(draft):
        draft.drop(old, 'the games of a family step together in their own vector env')
    elif kind == 'base':
        draft.put('env.vectorization', 'sync', old)
    else:
        draft.put('env.vectorization', 'async', old)


def put_rollout(draft: Draft, kind: str) -> None:
    """Sets rollout, minibatches and buffer, and converts frequencies that DI-engine counts in gradient steps."""
    parts = draft.parts
    n_env = draft.at('env.collector_env_num', 8)
    n = parts.get('policy.collect.n_sample')
    batch = parts['policy.learn.batch_size']
    if n is None:
        draft.refuse('policy.collect.n_sample is missing; give the env steps of a rollout over all envs.')
        return
    n_sample = math.ceil(n / n_env) * n_env
    note = ''
    if n != n_sample:
        note = f'the next multiple of {n_env} envs'
    draft.put('policy.collect.n_sample', n_sample, f'policy.collect.n_sample={n}', note)
    _put_rate(draft, kind, n_sample)
    if kind.endswith('_offpolicy'):
        draft.put('policy.learn.batch_size', batch, f'policy.learn.batch_size={batch}')
        n_update = _put_buffer(draft, kind, n_sample, batch)
    else:
        n_update = _put_minibatch(draft, kind, n_sample, batch)
    for old in TABLES['frequencies']:
        if parts.get(old):
            n_step = max(1, round(parts[old] * n_sample / n_update))
            draft.put(
                MAIN_ROWS[old].here, n_step, f'{old}={parts[old]}', f'env steps: {n_update} iterations a rollout there'
            )


def _put_minibatch(draft: Draft, kind: str, n_sample: int, batch: int) -> int:
    """Sets the minibatches of an on-policy type. Returns: the gradient steps that DI-engine counts after each rollout."""
    parts = draft.parts
    old = f'policy.learn.batch_size={batch}'
    size = nearest_divisor(n_sample, batch)
    note = ''
    if size != batch:
        note = f'a divisor of the rollout, {n_sample}; there the last minibatch overlaps another'
    draft.put('policy.learn.batch_size', size, old, note)
    if kind == 'ppg':
        draft.put('policy.learn.aux_batch_size', size, old)
    why = f"{kind} learns from each rollout once; off-policy is '{kind}_offpolicy'"
    for name in ('policy.learn.update_per_collect', 'policy.other.replay_buffer'):
        if name in parts:
            draft.drop(f'{name}={shown(parts[name], 40)}', why)
    if kind == 'ppo':
        n_epoch = parts.get('policy.learn.epoch_per_collect', 1)
        return n_epoch * math.ceil(parts['policy.collect.n_sample'] / batch)
    return 1  # DI-engine's ppg counts a whole update as one


def _put_rate(draft: Draft, kind: str, n_sample: int) -> None:
    """Sets a learning rate that falls linearly over epoch_num updates, each after a rollout of n_sample env steps."""
    scheduler = draft.parts.get('policy.learn.lr_scheduler')
    if not scheduler:
        return
    old = f'policy.learn.lr_scheduler={shown(scheduler, 60)}'
    if kind != 'ppo':
        draft.drop(old, f'{kind} does not read it')
        return
    try:
        n_update = as_size(scheduler.get('epoch_num'))
        ratio = as_number(scheduler.get('min_lr_lambda'))
    except ValueError as error:
        draft.refuse(f'{old} cannot be read: {error}; give epoch_num and min_lr_lambda.')
        return
    start = draft.at('policy.learn.learning_rate')
    value = {'start': start, 'end': start * ratio, 'over': n_update * n_sample}
    draft.put('policy.learn.learning_rate', value, old, f'{n_update} rollouts of {n_sample} env steps')


def _put_buffer(draft: Draft, kind: str, n_sample: int, batch: int) -> int:
    """Sets the section `buffer` of an off-policy type. Returns: the number of draws after each rollout."""
    parts = draft.parts
    n_update = parts['policy.learn.update_per_collect']
    settings = parts.get('policy.other.replay_buffer') or {}
    draw = {'n_sample': n_sample, 'batch': batch, 'n_update': n_update}
    if kind == 'ppo_offpolicy':
        buffers = 'buffer'
        draft.put('buffer.type', 'replay')
        _put_draw(draft, settings, **draw, prefix='', default_size=10_000)
    else:
        buffers = 'buffer.policy and buffer.value'
        draft.put('buffer.type', 'multi')
        draft.put('policy.learn.aux_batch_size', batch)
        for name in ('policy', 'value'):
            _put_draw(draft, settings.get(name), **draw, prefix=f'{name}.', default_size=1000)
        draft.put('buffer.size', max(draft.at('buffer.policy.size'), draft.at('buffer.value.size')))
    for key in settings:
        if key not in TABLES['replay_buffer']:
            draft.drop(f'policy.other.replay_buffer.{key}', 'threads, logs and checks of the buffer')
    draft.became.append((f'policy.learn.batch_size={batch}', f'{buffers}: n_sample={batch}'))
    draft.became.append((f'policy.learn.update_per_collect={n_update}', f'{buffers}: update_per_collect={n_update}'))
    return n_update


def _put_draw(
    draft: Draft, settings: Any, n_sample: int, batch: int, n_update: int, prefix: str, default_size: int
) -> None:
    """Sets the size of one buffer, and the draws from it."""
    path = f'policy.other.replay_buffer.{prefix}'
    here = f'buffer.{prefix}'
    draft.put(f'{here}size', default_size)
    try:
        settings = mapping(settings)
        asked_size = as_size(settings.get('replay_buffer_size', default_size))
        n_use = as_number(settings.get('max_use') or math.inf)
        n_stale = as_number(settings.get('max_staleness') or math.inf)
    except ValueError as error:
        draft.refuse(f'{path[:-1]} is {shown(settings)}, which is not what it must be here: {error}; correct it.')
        return
    draft.put(f'{here}n_sample', batch)
    draft.put(f'{here}update_per_collect', n_update)
    size = max(asked_size, n_sample, batch)
    note = ''
    if size != asked_size:
        note = f'the least that holds a rollout, {n_sample}'
    draft.put(f'{here}size', size, f'{path}replay_buffer_size={asked_size}', note)
    if n_use < math.inf:
        draft.put(f'{here}max_use', int(n_use), f'{path}max_use={int(n_use)}')
    if n_stale < math.inf:
        old = f'{path}max_staleness={int(n_stale)}'
        draft.put(f'{here}max_staleness', math.ceil(n_stale / n_update), old, 'rollouts, not gradient steps')


def put_network(draft: Draft, kind: str) -> None:
    """Sets encoder, widths and architecture of the network from policy.model. Args: kind: the type of the policy there."""
    prefix = 'policy.model.'
    parts = {key.removeprefix(prefix): value for key, value in draft.parts.items() if key.startswith(prefix)}
    sizes = parts['encoder_hidden_size_list']
    obs_shape = parts.get('obs_shape')
    of_images = is_image_env(draft) or (isinstance(obs_shape, list | tuple) and len(obs_shape) == 3)
    old = f'policy.model.encoder_hidden_size_list={sizes}'
    if parts.get('impala_cnn_encoder'):
        draft.put('policy.model.encoder', 'impala', 'policy.model.impala_cnn_encoder=True', 'of 16, 32 and 32 channels')
    elif of_images and len(sizes) >= 3:
        draft.put('policy.model.encoder', {'type': 'cnn', 'channels': sizes[:3], 'hidden_size': sizes[-1]}, old)
    else:
        draft.put('policy.model.hidden_sizes', sizes, old)
    for name in ('actor', 'critic'):
        n = parts[f'{name}_head_layer_num']
        size = parts[f'{name}_head_hidden_size']
        head = f'policy.model.{name}_head'
        draft.put(head, [size] * n, f'{head}_hidden_size={size}, layer_num={n}')
    if kind.startswith('ppg'):
        draft.put('policy.model.arch', 'dual')
        draft.became.append(("the networks of DI-engine's ppg", "policy.model.arch='dual': a critic of its own"))
    else:
        shared = bool(parts['share_encoder'])
        draft.put('policy.model.shared_encoder', shared, f'policy.model.share_encoder={shared}')
    if 'obs_shape' in parts:
        draft.drop(f'policy.model.obs_shape={obs_shape}', 'the spaces of the env decide it')
    _put_gaussian(draft, parts)


def _put_gaussian(draft: Draft, parts: Mapping[str, Any]) -> None:
    """Sets layer normalisation and the Gaussian of continuous actions; checks the action space."""
    keys = ('policy.action_space', 'policy.model.action_space')
    spaces = {str(draft.parts[key]) for key in keys if key in draft.parts}
    if spaces - {'discrete', 'continuous'}:
        draft.refuse(
            f'policy.action_space is {shown(sorted(spaces))}: only discrete and continuous are translated; there each part '
            'of a mixed action has a ratio and a clip of its own, here the whole action of a Dict or Tuple space has one.'
        )
    for space in sorted(spaces):
        draft.drop(f'policy.action_space={space}', 'the spaces of the env decide it')
    norm = parts.get('norm_type')
    if norm not in (None, 'LN'):
        draft.refuse(
            f"policy.model.norm_type is {norm!r}: zoo has layer normalisation alone; write 'LN' or leave it out."
        )
    elif norm == 'LN':
        draft.put('policy.model.layer_norm', True, 'policy.model.norm_type=LN')
    sigma = parts.get('sigma_type', 'independent')
    if sigma == 'fixed':
        std = parts.get('fixed_sigma_value', 0.3)
        for name in ('log_std_init', 'log_std_min', 'log_std_max'):
            draft.put(f'policy.model.{name}', math.log(std), f'policy.model.fixed_sigma_value={std}', 'its logarithm')
    elif sigma == 'conditioned':
        draft.put('policy.model.state_dependent_std', True, 'policy.model.sigma_type=conditioned')
    elif sigma == 'independent' and 'continuous' in spaces:
        old = 'policy.model.sigma_type=independent'
        draft.put('policy.model.log_std_init', -0.5, old, "DI-engine's ppo starts there")
    elif sigma not in ('independent', None):
        draft.refuse(f"policy.model.sigma_type is {sigma!r}; use 'independent', 'conditioned' or 'fixed'.")
    if parts.get('bound_type') is not None:
        why = 'means are not bounded, actions are; policy.model.distribution=squashed_gaussian bounds them smoothly'
        draft.drop(f'policy.model.bound_type={parts["bound_type"]}', why)


def put_update(draft: Draft, kind: str) -> None:
    """Sets epochs, gradient clipping, and what DI-engine does without a key: value clipping, and torch's epsilon of Adam."""
    parts = draft.parts
    if kind == 'ppo':
        recompute = bool(parts['policy.recompute_adv'])
        draft.put('policy.learn.recompute_adv', recompute, f'policy.recompute_adv={recompute}')
    elif parts.get('policy.recompute_adv'):
        draft.drop('policy.recompute_adv=True', f'{kind} does not read it')
    n_epoch = parts.get('policy.learn.epoch_per_collect')
    if n_epoch is not None and kind == 'ppo':
        draft.put('policy.learn.epoch_per_collect', n_epoch, f'policy.learn.epoch_per_collect={n_epoch}')
    elif n_epoch is not None and kind == 'ppg':
        for path in (f'policy.learn.{name}_epoch_per_collect' for name in ('actor', 'critic')):
            if draft.at(path) is None:
                draft.put(path, n_epoch, f'policy.learn.epoch_per_collect={n_epoch}')
    elif n_epoch is not None:
        draft.drop(f'policy.learn.epoch_per_collect={n_epoch}', f'{kind} counts update_per_collect')
    _put_grad_clip(draft, kind)
    draft.put('policy.learn.value_loss', 'clip', "DI-engine's value loss, always clipped by clip_ratio")
    draft.put('policy.learn.adam_eps', 1e-8, "DI-engine's Adam, with torch's epsilon")
    if parts.get('policy.multi_gpu') or parts.get('policy.learn.multi_gpu'):
        draft.drop('policy.multi_gpu=True', TABLES['multi_gpu'])


def _put_grad_clip(draft: Draft, kind: str) -> None:
    parts = draft.parts
    limit = parts.get('policy.learn.grad_clip_value')
    how = parts.get('policy.learn.grad_clip_type')
    if kind.startswith('ppg'):
        draft.put('policy.learn.grad_clip', None, f"DI-engine's {kind}, which clips no gradients")
        for name in ('policy.learn.grad_clip_type', 'policy.learn.grad_clip_value'):
            if name in parts:
                draft.drop(f'{name}={parts[name]}', f'{kind} does not read it')
    elif how == 'clip_norm' or (how is None and limit is None):
        draft.put('policy.learn.grad_clip', limit, f'policy.learn.grad_clip_type={how}, grad_clip_value={limit}')
    elif how in ('clip_value', None):
        draft.put('policy.learn.grad_clip', None)
        draft.put('policy.learn.grad_clip_value', limit, f'policy.learn.grad_clip_type={how}, grad_clip_value={limit}')
    else:
        draft.refuse(
            f"policy.learn.grad_clip_type is {how!r} but must be 'clip_norm' or 'clip_value'; use one of them."
        )
