#!/usr/bin/env bash
# BipedalWalker-v3: one env object, the same seed, the same actions, another episode.
#
# One would guess: reset(seed=5) starts the same episode each time, so the same actions give the same observations; the env
# draws its terrain from the seed, and Box2D is deterministic.
# What is: of twelve episodes of one env object, the third differs from the others, from its first step on, and soon by more
# than 1 in joint angles and speeds; all first observations are equal. It is the same in each new process. reset() removes and
# makes the bodies in one Box2D world that lives as long as the env, and this world is not as new: with a new b2World before
# each reset all twelve episodes are equal, as they are in LunarLander-v3, whose reset makes one. So an evaluation of
# BipedalWalker from fixed seeds depends on how many episodes its env has played before, and a run that continues from a
# checkpoint, with new env objects, may leave the path of the run that was not interrupted.
#
# gymnasium 1.4.0, Box2D 2.3.10, numpy 2.4.6, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check 'gymnasium[box2d]==1.4.0' box2d==2.3.10 numpy==2.4.6
cat > "$folder/episodes.py" <<'PY'
from importlib.metadata import version

import gymnasium
import numpy as np


def episodes(name, n_action):
    """Twelve times the same seed and the same 30 actions in one env: the observations, [12, 31, O]."""
    env = gymnasium.make(name, continuous=True) if name.startswith('Lunar') else gymnasium.make(name)
    actions = np.random.default_rng(1).uniform(-1, 1, (30, n_action)).astype(np.float32)
    return np.array([[env.reset(seed=5)[0], *(env.step(action)[0] for action in actions)] for _ in range(12)])


print('gymnasium', version('gymnasium'), 'Box2D', version('box2d'), 'numpy', version('numpy'))
walker, lander = episodes('BipedalWalker-v3', 4), episodes('LunarLander-v3', 2)
differs = [int(i) for i in range(12) if not np.array_equal(walker[i], walker[0])]
print('BipedalWalker-v3: episodes that differ from the first:', differs)
print('first observations equal:', all(np.array_equal(x[0], walker[0][0]) for x in walker))
print('first step that differs:', int(np.abs(walker[2] - walker[0]).max(1).nonzero()[0][0]))
print('largest difference of angles and speeds:', round(float(np.abs(walker[2] - walker[0])[:, :14].max()), 2))
print('LunarLander-v3: all equal:', all(np.array_equal(x, lander[0]) for x in lander))
assert differs == [2] and np.array_equal(walker[2][0], walker[0][0])
assert np.abs(walker[2] - walker[0])[:, :14].max() > 1
assert all(np.array_equal(x, lander[0]) for x in lander)
PY
"$folder/venv/bin/python" -W ignore "$folder/episodes.py"
