"""One timed run of rl8 PPO on the CartPole of its own examples, which is a different task from CartPole-v1.

Its env is a tensor program with a compiled step: 3 actions, 5 observations, a shaped reward; episodes do not end, and all
envs are reset after each rollout. The examples come with rl8's source package, not with its wheel; they have to be in the
folder `examples` of the virtual environment.
"""

from __future__ import annotations

import sys
import warnings
from importlib.metadata import version
from pathlib import Path

from _driver import UpdateClock, emit, parse_args

args = parse_args()
sys.path.insert(0, str(Path(sys.prefix) / 'examples'))
warnings.simplefilter('ignore')

import torch  # noqa: E402  (the thread count has to be set first)
from cartpole.env import CartPole  # noqa: E402
from rl8 import AlgorithmConfig  # noqa: E402


def main() -> None:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    clock = UpdateClock(args)
    algorithm = AlgorithmConfig(
        model_config={'hiddens': (64, 64), 'activation_fn': 'tanh'},
        num_envs=args.num_envs,
        horizon=args.rollout,
        optimizer_config={'lr': args.lr},
        entropy_coeff=args.entropy,
        gamma=0.99,
        gae_lambda=0.95,
        clip_param=0.2,
        vf_coeff=0.5,
        max_grad_norm=0.5,
        sgd_minibatch_size=args.minibatch,
        num_sgd_iters=args.epochs,
        device=args.device,
    ).build(CartPole)
    clock.begin()
    for _ in range(args.total_steps // (args.num_envs * args.rollout)):
        collected = algorithm.collect()
        algorithm.step()
    emit(args, clock, 'rl8', version('rl8'), [], own_return=round(collected['returns/mean'], 2))


main()
