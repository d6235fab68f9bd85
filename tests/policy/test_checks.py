"""Checks of a policy's config: incompatible options and unread options are refused, similar valid ones are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import yaml

from tests.policy_envs import TWO_ACTIONS
from zoo.config.section import Section, leaf_items, value_at
from zoo.core.errors import UserError
from zoo.core.ranks import RunInfo
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.spaces import Box, Dict, MultiBinary
from zoo.policy.checks import unread_problem
from zoo.policy.objective import Objective
from zoo.rl_utils import distribution
from zoo.run.config import resolve_policy

OBS = Box(torch.full((2,), -torch.inf).numpy(), torch.full((2,), torch.inf).numpy())
BOX = Box(torch.zeros(2).numpy(), torch.ones(2).numpy())
SPACES = {
    'two': TWO_ACTIONS,
    'box': BOX,
    'bits': Dict({'a': TWO_ACTIONS, 'b': MultiBinary((2,))}),
    'mixed': Dict({'a': TWO_ACTIONS, 'b': BOX}),
}
OTHER = 'but the actions are drawn by the distribution'


def sections_of(text: str) -> dict[str, Any]:
    """The config of a policy from YAML with dotted keys, without 'learn.': 'type: ppg, dual_clip: 3.0, collect.n_step: 8'."""
    policy: dict[str, Any] = {'type': 'ppo', 'learn': {}, 'collect': {}, 'model': {}}
    for key, value in yaml.safe_load('{' + text + '}').items():
        section, _, name = key.rpartition('.')
        (policy if key in ('type', 'space') else policy[section or 'learn'])[name] = value
    return policy


def made(text: str) -> Any:
    """Builds a policy for rollouts of 8 steps with some options; the key 'space' names an action space."""
    sections = sections_of(text)
    space, kind = SPACES[sections.pop('space', 'two')], sections['type']
    for name, defaults in (('collect', {'n_step': 8}), ('model', {'hidden_sizes': [8]})):
        sections[name] = {**defaults, **sections[name]}
    run = RunInfo(n_draw=2 if kind.endswith('offpolicy') else None)
    policy = POLICY_REGISTRY.build(kind, resolve_policy(sections), OBS, space, run=run)
    policy.check_fields()
    return policy


WARM = 'collect.exploration: {type: temperature, temperature: 2.0}'
SEQUENCE = 'model.recurrent: {}, sequence'


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        # a proximal policy with a surrogate that keeps no step near it
        ('proximal: recent, surrogate: none', "surrogate 'none' keeps no step near that policy; use prox"),
        ('proximal: ewma, surrogate: cispo', "surrogate 'cispo' keeps no step"),
        ('proximal: ewma, surrogate: awr', "surrogate 'awr' keeps no step"),
        ('type: ppg, proximal: recent, policy_loss: kl', "policy_loss 'kl' keeps no step"),
        ('proximal: ewma, surrogate: a2c', "use proximal 'behaviour'"),
        # measures of a policy's change, where exploration would count as a change
        (f'target_kl: 0.02, {WARM}', 'target_kl is 0.02 but policy.collect.exploration'),
        (f'penalties: [kl], {WARM}', "penalty 'kl' but policy.collect.exploration is 'temp"),
        ('penalties: [reverse_kl], collect.exploration: epsilon', "use exploration 'sample', or no such penalty"),
        ('type: ppg, policy_loss: kl, collect.exploration: epsilon', "penalty 'kl' but policy.collect.exploration"),
        # terms of the loss
        ('dual_clip: 3.0, surrogate: a2c', 'dual_clip is 3 but surrogate'),
        ('dual_clip: 3.0, surrogate: cispo', 'use dual_clip null'),
        ('surrogate: spoo', "did you mean 'spo'"),
        ('surrogate: {type: spo, high: 0.3}', 'policy.learn.surrogate.high'),
        ('value_loss: {type: huber, delta: -1.0}', 'policy.learn.value_loss.delta'),
        (
            'value_clip: true, value_loss: huber',
            "value_clip is true, which is value_loss 'clip', but value_loss is 'huber'; drop",
        ),
        ('value_clip: true, value_loss: hl_gauss', 'drop one'),
        ('penalties: [{type: kl, weight: -1.0}]', 'weight'),
        ('penalties: [kl, kll]', "did you mean 'kl'"),
        ('penalties: [kl, {type: kl, weight: 2.0}]', 'each may be there once'),
        ('penalties: [{type: kl, weight: 200.0, target: 0.01}]', 'between min_weight'),
        ('penalties: [{type: kl, weight: {start: 1.0, end: 0.1, over: 9}, target: 0.01}]', 'drop one'),
        ('type: ppg, penalties: [value_drift]', "leave the penalty out, or use arch 'shared'"),
        ('type: ppg, policy_loss: kl, surrogate: spo', 'drop one of the two'),
        ('type: ppg, kl_weight: 0.5', "use policy_loss 'kl'"),
        ('precision: fp16', 'bf16'),
        ('target_kl_at: minibatch', 'give target_kl'),
        # corrections for the age of samples
        ('correction: decoupled, proximal: ewma', "which is proximal 'recent' .* drop one"),
        ('correction: vtrace, proximal: recent', "proximal is 'recent', which weighs old samples"),
        ('correction: vtrace, collect.estimator: n_step', "is 'n_step'; drop one of the two"),
        (
            'correction: vtrace, collect.estimator: {type: gae, value_lambda: 0.9}',
            'estimator is .*; drop one of the two',
        ),
        ('type: ppo_offpolicy, correction: vtrace', "yields random draws; use correction 'decoupled'"),
        ('type: pg, correction: vtrace, collect.estimator: gae', "baseline is 'none'"),
        ('correction: vtrace, model.recurrent: {cell: lstm}', 'has a recurrent state, whose'),
        ('correction: decoupled, target_kl: 0.02', 'the age of samples would count as a change'),
        ('correction: is', "unknown correction 'is': .*registered: decoupled, none, vtrace"),
        ('correction: {type: decoupled, rho_max: 0.5}', 'rho_max is 0.5'),
        ('collect.estimator: vtrace', 'recompute_adv'),
        ('type: ppo_offpolicy, recompute_adv: true', 'can be recomputed over whole rollouts only, not over draws'),
        # without a critic
        ('baseline: none', "use estimator 'returns'"),
        ('baseline: none, collect.estimator: {type: n_step, n: 3}', "use estimator 'returns'"),
        ('type: pg, value_norm: true', "value_norm is True but policy 'pg' trains no critic"),
        ('type: pg, value_loss: huber', "value_loss is 'huber' but policy 'pg' trains no critic"),
        ('type: pg, critic_learning_rate: 1.0e-3', 'critic_learning_rate is 0.001 but'),
        ('type: pg, baseline: critic', 'baseline'),
        (
            'type: trpo, proximal: ewma',
            "proximal is 'ewma', an average over the steps of an optimiser, which moves the critic",
        ),
        ('type: npg, precision: bf16', "precision is 'bf16' .string. but must be 'fp32'"),
        ('type: trpo, critic_learning_rate: 1.0e-3', 'critic_learning_rate'),
        ('type: trpo, target_kl: 0.01', 'target_kl is 0.01 .number. but must be null: max_kl bounds the step'),
        ('type: npg, kl_target: 0.01', '; trpo and npg bound the KL by max_kl instead'),
        ('type: npg, accumulate: 2', 'accumulate is 2 .* must be 1'),
        ('type: trpo, learning_rate: {start: 1.0e-3, kl_target: 0.01}', 'kl_target'),
        ('type: pg, value_weight: 0.5', 'value_weight'),
        ('type: pg, penalties: [value_drift]', "penalties has 'value_drift' but policy 'pg' trains no critic"),
        ('type: trpo, penalties: [value_drift]', "'value_drift' but the critic has steps of its own"),
        ('type: pg, collect.estimator: gae', "baseline is 'none' but policy.collect.estimator is 'gae'"),
        # phases of PPG
        ('type: ppg, model.type: vac', r"model VAC has no compute_aux\(\), which policy 'ppg' needs.*type 'ppg'"),
        ('type: ppg, model.arch: single', r"policy.model.arch is 'single' .*one of 'dual', 'detach', 'shared'"),
        (
            'type: ppg, model.arch: shared, actor_epoch_per_collect: 2',
            'actor_epoch_per_collect is 2 and critic_epoch_per_collect 1.*set both alike',
        ),
        ('type: ppg, aux_window: 3, aux_freq: 4', 'use 4 or more'),
        ('phase: distill', 'phase'),
        # sequences
        (
            f'{SEQUENCE}: {{len: 16}}, collect.n_step: 50',
            'sequence.len is 16 but policy.collect.n_step is 50: 50 % 16 = 2 .* e.g. 10',
        ),
        (
            f'{SEQUENCE}: {{len: 16}}, batch_size: 40, collect.n_step: 32',
            'batch_size is 40 but .*len is 16.* use a multiple, e.g. 32',
        ),
        (
            f'{SEQUENCE}: {{len: 5, overlap: half}}, batch_size: 40, collect.n_step: 50',
            "overlap is 'half' but len is 5, which is odd",
        ),
        (
            f'{SEQUENCE}: {{len: 16, burn_in: 17}}, collect.n_step: 32',
            'burn_in is 17 but a rollout of 32 steps has at most 16 before',
        ),
        (
            'model.recurrent: {}, recompute_adv: true, collect.n_step: 32',
            'recompute_adv is true but the model has a recurrent state',
        ),
        (
            f'type: ppg, {SEQUENCE}: {{len: 8}}, batch_size: 32, aux_batch_size: 100',
            'aux_batch_size is 100 but .*len is 8.* e.g. 96',
        ),
        (
            f'type: ppg, {SEQUENCE}: {{len: 8}}, batch_size: 32, critic_batch_size: 20',
            'critic_batch_size is 20 but .*len is 8.* e.g. 16',
        ),
        # DQN
        ('type: dqn, space: box', "'dqn' is for Discrete actions, and those of the env are of a Box; use"),
        ('type: dqn, model.recurrent: {cell: gru}', 'is for a model without a memory, got Recurrent.*; use'),
        ('type: dqn, collect.eps: 2.0', 'eps is .*: it reaches 2 but is a probability'),
        ('type: dqn, collect.eps: {start: 5.0, end: 0.1, over: 100}', 'eps is .*: it reaches 5 but is a probability'),
        ('type: dqn, collect.n_return: 9', 'n_return is 9 but a rollout has 8 steps.*use n_return 8 or less'),
        # frozen parameters
        (
            'freeze: [actor_encodr.*]',
            r"'actor_encodr.\*', which matches no parameter .* did you mean actor_encoder.layers.0.bias",
        ),
        ('freeze: [xyz]', 'its parts are actor_encoder, critic_encoder, policy_head, value_head'),
        ("freeze: ['*']", 'leaves no parameter to train; freeze fewer'),
        ('type: ppg, freeze: [actor_encoder.*, policy_head.*, aux_head.*]', 'leaves nothing to train of the actor'),
        (
            'type: dqn, freeze: [actor_encoder, policy_head]',
            "nothing to train of the actor, which is all that policy 'dqn' trains",
        ),
        # steps of the actor without a gradient
        ('value_weight: 0, freeze: [actor_encoder, policy_head]', 'leaves nothing to train of the actor'),
        ('critic_learning_rate: 1.0e-3, freeze: [actor_encoder, policy_head]', 'leaves nothing to train of the actor'),
        # fields that only another distribution reads
        (
            'space: box, model.sde_sample_freq: 4',
            f"^policy.model.sde_sample_freq is 4 {OTHER} 'gaussian', which does not read it; leave it at null, or use "
            'policy.model.distribution=gsde$',
        ),
        (
            'space: box, model.distribution: beta, model.state_dependent_std: true',
            f"^policy.model.state_dependent_std is true {OTHER} 'beta', which does not read it; leave it at false, or use "
            'policy.model.distribution=gaussian or squashed_gaussian$',
        ),
        (
            'model.log_std_init: -1.0',
            f"^policy.model.log_std_init is -1.0 {OTHER} 'categorical', which does not read it; leave it at 0.0$",
        ),
        (
            'space: bits, model.log_std_max: 1.0',
            f"^policy.model.log_std_max is 1.0 {OTHER} 'composite', which does not read it; leave it at 2.0$",
        ),
        ('intrinsic: {type: rnd, encoder: {type: nature, width: 3}}', 'policy.learn.intrinsic.encoder'),
    ],
)
def test_policy_of_what_does_not_fit_together_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        made(text)


@pytest.mark.parametrize(
    'text',
    [
        'proximal: recent, surrogate: dpo',  # its drift is from the proximal policy
        'proximal: ewma, surrogate: spo, dual_clip: 3.0',
        'penalties: [kl], target_kl: 0.02',
        f'penalties: [value_drift], {WARM}',
        'learning_rate: {start: 1.0e-3, kl_target: 0.01}, collect.exploration: epsilon',
        'type: ppg, penalties: [value_drift], model.arch: shared',
        'type: dqn, collect.n_return: 8',
        'space: box, model.log_std_init: -1.0, model.state_dependent_std: true',
        'space: box, model.log_std_init: -1.0, model.sde_sample_freq: 4, model.distribution: gsde',
        'space: box, model.log_std_min: -3.0, model.distribution: squashed_gaussian',
        'model.log_std_init: 0.0, model.sde_sample_freq: null',  # the defaults
        'space: mixed, model.log_std_max: 1.0',
    ],
)
def test_policy_of_what_has_a_meaning_is_not_refused(text: str) -> None:
    asked = sections_of(text)
    asked.pop('space', None)
    cfg = made(text).cfg
    for path, value in leaf_items(asked):
        assert value_at(cfg, path) == value or isinstance(value_at(cfg, path), Section)


def test_distribution_that_declares_no_fields_may_read_any(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'space: box, model.distribution: beta, model.log_std_init: -1.0'
    with pytest.raises(UserError, match=f"log_std_init is -1.0 {OTHER} 'beta'"):
        made(text)
    monkeypatch.setattr(distribution.DISTRIBUTION_REGISTRY.get('beta'), 'reads', None)
    made(text)


# --- options that nothing reads


def unread(text: str, n_draw: int | None = None) -> str:
    """Returns the problem of a config with 4 envs, rollouts of 8 steps and otherwise the policy's defaults, or ''."""
    sections = sections_of(text)
    sections['collect'] = {'n_step': 8, 'n_sample': 32, **sections['collect']}
    cfg, kind = resolve_policy(sections), sections['type']
    return unread_problem(cfg, POLICY_REGISTRY.get(kind).config(), Objective(cfg.learn), n_draw, has_state=False)


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        (
            'collect.estimator: returns, collect.gae_lambda: 0.9',
            "gae_lambda is 0.9 but estimator 'returns' has no lambda",
        ),
        (
            'type: a2c, collect.estimator: n_step, collect.gae_lambda: 0.95',
            'leave gae_lambda out',
        ),  # 1 is the default of a2c
        ('clip_ratio: 0.1, surrogate: dpo', "neither surrogate 'dpo' nor value_loss 'mse' reads it"),
        ('type: a2c, clip_ratio: 0.1', "surrogate 'a2c'"),
        ('type: pg, clip_ratio: {start: 0.2, end: 0.1, over: 9}', 'leave clip_ratio out'),
        ('type: ppg, clip_ratio: 0.1, policy_loss: kl', "neither policy_loss 'kl' nor"),
        ('type: a2c, clip_ratio: 0.1, value_loss: {type: clip, range: 0.3}', 'leave clip_ratio out'),
        ('adam_eps: 1.0e-8, optimizer: sgd', "adam_eps is 1e-08 but optimizer 'sgd' has none"),
        ('adam_eps: 1.0e-8, optimizer: {type: adam, eps: 1.0e-6}', 'has the eps 1e-06'),
        ('type: a2c, target_kl: 0.01', 'one step (one pass of one minibatch)'),
        ('target_kl: 0.01, epoch_per_collect: 1, batch_size: 32', 'nothing could stop early'),
        ('batch_size: 16, epoch_per_collect: 2, accumulate: 5', 'is due when the passes end, after minibatch 4; use'),
        ('batch_size: 16, accumulate: 4, target_kl: 0.1', 'is due when a pass ends, after minibatch 2; use'),
        ('type: a2c, accumulate: 2', 'after minibatch 1;'),
    ],
)
def test_options_that_nothing_reads_are_named(text: str, words: str) -> None:
    assert words in unread(text)


@pytest.mark.parametrize(
    ('text', 'n_draw'),
    [
        *(
            (f'type: {kind}', None) for kind in ('ppo', 'ppo_offpolicy', 'a2c', 'pg', 'ppg', 'ppg_offpolicy')
        ),  # the defaults
        ('collect.gae_lambda: 0.9', None),
        ('collect.estimator: returns, collect.gae_lambda: 0.95', None),  # equal to the default
        ('type: a2c, clip_ratio: 0.1, value_loss: clip', None),
        ('type: a2c, clip_ratio: 0.1, surrogate: cispo', None),
        ('adam_eps: 1.0e-8, optimizer: {type: adamw, betas: [0.9, 0.99]}', None),
        ('type: a2c, target_kl: 0.01, epoch_per_collect: 2', None),
        ('target_kl: 0.01, epoch_per_collect: 1, batch_size: 16', None),
        ('batch_size: 16, epoch_per_collect: 2, accumulate: 4', None),
        ('type: ppo_offpolicy, batch_size: 32, accumulate: 9', 4),  # the buffer sets the size of a draw
        ('type: ppg, batch_size: 32, accumulate: 9', None),  # the auxiliary phase has more minibatches
    ],
)
def test_options_that_something_reads_are_not_named(text: str, n_draw: int | None) -> None:
    assert unread(text, n_draw) == ''
