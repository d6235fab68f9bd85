"""Update steps as one compiled graph each: forward pass, loss, gradient, clipping, finite check and Adam.

There is no second source: a step of `zoo.policy.updates` is run once on stand-ins, which notes down its operations
(make_fx), and torch's inductor turns them into one program. That program reads and writes the buffers of `FlatAdam`, so
checkpoints are the same and the two may take turns. On a GPU it is captured as a CUDA graph. What moves between steps
(schedules, statistics, the learning rate) goes in as tensors: a graph is built once for each shape of minibatch. Python
code of a model runs only then: its plain numbers (a float attribute, say) are facts of the graph, which never sees them
change. A number that moves is a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.backend.adam import AdamRates, FlatState, adam_step
from zoo.backend.cuda_graph import CapturedCall
from zoo.backend.trace import MAX_GRAPHS, Backend, form_of, list_call, named_tensors, replaced, trace, undisturbed
from zoo.core.transfer import send
from zoo.policy.base import Metrics
from zoo.policy.updates import Minibatch, StepConfig
from zoo.rl_utils.optimizer import FlatAdam

Step = Callable[[Any, Any, Minibatch, StepConfig], Metrics]


class _Graph(NamedTuple):
    """A compiled step for one shape of minibatch."""

    run: Callable[[list[Tensor]], Sequence[Tensor]]
    used: list[int]  # which of all inputs it reads
    metrics: list[str]  # names of its outputs, the norm of each optimiser's gradient after them


class CompiledStep:
    """One step function over one model and its optimiser(s), which are FlatAdams; called as (minibatch, config)."""

    def __init__(
        self, step: Step, model: nn.Module, optimizer: FlatAdam | Sequence[FlatAdam], backend: Backend
    ) -> None:
        self._step, self._model = step, model
        self._single = isinstance(optimizer, FlatAdam)
        self._optimizers: tuple[FlatAdam, ...] = (optimizer,) if isinstance(optimizer, FlatAdam) else tuple(optimizer)
        self._backend = backend
        self._graphs: dict[Any, _Graph] = {}
        self._config: StepConfig | None = None
        self._moving: tuple[str, ...] = ()  # fields of the config that are inputs
        self._fixed: dict[str, Any] = {}  # the others: facts of the graph
        self._values: tuple[float, ...] = ()
        device = self._optimizers[0].param.device
        self._numbers = torch.zeros(
            4 * len(self._optimizers) + len(StepConfig._fields), dtype=torch.float64, device=device
        )
        self._others: dict[str, Tensor] = {}  # tensors of the model that are no parameters of the optimisers
        self._inputs: list[Tensor] = []
        self._form: Any = None  # of these

    def __call__(self, minibatch: Minibatch, config: StepConfig) -> Metrics:
        if config is not self._config:
            self._adopt(config)
        self._refresh_numbers(config)
        names, leaves = _flatten(minibatch)
        key = self._moving, tuple(self._fixed.values()), self._form, tuple(names), form_of(leaves)
        inputs = [*self._inputs, *leaves]
        graph = self._graphs.get(key)
        if graph is None:
            if len(self._graphs) == MAX_GRAPHS:
                raise RuntimeError(
                    f'minibatches came in more than {MAX_GRAPHS} shapes, or with other terms switched '
                    'off; make batch_size a divisor'
                )
            with undisturbed():
                graph = self._graphs[key] = self._build(names, inputs)
        with torch.no_grad():
            values = graph.run([inputs[i] for i in graph.used])
        n_metric = len(graph.metrics)
        for optimizer, norm in zip(self._optimizers, values[n_metric:], strict=True):
            optimizer.note_step(norm)
        return dict(zip(graph.metrics, values[:n_metric], strict=True))

    def _adopt(self, config: StepConfig) -> None:
        """Sorts a new config's numbers, and looks up what of the model is no parameter of the optimisers."""
        fields = config._asdict()
        # 0 switches a term off, which may be infinite: no graph has it, so where a schedule reaches 0 there is another
        self._moving = tuple(name for name, x in fields.items() if isinstance(x, float) and x != 0)
        self._fixed = {name: x for name, x in fields.items() if name not in self._moving}
        self._config = config
        own = {name for optimizer in self._optimizers for name in optimizer.names}
        self._others = {name: x.detach() for name, x in named_tensors(self._model).items() if name not in own}
        self._inputs = [x for optimizer in self._optimizers for x in optimizer.state]
        self._inputs += [self._numbers, *self._others.values()]
        self._form = tuple(self._others), form_of(self._inputs)

    def _refresh_numbers(self, config: StepConfig) -> None:
        values = tuple([x for optimizer in self._optimizers for x in optimizer.rates])
        values += tuple([getattr(config, name) for name in self._moving])
        if values != self._values:
            self._values = values
            numbers = send(torch.tensor(values, dtype=torch.float64), self._numbers.device)
            self._numbers[: len(values)].copy_(numbers)

    def _build(self, names: list[tuple[str, ...]], inputs: list[Tensor]) -> _Graph:
        found: list[str] = []

        def step(*values: Tensor) -> Sequence[Tensor]:
            metrics, norms = self._replay(names, list(values))
            found[:] = metrics
            return [*(x.detach() for x in metrics.values()), *norms]

        graph, used = trace(step, inputs, constants=False)
        run = list_call(self._backend(graph, [inputs[i] for i in used]))
        if inputs[0].device.type == 'cuda':
            run = CapturedCall(run, moving=[place for place, i in enumerate(used) if i >= len(self._inputs)])
        return _Graph(run, used, found)

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
        with replaced(self._model, tensors):
            metrics = self._step(
                self._model, stand_ins[0] if self._single else stand_ins, _unflatten(names, values), config
            )
        norms = [stand_in.norm for stand_in in stand_ins]
        # always true, but known only with all norms: no buffer is written before the last gradient is there
        ready = torch.stack([norm.isfinite() | ~norm.isfinite() for norm in norms]).all() if len(norms) > 1 else None
        for stand_in, adam in zip(stand_ins, rates, strict=True):
            stand_in.write(adam, ready)
        return metrics, norms


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
