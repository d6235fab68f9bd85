"""AgileRL's evolution as a search: one repeat of a task of ../population.py; prints one JSON line of that script's form.

All settings are those of its own manifest for PPO (configs/training/ppo/ppo.yaml of its repository), but for the env, the env steps
and the 8 members, for mutations of activations, which its PPO refuses, and for `mutate_elite`, which is off: else the elite that it
saves is not the one that was evaluated. All members begin with one setting, as its populations do. Its PPO has no greedy action, so
that all returns are those of `test`, which draws. What is trained again is the elite's settings and sizes of networks, alone and
without mutation. Some of its modules need `peft`, which its package does not install.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
from typing import Any

for NAME in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
    os.environ[NAME] = '1'

import gymnasium  # noqa: E402  (the thread count has to be set first)
import numpy as np  # noqa: E402
import torch  # noqa: E402
from agilerl.algorithms import PPO  # noqa: E402
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter  # noqa: E402
from agilerl.hpo.mutation import Mutations  # noqa: E402
from agilerl.hpo.tournament import TournamentSelection  # noqa: E402
from agilerl.training.train_on_policy import train_on_policy  # noqa: E402

N_EPISODE = 100
N_ENV_OF_EVALUATION = 10
N_ENV = 16
LEARN_STEP = 2_048
LAYERS = {'activation': 'Tanh', 'min_mlp_nodes': 64, 'max_mlp_nodes': 500, 'layer_norm': True}
NETWORK = {
    'latent_dim': 64,
    # two lists of sizes: AgileRL changes them in place, and one list in both sections ends its evolution in an error
    'encoder_config': {**LAYERS, 'hidden_size': [64]},
    'head_config': {
        **LAYERS,
        'hidden_size': [64],
        'output_activation': None,
        'min_hidden_layers': 1,
        'max_hidden_layers': 3,
        'output_vanish': True,
    },
}
SETTINGS = {'batch_size': 128, 'lr': 3e-4, 'learn_step': LEARN_STEP, 'ent_coef': 0.01}  # those that mutate


def evaluated(agent: PPO, env_id: str, seed: int) -> float:
    """The mean return over fresh episodes."""
    env = gymnasium.make_vec(env_id, num_envs=N_ENV_OF_EVALUATION, vectorization_mode='sync')
    env.reset(seed=seed)
    torch.manual_seed(seed)
    return float(agent.test(env, loop=N_EPISODE // N_ENV_OF_EVALUATION))  # of as many episodes in each env


def trained(agents: list[PPO], args: argparse.Namespace, seed: int, **evolution: Any) -> list[PPO]:
    """The agents after their env steps: whole rollouts, no more than args.steps, and generations of one number of them."""
    every = max(args.steps // args.generations // LEARN_STEP, 1) * LEARN_STEP
    env = gymnasium.make_vec(args.env, num_envs=N_ENV, vectorization_mode='sync')
    env.reset(seed=seed)
    with open(os.devnull, 'w') as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        agents, _ = train_on_policy(
            env=env,
            env_name=args.env,
            algo='PPO',
            pop=agents,
            max_steps=args.steps // every * every,
            evo_steps=every,
            eval_loop=1,  # one episode of each of the envs, as its manifest has it
            verbose=False,
            **evolution,
        )
    return agents


def population(env_id: str, size: int, **settings: Any) -> list[PPO]:
    """New agents of these settings."""
    env = gymnasium.make_vec(env_id, num_envs=1, vectorization_mode='sync')
    ranges = HyperparameterConfig(
        lr=RLParameter(min=1e-4, max=1e-2, dtype=float),
        batch_size=RLParameter(min=8, max=1024, dtype=int),
        learn_step=RLParameter(min=256, max=8192, dtype=int),
        ent_coef=RLParameter(min=1e-3, max=0.1, dtype=float),
    )
    agents: list[PPO] = PPO.population(
        size=size,
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        hp_config=ranges,
        net_config=NETWORK,
        update_epochs=4,
        num_envs=N_ENV,
        share_encoders=True,
        **settings,
    )
    return agents


def settings_of(agent: PPO) -> dict[str, Any]:
    """Of an agent, the settings that mutate."""
    return {name: getattr(agent, name) for name in SETTINGS}


def again(elite: PPO, args: argparse.Namespace, seed: int) -> float:
    """The mean return of the elite's settings and network sizes, trained with a new seed."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    networks = [type(network)(**network.init_dict) for network in (elite.actor, elite.critic)]
    agents = population(args.env, 1, actor_network=networks[0], critic_network=networks[1], **settings_of(elite))
    return evaluated(trained(agents, args, seed)[0], args.env, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--env', required=True)
    parser.add_argument('--seed', type=int, required=True)
    parser.add_argument('--best-seed', type=int, required=True, help='of the episodes of the best member')
    parser.add_argument('--fresh-seeds', type=int, nargs='*', default=[], help='of the runs that are trained again')
    parser.add_argument('--pop', type=int, default=8)
    parser.add_argument('--steps', type=int, required=True, help='env steps of a member')
    parser.add_argument('--generations', type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    start = time.perf_counter()
    weights = {'no_mutation': 0.4, 'architecture': 0.2, 'new_layer_prob': 0.2, 'parameters': 0.2, 'activation': 0.0}
    # else the elite too is mutated after its evaluation, and then saved
    mutation = Mutations(**weights, rl_hp=0.2, mutation_sd=0.1, mutate_elite=False, rand_seed=args.seed)
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=args.pop)
    agents = population(args.env, args.pop, **SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        # most members that come back are mutated after their last evaluation; the elite that is saved is as it was evaluated
        file = os.path.join(folder, 'elite')
        agents = trained(
            agents, args, args.seed, selection_strategy=tournament, mutation=mutation, save_elite=True, elite_path=file
        )
        elite = PPO.load(next(os.path.join(folder, name) for name in os.listdir(folder)))
    wall_s = time.perf_counter() - start
    record = {
        'seed': args.seed,
        'best': evaluated(elite, args.env, args.best_seed),
        'fresh': [again(elite, args, seed) for seed in args.fresh_seeds],
        'env_step': sum(agent.steps for agent in agents),
        'eval_step': None,
        'wall_s': round(wall_s, 1),
        'found': settings_of(elite),
    }
    print(json.dumps(record))


main()
