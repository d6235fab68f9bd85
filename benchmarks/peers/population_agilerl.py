"""AgileRL's evolution of a population of PPO on CartPole, timed as a whole; prints one JSON line.

Its weights of mutations and its tournaments are those of its own manifests. As many env steps, minibatches and evaluation
episodes as population_zoo.py. Some of its modules need `peft`, which its package does not install.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

from _population import parse_args

args = parse_args()

import gymnasium  # noqa: E402  (the thread count has to be set first)
import numpy as np  # noqa: E402
import torch  # noqa: E402
from agilerl.algorithms import PPO  # noqa: E402
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter  # noqa: E402
from agilerl.hpo.mutation import Mutations  # noqa: E402
from agilerl.hpo.tournament import TournamentSelection  # noqa: E402
from agilerl.training.train_on_policy import train_on_policy  # noqa: E402


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    env = gymnasium.make_vec('CartPole-v1', num_envs=args.num_envs, vectorization_mode='sync')
    agents = PPO.population(
        size=args.pop,
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        hp_config=HyperparameterConfig(lr=RLParameter(min=1e-6, max=1.0, dtype=float)),
        net_config={'encoder_config': {'hidden_size': [64], 'activation': 'Tanh'}, 'latent_dim': 64},
        batch_size=args.minibatch,
        lr=args.lr,
        learn_step=args.rollout * args.num_envs,
        update_epochs=args.epochs,
        num_envs=args.num_envs,
        share_encoders=False,
    )
    evolution = {'no_mutation': 0.4, 'architecture': 0.2, 'new_layer_prob': 0.2, 'parameters': 0.2, 'activation': 0.0}
    mutation = Mutations(**evolution, rl_hp=0.2, mutation_sd=0.1, rand_seed=args.seed)
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=args.pop)
    start = time.perf_counter()
    with open(os.devnull, 'w') as nowhere, contextlib.redirect_stdout(nowhere):
        agents, fitnesses = train_on_policy(
            env=env,
            env_name='CartPole-v1',
            algo='PPO',
            pop=agents,
            max_steps=args.every * args.generations,
            evo_steps=args.every,
            eval_loop=max(round(args.episodes / args.num_envs), 1),  # episodes of each of the envs
            selection_strategy=tournament,
            mutation=mutation,
            verbose=False,
        )
    wall_s = time.perf_counter() - start
    env_step = args.pop * agents[0].steps  # children count the steps of their parents, so all have as many
    record = {'library': 'agilerl', 'env_step': env_step, 'wall_s': wall_s, 'best': float(max(fitnesses))}
    print(json.dumps({**record, 'env_step_per_s': env_step / wall_s}))


main()
