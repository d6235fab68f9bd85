"""Base of PPO and PPG: acting, transitions, samples of a rollout, passes over a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.backend.choose import Named, Wish, env_compiler, executor_label
from zoo.backend.executor import Acting, Compile, Executor, Numbers, Step, forward_for_acting
from zoo.config.components import make_part, name_of
from zoo.core.data import (
    Columns,
    Metrics,
    Obs,
    Rollout,
    Sample,
    State,
    Timestep,
    Transition,
    map_tensors,
)
from zoo.core.errors import UserError
from zoo.core.registry import (
    EXPLORATION_REGISTRY,
    INTRINSIC_REGISTRY,
    PLASTICITY_REGISTRY,
    PROXIMAL_REGISTRY,
)
from zoo.model.actor_critic import Networks
from zoo.model.check import probe, reached, unread_option
from zoo.policy.acting import NetworkPolicy
from zoo.policy.checks import (
    action_problem,
    exploration_of,
    memory_problem,
    parts_problem,
    unread_problem,
)
from zoo.policy.config import ActorCriticPolicyConfig
from zoo.policy.execution import Execution, set_intrinsic_ranks
from zoo.policy.gradient_steps import clips_values
from zoo.policy.loss_terms import Objective, Rates
from zoo.policy.metrics import adv_abs_max, total_loss
from zoo.policy.options.off_policy_correction import Correction, correction_of, correction_problem
from zoo.policy.passes import Epochs, Trained
from zoo.policy.samples import Advantages, in_pieces
from zoo.policy.sequences import (
    first_rows,
    length_of,
    n_copy,
    n_entry,
    once,
    rows_of,
    run_model,
    stride_of,
)
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.rl_utils.optimizer import FlatOptimizer
from zoo.rl_utils.ppo import weighted_mean

NOTHING_LEFT = (
    'policy.learn.freeze leaves nothing to train of the actor, or nothing of the critic, and each has gradient steps of its own '
    'here; freeze fewer, or use policy.type=ppo with one learning rate, which trains both together'
)


class ActorCriticPolicy(NetworkPolicy):
    """Collects and evaluates with `compute_actor`, judges with `compute_critic`.

    Reads cfg.collect (OnPolicyCollectConfig) and cfg.learn (ActorCriticLearnConfig).
    """

    cfg: ActorCriticPolicyConfig
    scheduled: ClassVar[tuple[str, ...]] = ('learning_rate', 'clip_ratio', 'entropy_weight')
    """Fields of cfg.learn that follow the env steps; their present values are in `_rates`, and are logged."""
    announces_gradients: ClassVar[bool] = True

    @property
    def _keep_transitions(self) -> bool:
        """Whether samples also hold what a recomputation of the advantages needs."""
        return self._recomputes or self._correction.estimator is not None

    @property
    def _recomputes(self) -> bool:
        """Whether each pass but the first begins with a recomputation of the advantages."""
        return bool(self.cfg.learn.get('recompute_adv'))

    @abstractmethod
    def _make_optimizers(self) -> dict[str, FlatOptimizer]:
        """Every optimiser by name, for checkpoints and for counting skipped steps."""

    def _steps_per_env_step(self) -> float:
        """Gradient steps per env step, where each rollout is one batch."""
        return self._overlap / self._batch_size

    @property
    def _batch_size(self) -> int:
        """Samples of a minibatch; of policies without a number of them, those of a rollout."""
        return self.cfg.learn.batch_size or self.cfg.collect.n_sample or self.cfg.collect.n_step

    @property
    def _overlap(self) -> float:
        """Samples that are learned from per env step: above 1 where sequences of whole rollouts overlap."""
        is_drawn = self.run.n_draw is not None  # then the samples of a draw are counted
        return 1.0 if is_drawn or not self._has_state else n_copy(self.cfg.learn.sequence, self.cfg.collect.n_step)

    @cached_property
    def _objective(self) -> Objective:
        """The losses; there before the model, since they may ask for another head of its critic."""
        return Objective(self.cfg.learn)

    def _make_model(self) -> nn.Module:
        model = super()._make_model()
        if self._objective.n_value > 1:
            predict = getattr(model, 'predict_distribution', None)
            if predict is None:
                raise UserError(
                    f'policy.learn.value_loss is {self._objective.value_loss.name!r}, for a critic that predicts a '
                    f'distribution of returns, but model {type(model).__name__} has no predict_distribution(); use mse'
                )
            predict(self._objective.n_value, self._objective.value_loss.decode)
        return model

    def _build(self) -> None:
        self._explore = make_part(EXPLORATION_REGISTRY, exploration_of(self.cfg.collect))
        self._correction: Correction = correction_of(self.cfg.learn)
        super()._build()
        self._advantages = Advantages(self.cfg, self._normalizers, self._objective.reads_old_value, self.run.ranks)
        if 'learn' in self._fields:
            self._mode.warn_of_difference()
        probe(self._model, self.obs_space, self._dist, self.device)
        self._acts_with_value = self._has_state or bool(getattr(self._model, 'one_trunk', False))
        if problem := next(filter(None, self._problems()), None):
            raise UserError(problem)
        self._execution = Execution(self._model, self._dist, self.device, self._wish())

    def _wish(self) -> Wish:
        """What is asked of the executor: of a policy that only evaluates, nothing."""
        cfg, run, objective = self.cfg.learn, self.run, self._objective
        n_step = None if run.max_env_step is None else run.max_env_step * self._steps_per_env_step()
        if not {'learn', 'collect'} & set(self._fields):
            return Wish('eager', cfg.compile, n_step)
        parts = [
            *objective.parts,
            Named('proximal policy', objective.proximal),
            Named('optimizer', name_of(cfg.optimizer)),
        ]
        options = {
            'accumulate': cfg.accumulate != 1,
            'grad_clip_value': cfg.grad_clip_value,
            'precision': cfg.precision != 'fp32',
        }
        parts += [Named('option', f'policy.learn.{name}') for name, is_set in options.items() if is_set]
        is_summed = f'gradients are summed over {run.ranks.size} ranks' if run.ranks.size > 1 else ''
        why = ' and '.join(filter(None, (run.eager_only, is_summed)))
        exploration = name_of(exploration_of(self.cfg.collect))
        return Wish(cfg.executor, cfg.compile, n_step, parts=tuple(parts), eager_only=why, exploration=exploration)

    def check_fields(self) -> None:
        defaults = type(self).config()
        if problem := unread_problem(self.cfg, defaults, self._objective, self.run.n_draw, self._has_state):
            raise UserError(problem)
        if self.given_model is None and isinstance(self._model, Networks):
            if problem := unread_option(self.cfg.model, self._dist, self.action_space):
                raise UserError(problem)

    def _problems(self) -> Iterator[str]:
        """What does not fit together, each as a sentence, '' where all is well."""
        cfg, batch_size = self.cfg, self._batch_size
        yield action_problem(self._dist, self._action_map.mode)
        yield parts_problem(cfg, self._objective, self.given_model, self._explore, self._dist, self.device)
        yield correction_problem(cfg, self._has_state, self.run.n_draw)
        yield memory_problem(cfg, self._has_state, self._fields, batch_size, self._recomputes)
        if cfg.learn.plasticity is not None:
            from zoo.policy.options.plasticity import plasticity_problem

            part = make_part(PLASTICITY_REGISTRY, cfg.learn.plasticity)
            yield plasticity_problem(part, [name for name, p in self._model.named_parameters() if p.requires_grad])

    @property
    def _executor(self) -> Executor:
        return self._execution.executor

    @property
    def executor_name(self) -> str:
        return executor_label(self._executor)

    @property
    def sequence_len(self) -> int:
        return self.cfg.learn.sequence.len if self._has_state else 1

    @property
    def sequence_stride(self) -> int:
        return stride_of(self.cfg.learn.sequence) if self._has_state else 1

    @property
    def compile_env(self) -> Compile | None:
        return env_compiler(self._execution.wish, self.device)

    def _init_collect(self) -> None:
        super()._init_collect()
        self._ignore_done = self.cfg.learn.ignore_done
        self._make_intrinsic()
        self._make_normalizers()

    def _make_intrinsic(self) -> None:
        """The intrinsic reward, which collecting measures and learning trains."""
        spec = self.cfg.learn.intrinsic
        if spec is not None and self._intrinsic is None:
            part = make_part(INTRINSIC_REGISTRY, spec, self.obs_space, self.device, self.seed)
            set_intrinsic_ranks(part, self.run.ranks)
            self._advantages.intrinsic = part

    @property
    def _intrinsic(self) -> Any:
        return self._advantages.intrinsic

    def _init_eval(self) -> None:
        self._make_normalizers()

    def _make_normalizers(self) -> None:
        for name in ('reward', 'value'):
            if getattr(self.cfg.learn, f'{name}_norm') and name not in self._normalizers:
                self._normalizers[name] = RunningMeanStd().to(self.device)
                self._normalizers[name].ranks = self.run.ranks

    def _behaviour(self, logit: Tensor) -> Tensor:
        return logit if self._explore.name == 'sample' else self._explore(self._dist, logit)

    def _start_acting(self, obs: Obs, first: int = 0) -> Acting:
        if self._acts_by_itself:
            return super()._start_acting(obs, first)
        explore = None if self._explore.name == 'sample' else self._explore
        draw = partial(self._noise.rollout, first=first)
        acting = self._executor.start_acting(obs, draw, self._acts_with_value, explore)
        return acting or super()._start_acting(obs, first)

    def _judge(self, obs: Obs, with_value: bool) -> tuple[ActionDist, Tensor, Tensor | None]:
        has_value = with_value and self.cfg.learn.baseline != 'none'
        output = forward_for_acting(self._model, self._on_device(obs), has_value)
        value = self._advantages.in_return_units(output['value']) if has_value else None
        return self._dist, output['logit'], value

    def _process_transition(self, obs: Obs, output: dict[str, Any], timestep: Timestep) -> Transition:
        transition = super()._process_transition(obs, output, timestep)
        transition['logit'] = output['logit']  # of the policy that acted, to which the ratio is
        if self._ignore_done:
            transition['done'] = torch.zeros_like(timestep.terminated)
        if 'value' in output:
            transition['value'] = output['value']
        if 'state' in output:
            transition |= {'state': output['state'], 'is_first': first_rows(timestep)}
        return transition

    def _get_train_sample(self, rollout: Rollout) -> Sample:
        return self._advantages.samples(rollout.to(self.device), self._compute_critic, self._keep_transitions)

    def _compute_critic(self, obs: Obs, state: State = None) -> Tensor:
        return in_pieces(self._executor.compute_critic, obs, state)

    def _update_value_statistics(self, batch: Columns) -> None:
        self._advantages.update_statistics(batch)

    def _update_obs_statistics(self, batch: Columns) -> None:
        """After the update, so that a rollout's first minibatch is compared with the very policy that collected it."""
        update = getattr(self._model, 'update_normalizer', None)  # a model need not keep any
        if update is not None:
            rows = rows_of(batch)
            update(rows['obs'], once(rows))

    def _after_update(self, batch: Columns) -> Metrics:
        """What follows the gradient steps of an update: statistics, the intrinsic reward's own steps, plasticity."""
        self._update_obs_statistics(batch)
        found = {} if self._intrinsic is None else self._intrinsic.update()
        if self._objective.n_value > 1:
            return_ = self._advantages.targets(batch)['return_']
            found['return_outside'] = self._objective.value_loss.is_outside(return_).float().mean()
        if self._regrowth is not None and self._regrowth.after_update():
            for optimizer in self._optimizers.values():  # of another policy than it is now
                optimizer.reset_average()
        return found

    def _reset_collect(self) -> None:
        self._advantages.reset()

    def _forget_envs(self, envs: slice) -> None:
        self._advantages.forget(envs)

    def _load_state_dict_collect(self, state: dict[str, Any]) -> None:
        self._reset_collect()

    def _init_learn(self) -> None:
        self._make_normalizers()
        self._make_intrinsic()
        self._optimizers = self._make_optimizers()
        steps_apart = 'critic' in self._optimizers or not self._coefficients().get('value_weight', 1)
        if self.cfg.learn.get('freeze') and steps_apart and not reached(self._model, self.obs_space, 'compute_actor'):
            raise UserError(NOTHING_LEFT)
        self._epochs = Epochs(self.cfg.learn, self._mode, self.seed, self.device, self.run.ranks)
        self._rates = Rates(self.cfg.learn, self._scheduled())
        self._regrowth = None
        if self.cfg.learn.plasticity is not None:
            from zoo.policy.options.plasticity import Regrowth

            self._regrowth = Regrowth(make_part(PLASTICITY_REGISTRY, self.cfg.learn.plasticity), self._model, self.seed)
        self._set_env_step(0)

    def _follow_model(self) -> None:
        for optimizer in self._optimizers.values():
            optimizer.reset_average()
        if self._regrowth is not None:
            self._regrowth.begin()

    def _make_optimizer(self, named: Iterable[tuple[str, nn.Parameter]]) -> FlatOptimizer:
        cfg = self.cfg.learn
        optimizer = super()._make_optimizer(named)
        optimizer.configure(
            accumulate=cfg.accumulate,
            grad_clip_value=cfg.grad_clip_value,
            precision=cfg.precision,
            average_decay=self._average_decay(),
        )
        return optimizer

    @property
    def _nothing_left(self) -> str:
        return NOTHING_LEFT

    def _average_decay(self) -> float | None:
        is_averaged = self._objective.proximal == 'ewma'
        return make_part(PROXIMAL_REGISTRY, self.cfg.learn.proximal)() if is_averaged else None

    def _scheduled(self) -> tuple[str, ...]:
        """The fields of `scheduled`, and the critic's rate where it has one of its own."""
        own = () if self.cfg.learn.critic_learning_rate is None else ('critic_learning_rate',)
        return (*self.scheduled, *own)

    def _set_learning_rates(self) -> None:
        self._rates.refresh()
        rate = self._rates['learning_rate']
        for name, optimizer in self._optimizers.items():
            optimizer.lr = self._rates.get('critic_learning_rate', rate) if name == 'critic' else rate

    def _set_env_step(self, env_step: int) -> None:
        super()._set_env_step(env_step)
        self._rates.set_env_step(env_step)
        self._objective.set_env_step(env_step)

    @property
    def _policy_step(self) -> Step | None:
        """The gradient step on the policy."""
        return getattr(self, 'step', None)

    @property
    def _value_step(self) -> Step | None:
        """The gradient step on the critic."""
        return self._policy_step

    def _measures_kl(self, step: Step | None) -> bool:
        """Whether steps report kl and ratio_max: where it costs next to nothing, and always with target_kl.

        Eager steps on a GPU have kernels without these; steps that are not zoo's own report what they like.
        """
        is_cheap = self.device.type == 'cpu' or self._executor.name != 'eager'
        return self.cfg.learn.target_kl is not None or (is_cheap and hasattr(step, 'kind'))

    def _coefficients(self) -> dict[str, float]:
        """Constant weights of the losses, by the name of their metric."""
        return {}

    def _metrics_of(self, batch: Columns, trained: Trained) -> Metrics:
        """The metrics of passes of the policy, and those of the batch that they were on."""
        total = {} if trained.total_loss is None else {'total_loss': trained.total_loss}
        return {**trained.metrics, **total, 'adv_abs_max': adv_abs_max(batch)}

    @property
    def _follows_kl(self) -> bool:
        """Whether a rate or a weight follows how far an update moves the policy."""
        return self._rates.follow_kl or self._objective.follows_target

    def _train(
        self,
        batch: Columns,
        n_epoch: int,
        step: Step,
        optimizers: Sequence[FlatOptimizer],
        numbers: Numbers,
        batch_size: int | None,
    ) -> Trained:
        """Passes over a batch, a step for each minibatch, until n_epoch or target_kl."""
        advantages = self._advantages
        renew = (lambda: advantages.targets(self._recompute(batch))) if self._recomputes else None
        columns = advantages.targets(batch)
        return self._epochs.run(self._executor, step, optimizers, numbers, n_epoch, columns, renew, batch_size)

    def _train_policy_epochs(
        self, batch: Columns, n_epoch: int, step: Step, optimizers: Sequence[FlatOptimizer], value_weight: float
    ) -> Trained:
        """`_train` of a step on the policy, after which the weights of penalties and an adaptive rate follow the KL."""
        numbers = self._objective.policy_numbers(self._rates, value_weight, self._measures_kl(step))
        if self._objective.proximal == 'recent':
            batch = {**batch, 'logit_proximal': self._logit_of(batch)}
        before = self._logit_of(batch) if self._follows_kl else None
        trained = self._train(batch, n_epoch, step, optimizers, numbers, self.cfg.learn.batch_size)
        if hasattr(step, 'kind'):
            trained = trained._replace(total_loss=total_loss(trained.metrics, numbers))
        if before is not None:
            kl = self._kl_of_update(batch, before)
            self._rates.adapt(float(kl))
            self._objective.adapt({**trained.last(), 'penalty_kl': kl}, self.run.ranks)
            trained.metrics['update_kl'] = kl
        return trained

    @torch.no_grad()
    def _kl_of_update(self, batch: Columns, before: Tensor) -> Tensor:
        """The mean KL(before || now) over the batches of all ranks, of logits as `_logit_of` gives them."""
        rows = self._dist.kl(before.flatten(0, before.dim() - 2), self._logit_of(batch).flatten(0, before.dim() - 2))
        weight = batch.get('weight')
        if self.run.ranks.size == 1:
            return weighted_mean(rows, None if weight is None else weight.flatten())
        weight = torch.ones_like(rows) if weight is None else weight.flatten()
        total = self.run.ranks.sum_(torch.stack(((rows * weight).sum(), weight.sum())).double())
        return total[0] / total[1].clamp(min=1)

    def _recompute(self, batch: Columns) -> dict[str, Any]:
        """The batch with values, advantages and returns of the critic as it is now."""
        if self._correction.estimator is None and name_of(self.cfg.collect.estimator) != 'vtrace':
            return self._advantages.recomputed(batch, self._compute_critic)
        now, then = (self._dist.log_prob(x, batch['action']) for x in (self._logit_of(batch), batch['logit']))
        return self._advantages.recomputed(batch, self._compute_critic, now - then)

    def _corrected(self, batch: Columns) -> Columns:
        """The batch as an update begins: of a correction by ratios with advantages and returns that are weighed by them."""
        return batch if self._correction.estimator is None else self._recompute(batch)

    @torch.no_grad()
    def _logit_of(self, batch: Columns) -> Tensor:
        """Logits of the policy as it is now, in the shape of the batch's."""
        rows = max(self._batch_size // length_of(batch), 1)
        pieces = [
            run_model(self._model, 'compute_actor', map_tensors(lambda x: x[i : i + rows], batch))['logit']  # noqa: B023
            for i in range(0, n_entry(batch), rows)
        ]
        return torch.cat(pieces).view_as(batch['logit'])

    def _learner_metrics(self, n_epoch: int) -> Metrics:
        """How the update went as a whole, and the values of the schedules. Waits for the device, once a batch."""
        n_skipped = sum(o.count_skipped(self.cfg.learn.nonfinite_limit) for o in self._optimizers.values())
        numbers = {'n_epoch': n_epoch, 'skipped_step': n_skipped, **self._rates, **self._objective.metrics()}
        numbers |= self._coefficients()
        return dict(zip(numbers, torch.tensor([*numbers.values()], dtype=torch.float64).unbind(), strict=True))

    def _monitor_vars_learn(self) -> list[str]:
        names = ['policy_loss', 'value_loss', 'entropy', 'approx_kl', 'clipfrac', 'grad_norm', 'explained_variance']
        names += ['n_epoch', 'skipped_step', *self._scheduled(), *self._objective.names]
        names += [] if self._intrinsic is None else self._intrinsic.names
        names += ['update_kl'] if self._follows_kl else []
        names += ['adv_abs_max', *self._coefficients(), *(['total_loss'] if hasattr(self._policy_step, 'kind') else [])]
        is_clipped = clips_values(self._objective.value_loss) and hasattr(self._value_step, 'kind')
        names += ['value_clipfrac'] if is_clipped else []
        return names + (['kl', 'ratio_max'] if self._measures_kl(self._policy_step) else [])

    def _get_train_iter(self) -> int:
        return self._epochs.train_iter

    def _state_dict_learn(self) -> dict[str, Any]:
        state = {
            'optimizer': {name: optimizer.state_dict() for name, optimizer in self._optimizers.items()},
            **self._epochs.state_dict(),
        }
        adaptive = {'penalty_weight': self._objective.state_dict(), 'adaptive_rate': self._rates.state_dict()}
        for name, part in (('plasticity', self._regrowth), ('intrinsic', self._intrinsic)):
            adaptive[name] = {} if part is None else part.state_dict()
        return state | {name: x for name, x in adaptive.items() if x}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        for name, optimizer in self._optimizers.items():
            optimizer.load_state_dict(state['optimizer'][name])
        self._epochs.load_state_dict(state)
        self._objective.load_state_dict(state.get('penalty_weight', {}))
        for name, part in (('plasticity', self._regrowth), ('intrinsic', self._intrinsic)):
            if part is not None and name in state:
                part.load_state_dict(state[name])
        self._rates.load_state_dict(state.get('adaptive_rate', {}))
