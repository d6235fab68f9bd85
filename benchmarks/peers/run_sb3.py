"""One timed run of stable-baselines3 PPO on matched work: DummyVecEnv with Monitor, no callback, no evaluation."""
from __future__ import annotations

import time

from _driver import N_EPISODE, emit, parse_args, peak_rss_mb

args = parse_args()

import stable_baselines3  # noqa: E402  (the thread count has to be set first)
import torch  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402


def main() -> None:
    torch.set_num_threads(args.threads)
    model = PPO(
        'MlpPolicy', make_vec_env(args.env, n_envs=args.num_envs, seed=args.seed), learning_rate=args.lr,
        n_steps=args.rollout, batch_size=args.minibatch, n_epochs=args.epochs, gamma=0.99, gae_lambda=0.95,
        clip_range=0.2, ent_coef=args.entropy, vf_coef=0.5, max_grad_norm=0.5, seed=args.seed, device='cpu',
        policy_kwargs={'net_arch': {'pi': [64, 64], 'vf': [64, 64]}, 'activation_fn': torch.nn.Tanh},
    )
    startup_s, start = time.time() - args.started, time.perf_counter()
    model.learn(total_timesteps=args.total_steps)
    wall_s, peak = time.perf_counter() - start, peak_rss_mb()
    # _n_updates counts epochs
    train_iter = model._n_updates * (args.num_envs * args.rollout // args.minibatch)
    mean, std = evaluate_policy(model, make_vec_env(args.env, n_envs=4, seed=1_000_000 + args.seed), N_EPISODE)
    emit(args, library='stable-baselines3', version=stable_baselines3.__version__, env_step=model.num_timesteps,
         train_iter=train_iter, wall_s=round(wall_s, 4), startup_s=round(startup_s, 2), peak_rss_mb=peak,
         final_return=round(float(mean), 1), final_return_std=round(float(std), 1))


main()
