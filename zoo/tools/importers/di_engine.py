"""DI-engine's pair (main_config, create_config) -> a config of zoo, with the same policy and env or not at all."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from zoo.config.messages import shown
from zoo.config.names import data_file
from zoo.config.section import ConfigError, value_at
from zoo.tools.importers.conversion import Conversion, Draft, defaults, number_or_none, rows_of, translate
from zoo.tools.importers.di_engine_parts import put_network, put_rollout, put_update
from zoo.tools.importers.envs import is_image_env, put_env, put_frame_stack

WHO = 'DI-engine'
POLICIES = ('ppo', 'ppo_offpolicy', 'ppg', 'ppg_offpolicy')
_MARKS = (
    'env.n_evaluator_episode env.stop_value env.manager env.env_id env.act_scale policy.cuda policy.on_policy '
    'policy.recompute_adv policy.model.obs_shape policy.model.action_shape policy.model.encoder_hidden_size_list '
    'policy.collect.unroll_len policy.collect.collector policy.learn.learner policy.eval.evaluator policy.other'
).split()


def _stop_value(value: Any) -> float | None:
    number = number_or_none(value)
    return None if number is None or number >= 1e9 else number


TABLES = data_file('zoo.tools.importers', 'di_engine.yaml')
MAIN_ROWS = rows_of(
    TABLES['main_config'],
    stop_value=_stop_value,
    folder_name=lambda name: str(name).strip('/').replace('/', '_'),
)
CREATE_ROWS = {key: row for key, row in MAIN_ROWS.items() if key.startswith('env')} | rows_of(TABLES['create_config'])
ENV_IDS = TABLES['env_types']


def is_main_config(data: Any) -> bool:
    """Whether a dict is DI-engine's main_config: it has keys that only those have, and no `env.id`."""
    if not isinstance(data, Mapping) or value_at(data, 'env.id') is not None:
        return False
    return sum(value_at(data, mark) is not None for mark in _MARKS) >= 2


def from_pair(main: Mapping[str, Any], create: Mapping[str, Any] | None = None) -> Conversion:
    """The config of zoo that trains what the pair of DI-engine's configs describes.

    A main_config with `env.id` is one of zoo: only the types of create_config are added to it.
    Args: create: DI-engine's create_config; None: main_config names the policy and the env itself.
    Raises: ConfigError with a sentence for every key that has no counterpart.
    """
    if not isinstance(main, Mapping) or not isinstance(create, Mapping | None):
        got = f'({type(main).__name__}, {type(create).__name__})'
        raise ConfigError(f'a pair of configs is (main_config, create_config), two dicts, got {got}; pass those.')
    if value_at(main, 'env.id') is not None:
        return _of_zoo(main, create or {})
    draft = Draft()
    kind = _policy_type(draft, main, create)
    translate(draft, CREATE_ROWS, create or {}, f"{WHO}'s create_config")
    translate(draft, MAIN_ROWS, main, f"{WHO}'s main_config")
    if kind:
        draft.config['policy'] = {'type': kind, **draft.config.get('policy', {})}
        draft.became.insert(0, (f'policy.type={kind}', f'policy.type={kind!r}'))
        defaults(draft, MAIN_ROWS, TABLES['defaults'][kind], main, WHO)
    _put_env(draft, main, create)
    if kind and not draft.unreadable:
        put_rollout(draft, kind)
        put_network(draft, kind)
        put_update(draft, kind)
    return draft.finish("DI-engine's main_config and create_config")


def _of_zoo(main: Mapping[str, Any], create: Mapping[str, Any]) -> Conversion:
    """zoo's own config, with what create_config adds."""
    draft = Draft()
    draft.config = copy.deepcopy(dict(main))
    translate(draft, CREATE_ROWS, create, f"{WHO}'s create_config")
    mine, named = value_at(main, 'policy.type'), draft.given.get('policy.type')
    if named is not None and mine not in (None, named):
        draft.refuse(
            f'main_config.policy.type is {shown(mine)} but create_config.policy.type is {shown(named)}; '
            'write the same one twice, or leave create_config out.'
        )
    elif named is not None:
        named = str(named).removesuffix('_command')
        draft.put('policy.type', named, f'create_config.policy.type={named}')
    if (kind := draft.given.get('env.type')) is not None:
        draft.drop(f'create_config.env.type={kind!r}', f'main_config.env.id is {shown(main["env"]["id"])}')
    _put_vectorization(draft)
    return draft.finish("zoo's own config, with DI-engine's create_config")


def _policy_type(draft: Draft, main: Mapping[str, Any], create: Mapping[str, Any] | None) -> str:
    """The policy that both configs name; '' after a problem."""
    said = {'create_config': value_at(create, 'policy.type'), 'main_config': value_at(main, 'policy.type')}
    found = {name: value for name, value in said.items() if value is not None}
    if not found:
        draft.refuse(
            "the config is DI-engine's main_config, which does not say what to train: pass (main_config, create_config), "
            'or add policy.type, one of ' + ', '.join(POLICIES) + '.'
        )
        return ''
    kinds = {str(value).removesuffix('_command') for value in found.values()}
    if len(kinds) > 1:
        draft.refuse(
            f'create_config.policy.type is {shown(said["create_config"])} but main_config.policy.type is '
            f'{shown(said["main_config"])}; write the same one in both.'
        )
        return ''
    kind = kinds.pop()
    if kind not in POLICIES:
        raise ConfigError(  # the keys of another policy are not those that are known here
            f'policy.type is {kind!r}, which is not translated; it must be one of {", ".join(POLICIES)}. '
            'For another policy of zoo write a config with its own keys, see zoo list policies.'
        )
    on_policy = value_at(main, 'policy.on_policy')
    if on_policy is not None and bool(on_policy) == kind.endswith('_offpolicy'):
        other = kind.removesuffix('_offpolicy') if on_policy else f'{kind}_offpolicy'
        draft.refuse(
            f'policy.on_policy is {on_policy} but create_config.policy.type is {kind!r}; write {other!r} there, or take '
            'on_policy out.'
        )
    elif on_policy is not None:
        draft.drop(f'policy.on_policy={on_policy}', f'policy.type={kind!r} says it')
    return kind


def _put_env(draft: Draft, main: Mapping[str, Any], create: Mapping[str, Any] | None) -> None:
    kind = draft.given.get('env.type')
    name = draft.given.get('env.env_id')
    if kind is None and name is None:
        draft.refuse(
            'the env is not named: create_config.env.type is missing; pass (main_config, create_config), or add env.env_id.'
        )
    elif name is None and not ENV_IDS.get(str(kind)):
        what = 'is that of many envs' if str(kind) in ENV_IDS else 'is not known here'
        draft.refuse(
            f"create_config.env.type is {shown(kind)}, which {what}; add env.env_id, e.g. 'HalfCheetah-v5' or the "
            "'module:function' that makes one env with gymnasium's interface."
        )
    else:
        said = [f'env.{key}={value}' for key, value in (('type', kind), ('env_id', name)) if value is not None]
        put_env(draft, str(name or ENV_IDS[str(kind)]), ', '.join(said))
    if 'env.frame_stack' in draft.given:
        n = draft.given['env.frame_stack']
        put_frame_stack(draft, n, f'env.frame_stack={n}')
    _put_vectorization(draft)
    if draft.given.get('env.manager.step_timeout') is not None:
        n = draft.given['env.manager.step_timeout']
        draft.put('env.step_timeout', float(n), f'env.manager.step_timeout={n}')
    n_try = draft.given.get('env.manager.max_retry') or 1
    if n_try > 1:
        draft.put('env.on_error', 'restart', f'env.manager.max_retry={n_try}')


def _put_vectorization(draft: Draft) -> None:
    kind = draft.given.get('env_manager.type', draft.given.get('env.manager.type'))
    if kind is not None and not is_image_env(draft):
        draft.put('env.vectorization', 'sync' if kind == 'base' else 'async', f'env_manager.type={kind}')
    elif kind is not None:
        draft.drop(f'env_manager.type={kind}', 'the games of a family step together in their own vector env')
