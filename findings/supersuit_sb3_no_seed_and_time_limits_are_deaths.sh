#!/usr/bin/env bash
# SuperSuit's envs in stable-baselines3: PPO takes no seed, and the end of the time is a death.
#
# One would guess: after pettingzoo_env_to_vec_env_v1 and concat_vec_envs_v1(base_class='stable_baselines3'), as PettingZoo's
# tutorials have it, an env of several agents is a VecEnv like others: PPO(seed=0) seeds it, and at a time limit PPO adds the
# value of the state that was reached, as it does for gymnasium's envs.
# What is:
# - PPO(seed=0) raises AttributeError: 'ConcatVecEnv' object has no attribute 'seed'; so do env.seed(0) and env.reset(seed=0).
#   Only the vector env inside, venv.reset(seed=0), takes a seed.
# - Infos at a time limit have a terminal_observation, but no TimeLimit.truncated, by which stable-baselines3 tells a limit
#   from a death. So no value is added to the last reward of an episode of mpe2's simple_spread, each of which ends by its
#   limit of 25 steps and none by a death: rewards in the rollout buffer are those of the env. In CartPole with a limit of 5
#   they have gamma * V added. In simple_spread all rewards are costs: the critic learns that they stop after 25 steps, which
#   it cannot see.
#
# supersuit 3.11.0, stable-baselines3 2.9.2, mpe2 1.1.1, pettingzoo 1.27.0, torch 2.13.0, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check stable-baselines3==2.9.2 supersuit==3.11.0 \
  mpe2==1.1.1 pettingzoo==1.27.0 gymnasium==1.4.0 numpy==2.4.6
cat > "$folder/limits.py" <<'PY'
from importlib.metadata import version

import gymnasium
import numpy as np
import supersuit
import torch
from mpe2 import simple_spread_v3
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

PACKAGES = ('supersuit', 'stable-baselines3', 'mpe2', 'pettingzoo', 'torch')


def spread():
    """Two copies with three agents each, as one VecEnv of six."""
    env = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env(max_cycles=25))
    return supersuit.concat_vec_envs_v1(env, 2, num_cpus=1, base_class='stable_baselines3')


def cart_pole():
    return DummyVecEnv([lambda: gymnasium.make('CartPole-v1', max_episode_steps=5)])


def error_of(call):
    try:
        call()
    except AttributeError as error:
        return str(error)
    return None


class Recorder(VecEnvWrapper):
    """Keeps the rewards of each step, and the infos at ends of episodes."""

    def __init__(self, env):
        super().__init__(env)
        self.rewards, self.infos = [], []

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        obs, rewards, dones, infos = self.venv.step_wait()
        self.rewards.append(np.array(rewards))  # a copy: PPO adds values in place
        self.infos += [info for info, done in zip(infos, dones, strict=True) if done]
        return obs, rewards, dones, infos


def added_values(env, n_step):
    """What PPO adds to the rewards of a rollout, and the infos at ends of episodes."""
    torch.manual_seed(0)
    recorder = Recorder(env)
    model = PPO('MlpPolicy', recorder, n_steps=n_step, batch_size=n_step * env.num_envs, n_epochs=1, device='cpu')
    model.learn(n_step * env.num_envs)
    return model.rollout_buffer.rewards - np.array(recorder.rewards), recorder.infos


print(*(f'{name} {version(name)}' for name in PACKAGES))
for name, call in (
    ('PPO(seed=0)', lambda: PPO('MlpPolicy', spread(), seed=0, device='cpu')),
    ('env.seed(0)', lambda: spread().seed(0)),
    ('env.reset(seed=0)', lambda: spread().reset(seed=0)),
):
    print(f'{name}: {error_of(call)}')
    assert error_of(call) == "'ConcatVecEnv' object has no attribute 'seed'"
starts = [spread().venv.reset(seed=0)[0] for _ in range(2)]
print('venv.reset(seed=0) twice, equal observations:', np.array_equal(*starts))
assert np.array_equal(*starts)

for name, env, n_step, has_entry in (('simple_spread', spread(), 50, False), ('CartPole', cart_pole(), 50, True)):
    added, infos = added_values(env, n_step)
    n_limit = sum('TimeLimit.truncated' in info for info in infos)
    n_observation = sum('terminal_observation' in info for info in infos)
    n_added = int((np.abs(added) > 1e-6).sum())
    print(
        f'{name}: {len(infos)} ends by the limit, {n_observation} with terminal_observation, {n_limit} with '
        f'TimeLimit.truncated; PPO added a value to {n_added} of {added.size} rewards'
    )
    assert len(infos) == n_observation > 0 and n_limit == n_added == has_entry * len(infos)
PY
"$folder/venv/bin/python" -W ignore "$folder/limits.py"
