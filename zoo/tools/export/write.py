"""Writer of exported policies: traces, writes, reads back, compares with the policy, and only then replaces the file."""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch.export import ExportedProgram

from zoo.core import VERSION
from zoo.core.errors import RunError, UserError, need, unknown_name
from zoo.core.files import refuse_failure, whole_file
from zoo.core.registry import TOOL_REGISTRY
from zoo.core.streams import log_levels
from zoo.policy.base import Policy
from zoo.tools.export.acting import BATCH, ActingModule, Port, for_export
from zoo.tools.export.check import OutputCheck, Run, compare, effect_of_bf16
from zoo.tools.results.settings import CODE_FILE

MAX_ONNX = 2**31 - 2**20  # bytes of parameters that fit into one ONNX file, which holds less than 2 GB
CHATTY = ('torch.onnx', 'torch.export', 'torch._export', 'torch._dynamo', 'torch.fx', 'onnxscript', 'onnx_ir')


class Format(NamedTuple):
    """A file format of exported policies.

    suffix: of its files. check: raises UserError if a policy with that many bytes of parameters cannot be written here.
    write: writes a program; raises if the format cannot take it. load: reads a file as a function.
    """

    name: str
    suffix: str
    check: Callable[[int], None]
    write: Callable[[ExportedProgram, BinaryIO, ActingModule, dict[str, str]], None]
    load: Callable[[Path], Run]


def _check_onnx(n_byte: int) -> None:
    for module in ('onnx', 'onnxscript', 'onnxruntime'):
        need(module, 'export', 'the export format onnx')
    if n_byte > MAX_ONNX:
        raise UserError(
            f'the network has {n_byte / 1e9:.1f} GB of parameters but an ONNX file holds less than 2 GB; use the '
            f'format {TORCH.name}'
        )


def _write_onnx(program: ExportedProgram, file: BinaryIO, acting: ActingModule, metadata: dict[str, str]) -> None:
    import onnx

    with quiet():
        written = torch.onnx.export(
            program,  # type: ignore[arg-type]
            dynamo=True,
            verbose=False,
            input_names=[port.name for port in acting.inputs],
            output_names=[port.name for port in acting.outputs],
        )
        assert written is not None, 'with dynamo there is a program'
        model = written.model_proto
    _leave_out_places(model.graph)
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_param:
            dims[0].dim_param = BATCH
    onnx.helper.set_model_props(model, metadata)
    model.producer_name = 'zoo'
    model.producer_version = metadata['zoo']
    onnx.checker.check_model(model)
    file.write(model.SerializeToString())


def _load_onnx(path: Path) -> Run:
    # with its import the telemetry starts, which keeps an id of this machine in the home folder and sends it
    os.environ.setdefault('ORT_DISABLE_TELEMETRY', '1')
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
    names = [port.name for port in session.get_inputs()]
    return lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))


def _write_archive(program: ExportedProgram, file: BinaryIO, acting: ActingModule, metadata: dict[str, str]) -> None:
    for node in program.graph.nodes:
        node.meta.pop('stack_trace', None)  # paths of this machine
    with quiet():
        torch.export.save(program, file, extra_files={'zoo.json': json.dumps(metadata)})


def _load_archive(path: Path) -> Run:
    with quiet(), open(path, 'rb') as file:
        module = torch.export.load(file).module()

    @torch.no_grad()
    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [x.numpy() for x in module(*map(torch.from_numpy, arrays))]

    return run


# ONNX is for onnxruntime and other engines, in any language; TORCH for PyTorch without zoo
ONNX = Format('onnx', '.onnx', _check_onnx, _write_onnx, _load_onnx)
TORCH = Format('torch-export', '.pt2', lambda n_byte: None, _write_archive, _load_archive)
FORMATS = {ONNX.name: ONNX, TORCH.name: TORCH}
"""By the name that `--format` takes."""


def format_of(name: str | None, path: Path | None = None) -> Format:
    """Returns the format with this name; without a name, the format of the file's suffix.

    Raises: UserError if there is no such format, or if the file has another suffix than the format.
    """
    if name is None:
        for kind in FORMATS.values():
            if path is not None and path.suffix == kind.suffix:
                return kind
        endings = ' or '.join(f'{kind.suffix} ({kind.name})' for kind in FORMATS.values())
        raise UserError(f'{path} names no export format by its ending; use {endings}')
    if name not in FORMATS:
        raise UserError(unknown_name('export format', name, FORMATS, 'known'))
    if path is not None and path.suffix != FORMATS[name].suffix:
        raise UserError(f'{path} is to be of the format {name}, whose files end in {FORMATS[name].suffix}; rename it')
    return FORMATS[name]


@contextmanager
def quiet() -> Iterator[None]:
    """Silences the logs, prints and warnings of torch's exporters; their errors contain what matters."""
    with (
        log_levels(dict.fromkeys(CHATTY, logging.CRITICAL)),
        warnings.catch_warnings(),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter('ignore')
        yield


def _leave_out_places(graph: Any) -> None:
    """Removes source locations of nodes, which have paths of this machine, and shapes that engines can infer."""
    del graph.metadata_props[:], graph.value_info[:]
    for part in (*graph.node, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ''
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField('g'):
                _leave_out_places(attribute.g)


class Exported(NamedTuple):
    """A file that a policy was written to. state: for each state input, the output with its next value."""

    path: Path
    format: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    state: dict[str, str]
    comparison: OutputCheck


@TOOL_REGISTRY.register('export_policy')
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
    """Writes the file and compares it with the policy. It appears at its path when the context ends without an error.

    Args: metadata: additional entries for the file's metadata.
    Raises: UserError if the format cannot take the policy or the path cannot be written; RunError if the file acts differently.
    """
    kind = format_of(format, path)
    if not path.absolute().parent.is_dir():
        raise UserError(f'{path} cannot be written: there is no folder {path.parent}; make it first')
    twin = for_export(policy)
    kind.check(sum(x.nbytes for x in (*twin._model.parameters(), *twin._model.buffers())))
    acting = ActingModule(twin, value).eval()
    program = _program(acting, kind)
    entries = _metadata(policy, acting) | {name: str(entry) for name, entry in metadata.items()}
    with refuse_failure(f'{path} cannot be written', 'name another file'), whole_file(path) as file:
        try:
            kind.write(program, file, acting, entries)
            file.flush()
            run = kind.load(Path(file.name))
        except (OSError, UserError):
            raise
        except Exception as error:  # the exceptions of torch's exporters have no common class
            raise UserError(_cannot(policy, kind, error, is_traced=True)) from error
        comparison = compare(twin, acting, run)._replace(in_bf16=effect_of_bf16(policy, twin))
        yield Exported(
            path=path,
            format=kind.name,
            inputs=tuple(acting.inputs),
            outputs=tuple(acting.outputs),
            state=acting.state_names,
            comparison=comparison,
        )


def _program(acting: ActingModule, kind: Format) -> ExportedProgram:
    """Traces the policy to a graph of tensor operations. Raises: UserError if that is not possible."""
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
    except Exception as error:  # the network may have any code
        raise UserError(_cannot(acting._policy, kind, error, is_traced=False)) from error


def _cannot(policy: Policy, kind: Format, error: BaseException, is_traced: bool) -> str:
    """Returns a sentence: the format that cannot take the policy, the reason, and a format that can."""
    failure = f'policy {policy.cfg.type!r} cannot be exported to the format {kind.name} ({_reason(error)})'
    if is_traced and kind.name != TORCH.name:
        return f'{failure}; {TORCH.name} takes it: --format {TORCH.name}, to a file {TORCH.suffix}'
    others = ', '.join(name for name in FORMATS if name != kind.name)
    return f'{failure}, nor to any other ({others}); a checkpoint takes every policy: policy.save'


def _reason(error: BaseException) -> str:
    """Returns the reason in torch's error why a policy is not a graph of tensor operations."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error)
    if 'data-dependent' in text:
        return 'its code branches on the values of tensors; use torch.where'
    if 'Constraints violated' in text:
        return 'its code is for one number of rows alone; use x.shape[0], not len(x), and no loop over rows'
    first_line = text.strip().partition('\n')[0][:200].rstrip('.: ')
    if first_line:
        return f'{type(error).__name__}: {first_line}'
    return type(error).__name__


def _metadata(policy: Policy, acting: ActingModule) -> dict[str, str]:
    """Returns the metadata of the file; lists and spaces as JSON."""
    config = policy.run.config or {}
    env = config.get('env') or {}
    data: dict[str, Any] = {
        'zoo': VERSION,
        'torch': torch.__version__,
        'exp_name': config.get('exp_name', ''),
        'env_id': CODE_FILE.sub('', str(env.get('id', ''))),
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
    return {name: _as_text(entry) for name, entry in data.items()}


def _as_text(entry: object) -> str:
    if isinstance(entry, str):
        return entry
    return json.dumps(entry)
