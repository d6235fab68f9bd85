"""Checkpoints of AgileRL's PPO, with what they do, for `benchmarks/imports/check.py` and the tests of imports.

Run it in an environment of its own, without zoo:

    python -m venv /tmp/agilerl && /tmp/agilerl/bin/pip install torch==2.13.0
    /tmp/agilerl/bin/pip install agilerl==2.58.0 peft
    /tmp/agilerl/bin/python benchmarks/imports/make_agilerl.py FOLDER [--small]

AgileRL only samples: the recorded actions are the modes of the distributions that its actor gives.
"""

from __future__ import annotations

import argparse
import json
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from agilerl.algorithms.ppo import PPO
from agilerl.rollouts.on_policy import collect_rollouts

N_STEP = 10  # gradient steps that are recorded
N_ENV = 4
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    'agilerl_discrete': ('CartPole-v1', {}),
    'agilerl_apart': ('CartPole-v1', {'share_encoders': False}),
    'agilerl_box': ('Pendulum-v1', {'max_grad_norm': 0.3}),
}


def network(small: bool) -> dict[str, Any] | None:
    if not small:
        return None
    return {
        'latent_dim': 5,
        'min_latent_dim': 1,
        'encoder_config': {'hidden_size': [6], 'min_mlp_nodes': 1},
        'head_config': {'hidden_size': [7], 'min_mlp_nodes': 1},
    }


def parameters(agent: PPO) -> dict[str, np.ndarray]:
    found = {}
    for role in ('actor', 'critic'):
        found |= {f'{role}.{name}': x.numpy().copy() for name, x in getattr(agent, role).state_dict().items()}
    return found


def write(name: str, folder: Path, small: bool) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    env_id, options = KINDS[name]
    env = gym.make_vec(env_id, N_ENV)
    space, action_space = env.single_observation_space, env.single_action_space
    learn_step = 64 if small else 2048  # the library's own default
    agent = PPO(
        space, action_space, net_config=network(small), num_envs=N_ENV, learn_step=learn_step, batch_size=32,
        lr=1e-3, update_epochs=2, device='cpu', **options,
    )  # fmt: skip
    obs = None
    info = None
    for _ in range(3):
        agent.rollout_buffer.reset()
        rest = collect_rollouts(agent, env, n_steps=learn_step // N_ENV, last_obs=obs, last_info=info)
        obs, info = rest[-2], rest[-1]
        agent.learn()
    agent.save_checkpoint(str(folder / f'{name}.pt'))
    raw = np.random.default_rng(0).normal(size=(24 if small else 1000, *space.shape)).astype(np.float32)
    with torch.no_grad():
        seen = agent.preprocess_observation(raw)
        latent = agent.actor.extract_features(seen)
        logit = agent.actor.head_net.wrapped(latent)
        if options.get('share_encoders', True):
            value = agent.critic.forward_head(latent)
        else:
            value = agent.critic(seen)
    action = logit.argmax(-1).numpy()
    if isinstance(action_space, gym.spaces.Box):
        action = np.clip(logit.numpy(), action_space.low, action_space.high)
    found = {'obs': raw, 'action': action, 'value': value.numpy().reshape(-1)}
    np.savez_compressed(folder / f'{name}.npz', **found, **learned(agent, env, learn_step // N_ENV, obs, info))


def learned(agent: PPO, env: Any, n_step: int, obs: Any, info: Any) -> dict[str, np.ndarray]:
    """A rollout, and the parameters after N_STEP gradient steps on all of it."""
    agent.rollout_buffer.reset()
    collect_rollouts(agent, env, n_steps=n_step, last_obs=obs, last_info=info)
    batch = agent.rollout_buffer.get_tensor_batch(device='cpu')
    names = {'observations': 'obs', 'actions': 'actions', 'values': 'values', 'advantages': 'advantages'}
    names |= {'returns': 'returns', 'log_probs': 'log_probs'}
    found = {f'rollout.{here}': batch[there].numpy().copy() for there, here in names.items()}
    agent.batch_size = len(found['rollout.values'].reshape(-1))
    agent.update_epochs = N_STEP
    agent.learn()
    found |= {f'after.{name}': x for name, x in parameters(agent).items()}
    return found | {'rate': np.array(agent.lr)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--small', action='store_true')
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings('ignore')
    for name in KINDS:
        write(name, args.folder, args.small)
        print(name, (args.folder / f'{name}.pt').stat().st_size, flush=True)
    versions = {'agilerl': version('agilerl'), 'torch': torch.__version__}
    (args.folder / 'versions.json').write_text(json.dumps(versions) + '\n')


if __name__ == '__main__':
    main()
