"""stable-baselines3 PPO with SuperSuit in an env of several agents, one iteration per line of stdin.

SuperSuit's envs take no seed from PPO, so the streams of torch and numpy are seeded here.
"""

from __future__ import annotations

from _turns import UpdateCount, in_turns, make_env, parse_args

args = parse_args()

import numpy as np  # noqa: E402  (the thread count has to be set first)
import supersuit  # noqa: E402
import torch  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.vec_env import VecMonitor  # noqa: E402


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    rows = supersuit.pettingzoo_env_to_vec_env_v1(make_env(args))
    rows = supersuit.concat_vec_envs_v1(rows, args.copies, num_cpus=0, base_class='stable_baselines3')
    updates = UpdateCount()
    model = PPO(
        'MlpPolicy',
        VecMonitor(rows),
        learning_rate=2.5e-4,
        n_steps=args.rollout,
        batch_size=args.minibatch,
        n_epochs=args.epochs,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        policy_kwargs={'net_arch': {'pi': [64, 64], 'vf': [64, 64]}, 'activation_fn': torch.nn.Tanh},
        device='cpu',
    )

    def iteration() -> None:
        model.learn(args.rows * args.rollout, reset_num_timesteps=False)

    in_turns(args, iteration, lambda: (model.num_timesteps, updates.n))


main()
