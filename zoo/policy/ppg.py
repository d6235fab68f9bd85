"""Policy 'ppg': phasic policy gradient (Cobbe et al. 2021, arXiv:2009.04416)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.backend.step import MSE, Found, GradientStep, LossSpec, Step, StepNumbers, StepPlan, n_output_of
from zoo.config.components import make_component, name_of
from zoo.core.data import PASS_CELLS, Columns, Metrics, Minibatch, leaves, send, split_rows, to_device
from zoo.core.errors import UserError
from zoo.core.registry import PHASE_REGISTRY, POLICY_REGISTRY
from zoo.model.check import parameters_by_role
from zoo.policy.actor_critic import ActorCriticPolicy
from zoo.policy.aux_memory import AuxMemory
from zoo.policy.config import ActorCriticPolicyConfig, OnPolicyCollectConfig, PolicyConfig
from zoo.policy.metrics import explained_variance
from zoo.policy.ppg_config import PPGLearnConfig as PPGLearnConfig, ppg_problems, warn_of_short_run
from zoo.policy.ppo import descend, policy_step, ppo_step, value_loss_terms
from zoo.rl_utils import kernels
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import FlatOptimizer
from zoo.rl_utils.ppo import added, loss_mean, value_loss_of

logger = logging.getLogger(__name__)


@partial(GradientStep, kind='VALUE')
def value_step(
    model: nn.Module,
    dist: ActionDist,
    optimizers: Sequence[FlatOptimizer],
    minibatch: Minibatch,
    loss: LossSpec,
    numbers: StepNumbers,
) -> Found:
    """One step of the critic alone on value_loss; returns value_loss (, value_clipfrac) and value_grad_norm."""
    if n_output_of(loss.value_loss) == 1:
        method = 'compute_critic'
    else:
        method = 'compute_critic_output'
    output, minibatch = loss.forward(model, method, minibatch)
    value, metrics = value_loss_terms(output, minibatch, loss.value_loss, numbers.clip_ratio)
    total = value * numbers.value_weight
    return {**metrics, 'value_grad_norm': descend(optimizers, total, numbers.grad_clip)}


@partial(GradientStep, kind='AUX')
def aux_step(
    model: nn.Module,
    dist: ActionDist,
    optimizers: Sequence[FlatOptimizer],
    minibatch: Minibatch,
    loss: LossSpec,
    numbers: StepNumbers,
) -> Metrics:
    """One step of PPG's auxiliary phase.

    loss = auxiliary_loss + bc_weight * behavioral_cloning_loss + value_weight * aux_value_loss

    auxiliary_loss is that of the value head on the policy's trunk, aux_value_loss that of the critic, both
    0.5 * mean((R - V)^2) unless the critic predicts a distribution; the cloning loss is mean(KL(old || new)).

    Args: minibatch: its return_ in the unit of the critic's output; optimizers: one for each buffer
      of parameters.
    Returns: detached 0-dim tensors auxiliary_loss, behavioral_cloning_loss, aux_value_loss, aux_grad_norm.
    Source: Cobbe et al. 2021, arXiv:2009.04416, algorithm 1.
    """
    output, minibatch = loss.forward(model, 'compute_aux', minibatch)
    auxiliary_loss, cloning_loss = joint_loss(dist, output, minibatch)
    value_loss, value_metrics = value_loss_terms(output, minibatch, loss.value_loss, numbers.clip_ratio)
    total = added(auxiliary_loss + value_loss * numbers.value_weight, numbers.bc_weight, cloning_loss)
    return {
        'auxiliary_loss': auxiliary_loss.detach(),
        'aux_value_loss': value_metrics['value_loss'],
        'behavioral_cloning_loss': cloning_loss.detach(),
        'aux_grad_norm': descend(optimizers, total, numbers.grad_clip),
    }


def joint_loss(dist: ActionDist, output: dict[str, Tensor], minibatch: Minibatch) -> tuple[Tensor, Tensor]:
    """0.5 mean((R - aux_value)^2) and mean(KL(old || new)), 0-dim, from the output of the model's `compute_aux`."""
    return_ = minibatch['return_']
    weight = minibatch.get('weight', None)
    if kernels.ENABLED and kernels.reach(output['logit']):
        from zoo.rl_utils.losses import ppg_data, ppg_joint_error

        data = ppg_data(output['logit'], minibatch['logit'], None, output['aux_value'], return_, return_, weight)
        return ppg_joint_error(data, use_value_clip=False, dist=dist)
    auxiliary_loss = value_loss_of(output['aux_value'], return_, weight)
    return auxiliary_loss, loss_mean(dist.kl(minibatch['logit'], output['logit']), weight)


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


def are_parts(batch: Columns) -> bool:
    """Whether a batch is {'policy': samples, 'value': samples}, or one of these, rather than samples."""
    return set(batch.keys()) <= {'policy', 'value'}


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
    """The gradient steps, see zoo.policy.ppo; joint_step: for arch 'shared', whose trunk learns from both losses."""

    def _forward_learn(self, batch: Columns) -> Metrics:
        """One iteration of the policy phase and, after N_pi of them, the auxiliary phase (Cobbe et al. 2021, algorithm 1).

        The run calls this once per batch: a rollout, or a draw from a buffer. A run may be resumed between any two calls, so the
        memory counts the batches up to N_pi.
        Args: batch: for both phases, or {'policy': batch, 'value': batch}, or one of these.
        """
        parts = self._begin_parts(batch)
        metrics: Metrics = {}
        if 'policy' in parts:
            metrics |= self._policy_phase(parts['policy'])
            self.memory.append(parts['policy'])  # all (s, V_targ) to B
        if 'value' in parts:
            metrics |= self._value_phase(parts['value'])
        if not self._shares_network and metrics.keys() >= {'total_loss', 'value_loss'}:
            metrics['total_loss'] = metrics['total_loss'] + self._value_weight * metrics['value_loss']
        metrics |= self._end_update(next(iter(parts.values())))
        return metrics | self.learn_aux()

    def learn_aux(self) -> Metrics:
        """The auxiliary phase, if it is due: E_aux passes over the memory B, in minibatches of random rows.

        Departs: published with random whole segments.
        Returns: means over its steps, and the KL from the policy at the start of the phase: aux_kl_before, on the first
          minibatch before the first step (0 except for rounding), and aux_kl_after, on all rows after the last step; {} if
          the phase is not due.
        """
        if self.memory.n_since_phase < self.cfg.learn.aux_freq:  # more after a resume with a smaller aux_freq
            return {}
        columns = self._aux_columns()
        optimizers = self._aux_optimizers()
        loss = self.loss._replace(value_loss=self._aux_value_loss)
        steps = self.passes.take(self.phase.step, optimizers, self._aux_plan(columns), loss, self._aux_numbers())
        for optimizer in optimizers:  # here, while the gradient is still theirs, so that errors name the parameter
            optimizer.count_skipped(self.cfg.learn.nonfinite_limit)
        metrics = {name: x.mean() for name, x in steps.items()}
        metrics['aux_kl_before'] = steps['behavioral_cloning_loss'][0]
        metrics['aux_kl_after'] = self._kl_from_old(columns)
        self.memory.end_phase()
        self.policy_moved()
        return metrics

    def _policy_phase(self, batch: Columns) -> Metrics:
        """E_pi passes of the policy over a batch; they also train the critic if actor and critic share a network."""
        numbers = self._step_numbers()
        for plan in self.passes.over(batch, self.cfg.learn.actor_epoch_per_collect, self.cfg.learn.batch_size):
            self.passes.take(self._policy_step, [self.optimizers['actor']], plan, self.loss, numbers)
        return self._policy_metrics(batch, self.passes.trained(), self._policy_step, numbers)

    def _value_phase(self, batch: Columns) -> Metrics:
        """E_V passes of the critic over a batch; none if actor and critic share a network."""
        metrics = {'explained_variance': explained_variance(batch)}
        if self._shares_network:
            return metrics
        cfg = self.cfg.learn
        numbers = self._step_numbers()._replace(value_weight=self._value_weight)
        for plan in self.passes.over(batch, cfg.critic_epoch_per_collect, cfg.critic_batch_size or cfg.batch_size):
            self.passes.take(self.value_step, [self.optimizers['critic']], plan, self.loss, numbers)
        return metrics | self.passes.trained().metrics

    def _aux_columns(self) -> dict[str, Any]:
        """The memory B with the outputs of the policy before the phase, 'logit', and with the targets, 'return_'."""
        stored = self.memory.columns()
        logit_old = self._over_memory(stored, 'compute_actor', 'logit')  # pi_old for all states in B
        return_ = self._aux_target(stored)
        return {**stored, 'return_': return_, 'logit': logit_old.view(*return_.shape, -1)}

    def _aux_optimizers(self) -> list[FlatOptimizer]:
        """The optimisers of the auxiliary phase, with its learning rate."""
        names = ['aux_actor']
        if self.phase.moves_critic and 'aux_critic' in self.optimizers:
            names.append('aux_critic')
        optimizers = [self.optimizers[name] for name in names]
        for optimizer in optimizers:
            optimizer.lr = self.rates['aux_learning_rate']
        return optimizers

    def _aux_plan(self, columns: Columns) -> StepPlan:
        """The minibatches of an auxiliary phase; those of a large memory are gathered one by one."""
        device = self.memory.device
        order = self.passes.permutations(self.cfg.learn.aux_train_epoch, columns, device)
        n_cell = sum(x.numel() for _, x in leaves(columns['obs']))
        gathers = device == self.device and n_cell <= PASS_CELLS
        return StepPlan(columns, order, self._aux_rows, self.device, gather=gathers)

    def _aux_numbers(self) -> StepNumbers:
        return StepNumbers(
            clip_ratio=0.0,  # its value loss has no clip
            value_weight=self._value_weight,
            bc_weight=self.cfg.learn.aux_bc_weight,
            grad_clip=self.cfg.learn.grad_clip,
        )

    def _aux_target(self, kept: Columns) -> Tensor:
        """Value targets of the auxiliary phase for all rows in the memory, in the unit of the critic's output."""
        return_: Tensor = kept['return_']
        if self.phase.target == 'critic':
            return self._over_memory(kept, 'compute_critic', 'value').view_as(return_)
        return self.samples.units.standardize(send(return_, self.device)).to(return_.device)

    def _over_memory(self, kept: Columns, method: str, output: str) -> Tensor:
        """Output of a method of the model for all rows in the memory, [M, ...], on the memory's device."""
        return torch.cat([found[output] for found, _ in self._pieces(kept, method)]).to(self.memory.device)

    def _kl_from_old(self, columns: Columns) -> Tensor:
        """mean(KL(old || now)) over all rows in the memory; column 'logit' is of the old policy."""
        total = torch.zeros((), device=self.device)
        for found, piece in self._pieces(columns, 'compute_actor'):
            rows, _ = self.samples.rows_once(piece)
            kl = self.dist.kl(rows['logit'], found['logit'])
            total += (kl * rows['weight'] if 'weight' in rows else kl).sum()
        return total / columns['return_'].numel()

    @torch.no_grad()
    def _pieces(self, columns: Columns, method: str) -> Iterator[tuple[dict[str, Tensor], Columns]]:
        """Yields the output of a method of the model, and its entries, for at most a minibatch of the memory at once."""
        for part in split_rows(columns, self._aux_rows):
            piece = to_device(part, self.device)
            yield self._execution.executor.outputs(method, piece, self.loss), piece

    @classmethod
    def default_model(cls) -> str:
        return 'ppg'

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        yield from ppg_problems(self, self._shares_network, self._batch_size)

    @property
    def _shares_network(self) -> bool:
        return bool(getattr(self._model, 'joint', False))

    def _init_learn(self) -> None:
        cfg = self.cfg.learn
        if self.memory is None:
            self.memory = AuxMemory(cfg.aux_freq)
        self.phase = make_component(PHASE_REGISTRY, cfg.phase)()
        self._aux_rows = max(cfg.aux_batch_size // self.samples.entry_len, 1)  # rows (or sequences) of a minibatch
        # factor of the critic's loss in the value phase and in the auxiliary phase; published: 1
        if cfg.value_weight is None:
            self._value_weight = 1.0
        else:
            self._value_weight = cfg.value_weight
        if self.objective.n_value > 1:
            self._aux_value_loss = self.objective.value_loss
        else:
            self._aux_value_loss = MSE
        warn_of_short_run(self)
        super()._init_learn()
        if self.executor_name.startswith('native') and self.phase.step is not aux_step:
            logger.info('the auxiliary phase %r runs eagerly: C has only that of ppg', name_of(cfg.phase))

    def _make_optimizers(self) -> dict[str, FlatOptimizer]:
        """Makes separate optimisers for actor and critic, so that the momentum of one never changes the other."""
        if self._shares_network:
            critic = set()
        else:
            critic = {name for name, _ in self._model.critic_parameters()}
        groups = parameters_by_role(self._model, critic)
        optimizers = {role: self._make_optimizer(named) for role, named in groups.items() if named}
        return optimizers | {f'aux_{name}': optimizer.sibling() for name, optimizer in optimizers.items()}

    def steps_per_env_step(self) -> float:
        cfg = self.cfg.learn
        reuse = self.run.reuse
        n_policy = reuse['policy'] * cfg.actor_epoch_per_collect
        n_step = n_policy / self._batch_size
        if not self._shares_network:
            n_critic = reuse['value'] * cfg.critic_epoch_per_collect
            n_step += n_critic / (cfg.critic_batch_size or self._batch_size)
        n_aux = reuse['policy'] * cfg.aux_train_epoch
        n_kept = cfg.aux_window or cfg.aux_freq  # batches in the memory
        return self._overlap * (n_step + n_aux * n_kept / cfg.aux_freq / cfg.aux_batch_size)

    def _begin_parts(self, batch: Columns) -> dict[str, Columns]:
        """Begins an update; returns the batches of the policy phase and of the value phase."""
        if not are_parts(batch):
            whole = self._begin_update(batch)
            return {'policy': whole, 'value': whole}
        if self._shares_network:
            raise UserError(
                'policy and value were drawn apart, but actor and critic of this '
                f"{type(self._model).__name__} learn together; use buffer.type 'replay' or 'rollout'"
            )
        return {name: self._begin_update(batch[name], name) for name in ('policy', 'value') if name in batch}

    def _begin_update(self, batch: Columns, phase: str | None = None) -> Columns:
        batch = super()._begin_update(batch, phase)
        if self.cfg.learn.aux_learning_rate is None:  # an adaptive rate may differ from draw to draw
            self.rates['aux_learning_rate'] = self.rates['learning_rate']
        return batch

    @property
    def _policy_step(self) -> Any:
        if self._shares_network:
            return self.joint_step
        return self.policy_step

    @property
    def _value_step(self) -> Any:
        if self._shares_network:
            return self.joint_step
        return self.value_step

    def _coefficients(self) -> dict[str, float]:
        is_half = self._shares_network and self.cfg.learn.value_weight is None  # as PPO's, in the policy phase
        return {'value_weight': 0.5 if is_half else self._value_weight, 'aux_bc_weight': self.cfg.learn.aux_bc_weight}

    def _monitor_vars_learn(self) -> list[str]:
        names = [*super()._monitor_vars_learn(), 'aux_learning_rate']
        if not self._shares_network:
            names.append('value_grad_norm')
        return list(dict.fromkeys(names))

    def _get_batch_size(self) -> Any:
        cfg = self.cfg.learn
        return {'policy': cfg.batch_size, 'value': cfg.critic_batch_size or cfg.batch_size}

    def _state_dict_learn(self) -> dict[str, Any]:
        return {**super()._state_dict_learn(), 'policy_phase': self.memory.n_since_phase}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.memory.n_since_phase = state['policy_phase']

    def memory_state_dict(self) -> dict[str, Any]:
        return self.memory.columns()

    def load_memory_state_dict(self, state: dict[str, Any]) -> None:
        from zoo.policy.options.resumed_memory import resumed_memory

        self.memory = resumed_memory(self.memory, state, self.cfg.learn.aux_freq, self.device)
