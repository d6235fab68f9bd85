"""Checks for conflicts between settings of a policy. Each returns a sentence, or '' if there is no conflict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoo.config.components import name_of
from zoo.config.section import plain
from zoo.core.registry import Component
from zoo.model.inputs import OBS_CLIP
from zoo.policy.config import ActorCriticPolicyConfig
from zoo.policy.objective import Objective
from zoo.policy.sequences import SequenceConfig, sequence_problem
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.exploration import exploration_problem

NO_PLAIN_GAIN = ('a2c', 'awr', 'cispo')
"""Surrogates that differ from ratio * adv even without clipping, so that a bound dual_clip * adv has no meaning."""
NO_CLIP_RATIO = ('dpo', 'none', 'a2c', 'awr')  # zoo's surrogates that do not read clip_ratio; a user's own may
NO_VALUE_CLIP_RATIO = ('mse', 'huber', 'error_clip', 'hl_gauss', 'two_hot')
"""Value losses of zoo that do not read clip_ratio; a user's own may read it."""
NO_LAMBDA = ('returns', 'n_step')  # estimators that do not read gae_lambda


def action_problem(dist: ActionDist, action_mode: str) -> str:
    """Conflict between env.action_mode and the distribution of actions."""
    if not dist.is_bounded or action_mode != 'rescale':
        return ''
    return (
        f"env.action_mode is 'rescale' but the actions of a {dist.name} distribution lie between the "
        "bounds already; use env.action_mode 'clip'"
    )


def memory_problem(cfg: ActorCriticPolicyConfig, has_state: bool, fields: Sequence[str], batch_size: int) -> str:
    """Conflict between the model and policy.learn.sequence. cfg: the resolved section `policy`; fields: the modes built."""
    if has_state:
        only_acts = not {'learn', 'collect'} & set(fields)
        if only_acts:
            return ''
        return sequence_problem(cfg.learn.sequence, cfg.collect.n_step, batch_size)
    if plain(cfg.learn.sequence) == plain(SequenceConfig()):
        return ''
    return (
        'policy.learn.sequence is given but the model has no recurrent state: nothing would be cut into '
        'sequences; leave it out, or give policy.model.recurrent, e.g. {cell: lstm}'
    )


def component_problem(
    cfg: ActorCriticPolicyConfig, objective: Objective, given_model: str | None, explore: Component, dist: ActionDist
) -> str:
    """Conflict between components of the config, the resolved section `policy`. given_model: class of a user's own model."""
    learn = cfg.learn
    estimator = name_of(cfg.collect.estimator)
    value_loss = name_of(learn.value_loss)
    if given_model is not None and objective.n_value > 1:
        return (
            f'policy.learn.value_loss is {value_loss!r}, for a critic that predicts a distribution of returns, but a model '
            f'({given_model}) was given; use another value loss, or let policy.model name the model'
        )
    if estimator == 'vtrace' and not learn.get('recompute_adv'):
        return (
            "policy.collect.estimator is 'vtrace', whose ratios are 1 where advantages are computed once: it would be gae; "
            "use policy.learn.recompute_adv=true, or estimator 'gae'"
        )
    problem = _exploration_problem(cfg, objective)
    if problem:
        return problem
    if learn.dual_clip is not None and objective.surrogate.name in NO_PLAIN_GAIN:
        return (
            f'policy.learn.dual_clip is {learn.dual_clip:g} but surrogate {objective.surrogate.name!r} is not the ratio times '
            'the advantage, which it bounds; use dual_clip null, or a surrogate such as clip or spo'
        )
    if learn.target_kl is None and learn.target_kl_at != 'epoch':
        return (
            'policy.learn.target_kl_at is given but target_kl is null: nothing stops early; give target_kl, e.g. 0.02'
        )
    return exploration_problem(explore, dist)


def _exploration_problem(cfg: ActorCriticPolicyConfig, objective: Objective) -> str:
    """Conflict between exploration and a KL from the behaviour policy: this KL would not be 0 before the first step."""
    name = name_of(cfg.collect.exploration)
    penalties = [penalty.name for penalty in objective.penalties if penalty.name in ('kl', 'reverse_kl')]
    if name == 'sample' or (cfg.learn.target_kl is None and not penalties):
        return ''
    if cfg.learn.target_kl is None:
        what = f'the policy loss has the penalty {penalties[0]!r}'
        drop = 'no such penalty'
    else:
        what = f'policy.learn.target_kl is {cfg.learn.target_kl:g}'
        drop = 'target_kl null'
    return (
        f'{what} but policy.collect.exploration is {name!r}: its KL is that from the policy that acted, so exploration would '
        f"count as a change of the policy; use exploration 'sample', or {drop}"
    )


def unread_problem(
    cfg: ActorCriticPolicyConfig, default: Any, objective: Objective, n_draw: int | None, has_state: bool
) -> str:
    """Returns a sentence about a field that is set but that nothing reads; for new runs only: older configs may have one.

    Args:
      cfg: the resolved section `policy`; default: the defaults of the policy's class, `type(policy).config()`.
      n_draw: draws of a buffer for each rollout; None: each rollout is one batch.
    """
    learn = cfg.learn
    estimator = name_of(cfg.collect.estimator)
    model = cfg.model
    obs_clip = getattr(model, 'obs_clip', None)
    if obs_clip not in (None, OBS_CLIP) and getattr(model, 'obs_norm', None) is False:
        return (
            f'policy.model.obs_clip is {obs_clip:g} but observations are not normalised, so nothing is clipped; set '
            'policy.model.obs_norm=true, or leave obs_clip out'
        )
    surrogate = objective.surrogate.name
    value_loss = objective.value_loss
    if estimator in NO_LAMBDA and _is_set(cfg.collect.gae_lambda, default.collect.gae_lambda):
        return (
            f'policy.collect.gae_lambda is {cfg.collect.gae_lambda:g} but estimator {estimator!r} has no lambda; leave '
            "gae_lambda out, or use estimator 'gae'"
        )
    in_value = value_loss.name == 'clip' and dict(value_loss.options).get('range') is None
    in_value = in_value or value_loss.name not in (*NO_VALUE_CLIP_RATIO, 'clip')
    if surrogate in NO_CLIP_RATIO and not in_value and _is_set(learn.clip_ratio, default.learn.clip_ratio):
        return (
            f'policy.learn.clip_ratio is {learn.clip_ratio} but neither {objective.surrogate_label} nor value_loss '
            f"{value_loss.name!r} reads it; leave clip_ratio out, or use surrogate 'clip'"
        )
    if isinstance(learn.optimizer, dict):
        optimizer = learn.optimizer
    else:
        optimizer = {'type': learn.optimizer}
    has_eps = optimizer['type'] == 'sgd' or optimizer.get('eps') is not None
    if has_eps and _is_set(learn.adam_eps, default.learn.adam_eps):
        if optimizer['type'] == 'sgd':
            why = 'has none'
        else:
            why = f'has the eps {optimizer["eps"]:g}'
        return (
            f'policy.learn.adam_eps is {learn.adam_eps:g} but optimizer {optimizer["type"]!r} {why}; leave adam_eps out'
        )
    return _pass_problem(cfg, n_draw, has_state)


def _pass_problem(cfg: ActorCriticPolicyConfig, n_draw: int | None, has_state: bool) -> str:
    """Returns a sentence if target_kl or accumulate needs more gradient steps than an update has."""
    learn = cfg.learn
    n_sample = cfg.collect.get('n_sample')
    n_pass = learn.get('epoch_per_collect', learn.get('actor_epoch_per_collect', 1))
    # None: not known
    n_minibatch = None
    if learn.batch_size is None:
        n_minibatch = 1
    if learn.batch_size is not None and n_draw is None and not has_state and n_sample is not None:
        n_minibatch = max(n_sample // learn.batch_size, 1)
    if learn.target_kl is not None and n_pass == n_minibatch == 1:
        return (
            f'policy.learn.target_kl is {learn.target_kl:g} but an update is one step (one pass of one minibatch): nothing '
            'could stop early; leave target_kl out, or use a smaller batch_size or more passes'
        )
    if n_minibatch is None or 'aux_freq' in learn:  # the minibatches of an auxiliary phase accumulate too
        return ''
    is_at_once = learn.target_kl is None and not learn.get('recompute_adv')  # else each pass ends with a step
    n_call = n_minibatch * (n_pass if is_at_once else 1)
    if learn.accumulate > n_call:
        return (
            f'policy.learn.accumulate is {learn.accumulate} but a step is due when {"the passes end" if is_at_once else "a pass ends"}, '
            f'after minibatch {n_call}; use accumulate {n_call} or less, or a smaller batch_size'
        )
    return ''


def _is_set(value: Any, default: Any) -> bool:
    """Whether a number or a schedule differs from its default; False if the default is not a number."""
    return isinstance(default, float | int) and value != default
