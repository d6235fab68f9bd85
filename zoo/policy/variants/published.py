"""Published variants of PPO and PPG: names for configs that choose other components."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from zoo.backend.step import LossSpec, StepNumbers
from zoo.core.data import Metrics, Minibatch
from zoo.core.registry import PHASE_REGISTRY
from zoo.policy.ppg import Phase, PPGPolicy, joint_loss
from zoo.policy.ppo import PPOPolicy, descend
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import FlatOptimizer
from zoo.rl_utils.ppo import added

# SPO (Xie et al. 2025, arXiv:2401.16025): a quadratic penalty in place of the clip
PPOPolicy.with_updates(
    'spo', {'learn': {'surrogate': 'spo'}}, __doc__='PPO with a quadratic penalty on the ratio in place of the clip.'
)
# PPO-EWMA (Hilton et al. 2022, arXiv:2110.00641): stays near an average of past policies, so samples may be old
PPOPolicy.with_updates(
    'ppo_ewma', {'learn': {'proximal': 'ewma'}}, __doc__='PPO that stays near an average of past policies.'
)
PPGPolicy.with_updates(
    'ppg_ewma', {'learn': {'proximal': 'ewma'}}, __doc__='PPG that stays near an average of past policies.'
)
# PPG Reloaded (Wang et al. 2023, ICML): auxiliary phases that are short and frequent, over many past rollouts
PPGPolicy.with_updates(
    'ppg_reloaded',
    {'learn': {'aux_freq': 4, 'aux_window': 32, 'aux_train_epoch': 1}},
    __doc__='PPG with short and frequent auxiliary phases over many past rollouts.',
)


def distill_step(
    model: nn.Module,
    dist: ActionDist,
    optimizers: Sequence[FlatOptimizer],
    minibatch: Minibatch,
    loss: LossSpec,
    numbers: StepNumbers,
) -> Metrics:
    """One step of an auxiliary phase that leaves the critic alone: auxiliary_loss + bc_weight * behavioral_cloning_loss.

    Args: minibatch: its return_ is the target of the auxiliary head, for DNA the critic's values. Returns: as `aux_step`.
    Source: Aitchison & Sweetser 2022, arXiv:2206.10027, sec. 3.3 (distil phase).
    """
    output, minibatch = loss.forward(model, 'compute_aux', minibatch)
    auxiliary_loss, cloning_loss = joint_loss(dist, output, minibatch)
    total = added(auxiliary_loss, numbers.bc_weight, cloning_loss)
    return {
        'auxiliary_loss': auxiliary_loss.detach(),
        'behavioral_cloning_loss': cloning_loss.detach(),
        'aux_grad_norm': descend(optimizers, total, numbers.grad_clip),
    }


@PHASE_REGISTRY.register('distill')
def distill() -> Phase:
    """The auxiliary head learns the critic's values, while a KL(old || new) term holds the policy (DNA, arXiv:2206.10027)."""
    return Phase(distill_step, 'critic', False)


# DNA (Aitchison and Sweetser 2022, arXiv:2206.10027): two networks, each with the batch, passes and lambda that fit it,
# and after each rollout the critic's values are distilled into the policy's trunk
PPGPolicy.with_updates(
    'dna',
    {
        'learn': {
            'phase': 'distill',
            'aux_freq': 1,
            'aux_train_epoch': 2,
            'actor_epoch_per_collect': 2,
            'critic_epoch_per_collect': 1,
            'entropy_weight': 0.01,
        },
        'collect': {'gae_lambda': 0.8, 'estimator': {'type': 'gae', 'value_lambda': 0.95}},
    },
    __doc__='DNA: PPG with two networks and distillation of values into the policy after each rollout.',
)
