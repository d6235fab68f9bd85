"""One run of benchmarks/golden.py: trains a case and hashes its results."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from golden_configs import Case, Config, merged

LIMIT_S = 300  # of one run; most take .2 s
GROUPS = {
    'policy/model/input': 'statistics',
    'policy/model/': 'parameters',
    'policy/learn/optimizer': 'moments',
    'policy/normalizer/': 'statistics',
    'buffer/': 'replay',
    'memory/': 'replay',
}
"""Beginning of a checkpoint's name -> group; all other names are in the group 'other state'."""

Fingerprint = dict[str, dict[str, str]]
"""Group -> name -> text. Of a tensor: '#' and the hash of its bytes; of a metric: the hash of all its values and the last
value; of a number in a checkpoint: the number."""


def fingerprint(case: Case, folder: Path) -> Fingerprint:
    """Trains a case in an empty folder; returns the fingerprint of its results."""
    import golden_envs

    from zoo import serial_pipeline

    cfg = merged(case.config, {'logger': {'root': str(folder / 'runs')}})
    if case.first is not None:
        first = serial_pipeline(merged(case.first, {'logger': {'root': str(folder / 'first')}}))
        cfg = merged(cfg, {'init_from': str(first.run_dir)})
    if case.traced:
        trace_alone()
    given: dict[str, Any] = {'run_dir': folder / 'run'}
    if case.model is not None:
        given['model'] = getattr(golden_envs, case.model)()
    if case.ranks > 1:
        become_ranks(case.ranks)
    if case.stop_at is not None:
        serial_pipeline({**cfg, 'max_env_step': case.stop_at}, **given)
    serial_pipeline(cfg, **given)
    found = of_checkpoint(newest(folder / 'run'))
    found['metrics'] = of_metrics((folder / 'run' / 'metrics.jsonl').read_text().splitlines())
    if case.asks:
        found['answers'] = of_answers(cfg, folder)
    return found


def trace_alone() -> None:
    """Makes torch run graphs as traced: compiling takes seconds for each kind of step."""
    import torch._inductor

    torch._inductor.standalone_compile = lambda graph, inputs, **_: graph  # type: ignore[assignment]


def become_ranks(n: int) -> None:
    """Forks this process into n ranks with the environment variables of torchrun; rank 0 is this process."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    place = {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port), 'WORLD_SIZE': str(n), 'LOCAL_WORLD_SIZE': str(n)}
    rank = next((rank for rank in range(1, n) if os.fork() == 0), 0)
    os.environ.update(place, RANK=str(rank), LOCAL_RANK=str(rank))
    signal.alarm(LIMIT_S)  # a fork does not inherit its parent's alarm


def newest(run_dir: Path) -> Path:
    """The last checkpoint of a run folder."""
    return max((run_dir / 'checkpoints').glob('step_*.safetensors'))


def of_checkpoint(path: Path) -> Fingerprint:
    """Fingerprint of a safetensors file: its tensors and the numbers of its metadata; seconds are left out."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], 'little')
    header = json.loads(data[8:start])
    metadata = header.pop('__metadata__')
    found: Fingerprint = {}
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry['data_offsets'])
        form = f'{entry["dtype"]} {entry["shape"]} '.encode()
        found.setdefault(group_of(name), {})[short(name)] = digest(form + data[begin:end])
    version, state = json.loads(metadata['meta'])['version'], json.loads(metadata['state'])
    for name, value in leaves({**state, 'executor': version['executor']}):
        if name not in header and not name.endswith('wall_s'):
            found.setdefault(group_of(name), {})[short(name)] = plain(value)
    return found


def group_of(name: str) -> str:
    return next((group for start, group in GROUPS.items() if name.startswith(start)), 'other state')


def short(name: str) -> str:
    """A name of the state without the prefix that all names of its group have."""
    return name.removeprefix('policy/').removeprefix('model/').removeprefix('learn/').removeprefix('optimizer/')


def leaves(value: Any, path: str = '') -> Iterator[tuple[str, Any]]:
    """(path, value) of every value in nested dicts that is not a dict itself."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f'{path}/{key}' if path else key)
    else:
        yield path, value


def of_metrics(lines: Sequence[str]) -> dict[str, str]:
    """For each metric that is not a time: the hash of all its values with their line numbers and env steps; the last value."""
    series: dict[str, list[Any]] = {}
    for i, line in enumerate(lines):
        row = json.loads(line)
        for name, value in row.items():
            if not is_time(name):
                series.setdefault(name, []).append((i, row['env_step'], value))
    return {name: f'{digest(json.dumps(x).encode())} {last(x)}' for name, x in series.items()}


def last(series: Sequence[Any]) -> str:
    value = series[-1][2]
    return f'{value:.6g}' if isinstance(value, int | float) else json.dumps(value)


def plain(value: Any) -> str:
    """A JSON value as text; for a text of more than 24 characters its hash."""
    text = json.dumps(value)
    return text if len(text) <= 24 else digest(text.encode())


def is_time(name: str) -> bool:
    """Whether a metric depends on the clock."""
    return name == 'wall_s' or name.startswith('time/') or name.startswith('cluster/') and name.endswith('_s')


def of_answers(cfg: Config, folder: Path) -> dict[str, str]:
    """Outputs of the trained policy loaded from its file, and the parameters of a policy that imitates it."""
    import torch

    from zoo import load_policy, pretrain, record_demonstrations, save_demonstrations

    policy, file = load_policy(folder / 'run'), folder / 'demos.npz'
    demos, evaluation = record_demonstrations(policy, cfg['env']['id'], n_episode=10, deterministic=False)
    save_demonstrations(file, demos)
    learned = pretrain({**cfg, 'init_from': None}, file, epoch=3, run_dir=folder / 'pretrained')
    drawn = policy.sample(demos.obs, torch.Generator().manual_seed(0))
    judged = policy.evaluate_actions(demos.obs, drawn.action)
    says: dict[str, Any] = {
        'obs': demos.obs,
        'reward': demos.reward,
        'value': policy.value(demos.obs),
        'distribution': policy.distribution(demos.obs).param,
        'greedy': policy.act(demos.obs.numpy()),
        'drawn': drawn.action,
        'log_prob': judged.log_prob,
        'entropy': judged.entropy,
    }
    found = {name: digest(torch.as_tensor(x).detach().numpy().tobytes()) for name, x in says.items()}
    of_learned = {
        f'pretrained/{name}': x for name, x in of_checkpoint(newest(folder / 'pretrained'))['parameters'].items()
    }
    returns = {'returns': plain(list(evaluation.returns)), 'pretrained/loss': plain(learned.loss)}
    return {**found, **returns, **of_learned}


def digest(data: bytes) -> str:
    """7 hexadecimal digits of the sha256: one change in 16^7 = 268 million goes unnoticed."""
    return f'#{hashlib.sha256(data).hexdigest()[:7]}'
