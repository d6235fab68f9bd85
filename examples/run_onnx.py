"""Acts in an env with an exported policy and onnxruntime: neither zoo nor PyTorch is imported.

zoo export RUN -o policy.onnx
python run_onnx.py policy.onnx [ENV]
"""

import json
import os
import sys

import gymnasium
import numpy as np

os.environ.setdefault('ORT_DISABLE_TELEMETRY', '1')  # before the import, with which the telemetry of onnxruntime starts
import onnxruntime  # noqa: E402

session = onnxruntime.InferenceSession(sys.argv[1])
about = session.get_modelmeta().custom_metadata_map  # texts; lists and spaces in them are JSON
inputs = {each['name']: each for each in json.loads(about['inputs'])}
outputs = [each['name'] for each in json.loads(about['outputs'])]
next_of = json.loads(about['state'])  # of a policy with a memory: input -> the output that holds the next one


def first_state():
    return {name: np.zeros((1, *inputs[name]['shape'][1:]), inputs[name]['dtype']) for name in next_of}


def act(obs, state):
    batch = np.asarray(obs, inputs['obs']['dtype'])[None]  # one observation as a batch of one
    found = dict(zip(outputs, session.run(None, {'obs': batch, **state}), strict=True))
    return found['action'][0], {name: found[following] for name, following in next_of.items()}


env = gymnasium.make(sys.argv[2] if len(sys.argv) > 2 else about['env_id'])
returns = []
for episode in range(10):
    obs, _ = env.reset(seed=episode)
    state, total, done = first_state(), 0.0, False
    while not done:
        action, state = act(obs, state)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, done = total + float(reward), terminated or truncated
    returns.append(total)
print(f'mean return of 10 episodes: {np.mean(returns):.1f}')
