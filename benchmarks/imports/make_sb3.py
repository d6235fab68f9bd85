"""Models of stable-baselines3 and sb3-contrib, with what they do, for `benchmarks/imports/check.py` and the tests of imports.

Run it in an environment of its own, without zoo:

    python -m venv /tmp/sb3 && /tmp/sb3/bin/pip install torch==2.13.0
    /tmp/sb3/bin/pip install stable-baselines3==2.9.2 sb3-contrib==2.9.2
    /tmp/sb3/bin/python benchmarks/imports/make_sb3.py FOLDER            # for the table: 1,000 observations
    /tmp/sb3/bin/python benchmarks/imports/make_sb3.py FOLDER --small    # the files of tests/data/models

Each model is trained for a few rollouts and saved as NAME.zip (and NAME.pkl, its VecNormalize). NAME.npz has raw observations,
the greedy actions and the values of the critic; a rollout, and all parameters after 10 gradient steps of `train()` on it.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import TRPO, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

N_STEP = 10  # gradient steps that are recorded
IMAGE = spaces.Box(0, 255, (36, 40, 3), np.uint8)
PARTS = spaces.Dict(
    {
        'vector': spaces.Box(-1, 1, (3,), np.float32),
        'camera': IMAGE,
        'index': spaces.Discrete(4),
        'pair': spaces.MultiDiscrete([3, 2]),
        'bits': spaces.MultiBinary(2),
    }
)


class Draws(gym.Env):
    """An env whose observations are draws from a space; the reward is the mean of the action, episodes have 20 steps."""

    def __init__(self, obs: spaces.Space, action: spaces.Space) -> None:
        self.observation_space = obs
        self.action_space = action
        self._n = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.observation_space.seed(seed)
        self._n = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._n += 1
        return self.observation_space.sample(), float(np.mean(action)), False, self._n == 20, {}

    def action_masks(self) -> np.ndarray:
        """Forbids the first choice of each part of an action at every second step."""
        nvec = getattr(self.action_space, 'nvec', [getattr(self.action_space, 'n', 1)])
        return np.concatenate([np.arange(n) >= self._n % 2 for n in nvec])


def draws(obs: spaces.Space, action: spaces.Space) -> Callable[[], gym.Env]:
    return lambda: Draws(obs, action)


VECTOR = spaces.Box(-1, 1, (3,), np.float32)
KINDS: dict[str, tuple[Any, str, Any, dict[str, Any]]] = {
    'ppo_discrete': (PPO, 'MlpPolicy', lambda: gym.make('CartPole-v1'), {}),
    'ppo_box_normalized': (PPO, 'MlpPolicy', lambda: gym.make('Pendulum-v1'), {'normalize': {'clip_obs': 1.5}}),
    'ppo_towers': (
        PPO,
        'MlpPolicy',
        lambda: gym.make('CartPole-v1'),
        {'net': {'pi': [12], 'vf': [10, 8]}, 'activation_fn': nn.ReLU},
    ),
    'ppo_linear': (PPO, 'MlpPolicy', lambda: gym.make('CartPole-v1'), {'net': {'pi': [], 'vf': []}}),
    'ppo_multi_discrete': (PPO, 'MlpPolicy', draws(spaces.MultiDiscrete([3, 2]), spaces.MultiDiscrete([2, 4])), {}),
    'ppo_multi_binary': (PPO, 'MlpPolicy', draws(spaces.Discrete(5), spaces.MultiBinary(3)), {}),
    'ppo_schedules': (
        PPO,
        'MlpPolicy',
        lambda: gym.make('CartPole-v1'),
        {'learning_rate': LinearSchedule(1e-3, 1e-4, 0.5), 'clip_range': LinearSchedule(0.3, 0.1, 1.0)},
    ),
    'ppo_function': (PPO, 'MlpPolicy', lambda: gym.make('CartPole-v1'), {'learning_rate': lambda x: 1e-3 * (x + 1)}),
    'ppo_gsde': (PPO, 'MlpPolicy', lambda: gym.make('Pendulum-v1'), {'use_sde': True, 'sde_sample_freq': 4}),
    'ppo_cnn': (PPO, 'CnnPolicy', draws(IMAGE, spaces.Discrete(3)), {}),
    'ppo_cnn_apart': (
        PPO,
        'CnnPolicy',
        draws(IMAGE, spaces.Box(-1, 1, (2,), np.float32)),
        {'share_features_extractor': False, 'net': {'pi': [8], 'vf': [6]}},
    ),
    'ppo_multi_input': (PPO, 'MultiInputPolicy', draws(PARTS, spaces.Discrete(3)), {}),
    'ppo_multi_input_apart': (
        PPO,
        'MultiInputPolicy',
        draws(PARTS, spaces.Box(-1, 1, (2,), np.float32)),
        {'share_features_extractor': False, 'net': {'pi': [8], 'vf': [6, 6]}, 'activation_fn': nn.ReLU},
    ),
    'a2c_discrete': (A2C, 'MlpPolicy', lambda: gym.make('CartPole-v1'), {}),
    'a2c_adam_box': (A2C, 'MlpPolicy', lambda: gym.make('Pendulum-v1'), {'use_rms_prop': False}),
    'trpo_box': (TRPO, 'MlpPolicy', lambda: gym.make('Pendulum-v1'), {}),
    'maskable_multi_discrete': (MaskablePPO, 'MlpPolicy', draws(VECTOR, spaces.MultiDiscrete([3, 4])), {}),
    'recurrent_discrete': (RecurrentPPO, 'MlpLstmPolicy', lambda: gym.make('CartPole-v1'), {}),
    'recurrent_no_critic_lstm': (
        RecurrentPPO,
        'MlpLstmPolicy',
        lambda: gym.make('Pendulum-v1'),
        {'enable_critic_lstm': False},
    ),
}
"""Name -> class, policy, env, arguments. net, activation_fn and the like go into policy_kwargs; normalize to VecNormalize."""
OF_NET = ('activation_fn', 'share_features_extractor', 'enable_critic_lstm')
LARGE = ('ppo_cnn', 'ppo_cnn_apart', 'ppo_multi_input', 'ppo_multi_input_apart')
"""Kinds whose networks for images take megabytes unless features_dim is small."""


def make(name: str, small: bool) -> tuple[Any, Any]:
    """A new model and its vector env."""
    algorithm, policy, env, options = KINDS[name]
    options = dict(options)
    kwargs = {key: options.pop(key) for key in OF_NET if key in options}
    net = options.pop('net', None)
    if net is None and small and policy != 'CnnPolicy':
        net = {'pi': [6, 5], 'vf': [6, 5]}
    if net is not None:
        kwargs['net_arch'] = net
    if small and algorithm is RecurrentPPO:
        kwargs['lstm_hidden_size'] = 6
    if small and policy == 'CnnPolicy':
        kwargs['features_extractor_kwargs'] = {'features_dim': 4}
    if small and policy == 'MultiInputPolicy':
        kwargs['features_extractor_kwargs'] = {'cnn_output_dim': 4}
    normalize = options.pop('normalize', None)
    venv: Any = DummyVecEnv([env, env])
    venv.seed(3)
    if normalize is not None:
        venv = VecNormalize(venv, **normalize)
    n_steps = 256
    if small:
        n_steps = 32
    if algorithm in (PPO, MaskablePPO, RecurrentPPO):
        options |= {'n_steps': n_steps, 'batch_size': 16, 'n_epochs': 2}
    elif algorithm is TRPO:
        options |= {'n_steps': n_steps, 'batch_size': 16}
    return algorithm(policy, venv, seed=1, policy_kwargs=kwargs, **options), venv


def arrays_of(obs: Any, prefix: str = 'obs') -> dict[str, np.ndarray]:
    if isinstance(obs, dict):
        return {f'{prefix}.{key}': np.asarray(x) for key, x in obs.items()}
    return {prefix: np.asarray(obs)}


def drawn_obs(model: Any, n: int) -> Any:
    """n raw observations of the space that the policy sees; those without bounds are normal numbers."""
    space = model.observation_space
    space.seed(7)
    rows = [space.sample() for _ in range(n)]
    if isinstance(rows[0], dict):
        return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    return np.stack(rows)


@torch.no_grad()
def answers(model: Any, venv: Any, obs: Any) -> dict[str, np.ndarray]:
    """Greedy actions, as the env gets them, and values."""
    seen = obs
    if isinstance(venv, VecNormalize):
        seen = venv.normalize_obs(obs)
    found: dict[str, np.ndarray] = {}
    if isinstance(model, RecurrentPPO):
        return of_sequence(model, seen)
    if isinstance(model, MaskablePPO):
        n = int(sum(model.action_space.nvec))
        masks = np.random.default_rng(0).random((len(obs), n)) < 0.6
        for start, length in zip((0, *np.cumsum(model.action_space.nvec)[:-1]), model.action_space.nvec, strict=True):
            masks[~masks[:, start : start + length].any(1), start] = True
        found['mask'] = masks
        found['action'] = model.predict(seen, deterministic=True, action_masks=masks)[0]
    else:
        found['action'] = model.predict(seen, deterministic=True)[0]
    found['value'] = model.policy.predict_values(model.policy.obs_to_tensor(seen)[0]).numpy()[:, 0]
    return found


def of_sequence(model: Any, obs: np.ndarray) -> dict[str, np.ndarray]:
    """Actions and values along one sequence, in which episodes begin at every 25th row."""
    first = np.arange(len(obs)) % 25 == 0
    state = None
    actions = []
    for row, begins in zip(obs, first, strict=True):
        action, state = model.predict(row[None], state=state, episode_start=np.array([begins]), deterministic=True)
        actions.append(action[0])
    memory = torch.zeros(model.policy.lstm_hidden_state_shape)
    lstm = model.policy.lstm_critic or model.policy.lstm_actor
    values = []
    state_v = (memory, memory.clone())
    for row, begins in zip(obs, first, strict=True):
        starts = torch.tensor([float(begins)])
        x = torch.as_tensor(row[None])
        values.append(model.policy.predict_values(x, state_v, starts)[0, 0].item())
        features = model.policy.extract_features(x, model.policy.vf_features_extractor)
        _, state_v = model.policy._process_sequence(features, state_v, starts, lstm)
    return {'first': first, 'action': np.stack(actions), 'value': np.array(values)}


def trained(model: Any, venv: Any) -> dict[str, np.ndarray]:
    """A rollout, and the parameters after N_STEP gradient steps on all of it; {} where a layer has no counterpart in zoo."""
    if (
        getattr(model.policy, 'critic', None) is not None
    ):  # two linear layers in a row are one there, without their moments
        return {}
    _, callback = model._setup_learn(10_000, reset_num_timesteps=False)
    options = {'use_masking': True} if isinstance(model, MaskablePPO) else {}
    model.collect_rollouts(
        venv if isinstance(model.env, DummyVecEnv) else model.env,
        callback,
        model.rollout_buffer,
        model.n_steps,
        **options,
    )
    buffer = model.rollout_buffer
    next(buffer.get(None))  # flattens the arrays, and puts each env's steps side by side
    names = ('actions', 'values', 'log_probs', 'advantages', 'returns')
    found = {f'rollout.{name}': getattr(buffer, name).copy() for name in names}
    found |= arrays_of(buffer.observations, 'rollout.obs')
    if isinstance(model, MaskablePPO):
        found['rollout.mask'] = buffer.action_masks.copy()
    if isinstance(model, RecurrentPPO):
        found |= in_order(buffer)
    found = {name: x.copy() for name, x in found.items()}
    model._current_progress_remaining = 1.0 - model.num_timesteps / model._total_timesteps
    with torch.no_grad():
        obs = {
            k.removeprefix('rollout.obs.'): torch.as_tensor(x) for k, x in found.items() if k.startswith('rollout.obs.')
        }
    if isinstance(model, PPO | MaskablePPO | RecurrentPPO):
        model.batch_size = len(buffer.advantages)
        model.n_epochs = N_STEP
        model.train()
    elif isinstance(model, TRPO):  # one natural step of the actor, and N_STEP of the critic
        model.batch_size = len(buffer.advantages)
        model.n_critic_updates = N_STEP
        model.train()
    else:
        for _ in range(N_STEP):
            model.train()
    del obs
    rate = model.policy.optimizer.param_groups[0]['lr']
    found |= {f'after.{name}': x.numpy().copy() for name, x in model.policy.state_dict().items()}
    return found | {'rate': np.array(rate)}


def in_order(buffer: Any) -> dict[str, np.ndarray]:
    """The beginnings of episodes and the first states of a rollout with memories, whose minibatches begin at row 0 from now on.

    The library begins them at a row that it draws, and so cuts another sequence.
    """
    n_step, n_env = buffer.buffer_size, buffer.n_envs
    begins = np.zeros((n_env, n_step), np.float32)
    begins[:, 0] = 1
    buffer.get = lambda batch_size: iter([buffer._get_samples(np.arange(n_step * n_env), begins.reshape(-1, 1))])
    found = {'rollout.first': buffer.episode_starts.reshape(n_env, n_step).astype(bool)}
    for role in ('pi', 'vf'):
        parts = [getattr(buffer, f'{part}_states_{role}')[::n_step, 0] for part in ('hidden', 'cell')]
        found[f'rollout.state_{role}'] = np.concatenate(parts, -1)
    return found


def write(name: str, folder: Path, small: bool) -> None:
    torch.manual_seed(0)
    model, venv = make(name, small)
    total = 2 * model.n_steps * model.n_envs
    model.learn(2 * total)
    path = folder / f'{name}.zip'
    model.save(path)
    if isinstance(venv, VecNormalize):
        venv.save(str(folder / f'{name}.pkl'))
        venv.training = False
    obs = drawn_obs(model, 24 if small else 1000)
    if isinstance(venv, VecNormalize):
        obs = np.random.default_rng(5).normal(size=obs.shape).astype(np.float32)
    found = arrays_of(obs) | answers(model, venv, obs)
    found |= trained(model, venv)
    np.savez_compressed(folder / f'{name}.npz', **found)
    if small:
        compress(path)


def compress(path: Path) -> None:
    """Writes a zip again with the same entries, compressed; stable-baselines3 reads both."""
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for entry, content in entries.items():
            archive.writestr(zipfile.ZipInfo(entry), content, zipfile.ZIP_DEFLATED)


def write_others(folder: Path, small: bool) -> None:
    """Models of algorithms that zoo does not have."""
    kwargs = {'net_arch': [4]} if small else None
    DQN('MlpPolicy', gym.make('CartPole-v1'), policy_kwargs=kwargs, buffer_size=100).save(folder / 'dqn.zip')
    SAC('MlpPolicy', gym.make('Pendulum-v1'), policy_kwargs=kwargs, buffer_size=100).save(folder / 'sac.zip')
    for name in ('dqn', 'sac') if small else ():
        compress(folder / f'{name}.zip')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--small', action='store_true', help='tiny networks and few observations')
    parser.add_argument('--only', nargs='*', help='names of kinds')
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.only or KINDS:
        write(name, args.folder, args.small)
        print(name, (args.folder / f'{name}.zip').stat().st_size, flush=True)
    if not args.only:
        write_others(args.folder, args.small)
    import sb3_contrib
    import stable_baselines3

    versions = {'stable-baselines3': stable_baselines3.__version__, 'sb3-contrib': sb3_contrib.__version__}
    versions |= {'torch': torch.__version__, 'gymnasium': gym.__version__, 'numpy': np.__version__}
    (args.folder / 'versions.json').write_text(json.dumps(versions, indent=1) + '\n')


if __name__ == '__main__':
    main()
