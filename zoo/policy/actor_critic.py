"""What PPO and PPG share: acting, what a transition remembers, how a rollout becomes samples, passes over a batch."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from zoo.backend.choose import Wish, choose_executor, env_compiler, executor_label
from zoo.backend.executor import Acting, Compile, ForwardActing, Pass, Step, forward_for_acting
from zoo.config.schedule import schedule_value
from zoo.core.data import (
    Columns,
    Metrics,
    Obs,
    Rollout,
    Sample,
    State,
    Transition,
    first_leaf,
    keeps_state,
    map_tensors,
)
from zoo.core.errors import UserError
from zoo.core.seeding import restore_generator, torch_generator
from zoo.core.transfer import send
from zoo.model.networks import Networks
from zoo.model.probe import probe
from zoo.model.unread import unread_option
from zoo.policy.base import Policy
from zoo.policy.modes import ModelMode
from zoo.policy.samples import TRANSITION_ONLY, in_pieces, rollout_values, scaled_reward, valid_weight
from zoo.policy.sequences import (
    SequenceConfig,
    cut,
    first_rows,
    length_of,
    n_copy,
    n_entry,
    once,
    rows_of,
    sequence_problem,
    states_before,
    stride_of,
)
from zoo.policy.updates import PolicyNumbers, ValueNumbers
from zoo.rl_utils.distribution import ActionDist, make_dist
from zoo.rl_utils.gae import gae_data, gae_return, normalize_advantage
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.rl_utils.optimizer import FlatAdam

NO_INPUT = frozenset(
    ('reward', 'done', 'traj_flag', 'next_obs', 'staleness', 'is_repeat')
)  # columns that no step reads

logger = logging.getLogger(__name__)


class ActorCriticPolicy(Policy):
    """Collects and evaluates with `compute_actor`, judges with `compute_critic`.

    The model is in eval mode, except during gradient steps, see `ModelMode`.
    Reads cfg.collect (OnPolicyCollectConfig) and cfg.learn (ActorCriticLearnConfig).
    """

    scheduled: ClassVar[tuple[str, ...]] = ('learning_rate', 'clip_ratio', 'entropy_weight')
    """Fields of cfg.learn that follow the env steps; their present values are in `_rates`, and are logged."""
    _keep_transitions = False  # samples also hold what a recomputation of the advantages needs

    @abstractmethod
    def _make_optimizers(self) -> dict[str, FlatAdam]:
        """Every optimiser by name, for checkpoints and for counting skipped steps."""

    def _steps_per_env_step(self) -> float:
        """Gradient steps per env step, where each rollout is one batch."""
        return self._overlap / self.cfg.learn.batch_size

    @property
    def _overlap(self) -> float:
        """Samples that are learned from per env step: above 1 where sequences of whole rollouts overlap."""
        is_drawn = self.run.n_draw is not None  # then the samples of a draw are counted
        return 1.0 if is_drawn or not self._has_state else n_copy(self.cfg.learn.sequence, self.cfg.collect.n_step)

    def _build(self) -> None:
        self._dist: ActionDist = getattr(self._model, 'dist', None) or make_dist(self.action_space)
        self._check_action_mode()
        self._mode = ModelMode(self._model, self.device)
        if 'learn' in self._fields:
            self._mode.warn_of_difference()
        probe(self._model, self.obs_space, self._dist, self.device)
        self._has_state = keeps_state(self._model)
        self._acts_with_value = self._has_state or bool(getattr(self._model, 'one_trunk', False))
        if problem := self._sequence_problem():
            raise UserError(problem)
        self._choose_executor()

    def check_fields(self) -> None:
        if self.given_model is None and isinstance(self._model, Networks):
            if problem := unread_option(self.cfg.model, self._dist, self.action_space):
                raise UserError(problem)

    def _check_action_mode(self) -> None:
        if self._dist.is_bounded and self._action_map.mode == 'rescale':
            raise UserError(
                f"env.action_mode is 'rescale' but the actions of a {self._dist.name} distribution lie between the "
                "bounds already; use env.action_mode 'clip'"
            )

    def _sequence_problem(self) -> str:
        """Why the model cannot be trained on the sequences of this config, in a sentence; empty if it can."""
        cfg, is_given = self.cfg, self.cfg.learn.sequence != SequenceConfig().model_dump()
        if not self._has_state and is_given:
            return (
                'policy.learn.sequence is given but the model has no recurrent state: nothing would be cut into '
                'sequences; leave it out, or give policy.model.recurrent, e.g. {cell: lstm}'
            )
        if not self._has_state:
            return ''
        if 'learn' in self._fields and self._keep_transitions:
            return (
                'policy.learn.recompute_adv is true but the model has a recurrent state, whose rollouts are cut into '
                'sequences; use recompute_adv=false'
            )
        only_acts = not {'learn', 'collect'} & set(self._fields)
        return '' if only_acts else sequence_problem(cfg.learn.sequence, cfg.collect.n_step, cfg.learn.batch_size)

    def _choose_executor(self, is_copy: bool = False) -> None:
        """The executor that the config asks for; a policy that only evaluates needs none, and a copy takes another."""
        cfg, length = self.cfg.learn, self.run.max_env_step
        n_step = None if length is None else length * self._steps_per_env_step()
        only_evaluates = not {'learn', 'collect'} & set(self._fields)
        self._wish = Wish('eager' if only_evaluates else cfg.executor, cfg.compile, n_step, is_quiet=is_copy)
        try:
            self._executor = choose_executor(self._model, self._dist, self.device, self._wish)
        except UserError:
            if not is_copy:
                raise
            self._wish = Wish('auto', 'auto', n_step, is_quiet=True)
            self._executor = choose_executor(self._model, self._dist, self.device, self._wish)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != '_executor'}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._choose_executor(is_copy=True)

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
        return env_compiler(self._wish, self.device)

    def _init_collect(self) -> None:
        self._noise_generator = torch_generator(self.seed, 'collect', self.device)
        self._noise: dict[Any, list[Tensor]] = {}
        self._reward_sum: Tensor | None = None
        self._ignore_done = self.cfg.learn.ignore_done
        self._make_normalizers()

    def _init_eval(self) -> None:
        self._make_normalizers()

    def _make_normalizers(self) -> None:
        for name in ('reward', 'value'):
            if getattr(self.cfg.learn, f'{name}_norm') and name not in self._normalizers:
                self._normalizers[name] = RunningMeanStd().to(self.device)

    def _forward_collect(self, obs: Obs, state: State = None) -> dict[str, Any]:
        """{action, logit}, and value (in the critic's unit) where it costs little: from one trunk, or with a state."""
        return self._act(obs, state, None)

    def _start_acting(self, obs: Obs) -> Acting:
        if getattr(self._forward_collect, '__func__', None) is not ActorCriticPolicy._forward_collect:
            return super()._start_acting(obs)
        key = object()  # noise of its own for every group of envs
        acting = self._executor.start_acting(obs, self._draw_noise, self._acts_with_value)
        return acting or ForwardActing(lambda x, state: self._act(x, state, key), obs, self._initial_state())

    def _act(self, obs: Obs, state: State, key: Any) -> dict[str, Any]:
        output = forward_for_acting(self._model, self._on_device(obs), self._acts_with_value, state)
        n_env = len(output['logit'])
        return {'action': self._dist.sample(output['logit'], self._next_noise(n_env, key)), **output}

    @torch.inference_mode()
    def _forward_eval(self, obs: Obs, state: State = None) -> dict[str, Any]:
        output = forward_for_acting(self._model, self._on_device(obs), False, state)
        return {'action': self._dist.mode(output.pop('logit')), **output}

    def _env_action(self) -> Callable[[Tensor], Tensor] | None:
        return self._dist.env_action if self._dist.is_bounded else None

    def _on_device(self, obs: Obs) -> Obs:
        return obs if first_leaf(obs).device == self.device else map_tensors(lambda x: send(x, self.device), obs)

    def _next_noise(self, n_env: int, key: Any) -> Tensor:
        """One step's noise; for each key drawn for a whole rollout, and again when the number of envs changes."""
        noise = self._noise.get(key)
        if not noise or len(noise[-1]) != n_env:
            noise = self._noise[key] = list(self._draw_noise(n_env).unbind(0))[::-1]
        return noise.pop()

    def _draw_noise(self, n_env: int) -> Tensor:
        return self._dist.noise((self.cfg.collect.n_step, n_env), self._noise_generator, self.device)

    def _process_transition(self, obs: Tensor, output: dict[str, Any], timestep: Any) -> Transition:
        terminated = timestep.terminated
        transition: Transition = {
            'obs': obs,
            'action': output['action'],
            'logit': output['logit'],
            'reward': timestep.reward,
            'done': torch.zeros_like(terminated) if self._ignore_done else terminated,
            'traj_flag': terminated | timestep.truncated,
        }
        if timestep.is_reset is not None:
            transition['is_reset'] = timestep.is_reset
        if 'value' in output:
            transition['value'] = output['value']
        if 'state' in output:
            transition |= {'state': output['state'], 'is_first': first_rows(timestep)}
        return transition

    @torch.no_grad()
    def _get_train_sample(self, rollout: Rollout) -> Sample:
        rollout, cfg = rollout.to(self.device), self.cfg
        data = rollout.data
        weight = valid_weight(data['is_reset']) if 'is_reset' in data else None
        reward = data['reward']
        if cfg.learn.reward_norm:
            statistics, gamma = self._normalizers['reward'], cfg.learn.reward_norm_discount
            gamma = cfg.collect.discount_factor if gamma is None else gamma
            reward, self._reward_sum = scaled_reward(data, weight, self._reward_sum, gamma, statistics)
        outputs = rollout_values(rollout, self._compute_critic)
        value, next_value = map(self._in_return_units, outputs)
        adv, return_ = self._advantage(value, next_value, reward, data['done'], data['traj_flag'])
        kept = {name: x for name, x in data.items() if name not in TRANSITION_ONLY}
        samples = {**kept, 'value': value, 'adv': adv, 'return_': return_, **self._clip_centre(outputs[0])}
        if weight is not None:
            samples['weight'] = weight
        if 'state' in data:
            before = states_before(data['state'], rollout.state)
            return cut(samples, before, data['is_first'], cfg.learn.sequence)
        if self._keep_transitions:
            ends = {'done': data['done'], 'traj_flag': data['traj_flag']}
            samples |= {'reward': reward, **ends, 'next_obs': rollout.next_obs()}
        return map_tensors(lambda x: x.flatten(0, 1), samples)  # [T, B] -> [N]

    def _compute_critic(self, obs: Obs, state: State = None) -> Tensor:
        return in_pieces(self._executor.compute_critic, obs, state)

    def _in_return_units(self, value: Tensor) -> Tensor:
        return self._normalizers['value'].restore(value) if self.cfg.learn.value_norm else value

    def _clip_centre(self, output: Tensor) -> Metrics:
        """The column 'value_output' of the samples, where value_clip needs it: what the critic put out, in its own unit.

        value_clip limits how far gradient steps move the critic's output, so its centre is the output that was there
        before the first of them, also in later draws from a buffer. The column 'value' cannot give it back: it is in
        return units, and the statistics that lead back move with the samples' own returns before the first step.
        (They do so before it, so that the critic's new outputs are read by the statistics that it learned them in.)
        """
        return {'value_output': output} if self.cfg.learn.value_norm and self.cfg.learn.value_clip else {}

    def _advantage(
        self, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, traj_flag: Tensor
    ) -> tuple[Tensor, Tensor]:
        """adv and return_, [T, B] each, in return units."""
        collect = self.cfg.collect
        data = gae_data(value, next_value, reward, done, traj_flag)
        return gae_return(data, collect.discount_factor, collect.gae_lambda)[:2]

    def _update_obs_statistics(self, batch: Columns) -> None:
        """After the update, so that a rollout's first minibatch is compared with the very policy that collected it."""
        update = getattr(self._model, 'update_normalizer', None)  # a model need not keep any
        if update is not None:
            rows = rows_of(batch)
            update(rows['obs'], once(rows))

    def _reset_collect(self) -> None:
        self._noise, self._reward_sum = {}, None

    def _state_dict_collect(self) -> dict[str, Any]:
        return {'generator': self._noise_generator.get_state()}

    def _load_state_dict_collect(self, state: dict[str, Any]) -> None:
        restore_generator(self._noise_generator, state['generator'])
        self._reset_collect()

    def _init_learn(self) -> None:
        self._make_normalizers()
        self._optimizers = self._make_optimizers()
        self._order_generator = torch_generator(self.seed, 'learn', self.device)
        self._train_iter, self._warned = 0, False
        self._set_env_step(0)

    def _scheduled(self) -> tuple[str, ...]:
        """The fields of `scheduled`, and the critic's rate where it has one of its own."""
        own = () if self.cfg.learn.critic_learning_rate is None else ('critic_learning_rate',)
        return (*self.scheduled, *own)

    def _set_learning_rates(self) -> None:
        rate = self._rates['learning_rate']
        for name, optimizer in self._optimizers.items():
            optimizer.lr = self._rates.get('critic_learning_rate', rate) if name == 'critic' else rate

    def _set_env_step(self, env_step: int) -> None:
        self._rates = {name: schedule_value(self.cfg.learn[name], env_step) for name in self._scheduled()}
        if self._rates['learning_rate'] == 0 and not self._warned:
            self._warned = True
            logger.warning(
                'policy.learn.learning_rate is 0 from env step %d on: nothing more is learned; resume with '
                'another, e.g. policy.learn.learning_rate=1e-4',
                env_step,
            )

    def _policy_numbers(self, value_weight: float = 0.0, kl_penalty: float | None = None) -> PolicyNumbers:
        cfg, value = self.cfg.learn, self._value_numbers()
        return PolicyNumbers(
            value.clip_ratio,
            self._rates['entropy_weight'],
            cfg.dual_clip,
            kl_penalty,
            cfg.grad_clip,
            cfg.target_kl is not None,
            value_weight,
            cfg.value_clip,
        )

    def _value_numbers(self) -> ValueNumbers:
        cfg = self.cfg.learn  # a schedule may end at 0, the loss needs a range
        return ValueNumbers(max(self._rates['clip_ratio'], 1e-6), cfg.value_clip, cfg.grad_clip)

    def _train_epochs(
        self, batch: Columns, n_epoch: int, step: Step, optimizers: Sequence[FlatAdam], numbers: Any
    ) -> tuple[Metrics, int]:
        """Passes over a batch, a step for each minibatch, until n_epoch or target_kl; -> mean metrics, passes."""
        cfg, found, n_done = self.cfg.learn, [], 0
        n_pass = 1 if cfg.target_kl is not None or self._keep_transitions else n_epoch  # at once, if nothing intervenes
        columns = self._targets(batch)
        n_row = max(cfg.batch_size // length_of(columns), 1)  # or sequences
        while n_done < n_epoch:
            if n_done and self._keep_transitions:
                columns = self._targets(self._recompute(batch))
            order = torch.stack([self._draw_order(n_entry(columns)) for _ in range(n_pass)])
            data = Pass(columns, order, n_row, self.device, cfg.adv_norm == 'minibatch')
            found.append(self._run_steps(step, optimizers, data, numbers))
            n_done += n_pass
            self._train_iter += len(next(iter(found[-1].values())))
            if 'kl' in found[-1] and bool(found[-1]['kl'].mean() > 1.5 * cfg.target_kl):
                break
        return {name: torch.cat([metrics[name] for metrics in found]).mean() for name in found[0]}, n_done

    def _run_steps(self, step: Step, optimizers: Sequence[FlatAdam], data: Pass, numbers: Any) -> Metrics:
        """Passes of gradient steps, which see the model in training mode; all else sees it in eval mode."""
        with self._mode.steps(self.seed, self._train_iter):
            return self._executor.run(step, optimizers, data, numbers)

    def _draw_order(self, n: int, device: torch.device | None = None) -> Tensor:
        """A permutation of n rows, on a device (None: the policy's)."""
        order = torch.randperm(n, generator=self._order_generator, device=self._order_generator.device)
        return order.to(self.device if device is None else device)

    @torch.no_grad()
    def _targets(self, batch: Columns) -> dict[str, Tensor]:
        """What a step reads: values in the unit of the critic's output, advantages of the batch normalised.

        'value' is the critic's output before the first step where value_clip reads it, see `_clip_centre`.
        """
        cfg = self.cfg.learn
        columns = {name: x for name, x in batch.items() if name not in NO_INPUT}
        if cfg.value_norm:
            for key in ('value', 'return_'):
                columns[key] = self._normalizers['value'].standardize(columns[key])
            columns['value'] = columns.pop('value_output', columns['value'])
        if cfg.adv_norm == 'batch':
            adv, weight = columns['adv'], columns.get('weight')
            columns['adv'] = normalize_advantage(adv.flatten(), None if weight is None else weight.flatten()).view_as(
                adv
            )
        return columns

    @torch.no_grad()
    def _recompute(self, batch: Columns) -> dict[str, Any]:
        """The batch with values, advantages and returns of the critic as it is now (arXiv:2006.05990, sec. 3.5)."""
        n_step = self.cfg.collect.n_step
        outputs = [self._compute_critic(batch[key]).view(n_step, -1) for key in ('obs', 'next_obs')]
        value, next_value = map(self._in_return_units, outputs)
        reward, done, traj_flag = (batch[key].view(n_step, -1) for key in ('reward', 'done', 'traj_flag'))
        adv, return_ = self._advantage(value, next_value, reward, done, traj_flag)
        found = {'value': value, 'adv': adv, 'return_': return_, **self._clip_centre(outputs[0])}
        return {**batch, **{name: x.flatten() for name, x in found.items()}}

    def _update_value_statistics(self, batch: Columns) -> None:
        if self.cfg.learn.value_norm:
            rows = rows_of(batch)
            self._normalizers['value'].update(rows['return_'], once(rows))

    def _learner_metrics(self, n_epoch: int) -> Metrics:
        """How the update went as a whole, and the values of the schedules. Waits for the device, once a batch."""
        n_skipped = sum(o.count_skipped(self.cfg.learn.nonfinite_limit) for o in self._optimizers.values())
        return {
            'n_epoch': torch.tensor(float(n_epoch)),
            'skipped_step': torch.tensor(float(n_skipped)),
            **{name: torch.tensor(value, dtype=torch.float64) for name, value in self._rates.items()},
        }

    def _monitor_vars_learn(self) -> list[str]:
        names = ['policy_loss', 'value_loss', 'entropy', 'approx_kl', 'clipfrac', 'grad_norm', 'explained_variance']
        names += ['n_epoch', 'skipped_step', *self._scheduled()]
        return names + (['kl'] if self.cfg.learn.target_kl is not None else [])

    def _get_train_iter(self) -> int:
        return self._train_iter

    def _state_dict_learn(self) -> dict[str, Any]:
        return {
            'optimizer': {name: optimizer.state_dict() for name, optimizer in self._optimizers.items()},
            'generator': self._order_generator.get_state(),
            'train_iter': self._train_iter,
        }

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        for name, optimizer in self._optimizers.items():
            optimizer.load_state_dict(state['optimizer'][name])
        restore_generator(self._order_generator, state['generator'])
        self._train_iter = state['train_iter']
