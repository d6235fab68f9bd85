"""A policy from scratch, without a network: it acts at random and learns nothing."""

import torch

from zoo import POLICY_REGISTRY, serial_pipeline
from zoo.policy import Policy


@POLICY_REGISTRY.register('random')
class RandomPolicy(Policy):
    @classmethod
    def default_model(cls):
        return None

    def _init_collect(self):
        self._generator = torch.Generator().manual_seed(self.seed)

    def _forward_collect(self, obs, state=None):  # [B, *O] -> {action [B]}
        return {'action': torch.randint(self.action_space.n, (len(obs),), generator=self._generator)}

    def _process_transition(self, obs, output, timestep):  # blocks [T, B, ...] of a whole rollout
        return {'reward': timestep.reward}

    def _get_train_sample(self, rollout):  # [T, B] -> [N]
        return {'reward': rollout.data['reward'].flatten()}

    def _init_learn(self):
        self._n_batch = 0

    def _forward_learn(self, batch):
        self._n_batch += 1
        return {'reward': batch['reward'].mean()}

    def _monitor_vars_learn(self):
        return ['reward']

    def _get_train_iter(self):
        return self._n_batch

    def _init_eval(self):
        self._eval_generator = torch.Generator().manual_seed(self.seed + 1)

    def _forward_eval(self, obs, state=None):  # [B, *O] -> {action [B]}
        return {'action': torch.randint(self.action_space.n, (len(obs),), generator=self._eval_generator)}


config = dict(
    exp_name='cartpole_random',
    max_env_step=4_096,
    env=dict(id='CartPole-v1'),
    policy=dict(type='random', eval=dict(n_episode=200)),
)

if __name__ == '__main__':
    result = serial_pipeline(config)
    print(f'mean return of 200 episodes: {result.last_return:.1f}')
