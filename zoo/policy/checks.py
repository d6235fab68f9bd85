"""What does not fit together in an actor-critic policy, each as a sentence; empty where all is well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zoo.backend.precision import precision_problem
from zoo.policy.sequences import SequenceConfig, sequence_problem
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.exploration import exploration_problem

NEEDS_CRITIC = ('gae', 'n_step', 'vtrace')
"""Estimators that stand a value of the critic in for what comes after a step."""


def action_problem(dist: ActionDist, action_mode: str) -> str:
    """Of env.action_mode and the distribution of the actions."""
    if not dist.is_bounded or action_mode != 'rescale':
        return ''
    return (
        f"env.action_mode is 'rescale' but the actions of a {dist.name} distribution lie between the "
        "bounds already; use env.action_mode 'clip'"
    )


def memory_problem(cfg: Any, has_state: bool, fields: Sequence[str], batch_size: int, recomputes: bool) -> str:
    """Of a recurrent state and the sequences that train it. cfg: the resolved section `policy`; fields: modes built."""
    is_given = cfg.learn.sequence != SequenceConfig().model_dump()
    if not has_state and is_given:
        return (
            'policy.learn.sequence is given but the model has no recurrent state: nothing would be cut into '
            'sequences; leave it out, or give policy.model.recurrent, e.g. {cell: lstm}'
        )
    if not has_state:
        return ''
    if 'learn' in fields and recomputes:
        return (
            'policy.learn.recompute_adv is true but the model has a recurrent state, whose rollouts are cut into '
            'sequences; use recompute_adv=false'
        )
    only_acts = not {'learn', 'collect'} & set(fields)
    return '' if only_acts else sequence_problem(cfg.learn.sequence, cfg.collect.n_step, batch_size)


def parts_problem(
    cfg: Any, objective: Any, given_model: str | None, explore: Any, dist: ActionDist, device: torch.device
) -> str:
    """Of the parts that the config names. cfg: the resolved section `policy`; given_model: class of a model given."""
    learn, estimator = cfg.learn, name_of(cfg.collect.estimator)
    value_loss = name_of(learn.value_loss)
    if given_model is not None and objective.n_value > 1:
        return (
            f'policy.learn.value_loss is {value_loss!r}, for a critic that predicts a distribution of returns, but a model '
            f'({given_model}) was given; use another value loss, or let policy.model name the model'
        )
    if learn.baseline == 'none' and estimator in NEEDS_CRITIC:
        return (
            f"policy.learn.baseline is 'none' but policy.collect.estimator is {estimator!r}, which takes the critic's "
            "values for what follows a step; use estimator 'returns', or baseline 'critic'"
        )
    if learn.baseline == 'none' and learn.get('recompute_adv'):
        return "policy.learn.recompute_adv is true but baseline is 'none': no critic enters the advantages; use false"
    if estimator == 'vtrace' and not learn.get('recompute_adv'):
        return (
            "policy.collect.estimator is 'vtrace', whose ratios are 1 where advantages are computed once: it would be gae; "
            "use policy.learn.recompute_adv=true, or estimator 'gae'"
        )
    if objective.proximal != 'behaviour' and objective.surrogate.name in ('a2c', 'awr'):
        return (
            f'policy.learn.proximal is {objective.proximal!r} but surrogate {objective.surrogate.name!r} keeps no step near '
            "any policy; use proximal 'behaviour', or a surrogate with a clip, such as clip or spo"
        )
    if learn.target_kl is None and learn.target_kl_at != 'epoch':
        return (
            'policy.learn.target_kl_at is given but target_kl is null: nothing stops early; give target_kl, e.g. 0.02'
        )
    if learn.target_kl_at == 'minibatch' and learn.accumulate > 1:
        return (
            f"policy.learn.target_kl_at is 'minibatch' but accumulate is {learn.accumulate}: no minibatch makes a step of "
            "its own; use target_kl_at 'epoch', or accumulate 1"
        )
    return precision_problem(learn.precision, device) or exploration_problem(explore, dist)


def name_of(spec: Any) -> str:
    """The name of a part, from a name or {type: name, its options}."""
    return spec if isinstance(spec, str) else spec['type']
