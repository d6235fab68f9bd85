"""Networks of DI-engine's ppo, with what they compute, in the form of its checkpoints, for the tests of imports.

Run it in an environment of its own, without zoo: `pip install DI-engine==0.5.3`, then `python make_di_engine.py FOLDER`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ding.model import VAC

KINDS: dict[str, dict[str, Any]] = {
    'di_discrete': {'obs_shape': 4, 'action_shape': 2},
    'di_box': {'obs_shape': 3, 'action_shape': 1, 'action_space': 'continuous'},
    'di_apart': {'obs_shape': 4, 'action_shape': 2, 'share_encoder': False},
}


def main() -> None:
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    for name, options in KINDS.items():
        model = VAC(encoder_hidden_size_list=[8, 6], actor_head_hidden_size=6, critic_head_hidden_size=6, **options)
        obs = np.random.default_rng(0).normal(size=(24, options['obs_shape'])).astype(np.float32)
        with torch.no_grad():
            found = model(torch.from_numpy(obs), mode='compute_actor_critic')
        logit = found['logit']
        action = logit.argmax(-1) if isinstance(logit, torch.Tensor) else logit['mu']
        np.savez_compressed(folder / f'{name}.npz', obs=obs, action=action.numpy(), value=found['value'].numpy())
        torch.save({'model': model.state_dict(), 'last_iter': 7, 'last_step': 0}, folder / f'{name}.tar')


if __name__ == '__main__':
    main()
