#!/usr/bin/env bash
# VMAS: in some scenarios the reset of one env of a batch changes the other envs, whose episodes go on.
#
# One would guess: env.reset_at(0) begins an episode in env 0, and env 1 stays as it is; rows are envs.
# What is: so it is in balance. In joint_passage the reset also moves the joint of env 1 to where its agents are now, which it
# would else be a step later, and het_mass draws the masses of agents again, for all envs at once. Runs in which episodes end at
# different times so have small jumps within episodes; where all end together, at the limit, nothing is seen.
#
# vmas 1.5.2, torch 2.13.0, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check vmas==1.5.2 numpy==2.4.6
cat > "$folder/moves.py" <<'PY'
from importlib.metadata import version

import torch
import vmas

print(*(f'{name} {version(name)}' for name in ('vmas', 'torch')))
N_STEP, PUSHES = 6, torch.Generator()


def of_env_1(env):
    """Places, turns and masses of all bodies in env 1."""
    bodies = env.world.entities
    places = torch.cat([torch.cat((body.state.pos[1], body.state.rot[1])) for body in bodies])
    return places, torch.tensor([float(torch.as_tensor(body.mass).flatten()[0]) for body in bodies])


for scenario in ('balance', 'joint_passage', 'het_mass'):
    env = vmas.make_env(scenario, num_envs=2, seed=0)
    PUSHES.manual_seed(0)
    for _ in range(N_STEP):
        env.step([2 * torch.rand(2, 2, generator=PUSHES) - 1 for _ in env.agents])
    places, masses = (x.clone() for x in of_env_1(env))
    env.reset_at(0)
    places_after, masses_after = of_env_1(env)
    print(f'{scenario}: env 1 is where it was: {torch.equal(places, places_after)}, with its masses: {torch.equal(masses, masses_after)}')
    same = (torch.equal(places, places_after), torch.equal(masses, masses_after))
    assert same == {'balance': (True, True), 'joint_passage': (False, True), 'het_mass': (True, False)}[scenario]
PY
"$folder/venv/bin/python" -W ignore "$folder/moves.py"
