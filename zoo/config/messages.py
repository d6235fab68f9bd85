"""Messages about bad configs: for an unknown key the one that was meant, for a bad value what is accepted."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from zoo.core.registry import BUFFER_REGISTRY, MODEL_REGISTRY, PARTS, POLICY_REGISTRY, Registry, closest

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
        'policy.learn.learning_rate as {start: .., end: 0}': 'anneal_lr lr_decay linear_lr_decay use_linear_lr_decay',
        'policy.learn.learning_rate as {start: .., kl_target: .008}': 'desired_kl kl_threshold adaptive_lr schedule_kl_threshold',
        'policy.learn.learning_rate as {start: .., end: 0} or {start: .., kl_target: .008}': 'lr_schedule lr_scheduler '
        'lr_schedule_kind learning_rate_schedule learning_rate_scheduler schedule',
        'policy.learn.critic_learning_rate': 'critic_lr value_lr vf_lr lr_critic lr_vf value_learning_rate vf_learning_rate',
        'policy.learn.adam_eps': 'adam_epsilon optimizer_eps opt_eps optim_eps',
        'policy.learn.optimizer': 'optimizer_cls optimizer_class optimizer_fn optimizer_type optimizer_name optim optimiser',
        'policy.learn.optimizer as {type: adam, betas: [.9, .999]}': 'betas adam_betas beta1 beta2 optimizer_config '
        'optimizer_kwargs optimizer_params',
        'policy.learn.optimizer as {type: adamw, weight_decay: .01}': 'weight_decay l2_reg use_weight_decay',
        'policy.learn.optimizer as {type: sgd, momentum: .9}': 'momentum',
        'policy.learn.accumulate': 'accumulate_grads accumulate_grad_batches accumulation_steps grad_accumulation '
        'grad_accumulation_steps gradient_accumulation gradient_accumulation_steps',
        'policy.learn.precision': 'enable_amp use_amp amp amp_dtype mixed_precision fp16 bf16 use_fp16 use_bf16',
        'policy.learn.draw as in_order': 'shuffle shuffle_minibatches shuffle_sequences shuffle_batch_per_epoch',
        'policy.learn.batch_size': 'sgd_minibatch_size minibatch_size mini_batch_size mini_batchsize minibatch',
        'policy.learn.batch_size (samples in one minibatch, not their number)': 'num_minibatches n_minibatches nminibatches '
        'num_mini_batch num_minibatch num_mini_batches minibatches',
        'policy.learn.epoch_per_collect': 'num_sgd_iter n_epochs num_epochs update_epochs noptepochs ppo_epochs ppo_epoch '
        'repeat_per_collect update_per_collect mini_epochs epochs n_epoch num_epoch '
        'train_epochs nepoch',
        'policy.learn.clip_ratio': 'clip_range clip_coef clip_param cliprange clip_eps clip_epsilon eps_clip e_clip '
        'epsilon',
        'policy.learn.surrogate': 'surrogate_loss surrogate_fn policy_loss_type pg_loss_type',
        'policy.learn.penalties as [{type: kl, weight: .2, target: .01}]': 'kl_target kl_coeff kl_coef use_kl_loss '
        'kl_loss_coeff init_kl_coeff init_kl_coef kl_penalty kl_beta',
        'policy.learn.value_clip': 'clip_vloss use_value_clip clip_value use_clipped_value_loss clip_value_loss clip_vf_loss',
        'policy.learn.value_loss as {type: clip, range: .2}': 'clip_range_vf cliprange_vf value_clip_range',
        'policy.learn.value_loss as {type: error_clip, range: 10}': 'vf_clip_param',
        'policy.learn.value_loss as {type: huber, delta: 1}': 'vf_loss_type value_loss_type critic_loss_type huber use_huber '
        'huber_loss use_huber_loss smooth_l1 vf_loss_fn',
        'policy.learn.value_loss as {type: hl_gauss, low: .., high: ..}': 'num_atoms n_atoms num_bins v_min v_max',
        'policy.learn.baseline': 'use_critic use_baseline',
        'policy.learn.intrinsic': 'rnd use_rnd rnd_cfg intrinsic_reward curiosity',
        'policy.learn.value_weight': 'vf_coef vf_loss_coeff value_coef value_loss_coef critic_coef vf_coeff value_coeff '
        'value_loss_coeff critic_loss_coeff',
        'policy.learn.entropy_weight': 'ent_coef entropy_coeff entropy_coef ent_coeff entropy_loss_coeff entropy_beta',
        'policy.learn.grad_clip': 'max_grad_norm grad_clip_norm grad_norm clip_grad_norm gradient_clip '
        'max_gradient_norm grad_norm_clip',
        'policy.learn.grad_clip_value': 'clip_grad_value gradient_clip_val grad_value_clip',
        'policy.learn.grad_clip (by norm) or policy.learn.grad_clip_value': 'grad_clip_by grad_clip_type',
        'policy.learn.adv_norm': 'norm_adv normalize_advantage normalize_advantages advantage_normalization '
        'advantage_norm use_advantage_normalization',
        'policy.learn.value_norm': 'normalize_value normalize_returns return_norm value_normalization use_valuenorm',
        'policy.learn.reward_norm': 'norm_reward normalize_reward rew_norm reward_normalization reward_scaling',
        'policy.learn.target_kl': 'max_kl target_kl_div max_kl_div kl_early_stop',
        'policy.learn.recompute_adv': 'recompute_advantage recompute_advantages',
        'policy.collect.n_step': 'n_steps num_steps nsteps rollout_fragment_length rollout_length rollout_steps '
        'horizon horizon_length unroll_len num_rollout_steps steps_per_env update_timestep',
        'policy.collect.n_sample': 'train_batch_size train_batch_size_per_learner step_per_collect steps_per_epoch '
        'frames_per_batch timesteps_per_batch n_samples',
        'policy.collect.discount_factor': 'gamma discount discount_rate',
        'policy.collect.gae_lambda': 'lambda lambda_ lam gae_lam lmbda gae_tau tau',
        'policy.collect.estimator': 'use_gae advantage_estimator adv_estimator estimator_type',
        'policy.collect.estimator as {type: n_step, n: 5}': 'nstep n_step_return nstep_return use_n_step',
        'policy.collect.exploration': 'exploration_config explore action_selection',
        'policy.eval.eval_freq': 'evaluation_interval evaluate_interval eval_interval step_per_epoch eval_every',
        'policy.eval.n_episode': 'n_eval_episodes n_evaluator_episode episode_per_test evaluation_duration '
        'num_eval_episodes eval_episodes n_episodes',
        'policy.eval.stop_value': 'reward_threshold target_reward stop_reward stop_fn stop_score episode_reward_mean',
        'checkpoint.freq': 'save_freq save_interval checkpoint_freq checkpoint_frequency save_ckpt_after_iter ckpt_freq',
        'checkpoint.keep_last': 'num_to_keep keep_checkpoints_num max_to_keep',
        'callbacks': 'callback callbacks_class callback_class',
        'pipeline': 'execution_plan training_loop',
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
    if owners := _parts_with(section, key) if section in PARTS else _types_with(section, key):
        do = f'did you mean {" or ".join(close)}?' if close else 'set that type, or leave the key out.'
        return f'unknown key {path}: only {owners} has it; {do}'
    if section in PARTS:  # its options have names of their own, which other keys have too
        guess = f'did you mean {" or ".join(close)}?' if close else f'the keys of {section} are {", ".join(siblings)}.'
        return f'unknown key {path}: {guess}'
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
            return f'{typed}.type {_some(names)}' if names else ''
    return ''


def _parts_with(path: str, key: str) -> str:
    """The parts that a config may choose at this path and that have this option, e.g. "surrogate 'rollback'"; '' if none."""
    registry = PARTS[path]
    names = [repr(name) for name in registry.names() if key in _options(registry.get(name))]
    return f'{registry.kind} {_some(names)}' if names else ''


def _options(part: Any) -> Iterable[str]:
    """The names of the options of a registered part, as `zoo.config.parts.options_of` has them."""
    if hasattr(part, 'config'):
        return getattr(part.config, 'model_fields', ())
    parameters = inspect.signature(part).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def _some(names: list[str]) -> str:
    """'a, b or c'; of more than three the first two and the number of the others."""
    *first, last = names if len(names) <= 3 else [*names[:2], f'{len(names) - 2} others']
    return f'{", ".join(first)} or {last}' if first else last


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
