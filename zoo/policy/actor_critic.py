"""What PPO and PPG share: acting, what a transition remembers, how a rollout becomes samples, passes over a batch."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor

from zoo.backend.actor import Acting, CompiledActing, ForwardActing, judge
from zoo.backend.executor import Steps
from zoo.config.schedule import schedule_value
from zoo.core.data import Rollout
from zoo.core.seeding import restore_generator, torch_generator
from zoo.core.transfer import send
from zoo.model.probe import probe
from zoo.policy.base import Metrics, Policy
from zoo.policy.metrics import mean_of
from zoo.policy.updates import Minibatch, StepConfig, minibatches
from zoo.rl_utils.distribution import Logit, distribution_of, lead_shape
from zoo.rl_utils.gae import discounted_sum, gae_data, gae_return
from zoo.rl_utils.normalizer import RunningMeanStd, normalize_advantage
from zoo.rl_utils.optimizer import FlatAdam

CRITIC_CELLS = 1 << 24  # numbers in the observations of one pass of the critic over a rollout: 64 MB of float32

logger = logging.getLogger(__name__)


class ActorCriticPolicy(Policy):
    """Collects and evaluates with `compute_actor`, judges with `compute_critic`.

    Reads cfg.collect (OnPolicyCollectConfig) and cfg.learn (ActorCriticLearnConfig).
    """

    scheduled: ClassVar[tuple[str, ...]] = ('learning_rate', 'clip_ratio', 'entropy_weight')
    """Fields of cfg.learn that follow the env steps; their values of now are in `_rates`, and are logged."""
    _keep_transitions = False  # samples also hold what a recomputation of the advantages needs

    @abstractmethod
    def _make_optimizers(self) -> dict[str, FlatAdam]:
        """Every optimiser by name, for checkpoints and for counting skipped steps."""

    def _steps_per_env_step(self) -> list[float]:
        """Gradient steps of each kind per env step, where each rollout is one batch."""
        return [1 / self.cfg.learn.batch_size]

    def _build(self) -> None:
        self._compiled = False
        self._decided_for: int | None = -1  # the max_env_step that this was decided for
        probe(self._model, self.obs_space, self.action_space, self.device)
        self._one_trunk = bool(getattr(self._model, 'one_trunk', False))

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

    def _forward_collect(self, obs: Tensor, state: Any = None) -> dict[str, Any]:
        """{action, logit}, and value (in the critic's unit) where it comes from the trunk that the logit comes from."""
        return self._act(obs, None)

    def _start_acting(self, obs: Tensor) -> Acting:
        if getattr(self._forward_collect, '__func__', None) is not ActorCriticPolicy._forward_collect:
            return super()._start_acting(obs)
        if self.compiled:
            return CompiledActing(self._model, self._one_trunk, obs, self.device, self._draw_noise)
        key = object()  # noise of its own, as compiled acting has
        return ForwardActing(lambda obs, state: self._act(obs, key), obs)

    def _act(self, obs: Tensor, key: Any) -> dict[str, Any]:
        output = judge(self._model, send(obs, self.device), self._one_trunk)
        logit = output['logit']
        return {'action': distribution_of(logit).sample(logit, self._next_noise(logit, key)), **output}

    @torch.inference_mode()
    def _forward_eval(self, obs: Tensor, state: Any = None) -> dict[str, Any]:
        logit = self._model.compute_actor(send(obs, self.device))
        return {'action': distribution_of(logit).mode(logit)}

    def _next_noise(self, logit: Logit, key: Any) -> Tensor:
        """One step's noise; for each key drawn for a whole rollout, and anew when the number of envs changes."""
        noise = self._noise.get(key)
        if not noise or noise[-1].shape[:-1] != lead_shape(logit):
            noise = self._noise[key] = list(self._draw_noise(logit).unbind(0))[::-1]
        return noise.pop()

    def _draw_noise(self, logit: Logit) -> Tensor:
        return distribution_of(logit).noise(logit, self.cfg.collect.n_step, self._noise_generator)

    def _process_transition(self, obs: Tensor, output: dict[str, Any], timestep: Any) -> dict[str, Any]:
        terminated = timestep.terminated
        transition = {
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
        return transition

    @torch.no_grad()
    def _get_train_sample(self, rollout: Rollout) -> TensorDict:
        rollout = rollout.to(self.device)
        data = rollout.data
        weight = None
        # rows that only reset an env stay in the block with weight 0, the others are scaled to mean 1
        if 'is_reset' in data.keys():
            valid = (~data['is_reset']).to(torch.float32)
            weight = valid * (valid.numel() / valid.sum().clamp(min=1))
        reward = self._scaled_reward(data, weight) if self.cfg.learn.reward_norm else data['reward']
        value, next_value = self._values(rollout)
        adv, return_ = self._advantage(value, next_value, reward, data['done'], data['traj_flag'])
        samples = {
            'obs': data['obs'],
            'action': data['action'],
            'logit': data['logit'],
            'value': value,
            'adv': adv,
            'return_': return_,
        }
        if weight is not None:
            samples['weight'] = weight
        if self._keep_transitions:
            samples |= {
                'reward': reward,
                'done': data['done'],
                'traj_flag': data['traj_flag'],
                'next_obs': rollout.next_obs(),
            }
        return TensorDict(samples, batch_size=data.batch_size, device=self.device).flatten(0, 1)  # [T, B] -> [N]

    def _values(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Values of all rows and of their true successors, [T, B] each; the critic sees only what it has not yet."""
        data, last = rollout.data, rollout.last_obs
        (n_step, n_env), acted = data.batch_size, 'value' in data.keys()
        if rollout.successor is not None:
            obs = rollout.successor if acted else torch.cat((data['obs'], rollout.successor))
            value = self._compute_value(obs.flatten(0, 1)).view(-1, n_env)
            return (self._in_return_units(data['value']), value) if acted else (value[:n_step], value[n_step:])
        beyond = (last, rollout.final_obs)
        value = self._compute_value(torch.cat(beyond if acted else (data['obs'].flatten(0, 1), *beyond)))
        if acted:
            value = torch.cat((self._in_return_units(data['value']).flatten(), value))
        n = (n_step + 1) * n_env
        block = value[:n].view(n_step + 1, n_env)
        next_value = block[1:].clone()
        next_value[rollout.final_index[:, 0], rollout.final_index[:, 1]] = value[n:]
        return block[:-1], next_value

    def _compute_value(self, obs: Tensor) -> Tensor:
        """The critic in return units; images in pieces, since the features of a whole rollout may not fit."""
        n_row = max(CRITIC_CELLS // max(obs[0].numel(), 1), 1)
        values = [self._model.compute_critic(piece) for piece in obs.split(n_row)]
        return self._in_return_units(values[0] if len(values) == 1 else torch.cat(values))

    def _in_return_units(self, value: Tensor) -> Tensor:
        return self._normalizers['value'].restore(value) if self.cfg.learn.value_norm else value

    def _advantage(
        self,
        value: Tensor,
        next_value: Tensor,
        reward: Tensor,
        done: Tensor,
        traj_flag: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """-> adv, return_."""
        cfg = self.cfg.collect
        return gae_return(gae_data(value, next_value, reward, done, traj_flag), cfg.discount_factor, cfg.gae_lambda)[:2]

    def _scaled_reward(self, data: TensorDict, weight: Tensor | None) -> Tensor:
        """Rewards over the running deviation of each env's discounted sum, which starts anew with each episode."""
        reward, end, gamma = data['reward'], data['traj_flag'], self.cfg.collect.discount_factor
        if self._reward_sum is None or self._reward_sum.shape != reward.shape[1:]:
            self._reward_sum = torch.zeros_like(reward[0])
        total = discounted_sum(reward, end, self._reward_sum, gamma)
        self._reward_sum = gamma * total[-1] * (1 - end[-1].to(reward.dtype))
        self._normalizers['reward'].update(total.flatten(), None if weight is None else weight.flatten())
        return self._normalizers['reward'].rescale(reward)

    def _update_obs_statistics(self, batch: TensorDict) -> None:
        """After the update, so that a rollout's first minibatch is compared with the very policy that collected it."""
        update = getattr(self._model, 'update_normalizer', None)  # a model need not keep any
        if update is not None:
            update(batch['obs'], batch.get('weight', None))

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
        self._steps = Steps(self._model, self.cfg.learn.compile, self.device)
        self._order_generator = torch_generator(self.seed, 'learn', self.device)
        self._train_iter, self._warned = 0, False
        self._set_env_step(0)

    def _set_env_step(self, env_step: int) -> None:
        self._rates = {name: schedule_value(self.cfg.learn[name], env_step) for name in self.scheduled}
        if self._rates['learning_rate'] == 0 and not self._warned:
            self._warned = True
            logger.warning(
                'policy.learn.learning_rate is 0 from env step %d on: nothing more is learned; resume with '
                'another, e.g. policy.learn.learning_rate=1e-4',
                env_step,
            )

    def _step_config(self, value_weight: float = 1.0, kl_penalty: float | None = None) -> StepConfig:
        cfg = self.cfg.learn
        clip_ratio = max(self._rates['clip_ratio'], 1e-6)  # a schedule may end at 0, the loss needs a range
        return StepConfig(
            clip_ratio,
            value_weight,
            self._rates['entropy_weight'],
            cfg.value_clip,
            cfg.dual_clip,
            cfg.grad_clip,
            cfg.target_kl is not None,
            kl_penalty,
        )

    def _train_epochs(
        self,
        batch: TensorDict,
        n_epoch: int,
        step: Callable[[Minibatch], Metrics],
    ) -> tuple[Metrics, int]:
        """Passes over a batch [N], a step for each minibatch, until n_epoch or target_kl; -> mean metrics, passes."""
        cfg, metrics = self.cfg.learn, []
        self._choose_steps()
        for epoch in range(n_epoch):
            if epoch and self._keep_transitions:
                batch = self._recompute(batch)
            if epoch == 0 or self._keep_transitions:
                targets = self._targets(batch)
            done = [
                step(minibatch)
                for minibatch in minibatches(
                    targets, cfg.batch_size, self._order_generator, cfg.adv_norm == 'minibatch'
                )
            ]
            self._train_iter += len(done)
            metrics += done
            if 'kl' in done[0] and bool(mean_of(done, 'kl') > 1.5 * cfg.target_kl):
                break
        return {name: mean_of(metrics, name) for name in metrics[0]}, epoch + 1

    @property
    def compiled(self) -> bool:  # type: ignore[override]
        """Whether acting runs compiled, and updates unless they failed so; decided as soon as the length is known."""
        if 'learn' in self._fields and self._decided_for != self.max_env_step:
            self._choose_steps()
            self._compiled, self._decided_for = self._steps.active, self.max_env_step
        return self._compiled

    def _choose_steps(self) -> None:
        rates, n = self._steps_per_env_step(), self.max_env_step
        self._steps.decide(None if n is None else n * sum(rates), len(rates))

    @torch.no_grad()
    def _targets(self, batch: TensorDict) -> TensorDict:
        """Only what a step reads: values in the unit of the critic's output, advantages of the batch normalised."""
        cfg = self.cfg.learn
        weight_key = ('weight',) if 'weight' in batch.keys() else ()
        targets = batch.select('obs', 'action', 'logit', 'value', 'adv', 'return_', *weight_key)
        if cfg.value_norm:
            for key in ('value', 'return_'):
                targets[key] = self._normalizers['value'].standardize(targets[key])
        if cfg.adv_norm == 'batch':
            targets['adv'] = normalize_advantage(targets['adv'], targets.get('weight', None))
        return targets

    @torch.no_grad()
    def _recompute(self, batch: TensorDict) -> TensorDict:
        """The batch with values, advantages and returns of the critic as it is now (arXiv:2006.05990, sec. 3.5)."""
        block = batch.view(self.cfg.collect.n_step, -1)  # [N] -> [T, B]
        value, next_value = (
            self._compute_value(block[key].flatten(0, 1)).view(block.shape) for key in ('obs', 'next_obs')
        )
        adv, return_ = self._advantage(value, next_value, block['reward'], block['done'], block['traj_flag'])
        return batch.clone(recurse=False).update(
            {'value': value.flatten(), 'adv': adv.flatten(), 'return_': return_.flatten()}
        )

    def _update_value_statistics(self, batch: TensorDict) -> None:
        if self.cfg.learn.value_norm:
            self._normalizers['value'].update(batch['return_'], batch.get('weight', None))

    def _learner_metrics(self, n_epoch: int) -> Metrics:
        """How the update went as a whole, and the values of the schedules. Waits for the device, once a batch."""
        n_skipped = sum(o.count_skipped(self.cfg.learn.nonfinite_limit) for o in self._optimizers.values())
        return {
            'n_epoch': torch.tensor(float(n_epoch)),
            'skipped_step': torch.tensor(float(n_skipped)),
            **{name: torch.tensor(value, dtype=torch.float64) for name, value in self._rates.items()},
        }

    def _monitor_vars_learn(self) -> list[str]:
        names = [
            'policy_loss',
            'value_loss',
            'entropy',
            'approx_kl',
            'clipfrac',
            'grad_norm',
            'explained_variance',
            'n_epoch',
            'skipped_step',
            *self.scheduled,
        ]
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
