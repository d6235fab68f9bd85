"""A policy of your own: PPO with a penalty for episodes that end in a terminal state."""

from pydantic import Field

from zoo import POLICY_REGISTRY, serial_pipeline
from zoo.policy import PPOConfig, PPOLearnConfig, PPOPolicy


class MyLearnConfig(PPOLearnConfig):
    end_penalty: float = Field(
        0.0, ge=0, description='subtracted from the reward of a step that reaches a terminal state'
    )


class MyConfig(PPOConfig):
    learn: MyLearnConfig = MyLearnConfig()


@POLICY_REGISTRY.register('my_ppo')
class MyPPO(PPOPolicy):
    config = MyConfig

    def _process_transition(self, obs, output, timestep):  # once per rollout, all tensors [T, B, ...]
        transition = super()._process_transition(obs, output, timestep)
        transition['reward'] = transition['reward'] - self.cfg.learn.end_penalty * timestep.terminated
        return transition


config = dict(
    exp_name='my_ppo',
    max_env_step=20_000,
    env=dict(id='CartPole-v1'),
    policy=dict(type='my_ppo', learn=dict(end_penalty=1.0, learning_rate=1e-3)),
)

if __name__ == '__main__':
    serial_pipeline(config)
