"""Policy 'ppg': phasic policy gradient (Cobbe et al. 2021, arXiv:2009.04416)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.backend.executor import Found, Step, StepPlan, forward_rows
from zoo.config.components import make_component, name_of
from zoo.core.data import PASS_CELLS, Columns, Metrics, Minibatch, leaves, send, split_rows, to_device
from zoo.core.errors import UserError
from zoo.core.registry import PHASE_REGISTRY, POLICY_REGISTRY
from zoo.model.check import parameters_by_role
from zoo.policy.actor_critic import ActorCriticPolicy
from zoo.policy.aux_memory import AuxMemory
from zoo.policy.config import ActorCriticPolicyConfig, OnPolicyCollectConfig, PolicyConfig
from zoo.policy.gradient_steps import MSE, GradientStep, descend, n_output_of, policy_step, ppo_step, value_loss_terms
from zoo.policy.metrics import explained_variance
from zoo.policy.ppg_config import PPGLearnConfig as PPGLearnConfig, ppg_problems, warn_of_short_run
from zoo.rl_utils import kernels
from zoo.rl_utils.check import Number
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import FlatOptimizer
from zoo.rl_utils.ppo import added, loss_mean, value_loss_of

logger = logging.getLogger(__name__)


class ValueNumbers(NamedTuple):
    """The numbers of a step on the critic, alone or in the auxiliary phase."""

    clip_ratio: Number = 0.2  # not read in the auxiliary phase
    grad_clip: float | None = None
    value_loss: Callable[..., Tensor] = MSE  # in the auxiliary phase only this, or that of a predicted distribution
    value_weight: Number = 1.0  # factor of value_loss
    forward: Callable[..., Any] = forward_rows
    bc_weight: Number = 1.0  # factor of KL(old || new) in the auxiliary phase


AuxNumbers = ValueNumbers  # the former name in the auxiliary phase


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
    model: nn.Module, dist: ActionDist, optimizers: Sequence[FlatOptimizer], minibatch: Minibatch, numbers: ValueNumbers
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
    output, minibatch = numbers.forward(model, 'compute_aux', minibatch)
    auxiliary_loss, cloning_loss = joint_loss(dist, output, minibatch)
    value_loss, of_value = value_loss_terms(output, minibatch, numbers.value_loss, numbers.clip_ratio)
    loss = added(auxiliary_loss + value_loss * numbers.value_weight, numbers.bc_weight, cloning_loss)
    return {
        'auxiliary_loss': auxiliary_loss.detach(),
        'aux_value_loss': of_value['value_loss'],
        'behavioral_cloning_loss': cloning_loss.detach(),
        'aux_grad_norm': descend(optimizers, loss, numbers.grad_clip),
    }


def joint_loss(dist: ActionDist, output: dict[str, Tensor], minibatch: Minibatch) -> tuple[Tensor, Tensor]:
    """0.5 mean((R - aux_value)^2) and mean(KL(old || new)), 0-dim, from the output of the model's `compute_aux`."""
    return_, weight = minibatch['return_'], minibatch.get('weight', None)
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
    """The gradient steps, see zoo.policy.gradient_steps; joint_step: for arch 'shared', whose trunk learns from both losses."""

    def _forward_learn(self, batch: Columns) -> Metrics:
        """Runs one iteration of the policy phase and, after N_pi of them, the auxiliary phase (Cobbe et al. 2021, algorithm 1).

        Args: batch: for both phases, or {'policy': batch, 'value': batch}, or one of these.
        """
        parts = self._begin_parts(batch)
        if self.cfg.learn.aux_learning_rate is None:  # an adaptive rate may differ from draw to draw
            self.rates['aux_learning_rate'] = self.rates['learning_rate']
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
        if self.memory.n_since_phase < self.cfg.learn.aux_freq:  # more after a resume with a smaller aux_freq
            return {}
        metrics = self._aux_phase()
        self.memory.end_phase()
        for option in self.options:
            option.policy_moved()
        return metrics

    def _aux_phase(self) -> Metrics:
        """Runs E_aux passes over the memory, in minibatches of random rows. Departs: published with random whole segments."""
        cfg, memory, fixed = self.cfg.learn, self.memory, self.objective.fixed
        kept = memory.columns()
        logit_old = self._over_memory(kept, 'compute_actor', 'logit')  # pi_old for all states in B
        return_ = self._aux_target(kept)
        columns = {**kept, 'return_': return_, 'logit': logit_old.view(*return_.shape, -1)}
        names = ('aux_actor', 'aux_critic') if self.phase.moves_critic else ('aux_actor',)
        optimizers = [self.optimizers[name] for name in names if name in self.optimizers]
        for optimizer in optimizers:
            optimizer.lr = self.rates['aux_learning_rate']
        order = self.passes.permutations(cfg.aux_train_epoch, columns, memory.device)
        is_small = sum(x.numel() for _, x in leaves(columns['obs'])) <= PASS_CELLS
        plan = StepPlan(columns, order, self._aux_rows, self.device, gather=memory.device == self.device and is_small)
        numbers = ValueNumbers(
            0.0, fixed.grad_clip, self._aux_value_loss, self._value_weight, fixed.forward, cfg.aux_bc_weight
        )
        metrics = self.passes.steps(self.phase.step, optimizers, plan, numbers)
        for optimizer in optimizers:  # here, while the gradient is still theirs, so that errors name the parameter
            optimizer.count_skipped(cfg.nonfinite_limit)
        kl = {'aux_kl_before': metrics['behavioral_cloning_loss'][0], 'aux_kl_after': self._kl_from_old(columns)}
        return {name: x.mean() for name, x in metrics.items()} | kl

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
        for found, rows in self._pieces(columns, 'compute_actor'):
            kl = self.dist.kl(rows['logit'], found['logit'])
            total += (kl * rows['weight'] if 'weight' in rows else kl).sum()
        return total / columns['return_'].numel()

    @torch.no_grad()
    def _pieces(self, columns: Columns, method: str) -> Iterator[tuple[dict[str, Tensor], Columns]]:
        """Yields the output of a method of the model, and its rows, for at most a minibatch of the memory at once."""
        for part in split_rows(columns, self._aux_rows):
            yield self.objective.fixed.forward(self._model, method, to_device(part, self.device))

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
        self.memory = AuxMemory(cfg.aux_freq)
        self.phase = make_component(PHASE_REGISTRY, cfg.phase)()
        self._aux_rows = max(cfg.aux_batch_size // self.samples.entry_len, 1)  # rows (or sequences) of a minibatch
        self._value_weight = 1.0 if cfg.value_weight is None else cfg.value_weight  # in value and auxiliary phase
        self._aux_value_loss = self.objective.value_loss if self.objective.n_value > 1 else MSE
        warn_of_short_run(self)
        super()._init_learn()
        if self.executor_name.startswith('native') and self.phase.step is not aux_step:
            logger.info('the auxiliary phase %r runs eagerly: C has only that of ppg', name_of(cfg.phase))

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

    def _monitor_vars_learn(self) -> list[str]:
        own = () if self._shares_network else ('value_grad_norm',)
        return list(dict.fromkeys((*super()._monitor_vars_learn(), 'aux_learning_rate', *own)))

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
        from zoo.policy.options.aux_memory import resumed_memory

        self.memory = resumed_memory(self.memory, state, self.cfg.learn.aux_freq, self.device)
