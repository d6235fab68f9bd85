"""What does not fit together in a policy, and options that nothing reads: each is refused, and its neighbours are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.policy_envs import TWO_ACTIONS, make_policy
from zoo.core.errors import UserError
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.spaces import Box
from zoo.policy.checks import unread_problem
from zoo.policy.options.loss import Objective
from zoo.run.config import resolve_policy

OBS = Box(torch.full((2,), -torch.inf).numpy(), torch.full((2,), torch.inf).numpy())
TEMPERATURE = {'type': 'temperature', 'temperature': 2.0}


def made(kind: str, learn: dict[str, Any], collect: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    return make_policy(OBS, TWO_ACTIONS, type=kind, learn=learn, collect={'n_step': 8, **(collect or {})}, **kwargs)


@pytest.mark.parametrize(
    ('kind', 'learn', 'collect', 'words'),
    [
        (
            'ppo',
            dict(proximal='recent', surrogate='none'),
            {},
            "surrogate 'none' keeps no step near that policy; use prox",
        ),
        ('ppo', dict(proximal='ewma', surrogate='cispo'), {}, "surrogate 'cispo' keeps no step"),
        ('ppo', dict(proximal='ewma', surrogate='awr'), {}, "surrogate 'awr' keeps no step"),
        ('ppg', dict(proximal='recent', policy_loss='kl'), {}, "policy_loss 'kl' keeps no step"),
        (
            'ppo',
            dict(target_kl=0.02),
            dict(exploration=TEMPERATURE),
            'target_kl is 0.02 but policy.collect.exploration',
        ),
        (
            'ppo',
            dict(penalties=['kl']),
            dict(exploration=TEMPERATURE),
            "penalty 'kl' but policy.collect.exploration is 'temp",
        ),
        (
            'ppo',
            dict(penalties=['reverse_kl']),
            dict(exploration='epsilon'),
            "use exploration 'sample', or no such penalty",
        ),
        ('ppg', dict(policy_loss='kl'), dict(exploration='epsilon'), "penalty 'kl' but policy.collect.exploration"),
        ('ppo', dict(dual_clip=3.0, surrogate='a2c'), {}, 'dual_clip is 3 but surrogate'),
        ('ppo', dict(dual_clip=3.0, surrogate='cispo'), {}, 'use dual_clip null'),
        ('ppg', dict(penalties=['value_drift']), {}, "leave the penalty out, or use arch 'shared'"),
    ],
)
def test_contradictions_are_refused(kind: str, learn: dict[str, Any], collect: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        made(kind, learn, collect)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ('kind', 'learn', 'collect', 'model'),
    [
        ('ppo', dict(proximal='recent', surrogate='dpo'), {}, {}),  # its drift is from the proximal policy
        ('ppo', dict(proximal='ewma', surrogate='spo', dual_clip=3.0), {}, {}),
        ('ppo', dict(penalties=['kl'], target_kl=0.02), {}, {}),
        ('ppo', dict(penalties=['value_drift']), dict(exploration=TEMPERATURE), {}),
        ('ppo', dict(learning_rate={'start': 1e-3, 'kl_target': 0.01}), dict(exploration=TEMPERATURE), {}),
        ('ppg', dict(penalties=['value_drift']), {}, dict(arch='shared')),
    ],
)
def test_what_has_a_meaning_is_not_refused(
    kind: str, learn: dict[str, Any], collect: dict[str, Any], model: dict[str, Any]
) -> None:
    policy = made(kind, learn, collect, model=model)
    assert not any(policy._problems())


def unread(kind: str, learn: dict[str, Any], collect: dict[str, Any], n_draw: int | None = None) -> str:
    """The sentence for a config of 4 envs with rollouts of 8 steps, and the policy's own defaults elsewhere."""
    collect = {'n_step': 8, 'n_sample': 32, **collect}
    cfg = resolve_policy({'type': kind, 'learn': learn, 'collect': collect})
    return unread_problem(cfg, POLICY_REGISTRY.get(kind).config(), Objective(cfg.learn), n_draw, has_state=False)


@pytest.mark.parametrize(
    ('kind', 'learn', 'collect', 'words'),
    [
        (
            'ppo',
            {},
            dict(estimator='returns', gae_lambda=0.9),
            "gae_lambda is 0.9 but estimator 'returns' has no lambda",
        ),
        ('a2c', {}, dict(estimator='n_step', gae_lambda=0.95), 'leave gae_lambda out'),  # 1 is the default of a2c
        ('ppo', dict(clip_ratio=0.1, surrogate='dpo'), {}, "neither surrogate 'dpo' nor value_loss 'mse' reads it"),
        ('a2c', dict(clip_ratio=0.1), {}, "surrogate 'a2c'"),
        ('pg', dict(clip_ratio={'start': 0.2, 'end': 0.1, 'over': 9}), {}, 'leave clip_ratio out'),
        ('ppg', dict(clip_ratio=0.1, policy_loss='kl'), {}, "neither policy_loss 'kl' nor"),
        ('a2c', dict(clip_ratio=0.1, value_loss={'type': 'clip', 'range': 0.3}), {}, 'leave clip_ratio out'),
        ('ppo', dict(adam_eps=1e-8, optimizer='sgd'), {}, "adam_eps is 1e-08 but optimizer 'sgd' has none"),
        ('ppo', dict(adam_eps=1e-8, optimizer={'type': 'adam', 'eps': 1e-6}), {}, 'has the eps 1e-06'),
        ('a2c', dict(target_kl=0.01), {}, 'one step (one pass of one minibatch)'),
        ('ppo', dict(target_kl=0.01, epoch_per_collect=1, batch_size=32), {}, 'nothing could stop early'),
        (
            'ppo',
            dict(batch_size=16, epoch_per_collect=2, accumulate=5),
            {},
            'is due when the passes end, after minibatch 4; use',
        ),
        (
            'ppo',
            dict(batch_size=16, accumulate=4, target_kl=0.1),
            {},
            'is due when a pass ends, after minibatch 2; use',
        ),
        ('a2c', dict(accumulate=2), {}, 'after minibatch 1;'),
    ],
)
def test_options_that_nothing_reads_are_named(
    kind: str, learn: dict[str, Any], collect: dict[str, Any], words: str
) -> None:
    assert words in unread(kind, learn, collect)


@pytest.mark.parametrize('kind', ['ppo', 'ppo_offpolicy', 'a2c', 'pg', 'ppg', 'ppg_offpolicy'])
def test_defaults_of_every_policy_are_read(kind: str) -> None:
    assert unread(kind, {}, {}) == ''


@pytest.mark.parametrize(
    ('kind', 'learn', 'collect', 'n_draw'),
    [
        ('ppo', {}, dict(gae_lambda=0.9), None),
        ('ppo', {}, dict(estimator='returns', gae_lambda=0.95), None),  # as the default
        ('a2c', dict(clip_ratio=0.1, value_clip=True), {}, None),
        ('a2c', dict(clip_ratio=0.1, surrogate='cispo'), {}, None),
        ('ppo', dict(adam_eps=1e-8, optimizer={'type': 'adamw', 'betas': [0.9, 0.99]}), {}, None),
        ('a2c', dict(target_kl=0.01, epoch_per_collect=2), {}, None),
        ('ppo', dict(target_kl=0.01, epoch_per_collect=1, batch_size=16), {}, None),
        ('ppo', dict(batch_size=16, epoch_per_collect=2, accumulate=4), {}, None),
        ('ppo_offpolicy', dict(batch_size=32, accumulate=9), {}, 4),  # the size of a draw is the buffer's
        ('ppg', dict(batch_size=32, accumulate=9), {}, None),  # the auxiliary phase has more minibatches
    ],
)
def test_options_that_something_reads_are_not_named(
    kind: str, learn: dict[str, Any], collect: dict[str, Any], n_draw: int | None
) -> None:
    assert unread(kind, learn, collect, n_draw) == ''
