"""Policy 'dqn': deep Q-learning (Mnih et al. 2015) with double-Q targets (van Hasselt et al. 2016, arXiv:1509.06461).

The actor of the registered model is the network: its logits [..., A] are the Q-values. The critic is neither run nor moved.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from zoo.config.parts import part_of
from zoo.config.schedule import Linear, Probability, Schedule, schedule_value
from zoo.core.data import Metrics, Rollout, Sample, map_tensors, split_rows
from zoo.core.registry import OPTIMIZER_REGISTRY, POLICY_REGISTRY
from zoo.model.parameters import actor_parameters
from zoo.policy.base import CollectConfig, LearnConfig, PolicyConfig
from zoo.policy.network_policy import NetworkPolicy
from zoo.policy.q_learning import TargetNetwork, check_n_return, n_choice_of, n_step_transition, q_step
from zoo.policy.samples import valid_weight
from zoo.rl_utils.categorical import Categorical
from zoo.rl_utils.exploration import epsilon_greedy

OptimizerSpec = part_of(OPTIMIZER_REGISTRY, 'policy.learn.optimizer')


class DQNLearnConfig(LearnConfig):
    """Section `policy.learn` of 'dqn'; each draw of the buffer is learned from once, in minibatches."""

    learning_rate: Schedule = Field(1e-3, description="the optimiser's step size (1e-4 to 3e-3 is usual)")
    optimizer: OptimizerSpec = Field('adam', description='how parameters move, by name or as {type: name, its options}')  # type: ignore[valid-type]
    grad_clip: float | None = Field(10.0, gt=0, description='limit of the gradient norm; null: off')
    double: bool = Field(
        True, description='the network picks the action that the target network values; false: the latter'
    )
    target_freq: int = Field(200, ge=1, description='gradient steps between moves of the target network')
    tau: float = Field(1.0, gt=0, le=1, description='share of the way that it then moves; .005 with target_freq 1')
    huber_delta: float | None = Field(
        1.0, gt=0, description='error beyond which its loss is linear; null: squared error'
    )


class DQNCollectConfig(CollectConfig):
    """Section `policy.collect` of 'dqn'."""

    n_step: Annotated[int, Field(ge=1)] | None = Field(8, description='env steps per rollout and env (1 to 64)')
    discount_factor: float = Field(0.99, ge=0, le=1, description='gamma, per env step')
    n_return: int = Field(1, ge=1, description='steps whose rewards a target counts, fewer at ends; 3 is usual')
    eps: Probability = Field(
        Linear(start=1, end=0.05, over=10_000),
        description='probability of a random action, by env steps before the rollout',
    )


class DQNConfig(PolicyConfig):
    """Section `policy` of 'dqn'."""

    type: str = Field('dqn', description='registered name of the policy')
    learn: DQNLearnConfig = DQNLearnConfig()
    collect: DQNCollectConfig = DQNCollectConfig()


@POLICY_REGISTRY.register('dqn')
class DQNPolicy(NetworkPolicy):
    """Deep Q-learning, epsilon-greedy.

    It leaves |target - Q| in the column 'priority' of each batch, for buffers that draw by it.
    """

    config: ClassVar[type[PolicyConfig]] = DQNConfig
    announces_gradients: ClassVar[bool] = True
    writes_priority: ClassVar[bool] = True

    @classmethod
    def default_buffer(cls) -> str:
        return 'replay'

    def _build(self) -> None:
        super()._build()
        self._dist = Categorical(n_choice_of(self._model, self.action_space))  # whatever the model's own may be

    def check_fields(self) -> None:
        check_n_return(self.cfg.collect)

    def _behaviour(self, logit: Tensor, env_step: int | None = None) -> Tensor:
        eps = schedule_value(self.cfg.collect.eps, self._collect_step if env_step is None else env_step)
        return epsilon_greedy(self._dist, logit, epsilon=eps)

    def _stochastic(self, logit: Tensor) -> Tensor:
        """With the epsilon that its schedule ends with."""
        return self._behaviour(logit, sys.maxsize)

    def _get_train_sample(self, rollout: Rollout) -> Sample:
        rollout, cfg = rollout.to(self.device), self.cfg.collect
        columns = {name: rollout.data[name] for name in ('obs', 'action')}
        columns |= n_step_transition(rollout, cfg.discount_factor, cfg.n_return)
        if 'is_reset' in rollout.data:
            columns['weight'] = valid_weight(rollout.data['is_reset'], self.run.ranks)
        return map_tensors(lambda x: x.flatten(0, 1), columns)  # [T, B] -> [N]

    def _init_learn(self) -> None:
        self._optimizer = self._make_optimizer(actor_parameters(self._model, self.obs_space))
        self._target = TargetNetwork(self._model, self.cfg.learn.target_freq, self.cfg.learn.tau)

    def _follow_model(self) -> None:
        self._target.begin()

    def _forward_learn(self, batch: Any) -> Metrics:
        cfg, drawn, steps = self.cfg.learn, map_tensors(lambda x: x.to(self.device), batch), []
        self._optimizer.lr = schedule_value(cfg.learning_rate, self._env_step)
        for part in split_rows(drawn, cfg.batch_size or len(drawn['action'])):
            with self._mode.steps(self.seed, self._target.n_step):
                steps.append(q_step(self._model, self._target.model, self._optimizer, part, cfg))
            self._target.follow()
        found, errors = zip(*steps, strict=True)
        batch['priority'] = torch.cat(errors)  # read by buffers that draw by it
        if hasattr(self._model, 'update_normalizer'):  # a model need not keep any
            self._model.update_normalizer(drawn['obs'], drawn.get('weight'))
        rates = {'learning_rate': self._optimizer.lr, 'eps': schedule_value(self.cfg.collect.eps, self._env_step)}
        rates['skipped_step'] = self._optimizer.count_skipped(limit=10)  # in a row
        means = {name: torch.stack([step[name] for step in found]).mean() for name in found[0]}
        return means | {name: torch.tensor(x, dtype=torch.float64) for name, x in rates.items()}

    def _monitor_vars_learn(self) -> list[str]:
        return ['loss', 'q', 'td_error', 'grad_norm', 'learning_rate', 'eps', 'skipped_step']

    def _get_train_iter(self) -> int:
        return self._target.n_step

    def _state_dict_learn(self) -> dict[str, Any]:
        return {'optimizer': self._optimizer.state_dict(), 'target': self._target.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state['optimizer'])
        self._target.load_state_dict(state['target'])
