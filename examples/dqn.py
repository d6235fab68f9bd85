"""Policy 'dqn', deep Q-learning (Mnih et al. 2015, with a slow target network), on the public names of zoo alone."""

import copy

import torch
from pydantic import Field

from zoo import MODEL_REGISTRY, POLICY_REGISTRY, Section, serial_pipeline
from zoo.config.schedule import ScheduleOrZero, schedule_value
from zoo.model import make_encoder, make_input
from zoo.policy import CollectConfig, LearnConfig, Policy, PolicyConfig
from zoo.rl_utils import FlatAdam


@MODEL_REGISTRY.register('q')
class QNetwork(torch.nn.Module):
    config = Section

    def __init__(self, cfg, obs_space, action_space):
        super().__init__()
        encoder, n = make_encoder(obs_space, hidden_sizes=(128, 128), activation='relu')
        self.q = torch.nn.Sequential(make_input(obs_space), encoder, torch.nn.Linear(n, action_space.n))
        self.target = copy.deepcopy(self.q).requires_grad_(False)


class DQNLearnConfig(LearnConfig):
    learning_rate: ScheduleOrZero = Field(1e-3, description="Adam's step size")
    discount_factor: float = Field(0.99, ge=0, le=1, description='gamma, per env step')
    tau: float = Field(0.01, gt=0, le=1, description='share of Q that enters the target network at each step')


class DQNCollectConfig(CollectConfig):
    eps: ScheduleOrZero = Field(0.05, description='probability of a random action')


class DQNConfig(PolicyConfig):
    learn: DQNLearnConfig = DQNLearnConfig()
    collect: DQNCollectConfig = DQNCollectConfig()


@POLICY_REGISTRY.register('dqn')
class DQNPolicy(Policy):
    config = DQNConfig

    @classmethod
    def default_model(cls):
        return 'q'

    def _init_collect(self):
        self._n_acted, self._generator = 0, torch.Generator().manual_seed(self.seed)

    def _forward_collect(self, obs, state=None):  # [B, *O] -> {action [B]}
        eps = schedule_value(self.cfg.collect.eps, self._n_acted)
        self._n_acted += len(obs)
        explore = torch.rand(len(obs), generator=self._generator) < eps
        random = torch.randint(self.action_space.n, (len(obs),), generator=self._generator)
        return {'action': torch.where(explore, random, self._forward_eval(obs)['action'])}

    def _process_transition(self, obs, output, timestep):  # [T, B] each
        valid = torch.ones_like(timestep.terminated) if timestep.is_reset is None else ~timestep.is_reset
        return dict(obs=obs, action=output['action'], reward=timestep.reward, done=timestep.terminated, valid=valid)

    def _get_train_sample(self, rollout):  # [T, B] -> [N] transitions
        samples = rollout.data.set('next_obs', rollout.next_obs()).flatten(0, 1)
        return samples[samples['valid']]

    def _init_learn(self):
        self._optimizer = FlatAdam(self._model.named_parameters())

    def _set_env_step(self, env_step):
        self._optimizer.lr = schedule_value(self.cfg.learn.learning_rate, env_step)

    def _forward_learn(self, batch):  # a draw of the buffer, [N]
        cfg, model = self.cfg.learn, self._model
        with torch.no_grad():
            target = batch['reward'] + cfg.discount_factor * ~batch['done'] * model.target(batch['next_obs']).amax(-1)
        q = model.q(batch['obs']).gather(-1, batch['action'].unsqueeze(-1)).squeeze(-1)
        loss = torch.nn.functional.smooth_l1_loss(q, target)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step(grad_clip=10.0)
        with torch.no_grad():
            for slow, fast in zip(model.target.parameters(), model.q.parameters(), strict=True):
                slow.lerp_(fast, cfg.tau)
        return {'loss': loss.detach(), 'q': q.detach().mean()}

    def _monitor_vars_learn(self):
        return ['loss', 'q']

    def _get_train_iter(self):
        return int(self._optimizer.step_count)

    @torch.no_grad()
    def _forward_eval(self, obs, state=None):
        return {'action': self._model.q(obs).argmax(-1)}


config = dict(
    exp_name='cartpole_dqn',
    max_env_step=40_000,
    env=dict(id='CartPole-v1', collector_env_num=4),
    policy=dict(
        type='dqn',
        learn=dict(batch_size=64),
        collect=dict(n_step=8, eps=dict(start=1.0, end=0.05, over=10_000)),
        eval=dict(eval_freq=4_000),
    ),
    buffer=dict(type='replay', size=20_000, n_sample=64, update_per_collect=16),
)

if __name__ == '__main__':
    serial_pipeline(config)
