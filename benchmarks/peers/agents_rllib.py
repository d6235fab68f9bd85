"""RLlib PPO in an env of several agents with one module for all, in one process; one iteration per line of stdin."""

from __future__ import annotations

import logging
import os

os.environ.setdefault('RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO', '0')

from _turns import UpdateCount, in_turns, make_env, parse_args

args = parse_args()

import ray  # noqa: E402  (the thread count has to be set first)
import torch  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.rllib.core.rl_module.rl_module import RLModuleSpec  # noqa: E402
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv  # noqa: E402


def config() -> PPOConfig:
    towers = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation='tanh', vf_share_layers=False)
    return (
        PPOConfig()
        .environment('matched_env')
        .multi_agent(policies={'shared'}, policy_mapping_fn=lambda agent, *_, **__: 'shared')
        .env_runners(num_env_runners=0, num_envs_per_env_runner=args.copies, rollout_fragment_length=args.rollout)
        .learners(num_learners=0, num_gpus_per_learner=0)
        .training(
            train_batch_size_per_learner=args.copies * args.rollout,
            minibatch_size=args.minibatch,
            num_epochs=args.epochs,
            lr=2.5e-4,
            gamma=0.99,
            lambda_=0.95,
            clip_param=0.2,
            entropy_coeff=0.01,
            vf_loss_coeff=0.5,
            grad_clip=0.5,
            grad_clip_by='global_norm',
            use_kl_loss=False,
            vf_clip_param=float('inf'),
        )
        .rl_module(rl_module_spec=RLModuleSpec(model_config=towers))
        .debugging(seed=args.seed, log_level='ERROR')
    )


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    ray.tune.register_env('matched_env', lambda _: ParallelPettingZooEnv(make_env(args)))
    torch.set_num_threads(1)
    updates = UpdateCount()
    algo = config().build_algo()
    found: dict = {}

    def iteration() -> None:
        found.update(algo.train())

    def counts() -> tuple[int, int]:
        return int(found.get('num_env_steps_sampled_lifetime', 0)) * args.agents, updates.n

    in_turns(args, iteration, counts)
    algo.stop()
    ray.shutdown()


main()
