"""Constraints: limits on the costs of episodes, which envs report in the infos of steps.

maximise E[sum reward]  so that  E[sum cost_k] <= limit_k for each cost k:   min over lambda >= 0, max over policies, of
E[sum reward] - sum_k lambda_k (E[sum cost_k] - limit_k)

A component of CONSTRAINT_REGISTRY is a class, constructed as `cls(section)`, that moves the multipliers: `start(n)` returns those of n
costs; `update(error, cost)` gets, for each cost, its mean per episode minus its limit, and that mean, and returns lambda;
`state_dict()` and `load_state_dict(state)` are for checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.config.components import make_component, section_of
from zoo.config.section import Section
from zoo.core.data import Columns, Metrics, Obs, Rollout, map_tensors, send, split_rows, valid_weight
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import CONSTRAINT_REGISTRY
from zoo.core.seeding import reseed, stream, torch_generator
from zoo.core.spaces import Space
from zoo.model.encoder import Inherited, build_encoder
from zoo.model.normalized_input import NormalizedInput
from zoo.policy.config import ConstraintConfig
from zoo.policy.options import Estimated, Owner, UpdateOption
from zoo.policy.samples import rollout_values
from zoo.rl_utils.gae import gae_data, gae_estimate
from zoo.rl_utils.init import orthogonal
from zoo.rl_utils.normalizer import RunningMeanStd, discounted_sum
from zoo.rl_utils.optimizer import FlatAdam

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots

OBS_CLIP = 10.0  # of normalised observations
NONFINITE_LIMIT = 10  # gradient steps in a row that may be skipped
Amount = Annotated[float, Field(ge=0)]


class Constraint(UpdateOption):
    """Advantages become (adv - sum_k lambda_k cost_adv_k) / (1 + sum_k lambda_k), and lambda follows the costs of episodes.

    cost_adv is the GAE of costs with a critic of their own. Every rollout first moves lambda by the mean costs of the episodes that
    ended in it, then gets its advantages. Steps without a cost in their info have the cost 0.
    Source: Ray et al. 2019, Benchmarking safe exploration in deep RL (PPO-Lagrangian). Departs: the critic's targets are
      normalised by their running mean and deviation.
    """

    key = 'policy.learn.constraint'

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        spec = policy.cfg.learn.constraint
        cfg: ConstraintConfig = section_of(CONSTRAINT_REGISTRY, spec, self.key, common=ConstraintConfig)
        self._rule = make_component(CONSTRAINT_REGISTRY, spec, common=ConstraintConfig)
        self._cost_names = list(cfg.limits)
        self._limits = list(cfg.limits.values())
        self._ranks = policy.run.ranks
        self._learner = CostLearner(cfg, policy.cfg.collect, policy.obs_space, policy.device, policy.seed, self._ranks)
        self.names = (
            *(f'lambda_{name}' for name in self._cost_names),
            *(f'episode_{name}' for name in self._cost_names),
            'cost_value_loss',
        )
        self._lambda: list[float] = self._rule.start(len(self._limits))
        self._episode_cost = [math.nan] * len(self._limits)  # means of the last episodes that ended
        self._carry: Tensor | None = None  # [K, B], costs so far of the episodes that continue in the next rollout
        self._is_known = [False] * len(self._limits)  # whether a step has reported each cost

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> dict[str, Any]:
        costs = self._costs(rollout)
        self._follow(costs, rollout)
        return {'cost_adv': self._learner.advantage(rollout, costs)}

    def advantage(self, columns: Mapping[str, Any]) -> Tensor:
        adv: Tensor = columns['adv']
        weights = adv.new_tensor(self._lambda)
        return (adv - (columns['cost_adv'] * weights).sum(-1)) / (1 + weights.sum())

    def after_update(self, batch: Columns) -> Metrics:
        numbers = torch.tensor([*self._lambda, *self._episode_cost], dtype=torch.float64).unbind()
        return dict(zip(self.names, (*numbers, self._learner.update()), strict=True))

    def forget(self, envs: slice) -> None:
        if self._carry is not None:
            self._carry[:, envs] = 0

    def forget_all(self) -> None:
        self._carry = None

    def state_dict(self) -> dict[str, Any]:
        return {
            'constraint': {
                'lambda': list(self._lambda),
                'rule': self._rule.state_dict(),
                'episode_cost': [None if math.isnan(cost) else cost for cost in self._episode_cost],
                'is_known': list(self._is_known),
                **self._learner.state_dict(),
            }
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if 'constraint' not in state:
            return
        own = state['constraint']
        self._lambda = list(own['lambda'])
        self._rule.load_state_dict(own['rule'])
        self._episode_cost = [math.nan if cost is None else cost for cost in own['episode_cost']]
        is_known = own['is_known']
        if isinstance(is_known, bool):  # older files say it of all costs together
            is_known = [is_known] * len(self._limits)
        self._is_known = list(is_known)
        self._learner.load_state_dict(own)

    def _costs(self, rollout: Rollout) -> Tensor:
        """The costs of a rollout, [K, T, B]; 0 in rows that only reset an env."""
        data: Mapping[str, Any] = rollout.data
        columns = [f'info/{name}' for name in self._cost_names]
        for name, column in zip(self._cost_names, columns, strict=True):
            if column not in data:
                raise UserError(
                    f'{self.key} limits {name!r} but the rollout has no column {column!r}; put {name!r} into env.info_columns, '
                    'and use an env of one agent'
                )
            if data[column].dim() != 2:
                raise UserError(
                    f'{self.key} limits {name!r} but its values in infos have the shape {tuple(data[column].shape[2:])}; '
                    'report one number for each step'
                )
        given = torch.stack([data[column] for column in columns])
        is_missing = given.isnan()
        if not all(self._is_known):
            self._check_known(rollout, is_missing)
        costs = given.masked_fill(is_missing, 0.0)
        if 'is_reset' in data:
            costs = costs.masked_fill(data['is_reset'], 0.0)
        return costs

    def _check_known(self, rollout: Rollout, is_missing: Tensor) -> None:
        """Raises UserError for a cost that no step has reported although an episode has ended: a limit that nothing reaches."""
        has_none = is_missing.flatten(1).all(1).tolist()
        self._is_known = [known or not none for known, none in zip(self._is_known, has_none, strict=True)]
        if all(self._is_known) or not bool(rollout.data['traj_flag'].any()):
            return
        name = self._cost_names[self._is_known.index(False)]
        raise UserError(
            f'{self.key} limits {name!r} but an episode has ended and no step has reported a number of that name in its info; '
            'correct the name, or report 0 where there is no cost'
        )

    def _follow(self, costs: Tensor, rollout: Rollout) -> None:
        """Moves lambda by the costs [K, T, B] of the episodes that end in a rollout, of all ranks; without one it stays."""
        end = rollout.data['traj_flag']
        if self._carry is None or self._carry.shape[1:] != end.shape[1:]:
            self._carry = costs.new_zeros(len(costs), end.shape[1])
        totals = [discounted_sum(cost, end, carry, 1.0) for cost, carry in zip(costs, self._carry, strict=True)]
        total = torch.stack(totals)  # [K, T, B], costs of each episode so far
        self._carry = total[:, -1] * (~end[-1])
        is_counted = end
        if 'is_reset' in rollout.data:  # also set where an env failed, whose episodes do not count
            is_counted = end & ~rollout.data['is_reset']
        sums = (total * is_counted).sum((1, 2), dtype=torch.float64)
        found = self._ranks.sum_(torch.cat((sums, is_counted.sum().double().view(1))))
        *sums_of_all, n_episode = found.tolist()
        if not n_episode:
            return
        self._episode_cost = [each / n_episode for each in sums_of_all]
        error = [cost - limit for cost, limit in zip(self._episode_cost, self._limits, strict=True)]
        self._lambda = self._rule.update(error, self._episode_cost)


class CostLearner:
    """The critic of costs: gives their advantages, and learns from each rollout after the update."""

    def __init__(
        self, cfg: ConstraintConfig, collect: Any, obs_space: Space, device: torch.device, seed: int, ranks: Ranks
    ) -> None:
        self._cfg = cfg
        gamma = cfg.discount_factor
        lambda_ = cfg.gae_lambda
        if gamma is None:
            gamma = collect.discount_factor
        if lambda_ is None:
            lambda_ = collect.gae_lambda
        self._discount: tuple[float, float] = (gamma, lambda_)
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
            torch.manual_seed(int(stream(seed, 'cost networks').generate_state(1)[0]))
            self.critic = CostCritic(cfg, obs_space).to(device)
        self._optimizer = FlatAdam(self.critic.named_parameters(), cfg.critic_learning_rate)
        self._seed = seed
        self._generator = torch_generator(seed, 'costs')
        self._n_update = 0
        self._ranks = ranks
        if ranks is not ALONE:
            self._optimizer.ranks = self.critic.returns.ranks = ranks
            self.critic.set_ranks(ranks)
        self._waiting: tuple[Obs, Tensor, Tensor] | None = None  # obs, returns [N, K], weights [N] to learn from
        self._loss = torch.zeros((), device=device)

    @torch.no_grad()
    def advantage(self, rollout: Rollout, costs: Tensor) -> Tensor:
        """GAE of the costs [K, T, B] -> [T, B, K]; keeps the rollout for `update`."""
        data = rollout.data
        is_reset = data.get('is_reset', torch.zeros_like(data['done']))
        weight = valid_weight(is_reset, self._ranks).flatten()
        plain: Any = {
            'obs': data['obs'],
            'done': data['done'],
        }  # without the values and the state of the policy's model
        rows = Rollout(plain, rollout.last_obs, rollout.final_obs, rollout.final_index, rollout.successor)
        obs = map_tensors(lambda x: x.flatten(0, 1), data['obs'])
        self.critic.update_statistics(obs, weight)
        adv = []
        returns = []
        for k, cost in enumerate(costs):
            value, next_value = rollout_values(rows, lambda obs, state=None, k=k: self.value(obs)[:, k])
            found = gae_estimate(gae_data(value, next_value, cost, data['done'], data['traj_flag']), *self._discount)
            adv.append(found[0])
            returns.append(found[1].flatten())
        self._waiting = obs, torch.stack(returns, -1), weight
        return torch.stack(adv, -1)

    @torch.enable_grad()
    def update(self) -> Tensor:
        """Trains the critic on the last rollout, once; returns the mean loss, in units of its normalised targets."""
        if self._waiting is None:
            return self._loss
        cfg = self._cfg
        obs, returns, weight = self._waiting
        self._waiting = None
        self.critic.returns.update(returns, weight)
        target = self.critic.returns.standardize(returns)
        generator = reseed(self._generator, self._seed, 'costs', self._ranks.rank, self._n_update)
        self._n_update += 1
        losses = []
        for _ in range(cfg.critic_epochs):
            order = send(torch.randperm(len(weight), generator=generator), weight.device)
            for index in order.split(cfg.critic_batch_size):
                error = self.critic(map_tensors(lambda x: x[index], obs)) - target[index]  # noqa: B023
                loss = (0.5 * error.square().mean(-1) * weight[index]).mean()
                self._optimizer.zero_grad()
                loss.backward()
                self._optimizer.step()
                losses.append(loss.detach())
        self._optimizer.count_skipped(limit=NONFINITE_LIMIT)
        self._loss = torch.stack(losses).mean()
        return self._loss

    def state_dict(self) -> dict[str, Any]:
        return {
            'critic': dict(self.critic.state_dict()),
            'optimizer': self._optimizer.state_dict(),
            'n_update': self._n_update,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.critic.load_state_dict(state['critic'])
        self._optimizer.load_state_dict(state['optimizer'])
        self._n_update = state['n_update']
        self._waiting = None

    def value(self, obs: Obs) -> Tensor:
        """Discounted costs that follow observations [N, *O], [N, K]."""
        pieces = [self.critic(rows) for rows in split_rows(obs, self._cfg.critic_batch_size)]
        return self.critic.returns.restore(torch.cat(pieces))


class CostCritic(NormalizedInput):
    """Predicts the discounted sums of costs, normalised by their running mean and deviation: observations [N, *O] -> [N, K]."""

    def __init__(self, cfg: ConstraintConfig, obs_space: Space) -> None:
        super().__init__(obs_space, OBS_CLIP)
        self.returns = RunningMeanStd((len(cfg.limits),))
        given = Inherited(hidden_sizes=cfg.hidden_sizes, activation='tanh')
        self.encoder = build_encoder(cfg.encoder, obs_space, given, 'policy.learn.constraint.encoder')
        self.head = orthogonal(nn.Linear(self.encoder.n_feature, len(cfg.limits)), 1.0)

    def forward(self, obs: Obs) -> Tensor:
        return self.head(self.encoder(self.encoder_inputs(obs)))


class MultiplierConfig(Section):
    """Options of every kind of multiplier."""

    initial: Amount = Field(0.0, description='lambda of each cost at the start of the run')
    max_lambda: Annotated[float, Field(gt=0)] | None = Field(None, description='greatest lambda; null: no bound')

    @model_validator(mode='after')
    def _starts_within_its_bound(self) -> Self:
        if self.max_lambda is not None and self.initial > self.max_lambda:
            raise ValueError(
                f'initial is {self.initial:g} but max_lambda, the greatest lambda, is {self.max_lambda:g}; raise max_lambda or '
                'lower initial.'
            )
        return self


class LagrangeConfig(MultiplierConfig):
    """Options of constraint 'lagrange'."""

    learning_rate: float = Field(
        0.035, gt=0, description='step size of lambda, per rollout; more reacts faster, and oscillates more'
    )
    optimizer: Literal['adam', 'sgd'] = Field(
        'adam',
        description="'adam' moves lambda by about the step size in any unit of costs, 'sgd' by step size times excess",
    )


@CONSTRAINT_REGISTRY.register('lagrange')
class Lagrange:
    """Gradient ascent on lambda: lambda_k <- max(0, lambda_k + rate * (J_k - limit_k)), J_k the mean cost of an episode.

    With adam the step is Adam's for that gradient.
    Source: Ray et al. 2019; Adam as in OmniSafe.
    """

    config: ClassVar[type[Section]] = LagrangeConfig

    def __init__(self, cfg: LagrangeConfig) -> None:
        self._cfg = cfg
        self._lambda: list[float] = []
        self._mean: list[float] = []
        self._square: list[float] = []
        self._n_step = 0

    def start(self, n: int) -> list[float]:
        """Lambda of n costs before the first update."""
        self._lambda = [self._cfg.initial] * n
        self._mean = [0.0] * n
        self._square = [0.0] * n
        return list(self._lambda)

    def update(self, error: Sequence[float], cost: Sequence[float]) -> list[float]:
        """Lambda after costs that exceed their limits by `error`."""
        self._n_step += 1
        for k, excess in enumerate(error):
            moved = self._lambda[k] + self._cfg.learning_rate * self._direction(k, excess)
            self._lambda[k] = min(max(moved, 0.0), self._cfg.max_lambda or math.inf)
        return list(self._lambda)

    def _direction(self, k: int, excess: float) -> float:
        if self._cfg.optimizer == 'sgd':
            return excess
        self._mean[k] = 0.9 * self._mean[k] + 0.1 * excess
        self._square[k] = 0.999 * self._square[k] + 0.001 * excess * excess
        mean = self._mean[k] / (1 - 0.9**self._n_step)
        square = self._square[k] / (1 - 0.999**self._n_step)
        return mean / (math.sqrt(square) + 1e-8)

    def state_dict(self) -> dict[str, Any]:
        return {'lambda': self._lambda, 'mean': self._mean, 'square': self._square, 'n_step': self._n_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._lambda = list(state['lambda'])
        self._mean = list(state['mean'])
        self._square = list(state['square'])
        self._n_step = state['n_step']


class PIDConfig(MultiplierConfig):
    """Options of constraint 'pid'."""

    initial: Amount = Field(0.0, description='integral part of each cost at the start of the run')
    kp: Amount = Field(0.1, description='gain of the excess of the last rollout; damps oscillations')
    ki: Amount = Field(0.01, description='gain of the sum of all excesses: the step size of lambda')
    kd: Amount = Field(0.01, description='gain of the rise of costs since the rollout before')
    smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description='weight of the past in the running means of excess and costs that kp and kd read; 0: the last rollout',
    )


@CONSTRAINT_REGISTRY.register('pid')
class PID:
    """A PID controller: lambda = max(0, kp * excess + I + kd * max(0, rise)), I <- max(0, I + ki * excess).

    Source: Stooke et al. 2020, arXiv:2007.03964, algorithm 2.
    """

    config: ClassVar[type[Section]] = PIDConfig

    def __init__(self, cfg: PIDConfig) -> None:
        self._cfg = cfg
        self._integral: list[float] = []
        self._excess: list[float] = []
        self._cost: list[float] = []

    def start(self, n: int) -> list[float]:
        """Lambda of n costs before the first update."""
        self._integral = [self._cfg.initial] * n
        return list(self._integral)

    def update(self, error: Sequence[float], cost: Sequence[float]) -> list[float]:
        """Lambda after costs that exceed their limits by `error`."""
        cfg = self._cfg
        before = self._cost or list(cost)
        past = cfg.smoothing
        self._excess = [past * old + (1 - past) * new for old, new in zip(self._excess or error, error, strict=True)]
        self._cost = [past * old + (1 - past) * new for old, new in zip(before, cost, strict=True)]
        self._integral = [max(0.0, old + cfg.ki * new) for old, new in zip(self._integral, error, strict=True)]
        found = []
        for k, integral in enumerate(self._integral):
            rise = max(0.0, self._cost[k] - before[k])
            raw = cfg.kp * self._excess[k] + integral + cfg.kd * rise
            found.append(min(max(raw, 0.0), cfg.max_lambda or math.inf))
        return found

    def state_dict(self) -> dict[str, Any]:
        return {'integral': self._integral, 'excess': self._excess, 'cost': self._cost}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._integral = list(state['integral'])
        self._excess = list(state['excess'])
        self._cost = list(state['cost'])
