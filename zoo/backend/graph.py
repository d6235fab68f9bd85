"""Executor 'graph': every kind of update step, and acting, as one compiled program each (on a GPU a CUDA graph).

There is no second source: a step of zoo.policy.updates, or of a user's own, is run once on tensors without data, which
records its operations (make_fx), and torch's inductor compiles them. The program reads and writes the buffers of
`FlatAdam`, so checkpoints are the same, and eager steps may come before and after. What moves between steps (schedules,
the learning rate, buffers of the model) goes in as tensors. Python code of a model runs only while it is traced: a plain
number of it (a float attribute, say) is fixed from then on; one that moves has to be a buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.backend.adam import adam_step
from zoo.backend.executor import Acting, DrawNoise, Eager, Pass, Step, forward_for_acting, minibatches, stacked
from zoo.backend.trace import (
    CompiledFunction,
    compile_function,
    form_of,
    logger,
    missing_compiler,
    named_tensors,
    preserve_global_state,
    replaced,
)
from zoo.core.data import Metrics, State
from zoo.core.transfer import send
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import AdamRates, FlatAdam, FlatState

__all__ = ['GraphExecutor', 'compile_function', 'missing_compiler']


class GraphExecutor:
    """Compiles each kind of step at its first minibatch; what cannot be compiled runs eagerly, after one warning."""

    name = 'graph'

    def __init__(self, model: nn.Module, dist: ActionDist) -> None:
        self._model, self._dist = model, dist
        self._eager = Eager(model, dist)
        self._updates: dict[Any, _Update] = {}
        self._functions: list[CompiledFunction] = []
        self._has_state = hasattr(model, 'initial_state')
        if self._has_state:
            logger.warning('models with a recurrent state cannot be compiled: updates and acting run eagerly')

    def run(self, step: Step, optimizers: Sequence[FlatAdam], data: Pass, numbers: Any) -> Metrics:
        if self._has_state or any(each.failed for each in self._functions):
            return self._eager.run(step, optimizers, data, numbers)
        key = step, *optimizers
        if key not in self._updates:
            self._updates[key] = _Update(step, self._model, self._dist, optimizers)
            self._functions.append(self._updates[key].compiled)
        update, found = self._updates[key], []
        update.begin(numbers)
        for minibatch in minibatches(data):
            metrics = update(minibatch)
            # a program that fails has written nothing: the step is taken, and so are the ones after it
            found.append(metrics or step(self._model, self._dist, optimizers, minibatch, numbers))
        return stacked(found)

    def start_acting(self, obs: Tensor, draw: DrawNoise, one_trunk: bool) -> Acting | None:
        if self._has_state or any(each.failed for each in self._functions):
            return None
        acting = _GraphActing(self._model, self._dist, obs, draw, one_trunk)
        self._functions.append(acting.compiled)
        return acting

    def compute_critic(self, obs: Tensor) -> Tensor:
        return self._eager.compute_critic(obs)


class _Static(NamedTuple):
    """What a compiled step depends on that is no tensor."""

    numbers: Any  # with None in place of those that move
    moving: tuple[str, ...]
    others: tuple[str, ...]  # tensors of the model that are no parameters of the optimisers
    columns: tuple[str, ...]


class _Update:
    """A step function over one model and its optimisers, compiled; one call for each minibatch of a pass."""

    def __init__(self, step: Step, model: nn.Module, dist: ActionDist, optimizers: Sequence[FlatAdam]) -> None:
        self._step, self._model, self._dist, self._optimizers = step, model, dist, optimizers
        self._names: dict[Any, list[str]] = {}  # of the metrics
        self._rates: tuple[float, ...] = ()
        self._numbers: Tensor | None = None  # float64: of 1 - 0.999, few digits are left in float32
        name = getattr(step, '__name__', type(step).__name__)
        n_fixed = len(FlatState._fields) * len(optimizers) + 1  # those of the model may be replaced at any time
        self.compiled = CompiledFunction(self._replay, f'the update {name}', n_fixed=n_fixed)

    def begin(self, numbers: Any) -> None:
        """Called before each pass: the numbers, and the tensors of the model, may be others than before."""
        # a weight of exactly 0 drops its term (0 * inf is NaN), so reaching 0 compiles another program
        moving = {name: x for name, x in numbers._asdict().items() if isinstance(x, float) and x != 0}
        own = {name for optimizer in self._optimizers for name in optimizer.names}
        others = {name: x.detach() for name, x in named_tensors(self._model).items() if name not in own}
        self._static = _Static(numbers._replace(**dict.fromkeys(moving)), tuple(moving), tuple(others), ())
        self._send(numbers, moving)
        state = [x for optimizer in self._optimizers for x in optimizer.state]
        assert self._numbers is not None
        self._inputs = [*state, self._numbers, *others.values()]
        self._form = form_of(self._inputs)

    def _send(self, numbers: Any, moving: Mapping[str, float]) -> None:
        device = self._optimizers[0].param.device
        n = len(AdamRates._fields) * len(self._optimizers)
        if self._numbers is None:
            self._numbers = torch.zeros(n + len(numbers), dtype=torch.float64, device=device)
        rates = *(x for optimizer in self._optimizers for x in optimizer.rates), *moving.values()
        if rates != self._rates:
            self._numbers[: len(rates)].copy_(send(torch.tensor(rates, dtype=torch.float64), device))
            self._rates = rates

    def __call__(self, minibatch: Mapping[str, Tensor]) -> Metrics | None:
        """The metrics; None: it could not be compiled."""
        columns, static = list(minibatch.values()), self._static._replace(columns=tuple(minibatch))
        found = self.compiled([*self._inputs, *columns], static, self._form + form_of(columns))
        if found is None:
            return None
        values, names = found[0].unbind(), self._names[static]
        for optimizer, norm in zip(self._optimizers, values[len(names) :], strict=True):
            optimizer.note_step(norm)
        return dict(zip(names, values, strict=False))

    def _replay(self, static: _Static, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The step on inputs that are: the optimisers' buffers, moving numbers, other tensors of the model, columns."""
        rest, n_optimizer = iter(inputs), len(self._optimizers)
        states = [FlatState(*(next(rest) for _ in FlatState._fields)) for _ in range(n_optimizer)]
        values = iter(next(rest).unbind())
        rates = [AdamRates(*(next(values) for _ in AdamRates._fields)) for _ in range(n_optimizer)]
        numbers = static.numbers._replace(**{name: next(values).float() for name in static.moving})
        stand_ins = [_StandIn(*each) for each in zip(self._optimizers, states, strict=True)]
        tensors = {name: next(rest) for name in static.others}
        for each in stand_ins:
            tensors |= each.leaves
        minibatch = dict(zip(static.columns, rest, strict=True))
        with replaced(self._model, tensors), torch.enable_grad():
            metrics = self._step(self._model, self._dist, stand_ins, minibatch, numbers)
        self._names[static] = list(metrics)
        norms = torch.stack([each.norm for each in stand_ins])
        # always true, but it needs all norms: no buffer is written before the last gradient is there
        ready = (norms.isfinite() | ~norms.isfinite()).all()
        for each, adam in zip(stand_ins, rates, strict=True):
            each.write(adam, ready)
        return [torch.cat((torch.stack([x.detach().float() for x in metrics.values()]), norms))]


class _StandIn:
    """In place of a FlatAdam while a step is traced: it takes the gradient, and writes when the step is over."""

    def __init__(self, optimizer: FlatAdam, state: FlatState) -> None:
        self._state = state
        self.leaves = {name: x.detach().requires_grad_() for name, x in optimizer.cut(state.param).items()}
        self.norm: Tensor

    def zero_grad(self) -> None:
        for x in self.leaves.values():
            x.grad = None

    @torch.no_grad()
    def step(self, grad_clip: Any = None) -> Tensor:
        if hasattr(self, 'norm'):
            raise RuntimeError('it moves the same parameters twice')
        grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in self.leaves.values()]
        self._grad, self._grad_clip = torch.cat([grad.flatten() for grad in grads]), grad_clip
        self.norm = torch.linalg.vector_norm(self._grad)
        return self.norm

    def write(self, rates: AdamRates, ready: Tensor) -> None:
        finite = self.norm.isfinite() & ready
        new = adam_step(self._state._replace(grad=self._grad), self.norm, self._grad_clip, rates, finite)
        for old, x in zip(self._state, new, strict=True):
            old.copy_(x)


class _GraphActing:
    """Network, noise and action as one program, which writes its outputs into the rows of the blocks.

    On a GPU it reads and writes one place for each instead, as a CUDA graph must; rows are copied there and back.
    """

    state: State = None

    def __init__(self, model: nn.Module, dist: ActionDist, obs: Tensor, draw: DrawNoise, one_trunk: bool) -> None:
        self._model, self._dist, self._draw, self._one_trunk = model, dist, draw, one_trunk
        self._obs, self._obs_rows = obs, obs[:-1].unbind(0)
        self.output: dict[str, Any] = {}
        self.compiled = CompiledFunction(self._replay, 'acting', n_fixed=2**62)

    @torch.no_grad()
    def begin(self) -> None:
        """Draws the noise, and looks up the model's tensors: they may be others than before."""
        noise = self._draw(self._obs.shape[1])
        if not self.output:
            self._allocate(noise)
        self._noise.copy_(noise)
        tensors = named_tensors(self._model)
        self._names, fixed = tuple(tensors), [x.detach() for x in tensors.values()]
        if self._places:
            self._calls = [[*self._places, *fixed]] * len(self._obs_rows)
        else:
            rows = zip(self._obs_rows, *self._rows, strict=True)
            self._calls = [[*row, *fixed] for row in rows]
        self._form = form_of(self._calls[0])

    def step(self, t: int) -> Tensor:
        call, action = self._calls[t], self._rows[1][t]
        if self._places:
            obs, noise, *outputs = self._places
            obs.copy_(self._obs_rows[t], non_blocking=True)
            noise.copy_(self._rows[0][t])
        if self.compiled(call, self._names, self._form) is None:
            self._act(*call[: len(self._rows) + 1])
        if self._places:
            for rows, x in zip(self._rows[1:], outputs, strict=True):
                rows[t].copy_(x)
        return action

    def restart(self, begins: Tensor) -> None:
        """Never called: models with a state are not compiled."""

    def _allocate(self, noise: Tensor) -> None:
        """Blocks [T, B, ...] for noise and outputs, and on a GPU a place for one row of each, obs included."""
        with preserve_global_state():
            obs = self._obs_rows[0].to(noise.device)
            found = forward_for_acting(self._model, obs, self._one_trunk)
        found = {'action': self._dist.mode(found['logit']), **{k: found[k] for k in ('logit', 'value') if k in found}}
        self.output = {name: x.new_empty((len(noise), *x.shape)) for name, x in found.items()}
        self._noise = torch.empty_like(noise)
        self._rows = [x.unbind(0) for x in (self._noise, *self.output.values())]
        ones = [obs, noise[0], *found.values()]
        self._places = [torch.empty_like(x) for x in ones] if noise.is_cuda else []

    def _replay(self, names: tuple[str, ...], inputs: Sequence[Tensor]) -> list[Tensor]:
        """`_act` with the model's tensors among the inputs, in the order of their names."""
        n = len(self._rows) + 1
        with replaced(self._model, dict(zip(names, inputs[n:], strict=True))):
            self._act(*inputs[:n])
        return []

    def _act(self, obs: Tensor, noise: Tensor, *places: Tensor) -> None:
        """Acts on obs [B, *O] and writes action, logit (, value) into their places."""
        found = forward_for_acting(self._model, obs, self._one_trunk)
        outputs = [self._dist.sample(found['logit'], noise), *(found[name] for name in list(self.output)[1:])]
        for place, x in zip(places, outputs, strict=True):
            place.copy_(x)
