"""One timed run of sb3-contrib's RecurrentPPO: actor and critic each have an LSTM, then one layer."""

from __future__ import annotations

from _driver import UpdateClock, emit, parse_args

args = parse_args()

import gymnasium  # noqa: E402  (the thread count has to be set first)
import sb3_contrib  # noqa: E402
import torch  # noqa: E402
from sb3_contrib import RecurrentPPO  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402


def main() -> None:
    torch.set_num_threads(args.threads)
    clock = UpdateClock(args)
    model = RecurrentPPO(
        'MlpLstmPolicy',
        make_vec_env(args.env, n_envs=args.num_envs, seed=args.seed),
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
        policy_kwargs={
            'lstm_hidden_size': 64,
            'n_lstm_layers': 1,
            'net_arch': {'pi': [64], 'vf': [64]},
            'activation_fn': torch.nn.Tanh,
        },
    )
    clock.begin()
    model.learn(total_timesteps=args.total_steps)
    returns = []
    if args.episodes:
        env = make_vec_env(args.env, n_envs=4, seed=1_000_000 + args.seed)
        returns, _ = evaluate_policy(model, env, args.episodes, return_episode_rewards=True)
    emit(args, clock, 'sb3-contrib', sb3_contrib.__version__, returns, gymnasium=gymnasium.__version__)


main()
