"""Compiled functions of tensors: traced once for each form of their inputs, then compiled by inductor; CUDA graphs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from zoo.core.processes import GivenUp, may_be_given_up
from zoo.rl_utils import kernels

Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class CapturedCall:
    """A function of CUDA tensors, captured at its second call and replayed later; it must read no value on the host.

    The first call runs eagerly on a side stream, so that lazy kernel initialisation is done before the capture. Results
    are copies, which the next call does not change. If a fixed input has moved, the function is captured again.
    Args: n_fixed: number of first inputs, which stay at their addresses; the graph reads copies of the others.
    Source: CUDA graphs as in docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
    """

    def __init__(self, run: Run, n_fixed: int) -> None:
        self._run = run
        self._n_fixed = n_fixed
        self._stream: torch.cuda.Stream | None = None  # the first call makes it
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []  # where the graph reads
        self._outputs: Sequence[Tensor] = []
        self._kinds: list[list[int]] = []  # indices of inputs of one dtype, which are copied by one launch

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        if self._stream is None:
            return self._warm_up(inputs)
        n = self._n_fixed
        graph = self._graph
        if graph is None or any(a.data_ptr() != b.data_ptr() for a, b in zip(inputs[:n], self._inputs, strict=False)):
            graph = self._capture(inputs)
        for kind in self._kinds:
            torch._foreach_copy_([self._inputs[i] for i in kind], [inputs[i] for i in kind], non_blocking=True)
        graph.replay()
        return [x.clone() for x in self._outputs]

    def _warm_up(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        device = inputs[0].device
        current = torch.cuda.current_stream(device)
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = list(self._run(inputs))
        current.wait_stream(self._stream)
        for x in outputs:
            x.record_stream(current)
        return outputs

    def _capture(self, inputs: Sequence[Tensor]) -> torch.cuda.CUDAGraph:
        """Records the kernels; none of them runs here, so nothing is written yet."""
        self._graph = None  # in case the capture fails
        self._inputs = [*inputs[: self._n_fixed], *(x.clone() for x in inputs[self._n_fixed :])]
        moving = range(self._n_fixed, len(inputs))
        dtypes = dict.fromkeys(inputs[i].dtype for i in moving)
        self._kinds = [[i for i in moving if inputs[i].dtype == dtype] for dtype in dtypes]
        graph = torch.cuda.CUDAGraph()
        # cuBLAS's workspace for this stream is allocated again in the graph's own pool, and lives as long as the graph
        torch._C._cuda_clearCublasWorkspaces()
        # device and stream are given: otherwise torch would capture on the default device, and keep the stream after a failure
        with (
            torch.cuda.device(inputs[0].device),
            torch.cuda.stream(torch.cuda.current_stream(inputs[0].device)),
            torch.cuda.graph(graph, stream=self._stream, capture_error_mode='thread_local'),
        ):
            self._outputs = self._run(self._inputs)
        self._graph = graph
        return graph


MAX_PROGRAMS = 8
"""Limit for one function; each program takes seconds to compile."""
logger = logging.getLogger(__name__)


class CompiledFunction:
    """A function (static, inputs) -> outputs, compiled once for each hashable static value and form of its tensors.

    The form is shape, stride, dtype and device. Python code of the function runs only while it is traced: any number
    that it reads, other than its inputs, is fixed from then on. If a call fails, at compile time or later, or if the
    function would need more than MAX_PROGRAMS programs, `failed` is set and one warning says why.
    Args:
      what: names the function in that warning.
      constants: whether it may read tensors that are not its inputs; they keep the values that they have when traced.
    """

    def __init__(
        self, function: Callable[[Any, Sequence[Tensor]], Sequence[Tensor]], what: str, constants: bool = False
    ) -> None:
        self._function = function
        self._what = what
        self._constants = constants
        self._programs: dict[Any, Run] = {}
        self.failed = False

    def __call__(
        self, inputs: Sequence[Tensor], static: Hashable = None, n_fixed: int | None = None
    ) -> Sequence[Tensor] | None:
        """The outputs; None if it has failed: the caller then runs the function itself.

        Args: n_fixed: how many of the first inputs are at the same addresses in every call, which lets a GPU capture it
          as a CUDA graph; None: it is not captured.
        """
        if self.failed:
            return None
        try:
            key = static, tuple([(x.shape, x.stride(), x.dtype, x.device) for x in inputs])
            if key not in self._programs:
                if len(self._programs) == MAX_PROGRAMS:
                    raise RuntimeError(f'it was called with more than {MAX_PROGRAMS} forms of inputs')
                with may_be_given_up():  # it may take minutes
                    program = self._compile(inputs, static, n_fixed)
                self._programs[key] = program
            return self._programs[key](inputs)
        except GivenUp:
            self.failed = True
            logger.info('compiling %s is given up; it runs uncompiled', self._what)
            return None
        except Exception as error:
            # compilers fail in many ways; an error of the function itself comes again when it is called
            self.failed = True
            self._programs.clear()
            why = ': '.join([type(error).__name__, *str(error).strip().splitlines()[:1]])
            logger.warning('%s could not be compiled and runs uncompiled from now on: %s', self._what, why)
            return None

    @torch.no_grad()
    def _compile(self, inputs: Sequence[Tensor], static: Hashable, n_fixed: int | None) -> Run:
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', module='torch')  # deprecations, and advice that would cost precision
            program = inductor(trace(lambda *x: self._function(static, x), inputs, self._constants), inputs)
        if n_fixed is None or not inputs[0].is_cuda:
            return lambda x: program(*x)
        return CapturedCall(lambda x: program(*x), n_fixed)


def compile_function(function: Callable[..., Sequence[Tensor]], what: str) -> Callable[..., Sequence[Tensor]]:
    """A pure function of tensors, compiled for each form of its inputs; uncompiled, after one warning, if that fails."""
    compiled = CompiledFunction(lambda _, inputs: function(*inputs), what, constants=True)

    def run(*inputs: Tensor) -> Sequence[Tensor]:
        outputs = compiled(inputs)
        if outputs is None:
            return function(*inputs)
        return outputs

    return run


def trace(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], constants: bool) -> torch.fx.GraphModule:
    """The operations of one run of a function on tensors without data.

    Args: constants: whether it may read other tensors than its inputs; they keep their present values.
    Raises: RuntimeError if it draws random numbers, since a program would draw different ones; any error of the function,
      e.g. because it reads a value.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    with kernels.disabled():  # the references can be fused with the operations around them
        graph = make_fx(function, tracing_mode='fake', _allow_non_fake_inputs=constants)(*inputs)
    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, 'tags', ()):
            raise RuntimeError(f'random numbers are drawn in it ({node.target})')
    return graph


def inductor(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Compiles a graph for tensors like `inputs`; programs of earlier runs are found in torch's cache folder."""
    from torch._inductor import standalone_compile

    # tanh by exp has an error of 1e-7 and saves a sixth of a step's time with a 64-64 network
    settings = {'size_asserts': False, 'cpp.use_decompose_tanh': True, 'cpp.threads': torch.get_num_threads()}
    options = {'config_patches': settings}
    return standalone_compile(graph, list(inputs), dynamic_shapes='from_example_inputs', options=options)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@contextmanager
def replaced(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Context in which other tensors replace a model's parameters and buffers, named as in `named_tensors`.

    torch.func.functional_call would leave its tensors in a module that has two names in the model, e.g. a shared trunk.
    """
    own = named_tensors(model)
    new = {id(own[name]): x for name, x in tensors.items()}
    groups = [group for module in model.modules() for group in (module._parameters, module._buffers)]
    slots: list[tuple[dict[str, Any], str, Any]] = [
        (group, name, x) for group in groups for name, x in group.items() if id(x) in new
    ]
    try:
        for group, name, x in slots:
            group[name] = new[id(x)]
        yield
    finally:
        for group, name, x in slots:
            group[name] = x
