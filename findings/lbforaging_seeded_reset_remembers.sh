#!/usr/bin/env bash
# lbforaging: reset(seed=5) twice in a row gives two episodes; the end of its time is a death.
#
# One would guess: a reset with a seed depends on the seed alone, so an evaluation from fixed seeds is the same each time, and
# an episode that runs out of time is truncated, as in gymnasium's own envs.
# What is: reset draws the cell of each player anew, but a cell counts as taken if a player stands there since the episode
# before. The same seed draws the cell on which the player already stands, so it draws again, and all that comes after
# differs: of 200 seeds, none gives its start twice in a row, and nearly all do the third time. With the positions set to None
# before each reset, all are equal. Different seeds one after the other start as in a new env in 19 of 20 cases, so an
# evaluation differs only sometimes, and the seed is not the suspect.
# The time limit (50 steps here, 500 in rware, which is of the same authors) is inside the env, not in gymnasium's TimeLimit,
# and is reported as terminated: value functions learn that the world ends. In both, rewards are a list, one per agent, where
# gymnasium has a number, and the flags are one bool for all.
#
# lbforaging 2.0.0, rware 2.0.0, gymnasium 1.4.0, numpy 2.4.6, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check \
  lbforaging==2.0.0 rware==2.0.0 gymnasium==1.4.0 numpy==2.4.6
cat > "$folder/resets.py" <<'PY'
from importlib.metadata import version

import gymnasium
import lbforaging  # noqa: F401  its envs
import numpy as np
import rware  # noqa: F401  its envs

FORAGING, WAREHOUSE = 'Foraging-8x8-2p-2f-v3', 'rware-tiny-2ag-v2'
N = 200


def make(name):
    return gymnasium.make(name, disable_env_checker=True)


def start(env, seed):
    """The first observations of all agents, as one vector."""
    return np.concatenate(env.reset(seed=seed)[0])


def forget(env):
    for player in env.unwrapped.players:
        player.position = None


def equal(first, second):
    return sum(map(np.array_equal, first, second))


print(*(f'{name} {version(name)}' for name in ('lbforaging', 'rware', 'gymnasium', 'numpy')))
foraging, warehouse = make(FORAGING), make(WAREHOUSE)
starts = []
for seed in range(N):
    forget(foraging)
    starts.append([start(foraging, seed) for _ in range(3)])
first, second, third = zip(*starts, strict=True)
again = []
for seed in range(N):
    forget(foraging)
    again.append(start(foraging, seed))
own = make(FORAGING)
one_after_other = [start(own, seed) for seed in range(N)]
print(f'{FORAGING}, starts of {N} seeds that equal the first of their seed:')
print('  second in a row:', equal(first, second))
print('  third in a row:', equal(first, third))
print('  positions set to None before:', equal(first, again))
print('  all seeds one after the other:', equal(first, one_after_other))
assert equal(first, second) == 0 and equal(first, third) > 0.9 * N and equal(first, again) == N
assert 0.9 * N < equal(first, one_after_other) < N
of_warehouse = [start(warehouse, 5) for _ in range(3)]
assert all(np.array_equal(each, of_warehouse[0]) for each in of_warehouse)

for name, env, n_step in ((FORAGING, foraging, 50), (WAREHOUSE, warehouse, 500)):
    env.reset(seed=0)
    for step in range(1, n_step + 1):  # noqa: B007
        _, rewards, terminated, truncated, _ = env.step((0, 0))  # 0: stay where you are
        if terminated or truncated:
            break
    print(
        f'{name}: after {step} steps terminated {terminated}, truncated {truncated}, rewards {type(rewards).__name__},'
    )
    print(f'  max_episode_steps of its spec {env.spec.max_episode_steps}')
    assert (step, terminated, truncated, type(rewards)) == (n_step, True, False, list)
    assert env.spec.max_episode_steps is None
PY
"$folder/venv/bin/python" -W ignore "$folder/resets.py"
