#!/usr/bin/env bash
# stable-baselines3: a saved model does not name its env, its algorithm, or the optimiser that A2C was made with.
#
# One would guess: the file `data` of the zip has the arguments of the constructor, since load() makes the model anew from it.
# What is:
# - no entry names the env or the algorithm. PPO and A2C have the same policy_class; which of the two a zip is of can only be told
#   from entries that the other lacks (clip_range). PPO.load(the zip of an A2C) says nothing: it is a PPO with the settings of the A2C
#   and, where these have none, the defaults: 10 epochs on minibatches of 64.
# - A2C's use_rms_prop is in no entry. With True the choice is in policy_kwargs, as optimizer_class; with False policy_kwargs is
#   empty, and only the state of the optimiser says that it is Adam's (exp_avg, not square_avg).
# - TRPO of sb3-contrib has vf_coef, ent_coef and max_grad_norm, all 0.0: arguments of its base class, which TRPO never reads.
#
# stable-baselines3 2.9.2, sb3-contrib 2.9.2, torch 2.13.0, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check stable-baselines3==2.9.2 sb3-contrib==2.9.2
cat > "$folder/zips.py" <<'PY'
import io
import json
import zipfile
from importlib.metadata import version

import torch
from sb3_contrib import TRPO
from stable_baselines3 import A2C, PPO


def saved(cls, **words):
    """The bytes of a model's zip, its `data`, and the state of its optimiser."""
    model = cls('MlpPolicy', 'CartPole-v1', n_steps=8, seed=0, device='cpu', **words)
    model.learn(8)
    file = io.BytesIO()
    model.save(file)
    with zipfile.ZipFile(file) as archive:
        optimizer = torch.load(io.BytesIO(archive.read('policy.optimizer.pth')), weights_only=True)
        entries = next(iter(optimizer['state'].values()), {}).keys()
        return file, json.loads(archive.read('data')), entries


print('stable-baselines3', version('stable-baselines3'), 'sb3-contrib', version('sb3-contrib'), 'torch', version('torch'))
_, ppo, _ = saved(PPO, batch_size=8)
file, rms, rms_state = saved(A2C)
_, adam, adam_state = saved(A2C, use_rms_prop=False)
_, trpo, _ = saved(TRPO, batch_size=8)
texts = [json.dumps(data) for data in (ppo, rms, adam, trpo)]
print('zips that name CartPole:', sum('CartPole' in text for text in texts))
classes = {data['policy_class'][':serialized:'] for data in (ppo, rms, adam)}
print('policy classes of PPO and A2C:', len(classes), '; entries of PPO alone:', sorted(ppo.keys() - rms.keys()))
print('use_rms_prop in the zips of A2C:', 'use_rms_prop' in rms, 'use_rms_prop' in adam)
print('policy_kwargs:', sorted(k for k in rms['policy_kwargs'] if k[0] != ':'), adam['policy_kwargs'])
print('state of the optimiser:', sorted(rms_state), sorted(adam_state))
print('TRPO:', {name: trpo[name] for name in ('vf_coef', 'ent_coef', 'max_grad_norm')})
file.seek(0)
loaded = PPO.load(file, device='cpu')
print('PPO.load of the zip of an A2C:', type(loaded).__name__, loaded.n_steps, loaded.learning_rate, loaded.n_epochs, loaded.batch_size)
assert not any('CartPole' in text for text in texts) and len(classes) == 1 and 'clip_range' in ppo.keys() - rms.keys()
assert 'use_rms_prop' not in rms and 'use_rms_prop' not in adam
assert 'optimizer_class' in rms['policy_kwargs'] and adam['policy_kwargs'] == {}
assert 'square_avg' in rms_state and 'exp_avg' in adam_state
assert [trpo[name] for name in ('vf_coef', 'ent_coef', 'max_grad_norm')] == [0.0, 0.0, 0.0]
assert (loaded.n_steps, loaded.learning_rate, loaded.n_epochs, loaded.batch_size) == (8, 7e-4, 10, 64)
PY
"$folder/venv/bin/python" -W ignore "$folder/zips.py"
