"""Writes an exported policy: traced, written, read back, compared with the policy, and only then put in its place."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from zoo.core.errors import RunError, UserError
from zoo.core.files import whole_file
from zoo.core.version import VERSION
from zoo.tools.export.acting import BATCH, ActingModule, Port, for_export
from zoo.tools.export.check import OutputCheck, compare, effect_of_bf16
from zoo.tools.export.formats import FORMATS, Format, TorchExport, format_of, quiet

if TYPE_CHECKING:
    from zoo.policy.base import Policy

_FOLDERS = re.compile(r'^.*[/\\](?=[^/\\]+\.py:\w+$)')
"""The folders before a file of code that an env is named by."""


class Exported(NamedTuple):
    """A file that a policy was written to. state: of each input that is a state, the output with the next one."""

    path: Path
    format: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    state: dict[str, str]
    comparison: OutputCheck


def export_policy(
    policy: Policy, path: str | os.PathLike[str], format: str | None = None, *, value: bool = False
) -> Exported:
    """See `Policy.export`."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(
            f'a policy is exported to the path of a file, got {path!r:.60}; e.g. policy.export("policy.onnx")'
        )
    with exporting(policy, Path(path), format, value=value) as exported:
        return exported


@contextmanager
def exporting(
    policy: Policy, path: Path, format: str | None = None, *, value: bool = False, **metadata: Any
) -> Iterator[Exported]:
    """Writes and compares the file, which takes its place when the context ends without an error.

    Args: metadata: more entries for that of the file.
    Raises: UserError for what the format cannot take or a path that cannot be written; RunError if the file acts otherwise.
    """
    kind = format_of(format, path)
    if not path.absolute().parent.is_dir():
        raise UserError(f'{path} cannot be written: there is no folder {path.parent}; make it first')
    twin = for_export(policy)
    kind.check(sum(x.nbytes for x in (*twin._model.parameters(), *twin._model.buffers())))
    acting = ActingModule(twin, value).eval()
    program = _program(acting, kind)
    about = _metadata(policy, acting) | {name: str(each) for name, each in metadata.items()}
    try:
        with whole_file(path) as file:
            try:
                kind.write(program, file, acting.inputs, acting.outputs, about)
                file.flush()
                run = kind.load(Path(file.name))
            except (OSError, UserError):
                raise
            except Exception as error:  # what exporters of torch raise is of no common kind
                raise UserError(_cannot(policy, kind, error, is_traced=True)) from error
            comparison = compare(twin, acting, run)._replace(in_bf16=effect_of_bf16(policy, twin))
            yield Exported(path, kind.name, tuple(acting.inputs), tuple(acting.outputs), acting.state_names, comparison)
    except OSError as error:
        raise UserError(f'{path} cannot be written ({error.strerror or error}); name another file') from error


def _program(acting: ActingModule, kind: Format) -> torch.export.ExportedProgram:
    """The policy as a graph of operations on tensors. Raises: UserError if it is none."""
    batch = torch.export.Dim(BATCH)
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(
                acting,
                acting.example(3),
                dynamic_shapes={'tensors': tuple({0: batch} for _ in acting.inputs)},
                strict=False,
            )
    except (UserError, RunError):
        raise
    except Exception as error:  # the network may be of any code
        raise UserError(_cannot(acting._policy, kind, error, is_traced=False)) from error


def _cannot(policy: Policy, kind: Format, error: BaseException, is_traced: bool) -> str:
    """Which format cannot take a policy and why, and which can."""
    said = f'policy {policy.cfg.type!r} cannot be exported to the format {kind.name} ({_reason(error)})'
    if is_traced and kind.name != TorchExport.name:
        return f'{said}; {TorchExport.name} takes it: --format {TorchExport.name}, to a file {TorchExport.suffix}'
    others = ', '.join(each for each in FORMATS if each != kind.name)
    return f'{said}, nor to any other ({others}); a checkpoint takes every policy: policy.save'


def _reason(error: BaseException) -> str:
    """Why a policy is no graph of operations on tensors, as far as torch says."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error)
    if 'data-dependent' in text:
        return 'its code branches on the values of tensors; use torch.where'
    if 'Constraints violated' in text:
        return 'its code is for one number of rows alone; use x.shape[0], not len(x), and no loop over rows'
    line = next((line.strip() for line in text.splitlines() if line.strip()), '')[:200].rstrip('.: ')
    return f'{type(error).__name__}: {line}' if line else type(error).__name__


def _metadata(policy: Policy, acting: ActingModule) -> dict[str, str]:
    """What the file says of itself; lists and spaces as JSON."""
    config = policy.run.config or {}
    env = config.get('env') or {}
    data: dict[str, Any] = {
        'zoo': VERSION,
        'torch': torch.__version__,
        'exp_name': config.get('exp_name', ''),
        'env_id': _FOLDERS.sub('', str(env.get('id', ''))),
        'policy': policy.cfg.type,
        'obs_space': policy.obs_space.to_json(),
        'action_space': policy.action_space.to_json(),
        'inputs': [port._asdict() for port in acting.inputs],
        'outputs': [port._asdict() for port in acting.outputs],
        'state': acting.state_names,
        'initial_state': {name: x[0].tolist() for name, x in acting.initial.items() if bool(x.any())},
    }
    if env.get('game'):
        data['env_game'] = env['game']
    return {name: each if isinstance(each, str) else json.dumps(each) for name, each in data.items()}
