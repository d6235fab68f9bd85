"""One timed run of CleanRL's own script, unmodified: ppo.py or ppo_continuous_action.py of the installed package.

Options of the scripts turn off annealing of the learning rate and clipping of the value loss, which the matched work does not
have. Their standard output is discarded; their TensorBoard files go to a temporary folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import runpy
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _driver import UpdateClock, emit, greedy_returns, parse_args

args = parse_args()

import gymnasium  # noqa: E402  (the thread count has to be set first)
import numpy as np  # noqa: E402
import torch  # noqa: E402


def script() -> Path:
    spec = importlib.util.find_spec('cleanrl')
    assert spec is not None and spec.submodule_search_locations
    discrete = isinstance(gymnasium.make(args.env).action_space, gymnasium.spaces.Discrete)
    return Path(list(spec.submodule_search_locations)[0]) / ('ppo.py' if discrete else 'ppo_continuous_action.py')


def command_line() -> list[str]:
    n_minibatch = args.num_envs * args.rollout // args.minibatch
    options = {
        'env-id': args.env,
        'total-timesteps': args.total_steps,
        'learning-rate': args.lr,
        'seed': args.seed,
        'num-envs': args.num_envs,
        'num-steps': args.rollout,
        'num-minibatches': n_minibatch,
        'update-epochs': args.epochs,
        'ent-coef': args.entropy,
        'gamma': 0.99,
        'gae-lambda': 0.95,
        'clip-coef': 0.2,
        'vf-coef': 0.5,
        'max-grad-norm': 0.5,
        'anneal-lr': False,
        'clip-vloss': False,
        'cuda': args.device == 'cuda',
    }
    return [part for name, value in options.items() for part in (f'--{name}', str(value))]


def act_greedily(agent: Any, envs: Any) -> Any:
    """A function obs -> most probable action, or for the continuous script the mean action on normalised observations."""
    if hasattr(agent, 'actor'):
        return lambda obs: int(agent.actor(torch.as_tensor(obs, dtype=torch.float32)).argmax())
    layer = envs.envs[0]
    while 'obs_rms' not in vars(layer):
        layer = layer.env
    low, high = envs.single_action_space.low, envs.single_action_space.high

    def act(obs: np.ndarray) -> np.ndarray:
        seen = np.clip((obs - layer.obs_rms.mean) / np.sqrt(layer.obs_rms.var + layer.epsilon), -10, 10)
        mean = agent.actor_mean(torch.as_tensor(seen, dtype=torch.float32)[None])[0]
        return np.clip(mean.numpy(), low, high)

    return act


def main() -> None:
    torch.set_num_threads(args.threads)
    clock = UpdateClock(args)
    path = script()
    sys.argv = [path.name, *command_line()]
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, 'w') as nowhere:
        os.chdir(folder)
        with contextlib.redirect_stdout(nowhere), warnings.catch_warnings():
            warnings.simplefilter('ignore')
            clock.begin()
            names = runpy.run_path(str(path), run_name='__main__')
        os.chdir('/')
    with torch.no_grad():
        returns = greedy_returns(
            gymnasium.make(args.env), act_greedily(names['agent'].cpu(), names['envs']), args.episodes, args.seed
        )
    emit(args, clock, 'CleanRL', version('cleanrl'), returns, gymnasium=gymnasium.__version__, script=path.name)


main()
