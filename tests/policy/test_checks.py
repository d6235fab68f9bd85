"""Checks of a policy's config: incompatible options and unread options are refused, similar valid ones are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import yaml

from tests.policy_envs import TWO_ACTIONS
from zoo.core.errors import UserError
from zoo.core.ranks import RunInfo
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.spaces import Box, Dict, MultiBinary
from zoo.policy.checks import unread_problem
from zoo.policy.options.loss import Objective
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


def made(kind: str, text: str) -> None:
    """Builds a policy for rollouts of 8 steps from YAML of non-default options; its key 'space' names an action space."""
    sections = yaml.safe_load(text)
    space = SPACES[sections.pop('space', 'two')]
    for name, defaults in (('collect', {'n_step': 8}), ('model', {'hidden_sizes': [8]})):
        sections[name] = {**defaults, **sections.get(name, {})}
    cfg = resolve_policy({'type': kind, **sections})
    run = RunInfo(n_draw=2 if kind.endswith('offpolicy') else None)
    POLICY_REGISTRY.build(kind, cfg, OBS, space, run=run).check_fields()


@pytest.mark.parametrize(
    ('kind', 'text', 'words'),
    [
        # a proximal policy with a surrogate that keeps no step near it
        (
            'ppo',
            'learn: {proximal: recent, surrogate: none}',
            "surrogate 'none' keeps no step near that policy; use prox",
        ),
        ('ppo', 'learn: {proximal: ewma, surrogate: cispo}', "surrogate 'cispo' keeps no step"),
        ('ppo', 'learn: {proximal: ewma, surrogate: awr}', "surrogate 'awr' keeps no step"),
        ('ppg', 'learn: {proximal: recent, policy_loss: kl}', "policy_loss 'kl' keeps no step"),
        ('ppo', 'learn: {proximal: ewma, surrogate: a2c}', "use proximal 'behaviour'"),
        # measures of a policy's change, where exploration would count as a change
        (
            'ppo',
            '{learn: {target_kl: 0.02}, collect: {exploration: {type: temperature, temperature: 2.0}}}',
            'target_kl is 0.02 but policy.collect.exploration',
        ),
        (
            'ppo',
            '{learn: {penalties: [kl]}, collect: {exploration: {type: temperature, temperature: 2.0}}}',
            "penalty 'kl' but policy.collect.exploration is 'temp",
        ),
        (
            'ppo',
            '{learn: {penalties: [reverse_kl]}, collect: {exploration: epsilon}}',
            "use exploration 'sample', or no such penalty",
        ),
        (
            'ppg',
            '{learn: {policy_loss: kl}, collect: {exploration: epsilon}}',
            "penalty 'kl' but policy.collect.exploration",
        ),
        # terms of the loss
        ('ppo', 'learn: {dual_clip: 3.0, surrogate: a2c}', 'dual_clip is 3 but surrogate'),
        ('ppo', 'learn: {dual_clip: 3.0, surrogate: cispo}', 'use dual_clip null'),
        ('ppo', 'learn: {surrogate: spoo}', "did you mean 'spo'"),
        ('ppo', 'learn: {surrogate: {type: spo, high: 0.3}}', 'policy.learn.surrogate.high'),
        ('ppo', 'learn: {value_loss: {type: huber, delta: -1.0}}', 'policy.learn.value_loss.delta'),
        ('ppo', 'learn: {value_clip: true, value_loss: huber}', 'drop one'),
        ('ppo', 'learn: {value_clip: true, value_loss: hl_gauss}', 'drop one'),
        ('ppo', 'learn: {penalties: [{type: kl, weight: -1.0}]}', 'weight'),
        ('ppo', 'learn: {penalties: [kl, kll]}', "did you mean 'kl'"),
        ('ppo', 'learn: {penalties: [kl, {type: kl, weight: 2.0}]}', 'each may be there once'),
        ('ppo', 'learn: {penalties: [{type: kl, weight: 200.0, target: 0.01}]}', 'between min_weight'),
        (
            'ppo',
            'learn: {penalties: [{type: kl, weight: {start: 1.0, end: 0.1, over: 9}, target: 0.01}]}',
            'drop one',
        ),
        ('ppg', 'learn: {penalties: [value_drift]}', "leave the penalty out, or use arch 'shared'"),
        ('ppg', 'learn: {policy_loss: kl, surrogate: spo}', 'drop one of the two'),
        ('ppg', 'learn: {kl_weight: 0.5}', "use policy_loss 'kl'"),
        ('ppo', 'learn: {precision: fp16}', 'bf16'),
        ('ppo', 'learn: {target_kl_at: minibatch}', 'give target_kl'),
        # corrections for the age of samples
        ('ppo', 'learn: {correction: decoupled, proximal: ewma}', "which is proximal 'recent' .* drop one"),
        ('ppo', 'learn: {correction: vtrace, proximal: recent}', "proximal is 'recent', which weighs old samples"),
        (
            'ppo',
            '{learn: {correction: vtrace}, collect: {estimator: n_step}}',
            "is 'n_step'; drop one of the two",
        ),
        (
            'ppo',
            '{learn: {correction: vtrace}, collect: {estimator: {type: gae, value_lambda: 0.9}}}',
            'estimator is .*; drop one of the two',
        ),
        ('ppo_offpolicy', 'learn: {correction: vtrace}', "yields random draws; use correction 'decoupled'"),
        ('pg', '{learn: {correction: vtrace}, collect: {estimator: gae}}', "baseline is 'none'"),
        (
            'ppo',
            '{learn: {correction: vtrace}, model: {recurrent: {cell: lstm}}}',
            'has a recurrent state, whose',
        ),
        ('ppo', 'learn: {correction: decoupled, target_kl: 0.02}', 'the age of samples would count as a change'),
        ('ppo', 'learn: {correction: is}', "unknown correction 'is': .*registered: decoupled, none, vtrace"),
        ('ppo', 'learn: {correction: {type: decoupled, rho_max: 0.5}}', 'rho_max is 0.5'),
        ('ppo', 'collect: {estimator: vtrace}', 'recompute_adv'),
        ('ppo_offpolicy', 'learn: {recompute_adv: true}', 'can be recomputed over whole rollouts only, not over draws'),
        # without a critic
        ('ppo', 'learn: {baseline: none}', "use estimator 'returns'"),
        (
            'ppo',
            '{learn: {baseline: none}, collect: {estimator: {type: n_step, n: 3}}}',
            "use estimator 'returns'",
        ),
        ('pg', 'learn: {value_norm: true}', "value_norm is True but policy 'pg' trains no critic"),
        ('pg', 'learn: {value_loss: huber}', "value_loss is 'huber' but policy 'pg' trains no critic"),
        ('pg', 'learn: {critic_learning_rate: 1.0e-3}', 'critic_learning_rate is 0.001 but'),
        ('pg', 'learn: {baseline: critic}', 'baseline'),
        (
            'trpo',
            'learn: {proximal: ewma}',
            "proximal is 'ewma', an average over the steps of an optimiser, which moves the critic",
        ),
        ('npg', 'learn: {precision: bf16}', "precision is 'bf16' .text. but must be 'fp32'"),
        ('trpo', 'learn: {critic_learning_rate: 1.0e-3}', 'critic_learning_rate'),
        ('trpo', 'learn: {target_kl: 0.01}', 'target_kl'),
        ('npg', 'learn: {accumulate: 2}', 'accumulate is 2 .* must be 1'),
        ('trpo', 'learn: {learning_rate: {start: 1.0e-3, kl_target: 0.01}}', 'kl_target'),
        ('pg', 'learn: {value_weight: 0.5}', 'value_weight'),
        ('pg', 'learn: {penalties: [value_drift]}', "penalties has 'value_drift' but policy 'pg' trains no critic"),
        ('trpo', 'learn: {penalties: [value_drift]}', "'value_drift' but the critic has steps of its own"),
        ('pg', 'collect: {estimator: gae}', "baseline is 'none' but policy.collect.estimator is 'gae'"),
        # phases of PPG
        ('ppg', 'model: {type: vac}', r"model VAC has no compute_aux\(\), which policy 'ppg' needs.*type 'ppg'"),
        ('ppg', 'model: {arch: single}', r"policy.model.arch is 'single' .*one of 'dual', 'detach', 'shared'"),
        (
            'ppg',
            '{model: {arch: shared}, learn: {actor_epoch_per_collect: 2}}',
            'actor_epoch_per_collect is 2 and critic_epoch_per_collect 1.*set both alike',
        ),
        ('ppg', 'learn: {aux_window: 3, aux_freq: 4}', 'use 4 or more'),
        ('ppo', 'learn: {phase: distill}', 'phase'),
        # sequences
        (
            'ppo',
            '{model: {recurrent: {}}, learn: {sequence: {len: 16}}, collect: {n_step: 50}}',
            'sequence.len is 16 but policy.collect.n_step is 50: 50 % 16 = 2 .* e.g. 10',
        ),
        (
            'ppo',
            '{model: {recurrent: {}}, learn: {sequence: {len: 16}, batch_size: 40}, collect: {n_step: 32}}',
            'batch_size is 40 but .*len is 16.* use a multiple, e.g. 32',
        ),
        (
            'ppo',
            '{model: {recurrent: {}}, learn: {sequence: {len: 5, overlap: half}, batch_size: 40}, collect: {n_step: 50}}',
            "overlap is 'half' but len is 5, which is odd",
        ),
        (
            'ppo',
            '{model: {recurrent: {}}, learn: {sequence: {len: 16, burn_in: 17}}, collect: {n_step: 32}}',
            'burn_in is 17 but a rollout of 32 steps has at most 16 before',
        ),
        (
            'ppo',
            '{model: {recurrent: {}}, learn: {recompute_adv: true}, collect: {n_step: 32}}',
            'recompute_adv is true but the model has a recurrent state',
        ),
        (
            'ppg',
            '{model: {recurrent: {}}, learn: {sequence: {len: 8}, batch_size: 32, aux_batch_size: 100}}',
            'aux_batch_size is 100 but .*len is 8.* e.g. 96',
        ),
        (
            'ppg',
            '{model: {recurrent: {}}, learn: {sequence: {len: 8}, batch_size: 32, critic_batch_size: 20}}',
            'critic_batch_size is 20 but .*len is 8.* e.g. 16',
        ),
        # DQN
        ('dqn', 'space: box', "'dqn' is for Discrete actions, and those of the env are of a Box; use"),
        ('dqn', 'model: {recurrent: {cell: gru}}', 'is for a model without a memory, got Recurrent.*; use'),
        ('dqn', 'collect: {eps: 2.0}', 'eps is .*: it reaches 2 but is a probability'),
        ('dqn', 'collect: {eps: {start: 5.0, end: 0.1, over: 100}}', 'eps is .*: it reaches 5 but is a probability'),
        ('dqn', 'collect: {n_return: 9}', 'n_return is 9 but a rollout has 8 steps.*use n_return 8 or less'),
        # frozen parameters
        (
            'ppo',
            'learn: {freeze: [actor_encodr.*]}',
            r"'actor_encodr.\*', which matches no parameter .* did you mean actor_encoder.layers.0.bias",
        ),
        ('ppo', 'learn: {freeze: [xyz]}', 'its parts are actor_encoder, critic_encoder, policy_head, value_head'),
        ('ppo', "learn: {freeze: ['*']}", 'leaves no parameter to train; freeze fewer'),
        (
            'ppg',
            'learn: {freeze: [actor_encoder.*, policy_head.*, aux_head.*]}',
            'leaves nothing to train of the actor',
        ),
        (
            'dqn',
            'learn: {freeze: [actor_encoder, policy_head]}',
            "nothing to train of the actor, which is all that policy 'dqn' trains",
        ),
        # steps of the actor without a gradient
        (
            'ppo',
            'learn: {value_weight: 0, freeze: [actor_encoder, policy_head]}',
            'leaves nothing to train of the actor',
        ),
        (
            'ppo',
            'learn: {critic_learning_rate: 1.0e-3, freeze: [actor_encoder, policy_head]}',
            'leaves nothing to train of the actor',
        ),
        # fields that only another distribution reads
        (
            'ppo',
            '{space: box, model: {sde_sample_freq: 4}}',
            f"^policy.model.sde_sample_freq is 4 {OTHER} 'gaussian', which does not read it; leave it at null, or use "
            'policy.model.distribution=gsde$',
        ),
        (
            'ppo',
            '{space: box, model: {distribution: beta, state_dependent_std: true}}',
            f"^policy.model.state_dependent_std is true {OTHER} 'beta', which does not read it; leave it at false, or use "
            'policy.model.distribution=gaussian or squashed_gaussian$',
        ),
        (
            'ppo',
            'model: {log_std_init: -1.0}',
            f"^policy.model.log_std_init is -1.0 {OTHER} 'categorical', which does not read it; leave it at 0.0$",
        ),
        (
            'ppo',
            '{space: bits, model: {log_std_max: 1.0}}',
            f"^policy.model.log_std_max is 1.0 {OTHER} 'composite', which does not read it; leave it at 2.0$",
        ),
        ('ppo', 'learn: {intrinsic: {type: rnd, encoder: {type: nature, width: 3}}}', 'policy.learn.intrinsic.encoder'),
    ],
)
def test_policy_of_what_does_not_fit_together_is_refused(kind: str, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        made(kind, text)


@pytest.mark.parametrize(
    ('kind', 'text'),
    [
        ('ppo', 'learn: {proximal: recent, surrogate: dpo}'),  # its drift is from the proximal policy
        ('ppo', 'learn: {proximal: ewma, surrogate: spo, dual_clip: 3.0}'),
        ('ppo', 'learn: {penalties: [kl], target_kl: 0.02}'),
        ('ppo', '{learn: {penalties: [value_drift]}, collect: {exploration: {type: temperature, temperature: 2.0}}}'),
        ('ppo', '{learn: {learning_rate: {start: 1.0e-3, kl_target: 0.01}}, collect: {exploration: epsilon}}'),
        ('ppg', '{learn: {penalties: [value_drift]}, model: {arch: shared}}'),
        ('dqn', 'collect: {n_return: 8}'),
        ('ppo', '{space: box, model: {log_std_init: -1.0, state_dependent_std: true}}'),
        ('ppo', '{space: box, model: {log_std_init: -1.0, sde_sample_freq: 4, distribution: gsde}}'),
        ('ppo', '{space: box, model: {log_std_min: -3.0, distribution: squashed_gaussian}}'),
        ('ppo', 'model: {log_std_init: 0.0, sde_sample_freq: null}'),  # the defaults
        ('ppo', '{space: mixed, model: {log_std_max: 1.0}}'),
    ],
)
def test_policy_of_what_has_a_meaning_is_not_refused(kind: str, text: str) -> None:
    made(kind, text)


def test_distribution_that_declares_no_fields_may_read_any(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{space: box, model: {distribution: beta, log_std_init: -1.0}}'
    with pytest.raises(UserError, match=f"log_std_init is -1.0 {OTHER} 'beta'"):
        made('ppo', text)
    monkeypatch.setattr(distribution.DISTRIBUTION_REGISTRY.get('beta'), 'reads', None)
    made('ppo', text)


# --- options that nothing reads


def unread(kind: str, text: str, n_draw: int | None = None) -> str:
    """Returns the problem of a config with 4 envs, rollouts of 8 steps and otherwise the policy's defaults, or ''."""
    sections: dict[str, Any] = yaml.safe_load(text)
    sections['collect'] = {'n_step': 8, 'n_sample': 32, **sections.get('collect', {})}
    cfg = resolve_policy({'type': kind, **sections})
    return unread_problem(cfg, POLICY_REGISTRY.get(kind).config(), Objective(cfg.learn), n_draw, has_state=False)


@pytest.mark.parametrize(
    ('kind', 'text', 'words'),
    [
        (
            'ppo',
            'collect: {estimator: returns, gae_lambda: 0.9}',
            "gae_lambda is 0.9 but estimator 'returns' has no lambda",
        ),
        ('a2c', 'collect: {estimator: n_step, gae_lambda: 0.95}', 'leave gae_lambda out'),  # 1 is the default of a2c
        ('ppo', 'learn: {clip_ratio: 0.1, surrogate: dpo}', "neither surrogate 'dpo' nor value_loss 'mse' reads it"),
        ('a2c', 'learn: {clip_ratio: 0.1}', "surrogate 'a2c'"),
        ('pg', 'learn: {clip_ratio: {start: 0.2, end: 0.1, over: 9}}', 'leave clip_ratio out'),
        ('ppg', 'learn: {clip_ratio: 0.1, policy_loss: kl}', "neither policy_loss 'kl' nor"),
        ('a2c', 'learn: {clip_ratio: 0.1, value_loss: {type: clip, range: 0.3}}', 'leave clip_ratio out'),
        ('ppo', 'learn: {adam_eps: 1.0e-8, optimizer: sgd}', "adam_eps is 1e-08 but optimizer 'sgd' has none"),
        ('ppo', 'learn: {adam_eps: 1.0e-8, optimizer: {type: adam, eps: 1.0e-6}}', 'has the eps 1e-06'),
        ('a2c', 'learn: {target_kl: 0.01}', 'one step (one pass of one minibatch)'),
        ('ppo', 'learn: {target_kl: 0.01, epoch_per_collect: 1, batch_size: 32}', 'nothing could stop early'),
        (
            'ppo',
            'learn: {batch_size: 16, epoch_per_collect: 2, accumulate: 5}',
            'is due when the passes end, after minibatch 4; use',
        ),
        (
            'ppo',
            'learn: {batch_size: 16, accumulate: 4, target_kl: 0.1}',
            'is due when a pass ends, after minibatch 2; use',
        ),
        ('a2c', 'learn: {accumulate: 2}', 'after minibatch 1;'),
    ],
)
def test_options_that_nothing_reads_are_named(kind: str, text: str, words: str) -> None:
    assert words in unread(kind, text)


@pytest.mark.parametrize(
    ('kind', 'text', 'n_draw'),
    [
        *((kind, '{}', None) for kind in ('ppo', 'ppo_offpolicy', 'a2c', 'pg', 'ppg', 'ppg_offpolicy')),  # the defaults
        ('ppo', 'collect: {gae_lambda: 0.9}', None),
        ('ppo', 'collect: {estimator: returns, gae_lambda: 0.95}', None),  # equal to the default
        ('a2c', 'learn: {clip_ratio: 0.1, value_clip: true}', None),
        ('a2c', 'learn: {clip_ratio: 0.1, surrogate: cispo}', None),
        ('ppo', 'learn: {adam_eps: 1.0e-8, optimizer: {type: adamw, betas: [0.9, 0.99]}}', None),
        ('a2c', 'learn: {target_kl: 0.01, epoch_per_collect: 2}', None),
        ('ppo', 'learn: {target_kl: 0.01, epoch_per_collect: 1, batch_size: 16}', None),
        ('ppo', 'learn: {batch_size: 16, epoch_per_collect: 2, accumulate: 4}', None),
        ('ppo_offpolicy', 'learn: {batch_size: 32, accumulate: 9}', 4),  # the buffer sets the size of a draw
        ('ppg', 'learn: {batch_size: 32, accumulate: 9}', None),  # the auxiliary phase has more minibatches
    ],
)
def test_options_that_something_reads_are_not_named(kind: str, text: str, n_draw: int | None) -> None:
    assert unread(kind, text, n_draw) == ''
