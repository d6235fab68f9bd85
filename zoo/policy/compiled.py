"""Update steps as one compiled graph each: forward pass, loss, gradient, clipping, finite check and Adam.

There is no second source: a step of `zoo.policy.updates` is run once on stand-ins, which notes down its operations
(make_fx), and torch's inductor turns them into one program. That program reads and writes the buffers of `FlatAdam`, so
checkpoints are the same and the two may take turns. What moves between steps (schedules, statistics, the learning rate)
goes in as tensors: a graph is built once for each shape of minibatch. Python code of a model runs only then.
"""
from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.policy.base import Metrics
from zoo.policy.updates import Minibatch, StepConfig
from zoo.rl_utils.optimizer import AdamRates, FlatAdam, FlatState, adam_step

Step = Callable[[Any, Any, Minibatch, StepConfig], Metrics]
Backend = Callable[[torch.fx.GraphModule, Sequence[Tensor]], Callable[..., Sequence[Tensor]]]
MAX_GRAPHS = 8  # of one kind of step: each takes seconds


class _Graph(NamedTuple):
    """A compiled step for one shape of minibatch."""

    run: Callable[..., Sequence[Tensor]]
    used: list[int]  # which of all inputs it reads
    metrics: list[str]  # names of its outputs, the norm of each optimiser's gradient after them


class CompiledStep:
    """One step function over one model and its optimiser(s), which are FlatAdams; called as (minibatch, config)."""

    def __init__(self, step: Step, model: nn.Module, optimizer: FlatAdam | Sequence[FlatAdam],
                 backend: Backend) -> None:
        self._call = _Call(step, model)
        self._single = isinstance(optimizer, FlatAdam)
        self._optimizers: tuple[FlatAdam, ...] = (optimizer,) if isinstance(optimizer, FlatAdam) else tuple(optimizer)
        self._backend = backend
        self._graphs: dict[Any, _Graph] = {}
        self._config: StepConfig | None = None
        self._moving: tuple[str, ...] = ()  # fields of the config that are inputs
        self._fixed: dict[str, Any] = {}  # the others: facts of the graph
        self._values: tuple[float, ...] = ()
        device = self._optimizers[0].param.device
        self._numbers = torch.zeros(4 * len(self._optimizers) + len(StepConfig._fields), dtype=torch.float64,
                                    device=device)
        self._places: dict[str, tuple[str, Tensor]] = {}
        self._others: dict[str, Tensor] = {}  # tensors of the model that are no parameters of the optimisers
        self._inputs: list[Tensor] = []

    def __call__(self, minibatch: Minibatch, config: StepConfig) -> Metrics:
        if config is not self._config:
            self._adopt(config)
        self._refresh_numbers(config)
        names, leaves = _flatten(minibatch)
        shape = tuple([(x.shape, x.stride(), x.dtype) for x in leaves])
        key = self._moving, tuple(self._fixed.values()), tuple(names), shape
        inputs = [*self._inputs, *leaves]
        graph = self._graphs.get(key)
        if graph is None:
            if len(self._graphs) == MAX_GRAPHS:
                raise RuntimeError(f'minibatches came in more than {MAX_GRAPHS} shapes; make batch_size a divisor')
            with undisturbed():
                graph = self._graphs[key] = self._build(names, inputs)
        with torch.no_grad():
            values = graph.run(*[inputs[i] for i in graph.used])
        n_metric = len(graph.metrics)
        for optimizer, norm in zip(self._optimizers, values[n_metric:], strict=True):
            optimizer.note_step(norm)
        return dict(zip(graph.metrics, values[:n_metric], strict=True))

    def _adopt(self, config: StepConfig) -> None:
        """Sorts a new config's numbers, and looks up what of the model is no parameter of the optimisers."""
        fields = config._asdict()
        # 0 switches a term off, for good unless it was on before: else a schedule that ends at 0 would compile anew
        self._moving = tuple(name for name, x in fields.items()
                             if isinstance(x, float) and (x != 0 or name in self._moving))
        self._fixed = {name: x for name, x in fields.items() if name not in self._moving}
        self._config = config
        own = {name for optimizer in self._optimizers for name in optimizer.names}
        self._places = _places(self._call.model)
        named = {name: x for name, x in self._places.values() if name not in own}
        self._others = {name: x.detach() for name, x in named.items()}
        self._inputs = [x for optimizer in self._optimizers for x in optimizer.state]
        self._inputs += [self._numbers, *self._others.values()]

    def _refresh_numbers(self, config: StepConfig) -> None:
        values = tuple([x for optimizer in self._optimizers for x in optimizer.rates])
        values += tuple([getattr(config, name) for name in self._moving])
        if values != self._values:
            self._values = values
            self._numbers[:len(values)].copy_(torch.tensor(values, dtype=torch.float64))

    def _build(self, names: list[tuple[str, ...]], inputs: list[Tensor]) -> _Graph:
        from torch.fx.experimental.proxy_tensor import make_fx

        found: list[str] = []

        def trace(*values: Tensor) -> tuple[Tensor, ...]:
            metrics, norms = self._replay(names, list(values))
            found[:] = metrics
            return *[x.detach() for x in metrics.values()], *norms

        traced = make_fx(trace, tracing_mode='fake')(*inputs)
        used = _drop_unused(traced.graph)
        traced.recompile()
        random = [node for node in traced.graph.nodes if torch.Tag.nondeterministic_seeded in getattr(
            node.target, 'tags', ())]
        if random:
            raise RuntimeError(f'the model draws random numbers ({random[0].target})')
        return _Graph(self._backend(traced, [inputs[i] for i in used]), used, found)

    def _replay(self, names: list[tuple[str, ...]], values: list[Tensor]) -> tuple[Metrics, list[Tensor]]:
        """The step itself, on the inputs of a graph."""
        n_state = len(FlatState._fields)
        states = [FlatState(*(values.pop(0) for _ in range(n_state))) for _ in self._optimizers]
        numbers = list(values.pop(0).unbind())
        rates = [AdamRates(*(numbers.pop(0) for _ in AdamRates._fields)) for _ in self._optimizers]
        moving: dict[str, Any] = {name: numbers.pop(0).to(torch.float32) for name in self._moving}
        assert self._config is not None
        config = self._config._replace(**moving)
        tensors = {name: values.pop(0) for name in self._others}
        stand_ins = [_StandIn(optimizer, state) for optimizer, state in zip(self._optimizers, states, strict=True)]
        for stand_in in stand_ins:
            tensors |= stand_in.leaves
        metrics = torch.func.functional_call(
            self._call, {f'model.{place}': tensors[name] for place, (name, _) in self._places.items()},
            (stand_ins[0] if self._single else stand_ins, _unflatten(names, values), config), tie_weights=False)
        norms = [stand_in.norm for stand_in in stand_ins]
        # always true, but known only with all norms: no buffer is written before the last gradient is there
        ready = torch.stack([norm.isfinite() | ~norm.isfinite() for norm in norms]).all() if len(norms) > 1 else None
        for stand_in, adam in zip(stand_ins, rates, strict=True):
            stand_in.write(adam, ready)
        return metrics, norms


class _Call(nn.Module):
    """A step as a module, so that `functional_call` can put other tensors in place of the model's."""

    def __init__(self, step: Step, model: nn.Module) -> None:
        super().__init__()
        self.model, self._step = model, step

    def forward(self, optimizer: Any, minibatch: Minibatch, config: StepConfig) -> Metrics:
        return self._step(self.model, optimizer, minibatch, config)


class _StandIn:
    """In place of a FlatAdam while a step is traced: it takes the gradient, and writes when it is told to."""

    def __init__(self, optimizer: FlatAdam, state: FlatState) -> None:
        self._state = state
        self.leaves = {name: x.detach().requires_grad_() for name, x in optimizer.cut(state.param).items()}
        self.norm: Tensor

    def zero_grad(self) -> None:
        for x in self.leaves.values():
            x.grad = None

    @torch.no_grad()
    def step(self, grad_clip: Any = None) -> Tensor:
        grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in self.leaves.values()]
        self._grad, self._grad_clip = torch.cat([grad.flatten() for grad in grads]), grad_clip
        self.norm = torch.linalg.vector_norm(self._grad)
        return self.norm

    @torch.no_grad()
    def write(self, rates: AdamRates, ready: Tensor | None) -> None:
        finite = self.norm.isfinite() if ready is None else self.norm.isfinite() & ready
        new = adam_step(self._state._replace(grad=self._grad), self.norm, self._grad_clip, rates, finite)
        for old, x in zip(self._state, new, strict=True):
            old.copy_(x)


def inductor(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Compiles a graph for tensors like `inputs`; a graph compiled before, by any run, is found in torch's cache."""
    from torch._inductor import config, standalone_compile

    options: dict[str, Any] = {}
    if inputs[0].device.type == 'cpu':
        _turn_narrow_products(graph)
        # the calls of the kernels in C++ too; tanh by exp, three times as fast, to 1e-7; one compiler at a time, since
        # a pool of them would stay in memory
        options = {'cpp_wrapper': True, 'cpp.use_decompose_tanh': True, 'compile_threads': 1}
    with config.patch(options):
        return standalone_compile(graph, list(inputs), dynamic_shapes='from_example_inputs')


def missing_compiler(device: torch.device) -> str:
    """Why nothing can be compiled for a device; empty if it can."""
    if device.type != 'cpu':
        return '' if find_spec('triton') else 'triton, which compiles for GPUs, is not installed'
    # as inductor looks for one
    name = os.environ.get('CXX', {'darwin': 'clang++', 'win32': 'cl'}.get(sys.platform, 'g++'))
    return '' if shutil.which(name) else f'there is no C++ compiler {name!r} here; install one or name it in CXX'


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keeps what a compilation changes in the process: random streams, a default of torch.distributions, warnings."""
    distribution = torch.distributions.Distribution
    validate_args = distribution._validate_args
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
            warnings.filterwarnings('ignore', category=DeprecationWarning, module='torch')
            yield
    finally:
        distribution.set_default_validate_args(validate_args)


def _places(model: nn.Module) -> dict[str, tuple[str, Tensor]]:
    """Where a model keeps parameters and buffers, each module once: place -> the tensor and its first place."""
    first: dict[int, str] = {}
    places = {}
    for path, module in model.named_modules():
        for name, x in (*module.named_parameters(path, recurse=False), *module.named_buffers(path, recurse=False)):
            places[name] = first.setdefault(id(x), name), x
    return places


def _flatten(minibatch: Minibatch) -> tuple[list[tuple[str, ...]], list[Tensor]]:
    """Names and tensors, of mappings in it too."""
    names: list[tuple[str, ...]] = []
    leaves: list[Tensor] = []
    for name, x in minibatch.items():
        if isinstance(x, Tensor):
            names.append((name,))
            leaves.append(x)
        else:
            for part, leaf in x.items():
                names.append((name, part))
                leaves.append(leaf)
    return names, leaves


def _unflatten(names: list[tuple[str, ...]], leaves: list[Tensor]) -> dict[str, Any]:
    minibatch: dict[str, Any] = {}
    for (name, *part), x in zip(names, leaves, strict=True):
        if part:
            minibatch.setdefault(name, {})[part[0]] = x
        else:
            minibatch[name] = x
    return minibatch


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
                    new(aten.clone.default, (turned,), {'memory_format': torch.contiguous_format}))
            graph.graph.erase_node(node)
    graph.recompile()
