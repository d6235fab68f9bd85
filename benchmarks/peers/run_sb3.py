"""One timed run of stable-baselines3 PPO: DummyVecEnv (SubprocVecEnv with --workers), with Monitor, without callbacks."""

from __future__ import annotations

from typing import Any

from _driver import UpdateClock, emit, parse_args

args = parse_args()

import gymnasium  # noqa: E402  (the thread count has to be set first)
import stable_baselines3  # noqa: E402
import torch  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.env_util import make_atari_env, make_vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack  # noqa: E402


def make_env(n_env: int, seed: int) -> VecEnv:
    if not args.image:
        kind = SubprocVecEnv if args.workers else DummyVecEnv
        return make_vec_env(args.env, n_envs=n_env, seed=seed, vec_env_cls=kind)
    import ale_py

    gymnasium.register_envs(ale_py)
    return VecFrameStack(make_atari_env(args.env, n_envs=n_env, seed=seed), n_stack=4)


def network() -> dict[str, Any]:
    if args.image:
        return {'policy': 'CnnPolicy'}
    return {
        'policy': 'MlpPolicy',
        'policy_kwargs': {'net_arch': {'pi': [64, 64], 'vf': [64, 64]}, 'activation_fn': torch.nn.Tanh},
    }


def main() -> None:
    torch.set_num_threads(args.threads)
    clock = UpdateClock(args)
    model = PPO(
        env=make_env(args.num_envs, args.seed),
        learning_rate=args.lr,
        n_steps=args.rollout,
        batch_size=args.minibatch,
        n_epochs=args.epochs,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=args.entropy,
        vf_coef=0.5,
        max_grad_norm=0.5,
        seed=args.seed,
        device=args.device,
        **network(),
    )
    clock.begin()
    model.learn(total_timesteps=args.total_steps)
    returns = []
    if args.episodes:
        returns, _ = evaluate_policy(
            model, make_env(4, 1_000_000 + args.seed), args.episodes, return_episode_rewards=True
        )
    emit(args, clock, 'stable-baselines3', stable_baselines3.__version__, returns, gymnasium=gymnasium.__version__)


if __name__ == '__main__':  # the workers of SubprocVecEnv import this file again
    main()
