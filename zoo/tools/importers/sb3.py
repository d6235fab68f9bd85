"""PPO settings of stable-baselines3 (rl-zoo3's YAML files, arguments of PPO(...)) -> a config of zoo."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from zoo.config.names import data_file
from zoo.core.errors import shown
from zoo.tools.importers.conversion import (
    Conversion,
    Draft,
    as_number,
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
    found = []
    items = [value] if isinstance(value, str | Mapping) else value
    for item in items if isinstance(items, list) else [None]:
        name, options = next(iter(item.items())) if isinstance(item, Mapping) and item else (item, None)
        if not isinstance(name, str) or '.' not in name:
            raise ValueError('it must be the dotted name of a class, or {name: {its arguments}}, or a list of them')
        found.append((name, mapping(options)))
    return found


def _normalize(value: Any) -> dict[str, Any]:
    """Returns the arguments of VecNormalize. Raises: ValueError."""
    value = literal_text(value) if isinstance(value, str) else value
    if isinstance(value, bool | None):
        return {'norm_obs': True, 'norm_reward': True} if value else {}
    found = {'norm_obs': True, 'norm_reward': True, **mapping(value)}
    return {**found, 'gamma': as_number(found['gamma'])} if 'gamma' in found else found


def _widths(value: Any) -> tuple[list[int], list[int], list[int]] | None:
    """Returns the widths of the layers that actor and critic share (SB3 before 1.8), of the actor's and of the critic's."""
    if value is None:
        return None
    items = value if isinstance(value, list | tuple) else [value]
    own = next((item for item in items if isinstance(item, Mapping)), None)
    if own is None:
        return [], sizes(value), sizes(value)
    shared = sizes([item for item in items if not isinstance(item, Mapping)])
    return shared, sizes(own.get('pi', [])), sizes(own.get('vf', []))


TABLES = data_file('zoo.tools.importers', 'sb3.yaml')
ROWS = rows_of(TABLES['keys'], schedule=schedule, wrappers=_wrappers, normalize=_normalize)
KWARGS_ROWS = rows_of(
    TABLES['policy_kwargs'],
    widths=_widths,
    optimizer=one_of(TABLES['optimizers']),
    betas=lambda value: [as_number(x) for x in (value if isinstance(value, list | tuple) else [value])],
)


OTHERS: list[str] = TABLES['others']
"""Names of rl-zoo3's files for other algorithms than PPO."""


def is_sb3(block: Any) -> bool:
    """Whether a mapping has arguments of stable-baselines3's PPO, as the files of rl-zoo3 do."""
    return isinstance(block, Mapping) and len(set(block) & (set(ROWS) - {'env', 'seed', 'gamma'})) >= 2


def from_sb3(block: Mapping[str, Any], env: str | None = None) -> Conversion:
    """Translates a block of rl-zoo3's ppo.yml, or the arguments of PPO. Args: env: the id, which is the name of the block.

    Raises: ConfigError with a sentence for every key that has no counterpart.
    """
    draft = Draft()
    kwargs = _kwargs(draft, block.get('policy_kwargs'))
    name = env or block.get('env')
    none = "the env is not named; give the name of the block, zoo convert --name CartPole-v1, or a key 'env'."
    put_env(draft, name, f'env {name}', none)
    draft.put('policy.type', 'ppo', 'PPO')
    translate(draft, ROWS, block, WHO)
    translate(draft, KWARGS_ROWS, {'policy_kwargs': kwargs}, WHO)
    defaults(draft, ROWS, TABLES['defaults'], block, WHO)
    if not draft.unreadable:
        _put_batch(draft)
        _put_env_parts(draft)
        _put_policy(draft)
        _put_optimizer(draft)
    return draft.finish('settings of stable-baselines3, as in rl-zoo3')


def _kwargs(draft: Draft, value: Any) -> dict[str, Any]:
    with suppress(ValueError):
        found = literal_text(value) if isinstance(value, str) else value or {}
        if isinstance(found, Mapping):
            return dict(found)
    draft.refuse(f'policy_kwargs is {shown(value)}, which cannot be read; write dict(net_arch=[64, 64], ...).')
    return {}


def _put_batch(draft: Draft) -> None:
    wanted = draft.given['batch_size']
    n = draft.at('policy.collect.n_step', 2048) * draft.at('env.collector_env_num', 1)
    size = nearest_divisor(n, min(wanted, n))
    note = '' if size == wanted else f'a divisor of the rollout, {n}; SB3 makes the last minibatch smaller'
    draft.put('policy.learn.batch_size', size, f'batch_size={wanted}', note)


def _put_env_parts(draft: Draft) -> None:
    given = draft.given
    if 'frame_stack' in given:
        put_frame_stack(draft, given['frame_stack'], f'frame_stack={given["frame_stack"]}', is_filled=False)
    found: list[Any] = []
    for name, options in given.get('env_wrapper', []):
        if name.endswith('AtariWrapper') and is_image_env(draft):
            draft.drop(f'env_wrapper {name}', "env.id 'atari' has what it does")
            continue
        *parts, last = name.split('.')
        home = 'gymnasium.wrappers' if parts[0] in ('gym', 'gymnasium') else '.'.join(parts)
        place = f'{home}:{TABLES["wrappers"].get(last, last)}'
        found.append({'type': place, **options} if options else place)
    if found:
        draft.put('env.wrappers', found, 'env_wrapper', 'their packages must be installed')
    for key, value in (given.get('normalize') or {}).items():
        if key in TABLES['normalize']:
            draft.put(TABLES['normalize'][key], value if key == 'gamma' else bool(value), f'normalize: {key}={value}')
        else:
            draft.drop(f'normalize: {key}={shown(value)}', 'observations and rewards are clipped to +-10')


def _put_policy(draft: Draft) -> None:
    given = draft.given
    if (limit := given.get('clip_range_vf')) is not None:
        value = {'type': 'clip', 'range': limit}
        draft.put('policy.learn.value_loss', value, f'clip_range_vf={limit}', ROWS['clip_range_vf'].note)
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
    if (widths := given.get('policy_kwargs.net_arch')) is not None:  # the default is the same: 2 x 64, none for images
        _put_layers(draft, widths, of_images)


def _put_optimizer(draft: Draft) -> None:
    """Sets the optimizer with its options as one component; torch's Adam with a weight decay becomes adamw."""
    start = 'policy_kwargs.optimizer_'
    if found := {key: x for key, x in draft.given.items() if key.startswith(start)}:
        given = {key.rpartition('.')[2]: x for key, x in found.items() if x}  # without a weight_decay of 0
        kind, old = given.pop('optimizer_class', 'adam'), ', '.join(f'{key}={x}' for key, x in found.items())
        is_adamw, note = kind == 'adam' and 'weight_decay' in given, 'decays separately from the gradient'
        value = {'type': 'adamw' if is_adamw else kind, **given}
        draft.put('policy.learn.optimizer', value, old, note if is_adamw else '')


def _put_layers(draft: Draft, widths: tuple[list[int], list[int], list[int]], of_images: bool) -> None:
    """Sets the layers of actor and critic: an encoder each if their widths are equal, else heads on the observation."""
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
