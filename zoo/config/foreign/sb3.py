"""PPO settings of stable-baselines3, as rl-zoo3's YAML files and PPO(...) calls have them -> a config of zoo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoo.config.foreign.conversion import (
    ACTIVATIONS,
    Conversion,
    Draft,
    Row,
    as_count,
    as_number,
    as_size,
    defaults,
    linear,
    mapping,
    nearest_divisor,
    number_or_none,
    one_of,
    only,
    out,
    part,
    sizes,
    to,
    translate,
)
from zoo.config.foreign.envs import is_image_env, put_env, put_frame_stack
from zoo.config.foreign.files import literal_text
from zoo.config.messages import shown

WHO = 'stable-baselines3'
_OPTIMIZERS = {'adam': 'adam', 'adamw': 'adamw', 'rmsprop': 'rmsprop', 'rmsproptflike': 'rmsprop', 'sgd': 'sgd'}
_RENAMED = {'GrayScaleObservation': 'GrayscaleObservation', 'FrameStack': 'FrameStackObservation'}


def _optimizer(name: Any) -> dict[str, str]:
    return {'type': one_of(_OPTIMIZERS)(name)}


def schedule(value: Any) -> Any:
    """A number, or 'lin_2.5e-4' as a schedule that ends at 0. Raises: ValueError."""
    if isinstance(value, str) and value.startswith('lin_'):
        return linear(value.removeprefix('lin_'))
    return as_number(value)


def _wrappers(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """The class and the arguments of each wrapper. Raises: ValueError."""
    found = []
    for item in [value] if isinstance(value, str | Mapping) else value if isinstance(value, list) else [None]:
        name, options = next(iter(item.items())) if isinstance(item, Mapping) and item else (item, None)
        if not isinstance(name, str) or '.' not in name:
            raise ValueError('it must be the dotted name of a class, or {name: {its arguments}}, or a list of them')
        found.append((name, mapping(options)))
    return found


def _normalize(value: Any) -> dict[str, Any]:
    """What VecNormalize normalises. Raises: ValueError."""
    value = literal_text(value) if isinstance(value, str) else value
    if isinstance(value, bool | None):
        return {'norm_obs': True, 'norm_reward': True} if value else {}
    found = {'norm_obs': True, 'norm_reward': True, **mapping(value)}
    return {**found, 'gamma': as_number(found['gamma'])} if 'gamma' in found else found


def _widths(value: Any) -> tuple[list[int], list[int], list[int]] | None:
    """The widths of layers that actor and critic share (SB3 before 1.8), of the actor's, of the critic's."""
    if value is None:
        return None
    items = value if isinstance(value, list | tuple) else [value]
    own = next((item for item in items if isinstance(item, Mapping)), None)
    if own is None:
        return [], sizes(value), sizes(value)
    shared = sizes([item for item in items if not isinstance(item, Mapping)])
    return shared, sizes(own.get('pi', [])), sizes(own.get('vf', []))


ROWS: dict[str, Row] = {
    'env': part('env.id'),
    'n_timesteps': to('max_env_step', as_count),
    'total_timesteps': to('max_env_step', as_count),
    'seed': to('seed'),
    'n_envs': to('env.collector_env_num', as_size),
    'env_kwargs': to('env.kwargs', mapping),
    'frame_stack': part('env.window', 'of Atari env.kwargs.frame_stack', value=as_count),
    'env_wrapper': part('env.wrappers', "{type: 'module:Class', its arguments}", value=_wrappers),
    'normalize': part('policy.model.obs_norm', 'and policy.learn.reward_norm; a dict chooses', value=_normalize),
    'policy': part('policy.model.encoder', 'CnnPolicy: nature, shared by actor and critic'),
    'policy_kwargs': part('policy.model', 'see the next table'),
    'n_steps': to('policy.collect.n_step', as_size),
    'batch_size': part(
        'policy.learn.batch_size', 'a divisor of the rollout: SB3 makes a smaller last minibatch', value=as_size
    ),
    'n_epochs': to('policy.learn.epoch_per_collect', as_count),
    'learning_rate': to('policy.learn.learning_rate', schedule, page='{start, end: 0} for lin_...'),
    'clip_range': to('policy.learn.clip_ratio', schedule, page='{start, end: 0} for lin_...'),
    'clip_range_vf': part('policy.learn.value_loss', '{type: clip, range: the number}', value=number_or_none),
    'gamma': to('policy.collect.discount_factor', as_number),
    'gae_lambda': to('policy.collect.gae_lambda', as_number),
    'ent_coef': to('policy.learn.entropy_weight', as_number),
    'vf_coef': to(
        'policy.learn.value_weight', lambda x: 2 * as_number(x), 'twice the number: the squared error is halved here'
    ),
    'max_grad_norm': to('policy.learn.grad_clip', as_number),
    'normalize_advantage': to('policy.learn.adv_norm', lambda on: 'minibatch' if on else 'off'),
    'target_kl': part('policy.learn.target_kl', "with policy.learn.target_kl_at 'minibatch'", value=number_or_none),
    'use_sde': part('policy.model.distribution', "'gsde'"),
    'sde_sample_freq': part('policy.model.sde_sample_freq', 'null for -1; read with use_sde', value=number_or_none),
    'device': to('policy.device'),
    'tensorboard_log': out('logger.tensorboard is on; the files are in the folder of the run'),
    'stats_window_size': out('returns are averaged over the last 100 episodes'),
    'verbose': out('logger.console says how much is shown'),
    'callback': only(None, why='write a class of zoo.Callback and name it in callbacks'),
    'monitor_kwargs': only(None, {}, why='set logger.info_keys to log numbers of the env'),
    'rollout_buffer_class': only(None, why='rollouts are whole blocks here'),
    'rollout_buffer_kwargs': only(None, why='rollouts are whole blocks here'),
    'vec_env_wrapper': only(None, why='put wrappers of single envs into env.wrappers'),
    '_init_setup_model': out('models are made at the start'),
}
"""Keys of a block of rl-zoo3's ppo.yml, and arguments of PPO."""

KWARGS_ROWS: dict[str, Row] = {
    'policy_kwargs.net_arch': part(
        'policy.model.hidden_sizes', 'unequal pi and vf: encoder flat, actor_head and critic_head', value=_widths
    ),
    'policy_kwargs.activation_fn': to('policy.model.activation', one_of(ACTIVATIONS)),
    'policy_kwargs.ortho_init': part(
        'policy.model', 'true is how weights start here; false has no key: they start orthogonal'
    ),
    'policy_kwargs.log_std_init': to('policy.model.log_std_init', as_number),
    'policy_kwargs.full_std': only(True, why='a gsde policy has a deviation for each feature and action'),
    'policy_kwargs.use_expln': only(False, why='deviations are exponentials'),
    'policy_kwargs.squash_output': only(False, why='policy.model.distribution=squashed_gaussian squashes actions'),
    'policy_kwargs.normalize_images': to('policy.model.normalize_images'),
    'policy_kwargs.share_features_extractor': to('policy.model.shared_encoder', note='of images'),
    'policy_kwargs.features_extractor_class': only(
        None, why='register it as an encoder, and set policy.model.encoder to its name'
    ),
    'policy_kwargs.features_extractor_kwargs': only(None, {}, why='options of policy.model.encoder'),
    'policy_kwargs.optimizer_class': to('policy.learn.optimizer', _optimizer),
    'policy_kwargs.optimizer_kwargs.eps': to('policy.learn.adam_eps', as_number),
    'policy_kwargs.optimizer_kwargs.weight_decay': to(
        'policy.learn.optimizer',
        lambda x: {'type': 'adamw', 'weight_decay': as_number(x)},
        'decays apart from the gradient',
    ),
    'policy_kwargs.optimizer_kwargs.betas': to('policy.learn.optimizer', lambda x: {'type': 'adam', 'betas': list(x)}),
}
"""Keys of policy_kwargs."""

DEFAULTS = {
    'n_envs': 1,
    'n_steps': 2048,
    'batch_size': 64,
    'n_epochs': 10,
    'learning_rate': 3e-4,
    'clip_range': 0.2,
    'ent_coef': 0.0,
    'vf_coef': 0.5,
    'max_grad_norm': 0.5,
}
"""SB3's own values of keys that a block leaves out, where zoo's differ."""


def from_sb3(block: Mapping[str, Any], env: str | None = None) -> Conversion:
    """One block of rl-zoo3's ppo.yml, or the arguments of PPO. Args: env: the id, which is the name of the block.

    Raises: ConfigError with a sentence for every key that has no counterpart.
    """
    draft = Draft()
    kwargs = _kwargs(draft, block.get('policy_kwargs'))
    name = env or block.get('env')
    if isinstance(name, str):
        put_env(draft, name, f'env {name}')
    else:
        draft.refuse(
            "the env is not named; give the name of the block, zoo convert --name CartPole-v1, or a key 'env'."
        )
    draft.put('policy.type', 'ppo', 'PPO')
    translate(draft, ROWS, block, WHO)
    translate(draft, KWARGS_ROWS, {'policy_kwargs': kwargs}, WHO)
    defaults(draft, ROWS, DEFAULTS, block, WHO)
    if not draft.unreadable:
        _put_batch(draft)
        _put_env_parts(draft)
        _put_policy(draft)
    return draft.finish('settings of stable-baselines3, as in rl-zoo3')


def _kwargs(draft: Draft, value: Any) -> dict[str, Any]:
    try:
        found = literal_text(value) if isinstance(value, str) else value or {}
    except ValueError:
        found = None
    if not isinstance(found, Mapping):
        draft.refuse(f'policy_kwargs is {shown(value)}, which cannot be read; write dict(net_arch=[64, 64], ...).')
        return {}
    return dict(found)


def _put_batch(draft: Draft) -> None:
    wanted = draft.given['batch_size']
    n = draft.at('policy.collect.n_step', 2048) * draft.at('env.collector_env_num', 1)
    size = nearest_divisor(n, min(wanted, n))
    note = '' if size == wanted else f'a divisor of the rollout, {n}; SB3 makes the last minibatch smaller'
    draft.put('policy.learn.batch_size', size, f'batch_size={wanted}', note)


def _put_env_parts(draft: Draft) -> None:
    given = draft.given
    if 'frame_stack' in given:
        put_frame_stack(draft, given['frame_stack'], f'frame_stack={given["frame_stack"]}')
    found: list[Any] = []
    for name, options in given.get('env_wrapper', []):
        if name.endswith('AtariWrapper') and is_image_env(draft):
            draft.drop(f'env_wrapper {name}', "env.id 'atari' has what it does")
            continue
        *parts, last = name.split('.')
        home = 'gymnasium.wrappers' if parts[0] in ('gym', 'gymnasium') else '.'.join(parts)
        place = f'{home}:{_RENAMED.get(last, last)}'
        found.append({'type': place, **options} if options else place)
    if found:
        draft.put('env.wrappers', found, 'env_wrapper', 'their packages must be installed')
    chosen = given.get('normalize') or {}
    paths = {
        'norm_obs': 'policy.model.obs_norm',
        'norm_reward': 'policy.learn.reward_norm',
        'gamma': 'policy.learn.reward_norm_discount',
    }
    for key, value in chosen.items():
        if key in paths:
            draft.put(paths[key], value if key == 'gamma' else bool(value), f'normalize: {key}={value}')
        else:
            draft.drop(f'normalize: {key}={shown(value)}', 'observations and rewards are clipped to +-10')


def _put_policy(draft: Draft) -> None:
    given = draft.given
    if (limit := given.get('clip_range_vf')) is not None:
        draft.put('policy.learn.value_loss', {'type': 'clip', 'range': limit}, f'clip_range_vf={limit}')
    if (kl := given.get('target_kl')) is not None:
        draft.put('policy.learn.target_kl', kl, f'target_kl={kl}', 'both stop above 1.5 times it')
        draft.put('policy.learn.target_kl_at', 'minibatch', f'target_kl={kl}')
    freq = given.get('sde_sample_freq')
    if given.get('use_sde'):
        draft.put('policy.model.distribution', 'gsde', 'use_sde=True')
        if freq is not None and 0 < freq < 1e9:
            draft.put('policy.model.sde_sample_freq', int(freq), f'sde_sample_freq={freq:g}')
    elif freq is not None:
        draft.drop(f'sde_sample_freq={freq:g}', 'read only with use_sde')
    if given.get('policy_kwargs.ortho_init') is False:
        draft.drop('policy_kwargs.ortho_init=False', 'weights start orthogonal, in all networks of zoo')
    of_images = given.get('policy') == 'CnnPolicy'
    if given.get('policy') not in (None, 'MlpPolicy', 'CnnPolicy', 'MultiInputPolicy'):
        draft.refuse(
            f'policy is {shown(given["policy"])}, which has no counterpart; use MlpPolicy, CnnPolicy or MultiInputPolicy, '
            'and for a recurrent one policy.model.recurrent in a config of zoo.'
        )
    if of_images:
        draft.put('policy.model.encoder', 'nature', 'policy=CnnPolicy')
        if draft.at('policy.model.shared_encoder') is None:
            draft.put('policy.model.shared_encoder', True, 'policy=CnnPolicy')
    _put_layers(draft, given.get('policy_kwargs.net_arch'), of_images)


def _put_layers(draft: Draft, widths: tuple[list[int], list[int], list[int]] | None, of_images: bool) -> None:
    """The widths of actor and critic: equal ones are an encoder each, others heads on the observation."""
    if widths is None:
        return  # two layers of 64, as here; none on images
    shared, actor, critic = widths
    old = f'policy_kwargs.net_arch={shared or ""} pi={actor} vf={critic}'
    if shared and not of_images:
        draft.put('policy.model.hidden_sizes', shared, old)
        draft.put('policy.model.shared_encoder', True, old)
    elif actor == critic and actor and not of_images:
        draft.put('policy.model.hidden_sizes', actor, old)
        return
    elif not of_images:
        draft.put('policy.model.encoder', 'flat', old, 'actor and critic differ')
    draft.put('policy.model.actor_head', actor, old)
    draft.put('policy.model.critic_head', critic, old)
