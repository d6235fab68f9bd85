"""Observed behaviour: answers of a policy, content of a checkpoint, metrics and machine.

Uses only public names of zoo and the public format of its files, so that nothing here depends on where a module is.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

FILES = Path(__file__).parent / 'files'
USER = Path(__file__).parent / 'user'
N_OBS = 5


def observations(kind: str) -> Any:
    """A batch of `N_OBS` raw observations of 'CartPole-v1', 'Pendulum-v1', or `own_house.Walk` ('masked': with a mask)."""
    rng = np.random.default_rng(7)
    if kind in ('CartPole-v1', 'Pendulum-v1'):
        return rng.normal(0.0, 0.5, (N_OBS, 4 if kind == 'CartPole-v1' else 3)).astype(np.float32)
    obs = {'place': rng.uniform(0, 1, (N_OBS, 2)).astype(np.float32), 'kind': rng.integers(0, 3, N_OBS)}
    if kind == 'masked':
        obs['action_mask'] = np.array([[i > 1, 1, 1] for i in range(N_OBS)], np.int8)
    return obs


def answers(policy: Any, obs: Any) -> dict[str, Any]:
    """The outputs of a policy for a batch of observations, as JSON; null for a call that it refuses, as `dqn` a distribution."""

    def draw() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    def session() -> list[Any]:
        """The actions for the batch, taken as one episode."""
        one = policy.session()
        return [one.act(_row(obs, i), begins=i == 0) for i in range(N_OBS)]

    calls: dict[str, Callable[[], Any]] = {
        'act': lambda: policy.act(obs),
        'act_one': lambda: policy.act(_row(obs, 0)),
        'act_drawn': lambda: policy.act(obs, deterministic=False, generator=draw()),
        'value': lambda: policy.value(obs),
        'param': lambda: policy.distribution(obs).param,
        'entropy': lambda: policy.distribution(obs).entropy(),
        'sample': lambda: policy.sample(obs, generator=draw())._asdict(),
        'session': session,
    }
    return {name: _answer(call) for name, call in calls.items()}


def content(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The tensors of a checkpoint file, and its other values by path: the state, and meta without version and times."""
    with safe_open(path, 'np') as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    meta = json.loads(metadata['meta'])
    values = _leaves({'state': json.loads(metadata['state']), 'meta': {k: meta[k] for k in meta if k != 'version'}})
    values['zoo_format'] = metadata['zoo_format']
    return tensors, {key: value for key, value in values.items() if not key.endswith('wall_s')}


def newest(run_dir: str | Path) -> Path:
    """The newest checkpoint of a run folder."""
    return max(Path(run_dir, 'checkpoints').glob('step_*.safetensors'), key=lambda path: int(path.stem.split('_')[1]))


def metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's log; numbers that depend on time or on the machine are null."""
    lines = [json.loads(line) for line in Path(run_dir, 'metrics.jsonl').read_text().splitlines()]
    return [{key: None if _is_of_machine(key) else value for key, value in line.items()} for line in lines]


def machine() -> dict[str, str]:
    """All that the last bits of a sum depend on: the processor, the instructions that torch uses on it, versions."""
    cpu, info = platform.machine(), Path('/proc/cpuinfo')
    if info.exists():
        first = dict(re.findall(r'^(.+?)\s*:\s*(.*)$', info.read_text().partition('\n\n')[0], re.MULTILINE))
        words = [first.get(key, '') for key in ('model name', 'cpu family', 'model', 'stepping')]
        cpu = ' / '.join(words)  # 'AMD EPYC' alone may be one of several generations
    instructions = torch.backends.cpu.get_cpu_capability()
    return {'cpu': cpu, 'instructions': instructions, 'torch': torch.__version__, 'numpy': np.__version__}


def shape_of(value: Any) -> Any:
    """The keys of a JSON value with the types of its leaves; a list has the shape of its first entry."""
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape_of(item) for item in value[:1]]
    return 'number' if type(value) in (int, float) else type(value).__name__


def _is_of_machine(key: str) -> bool:
    return key.startswith(('time/', 'system/')) or key.endswith('_s') or 'memory' in key


def _answer(call: Callable[[], Any]) -> Any:
    try:
        return _plain(call())
    except ValueError:  # zoo's UserError is one
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, 'tolist') else value


def _row(obs: Any, i: int) -> Any:
    return {key: x[i] for key, x in obs.items()} if isinstance(obs, dict) else obs[i]


def _leaves(value: Any, path: str = '') -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {leaf: x for key, item in value.items() for leaf, x in _leaves(item, f'{path}/{key}').items()}
    return {path: value}
