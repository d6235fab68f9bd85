"""Settings of PPG: its section `policy.learn`, conflicts among them and with the model, and a warning if no auxiliary phase comes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from zoo.config.components import component_of
from zoo.config.schedule import Schedule
from zoo.config.section import Job
from zoo.core.errors import around
from zoo.core.registry import PHASE_REGISTRY
from zoo.policy.config import ActorCriticLearnConfig, Count, Positive, divisor_problems, dropped
from zoo.policy.sequences import sequence_problem

logger = logging.getLogger(__name__)
MemoryLocation = Literal['device', 'cpu', 'disk']


class PPGLearnConfig(ActorCriticLearnConfig):
    """Section `policy.learn` of PPG; names in brackets are the paper's."""

    actor_epoch_per_collect: int = Field(1, ge=1, description='passes of the policy phase over each rollout (E_pi)')
    critic_epoch_per_collect: int = Field(1, ge=1, description='passes of the critic over each rollout (E_V)')
    aux_freq: int = Field(32, ge=1, description='policy phases, one per rollout or draw, to an auxiliary phase (N_pi)')
    aux_train_epoch: int = Field(6, ge=1, description='passes of the auxiliary phase over what was kept (E_aux)')
    aux_batch_size: int = Field(
        1024, ge=1, description='samples per gradient step of the auxiliary phase; divides aux_freq rollouts, or draws'
    )
    aux_bc_weight: float = Field(
        1.0, ge=0, description='factor of KL(old || new) in the auxiliary phase; more keeps the policy in place'
    )
    aux_learning_rate: Schedule | None = Field(
        None, description="Adam's step size in the auxiliary phase, which has moments of its own; null: learning_rate"
    )
    aux_memory: MemoryLocation = Field(
        'device',
        description="where observations are kept for the auxiliary phase: the policy's device, cpu or disk "
        '(a nameless file in the folder for temporary files)',
    )
    policy_loss: Literal['clip', 'kl'] = Field(
        'clip', description='keep the policy phase near the old policy by clipping, or by a penalty on KL(old || new)'
    )
    kl_weight: float = Field(1.0, ge=0, description="factor of that penalty, for policy_loss 'kl'")
    value_weight: Annotated[float, Field(ge=0)] | None = Field(
        None,
        description="factor of the critic's loss in all phases; null: 0.5 in the policy phase of arch 'shared', else 1",
    )
    critic_batch_size: Count | None = Field(
        None, description="samples per gradient step of the critic's passes; null: batch_size"
    )
    phase: component_of(PHASE_REGISTRY, 'policy.learn.phase') = Field(  # type: ignore[valid-type]
        'ppg', description='what the auxiliary phase learns, by name or as {type: name, its options}'
    )
    aux_window: Count | None = Field(
        None,
        description='rollouts, or draws, that the memory of the auxiliary phase keeps, the newest ones; null: those since '
        'the last phase',
    )
    value_norm: bool = Field(
        True,
        description='the critic and the auxiliary head predict returns normalised by their running mean and '
        'deviation; unless returns are of size 1, their loss drowns the cloning loss without it',
    )
    adv_norm: Literal['off', 'batch', 'minibatch'] = Field(
        'batch', description='normalise advantages over the rollout or each minibatch'
    )
    grad_clip: Positive | None = Field(
        0.5,
        description='limit of the gradient norm, separately for actor and critic (unless shared); null: off, as published, '
        'which at a learning rate of 1e-3 or more may lose what was learned',
    )

    def problems(self, job: Job) -> Iterator[str]:
        yield from super().problems(job)
        yield from divisor_problems(job, 'critic_batch_size')
        buffer = job.buffer
        n_drawn = None  # samples of a rollout or of a draw; unknown for other buffers
        if buffer.type == 'rollout':
            n_drawn = job.policy.collect.get('n_sample')
        elif buffer.type == 'replay':
            n_drawn = buffer.n_sample
        elif buffer.type == 'multi':
            n_drawn = buffer.policy.n_sample
        if n_drawn is None:
            return
        for key in ('aux_freq', 'aux_window'):  # at the first phase, and once the memory is full
            n = (self[key] or self.aux_freq) * n_drawn
            if n % self.aux_batch_size:
                yield (
                    f'policy.learn.aux_batch_size is {self.aux_batch_size} but the memory holds {key} {n // n_drawn} x '
                    f'{n_drawn} = {n} samples: {dropped(n, self.aux_batch_size)}; use a divisor, e.g. '
                    f'{around(n, self.aux_batch_size)}.'
                )
                return

    @model_validator(mode='after')
    def _has_use_for_all(self) -> PPGLearnConfig:
        if self.policy_loss != 'kl' and self.kl_weight != 1.0:
            raise ValueError(
                f"kl_weight is {self.kl_weight:g} but policy_loss is 'clip', which has no such term; use policy_loss 'kl', or "
                'penalties: [{type: kl, weight: ..}] for both.'
            )
        if self.aux_window is not None and self.aux_window < self.aux_freq:
            raise ValueError(
                f'aux_window is {self.aux_window} but {self.aux_freq} rollouts (aux_freq) come between two phases, all of '
                f'which would not be kept; use {self.aux_freq} or more.'
            )
        return self


def ppg_problems(policy: Any, shares: bool, batch_size: int) -> Iterator[str]:
    """Yields a sentence for each conflict of settings, or ''.

    Args: shares: actor and critic share all parameters. batch_size: samples per minibatch of the policy phase.
    """
    cfg = policy.cfg
    for key in ('critic_batch_size', 'aux_batch_size') if policy.has_state and policy.learns else ():
        n = cfg.learn[key] or batch_size
        yield sequence_problem(cfg.learn.sequence, cfg.collect.n_step, n, key)
    # for a model that the user gave, the first step finds the error
    is_apart = policy.given_model is None and cfg.model.get('arch') in ('dual', 'detach')
    if is_apart and any(penalty.name == 'value_drift' for penalty in policy.objective.penalties):
        yield (
            f"policy.learn.penalties has 'value_drift' but policy.model.arch is {cfg.model['arch']!r}, which trains the "
            "critic in steps of its own; leave the penalty out, or use arch 'shared'"
        )
    learn = cfg.learn
    name = type(policy.model).__name__
    for method in ('compute_aux', 'critic_parameters'):
        if not callable(getattr(policy.model, method, None)):
            yield (
                f'model {name} has no {method}(), which policy {cfg.type!r} needs in addition to '
                "an actor-critic's methods; see zoo.model.actor_critic, or use policy.model.type 'ppg'"
            )
    if shares and learn.critic_learning_rate is not None:
        yield (
            f'policy.learn.critic_learning_rate is given but actor and critic of this {name} share all parameters; '
            "leave it out, or use arch 'dual' or 'detach'"
        )
    if shares and learn.actor_epoch_per_collect != learn.critic_epoch_per_collect:
        yield (
            f'policy.learn.actor_epoch_per_collect is {learn.actor_epoch_per_collect} and '
            f'critic_epoch_per_collect {learn.critic_epoch_per_collect}, but actor and critic of this '
            f"{name} share parameters and learn together; set both alike, or use arch 'dual' "
            "or 'detach'"
        )


def warn_of_short_run(policy: Any) -> None:
    """Warns if the run ends before its first auxiliary phase: it is then no phasic policy gradient."""
    run = policy.run
    n_sample = policy.cfg.collect.n_sample
    aux_freq = policy.cfg.learn.aux_freq
    if run.max_env_step is None or n_sample is None:
        return
    n_sample = run.of_all_ranks(n_sample)
    if run.n_draw is None:
        n_draw = 1
    else:
        n_draw = run.n_draw
    n_phase = run.max_env_step // n_sample * n_draw
    if n_phase < aux_freq:
        logger.warning(
            'the auxiliary phase never runs: policy.learn.aux_freq is %d but max_env_step %d has %d policy phases '
            '(%s %d env steps); use aux_freq %d or less, or max_env_step %d or more',
            aux_freq,
            run.max_env_step,
            n_phase,
            'one for' if n_draw == 1 else f'{n_draw} for',
            n_sample,
            max(n_phase, 1),
            -(-aux_freq // n_draw) * n_sample,
        )
