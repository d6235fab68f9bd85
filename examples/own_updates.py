"""A policy made from another one by functions only: PPO with smaller steps and limited rewards."""

from zoo import serial_pipeline
from zoo.policy import PPOPolicy


def limited_reward(self, obs, output, timestep):  # once per rollout, all tensors [T, B, ...]
    transition = PPOPolicy._process_transition(self, obs, output, timestep)
    return {**transition, 'reward': transition['reward'].clamp(-1.0, 1.0)}


PPOPolicy.with_updates('limited_ppo', {'learn': {'clip_ratio': 0.1}}, _process_transition=limited_reward)

config = dict(max_env_step=20_000, env=dict(id='CartPole-v1'), policy=dict(type='limited_ppo'))

if __name__ == '__main__':
    serial_pipeline(config)
