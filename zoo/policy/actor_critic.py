"""What PPO and PPG share: acting, what a transition remembers, and how a rollout becomes samples."""
from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from tensordict import TensorDict
from torch import Tensor

from zoo.model.probe import probe
from zoo.policy.base import CollectConfig, Policy, torch_generator
from zoo.rl_utils.distribution import Logit, distribution_of, lead_shape
from zoo.rl_utils.gae import discounted_sum, gae, gae_data
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.rollout import Rollout


class OnPolicyCollectConfig(CollectConfig):
    """Section `policy.collect` of the actor-critic policies; give n_sample or n_step, the other is derived."""

    n_sample: Annotated[int, Field(ge=1)] | None = Field(None, description='env steps per rollout, over all envs')
    n_step: Annotated[int, Field(ge=1)] | None = Field(None, description='env steps per rollout and env')
    discount_factor: float = Field(0.99, ge=0, le=1, description='gamma, per env step')
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description='lambda of the advantage estimator: 0 trusts the critic, 1 the returns')


class ActorCriticPolicy(Policy):
    """Collects and evaluates with `compute_actor`, judges with `compute_critic`.

    Reads cfg.collect (OnPolicyCollectConfig) and, of cfg.learn, reward_norm, value_norm, ignore_done and recompute_adv.
    """

    def _build(self) -> None:
        probe(self._model, self.obs_space, self.action_space, self.device)

    def _init_collect(self) -> None:
        self._noise_generator = torch_generator(self.seed, 'collect')
        self._noise: list[Tensor] = []
        self._reward_sum: Tensor | None = None
        self._ignore_done = self.cfg.learn.ignore_done
        self._make_normalizers()

    def _init_eval(self) -> None:
        self._make_normalizers()

    def _make_normalizers(self) -> None:
        for name in ('reward', 'value'):
            if getattr(self.cfg.learn, f'{name}_norm') and name not in self._normalizers:
                self._normalizers[name] = RunningMeanStd().to(self.device)

    @torch.inference_mode()
    def _forward_collect(self, obs: Tensor, state: Any = None) -> dict[str, Any]:
        logit = self._model.compute_actor(self._to_device(obs))
        return {'action': distribution_of(logit).sample(logit, self._next_noise(logit)), 'logit': logit}

    @torch.inference_mode()
    def _forward_eval(self, obs: Tensor, state: Any = None) -> dict[str, Any]:
        logit = self._model.compute_actor(self._to_device(obs))
        return {'action': distribution_of(logit).mode(logit)}

    def _to_device(self, obs: Tensor) -> Tensor:
        return obs if self.device.type == 'cpu' else obs.to(self.device, non_blocking=True)

    def _next_noise(self, logit: Logit) -> Tensor:
        """One step's noise; drawn for a whole rollout at once, and anew when the number of envs changes."""
        if not self._noise or self._noise[-1].shape[:-1] != lead_shape(logit):
            block = distribution_of(logit).noise(logit, self.cfg.collect.n_step, self._noise_generator)
            self._noise = list(block.unbind(0))[::-1]
        return self._noise.pop()

    def _process_transition(self, obs: Tensor, output: dict[str, Any], timestep: Any) -> dict[str, Any]:
        terminated = timestep.terminated
        transition = {
            'obs': obs, 'action': output['action'], 'logit': output['logit'], 'reward': timestep.reward,
            'done': torch.zeros_like(terminated) if self._ignore_done else terminated,
            'traj_flag': terminated | timestep.truncated,
        }
        if timestep.is_reset is not None:
            transition['is_reset'] = timestep.is_reset
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
        adv = self._advantage(value, next_value, reward, data['done'], data['traj_flag'])
        samples = {'obs': data['obs'], 'action': data['action'], 'logit': data['logit'],
                   'value': value, 'adv': adv, 'return_': adv + value}
        if weight is not None:
            samples['weight'] = weight
        if self.cfg.learn.recompute_adv:
            samples |= {'reward': reward, 'done': data['done'], 'traj_flag': data['traj_flag'],
                        'next_obs': rollout.next_obs()}
        return TensorDict(samples, batch_size=data.batch_size, device=self.device).flatten(0, 1)  # [T, B] -> [N]

    def _values(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Values of all rows and of their true successors, [T, B] each, from one pass of the critic."""
        obs = rollout.data['obs']
        n_step, n_env = obs.shape[:2]
        value = self._compute_value(torch.cat((obs.flatten(0, 1), rollout.last_obs, rollout.final_obs)))
        n = (n_step + 1) * n_env
        block = value[:n].view(n_step + 1, n_env)
        next_value = block[1:].clone()
        next_value[rollout.final_index[:, 0], rollout.final_index[:, 1]] = value[n:]
        return block[:-1], next_value

    def _compute_value(self, obs: Tensor) -> Tensor:
        """The critic in return units."""
        value = self._model.compute_critic(obs)
        return self._normalizers['value'].restore(value) if self.cfg.learn.value_norm else value

    def _advantage(self, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, traj_flag: Tensor) -> Tensor:
        cfg = self.cfg.collect
        return gae(gae_data(value, next_value, reward, done, traj_flag), cfg.discount_factor, cfg.gae_lambda)

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
        self._noise, self._reward_sum = [], None

    def _state_dict_collect(self) -> dict[str, Any]:
        return {'generator': self._noise_generator.get_state()}

    def _load_state_dict_collect(self, state: dict[str, Any]) -> None:
        self._noise_generator.set_state(state['generator'])
        self._reset_collect()
