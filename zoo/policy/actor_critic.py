"""Base of PPO and PPG: acting, transitions, samples of a rollout, and the steps that all updates have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.backend.choose import env_compiler, executor_label
from zoo.backend.executor import Acting, Step, forward_for_acting
from zoo.backend.step import LossSpec, StepNumbers
from zoo.config.components import component_at, make_component, moves
from zoo.config.schedule import Rates
from zoo.core.data import (
    Columns,
    Metrics,
    Obs,
    Rollout,
    Sample,
    State,
    Timestep,
    Transition,
    first_leaf,
    map_tensors,
    split_rows,
    to_device,
)
from zoo.core.errors import UserError
from zoo.core.registry import EXPLORATION_REGISTRY
from zoo.core.spaces import empty_obs
from zoo.model.actor_critic import Networks
from zoo.model.check import critic_names, parameters_by_role, probe, reached, unread_option
from zoo.policy.checks import action_problem, component_problem, memory_problem, unread_problem
from zoo.policy.config import ActorCriticPolicyConfig
from zoo.policy.execution import Execution, executor_request
from zoo.policy.metrics import OF_UPDATES, adv_abs_max, total_loss
from zoo.policy.network_policy import NetworkPolicy
from zoo.policy.objective import Objective
from zoo.policy.options import UpdateOption, options_of
from zoo.policy.options.base import has_own
from zoo.policy.parameters import NOTHING_OF_ONE
from zoo.policy.passes import Passes, Trained
from zoo.policy.samples import ROWS, Samples, in_pieces
from zoo.policy.sequences import first_rows, n_copy, sequences, stride_of
from zoo.policy.update import UpdateBuilder
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.exploration import check_exploration, fault_of
from zoo.rl_utils.optimizer import FlatOptimizer

N_ZERO = 3  # observations of zeros


class ActorCriticPolicy(NetworkPolicy):
    """Base of policies that act with the model's `compute_actor` and estimate values with its `compute_critic`.

    Reads cfg.collect (OnPolicyCollectConfig) and cfg.learn (ActorCriticLearnConfig).
    Attributes: options: the update options that the config names, in the order in which they act; samples, loss, passes: the
      parts of its update, see zoo.policy.update.Update (passes only if it learns);
      objective, rates, optimizers: see zoo.policy.modes.Owner.
    """

    cfg: ActorCriticPolicyConfig
    scheduled: ClassVar[tuple[str, ...]] = ('learning_rate', 'clip_ratio', 'entropy_weight')
    """Fields of cfg.learn that may be schedules over env steps; their current values are in `rates`, and are logged."""
    at_rate_0: ClassVar[str] = 'nothing more is learned'  # what learning rates of 0 mean, for a warning
    announces_gradients: ClassVar[bool] = True
    has_critic = True  # whether it trains a critic
    all_frozen: ClassVar[str] = NOTHING_OF_ONE

    def _make_optimizers(self) -> dict[str, FlatOptimizer]:
        """Every optimiser by name, for checkpoints and for counting skipped steps: here one for the actor, one for the critic."""
        groups = parameters_by_role(self._model, critic_names(self._model, self.obs_space))
        return {role: self._make_optimizer(named) for role, named in groups.items()}

    def steps_per_env_step(self) -> float:
        """Gradient steps per env step, of passes over each batch in minibatches."""
        n_pass = self.run.reuse['policy'] * self.cfg.learn.get('epoch_per_collect', 1)
        return self._overlap * n_pass / self._batch_size

    @property
    def _batch_size(self) -> int:
        """Samples per minibatch; all samples of a rollout if batch_size is null."""
        return self.cfg.learn.batch_size or self.cfg.collect.n_sample or self.cfg.collect.n_step

    @property
    def _overlap(self) -> float:
        """Samples that are learned from per env step: above 1 where sequences of whole rollouts overlap."""
        is_drawn = self.run.n_draw is not None  # then run.reuse counts the samples of a draw
        if is_drawn or not self.has_state:
            return 1.0
        return n_copy(self.cfg.learn.sequence, self.cfg.collect.n_step)

    @cached_property
    def objective(self) -> Objective:
        """The losses; built before the model, since they may need another output head of its critic."""
        return Objective(self.cfg.learn)

    def _make_model(self) -> nn.Module:
        model = super()._make_model()
        self.objective.shape_critic(model)
        return model

    def _build(self) -> None:
        cfg = self.cfg
        self.learns = 'learn' in self._fields
        self.explores = self.learns or 'collect' in self._fields
        self._exploration = make_component(EXPLORATION_REGISTRY, cfg.collect.exploration)
        self._explore = component_at(self._exploration, self._collect_step)
        super()._build()
        own_rates = (name for name in cfg.learn if name.endswith('_learning_rate') and cfg.learn[name] is not None)
        self.rates = Rates(cfg.learn, (*self.scheduled, *own_rates), self.at_rate_0)
        self.options: tuple[UpdateOption, ...] = options_of(self)
        if self.has_state:
            self.sequence_len = cfg.learn.sequence.len
            self.sequence_stride = stride_of(cfg.learn.sequence)
        if self.learns:
            self._mode.warn_of_difference()
        probe(self._model, self.obs_space, self.dist, self.device)
        self._acts_with_value = self.has_state or bool(getattr(self._model, 'one_trunk', False))
        problem = next(filter(None, self._problems()), None)
        if problem:
            raise UserError(problem)
        self._is_unchecked = self.explores and self._explore.name != 'sample' and self.device.type != 'meta'
        self._first_obs: list[Obs] = []  # of each group of envs, until they are checked
        if self._is_unchecked:
            check_explored(self, empty_obs(self.obs_space, (N_ZERO,), self.device), 'observations of zeros')
        self._build_update()

    def _build_update(self) -> None:
        """Lets the options fill the slots of the update, and builds it with the executor that it needs."""
        builder = filled_builder(self)
        self.has_critic = builder.has_critic.value
        self.normalizers.update(builder.normalizers)
        self.loss: LossSpec = builder.loss()
        option_components = [component for option in self.options for component in option.components]
        request = executor_request(self, option_components, self.loss, self._exploration, self.steps_per_env_step())
        self._execution = Execution(self._model, self.dist, self.device, request)
        self.compile_env = env_compiler(request, self.device)
        if measures_kl_freely(self):
            self.loss = self.loss._replace(measure_kl=True)
        self._further_weights = (1.0,) * (len(self.loss.terms) - len(self.objective.weights))
        self.samples: Samples = builder.samples(self.options)
        self.memory: Any = builder.memory.value
        if self.learns:
            training: Callable[[int], AbstractContextManager[Any]] = nullcontext
            if self._mode.differs:
                training = partial(self._mode.steps, self.seed)
            self.passes: Passes = builder.passes(self.samples, self._execution, self.seed, self.device, training)

    def check_fields(self) -> None:
        problem = unread_problem(self.cfg, type(self).config(), self.objective, self.run.n_draw, self.has_state)
        if not problem and self.given_model is None and isinstance(self._model, Networks):
            problem = unread_option(self.cfg.model, self.dist, self.action_space)
        if problem:
            raise UserError(problem)

    def _problems(self) -> Iterator[str]:
        """Yields a sentence for each conflict of settings, or '' where there is none."""
        yield action_problem(self.dist, self._action_map.mode)
        for option in self.options:
            yield from option.problems(self)
        yield component_problem(self.cfg, self.objective, self.given_model, self._explore, self.dist)
        yield memory_problem(self.cfg, self.has_state, self._fields, self._batch_size)

    @property
    def executor_name(self) -> str:
        return executor_label(self._execution.executor)

    def _behaviour(self, logit: Tensor) -> Tensor:
        if self._explore.name == 'sample':
            return logit
        return self._explore(self.dist, logit)

    def _start_acting(self, obs: Obs, first: int = 0) -> Acting:
        if self._acts_by_itself:
            return super()._start_acting(obs, first)
        if self._is_unchecked:
            self._first_obs.append(map_tensors(lambda x: x[0], obs))
        if moves(self._exploration):  # compiled acting holds the options as constants
            return super()._start_acting(obs, first)
        if self._explore.name == 'sample':
            explore = None
        else:
            explore = self._explore
        noise = partial(self._noise.rollout, first=first, n_step=len(first_leaf(obs)) - 1)
        acting = self._execution.executor.start_acting(obs, noise, self._acts_with_value, explore)
        return acting or super()._start_acting(obs, first)

    def _begin_rollout(self, collect_iter: int, env_step: int | None = None) -> None:
        super()._begin_rollout(collect_iter, env_step)
        self._explore = component_at(self._exploration, self._collect_step)
        for obs in self._first_obs:
            check_explored(self, obs, 'the first observations')
        self._first_obs = []

    def _judge(self, obs: Obs, with_value: bool) -> tuple[ActionDist, Tensor, Tensor | None]:
        has_value = with_value and self.has_critic
        output = forward_for_acting(self._model, to_device(obs, self.device), has_value)
        return self.dist, output['logit'], self.samples.units.restore(output['value']) if has_value else None

    def _judge_in_state(self, obs: Obs, state: State) -> tuple[ActionDist, Tensor, Tensor | None, State]:
        output = forward_for_acting(
            self._model, to_device(obs, self.device), self.has_critic, to_device(state, self.device)
        )
        value = None
        if self.has_critic:
            value = self.samples.units.restore(output['value'])
        return self.dist, output['logit'], value, output['state']

    def _process_transition(self, obs: Obs, output: dict[str, Any], timestep: Timestep) -> Transition:
        transition = super()._process_transition(obs, output, timestep)
        transition['logit'] = output['logit']  # of the behaviour policy: the denominator of the ratio
        if 'value' in output:
            transition['value'] = output['value']
        if 'state' in output:
            transition |= {'state': output['state'], 'is_first': first_rows(timestep)}
        for option in self.options:
            transition = option.process_transition(transition)
        return transition

    def _get_train_sample(self, rollout: Rollout) -> Sample:
        if self._is_unchecked:
            self._is_unchecked = False
            check_behaviour(self, rollout)
        sample: Any = self.samples.of_rollout(rollout.to(self.device), self.compute_critic)
        if self.learns and self.run.n_draw is not None:  # a row may be drawn often or never: it is counted now
            rows, weight = self.samples.rows_once(sample)
            count_observations(self._model, rows, weight)
            for option in self.options:
                option.rows_collected(rows, weight)
            sample.pop('is_step', None)  # no draw reads it
        return sample

    def compute_critic(self, obs: Obs, state: State = None) -> Tensor:
        """Outputs of the critic [N] for observations [N, *O], without gradient."""
        return in_pieces(self._execution.executor.compute_critic, obs, state)

    def _forget_envs(self, envs: slice) -> None:
        for option in self.options:
            option.forget(envs)

    def _reset_collect(self) -> None:
        for option in self.options:
            option.forget_all()

    def _load_state_dict_collect(self, state: dict[str, Any]) -> None:
        self._reset_collect()

    def _init_learn(self) -> None:
        self.optimizers = self._make_optimizers()
        trains_actor_alone = 'critic' in self.optimizers or not self._coefficients().get('value_weight', 1)
        if trains_actor_alone and self._frozen and not reached(self._model, self.obs_space, 'compute_actor'):
            raise UserError(self.all_frozen)
        for option in self.options:
            if has_own(option, 'attach_learn') and not has_own(option, 'fill'):
                from zoo.policy.options.attached import attach_learn

                attach_learn(option, self)
            else:
                option.attach_learn(self)
        self._set_env_step(0)

    def _follow_model(self) -> None:
        for option in self.options:
            option.model_replaced()

    def policy_moved(self) -> None:
        """Tells all options that something other than the passes of an update changed the policy."""
        for option in self.options:
            option.policy_moved()

    def _make_optimizer(self, named: Iterable[tuple[str, nn.Parameter]]) -> FlatOptimizer:
        optimizer = super()._make_optimizer(named)
        optimizer.configure(**{name: x for option in self.options for name, x in option.mechanics().items()})
        return optimizer

    def _set_env_step(self, env_step: int) -> None:
        self.rates.set_env_step(env_step)
        for option in self.options:
            option.set_env_step(env_step)
            take_choices(self, option)

    @property
    def _policy_step(self) -> Step | None:
        return getattr(self, 'step', None)

    @property
    def _value_step(self) -> Step | None:
        return getattr(self, 'value_step', self._policy_step)

    def _coefficients(self) -> dict[str, float]:
        """Constant weights of the losses, by the name of their metric."""
        return {}

    def _begin_update(self, batch: Columns, phase: str | None = None) -> Columns:
        """Sets rates and statistics for an update, and returns the batch as the update reads it.

        Args: phase: 'policy' or 'value', if the batch is for that phase alone.
        """
        for option in self.options:
            option.begin_update()
            if phase is None or option.phase in (phase, 'all'):
                batch = option.before_update(batch)
            take_choices(self, option)
        rate = self.rates['learning_rate']
        for name, optimizer in self.optimizers.items():
            optimizer.lr = self.rates.get(f'{name}_learning_rate', rate)
        return batch

    def _step_numbers(self) -> StepNumbers:
        """The numbers of steps on the policy, by the schedules now."""
        return StepNumbers(
            clip_ratio=self.rates.clip_range,
            entropy_weight=self.rates['entropy_weight'],
            value_weight=self._coefficients().get('value_weight', 0),
            dual_clip=self.cfg.learn.dual_clip,
            grad_clip=self.cfg.learn.grad_clip,
            term_weights=(*self.objective.weights, *self._further_weights),
        )

    def _train_policy(
        self, batch: Columns, n_pass: int, step: Step, optimizers: Sequence[FlatOptimizer], batch_size: int | None
    ) -> Metrics:
        """Passes of a step on the policy, for policies that add nothing to them; returns their metrics."""
        numbers = self._step_numbers()
        for plan in self.passes.over(batch, n_pass, batch_size):
            self.passes.take(step, optimizers, plan, self.loss, numbers)
        return self._policy_metrics(batch, self.passes.trained(), step, numbers)

    def _policy_metrics(self, batch: Columns, trained: Trained, step: Step, numbers: StepNumbers) -> Metrics:
        """Metrics of passes of a step on the policy, with those of the options."""
        metrics = dict(trained.metrics)
        metrics['n_epoch'] = torch.tensor(trained.n_pass, dtype=torch.float64)
        metrics['adv_abs_max'] = adv_abs_max(batch)
        if hasattr(step, 'kind'):
            metrics['total_loss'] = total_loss(trained.metrics, self.loss, numbers)
        for option in self.options:
            metrics |= option.after_passes(batch, trained)
        return metrics

    def _end_update(self, batch: Columns) -> Metrics:
        """Ends an update: updates the observation statistics and calls the options; returns metrics of the whole update."""
        if self.run.n_draw is None:
            count_observations(self._model, *self.samples.rows_once(batch))
        found: Metrics = {}
        for option in self.options:
            found |= option.after_update(batch)
        # waits for the device, once a batch
        n_skipped = sum(o.count_skipped(self.cfg.learn.nonfinite_limit) for o in self.optimizers.values())
        counts = {'skipped_step': n_skipped, **self.rates, **self._coefficients()}
        values = torch.tensor(list(counts.values()), dtype=torch.float64)
        return found | dict(zip(counts, values.unbind(), strict=True))

    @torch.no_grad()
    def logit_of(self, batch: Columns) -> Tensor:
        """Logits of the current policy, in the shape of the batch's column 'logit'."""
        n_row = max(self._batch_size // self.samples.entry_len, 1)
        pieces = []
        for part in split_rows(dict(batch), n_row):
            output, _ = self.loss.forward(self._model, 'compute_actor', part)
            pieces.append(output['logit'])
        return torch.cat(pieces).view_as(batch['logit'])

    def _monitor_vars_learn(self) -> list[str]:
        own = (name for option in self.options for name in option.names)
        names = [*OF_UPDATES, *self.rates.names, *own, 'adv_abs_max', *self._coefficients()]
        return names + self.objective.metrics_of(self._policy_step, self._value_step, self.loss.measure_kl)

    def _get_train_iter(self) -> int:
        return self.passes.train_iter

    def _state_dict_learn(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            'optimizer': {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            'train_iter': self.passes.train_iter,
        }
        for option in self.options:
            state |= option.state_dict()
        return state

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state['optimizer'][name])
        self.passes.train_iter = state['train_iter']
        for option in self.options:
            option.load_state_dict(state)
            take_choices(self, option)


@torch.no_grad()
def check_explored(policy: ActorCriticPolicy, obs: Obs, where: str) -> None:
    """Raises UserError if the exploration gives unsound parameters for observations [N, *O] for which the model's are sound."""
    logit = forward_for_acting(policy._model, to_device(obs, policy.device), False)['logit']
    if not fault_of(policy.dist, logit):
        check_exploration(policy._explore, policy.dist, logit, where)


def check_behaviour(policy: ActorCriticPolicy, rollout: Rollout) -> None:
    """Checks what actions of the first rollout were drawn from: its observations and masks are many, and not zeros."""
    if fault_of(policy.dist, to_device(rollout.data['logit'], policy.device).flatten(0, 1)):
        obs = map_tensors(lambda x: x.flatten(0, 1), rollout.data['obs'])
        check_explored(policy, obs, 'observations of the first rollout')


def take_choices(policy: ActorCriticPolicy, option: UpdateOption) -> None:
    """Sets the rates and the weights of penalties that an option chooses."""
    policy.rates.update(option.choose_rates())
    weights = option.choose_weights()
    if weights:
        policy.objective.set_weights(weights)


def count_observations(model: nn.Module, rows: Columns, weight: Tensor | None) -> None:
    """Adds rows to a model's statistics of observations, if it has any: all env steps, also those that train nothing.

    Args: weight: of `Samples.rows_once`.
    """
    update = getattr(model, 'update_normalizer', None)
    if update is None:
        return
    counted = rows.get('is_step', None)
    if counted is not None and 'is_repeat' in rows.keys():
        counted = counted & ~rows['is_repeat']
    update(rows['obs'], weight if counted is None else counted)


def filled_builder(policy: ActorCriticPolicy) -> UpdateBuilder:
    """The slots of the update of a policy, as its options fill them."""
    if policy.has_state:
        entries = sequences(policy.cfg.learn.sequence)
    else:
        entries = ROWS
    builder = UpdateBuilder(policy.cfg, policy.objective, policy.run.ranks, entries)
    for option in policy.options:
        option.fill(builder, policy)
        if has_own(option, 'attach'):
            from zoo.policy.options.attached import attach

            attach(option, builder, policy)
    return builder


def measures_kl_freely(policy: ActorCriticPolicy) -> bool:
    """Whether steps give kl and ratio_max at no cost: kernels of eager steps on a GPU do not; a user's own step may not."""
    is_cheap = policy.device.type == 'cpu' or policy._execution.executor.name != 'eager'
    return is_cheap and hasattr(policy._policy_step, 'kind')
