"""A policy that acts by all observations of the episode so far, without a network: it keeps their sum as its state."""

import torch

from zoo import POLICY_REGISTRY, serial_pipeline
from zoo.policy import Policy


@POLICY_REGISTRY.register('recall')
class Recall(Policy):
    """Chooses the cue of the env remember_cue, which the first observation of an episode shows, and no later one."""

    @classmethod
    def default_model(cls):
        return None

    def _initial_state(self):  # returns a function: the state of n_env envs at the start of an episode
        return lambda n_env: {'sum': torch.zeros(n_env, self.action_space.n)}

    def _recall(self, obs, state):  # state: of these envs, where an episode begins the initial one
        seen = state['sum'] + obs[:, : self.action_space.n]
        return {'action': seen.argmax(1), 'state': {'sum': seen}}

    def _init_collect(self):
        pass

    def _forward_collect(self, obs, state):
        return self._recall(obs, state)

    def _forward_eval(self, obs, state):
        return self._recall(obs, state)

    def _process_transition(self, obs, output, timestep):  # it learns nothing
        return {'reward': timestep.reward}

    def _get_train_sample(self, rollout):
        return {'reward': rollout.data['reward'].flatten()}

    def _init_learn(self):
        pass

    def _forward_learn(self, batch):
        return {'reward': batch['reward'].mean()}

    def _monitor_vars_learn(self):
        return ['reward']


config = dict(
    exp_name='recall',
    max_env_step=2_048,
    env=dict(id='remember_cue', kwargs=dict(n_cue=3, delay=10)),
    policy=dict(type='recall', eval=dict(n_episode=20)),
)

if __name__ == '__main__':
    print(f'mean return: {serial_pipeline(config).last_return}')
