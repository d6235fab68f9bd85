#!/usr/bin/env bash
# VMAS: all envs of a process draw from one random state, so that one env changes the starts of another.
#
# One would guess: env.reset(seed=0) seeds that env; its second reset then has a start of its own that depends on the seed and on
# what was done with this env, and an evaluation in another env between the two changes nothing.
# What is: Environment.vmas_random_state is an attribute of the class. A reset of a second env between the two gives the first env
# another second start, and reset(seed=7) of the second env reseeds the first. Runs are repeatable only where nothing else of the
# process touches any VMAS env at other times, such as an evaluation every n steps that is done or left out.
#
# vmas 1.5.2, torch 2.13.0, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check vmas==1.5.2 numpy==2.4.6
cat > "$folder/shared.py" <<'PY'
from importlib.metadata import version

import torch
import vmas

print(*(f'{name} {version(name)}' for name in ('vmas', 'torch')))


def second_start(between):
    """The start after the seeded one; `between` gets another env of the process."""
    env, other = (vmas.make_env('navigation', num_envs=2, seed=0) for _ in range(2))
    env.reset(seed=0)
    between(other)
    return torch.cat(env.reset())


alone = second_start(lambda other: None)
again = second_start(lambda other: None)
beside = second_start(lambda other: other.reset())
reseeded = [second_start(lambda other, seed=seed: other.reset(seed=seed)) for seed in (7, 8)]
print('alone, twice the same:', torch.equal(alone, again))
print('another env was reset between: the same:', torch.equal(alone, beside))
print("another env was seeded between, with 7 and 8: the same:", torch.equal(*reseeded))
assert torch.equal(alone, again) and not torch.equal(alone, beside) and not torch.equal(*reseeded)
PY
"$folder/venv/bin/python" -W ignore "$folder/shared.py"
