"""One timed run of RLlib PPO with env runners in separate processes (--workers) and the learner in this process."""

from __future__ import annotations

import logging
import os

os.environ.setdefault('RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO', '0')

from _driver import Clock, emit, parse_args

args = parse_args()

import gymnasium  # noqa: E402  (the thread count has to be set first)
import ray  # noqa: E402
import torch  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402


def make_env(_: object) -> gymnasium.Env:
    if args.env.startswith('Slow'):
        import slow_env  # noqa: F401  # env runners import it in their own processes
    return gymnasium.make(args.env)


def config() -> PPOConfig:
    n_worker = max(args.workers, 1)
    return (
        PPOConfig()
        .environment('matched_env')
        .env_runners(
            num_env_runners=args.workers,
            num_envs_per_env_runner=args.num_envs // n_worker,
            rollout_fragment_length=args.rollout,
            num_cpus_per_env_runner=0.5,
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .training(
            train_batch_size_per_learner=args.num_envs * args.rollout,
            minibatch_size=args.minibatch,
            num_epochs=args.epochs,
            lr=args.lr,
            gamma=0.99,
            lambda_=0.95,
            clip_param=0.2,
            entropy_coeff=args.entropy,
            vf_loss_coeff=0.5,
            grad_clip=0.5,
            grad_clip_by='global_norm',
            use_kl_loss=False,
            vf_clip_param=float('inf'),
        )
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation='tanh', vf_share_layers=False)
        )
        .debugging(seed=args.seed, log_level='ERROR')
    )


def main() -> None:
    ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    ray.tune.register_env('matched_env', make_env)
    torch.set_num_threads(args.threads)
    clock = Clock(args)
    algo = config().build_algo()
    clock.begin()
    found: dict = {}
    batch, n_done = args.num_envs * args.rollout, 0
    per_iter = args.epochs * (batch // args.minibatch)
    for i in range(args.total_steps // batch):
        if i == args.warmup:
            clock.mark(n_done, i * per_iter)
        found = algo.train()
        n_done = int(found['num_env_steps_sampled_lifetime'])
    clock.mark(n_done, args.total_steps // batch * per_iter)  # RLlib's own metrics show this number of steps
    returns = [found['env_runners'].get('episode_return_mean', float('nan'))] if args.episodes else []
    emit(args, clock, 'rllib', ray.__version__, returns, gymnasium=gymnasium.__version__)
    algo.stop()
    ray.shutdown()


main()
