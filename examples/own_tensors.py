"""A policy whose weights are no network: one logit for each action, learned by counting rewards; two runners act with it."""

import torch

from zoo import POLICY_REGISTRY, serial_pipeline
from zoo.policy import Policy


@POLICY_REGISTRY.register('counts')
class Counts(Policy):
    """Draws actions by logits that are the mean reward of each action, ten times."""

    @classmethod
    def default_model(cls):
        return None

    def _build(self):
        self._logit = torch.zeros(self.action_space.n)

    def acting_state(self):  # what runners need in order to act: also these logits, which are not part of a model
        return {**super().acting_state(), 'logit': self._logit}

    def _init_collect(self):
        self._generator = torch.Generator().manual_seed(self.seed)

    def _forward_collect(self, obs, state=None):
        p = self._logit.softmax(0)
        action = torch.multinomial(p, len(obs), replacement=True, generator=self._generator)
        return {'action': action, 'p': p[action].numpy()}  # numbers of any kind travel with the rollout

    def _process_transition(self, obs, output, timestep):
        return {'action': output['action'], 'p': output['p'], 'reward': timestep.reward}

    def _get_train_sample(self, rollout):
        return {name: rollout.data[name].flatten() for name in ('action', 'p', 'reward')}

    def _init_learn(self):
        self._total, self._n = torch.zeros(self.action_space.n), torch.ones(self.action_space.n)

    def _forward_learn(self, batch):
        self._total.index_add_(0, batch['action'], batch['reward'])
        self._n.index_add_(0, batch['action'], torch.ones_like(batch['reward']))
        self._logit.copy_(10 * self._total / self._n)  # in place
        return {'reward': batch['reward'].mean(), 'p_of_action': batch['p'].mean()}

    def _monitor_vars_learn(self):
        return ['reward', 'p_of_action']

    def _forward_eval(self, obs, state=None):
        return {'action': self._logit.argmax().expand(len(obs))}

    def _state_dict_learn(self):
        return {'total': self._total, 'n': self._n}

    def _load_state_dict_learn(self, state):
        self._total.copy_(state['total'])
        self._n.copy_(state['n'])

    def _state_dict_collect(self):
        return {'logit': self._logit}

    def _load_state_dict_collect(self, state):
        self._logit.copy_(state['logit'])


config = dict(
    exp_name='counts',
    max_env_step=2_048,
    env=dict(id='any_space', kwargs=dict(action='discrete')),
    policy=dict(type='counts', collect=dict(n_step=8), learn=dict(batch_size=64)),
    cluster=dict(runner_num=2),
)

if __name__ == '__main__':
    print(f'mean return: {serial_pipeline(config).last_return}')
