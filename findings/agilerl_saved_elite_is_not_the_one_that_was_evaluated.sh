#!/usr/bin/env bash
# AgileRL 2.58.0: the elite that its evolution saves, and returns first, is not the agent whose fitness it carries.
#
# One would guess: with elitism the best agent of a generation stays as it is; `save_elite=True` writes that agent, so that the
# loaded file plays as well as its fitness says.
# What is: the clone of the best agent is one object with the first member of the new population, which is then mutated like all
# others (`Mutations(mutate_elite=True)` is the default), and only then written. A mutation of the parameters changes up
# to a tenth of the policy's weights here, and the file still says the fitness of before. With mutate_elite=False the file has the weights
# that were evaluated. All that `train_on_policy` returns at its last step has been through this once more, after the last
# evaluation, so that a fitness that comes back belongs to none of the agents that come back.
#
# agilerl 2.58.0, torch 2.13.0, gymnasium 1.4.0, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check agilerl==2.58.0 peft gymnasium==1.4.0 numpy==2.4.6
cat > "$folder/elite.py" <<'PY'
import contextlib
import os
import tempfile
from importlib.metadata import version

import gymnasium
import numpy as np
import torch
from agilerl.algorithms import PPO
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import run_selection_and_mutation

print(*(f'{name} {version(name)}' for name in ('agilerl', 'torch', 'gymnasium')))
torch.set_num_threads(1)


def weights(agent):
    return torch.cat([x.detach().flatten() for x in agent.actor.parameters()])


def n_changed(seed, **options):
    """Weights in which the file of the elite of a selection differs from the best agent of the training before it."""
    torch.manual_seed(0)
    np.random.seed(0)
    env = gymnasium.make_vec('CartPole-v1', num_envs=8, vectorization_mode='sync')
    env.reset(seed=0)
    agents = PPO.population(
        size=3,
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        num_envs=8,
        learn_step=1024,
        batch_size=128,
        lr=1e-3,
    )
    with open(os.devnull, 'w') as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        agents, _ = train_on_policy(
            env=env, env_name='CartPole-v1', algo='PPO', pop=agents, max_steps=8192, evo_steps=8192, eval_loop=2, verbose=False
        )
    best = max(agents, key=lambda agent: agent.fitness[-1])
    before, fitness = weights(best).clone(), best.fitness[-1]
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=3)
    only_parameters = dict(no_mutation=0, architecture=0, new_layer_prob=0, parameters=1, activation=0, rl_hp=0)
    mutation = Mutations(**only_parameters, rand_seed=seed, **options)
    with tempfile.TemporaryDirectory() as place:
        members = run_selection_and_mutation(
            tournament, agents, mutation, 'CartPole-v1', 'PPO', elite_path=os.path.join(place, 'elite'), save_elite=True
        )
        elite = PPO.load(os.path.join(place, os.listdir(place)[0]))
    changed = int((weights(elite) != before).sum())
    print(seed, options, f'fitness {fitness:.1f}, in the file {elite.fitness[-1]:.1f}; weights that changed: {changed} of {len(before)}')
    assert elite.fitness[-1] == fitness
    assert torch.equal(weights(elite), weights(members[0]))
    return changed


assert min(n_changed(seed) for seed in range(4)) > 0
assert n_changed(0, mutate_elite=False) == 0
PY
"$folder/venv/bin/python" -W ignore "$folder/elite.py"
