#!/usr/bin/env bash
# state() of PettingZoo's interface after the last step: an exception in magent2 and multiwalker, an empty array in momaland.
#
# One would guess: state() is the state of the whole env, so it is there as long as the env, also when its agents are gone,
# which is when a central critic needs it: the state after a step that ended by a time limit gives the value that is left. It
# has the shape of `state_space`; where an env has none, hasattr(env, 'state') is False.
# What is:
# - magent2: ValueError in the step that ends a game by the death of the last of a side (combined_arms, tiger_deer). It is
#   fine in games that end by the time limit, so it shows when a policy becomes good.
# - multiwalker of pettingzoo: AttributeError ('NoneType' object has no attribute 'position') after the last step of an
#   episode.
# - beach of momaland: it joins the observations of living agents, so shape (0,) after the last step, and (500,) before.
# - tictactoe has the method, and it raises NotImplementedError; in rps it is a dict: 'dict' object is not callable.
#
# magent2 0.3.4, pettingzoo 1.27.0, momaland 0.2.0, numpy 2.4.6, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check \
  magent2==0.3.4 'pettingzoo[sisl]==1.27.0' gymnasium==1.4.0 numpy==2.4.6
# momaland wants wandb and more for its scripts, not for its envs
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps momaland==0.2.0
cat > "$folder/states.py" <<'PY'
from importlib.metadata import version

import numpy as np
from magent2.environments import battle_v4, combined_arms_v6, tiger_deer_v4
from momaland.envs.beach import beach
from pettingzoo.classic import rps_v2, tictactoe_v3
from pettingzoo.sisl import multiwalker_v9, pursuit_v5


def state_of(env):
    """The shape of state(), or what it raises."""
    try:
        return np.shape(env.state())
    except Exception as error:  # any: the kind is what is shown
        return f'{type(error).__name__}: {error}'


def states(module, **kwargs):
    """Of an episode of random actions: steps, states after the reset, before the last step and after it, how it ended."""
    env = module.parallel_env(**kwargs)
    env.reset(seed=0)
    spaces = {agent: env.action_space(agent) for agent in env.possible_agents}
    for i, space in enumerate(spaces.values()):
        space.seed(i)
    seen = [state_of(env)]
    while env.agents:
        _, _, terminated, _, _ = env.step({agent: spaces[agent].sample() for agent in env.agents})
        seen.append(state_of(env))
    how = 'terminated' if all(terminated.values()) else 'truncated'
    print(f'{module.__name__}: {how} after {len(seen) - 1} steps; state() {seen[0]}, {seen[-2]}, at the end {seen[-1]}')
    env.close()
    assert len(set(seen[:-1])) == 1 and isinstance(seen[0], tuple)
    return seen[0], seen[-1], how


print(*(f'{name} {version(name)}' for name in ('magent2', 'pettingzoo', 'momaland', 'numpy')))
for module, size in ((combined_arms_v6, 16), (tiger_deer_v4, 12)):
    _, last, how = states(module, map_size=size)
    assert (last, how) == ('ValueError: not enough values to unpack (expected 2, got 0)', 'terminated')
first, last, how = states(battle_v4, map_size=12)
assert last == first and how == 'truncated'
_, last, _ = states(multiwalker_v9)
assert last == "AttributeError: 'NoneType' object has no attribute 'position'"
first, last, _ = states(pursuit_v5)
assert last == first
first, last, _ = states(beach)
assert (first, last) == ((500,), (0,))
for module, kind in ((tictactoe_v3, 'NotImplementedError'), (rps_v2, 'TypeError')):
    env = module.env()
    env.reset(seed=0)
    print(f'{module.__name__}: hasattr {hasattr(env, "state")}, state() {state_of(env)}')
    assert hasattr(env, 'state') and state_of(env).startswith(kind)
PY
"$folder/venv/bin/python" -W ignore "$folder/states.py" | grep -v '^pygame'
