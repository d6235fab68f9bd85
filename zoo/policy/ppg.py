"""Policy 'ppg': phasic policy gradient (Cobbe et al. 2020, arXiv:2009.04416)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from tensordict import TensorDict
from torch import Tensor

from zoo.config.schedule import Schedule, schedule_value
from zoo.core.errors import UserError
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.transfer import send
from zoo.policy.actor_critic import ActorCriticPolicy
from zoo.policy.aux_memory import AuxMemory, Where
from zoo.policy.base import Metrics, PolicyConfig
from zoo.policy.config import ActorCriticLearnConfig, OnPolicyCollectConfig
from zoo.policy.metrics import explained_variance, mean_of
from zoo.policy.updates import StepConfig, aux_step, policy_step, ppo_step, value_step
from zoo.rl_utils.distribution import Logit, distribution_of
from zoo.rl_utils.optimizer import FlatAdam

logger = logging.getLogger(__name__)


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
    aux_memory: Where = Field(
        'device',
        description="where observations are kept for the auxiliary phase: the policy's device, cpu or disk "
        '(a nameless file in the folder for temporary files)',
    )
    policy_loss: Literal['clip', 'kl'] = Field(
        'clip', description='keep the policy phase near the old policy by clipping, or by a penalty on KL(old || new)'
    )
    kl_weight: float = Field(1.0, ge=0, description="factor of that penalty, for policy_loss 'kl'")
    value_weight: float = Field(0.5, ge=0, description="factor of the value loss where arch is 'shared'")
    value_norm: bool = Field(
        True,
        description='the critic and the auxiliary head predict returns normalised by their running mean and '
        'deviation; unless returns are of size 1, their loss drowns the cloning loss without it',
    )
    adv_norm: Literal['off', 'batch', 'minibatch'] = Field(
        'batch', description='normalise advantages over the rollout or each minibatch'
    )
    grad_clip: Annotated[float, Field(gt=0)] | None = Field(
        None, description='limit of the gradient norm, of actor and critic apart (unless shared); null: off'
    )


class PPGCollectConfig(OnPolicyCollectConfig):
    """Section `policy.collect` of PPG."""

    n_step: Annotated[int, Field(ge=1)] | None = Field(128, description='env steps per rollout and env')


class PPGConfig(PolicyConfig):
    """Section `policy` of PPG."""

    type: str = Field('ppg', description='registered name of the policy')
    learn: PPGLearnConfig = PPGLearnConfig()
    collect: PPGCollectConfig = PPGCollectConfig()


@POLICY_REGISTRY.register('ppg')
class PPGPolicy(ActorCriticPolicy):
    """Policy phases as in PPO, and every `aux_freq` of them an auxiliary phase.

    In that phase the policy's own value head (aux_value) and the critic learn the returns kept since the last one,
    while KL(old || new) holds the policy where it was. GAE reads the critic alone, aux_value feeds nothing.
    """

    config: ClassVar[type[PolicyConfig]] = PPGConfig
    draws_apart: ClassVar[bool] = True

    @classmethod
    def default_model(cls) -> str:
        return 'ppg'

    def _build(self) -> None:
        super()._build()
        cfg, name = self.cfg.learn, type(self._model).__name__
        for method in ('compute_aux', 'critic_parameters'):
            if not callable(getattr(self._model, method, None)):
                raise UserError(
                    f'model {name} has no {method}(), which policy {self.cfg.type!r} needs beside an '
                    "actor-critic's methods; see zoo.model.ppg, or use policy.model.type 'ppg'"
                )
        if self._joint and cfg.actor_epoch_per_collect != cfg.critic_epoch_per_collect:
            raise UserError(
                f'policy.learn.actor_epoch_per_collect is {cfg.actor_epoch_per_collect} and '
                f'critic_epoch_per_collect {cfg.critic_epoch_per_collect}, but actor and critic of this '
                f"{name} share parameters and learn together; set both alike, or use arch 'dual' "
                "or 'detach'"
            )

    @property
    def _joint(self) -> bool:
        return bool(getattr(self._model, 'joint', False))

    def _init_learn(self) -> None:
        self._memory = AuxMemory(self.cfg.learn.aux_freq, self.cfg.learn.aux_memory)
        self._policy_phase = 0  # since the last auxiliary phase
        super()._init_learn()

    def _set_env_step(self, env_step: int) -> None:
        super()._set_env_step(env_step)
        own = self.cfg.learn.aux_learning_rate
        self._rates['aux_learning_rate'] = (
            self._rates['learning_rate'] if own is None else schedule_value(own, env_step)
        )

    def _make_optimizers(self) -> dict[str, FlatAdam]:
        """Parameters of actor and critic lie in buffers of their own, so that one's momentum never moves the other."""
        critic = set() if self._joint else {name for name, _ in self._model.critic_parameters()}
        named = list(self._model.named_parameters())
        groups = {
            'actor': [(name, p) for name, p in named if name not in critic],
            'critic': [(name, p) for name, p in named if name in critic],
        }
        optimizers = {name: FlatAdam(group, eps=self.cfg.learn.adam_eps) for name, group in groups.items() if group}
        return optimizers | {f'aux_{name}': optimizer.sibling() for name, optimizer in optimizers.items()}

    def _steps_per_env_step(self) -> list[float]:
        cfg, n_policy, n_value = self.cfg.learn, self.reuse['policy'], self.reuse['value']
        critic = [] if self._joint else [n_value * cfg.critic_epoch_per_collect / cfg.batch_size]
        return [
            n_policy * cfg.actor_epoch_per_collect / cfg.batch_size,
            *critic,
            n_policy * cfg.aux_train_epoch / cfg.aux_batch_size,
        ]

    def _forward_learn(self, batch: TensorDict | dict[str, TensorDict]) -> Metrics:
        """Policy phase and value phase, over one batch or over {'policy': batch, 'value': batch}, or one of them."""
        parts = batch if isinstance(batch, dict) else {'policy': batch, 'value': batch}
        if self._joint and isinstance(batch, dict):
            raise UserError(
                'policy and value were drawn apart, but actor and critic of this '
                f"{type(self._model).__name__} learn together; use buffer.type 'replay' or 'rollout'"
            )
        for optimizer in self._optimizers.values():
            optimizer.lr = self._rates['learning_rate']
        metrics, n_epoch = {}, 0
        if 'value' in parts:
            metrics['explained_variance'] = explained_variance(parts['value'])
            self._update_value_statistics(parts['value'])
        if 'policy' in parts:
            losses, n_epoch = self._policy_phase_over(parts['policy'])
            metrics |= losses
            self._memory.append(parts['policy'])
            self._policy_phase += 1
        if 'value' in parts and not self._joint:
            step = partial(self._steps.take, value_step, self._optimizers['critic'], self._step_config())
            metrics |= self._train_epochs(parts['value'], self.cfg.learn.critic_epoch_per_collect, step)[0]
        self._update_obs_statistics(parts['policy'] if 'policy' in parts else parts['value'])
        metrics = {**self._learner_metrics(n_epoch), **metrics}
        if 'policy' not in parts:
            del metrics['n_epoch']  # of the policy phase; a 0 would enter the mean over the batches of a round
        return metrics

    def _policy_phase_over(self, batch: TensorDict) -> tuple[Metrics, int]:
        cfg = self.cfg.learn
        config = self._step_config(cfg.value_weight, cfg.kl_weight if cfg.policy_loss == 'kl' else None)
        step = ppo_step if self._joint else policy_step
        return self._train_epochs(
            batch, cfg.actor_epoch_per_collect, partial(self._steps.take, step, self._optimizers['actor'], config)
        )

    def learn_aux(self) -> Metrics:
        """The auxiliary phase, when it is due; else nothing.

        Its minibatches are random rows of all that was kept (as published they are random whole segments). Metrics
        are means over its steps, and the KL from the policy as the phase began: aux_kl_before before its first
        step, of the first minibatch (0 but for rounding), aux_kl_after after the last, over all rows.
        """
        cfg = self.cfg.learn
        if self._policy_phase < cfg.aux_freq:
            return {}
        optimizers = [o for name, o in self._optimizers.items() if name.startswith('aux_')]
        for optimizer in optimizers:
            optimizer.lr = self._rates['aux_learning_rate']
        config = StepConfig(bc_weight=cfg.aux_bc_weight, grad_clip=cfg.grad_clip)
        logit_old = self._logits_of_memory()
        metrics: list[Metrics] = []
        for _ in range(cfg.aux_train_epoch):
            order = torch.randperm(
                len(self._memory), generator=self._order_generator, device=self._order_generator.device
            )
            for index in send(order, self._memory.device).split(cfg.aux_batch_size):
                minibatch = self._aux_minibatch(index, logit_old)
                metrics.append(self._steps.take(aux_step, optimizers, config, minibatch))
        self._train_iter += len(metrics)
        for optimizer in optimizers:  # here, where the gradient is still theirs, so that an error names what broke
            optimizer.count_skipped(cfg.nonfinite_limit)
        kl_after = self._kl_to(logit_old)
        self._memory.clear()
        self._policy_phase = 0
        return {
            **{name: mean_of(metrics, name) for name in metrics[0]},
            'aux_kl_before': metrics[0]['behavioral_cloning_loss'],
            'aux_kl_after': kl_after,
        }

    @torch.no_grad()
    def _aux_minibatch(self, index: Tensor, logit_old: TensorDict) -> TensorDict:
        minibatch = self._memory.rows(index, self.device)
        minibatch['logit'] = logit_old[send(index, self.device)]['logit']
        if self.cfg.learn.value_norm:
            minibatch['return_'] = self._normalizers['value'].standardize(minibatch['return_'])
        return minibatch

    @torch.no_grad()
    def _logits_of_memory(self) -> TensorDict:
        """pi_old of every row kept, found in pieces as the phase begins: [M] with 'logit'."""
        pieces = [
            TensorDict({'logit': self._model.compute_actor(rows['obs'])}, batch_size=rows.batch_size)
            for _, rows in self._pieces()
        ]
        return TensorDict.cat(pieces)

    @torch.no_grad()
    def _kl_to(self, logit_old: TensorDict) -> Tensor:
        """mean(KL(old || now)) over all rows kept."""
        total = torch.zeros((), device=self.device)
        for at, rows in self._pieces():
            logit: Logit = self._model.compute_actor(rows['obs'])
            kl = distribution_of(logit).kl(logit_old[at]['logit'], logit)
            total += (kl * rows['weight'] if 'weight' in rows.keys() else kl).sum()
        return total / len(self._memory)

    def _pieces(self) -> Iterator[tuple[slice, TensorDict]]:
        """All rows kept, in order, in pieces of a minibatch."""
        for start in range(0, len(self._memory), self.cfg.learn.aux_batch_size):
            at = slice(start, start + self.cfg.learn.aux_batch_size)
            yield at, self._memory.rows(at, self.device)

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), 'aux_learning_rate', *(() if self._joint else ('value_grad_norm',))]

    def _get_batch_size(self) -> dict[str, int]:
        return dict.fromkeys(('policy', 'value'), self.cfg.learn.batch_size)

    def _state_dict_learn(self) -> dict[str, Any]:
        return {**super()._state_dict_learn(), 'policy_phase': self._policy_phase}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self._policy_phase = state['policy_phase']

    def memory_state_dict(self) -> dict[str, Any]:
        return self._memory.state_dict()

    def load_memory_state_dict(self, state: dict[str, Any]) -> None:
        if self._policy_phase and not state:
            logger.warning(
                'the checkpoint has no auxiliary memory: what was kept of %d policy phases is lost, and the '
                'next auxiliary phase comes as many later',
                self._policy_phase,
            )
            self._policy_phase = 0
        self._policy_phase = min(self._policy_phase, self.cfg.learn.aux_freq - 1)  # aux_freq may be less than it was
        if state and not self._policy_phase:  # it is 1 now: each phase starts from an empty memory
            logger.warning('policy.learn.aux_freq is 1: the auxiliary memory of the checkpoint is not used')
            state = {}
        self._memory.load_state_dict(state, self._policy_phase, self.device)
