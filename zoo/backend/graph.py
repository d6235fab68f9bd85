"""Executor 'graph': each kind of update step as one compiled program, on a GPU as a CUDA graph; on a GPU also acting.

There is no second implementation: a step of zoo.policy.ppo, or of a user's own, is run once on tensors without
data, which records its operations (make_fx), and torch's inductor compiles them. The program reads and writes the buffers of
`FlatOptimizer`, so checkpoints are the same, and eager steps may come before and after. Numbers that change between steps
(schedules, the learning rate, buffers of the model) are input tensors. Python code of a model runs only while it is traced: a
plain number in it (e.g. a float attribute) is fixed from then on; a number that changes must be a buffer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.backend.executor import (
    Acting,
    DrawNoise,
    Eager,
    Explore,
    ForwardActing,
    Step,
    StepPlan,
    forward_for_acting,
    minibatches,
    stacked,
)
from zoo.backend.places import StepParts, code_of, why_not
from zoo.backend.step import LossSpec, StepNumbers, as_step
from zoo.backend.trace import MAX_PROGRAMS, CompiledFunction, logger, named_tensors, replaced
from zoo.core.data import Metrics, Obs, State, keeps_state, leaves, map_tensors, send
from zoo.core.errors import UserError
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import FlatOptimizer, limited, moved


class GraphExecutor(Eager):
    """Compiles each kind of step at its first minibatch; what cannot be compiled runs eagerly, after one warning.

    Args: is_named: whether the config names this executor, so that steps with code of a user that a program would leave out
      are refused.
    """

    name = 'graph'

    def __init__(self, model: nn.Module, dist: ActionDist, is_named: bool = False) -> None:
        super().__init__(model, dist)
        self._is_named = is_named
        self._said = ''
        self._updates: dict[Any, _Update] = {}
        self._functions: list[CompiledFunction] = []
        self._is_full = False

    @property
    def is_compiled(self) -> bool:
        """Whether nothing has failed so far."""
        return not any(each.failed for each in self._functions)

    def run(
        self, step: Step, optimizers: Sequence[FlatOptimizer], plan: StepPlan, loss: LossSpec, numbers: StepNumbers
    ) -> Metrics:
        # a program would leave out a hook of a parameter, and what an optimiser of a user does
        why = why_not('graph', StepParts(self._model, optimizers, loss))
        if why:
            self._refuse(why)
        if why or not (self.is_compiled and getattr(step, 'compiles', True)):
            return super().run(step, optimizers, plan, loss, numbers)
        key = step, *optimizers
        if key not in self._updates:
            if len(self._updates) == MAX_PROGRAMS:
                if not self._is_full:
                    logger.warning('after %d kinds of steps, others run eagerly: define a step once', MAX_PROGRAMS)
                self._is_full = True
                return super().run(step, optimizers, plan, loss, numbers)
            self._updates[key] = _Update(step, self._model, self._dist, optimizers)
            self._functions.append(self._updates[key].compiled)
        return self._updates[key].run(plan, loss, numbers)

    def _refuse(self, why: str) -> None:
        """Refuses steps that cannot be compiled, or says once that they run eagerly."""
        if self._is_named:
            raise UserError(f"policy.learn.executor is 'graph' but {why}; use 'auto' or 'eager'")
        if why != self._said:
            logger.info('updates run eagerly: %s', why)
            self._said = why

    def start_acting(
        self, obs: Obs, noise: DrawNoise, has_value: bool, explore: Explore | None = None
    ) -> Acting | None:
        if keeps_state(self._model):
            return None
        # on a CPU a call would gain 0 to 20 us, on the model's few operations: less than compiling takes
        if not self.is_compiled or not any(p.is_cuda for p in self._model.parameters()):
            return None
        acting = GraphActing(self._model, self._dist, obs, noise, has_value, explore)
        self._functions.append(acting.compiled)
        return acting


class _Static(NamedTuple):
    """All values that a compiled step depends on, except tensors."""

    loss: LossSpec
    fixed: tuple[Any, ...]  # the numbers of the step; `_MOVES` in place of those that are inputs of its program
    moves: tuple[bool, ...]  # whether each optimiser takes a step, else it only accumulates the gradient
    others: tuple[str, ...]  # tensors of the model that are no parameters of the optimisers
    columns: tuple[str, ...]  # of the minibatch, dotted paths where they are nested
    code: tuple[Hashable, ...]  # hooks and methods that were put on the model


_MOVES = 'moves'


def _moves(number: Any) -> bool:
    """Whether a number is an input of the program. Exactly 0 is not: it drops its term (0 * inf is NaN), another program."""
    return isinstance(number, float) and number != 0


class _Update:
    """A step function over one model and its optimisers, compiled."""

    def __init__(self, step: Step, model: nn.Module, dist: ActionDist, optimizers: Sequence[FlatOptimizer]) -> None:
        self._step = as_step(step)
        self._model = model
        self._dist = dist
        self._optimizers = optimizers
        self._names: dict[_Static, list[str]] = {}  # of the metrics
        self._accumulates = any(each.mechanics.accumulate > 1 for each in optimizers)
        self.compiled = CompiledFunction(self._replay, getattr(step, '__name__', type(step).__name__))

    def run(self, plan: StepPlan, loss: LossSpec, numbers: StepNumbers) -> Metrics:
        flat = numbers.flat()
        moving = [x for x in flat if _moves(x)]
        own = {name for optimizer in self._optimizers for name in optimizer.names}
        others = {name: x.detach() for name, x in named_tensors(self._model).items() if name not in own}
        static = _Static(
            loss=loss,
            fixed=tuple(_MOVES if _moves(x) else x for x in flat),
            moves=(),
            others=tuple(others),
            columns=(),
            code=code_of(self._model, self._dist),
        )
        fixed = [*(x for optimizer in self._optimizers for x in optimizer.buffers.values()), *others.values()]
        values = self._values(moving, fixed[0].device)
        for optimizer in self._optimizers:
            optimizer.expect_passes(plan.order, plan.batch_size)
        found = []
        for minibatch in minibatches(plan):
            self._minibatch = minibatch
            paths, columns = zip(*leaves(minibatch), strict=True)
            static = static._replace(columns=paths, moves=tuple(each.upcoming[1] for each in self._optimizers))
            if self._accumulates:
                values = self._values(moving, fixed[0].device)
                for optimizer in self._optimizers:
                    optimizer.zero_grad()  # before the first gradient of a step; programs add to it
            outputs = self.compiled([*fixed, values, *columns], static, len(fixed))
            if outputs is None:  # nothing was written, so no step is lost
                found.append(self._step(self._model, self._dist, self._optimizers, minibatch, loss, numbers))
                continue
            names = self._names[static]
            metrics = outputs[0].unbind()
            found.append(dict(zip(names, metrics, strict=False)))
            for optimizer, norm, moves in zip(self._optimizers, metrics[len(names) :], static.moves, strict=True):
                if moves:
                    optimizer.note_step(norm)
                optimizer.advance()
        return stacked(found)

    def _values(self, moving: Sequence[Any], device: torch.device) -> Tensor:
        """The changing inputs: for each optimiser the learning rate and the number of gradients with this one; then `moving`."""
        of_optimizers = [x for each in self._optimizers for x in (each.lr, each.upcoming[0])]
        # in float64, as eager steps have these numbers; float32 would round them
        return send(torch.tensor([*of_optimizers, *moving], dtype=torch.float64), device)

    def _replay(self, static: _Static, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Runs the step on the inputs of `run`; returns its metrics and the norms of the gradients as one tensor."""
        rest = iter(inputs)
        states = [{name: next(rest) for name in optimizer.buffers} for optimizer in self._optimizers]
        tensors = {name: next(rest) for name in static.others}
        values = iter(next(rest).unbind())
        stand_ins = [
            _StandIn(optimizer, state, next(values), next(values), moves)
            for optimizer, state, moves in zip(self._optimizers, states, static.moves, strict=True)
        ]
        numbers = StepNumbers.from_flat([next(values).float() if x is _MOVES else x for x in static.fixed])
        for each in stand_ins:
            tensors |= each.leaves
        minibatch = map_tensors(lambda _: next(rest), self._minibatch)
        with replaced(self._model, tensors), torch.enable_grad():
            metrics = self._step(self._model, self._dist, stand_ins, minibatch, static.loss, numbers)
        self._names[static] = list(metrics)
        norms = torch.stack([each.norm for each in stand_ins])
        # always true, but it needs all norms: no buffer is written before the last gradient is there
        ready = (norms.isfinite() | ~norms.isfinite()).all()
        for each in stand_ins:
            each.write(ready)
        return [torch.cat((torch.stack([x.detach().float() for x in metrics.values()]), norms))]


class _StandIn:
    """Replaces an optimiser while a step is traced: it takes the gradient, and writes the buffers when the step is over.

    Args: state: the buffers by name; n_gathered: number of gradients with this one; moves: whether it takes a step, else it
      only adds the gradient to the earlier ones.
    """

    def __init__(
        self, optimizer: FlatOptimizer, state: dict[str, Tensor], lr: Tensor, n_gathered: Tensor, moves: bool
    ) -> None:
        self._optimizer = optimizer
        self._state = state
        self._lr = lr
        self._n_gathered = n_gathered
        self._moves = moves
        self.leaves = {name: x.detach().requires_grad_() for name, x in optimizer.cut(state['param']).items()}
        self.scaled_by: Tensor | None = None
        self.norm: Tensor

    @property
    def loss_scale(self) -> Tensor | None:
        return self._state.get('loss_scale')

    @property
    def averaged(self) -> dict[str, Tensor]:
        return self._optimizer.cut(self._state['average'])

    def zero_grad(self) -> None:
        for x in self.leaves.values():
            x.grad = None

    @torch.no_grad()
    def step(self, grad_clip: Any = None) -> Tensor:
        if hasattr(self, 'norm'):
            raise RuntimeError('it moves the same parameters twice')
        grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in self.leaves.values()]
        self._sum = torch.cat([grad.flatten() for grad in grads])
        mechanics = self._optimizer.mechanics
        if mechanics.accumulate > 1:
            self._sum = self._state['grad'] + self._sum
        divisor = self._optimizer.divisor(self._n_gathered, self.scaled_by)
        self._grad, self.norm = limited(self._sum, grad_clip, mechanics, divisor)
        return self.norm

    def write(self, ready: Tensor) -> None:
        if not self._moves:
            self._state['grad'].copy_(torch.where(ready, self._sum, self._state['grad']))
            return
        rule = self._optimizer.rule
        mechanics = self._optimizer.mechanics
        state = {**self._state, 'grad': self._sum}  # kept if it is not finite, to name the parameter that broke
        finite = self.norm.isfinite() & ready
        new = moved(rule, mechanics, state, self._grad, self._lr, finite, self.scaled_by)
        for name, x in new.items():
            self._state[name].copy_(x)


class GraphActing(ForwardActing):
    """Network, noise and action as one program; rows are copied to it and its outputs into the blocks."""

    def __init__(
        self,
        model: nn.Module,
        dist: ActionDist,
        obs: Obs,
        draw: DrawNoise,
        has_value: bool,
        explore: Explore | None = None,
    ) -> None:
        super().__init__(self._act, obs)
        self._explore = explore
        self._model = model
        self._dist = dist
        self._draw = draw
        self._has_value = has_value
        self._names = ['action', 'logit']
        if has_value:
            self._names.append('value')
        self._row: Obs = None
        self.code: tuple[Hashable, ...] = ()  # hooks and methods that were put on the model
        self.captures = True  # whether each step is a CUDA graph; False: another graph holds it
        self.compiled = CompiledFunction(self._replay, 'acting')

    def begin(self) -> None:
        """Draws the noise, and looks up the model's tensors: they may have been replaced."""
        self.noise = self._draw(self._n_env)
        self.follow(self.noise)
        self._tensors = {name: x.detach() for name, x in named_tensors(self._model).items()}
        self.code = code_of(self._model, self._dist)

    def follow(self, noise: Tensor) -> None:
        """Makes the next steps take these rows of noise, [T, B, ...]."""
        self._noise = iter(noise.unbind(0))

    @property
    def tensors(self) -> list[Tensor]:
        return list(self._tensors.values())

    def _act(self, obs: Obs, state: State) -> dict[str, Any]:
        noise = next(self._noise)
        self._row = map_tensors(lambda x: send(x, noise.device), obs)
        inputs = [*self._tensors.values(), noise, *(x for _, x in leaves(self._row))]
        outputs = self.compiled(
            inputs, (tuple(self._tensors), self.code), len(self._tensors) if self.captures else None
        )
        return dict(zip(self._names, self._compute(self._row, noise) if outputs is None else outputs, strict=True))

    def _replay(self, static: tuple[tuple[str, ...], Any], inputs: Sequence[Tensor]) -> list[Tensor]:
        """`_compute` with the model's tensors, whose names are static[0], before noise and observations."""
        names = static[0]
        noise, *row = inputs[len(names) :]
        columns = iter(row)
        with replaced(self._model, dict(zip(names, inputs, strict=False))):
            return self._compute(map_tensors(lambda _: next(columns), self._row), noise)

    def _compute(self, obs: Obs, noise: Tensor) -> list[Tensor]:
        found: dict[str, Any] = forward_for_acting(self._model, obs, self._has_value)
        if self._explore is not None:
            found['logit'] = self._explore(self._dist, found['logit'])
        found['action'] = self._dist.sample(found['logit'], noise)
        return [found[name] for name in self._names]
