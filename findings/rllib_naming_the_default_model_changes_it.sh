#!/usr/bin/env bash
# RLlib: PPO with DefaultModelConfig(), all fields at their defaults, has another network than PPO without a model config.
#
# One would guess: DefaultModelConfig() has the defaults, so config.rl_module(model_config=DefaultModelConfig()) says nothing new;
# people write it in order to change one field later.
# What is: PPO's own default is vf_share_layers=False, that of the dataclass is True. Without the call PPO has two encoders, one of
# the policy and one of the critic; with the call it has one, of which both read. On CartPole the network has 134,915 parameters
# without the call and 67,843 with it. Naming any one field by the dataclass, such as the widths of layers, shares the encoder too;
# the same field in a plain dict does not. So two configs that differ by a width differ by the sharing of layers as well.
#
# ray 2.60.0, torch 2.13.0, gymnasium as ray asks for it, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check 'ray[rllib]==2.60.0'
cat > "$folder/networks.py" <<'PY'
from importlib.metadata import version

import gymnasium
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def network(**words):
    """The module that PPO makes for CartPole: whether it has a critic's own encoder, and its number of parameters."""
    config = PPOConfig().environment('CartPole-v1')
    if words:
        config = config.rl_module(**words)
    env = gymnasium.make('CartPole-v1')
    spec = config.get_default_rl_module_spec()
    spec.observation_space, spec.action_space, spec.model_config = env.observation_space, env.action_space, config.model_config
    names = dict(spec.build().named_parameters())
    return any('critic_encoder' in name for name in names), sum(x.numel() for x in names.values())


print('ray', version('ray'), 'torch', version('torch'), 'gymnasium', version('gymnasium'))
plain = network()
named = network(model_config=DefaultModelConfig())
width = network(model_config=DefaultModelConfig(fcnet_hiddens=[256, 256]))
as_dict = network(model_config={'fcnet_hiddens': [256, 256]})
for what, found in (
    ('no model config', plain),
    ('DefaultModelConfig()', named),
    ('DefaultModelConfig(fcnet_hiddens=[256, 256])', width),
    ("{'fcnet_hiddens': [256, 256]}", as_dict),
):
    print(f'{what}: an encoder of the critic: {found[0]}, parameters: {found[1]:,}')
assert plain == (True, 134_915)
assert named == width == (False, 67_843)
assert as_dict[0]
PY
"$folder/venv/bin/python" -W ignore "$folder/networks.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
