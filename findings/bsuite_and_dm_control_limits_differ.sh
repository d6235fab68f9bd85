#!/usr/bin/env bash
# dm_env: the end of the time has discount 0 in bsuite and discount 1 in dm_control.
#
# One would guess: both come from the same house and use dm_env, whose truncation() (discount 1) is for limits of time, and
# termination() (discount 0) for real ends. An agent that multiplies the next value by the discount then treats limits right in
# both.
# What is: bsuite's MountainCar ends after 1,000 steps by termination(), as it ends at the goal: the value behind the limit is 0, and
# nothing in the timestep tells the two apart. dm_control's suite ends its limit with discount 1.
#
# bsuite 0.3.6, dm_control 1.0.50, mujoco 3.17.0, dm_env 1.6, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check bsuite==0.3.6 dm_control==1.0.50 mujoco==3.17.0 \
  dm-env==1.6 numpy==2.4.6
cat > "$folder/limits.py" <<'PY'
from importlib.metadata import version

import numpy as np
from bsuite.environments.mountain_car import MountainCar
from dm_control import suite

print(*(f'{name} {version(name)}' for name in ('bsuite', 'dm_control', 'mujoco', 'dm-env')))


def end(env, action):
    """The number of steps of an episode of one action, and the discount of the last one."""
    timestep = env.reset()
    n = 0
    while not timestep.last():
        timestep = env.step(action)
        n += 1
    return n, float(timestep.discount)


of_bsuite = end(MountainCar(max_steps=50, seed=0), 1)  # no push: the car stays in the valley
of_suite = end(suite.load('cartpole', 'balance', task_kwargs={'random': 0, 'time_limit': 0.5}), np.zeros(1))
print('bsuite MountainCar, 50 steps in the valley: (steps, discount) =', of_bsuite)
print('dm_control cartpole balance, 0.5 s: (steps, discount) =', of_suite)
assert of_bsuite == (50, 0.0) and of_suite == (50, 1.0)
PY
MUJOCO_GL=disable "$folder/venv/bin/python" -W ignore "$folder/limits.py"
