"""Pure functions of tensors as one compiled program each, for one set of shapes; without a compiler, as they stand."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from zoo.backend.compile_cache import find_or_compile
from zoo.backend.compile_worker import Job
from zoo.backend.cuda_graph import CapturedCall

Backend = Callable[[torch.fx.GraphModule, Sequence[Tensor]], Callable[..., Sequence[Tensor]]]
MAX_GRAPHS = 8  # of one function: each takes seconds

logger = logging.getLogger(__name__)
_is_tracing = False


def trace(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor],
    constants: bool = True,
) -> tuple[torch.fx.GraphModule, list[int]]:
    """The operations of one run of a function on stand-ins for its inputs, and which of the inputs these read.

    Args: constants: whether other tensors may be read too; they keep their values of now.
    Raises: RuntimeError if random numbers are drawn in it, which a graph would draw otherwise; whatever the function
      raises, such as for a look at a value.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    with _noted():
        traced = make_fx(function, tracing_mode='fake', _allow_non_fake_inputs=constants)(*inputs)
    used = _drop_unused(traced.graph)
    traced.recompile()
    for node in traced.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, 'tags', ()):
            raise RuntimeError(f'random numbers are drawn in it ({node.target})')
    return traced, used


def is_tracing() -> bool:
    """Whether `trace` runs: tensors have no data then (torch.compiler.is_compiling() does not know of it)."""
    return _is_tracing


class Program:
    """A compiled graph: called with its tensors, or as `run_list` with a list of them, which spares packing them."""

    def __init__(self, run_list: Callable[[Sequence[Tensor]], Sequence[Tensor]]) -> None:
        self.run_list = run_list

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        return self.run_list(tensors)


def list_call(run: Callable[..., Sequence[Tensor]]) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """What a backend returned, as a function of a list."""
    return run.run_list if isinstance(run, Program) else lambda tensors: run(*tensors)


def inductor(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Program:
    """Compiles a graph for tensors like `inputs`; one compiled before, by any run, is found in torch's cache folder.

    Those that it writes into share no memory with others. For the CPU it is done by another process.
    Raises: RuntimeError with a line of the compiler's if it fails.
    """
    if inputs[0].device.type != 'cpu':
        from torch._inductor import standalone_compile

        compiled = standalone_compile(graph, list(inputs), dynamic_shapes='from_example_inputs')
        return Program(lambda tensors: compiled(*tensors))
    _turn_narrow_products(graph)
    forms = [(tuple(x.shape), x.stride(), x.dtype) for x in inputs]
    # tanh by exp, three times as fast, to 1e-7; headers as they are: compiled ahead they take 300 MB and 12 s, and save
    # 2 s of each graph; without tables of lines a library has .4 MB, not 1.5
    options = {
        'cpp.use_decompose_tanh': True,
        'cpp.threads': torch.get_num_threads(),
        'aot_inductor.precompile_headers': False,
        'aot_inductor.enable_line_tables': False,
    }
    return Program(find_or_compile(Job(graph.code, _constants(graph), forms, options), _compiler_name()))


def missing_compiler(device: torch.device) -> str:
    """Why nothing can be compiled for a device; empty if it can."""
    if device.type != 'cpu':
        return '' if find_spec('triton') else 'triton, which compiles for GPUs, is not installed'
    name = _compiler_name()
    return '' if shutil.which(name) else f'there is no C++ compiler {name!r} here; install one or name it in CXX'


class CompiledFunction:
    """A pure function of tensors to a list of tensors, compiled for each form of inputs that it is called with.

    If that fails, at compile time or later, it runs as it stands from then on, and one line of the log says why; so it
    does after MAX_GRAPHS forms.
    Args: function: of tensors alone; it writes into none of them. what: names it in that line; constants: see `trace`.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]], what: str, constants: bool = True) -> None:
        self._function, self._what, self._constants = function, what, constants
        self._graphs: dict[Any, tuple[Callable[[list[Tensor]], Sequence[Tensor]], list[int]]] = {}
        self._failed = False

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        if self._failed:
            return self._function(*inputs)
        key = form_of(inputs)
        try:
            graph = self._graphs.get(key)
            if graph is None:
                if len(self._graphs) == MAX_GRAPHS:
                    raise RuntimeError(f'its inputs came in more than {MAX_GRAPHS} forms')
                graph = self._graphs[key] = self._build(inputs)
            run, used = graph
            return run([inputs[i] for i in used])
        except Exception as error:  # of whatever kind: compilers fail in many; one of the function's own comes again
            self._failed = True
            self._graphs.clear()
            logger.warning('%s could not be compiled and runs as it stands: %s', self._what, first_line(error))
            return self._function(*inputs)

    @torch.no_grad()
    def _build(self, inputs: Sequence[Tensor]) -> tuple[Callable[[list[Tensor]], Sequence[Tensor]], list[int]]:
        with undisturbed():
            graph, used = trace(self._function, inputs, self._constants)
            return list_call(inductor(graph, [inputs[i] for i in used])), used


class CompiledCall:
    """A function that writes into some of its inputs and returns nothing, compiled for the form of those of its first
    call; the later ones are of the same, and nothing looks at them. On a GPU it is captured as a CUDA graph, so there
    calls are to read and write the same places again.

    If that fails, at compile time or later, it runs as it stands from then on, and one line of the log says why.
    Args: what: names it in that line; wanted: False: it runs as it stands.
    """

    def __init__(self, function: Callable[..., Any], what: str, wanted: bool = True) -> None:
        self._function, self._what = function, what
        self._run: Callable[[list[Tensor]], Any] = self._build if wanted else self._run_as_it_stands

    def __call__(self, inputs: list[Tensor]) -> None:
        try:
            self._run(inputs)
        except Exception as error:  # of whatever kind: compilers fail in many; one of the function's own comes again
            if self._run == self._run_as_it_stands:
                raise
            self._run = self._run_as_it_stands
            logger.warning('%s could not be compiled and runs as it stands: %s', self._what, first_line(error))
            self._run(inputs)

    def _run_as_it_stands(self, inputs: list[Tensor]) -> None:
        self._function(*inputs)

    @torch.no_grad()
    def _build(self, inputs: list[Tensor]) -> None:
        with undisturbed():
            graph, used = trace(self._function, inputs, constants=False)
            run = list_call(inductor(graph, [inputs[i] for i in used]))
        if inputs[0].device.type == 'cuda':
            run = CapturedCall(run, moving=[])
        self._run = lambda inputs: run([inputs[i] for i in used])
        self._run(inputs)


def form_of(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """What a graph is compiled for; equal for tensors that may take each other's place."""
    return tuple([(x.shape, x.stride(), x.dtype, x.device) for x in tensors])


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@contextmanager
def replaced(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Puts other tensors in place of a model's parameters and buffers, named as in `named_tensors`.

    (torch.func.functional_call leaves its tensors in a module that a model has under two names, as a shared trunk.)
    """
    own = named_tensors(model)
    new = {id(own[name]): x for name, x in tensors.items()}
    slots: list[tuple[dict[str, Any], str, Any]] = [
        (group, name, x)
        for module in model.modules()
        for group in (module._parameters, module._buffers)
        for name, x in group.items()
        if id(x) in new
    ]
    try:
        for group, name, x in slots:
            group[name] = new[id(x)]
        yield
    finally:
        for group, name, x in slots:
            group[name] = x


def _compiler_name() -> str:
    """As inductor looks for one."""
    return os.environ.get('CXX', {'darwin': 'clang++', 'win32': 'cl'}.get(sys.platform, 'g++'))


def _constants(graph: torch.fx.GraphModule) -> dict[str, Tensor]:
    """The tensors that a graph reads beside its inputs, by the names they have in its code."""
    names = dict.fromkeys(str(node.target) for node in graph.graph.find_nodes(op='get_attr'))
    return {name: getattr(graph, name) for name in names}


@contextmanager
def _noted() -> Iterator[None]:
    global _is_tracing
    before, _is_tracing = _is_tracing, True
    try:
        yield
    finally:
        _is_tracing = before


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keeps what a compilation changes in the process: random streams, a default of torch.distributions, warnings."""
    distribution = torch.distributions.Distribution
    validate_args = distribution._validate_args
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
            warnings.filterwarnings('ignore', category=DeprecationWarning, module='torch')
            warnings.filterwarnings('ignore', 'TensorFloat32 tensor cores', UserWarning)  # which round more
            yield
    finally:
        distribution.set_default_validate_args(validate_args)


def first_line(error: Exception) -> str:
    """An error's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f'{type(error).__name__}: {lines[0]}' if lines else type(error).__name__


def _drop_unused(graph: torch.fx.Graph) -> list[int]:
    """Takes the inputs that nothing reads out of a graph; returns the places of the others."""
    used = []
    for i, node in enumerate(graph.find_nodes(op='placeholder')):
        if node.users:
            used.append(i)
        else:
            graph.erase_node(node)
    return used


def _turn_narrow_products(graph: torch.fx.GraphModule) -> None:
    """x^T y, [M, K] of [N, M] and [N, K], as (y^T x)^T where K < M: MKL is up to six times as fast.

    That is the gradient of a layer with fewer inputs than outputs (256 rows, 4 inputs, 64 outputs: 21 -> 5 us).
    """
    aten, new = torch.ops.aten, graph.graph.call_function
    mm, t = aten.mm.default, aten.t.default
    for node in graph.graph.find_nodes(op='call_function', target=mm):
        left, right = node.args
        if left.target is t and right.meta['val'].shape[1] < left.meta['val'].shape[0]:
            with graph.graph.inserting_before(node):
                turned = new(t, (new(mm, (new(t, (right,)), left.args[0])),))
                node.replace_all_uses_with(
                    new(aten.clone.default, (turned,), {'memory_format': torch.contiguous_format})
                )
            graph.graph.erase_node(node)
    graph.recompile()
