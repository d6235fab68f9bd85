"""The file formats of exported policies: how each is written from a program of torch.export, and read back to be compared."""

from __future__ import annotations

import io
import json
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch

from zoo.core.errors import UserError, need
from zoo.core.registry import unknown_name
from zoo.tools.export.acting import BATCH, Port

Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
"""An exported file: arrays for its inputs -> arrays of its outputs."""

MAX_ONNX = 2**31 - 2**20
"""Bytes of parameters from which on a model does not fit into one ONNX file, which holds less than 2 GB."""
CHATTY = ('torch.onnx', 'torch.export', 'torch._export', 'torch._dynamo', 'torch.fx', 'onnxscript', 'onnx_ir')


class Format(ABC):
    """How a policy is written to a file of one kind.

    Attributes: suffix: of its files.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]

    def check(self, n_byte: int) -> None:
        """Raises: UserError if this format cannot be written here. Args: n_byte: of the parameters."""

    @abstractmethod
    def write(
        self,
        program: torch.export.ExportedProgram,
        file: BinaryIO,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        metadata: dict[str, str],
    ) -> None:
        """Writes a program; what it raises means that the format cannot take it."""

    @abstractmethod
    def load(self, path: Path) -> Run:
        """What is in a file, as a function."""


class Onnx(Format):
    """ONNX, for onnxruntime and other engines, in any language."""

    name: ClassVar[str] = 'onnx'
    suffix: ClassVar[str] = '.onnx'

    def check(self, n_byte: int) -> None:
        for module in ('onnx', 'onnxscript', 'onnxruntime'):
            need(module, 'export', 'the export format onnx')
        if n_byte > MAX_ONNX:
            raise UserError(
                f'the network has {n_byte / 1e9:.1f} GB of parameters but an ONNX file holds less than 2 GB; use the '
                f'format {TorchExport.name}'
            )

    def write(
        self,
        program: torch.export.ExportedProgram,
        file: BinaryIO,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        metadata: dict[str, str],
    ) -> None:
        import onnx

        with quiet():
            names = {'input_names': [p.name for p in inputs], 'output_names': [p.name for p in outputs]}
            written = torch.onnx.export(program, dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
            assert written is not None, 'with dynamo there is a program'
            model = written.model_proto
        _leave_out_places(model.graph)
        for value in (*model.graph.input, *model.graph.output):
            dims = value.type.tensor_type.shape.dim
            if dims and dims[0].dim_param:
                dims[0].dim_param = BATCH
        onnx.helper.set_model_props(model, metadata)
        model.producer_name, model.producer_version = 'zoo', metadata['zoo']
        onnx.checker.check_model(model)
        file.write(model.SerializeToString())

    def load(self, path: Path) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors alone
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
        names = [each.name for each in session.get_inputs()]
        return lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))


class TorchExport(Format):
    """The archive of torch.export, for PyTorch without zoo."""

    name: ClassVar[str] = 'torch-export'
    suffix: ClassVar[str] = '.pt2'

    def write(
        self,
        program: torch.export.ExportedProgram,
        file: BinaryIO,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        metadata: dict[str, str],
    ) -> None:
        for node in program.graph.nodes:
            node.meta.pop('stack_trace', None)  # paths of this machine
        with quiet():
            torch.export.save(program, file, extra_files={'zoo.json': json.dumps(metadata)})

    def load(self, path: Path) -> Run:
        with quiet(), open(path, 'rb') as file:
            module = torch.export.load(file).module()

        def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
            with torch.no_grad():
                return [x.numpy() for x in module(*map(torch.from_numpy, arrays))]

        return run


FORMATS: dict[str, Format] = {each.name: each for each in (Onnx(), TorchExport())}
"""By the name that `--format` takes."""


def format_of(name: str | None, path: Path | None = None) -> Format:
    """The format of this name; without one that of the file's ending.

    Raises: UserError if there is none, or a file of the format ends otherwise.
    """
    if name is not None and name not in FORMATS:
        raise UserError(unknown_name('export format', name, FORMATS, 'known'))
    endings = ' or '.join(f'{each.suffix} ({each.name})' for each in FORMATS.values())
    if name is None:
        found = [each for each in FORMATS.values() if path is not None and path.suffix == each.suffix]
        if not found:
            raise UserError(f'{path} names no export format by its ending; use {endings}')
        return found[0]
    if path is not None and path.suffix != FORMATS[name].suffix:
        raise UserError(f'{path} is to be of the format {name}, whose files end in {FORMATS[name].suffix}; rename it')
    return FORMATS[name]


@contextmanager
def quiet() -> Iterator[None]:
    """Silences what the exporters of torch log, print and warn of; what matters of it is in their errors."""
    loggers = [logging.getLogger(name) for name in CHATTY]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter('ignore')
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _leave_out_places(graph: Any) -> None:
    """Removes where in the source each node comes from, with the paths of this machine, and shapes that engines find out."""
    del graph.metadata_props[:]
    del graph.value_info[:]
    for part in (*graph.node, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ''
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField('g'):
                _leave_out_places(attribute.g)
