"""Messages about bad configs: for an unknown key the one that was meant, for a bad value what is accepted."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from zoo.core.registry import BUFFER_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY, Registry, closest

RESERVED = frozenset(
    (
        'items',
        'update',
        'pop',
        'keys',
        'values',
        'get',
        'copy',
        'clear',
        'setdefault',
        'popitem',
        'fromkeys',
        'freeze',
        'to_dict',
    )
)

TYPED: dict[str, Registry[Any]] = {'policy.model': MODEL_REGISTRY, 'policy': POLICY_REGISTRY, 'buffer': BUFFER_REGISTRY}
"""Section whose keys depend on its `type` -> registry of the types; inner sections come first."""

OLD_NAMES: dict[str, str] = {
    name: here
    for here, names in {
        'exp_name': 'run_name experiment_name experiment job_name',
        'max_env_step': 'total_timesteps total_steps timesteps num_timesteps num_env_steps max_env_steps timesteps_total '
        'max_epoch max_epochs max_step max_steps num_frames total_frames',
        'env.id': 'env_id env_name gym_id task',
        'env.kwargs': 'env_kwargs env_config env_args',
        'env.collector_env_num': 'num_envs n_envs n_env num_env env_num num_actors num_workers num_rollout_workers '
        'num_env_runners num_envs_per_worker num_envs_per_env_runner training_num num_processes',
        'env.collector_group_num': 'worker_num_splits num_splits n_env_group',
        'env.evaluator_env_num': 'n_eval_envs test_num num_eval_envs evaluation_num_workers',
        'policy.device': 'cuda use_cuda gpu num_gpus',
        'policy.model.hidden_sizes': 'net_arch hidden_size hidden_dim hidden_dims fcnet_hiddens hiddens layers '
        'encoder_hidden_size_list actor_head_hidden_size critic_head_hidden_size',
        'policy.model.activation': 'activation_fn fcnet_activation',
        'policy.model.shared_encoder': 'vf_share_layers share_layers share_encoder share_features_extractor shared_network',
        'policy.model.obs_norm': 'norm_obs normalize_obs normalize_observations observation_filter normalize_input '
        'running_obs_norm obs_normalization',
        'policy.n_thread': 'num_threads n_threads torch_threads num_torch_threads',
        'policy.learn.learning_rate': 'lr lr_rate step_size stepsize adam_lr policy_lr optimizer_lr learning_rate_init',
        'policy.learn.learning_rate as {start: .., end: 0}': 'anneal_lr lr_schedule lr_decay linear_lr_decay lr_scheduler',
        'policy.learn.batch_size': 'sgd_minibatch_size minibatch_size mini_batch_size mini_batchsize minibatch',
        'policy.learn.batch_size (samples in one minibatch, not their number)': 'num_minibatches n_minibatches nminibatches num_mini_batch num_minibatch num_mini_batches minibatches',
        'policy.learn.epoch_per_collect': 'num_sgd_iter n_epochs num_epochs update_epochs noptepochs ppo_epochs ppo_epoch '
        'repeat_per_collect update_per_collect mini_epochs epochs n_epoch num_epoch '
        'train_epochs nepoch',
        'policy.learn.clip_ratio': 'clip_range clip_coef clip_param cliprange clip_eps clip_epsilon eps_clip e_clip '
        'epsilon',
        'policy.learn.value_clip': 'clip_range_vf clip_vloss vf_clip_param use_value_clip cliprange_vf clip_value',
        'policy.learn.value_weight': 'vf_coef vf_loss_coeff value_coef value_loss_coef critic_coef vf_coeff value_coeff '
        'value_loss_coeff critic_loss_coeff',
        'policy.learn.entropy_weight': 'ent_coef entropy_coeff entropy_coef ent_coeff entropy_loss_coeff entropy_beta',
        'policy.learn.grad_clip': 'max_grad_norm grad_clip_norm grad_norm grad_clip_value clip_grad_norm gradient_clip '
        'max_gradient_norm grad_clip_by grad_norm_clip',
        'policy.learn.adv_norm': 'norm_adv normalize_advantage normalize_advantages advantage_normalization '
        'advantage_norm use_advantage_normalization',
        'policy.learn.value_norm': 'normalize_value normalize_returns return_norm value_normalization use_valuenorm',
        'policy.learn.reward_norm': 'norm_reward normalize_reward rew_norm reward_normalization reward_scaling',
        'policy.learn.target_kl': 'kl_target desired_kl max_kl kl_threshold',
        'policy.learn.recompute_adv': 'recompute_advantage recompute_advantages',
        'policy.collect.n_step': 'n_steps num_steps nsteps rollout_fragment_length rollout_length rollout_steps '
        'horizon horizon_length unroll_len num_rollout_steps steps_per_env update_timestep',
        'policy.collect.n_sample': 'train_batch_size train_batch_size_per_learner step_per_collect steps_per_epoch '
        'frames_per_batch timesteps_per_batch n_samples',
        'policy.collect.discount_factor': 'gamma discount discount_rate',
        'policy.collect.gae_lambda': 'lambda lambda_ lam gae_lam lmbda gae_tau tau',
        'policy.eval.eval_freq': 'evaluation_interval evaluate_interval eval_interval step_per_epoch eval_every',
        'policy.eval.n_episode': 'n_eval_episodes n_evaluator_episode episode_per_test evaluation_duration '
        'num_eval_episodes eval_episodes n_episodes',
        'policy.eval.stop_value': 'reward_threshold target_reward stop_reward stop_fn stop_score episode_reward_mean',
        'checkpoint.freq': 'save_freq save_interval checkpoint_freq checkpoint_frequency save_ckpt_after_iter ckpt_freq',
        'checkpoint.keep_last': 'num_to_keep keep_checkpoints_num max_to_keep',
        'logger.tensorboard': 'tensorboard_log tb_log use_tb tb_logger',
    }.items()
    for name in names.split()
}
"""Name of a key in other libraries -> its path in zoo."""


def unknown_key(section: str, key: str, siblings: Iterable[str], known: Iterable[str] = ()) -> str:
    """One sentence about a key that does not exist: its name in zoo, where it belongs, or the closest names."""
    known, siblings = list(known), list(siblings)
    path = f'{section}.{key}' if section else key
    last = key.rsplit('.', 1)[-1]
    elsewhere = [p for p in known if p.rsplit('.', 1)[-1] == key]
    close = [f'{section}.{name}' if section else name for name in closest(key, siblings)]
    if '.' in key and key in known:
        nested = functools.reduce(lambda inner, part: f'{{{part!r}: {inner}}}', reversed(key.split('.')), '..')
        return f'unknown key {path!r}: dotted names are for overrides only; write a nested dict: {nested}.'
    if owners := _types_with(section, key):
        do = f'did you mean {" or ".join(close)}?' if close else 'set that type, or leave the key out.'
        return f'unknown key {path}: only {owners} has it; {do}'
    if last in OLD_NAMES and not elsewhere:
        return f'unknown key {path}: in zoo it is `{OLD_NAMES[last]}`.'
    if elsewhere:
        return f'unknown key {path}: it belongs at {" or ".join(elsewhere[:2])}.'
    if not close:
        names = closest(key, {p.rsplit('.', 1)[-1] for p in known}, n=1)
        close = [p for p in known if p.rsplit('.', 1)[-1] in names][:2]
    if close:
        return f'unknown key {path}: did you mean {" or ".join(close)}?'
    return f'unknown key {path}: the keys of {section or "the config"} are {", ".join(siblings) or "none"}.'


def _types_with(section: str, key: str) -> str:
    """The registered types that have this key, e.g. "buffer.type 'multi'"; '' if there are none."""
    for typed, registry in TYPED.items():
        if f'{section}.'.startswith(f'{typed}.'):
            keys = [*filter(None, section.removeprefix(typed).split('.')), key]
            names = [
                repr(name) for name in registry.names() if _has_key(getattr(registry.get(name), 'config', None), keys)
            ]
            return f'{typed}.type {" or ".join(names)}' if names else ''
    return ''


def _has_key(section: Any, keys: Iterable[str]) -> bool:
    """Whether a section class has a key, at a path of sections within it."""
    for key in keys:
        field = getattr(section, 'model_fields', {}).get(key)
        if field is None:
            return False
        section = field.annotation
    return True


def bad_value(path: str, value: Any, wanted: FieldInfo | type[BaseModel]) -> str:
    """The message for a value of the wrong type or out of range: the value, the accepted values, what to do."""
    got = f'{shown(value)} ({"text" if isinstance(value, str) else type(value).__name__})'
    got = got if value is not None else 'null'
    if not isinstance(wanted, FieldInfo):
        return f'{path} is {got} but must be a section with the keys {", ".join(wanted.model_fields)}.'
    patterned = wanted.description and any(getattr(m, 'pattern', None) for m in wanted.metadata)
    must = wanted.description if patterned else describe(wanted.annotation, wanted.metadata)
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    whole = whole and 'an integer' in describe(wanted.annotation)
    return f'{path} is {got} but must be {must}; {f"write {int(value)}" if whole else _advice(wanted)}.'


def shown(value: Any, n: int = 60) -> str:
    """The start of a value's repr."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        text = 'an integer too long to show' if isinstance(value, int) else f'a {type(value).__name__} too long to show'
    return text if len(text) <= n else f'{text[: n - 3]}...'


def printable(text: str) -> str:
    """The text in one line for a terminal: control characters are escaped, words of over 300 characters are cut."""
    text = text if text.isprintable() else ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return re.sub(r'(\S{300})\S+', r'\1...', text)


def missing_value(path: str, field: FieldInfo) -> str:
    """The message for a missing key without a default."""
    return f'{path} is missing: give {describe(field.annotation, field.metadata)} ({field.description or "required"}).'


def _advice(field: FieldInfo) -> str:
    default = field.default
    if default is PydanticUndefined or isinstance(default, BaseModel):
        return f'it is the {field.description}' if field.description else 'change it'
    return f'leave it out for {"null" if default is None else repr(default)}, the default'


def describe(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Type and range of a field in words: 'a number > 0 or {start, end, over}'."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [m for meta in args[1:] for m in (meta.metadata if isinstance(meta, FieldInfo) else [meta])]
        return describe(args[0], [*inner, *metadata])
    if origin in (Union, types.UnionType):
        words = [describe(arg, () if arg is type(None) else metadata) for arg in args]
        return ' or '.join([w for w in words if w != 'null'] + [w for w in words if w == 'null'])
    if origin is Literal:
        return 'one of ' + ', '.join(map(repr, args)) if len(args) > 1 else repr(args[0])
    if origin is list:
        return _list_of(args[0], metadata)
    return _noun(annotation, origin, args) + _range(metadata)


def _list_of(annotation: Any, metadata: Iterable[Any]) -> str:
    """'a list of one or more integers >= 1'"""
    metas = list(metadata)
    least = max((getattr(m, 'min_length', None) or 0 for m in metas), default=0)
    most = max((getattr(m, 'max_length', None) or 0 for m in metas), default=0)
    number = f'{"one" if least == 1 else least} or more ' if least else ''
    items = re.sub(r'^(?:an? )(\w+)|^text', lambda m: f'{m[1] or "text"}s', describe(annotation))
    return f'a list of {number}{items}{f", at most {most}" if most else ""}'


def _noun(annotation: Any, origin: Any, args: tuple[Any, ...]) -> str:
    simple = {
        bool: 'true or false',
        int: 'an integer',
        float: 'a number',
        str: 'text',
        type(None): 'null',
        Any: 'any value',
        dict: 'a section of your own keys',
        Callable: 'a function',
    }
    if origin is tuple:
        return f'[{", ".join(describe(a) for a in args)}]'
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f'{{{", ".join(annotation.model_fields)}}}'
    return simple.get(origin or annotation, getattr(origin or annotation, '__name__', str(annotation)))


def _range(metadata: Iterable[Any]) -> str:
    signs = {'gt': '>', 'ge': '>=', 'lt': '<', 'le': '<='}
    limits = [
        f'{sign} {getattr(m, name):g}'
        for m in metadata
        for name, sign in signs.items()
        if getattr(m, name, None) is not None
    ]
    lengths = [
        f'{word} {getattr(m, name)}'
        for m in metadata
        for name, word in (('min_length', 'of length at least'), ('max_length', 'of length at most'))
        if getattr(m, name, None) is not None
    ]
    patterns = [f'matching {m.pattern}' for m in metadata if getattr(m, 'pattern', None)]
    text = ' and '.join(limits + lengths + patterns)
    return f' {text}' if text else ''
