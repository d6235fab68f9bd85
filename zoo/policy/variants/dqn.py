"""Policy 'dqn': deep Q-learning (Mnih et al. 2015) with double-Q targets (van Hasselt et al. 2016, arXiv:1509.06461).

Its head may be dueling (Wang et al. 2016, arXiv:1511.06581) and give quantiles of the return (QR-DQN, Dabney et al. 2018,
arXiv:1710.10044).
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from zoo.config.components import component_of
from zoo.config.schedule import Linear, Probability, Schedule, schedule_value
from zoo.config.section import Filled
from zoo.core.data import Metrics, Rollout, Sample, map_tensors, split_rows, valid_weight
from zoo.core.errors import UserError
from zoo.core.registry import OPTIMIZER_REGISTRY, POLICY_REGISTRY
from zoo.core.spaces import Discrete
from zoo.model.check import actor_parameters
from zoo.model.q_head import quantiles_of, use_q_head
from zoo.policy.config import CollectConfig, Count, LearnConfig, PolicyConfig
from zoo.policy.hooks import gradient_ready
from zoo.policy.network_policy import NetworkPolicy
from zoo.rl_utils.distributions.categorical import Categorical
from zoo.rl_utils.estimators import n_step, q_error, q_target, quantile_error
from zoo.rl_utils.exploration import epsilon_greedy
from zoo.rl_utils.gae import gae_data
from zoo.rl_utils.optimizer import FlatOptimizer
from zoo.rl_utils.ppo import weighted_mean


@torch.no_grad()
def n_step_transition(rollout: Rollout, gamma: float, n: int) -> dict[str, Any]:
    """Columns [T, B] of transitions over m = n steps, fewer where the episode or the rollout ends before.

    reward = r_t + .. + gamma^(m-1) r_{t+m-1},   discount = gamma^m, or 0 where the last of these steps is `done`,
    next_obs = the true successor of that step, also where a time limit ended the episode
    """
    reward, done, end = (rollout.data[name] for name in ('reward', 'done', 'traj_flag'))
    zero = torch.zeros_like(reward)
    one = torch.ones_like(reward)

    def total(next_value: Tensor, reward: Tensor, done: Tensor, gamma: float) -> Tensor:
        return n_step(gae_data(zero, next_value, reward, done, end), gamma, 1.0, n=n)[1]

    row, env = torch.meshgrid(*(torch.arange(k, device=reward.device) for k in reward.shape), indexing='ij')
    last = row + total(zero, one, done, 1.0).long() - 1  # m - 1 rows below
    return {
        'reward': total(zero, reward, done, gamma),
        'discount': total(one, zero, done, gamma),
        'next_obs': map_tensors(lambda x: x[last, env], rollout.next_obs()),
    }


def q_step(
    model: Any, target_model: Any, optimizer: FlatOptimizer, part: Mapping[str, Any], cfg: DQNLearnConfig
) -> tuple[Metrics, Tensor]:
    """One gradient step on `q_error`.

    Args:
      model, target_model: their `compute_actor` gives Q-values [n, A].
      part: obs, action, reward, discount, next_obs as of `n_step_transition`, [n, ...], and weight where rows differ in it.
      cfg: the section `policy.learn` of 'dqn'.
    Returns: detached 0-dim metrics loss, q, td_error, grad_norm; |Q - target| [n], 0 where the weight is 0.
    """
    with torch.no_grad():
        value = target_model.compute_actor(part['next_obs'])
        if cfg.double:
            choice = model.compute_actor(part['next_obs'])
        else:
            choice = value
    target = q_target(part['reward'], part['discount'], value, choice)
    weight = part.get('weight')
    loss, q = q_error(model.compute_actor(part['obs']), part['action'], target, weight, cfg.huber_delta)
    return _descend(optimizer, loss, q, target, weight, cfg.grad_clip)


def quantile_step(
    model: Any, target_model: Any, optimizer: FlatOptimizer, part: Mapping[str, Any], cfg: DQNLearnConfig
) -> tuple[Metrics, Tensor]:
    """One gradient step on `quantile_error`, of models with a `QHead`. Args, Returns: as of `q_step`; Q is the mean of quantiles."""
    with torch.no_grad():
        value = quantiles_of(target_model, part['next_obs'])  # [n, A, K]
        chooser = target_model
        if cfg.double:
            chooser = model
        best = chooser.compute_actor(part['next_obs']).argmax(-1)  # with -inf for forbidden actions
        discount = part['discount'].unsqueeze(-1)
        rest = torch.where(discount > 0, discount * _of_action(value, best), 0.0)
        target = part['reward'].unsqueeze(-1) + rest  # [n, K]
    theta = _of_action(quantiles_of(model, part['obs']), part['action'])
    weight = part.get('weight')
    loss = quantile_error(theta, target, weight, cfg.huber_delta)
    mean = target.mean(-1)
    q = theta.mean(-1)
    if weight is not None:
        q = torch.where(weight > 0, q, mean)
    return _descend(optimizer, loss, q, mean, weight, cfg.grad_clip)


def _of_action(quantiles: Tensor, action: Tensor) -> Tensor:
    """The quantiles of one action of each row: [n, A, K], [n] -> [n, K]."""
    return quantiles.take_along_dim(action.view(-1, 1, 1), 1).squeeze(1)


def _descend(
    optimizer: FlatOptimizer, loss: Tensor, q: Tensor, target: Tensor, weight: Tensor | None, grad_clip: float | None
) -> tuple[Metrics, Tensor]:
    """One step on a loss. Returns: its metrics; |Q - target| [n]."""
    optimizer.zero_grad()
    loss.backward()
    gradient_ready([optimizer], loss)
    norm, q, error = optimizer.step(grad_clip), q.detach(), (q.detach() - target).abs()
    # a row that only reset an env has no Q-value
    if weight is None:
        share = None
    else:
        share = (weight > 0).to(q.dtype)
    means = {'q': weighted_mean(q, share), 'td_error': weighted_mean(error, share)}
    return {'loss': loss.detach(), **means, 'grad_norm': norm}, error


OptimizerSpec = component_of(OPTIMIZER_REGISTRY, 'policy.learn.optimizer')


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
        1.0,
        gt=0,
        description='error beyond which its loss is linear; null: squared error, of quantiles the absolute one',
    )
    dueling: bool = Field(
        False,
        description='the head has a stream for the value of the state and one for the advantages of actions, each with the '
        'hidden layers of actor_head',
    )
    n_quantile: int | None = Field(
        None,
        ge=2,
        le=10_000,
        description='quantiles of the return that the head gives for each action, as QR-DQN (50 to 200); null: its mean',
    )


class DQNCollectConfig(CollectConfig):
    """Section `policy.collect` of 'dqn'."""

    n_step: Filled[Count] = Field(8, description='env steps per rollout and env (1 to 64)')
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
    """Deep Q-learning, epsilon-greedy; `target_model` is a copy of the network that follows it slowly.

    It writes |target - Q| to the column 'priority' of each batch, for prioritised buffers.
    """

    cfg: DQNConfig
    config: ClassVar[type[PolicyConfig]] = DQNConfig
    announces_gradients: ClassVar[bool] = True
    writes_priority: ClassVar[bool] = True
    _env_step = 0  # env steps of the run before the present update

    @classmethod
    def default_buffer(cls) -> str:
        return 'replay'

    def _build(self) -> None:
        super()._build()
        if not isinstance(self.action_space, Discrete):
            kind = type(self.action_space).__name__
            raise UserError(
                f"policy 'dqn' is for Discrete actions, and those of the env are of a {kind}; use policy.type=ppo"
            )
        if self.has_state:
            raise UserError(
                f"policy 'dqn' is for a model without a memory, got {type(self._model).__name__}; use policy.type=ppo, or leave "
                'policy.model.recurrent out'
            )
        learn = self.cfg.learn
        if learn.dueling or learn.n_quantile is not None:
            use_q_head(self._model, self.action_space.n, learn.n_quantile or 1, learn.dueling)
            self._model.to(self.device)
        self.dist = Categorical(self.action_space.n)  # the logits are Q-values; the model's own distribution is ignored

    def check_fields(self) -> None:
        collect = self.cfg.collect
        if collect.n_step is not None and collect.n_return > collect.n_step:
            raise UserError(
                f'policy.collect.n_return is {collect.n_return} but a rollout has {collect.n_step} steps, after which no reward '
                f'is known; use n_return {collect.n_step} or less, or policy.collect.n_step={collect.n_return} or more'
            )

    def _behaviour(self, logit: Tensor, env_step: int | None = None) -> Tensor:
        eps = schedule_value(self.cfg.collect.eps, self._collect_step if env_step is None else env_step)
        return epsilon_greedy(self.dist, logit, epsilon=eps)

    def _stochastic(self, logit: Tensor) -> Tensor:
        """Returns epsilon-greedy logits, with the last epsilon of its schedule."""
        return self._behaviour(logit, sys.maxsize)

    def _get_train_sample(self, rollout: Rollout) -> Sample:
        rollout = rollout.to(self.device)
        cfg = self.cfg.collect
        columns = {name: rollout.data[name] for name in ('obs', 'action')}
        columns |= n_step_transition(rollout, cfg.discount_factor, cfg.n_return)
        if 'is_reset' in rollout.data:
            columns['weight'] = valid_weight(rollout.data['is_reset'], self.run.ranks)
        sample = map_tensors(lambda x: x.flatten(0, 1), columns)  # [T, B] -> [N]
        # counts each row once, however often it is drawn; not every model has statistics
        if hasattr(self._model, 'update_normalizer'):
            self._model.update_normalizer(sample['obs'], sample.get('weight'))
        return sample

    def _init_learn(self) -> None:
        self._optimizer = self._make_optimizer(actor_parameters(self._model, self.obs_space))
        self.optimizers = {'all': self._optimizer}
        self.target_model: Any = copy.deepcopy(self._model).requires_grad_(False)
        self._n_step = 0  # gradient steps so far
        self._step: Any = q_step
        if self.cfg.learn.n_quantile is not None:
            self._step = quantile_step

    def _follow_model(self) -> None:
        self.target_model.load_state_dict(self._model.state_dict())

    def _set_env_step(self, env_step: int) -> None:
        self._env_step = env_step

    def _forward_learn(self, batch: Any) -> Metrics:
        cfg = self.cfg.learn
        drawn = map_tensors(lambda x: x.to(self.device), batch)
        steps = []
        self._optimizer.lr = schedule_value(cfg.learning_rate, self._env_step)
        for part in split_rows(drawn, cfg.batch_size or len(drawn['action'])):
            with self._mode.steps(self.seed, self._n_step):
                steps.append(self._step(self._model, self.target_model, self._optimizer, part, cfg))
            self._n_step += 1
            if self._n_step % cfg.target_freq == 0:  # the target network moves by the share tau
                states = (network.state_dict().values() for network in (self.target_model, self._model))
                for slow, fast in zip(*states, strict=True):
                    slow.copy_(slow.lerp(fast, cfg.tau) if slow.is_floating_point() else fast)
        found, errors = zip(*steps, strict=True)
        batch['priority'] = torch.cat(errors)  # for prioritised buffers
        rates = {'learning_rate': self._optimizer.lr, 'eps': schedule_value(self.cfg.collect.eps, self._env_step)}
        rates['skipped_step'] = self._optimizer.count_skipped(limit=10)  # in a row
        means = {name: torch.stack([step[name] for step in found]).mean() for name in found[0]}
        return means | {name: torch.tensor(x, dtype=torch.float64) for name, x in rates.items()}

    def _monitor_vars_learn(self) -> list[str]:
        return ['loss', 'q', 'td_error', 'grad_norm', 'learning_rate', 'eps', 'skipped_step']

    def _get_train_iter(self) -> int:
        return self._n_step

    def _state_dict_learn(self) -> dict[str, Any]:
        target = {'model': dict(self.target_model.state_dict()), 'n_step': self._n_step}
        return {'optimizer': self._optimizer.state_dict(), 'target': target}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state['optimizer'])
        self.target_model.load_state_dict(state['target']['model'])
        self._n_step = state['target']['n_step']
