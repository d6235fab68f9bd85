#!/usr/bin/env bash
# brax: `pip install brax` gives a brax whose own PPO cannot begin to train.
#
# One would guess: brax names the versions of jax that it works with, so that what pip installs beside the newest brax trains its
# smallest env by its own PPO.
# What is: brax 0.14.2 asks for any jax; with jax 0.10.2 its PPO raises AttributeError before the first step, since it calls
# jax.device_put_replicated, whose name that jax still has but which it refuses. Its envs work. So comparisons with brax's PPO need
# an older jax, or that function given back as in benchmarks/simulators.py.
#
# brax 0.14.2, jax 0.10.2, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check brax==0.14.2 jax==0.10.2 jaxlib==0.10.2
cat > "$folder/train.py" <<'PY'
from importlib.metadata import requires, version

import jax
from brax import envs
from brax.training.agents.ppo import train as ppo

print(*(f'{name} {version(name)}' for name in ('brax', 'jax')))
asked = [text for text in requires('brax') if text.startswith('jax') and not text.startswith('jaxopt') and 'extra' not in text]
print('brax asks for:', ', '.join(asked))
env = envs.get_environment('fast')
state = env.step(env.reset(jax.random.key(0)), jax.numpy.zeros(env.action_size))
print('its env steps, reward', float(state.reward))
small = dict(num_envs=4, episode_length=8, batch_size=4, num_minibatches=1, unroll_length=4, num_updates_per_batch=1)
try:
    ppo.train(environment=env, num_timesteps=64, **small)
except AttributeError as error:
    print('its PPO raised AttributeError:', str(error).split(';')[0])
    assert 'device_put_replicated' in str(error)
else:
    raise SystemExit('its PPO trained: this changed')
assert not any('<' in text or '==' in text for text in asked)
PY
"$folder/venv/bin/python" -W ignore "$folder/train.py"
