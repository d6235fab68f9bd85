"""Policy 'my_dqn', with public names of zoo only: deep Q-learning with double-Q targets (van Hasselt et al. 2016) and
draws by priority (Schaul et al. 2016).

The network is the actor of the registered model 'vac': its logits [..., A] are the Q-values, its critic is not used.
"""

import copy

import torch
from pydantic import Field

from zoo import POLICY_REGISTRY, serial_pipeline
from zoo.policy import CollectConfig, LearnConfig, Linear, Policy, PolicyConfig, ScheduleOrZero, schedule_value
from zoo.rl_utils import FlatAdam


class DQNLearnConfig(LearnConfig):
    learning_rate: float = Field(2e-3, gt=0, description="Adam's step size (3e-4 to 3e-3 is usual)")
    discount_factor: float = Field(0.98, ge=0, le=1, description='gamma, per env step')
    tau: float = Field(0.02, gt=0, le=1, description='share of the network that enters the target network at each step')


class DQNCollectConfig(CollectConfig):
    n_step: int | None = Field(8, ge=1, description='env steps per rollout and env')
    eps: ScheduleOrZero = Field(Linear(start=1.0, end=0.05, over=8_000), description='probability of a random action')


class DQNConfig(PolicyConfig):
    learn: DQNLearnConfig = DQNLearnConfig()
    collect: DQNCollectConfig = DQNCollectConfig()


@POLICY_REGISTRY.register('my_dqn')
class DQNPolicy(Policy):
    config, writes_priority = DQNConfig, True

    @classmethod
    def default_model(cls):
        return 'vac'

    def _init_collect(self):
        self._n_acted, self._generator = 0, torch.Generator().manual_seed(self.seed)

    def _forward_collect(self, obs, state=None):  # [B, *O] -> {action [B]}
        eps = schedule_value(self.cfg.collect.eps, self._n_acted)
        self._n_acted += len(obs)
        explore = torch.rand(len(obs), generator=self._generator) < eps
        random = torch.randint(self.action_space.n, (len(obs),), generator=self._generator)
        return {'action': torch.where(explore, random, self._forward_eval(obs)['action'])}

    def _process_transition(self, obs, output, timestep):  # blocks [T, B, ...] of a whole rollout
        valid = torch.ones_like(timestep.terminated) if timestep.is_reset is None else ~timestep.is_reset
        return dict(obs=obs, action=output['action'], reward=timestep.reward, done=timestep.terminated, valid=valid)

    def _get_train_sample(self, rollout):  # [T, B] -> [N] transitions, without the rows that only reset an env
        columns = {**rollout.data, 'next_obs': rollout.next_obs()}
        valid = columns.pop('valid')
        return {name: x[valid].to(self.device) for name, x in columns.items()}

    def _init_learn(self):
        self._optimizer = FlatAdam(self._model.named_parameters(), lr=self.cfg.learn.learning_rate)
        self._target = copy.deepcopy(self._model)

    def _forward_learn(self, batch):  # one draw of the buffer, [N] -> metrics
        with torch.no_grad():
            best = self._model.compute_actor(batch['next_obs']).argmax(-1, keepdim=True)
            next_q = self._target.compute_actor(batch['next_obs']).gather(-1, best).squeeze(-1)
            target = batch['reward'] + self.cfg.learn.discount_factor * ~batch['done'] * next_q
            for slow, fast in zip(self._target.parameters(), self._model.parameters(), strict=True):
                slow.lerp_(fast, self.cfg.learn.tau)
        q = self._model.compute_actor(batch['obs']).gather(-1, batch['action'].unsqueeze(-1)).squeeze(-1)
        loss = (batch['weight'] * (q - target).square()).mean()  # the weight corrects for draws by priority
        batch['priority'] = (q - target).detach().abs()  # goes back to the buffer
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step(grad_clip=10.0)
        return {'loss': loss.detach(), 'q': q.detach().mean()}

    def _monitor_vars_learn(self):
        return ['loss', 'q']

    def _get_train_iter(self):
        return int(self._optimizer.step_count)

    def _state_dict_learn(self):
        return {'optimizer': self._optimizer.state_dict(), 'target': dict(self._target.state_dict())}

    def _load_state_dict_learn(self, state):
        self._optimizer.load_state_dict(state['optimizer'])
        self._target.load_state_dict(state['target'])

    def _state_dict_collect(self):
        return {'n_acted': self._n_acted, 'generator': self._generator.get_state()}

    def _load_state_dict_collect(self, state):
        self._n_acted = state['n_acted']
        self._generator.set_state(state['generator'])

    @torch.no_grad()
    def _forward_eval(self, obs, state=None):  # [B, *O] -> {action [B]}, greedy
        return {'action': self._model.compute_actor(obs.to(self.device)).argmax(-1).cpu()}


config = dict(
    exp_name='cartpole_dqn',
    max_env_step=40_000,
    env=dict(id='CartPole-v1', collector_env_num=4),
    policy=dict(type='my_dqn', model=dict(activation='relu'), eval=dict(eval_freq=2_000, stop_value=475)),
    buffer=dict(type='replay', size=40_000, n_sample=256, update_per_collect=16, alpha=0.6),
)

if __name__ == '__main__':
    serial_pipeline(config)
