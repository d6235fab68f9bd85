"""Policy 'dqn': deep Q-learning (Mnih et al. 2015) with double-Q targets (van Hasselt et al. 2016, arXiv:1509.06461).

The actor of the registered model is the network: its logits [..., A] are the Q-values. The critic is neither run nor moved.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from zoo.config.parts import make_part, part_of
from zoo.config.schedule import Linear, Schedule, ScheduleOrZero, greatest, schedule_value
from zoo.core.data import Metrics, Obs, Rollout, Sample, State, Transition, keeps_state, map_tensors, split_rows
from zoo.core.errors import UserError
from zoo.core.registry import OPTIMIZER_REGISTRY, POLICY_REGISTRY
from zoo.core.spaces import Discrete
from zoo.model.parameters import critic_names
from zoo.policy.base import CollectConfig, LearnConfig, Policy, PolicyConfig
from zoo.policy.modes import ModelMode
from zoo.policy.noise import Noise
from zoo.policy.q_learning import TargetNetwork, n_step_transition, q_step
from zoo.policy.ranked import join_model
from zoo.policy.samples import ends_of, valid_weight
from zoo.rl_utils.categorical import Categorical
from zoo.rl_utils.exploration import epsilon_greedy

NONFINITE_LIMIT = 10  # gradient steps in a row that may be skipped as not finite before the run stops


class DQNLearnConfig(LearnConfig):
    """Section `policy.learn` of 'dqn'; each draw of the buffer is learned from once, in minibatches."""

    learning_rate: Schedule = Field(1e-3, description="the optimiser's step size (1e-4 to 3e-3 is usual)")
    optimizer: part_of(OPTIMIZER_REGISTRY, 'policy.learn.optimizer') = Field(  # type: ignore[valid-type]
        'adam', description='how parameters move, by name or as {type: name, its options}'
    )
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
    eps: ScheduleOrZero = Field(
        Linear(start=1, end=0.05, over=10_000),
        description='probability of a random action, by env steps before the rollout',
    )

    @model_validator(mode='after')
    def _eps_is_a_probability(self) -> DQNCollectConfig:
        if (most := greatest(self.eps)) > 1:
            raise ValueError(f'eps reaches {most:g} but is a probability; use 0 to 1, e.g. {{start: 1.0, end: 0.05}}.')
        return self


class DQNConfig(PolicyConfig):
    """Section `policy` of 'dqn'."""

    type: str = Field('dqn', description='registered name of the policy')
    learn: DQNLearnConfig = DQNLearnConfig()
    collect: DQNCollectConfig = DQNCollectConfig()


@POLICY_REGISTRY.register('dqn')
class DQNPolicy(Policy):
    """Deep Q-learning, epsilon-greedy.

    It leaves |target - Q| in the column 'priority' of each batch, for buffers that draw by it.
    """

    config: ClassVar[type[PolicyConfig]] = DQNConfig
    announces_gradients: ClassVar[bool] = True
    writes_priority: ClassVar[bool] = True

    @classmethod
    def default_model(cls) -> str:
        return 'vac'

    @classmethod
    def default_buffer(cls) -> str:
        return 'replay'

    def _build(self) -> None:
        if not isinstance(self.action_space, Discrete):
            kind = type(self.action_space).__name__
            raise UserError(
                f"policy 'dqn' is for Discrete actions, and those of the env are of a {kind}; use policy.type=ppo"
            )
        if keeps_state(self._model):
            raise UserError(
                f"policy 'dqn' is for a model without a memory, got {type(self._model).__name__}; use policy.type=ppo, or "
                'leave policy.model.recurrent out'
            )
        join_model(self._model, self.run.ranks)
        self._mode, self._dist = ModelMode(self._model, self.device), Categorical(self.action_space.n)

    def check_fields(self) -> None:
        n_step, n_return = self.cfg.collect.n_step, self.cfg.collect.n_return
        if n_step is not None and n_return > n_step:
            raise UserError(
                f'policy.collect.n_return is {n_return} but a rollout has {n_step} steps, after which no reward is known; '
                f'use n_return {n_step} or less, or policy.collect.n_step={n_return} or more'
            )

    def _init_collect(self) -> None:
        self._collect_step, self._noise = 0, Noise(self._dist, self.cfg.collect.n_step, self.seed, self.device)

    @property
    def _acts_without_critic(self) -> bool:
        return getattr(self._forward_collect, '__func__', None) is DQNPolicy._forward_collect

    def _begin_rollout(self, collect_iter: int, env_step: int | None = None) -> None:
        super()._begin_rollout(collect_iter, env_step)
        self._noise.begin(collect_iter)

    def _set_collect_step(self, env_step: int) -> None:
        self._collect_step = env_step

    def _q(self, obs: Obs) -> Tensor:
        return self._model.compute_actor(map_tensors(lambda x: x.to(self.device), obs))

    def _forward_collect(self, obs: Obs, state: State = None) -> dict[str, Any]:
        q = self._q(obs)
        logit = epsilon_greedy(self._dist, q, epsilon=schedule_value(self.cfg.collect.eps, self._collect_step))
        return {'action': self._dist.sample(logit, self._noise.row(len(q), self._first_env))}

    @torch.inference_mode()
    def _forward_eval(self, obs: Obs, state: State = None) -> dict[str, Any]:
        return {'action': self._q(obs).argmax(-1)}

    @torch.inference_mode()
    def _forward_sample(self, obs: Obs, state: State, generator: torch.Generator | None) -> dict[str, Any]:
        """Epsilon-greedy, with the epsilon that its schedule ends with."""
        q = self._q(obs)
        logit = epsilon_greedy(self._dist, q, epsilon=schedule_value(self.cfg.collect.eps, sys.maxsize))
        return {'action': self._dist.sample(logit, self._dist.noise((len(q),), generator, self.device))}

    def _process_transition(self, obs: Obs, output: dict[str, Any], timestep: Any) -> Transition:
        return {'obs': obs, 'action': output['action'], **ends_of(timestep)}

    def _get_train_sample(self, rollout: Rollout) -> Sample:
        rollout, cfg = rollout.to(self.device), self.cfg.collect
        columns = {name: rollout.data[name] for name in ('obs', 'action')}
        columns |= n_step_transition(rollout, cfg.discount_factor, cfg.n_return)
        if 'is_reset' in rollout.data:
            columns['weight'] = valid_weight(rollout.data['is_reset'], self.run.ranks)
        return map_tensors(lambda x: x.flatten(0, 1), columns)  # [T, B] -> [N]

    def _init_learn(self) -> None:
        critic = critic_names(self._model, self.obs_space)
        named = [(name, p) for name, p in self._model.named_parameters() if name not in critic]
        if not any(p.requires_grad for _, p in named):
            raise UserError(
                "policy.learn.freeze leaves nothing to train of the actor, which is all that policy 'dqn' trains; freeze fewer"
            )
        self._optimizer = make_part(OPTIMIZER_REGISTRY, self.cfg.learn.optimizer)(named)
        self._optimizer.ranks = self.run.ranks
        self._target = TargetNetwork(self._model, self.cfg.learn.target_freq, self.cfg.learn.tau)
        self._env_step = 0

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
        rates['skipped_step'] = self._optimizer.count_skipped(NONFINITE_LIMIT)
        means = {name: torch.stack([step[name] for step in found]).mean() for name in found[0]}
        return means | {name: torch.tensor(x, dtype=torch.float64) for name, x in rates.items()}

    def _monitor_vars_learn(self) -> list[str]:
        return ['loss', 'q', 'td_error', 'grad_norm', 'learning_rate', 'eps', 'skipped_step']

    def _set_env_step(self, env_step: int) -> None:
        self._env_step = env_step

    def _get_train_iter(self) -> int:
        return self._target.n_step

    def _state_dict_learn(self) -> dict[str, Any]:
        return {'optimizer': self._optimizer.state_dict(), 'target': self._target.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state['optimizer'])
        self._target.load_state_dict(state['target'])
