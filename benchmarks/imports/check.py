"""Whether imported models act, value and learn as in the library that made them; writes benchmarks/results/imports.md.

python benchmarks/imports/check.py FOLDER [FOLDER ...]      # folders of make_sb3.py and its neighbours
python benchmarks/imports/check.py FOLDER --write           # and writes the table
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import RESULTS, table
from zoo.core.spaces import ACTION_MASK, Dict, Discrete, MultiBinary, MultiDiscrete, obs_to_tensor
from zoo.tools.exchange.form import NewPlace
from zoo.tools.exchange.load import Imported, import_model
from zoo.tools.exchange.rllib import cut_in_two

IN_SEQUENCES = ('obs', 'logit')
"""Columns that a recurrent model reads in the form of sequences from the start."""


class Compared(NamedTuple):
    """The largest differences. n: observations; action: None: all choices are equal, else the share that is not; learned: of
    parameters after the recorded gradient steps, None: none were recorded."""

    n: int
    action: float
    value: float
    learned: float | None


def nested(arrays: dict[str, np.ndarray], prefix: str) -> Any:
    """An observation from arrays that are named 'prefix', or 'prefix.key' for the entries of a Dict."""
    if prefix in arrays:
        return arrays[prefix]
    start = f'{prefix}.'
    return {name.removeprefix(start): x for name, x in arrays.items() if name.startswith(start)}


def compared(path: Path) -> Compared:
    """Imports a model and compares it with the arrays next to it."""
    statistics = path.with_suffix('.pkl')
    found = dict(np.load(path.with_name(f'{path.stem}.npz')))
    imported = import_model(path, normalizer=statistics if statistics.exists() else None)
    policy = imported.policy
    obs = nested(found, 'obs')
    n = len(found['value'])
    if 'mask' in found:
        obs = {'obs': obs, ACTION_MASK: found['mask'].astype(np.int8)}
    if 'first' in found:
        action, value = _along(policy, obs, found['first'])
    else:
        action, value = np.asarray(policy.act(obs)), policy.value(obs).numpy()
    difference = np.abs(action.astype(np.float64) - found['action'].astype(np.float64).reshape(action.shape)).max()
    of_value = np.abs(value - found['value']).max()
    learned = None
    if any(name.startswith('after.') for name in found):
        learned = _learned(imported, path, found)
    return Compared(n, float(difference), float(of_value), learned)


def _along(policy: Any, obs: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions and values of a recurrent policy along one sequence."""
    state = policy.model.initial_state(1)
    actions, values = [], []
    with torch.no_grad():
        for row, begins in zip(obs, first, strict=True):
            if begins:
                state = policy.model.initial_state(1)
            seen = obs_to_tensor(policy.obs_space, row[None])
            output = policy.model.compute_actor_critic(seen, state)
            state = output['state']
            actions.append(policy.env_action(policy.dist.mode(output['logit']))[0])
            values.append(output['value'].item())
    return np.stack(actions), np.array(values)


def _learned(imported: Imported, path: Path, found: dict[str, np.ndarray]) -> float:
    """Takes the recorded gradient steps on the recorded rollout; the largest difference of a parameter afterwards."""
    n = len(found['rollout.values'].ravel())
    n_step = 10
    statistics = path.with_suffix('.pkl')
    rate = float(found['rate'])
    sizes = [
        f'policy.learn.batch_size={n}',
        f'policy.learn.epoch_per_collect={n_step}',
        f'policy.learn.learning_rate={rate}',
    ]
    n_env = n
    if 'rollout.first' in found:
        n_env = len(found['rollout.first'])
        sizes.append(f'policy.learn.sequence.len={n // n_env}')
    sizes += [
        f'policy.collect.n_sample={n}',
        f'policy.collect.n_step={n // n_env}',
        f'env.collector_env_num={n_env}',
    ]
    if imported.policy.cfg.learn.critic_learning_rate is not None:
        sizes.append(f'policy.learn.critic_learning_rate={rate}')
    if imported.policy.cfg.learn.target_kl is not None:
        sizes.append('policy.learn.target_kl=null')
    policy = import_model(path, normalizer=statistics if statistics.exists() else None, overrides=sizes).policy
    given = nested(found, 'rollout.obs')
    if 'rollout.mask' in found:
        n = len(given)
        given = {'obs': given, ACTION_MASK: found['rollout.mask'].reshape(n, -1).astype(np.int8)}
    obs = obs_to_tensor(policy.obs_space, _as_given(policy.obs_space, given))
    if statistics.exists():  # recorded after normalisation
        policy.model.input.shift.zero_()
        policy.model.input.scale.fill_(1.0)
        policy.model.input.is_frozen = True
    memory = _memory(found)
    with torch.no_grad():
        if memory:
            obs = obs.unflatten(0, memory['is_first'].shape)
            logit = policy.model.compute_actor(obs.transpose(0, 1), memory['state'], memory['is_first'].t())[
                0
            ].transpose(0, 1)
        else:
            logit = policy.model.compute_actor(obs)
    action: Any = torch.from_numpy(found['rollout.actions'])
    space = policy.action_space
    if isinstance(space, Discrete):
        action = action.reshape(-1).long()
    elif isinstance(space, MultiDiscrete):
        action = action.long()
    elif isinstance(space, MultiBinary):
        action = action.bool()
    column: Callable[[str], torch.Tensor] = lambda name: torch.from_numpy(found[f'rollout.{name}']).reshape(-1).float()  # noqa: E731
    batch = {'obs': obs, 'action': action, 'logit': logit, 'value': column('values')}
    batch |= {'adv': column('advantages'), 'return_': column('returns'), 'reward': column('returns')}
    if memory:
        batch = {
            name: x.reshape(*memory['is_first'].shape, *x.shape[1:])
            for name, x in batch.items()
            if name not in IN_SEQUENCES
        }
        batch |= {'obs': obs, 'logit': logit, **memory}
    policy.learn_mode.forward(batch)
    return _largest_difference(imported, policy, path, found)


def _memory(found: dict[str, np.ndarray]) -> dict[str, Any]:
    """The columns that a batch of sequences adds, of a rollout of a recurrent model; {} for others."""
    if 'rollout.first' not in found:
        return {}
    states = {'actor': 'rollout.state_pi', 'critic': 'rollout.state_vf'}
    state = {role: torch.from_numpy(found[name]) for role, name in states.items()}
    return {'is_first': torch.from_numpy(found['rollout.first']), 'state': state}


def _as_given(space: Any, obs: Any) -> Any:
    """Observations in the form in which an env gives them: a rollout there has an index as an array of one number."""
    if isinstance(space, Dict):
        return {name: _as_given(each, obs[name]) for name, each in space.spaces.items()}
    if isinstance(space, Discrete):
        return obs.reshape(-1).astype(np.int64)
    if isinstance(space, MultiDiscrete):
        return obs.astype(np.int64)
    return obs


def _largest_difference(imported: Imported, policy: Any, path: Path, found: dict[str, np.ndarray]) -> float:
    own = dict(policy.model.named_parameters())
    after = {name.removeprefix('after.'): torch.from_numpy(x) for name, x in found.items() if name.startswith('after.')}
    places: dict[str, NewPlace] = dict(imported.model.places)
    for layer in {name.removesuffix('.mean.weight') for name in places if name.endswith('.mean.weight')}:
        cut_in_two(after, layer)
    differences = [(own[place.name] - place.changed(after[name])).abs().max().item() for name, place in places.items()]
    return max(differences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folders', nargs='+', type=Path)
    parser.add_argument('--write', action='store_true')
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rows = []
    versions: dict[str, str] = {}
    for folder in args.folders:
        versions |= json.loads((folder / 'versions.json').read_text())
        for path in sorted(folder.glob('*.npz')):
            model = next(
                file for file in (path.with_suffix(suffix) for suffix in ('.zip', '.pt', '.tar', '')) if file.exists()
            )
            try:
                found = compared(model)
            except Exception as error:
                print(f'{model.name}: {type(error).__name__}: {error}')
                raise SystemExit(1) from error
            learned = '' if found.learned is None else f'{found.learned:.1e}'
            rows.append([path.stem, str(found.n), f'{found.action:.1e}', f'{found.value:.1e}', learned])
            print(*rows[-1], flush=True)
    if args.write:
        names = ', '.join(f'{name} {version}' for name, version in versions.items())
        head = ['model', 'observations', 'actions', 'values', 'parameters after 10 steps']
        text = (
            '# Imported models beside the library that made them\n\n'
            f'Largest differences. Made with {names}, by the scripts in `benchmarks/imports/`, which also record what the models '
            'do; `python benchmarks/imports/check.py FOLDER --write` imports them and writes this table. The last column is of '
            'the 10 gradient steps that the library itself takes on one rollout, with the moments of its optimiser.\n\n'
        )
        (RESULTS / 'imports.md').write_text(text + table(head, rows) + '\n')


if __name__ == '__main__':
    main()
