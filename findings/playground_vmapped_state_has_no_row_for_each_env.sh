#!/usr/bin/env bash
# mujoco_playground: the state of 3 envs under jax.vmap is not 3 states.
#
# One would guess: an env of mujoco_playground is a pair of pure functions as in brax, so that each array of the state that
# jax.vmap(env.reset) returns has a first axis of one row an env, and x[1] of all arrays is the state of env 1. One would also
# guess that its default config takes the physics of JAX where there is no GPU.
# What is: in 0.2.0 the default physics is MuJoCo Warp, also on a CPU, and 22 of its 196 arrays have no such axis: those that Warp
# keeps once for all envs, such as contacts. jax.vmap says nothing, and the envs step. But code that takes out, replaces or joins
# the states of some envs, such as new episodes by x.at[rows].set(...), raises at the first such array. With config.impl = 'jax'
# each array has its row an env. zoo sets that.
#
# playground 0.2.0, mujoco 4.0.0, mujoco-mjx 3.17.0, warp-lang 1.19.0, jax 0.10.2, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check playground==0.2.0 mujoco==4.0.0 mujoco-mjx==3.17.0 \
  warp-lang==1.19.0 jax==0.10.2 jaxlib==0.10.2
cat > "$folder/rows.py" <<'PY'
from importlib.metadata import version

import jax
from mujoco_playground import registry

print(*(f'{name} {version(name)}' for name in ('playground', 'mujoco', 'mujoco-mjx', 'warp-lang', 'jax')))
config = registry.get_default_config('CartpoleBalance')
print('default physics:', config.impl, 'on', jax.devices()[0].platform)
assert config.impl == 'warp'
keys = jax.random.split(jax.random.key(0), 3)
for impl in ('warp', 'jax'):
    config.impl = impl
    env = registry.load('CartpoleBalance', config=config)
    state = jax.jit(jax.vmap(env.reset))(keys)
    leaves = jax.tree_util.tree_leaves_with_path(state)
    odd = [(jax.tree_util.keystr(path), x.shape) for path, x in leaves if x.shape[:1] != (3,)]
    print(f'{impl}: {len(leaves)} arrays of 3 envs, without 3 rows: {len(odd)}', *odd[:2])
    try:
        jax.tree.map(lambda x: x[1], state)
    except IndexError as error:
        print('  the state of env 1: IndexError:', error)
        assert impl == 'warp' and odd
    else:
        print('  the state of env 1: taken out')
        assert impl == 'jax' and not odd
PY
"$folder/venv/bin/python" -W ignore "$folder/rows.py" | grep -v '^Module \|^Warp \|^   '
