"""Policy 'ppg': phasic policy gradient (Cobbe et al. 2021, arXiv:2009.04416)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.backend.executor import Found, Step, StepPlan, forward_rows
from zoo.config.components import component_of, make_component, name_of
from zoo.config.schedule import Schedule
from zoo.core.data import PASS_CELLS, Columns, Metrics, Minibatch, leaves, map_tensors, send
from zoo.core.errors import UserError
from zoo.core.registry import PHASE_REGISTRY, POLICY_REGISTRY
from zoo.model.check import parameters_by_role
from zoo.policy.actor_critic import ActorCriticPolicy
from zoo.policy.aux_memory import AuxMemory, MemoryLocation
from zoo.policy.config import (
    ActorCriticLearnConfig,
    ActorCriticPolicyConfig,
    Count,
    OnPolicyCollectConfig,
    PolicyConfig,
    Positive,
)
from zoo.policy.gradient_steps import (
    MSE,
    GradientStep,
    descend,
    n_output_of,
    policy_step,
    ppo_step,
    value_loss_terms,
)
from zoo.policy.metrics import explained_variance
from zoo.policy.sequences import sequence_problem
from zoo.rl_utils import kernels
from zoo.rl_utils.check import Number
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import FlatOptimizer
from zoo.rl_utils.ppg import joint_loss, ppg_data, ppg_joint_error, ppg_joint_loss
from zoo.rl_utils.ppo import added


class ValueNumbers(NamedTuple):
    """The numbers of a step on the critic alone."""

    clip_ratio: Number = 0.2
    grad_clip: float | None = None
    value_loss: Callable[..., Tensor] = MSE
    value_weight: Number = 1.0
    forward: Callable[..., Any] = forward_rows


class AuxNumbers(NamedTuple):
    """The numbers of a step of PPG's auxiliary phase."""

    bc_weight: Number = 1.0  # factor of KL(old || new)
    grad_clip: float | None = None
    value_loss: Callable[..., Tensor] = MSE  # of a critic that predicts a distribution; else it is the squared error
    value_weight: Number = 1.0  # factor of aux_value_loss
    forward: Callable[..., Any] = forward_rows


@partial(GradientStep, kind='VALUE')
def value_step(
    model: nn.Module, dist: ActionDist, optimizers: Sequence[FlatOptimizer], minibatch: Minibatch, numbers: ValueNumbers
) -> Found:
    """One step of the critic alone on value_loss; returns value_loss (, value_clipfrac) and value_grad_norm."""
    method = 'compute_critic' if n_output_of(numbers.value_loss) == 1 else 'compute_critic_output'
    output, minibatch = numbers.forward(model, method, minibatch)
    value_loss, metrics = value_loss_terms(output, minibatch, numbers.value_loss, numbers.clip_ratio)
    loss = value_loss * numbers.value_weight
    return {**metrics, 'value_grad_norm': descend(optimizers, loss, numbers.grad_clip)}


@partial(GradientStep, kind='AUX')
def aux_step(
    model: nn.Module, dist: ActionDist, optimizers: Sequence[FlatOptimizer], minibatch: Minibatch, numbers: AuxNumbers
) -> Metrics:
    """One step of PPG's auxiliary phase.

    loss = auxiliary_loss + bc_weight * behavioral_cloning_loss + value_weight * aux_value_loss

    auxiliary_loss is that of the value head on the policy's trunk, aux_value_loss that of the critic, both
    0.5 * mean((R - V)^2); the cloning loss is mean(KL(old || new)).

    Args: minibatch: its return_ in the unit of the critic's output; optimizers: one for each buffer
      of parameters.
    Returns: detached 0-dim tensors auxiliary_loss, behavioral_cloning_loss, aux_value_loss, aux_grad_norm.
    Source: Cobbe et al. 2021, arXiv:2009.04416, algorithm 1.
    """
    output, minibatch, joint = _aux_losses(model, dist, minibatch, numbers)
    value_loss, of_value = value_loss_terms(output, minibatch, numbers.value_loss, clip_ratio=0.0)  # which is not read
    loss = joint.auxiliary_loss + value_loss * numbers.value_weight
    loss = added(loss, numbers.bc_weight, joint.behavioral_cloning_loss)
    return {
        'auxiliary_loss': joint.auxiliary_loss.detach(),
        'aux_value_loss': of_value['value_loss'],
        'behavioral_cloning_loss': joint.behavioral_cloning_loss.detach(),
        'aux_grad_norm': descend(optimizers, loss, numbers.grad_clip),
    }


def distill_step(
    model: nn.Module, dist: ActionDist, optimizers: Sequence[FlatOptimizer], minibatch: Minibatch, numbers: AuxNumbers
) -> Metrics:
    """One step of an auxiliary phase that leaves the critic alone: auxiliary_loss + bc_weight * behavioral_cloning_loss.

    Args: minibatch: its return_ is the target of the auxiliary head, for DNA the critic's values. Returns: as `aux_step`.
    Source: Aitchison & Sweetser 2022, arXiv:2206.10027, sec. 3.3 (distil phase).
    """
    _, _, joint = _aux_losses(model, dist, minibatch, numbers)
    loss = added(joint.auxiliary_loss, numbers.bc_weight, joint.behavioral_cloning_loss)
    return {
        'auxiliary_loss': joint.auxiliary_loss.detach(),
        'behavioral_cloning_loss': joint.behavioral_cloning_loss.detach(),
        'aux_grad_norm': descend(optimizers, loss, numbers.grad_clip),
    }


def _aux_losses(
    model: nn.Module, dist: ActionDist, minibatch: Minibatch, numbers: AuxNumbers
) -> tuple[dict[str, Tensor], Minibatch, ppg_joint_loss]:
    """Returns the output of `compute_aux`, the minibatch as rows, and the losses that all auxiliary phases have."""
    output, minibatch = numbers.forward(model, 'compute_aux', minibatch)
    return_, weight = minibatch['return_'], minibatch.get('weight', None)
    if kernels.ENABLED and kernels.reach(output['logit']):
        data = ppg_data(output['logit'], minibatch['logit'], None, output['aux_value'], return_, return_, weight)
        return output, minibatch, ppg_joint_error(data, use_value_clip=False, dist=dist)
    losses = joint_loss(dist, output['logit'], minibatch['logit'], output['aux_value'], return_, weight)
    return output, minibatch, losses


class Phase(NamedTuple):
    """Kind of auxiliary phase.

    target: target of the auxiliary head: the stored returns, or the critic's values at the start of the phase.
    moves_critic: whether the critic is trained too.
    """

    step: Step
    target: Literal['return', 'critic']
    moves_critic: bool


@PHASE_REGISTRY.register('ppg')
def ppg() -> Phase:
    """The auxiliary head and the critic learn the returns, while a KL(old || new) term holds the policy (arXiv:2009.04416)."""
    return Phase(aux_step, 'return', True)


@PHASE_REGISTRY.register('distill')
def distill() -> Phase:
    """The auxiliary head learns the critic's values, while a KL(old || new) term holds the policy (DNA, arXiv:2206.10027)."""
    return Phase(distill_step, 'critic', False)


logger = logging.getLogger(__name__)


def are_parts(batch: Columns) -> bool:
    """Whether a batch is {'policy': samples, 'value': samples}, or one of these, rather than samples."""
    return set(batch.keys()) <= {'policy', 'value'}


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


class PPGCollectConfig(OnPolicyCollectConfig):
    """Section `policy.collect` of PPG."""


class PPGConfig(ActorCriticPolicyConfig):
    """Section `policy` of PPG."""

    type: str = Field('ppg', description='registered name of the policy')
    learn: PPGLearnConfig = PPGLearnConfig()
    collect: PPGCollectConfig = PPGCollectConfig()


@POLICY_REGISTRY.register('ppg')
class PPGPolicy(ActorCriticPolicy):
    """PPG: policy phases as in PPO, and an auxiliary phase after every `aux_freq` of them.

    In the auxiliary phase, the policy's own value head (aux_value) and the critic learn the returns in the memory, while
    a KL(old || new) term keeps the policy where it was. GAE reads the critic alone; nothing reads aux_value.
    """

    cfg: PPGConfig
    config: ClassVar[type[PolicyConfig]] = PPGConfig
    takes_separate_draws: ClassVar[bool] = True
    calls_learn_aux: ClassVar[bool] = True
    policy_step: ClassVar[Any] = staticmethod(policy_step)
    value_step: ClassVar[Any] = staticmethod(value_step)
    joint_step: ClassVar[Any] = staticmethod(ppo_step)
    """The gradient steps, see zoo.policy.gradient_steps; joint_step: if actor and critic share all parameters."""

    def _forward_learn(self, batch: Columns) -> Metrics:
        """Runs a policy phase, a value phase and, if it is due, the auxiliary phase (Cobbe et al. 2021, algorithm 1).

        Args: batch: for both phases, or {'policy': batch, 'value': batch}, or one of these.
        """
        parts = self._begin_parts(batch)
        if self.cfg.learn.aux_learning_rate is None:  # an adaptive rate may differ from draw to draw
            self.rates['aux_learning_rate'] = self.rates['learning_rate']
        metrics: Metrics = {}
        if 'policy' in parts:
            metrics |= self._policy_phase(parts['policy'])
            self._memory.append(parts['policy'])
        if 'value' in parts:
            metrics |= self._value_phase(parts['value'])
        if not self._shares_network and metrics.keys() >= {'total_loss', 'value_loss'}:
            metrics['total_loss'] = metrics['total_loss'] + self._value_weight * metrics['value_loss']
        metrics |= self._end_update(next(iter(parts.values())))
        return metrics | self.learn_aux()

    def _policy_phase(self, batch: Columns) -> Metrics:
        """Runs E_pi passes of the policy over a batch; they also train the critic if actor and critic share a network."""
        n_pass, optimizers = self.cfg.learn.actor_epoch_per_collect, [self.optimizers['actor']]
        return self._train_policy(batch, n_pass, self._policy_step, optimizers, self.cfg.learn.batch_size)

    def _value_phase(self, batch: Columns) -> Metrics:
        """Runs E_V passes of the critic over a batch; none if actor and critic share a network."""
        metrics = {'explained_variance': explained_variance(batch)}
        if self._shares_network:
            return metrics
        cfg, fixed = self.cfg.learn, self.objective.fixed
        numbers = ValueNumbers(
            self.rates.clip_range, fixed.grad_clip, fixed.value_loss, self._value_weight, fixed.forward
        )
        n_pass, size = cfg.critic_epoch_per_collect, cfg.critic_batch_size or cfg.batch_size
        critic = [self.optimizers['critic']]
        return metrics | self.passes.run(self.value_step, critic, numbers, n_pass, batch, size).metrics

    def learn_aux(self) -> Metrics:
        """Runs the auxiliary phase if it is due, after N_pi = aux_freq policy phases; returns its metrics, else {}.

        Metrics are means over its steps, and the KL from the policy at the start of the phase: aux_kl_before, on the
        first minibatch before the first step (0 except for rounding), and aux_kl_after, on all rows after the last step.
        """
        if self._memory.n_since_phase < self.cfg.learn.aux_freq:  # more after a resume with a smaller aux_freq
            return {}
        metrics = self._aux_phase()
        self._memory.end_phase()
        for option in self.options:
            option.policy_moved()
        return metrics

    def _aux_phase(self) -> Metrics:
        """Runs E_aux passes over the memory, in minibatches of random rows. Departs: published with random whole segments."""
        cfg, memory, fixed = self.cfg.learn, self._memory, self.objective.fixed
        logit_old = self._over_memory('compute_actor', 'logit')  # store pi_old for all states in B
        return_ = self._aux_target()
        columns = {**memory.columns(), 'return_': return_, 'logit': logit_old.view(*return_.shape, -1)}
        names = ('aux_actor', 'aux_critic') if self.phase.moves_critic else ('aux_actor',)
        optimizers = [self.optimizers[name] for name in names if name in self.optimizers]
        for optimizer in optimizers:
            optimizer.lr = self.rates['aux_learning_rate']
        order = self.passes.permutations(cfg.aux_train_epoch, memory.n_row, memory.device)
        is_small = sum(x.numel() for _, x in leaves(columns['obs'])) <= PASS_CELLS
        plan = StepPlan(columns, order, self._aux_rows, self.device, gather=memory.device == self.device and is_small)
        numbers = AuxNumbers(
            cfg.aux_bc_weight, fixed.grad_clip, self._aux_value_loss, self._value_weight, fixed.forward
        )
        metrics = self.passes.steps(self.phase.step, optimizers, plan, numbers)
        for optimizer in optimizers:  # here, while the gradient is still theirs, so that errors name the parameter
            optimizer.count_skipped(cfg.nonfinite_limit)
        kl_before, kl_after = metrics['behavioral_cloning_loss'][0], self._kl_to(columns['logit'])
        means = {name: x.mean() for name, x in metrics.items()}
        return {**means, 'aux_kl_before': kl_before, 'aux_kl_after': kl_after}

    @classmethod
    def default_model(cls) -> str:
        return 'ppg'

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        cfg = self.cfg
        for key in ('critic_batch_size', 'aux_batch_size') if self.has_state and self.learns else ():
            n = cfg.learn[key] or self._batch_size
            yield sequence_problem(cfg.learn.sequence, cfg.collect.n_step, n, key)
        # for a model that the user gave, the first step finds the error
        is_apart = self.given_model is None and cfg.model.get('arch') in ('dual', 'detach')
        if is_apart and any(penalty.name == 'value_drift' for penalty in self.objective.penalties):
            yield (
                f"policy.learn.penalties has 'value_drift' but policy.model.arch is {cfg.model['arch']!r}, which trains the "
                "critic in steps of its own; leave the penalty out, or use arch 'shared'"
            )
        learn, name = cfg.learn, type(self._model).__name__
        for method in ('compute_aux', 'critic_parameters'):
            if not callable(getattr(self._model, method, None)):
                yield (
                    f'model {name} has no {method}(), which policy {cfg.type!r} needs in addition to '
                    "an actor-critic's methods; see zoo.model.actor_critic, or use policy.model.type 'ppg'"
                )
        if self._shares_network and learn.critic_learning_rate is not None:
            yield (
                f'policy.learn.critic_learning_rate is given but actor and critic of this {name} share all parameters; '
                "leave it out, or use arch 'dual' or 'detach'"
            )
        if self._shares_network and learn.actor_epoch_per_collect != learn.critic_epoch_per_collect:
            yield (
                f'policy.learn.actor_epoch_per_collect is {learn.actor_epoch_per_collect} and '
                f'critic_epoch_per_collect {learn.critic_epoch_per_collect}, but actor and critic of this '
                f"{name} share parameters and learn together; set both alike, or use arch 'dual' "
                "or 'detach'"
            )

    @property
    def _shares_network(self) -> bool:
        return bool(getattr(self._model, 'joint', False))

    def _init_learn(self) -> None:
        cfg = self.cfg.learn
        self._memory = AuxMemory(cfg.aux_window or cfg.aux_freq, cfg.aux_memory, is_ring=cfg.aux_window is not None)
        self._ring = 0, 0  # from a checkpoint: number of stored batches, index of the oldest
        self.phase = make_component(PHASE_REGISTRY, cfg.phase)()
        self._aux_value_loss = self.objective.value_loss if self.objective.n_value > 1 else MSE
        self._warn_if_short()
        super()._init_learn()
        if self.executor_name.startswith('native') and self.phase.step is not aux_step:
            logger.info('the auxiliary phase %r runs eagerly: C has only that of ppg', name_of(cfg.phase))

    def _warn_if_short(self) -> None:
        """Warns if the run ends before its first auxiliary phase: it is then no phasic policy gradient."""
        run, n_sample, aux_freq = self.run, self.cfg.collect.n_sample, self.cfg.learn.aux_freq
        if run.max_env_step is None or n_sample is None:
            return
        n_sample = run.of_all_ranks(n_sample)
        n_draw = 1 if run.n_draw is None else run.n_draw
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

    def _make_optimizers(self) -> dict[str, FlatOptimizer]:
        """Makes separate optimisers for actor and critic, so that the momentum of one never changes the other."""
        critic = set() if self._shares_network else {name for name, _ in self._model.critic_parameters()}
        groups = parameters_by_role(self._model, critic)
        optimizers = {role: self._make_optimizer(named) for role, named in groups.items() if named}
        return optimizers | {f'aux_{name}': optimizer.sibling() for name, optimizer in optimizers.items()}

    def steps_per_env_step(self) -> float:
        cfg, reuse = self.cfg.learn, self.run.reuse
        n_critic = 0.0 if self._shares_network else reuse['value'] * cfg.critic_epoch_per_collect
        n_policy, n_aux = (reuse['policy'] * n for n in (cfg.actor_epoch_per_collect, cfg.aux_train_epoch))
        n_step = n_policy / self._batch_size + n_critic / (cfg.critic_batch_size or self._batch_size)
        return self._overlap * (n_step + n_aux * (cfg.aux_window or cfg.aux_freq) / cfg.aux_freq / cfg.aux_batch_size)

    def _begin_parts(self, batch: Columns) -> dict[str, Columns]:
        """Begins an update; returns the batches of the policy phase and of the value phase."""
        if not are_parts(batch):
            return dict.fromkeys(('policy', 'value'), self._begin_update(batch))
        if self._shares_network:
            raise UserError(
                'policy and value were drawn apart, but actor and critic of this '
                f"{type(self._model).__name__} learn together; use buffer.type 'replay' or 'rollout'"
            )
        return {name: self._begin_update(batch[name], name) for name in ('policy', 'value') if name in batch}

    @property
    def _policy_step(self) -> Any:
        return self.joint_step if self._shares_network else self.policy_step

    @property
    def _value_step(self) -> Any:
        return self.joint_step if self._shares_network else self.value_step

    def _coefficients(self) -> dict[str, float]:
        is_half = self._shares_network and self.cfg.learn.value_weight is None  # as PPO's, in the policy phase
        return {'value_weight': 0.5 if is_half else self._value_weight, 'aux_bc_weight': self.cfg.learn.aux_bc_weight}

    @property
    def _value_weight(self) -> float:
        """Factor of the critic's loss where it has steps of its own, and in the auxiliary phase."""
        weight = self.cfg.learn.value_weight
        return 1.0 if weight is None else weight

    @torch.no_grad()
    def _over_memory(self, method: str, output: str) -> Tensor:
        """Output of a method of the model for all rows in the memory, [M, ...], on the memory's device."""
        return torch.cat([x for *_, x in self._pieces(method, output)]).to(self._memory.device)

    def _aux_target(self) -> Tensor:
        """Value targets of the auxiliary phase for all rows in the memory, in the unit of the critic's output."""
        return_: Tensor = self._memory.columns()['return_']
        if self.phase.target == 'critic':
            return self._over_memory('compute_critic', 'value').view_as(return_)
        return self.samples.units.standardize(send(return_, self.device)).to(return_.device)

    @property
    def _aux_rows(self) -> int:
        """Rows (or sequences) of a minibatch of the auxiliary phase."""
        return max(self.cfg.learn.aux_batch_size // self.samples.entry_len, 1)

    @torch.no_grad()
    def _kl_to(self, logit_old: Tensor) -> Tensor:
        """mean(KL(old || now)) over all rows kept."""
        total = torch.zeros((), device=self.device)
        for at, rows, logit in self._pieces('compute_actor', 'logit'):
            kl = self.dist.kl(send(logit_old[at], self.device).view_as(logit), logit)
            total += (kl * rows['weight'].flatten() if 'weight' in rows else kl).sum()
        return total / self._memory.columns()['return_'].numel()

    def _pieces(self, method: str, output: str) -> Iterator[tuple[slice, dict[str, Any], Tensor]]:
        """Yields slices of the memory, at most a minibatch each, with its rows (or sequences) and a method's output for them."""
        columns = self._memory.columns()
        for start in range(0, self._memory.n_row, self._aux_rows):
            at = slice(start, start + self._aux_rows)
            rows = map_tensors(lambda x: send(x[at], self.device), columns)  # noqa: B023
            yield at, rows, self.samples.forward(self._model, method, rows)[0][output]

    def _monitor_vars_learn(self) -> list[str]:
        own = () if self._shares_network else ('value_grad_norm',)
        return list(dict.fromkeys((*super()._monitor_vars_learn(), 'aux_learning_rate', *own)))

    def _get_batch_size(self) -> Any:
        cfg = self.cfg.learn
        return {'policy': cfg.batch_size, 'value': cfg.critic_batch_size or cfg.batch_size}

    def _state_dict_learn(self) -> dict[str, Any]:
        memory = self._memory
        kept = {'aux_filled': memory.n_filled, 'aux_oldest': memory.oldest} if memory.is_ring else {}
        return {**super()._state_dict_learn(), 'policy_phase': memory.n_since_phase, **kept}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self._memory.n_since_phase = state['policy_phase']
        self._ring = state.get('aux_filled', 0), state.get('aux_oldest', 0)

    def memory_state_dict(self) -> dict[str, Any]:
        return self._memory.state_dict()

    def load_memory_state_dict(self, state: dict[str, Any]) -> None:
        memory = self._memory
        if memory.n_since_phase and not state:
            logger.warning(
                'the checkpoint has no auxiliary memory: what was kept of %d policy phases is lost, and the '
                'next auxiliary phase comes as many later',
                memory.n_since_phase,
            )
            memory.n_since_phase = 0
        # aux_freq may be less than it was
        memory.n_since_phase = min(memory.n_since_phase, self.cfg.learn.aux_freq - 1)
        n_filled, oldest = self._ring if memory.is_ring else (0, 0)
        # with an aux_freq of 1 each phase starts from an empty memory
        if state and not memory.is_ring and not memory.n_since_phase:
            logger.warning('policy.learn.aux_freq is 1: the auxiliary memory of the checkpoint is not used')
            state = {}
        memory.load_state_dict(state, n_filled or memory.n_since_phase, self.device, oldest)
