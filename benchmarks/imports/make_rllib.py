"""Checkpoints of RLlib's PPO, with what they do, for `benchmarks/imports/check.py` and the tests of imports.

Run it in an environment of its own, without zoo:

    python -m venv /tmp/rllib && /tmp/rllib/bin/pip install torch==2.13.0
    /tmp/rllib/bin/pip install 'ray[rllib]==2.60.0'
    /tmp/rllib/bin/python benchmarks/imports/make_rllib.py FOLDER [--small]
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import ray
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

N_STEP = 10  # gradient steps that are recorded
MODULE = 'learner_group/learner/rl_module/default_policy'
READ = (
    'rllib_checkpoint.json',
    'class_and_ctor_args.pkl',
    f'{MODULE}/module_state.pkl',
    f'{MODULE}/class_and_ctor_args.pkl',
)
KINDS = {
    'rllib_discrete': ('CartPole-v1', {'vf_share_layers': False}),
    'rllib_box': ('Pendulum-v1', {'vf_share_layers': False}),
    'rllib_shared': ('CartPole-v1', {'vf_share_layers': True}),
}


def write(name: str, folder: Path, small: bool) -> None:
    env, options = KINDS[name]
    if small:
        options = {**options, 'fcnet_hiddens': [6, 5]}
    config = (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=0)
        .rl_module(model_config=DefaultModelConfig(**options))
    )
    algorithm = (
        config.training(train_batch_size_per_learner=256, minibatch_size=64, num_epochs=2)
        .debugging(seed=1)
        .build_algo()
    )
    algorithm.train()
    path = folder / name
    algorithm.save_to_path(str(path.absolute()))
    module = algorithm.learner_group._learner.module['default_policy']
    made = gym.make(env)
    obs = (
        np.random.default_rng(0).normal(size=(24 if small else 1000, *made.observation_space.shape)).astype(np.float32)
    )
    with torch.no_grad():
        batch = {'obs': torch.from_numpy(obs)}
        logit = module.forward_train(batch)['action_dist_inputs'].numpy()
        value = module.compute_values(batch).numpy()
    action = logit.argmax(-1)
    if isinstance(made.action_space, gym.spaces.Box):  # means in -1 .. 1 stand for the bounds (normalize_actions)
        low, high = made.action_space.low, made.action_space.high
        action = low + (np.clip(logit[:, : len(low)], -1, 1) + 1) / 2 * (high - low)
    algorithm.stop()
    found = {'obs': obs, 'action': action, 'value': value} | trained(path, obs[: 24 if small else 256])
    np.savez_compressed(folder / f'{name}.npz', **found)
    if small:
        keep_read_files(path)


def trained(path: Path, obs: np.ndarray) -> dict[str, np.ndarray]:
    """A batch, and the parameters after N_STEP gradient steps on all of it that the algorithm takes when it is restored."""
    algorithm = Algorithm.from_checkpoint(str(path.absolute()))
    learner = algorithm.learner_group._learner
    module = learner.module['default_policy']
    torch.manual_seed(2)
    rows = {'obs': torch.from_numpy(obs)}
    with torch.no_grad():
        rows['action_dist_inputs'] = module.forward_train(rows)['action_dist_inputs']
        value = module.compute_values(rows)
    dist = module.get_exploration_action_dist_cls().from_logits(rows['action_dist_inputs'])
    rows['actions'] = dist.sample()
    rows['action_logp'] = dist.logp(rows['actions'])
    adv = torch.randn(len(obs))
    rows['advantages'] = (adv - adv.mean()) / adv.std(correction=0)  # as the library does it for a whole batch
    rows['value_targets'] = value + torch.randn(len(obs))
    for _ in range(N_STEP):
        learner._update({'default_policy': rows})
    found = {'advantages': rows['advantages'], 'returns': rows['value_targets'], 'values': value}
    found |= {'obs': rows['obs'], 'actions': rows['actions']}
    found = {f'rollout.{name}': x.numpy().copy() for name, x in found.items()}
    after = {f'after.{name}': x.detach().numpy().copy() for name, x in module.named_parameters()}
    rate = learner.get_optimizer('default_policy').param_groups[0]['lr']
    algorithm.stop()
    return found | after | {'rate': np.array(rate)}


def keep_read_files(path: Path) -> None:
    """Removes the files that an import does not read."""
    kept = {name: (path / name).read_bytes() for name in (*READ, 'learner_group/learner/state.pkl')}
    shutil.rmtree(path)
    for name, content in kept.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--small', action='store_true')
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in KINDS:
        write(name, args.folder, args.small)
    (args.folder / 'versions.json').write_text(json.dumps({'ray': ray.__version__}) + '\n')


if __name__ == '__main__':
    main()
