"""Compiled updates and acting against eager ones; recompilation; models and steps that cannot be compiled.

Most tests run the graphs as traced, because errors of our own would show there; those marked long compile them, as do some
of test_executor.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.backend.problems import CPU, KL, UNCLIPPED, VALUE_CLIP, Case, Problem
from tests.gpu import needs_gpu, no_waiting
from tests.step_parts import PolicyNumbers, ValueNumbers
from zoo.backend import trace as module
from zoo.backend.choose import missing_compiler
from zoo.backend.executor import Acting, Eager, ForwardActing, StepPlan, forward_for_acting, forward_rows
from zoo.backend.graph import GraphActing, GraphExecutor
from zoo.backend.step import CLIP, LossSpec, StepNumbers
from zoo.config.components import make_component
from zoo.core.data import map_tensors
from zoo.core.registry import EXPLORATION_REGISTRY, OPTIMIZER_REGISTRY
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary
from zoo.model.actor_critic import VAC
from zoo.policy.options.passes import ForwardInPrecision
from zoo.policy.ppo import ppo_step
from zoo.policy.sequences import forward_sequences
from zoo.rl_utils import Categorical, kernels
from zoo.rl_utils.optimizer import FlatAdam
from zoo.run.config import resolve_policy

CLOSE = dict(rtol=1e-5, atol=1e-6)  # float32 sums in another order, and Adam divides by gradients that may be near 0
DIST = Categorical(2)
ALL = PolicyNumbers(0.15, 0.03, 1.5, 0.5, True, 0.7, value_loss=VALUE_CLIP)
PENALISED = PolicyNumbers(surrogate=UNCLIPPED, terms=(KL,), term_weights=(0.6,))
MECHANICS = dict(grad_clip_value=0.1, accumulate=2, average_decay=0.9, precision='fp16')
needs_compiler = pytest.mark.skipif(bool(missing_compiler(CPU)), reason='there is no C++ compiler')


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith('zoo')]


class Side:
    """A model of a problem, its optimisers, and the executor that trains it."""

    def __init__(self, problem: Problem, make: Callable[[Any, Any], Eager]) -> None:
        self.problem, self.model = problem, copy.deepcopy(problem.model)
        self.optimizers = problem.optimizers(self.model)
        self.executor = make(self.model, problem.dist)

    def run(self, numbers: Any = None, order: Tensor | None = None, columns: Any = None) -> dict[str, Tensor]:
        """Passes over the problem's rows; returns the metrics and all buffers of the optimisers."""
        case = self.problem.case
        order = self.problem.order if order is None else order
        data = StepPlan(columns or self.problem.columns, order, case.batch_size, CPU, case.normalize_adv)
        found = self.executor.run(self.problem.step, self.optimizers, data, *(numbers or case.numbers))
        for i, optimizer in enumerate(self.optimizers):
            found = found | {f'{name} {i}': x.clone() for name, x in optimizer.buffers.items()}
        return found


def sides(case: Case, n_step: int = 8) -> tuple[Side, Side]:
    problem = Problem(case, n_step)
    return Side(problem, GraphExecutor), Side(problem, Eager)


def assert_equal_steps(graph: Side, eager: Side, **options: Any) -> None:
    torch.testing.assert_close(graph.run(**options), eager.run(**options), **CLOSE, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    'case',
    [
        Case('PPO', 'several choices', 'separate', numbers=PolicyNumbers()),
        Case('PPO', 'free std', 'one trunk', weighted=True, normalize_adv=True, numbers=ALL),
        Case('PPO', 'categorical', 'shared', n_row=50, numbers=PENALISED._replace(grad_clip=None)),
        Case('POLICY', 'state-dependent std', input='normalised', numbers=ALL),
        Case('POLICY', 'several choices', 'detach', input='index', numbers=PENALISED),
        Case('VALUE', 'free std', weighted=True, numbers=ValueNumbers(0.15, 0.5, VALUE_CLIP)),
        Case('VALUE', 'categorical', 'detach', input='normalised', numbers=ValueNumbers()),
        Case('AUX', 'state-dependent std', weighted=True, numbers=ValueNumbers(bc_weight=1.5, grad_clip=0.05)),
        Case('AUX', 'several choices', 'shared', activation='relu', numbers=ValueNumbers()),
        Case('PPO', 'categorical', numbers=PolicyNumbers(forward=ForwardInPrecision('bf16', forward_rows))),
    ],
    ids=lambda case: f'{case.kind} {case.arch}',
)
def test_steps_are_those_of_the_eager_executor(
    case: Case, graphs: list[torch.fx.GraphModule], caplog: pytest.LogCaptureFixture
) -> None:
    graph, eager = sides(case, 6)
    assert_equal_steps(graph, eager)
    assert len(graphs) == 1 + (case.n_row == 50) and not messages(caplog)  # 50 rows leave a minibatch of 2
    values = [node.meta.get('val') for node in graphs[0].graph.nodes]
    is_half = any(getattr(x, 'dtype', None) == torch.bfloat16 for x in values)
    assert is_half == isinstance(case.numbers.forward, ForwardInPrecision)
    counts = [[optimizer.count_skipped(99) for optimizer in side.optimizers] for side in (graph, eager)]
    assert counts[0] == counts[1] == [0] * len(graph.optimizers)


def scheduled(n: int) -> PolicyNumbers:
    return PolicyNumbers(0.2 / n, 0.01 / n, 3.0, 0.5 / n, True, 0.5, terms=(KL,), term_weights=(0.1 * n,))


def penalised(weights: tuple[float, float]) -> PolicyNumbers:
    return PolicyNumbers(terms=(KL, KL), term_weights=weights)


SEQUENCES: dict[str, tuple[list[PolicyNumbers], int]] = {
    'schedules are inputs': ([scheduled(n) for n in range(1, 4)], 1),
    'a weight reaches 0': ([PolicyNumbers(value_weight=x) for x in (0.5, 0.25, 0.0, 0.0)], 2),
    'one of two reaches 0': ([penalised(x) for x in ((0.5, 0.1), (0.4, 0.3), (0.4, 0.0))], 2),
    'parts': ([PolicyNumbers(surrogate=x) for x in (CLIP, UNCLIPPED, CLIP)], 2),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', SEQUENCES)
def test_number_that_moves_is_an_input_and_one_that_reaches_0_or_a_part_is_another_program(
    name: str, graphs: list[torch.fx.GraphModule]
) -> None:
    graph, eager = sides(Case('PPO'), 4)
    numbers, n_program = SEQUENCES[name]
    for n, each in enumerate(numbers, 1):
        for side in (graph, eager):
            side.optimizers[0].lr = 0.01 / n
        if each.value_weight == 0:  # 0 times an infinite loss would be NaN
            graph.problem.columns['return_'][0] = torch.inf
        assert_equal_steps(graph, eager, numbers=each)
    assert len(graphs) == n_program and graph.optimizers[0].count_skipped(99) == 0


def sides_with(spec: Any, case: Case | None = None, n_step: int = 8, **options: Any) -> tuple[Side, Side]:
    """Like `sides`, but with optimisers of the given spec, configured with these options."""
    problem = Problem(case or Case('PPO', numbers=PolicyNumbers()), n_step)
    plain = problem.optimizers

    def optimizers(model: Any, kind: Any = FlatAdam) -> list[Any]:
        found: list[Any] = plain(model, make_component(OPTIMIZER_REGISTRY, spec))
        for each in found:
            each.lr = 1e-3
            each.configure(**options)
        return found

    problem.optimizers = optimizers  # type: ignore[method-assign]
    return Side(problem, GraphExecutor), Side(problem, Eager)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('spec', 'options'),
    [
        ('adam', MECHANICS),
        ('adamw', {}),
        ({'type': 'rmsprop', 'momentum': 0.5, 'eps': 0.1}, MECHANICS),
        ({'type': 'sgd', 'momentum': 0.9, 'nesterov': True}, {}),
        ('muon', MECHANICS),
    ],
    ids=str,
)
def test_steps_of_every_optimizer_are_those_of_the_eager_executor(
    spec: Any, options: dict[str, Any], graphs: list[torch.fx.GraphModule], caplog: pytest.LogCaptureFixture
) -> None:
    """With accumulation two programs: one adds a gradient, the other takes the step. The last of 7 steps moves parameters too."""
    graph, eager = sides_with(spec, Case('PPO', n_row=112, numbers=PolicyNumbers()), 7, **options)
    for _ in range(2):
        assert_equal_steps(graph, eager)
    n_step = 8 if options else 14
    assert len(graphs) == (2 if options else 1) and not messages(caplog)
    assert [o.step_count for o in graph.optimizers] == [o.step_count for o in eager.optimizers] == [n_step]
    if options:
        for a, b in zip(graph.optimizers[0].averaged.values(), eager.optimizers[0].averaged.values(), strict=True):
            torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('make', [Eager, GraphExecutor])
def test_accumulated_gradients_of_a_pass_with_a_smaller_minibatch_are_that_of_all_rows(
    make: Any, graphs: list[torch.fx.GraphModule]
) -> None:
    """16, 16, 16 and 8 rows whose mean gradient makes one step equal one minibatch of 56."""
    four, _ = sides_with({'type': 'sgd'}, Case('PPO', n_row=56, numbers=PolicyNumbers(grad_clip=None)), 7, accumulate=4)
    one, _ = sides_with({'type': 'sgd'}, Case('PPO', n_row=56, numbers=PolicyNumbers(grad_clip=None)), 7)
    columns, order = four.problem.columns, torch.arange(56)[None]
    for side, batch_size in ((four, 16), (one, 56)):
        side.executor = make(side.model, side.problem.dist)
        side.executor.run(
            ppo_step, side.optimizers, StepPlan(columns, order, batch_size, CPU), *PolicyNumbers(grad_clip=None)
        )
    assert four.optimizers[0].step_count == one.optimizers[0].step_count == 1
    torch.testing.assert_close(four.optimizers[0].param, one.optimizers[0].param, **CLOSE)
    assert bool(graphs) is (make is GraphExecutor)


@pytest.mark.soak
@needs_compiler
def test_compiled_steps_of_an_optimizer_equal_eager_ones(caplog: pytest.LogCaptureFixture) -> None:
    """Compiles through torch's inductor."""
    graph, eager = sides_with('muon', Case('PPO', n_row=112, numbers=PolicyNumbers()), 7, **MECHANICS)
    assert_equal_steps(graph, eager)
    assert not messages(caplog)


@pytest.mark.slow
def test_overflow_of_the_loss_scale_leaves_parameters_bit_equal(graphs: list[torch.fx.GraphModule]) -> None:
    graph, eager = sides_with('adam', precision='fp16')
    for side in (graph, eager):
        side.optimizers[0].loss_scale.fill_(2.0**127)  # type: ignore[union-attr]
    before, one = graph.optimizers[0].param.clone(), torch.arange(16)[None]
    for side in (graph, eager):
        side.problem.columns['return_'].fill_(100.0)
        side.run(order=one)
    assert torch.equal(graph.optimizers[0].param, before)
    assert graph.optimizers[0].loss_scale == eager.optimizers[0].loss_scale == 2.0**126
    assert graph.optimizers[0].count_skipped(9) == 1 and graph.optimizers[0].step_count == 0


@pytest.mark.slow
def test_program_writes_nothing_before_all_gradients_are_there(graphs: list[torch.fx.GraphModule]) -> None:
    """A step that fails halfway has then changed nothing, also with two optimisers."""
    sides(Case('AUX', numbers=ValueNumbers()))[0].run()
    nodes = list(graphs[0].graph.nodes)
    inputs = [node for node in nodes if node.op == 'placeholder']
    writes = [node for node in nodes if node.target is torch.ops.aten.copy_.default and node.args[0] in inputs]
    norms = [node for node in nodes if node.target is torch.ops.aten.linalg_vector_norm.default][:2]
    assert len(writes) == 10 and len(norms) == 2

    def needs(node: Any) -> set[Any]:
        seen, todo = set(), [node]
        while todo:
            for x in todo.pop().all_input_nodes:
                if x not in seen:
                    seen.add(x)
                    todo.append(x)
        return seen

    assert all(set(norms) <= needs(write) for write in writes)


@pytest.mark.slow
@pytest.mark.parametrize('change', ['in place', 'another tensor'])
def test_buffers_of_the_model_are_read_again_at_each_pass(change: str, graphs: list[torch.fx.GraphModule]) -> None:
    """They hold observation statistics; a graph with the buffers built in as constants would never see them change."""
    graph, eager = sides(Case('PPO', input='normalised', numbers=PolicyNumbers()))
    for n in range(3):
        for model in (graph.model, eager.model):
            if change == 'in place':
                model.update_normalizer(graph.problem.columns['obs'] * 3**n + n)
            else:
                model.input.mean = model.input.mean + n
        assert_equal_steps(graph, eager)
    assert len(graphs) == 1


@pytest.mark.slow
def test_graph_is_of_the_reference_where_eager_steps_run_kernels(
    graphs: list[torch.fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the eager steps run kernels; while tracing, kernels would read data of tensors that have none."""
    graph, eager = sides(Case('PPO', numbers=ALL), n_step=1)
    monkeypatch.setattr(kernels, 'MODE', 'interpret')
    monkeypatch.setattr(kernels, 'ENABLED', True)
    found = graph.run()
    monkeypatch.setattr(kernels, 'MODE', '0')
    monkeypatch.setattr(kernels, 'ENABLED', False)
    torch.testing.assert_close(found, eager.run(), **CLOSE)
    assert len(graphs) == 1


def failing(at: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes programs fail when they are compiled (at 0) or at their n-th run (at n); returns a list with an entry per run."""
    calls: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        if at == 0:
            raise NotImplementedError('no such operation\nand more')

        def run(*values: Tensor) -> Any:
            calls.append(1)
            if len(calls) == at:
                raise MemoryError('out of memory\nwith details')
            return graph(*values)

        return run

    monkeypatch.setattr(module, 'inductor', backend)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize(('at', 'accumulate'), [(0, 1), (1, 1), (3, 1), (3, 4)])
def test_step_that_fails_is_taken_eagerly_and_none_is_lost(
    at: int, accumulate: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With accumulation the eager step continues from the gradients that the program has added up."""
    calls = failing(at, monkeypatch)
    graph, eager = sides_with('adam', n_step=4, accumulate=accumulate)
    for _ in range(2):
        assert_equal_steps(graph, eager)
    assert len(calls) == at and not graph.executor.is_compiled  # type: ignore[attr-defined]
    assert graph.optimizers[0].step_count == 8 / accumulate and graph.optimizers[0].count_skipped(99) == 0
    why = 'MemoryError: out of memory' if at else 'NotImplementedError: no such operation'
    assert messages(caplog) == [f'ppo_step could not be compiled and runs uncompiled from now on: {why}']


class Odd(nn.Module):
    """An actor-critic over observations [N, 3] that contains a user's own operation."""

    def __init__(self, odd: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self._odd = nn.Linear(3, 3), odd

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        out = self._odd(self.layer(obs))
        return {'logit': out[:, :2], 'value': out[:, 2]}


class Parts(Odd):
    """An `Odd` whose observations are a dict of two tensors."""

    def compute_actor_critic(self, obs: Any) -> dict[str, Tensor]:
        return super().compute_actor_critic(obs['camera'] + obs['body']['arm'])


class Tied(nn.Module):
    """An actor-critic whose actor and critic share one bias, and whose critic is registered under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(3, 2), nn.Linear(3, 2)
        self.critic.bias = self.actor.bias
        self.again = self.critic

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        return {'logit': self.actor(obs), 'value': self.again(obs).sum(-1)}


def rows(n: int = 16) -> dict[str, Tensor]:
    """Columns for a model over observations [n, 3] with two actions."""
    generator = torch.Generator().manual_seed(1)
    shapes = {'obs': (n, 3), 'logit': (n, 2), 'value': (n,), 'adv': (n,), 'return_': (n,)}
    found = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return found | {'action': torch.randint(2, (n,), generator=generator)}


def train(
    make: Callable[[Any, Any], Eager], model: nn.Module, step: Any = ppo_step, columns: Any = None
) -> tuple[Eager, Tensor]:
    """Makes three passes over `rows` with a copy of the model."""
    model = copy.deepcopy(model)
    executor, optimizer = make(model, DIST), FlatAdam(model.named_parameters(), lr=3e-3)
    for _ in range(3):
        executor.run(step, [optimizer], StepPlan(columns or rows(), torch.arange(16)[None], 8, CPU), *PolicyNumbers())
    return executor, optimizer.param


@pytest.mark.slow
def test_parameters_in_two_places_are_one_and_columns_may_be_nested(
    graphs: list[torch.fx.GraphModule], caplog: pytest.LogCaptureFixture
) -> None:
    nested = {**rows(), 'obs': {'camera': rows()['obs'], 'body': {'arm': rows()['obs'] * 2}}}
    for model, columns in ((Tied(), rows()), (Parts(nn.Identity()), nested)):
        found, want = (train(make, model, columns=columns)[1] for make in (GraphExecutor, Eager))
        torch.testing.assert_close(found, want, **CLOSE)
    assert len(graphs) == 2 and not messages(caplog)


SHIFT = torch.ones(3)  # neither a parameter nor a buffer: a graph would never see it change
ODD = {
    'random numbers are drawn': nn.Dropout(0.5),
    'data-dependent': lambda x: x if x.mean() > 0 else -x,
    'FakeTensor': lambda x: x + SHIFT,
}


@pytest.mark.slow
@pytest.mark.parametrize('why', ODD)
def test_model_that_cannot_be_compiled_is_trained_eagerly(
    why: str, graphs: list[torch.fx.GraphModule], caplog: pytest.LogCaptureFixture
) -> None:
    model = Odd(ODD[why])
    found = []
    for make in (GraphExecutor, Eager):
        torch.manual_seed(0)
        found.append(train(make, model))
    assert torch.equal(found[0][1], found[1][1])  # both used the same random numbers
    assert len(messages(caplog)) == 1 and why in messages(caplog)[0]
    assert found[0][0].start_acting(torch.zeros(3, 2, 3), lambda n: torch.zeros(2, n, 2), False) is None


def test_error_of_the_step_itself_is_that_of_the_eager_step(graphs: list[torch.fx.GraphModule]) -> None:
    graph, _ = sides(Case('PPO', numbers=PolicyNumbers()))
    columns = {**graph.problem.columns, 'adv': graph.problem.columns['adv'][:, None]}
    with pytest.raises(ValueError, match=r'adv has shape \(16, 1\)'):
        graph.run(columns=columns)


def q_step(
    model: Any, dist: Any, optimizers: Any, minibatch: Any, loss: LossSpec, numbers: StepNumbers
) -> dict[str, Tensor]:
    """Q-learning step; value_weight is gamma. The critic is the target network, which no optimiser moves; the metrics have their own names."""
    with torch.no_grad():
        after = model.compute_critic(minibatch['next_obs'])
        after = after.max(-1).values if loss.measure_kl else after.mean(-1)
    error = model.compute_actor(minibatch['obs'])[:, 0] - minibatch['reward'] - numbers.value_weight * after
    loss = error.square().mean()
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    return {'td_error': error.detach().abs().mean(), 'norm': optimizers[0].step()}


class Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(3, 2), nn.Linear(3, 2)

    def compute_actor(self, obs: Tensor) -> Tensor:
        return self.online(obs)

    def compute_critic(self, obs: Tensor) -> Tensor:
        return self.target(obs)


def test_step_and_numbers_of_a_users_own_are_compiled(graphs: list[torch.fx.GraphModule]) -> None:
    columns, start, found = rows(), Twins(), []
    columns = {'obs': columns['obs'], 'next_obs': columns['obs'] + 1, 'reward': columns['adv']}
    for make in (GraphExecutor, Eager):
        model = copy.deepcopy(start)
        executor, optimizer = make(model, DIST), FlatAdam(model.online.named_parameters('online'))
        steps = []
        for n in range(4):
            data = StepPlan(columns, torch.arange(16)[None], 8, CPU)
            steps.append(
                executor.run(
                    q_step, [optimizer], data, LossSpec(measure_kl=n < 3), StepNumbers(value_weight=0.9 + n / 100)
                )
            )
            with torch.no_grad():  # the target network follows
                model.target.weight.copy_(model.online.weight)
        found.append((steps, optimizer.param))
    torch.testing.assert_close(found[0], found[1], **CLOSE)
    assert len(graphs) == 2  # with and without measure_kl


@pytest.mark.slow
def test_step_that_moves_parameters_twice_runs_eagerly(
    graphs: list[torch.fx.GraphModule], caplog: pytest.LogCaptureFixture
) -> None:
    """In one program the second gradient would be that of the parameters before the first move."""

    def twice(*args: Any) -> dict[str, Tensor]:
        return [ppo_step(*args) for _ in range(2)][1]

    model = Odd(nn.Identity())
    found, want = (train(make, model, twice)[1] for make in (GraphExecutor, Eager))
    assert torch.equal(found, want) and 'moves the same parameters twice' in messages(caplog)[0]


@needs_compiler
@pytest.mark.long
def test_compiled_acting_and_updates_equal_eager_ones(caplog: pytest.LogCaptureFixture) -> None:
    """Uses torch's inductor, two optimisers, weights and a Gaussian; a second graph executor ends bit-equal."""
    graph, eager = sides(Case('AUX', 'free std', weighted=True, numbers=ValueNumbers(bc_weight=1.5, grad_clip=0.5)))
    again = Side(graph.problem, GraphExecutor)
    found = graph.run()
    torch.testing.assert_close(found, eager.run(), **CLOSE)
    for name, x in again.run().items():
        assert torch.equal(x, found[name]), name
    assert_equal_acting(graph.problem)
    assert not messages(caplog)


N_STEP = 4


def acting_pair(problem: Problem, obs: Tensor, explore: Any = None) -> tuple[GraphActing, Acting]:
    """Returns compiled and eager acting of one model, which draw the same noise."""
    model, dist, one_trunk = problem.model, problem.dist, problem.model.one_trunk
    device = next(model.parameters()).device
    generators = [torch.Generator(device).manual_seed(5) for _ in range(2)]

    def draw(i: int, n_env: int) -> Tensor:
        return dist.noise((N_STEP, n_env), generators[i], device)

    noise: list[Tensor] = []

    def forward(x: Tensor, state: Any) -> dict[str, Any]:
        if not noise:
            noise.extend(draw(1, len(x)))
        found = forward_for_acting(model, x.to(noise[0].device), one_trunk)
        found = {name: found[name] for name in ('logit', 'value') if name in found}
        if explore is not None:
            found['logit'] = explore(dist, found['logit'])
        return {'action': dist.sample(found['logit'], noise.pop(0)), **found}

    return GraphActing(model, dist, obs, lambda n: draw(0, n), one_trunk, explore), ForwardActing(forward, obs)


@torch.no_grad()
def act(acting: Acting) -> None:
    acting.begin()
    for t in range(N_STEP):
        assert torch.equal(acting.step(t), acting.output['action'][t])


def assert_equal_acting(problem: Problem, explore: Any = None) -> None:
    obs = torch.randn(N_STEP + 1, 6, 5, generator=torch.Generator().manual_seed(7))
    compiled, eager = acting_pair(problem, obs, explore)
    for _ in range(3):
        act(compiled), act(eager)
        assert compiled.output.keys() == eager.output.keys()
        assert ('value' in eager.output) == problem.model.one_trunk
        torch.testing.assert_close(compiled.output, eager.output, rtol=1e-6, atol=1e-6)
        with torch.no_grad():  # moves the model, as an update does
            for p in problem.model.parameters():
                p.add_(0.01)
        problem.model.update_normalizer(obs.flatten(0, 1) * 3 + 1)
    assert not compiled.compiled.failed


@pytest.mark.parametrize(
    ('arch', 'dist', 'explore'),
    [
        ('separate', 'several choices', None),
        ('one trunk', 'free std', None),
        ('separate', 'state-dependent std', None),
        ('one trunk', 'categorical', {'type': 'temperature', 'temperature': 0.3}),
        ('one trunk', 'categorical', {'type': 'epsilon', 'epsilon': 0.3}),
    ],
)
def test_compiled_acting_equals_eager_acting(
    arch: str, dist: str, explore: Any, graphs: list[torch.fx.GraphModule]
) -> None:
    exploration = None if explore is None else make_component(EXPLORATION_REGISTRY, explore)
    assert_equal_acting(Problem(Case('PPO', dist, arch, input='normalised')), exploration)
    assert len(graphs) == 1


@pytest.mark.slow
@pytest.mark.parametrize('change', ['new buffer', 'new storage', 'another dtype'])
def test_compiled_acting_follows_a_model_whose_tensors_are_replaced(
    change: str, graphs: list[torch.fx.GraphModule]
) -> None:
    problem = Problem(Case('PPO', input='normalised'))
    model, obs = problem.model, torch.randn(N_STEP + 1, 6, 5)
    compiled, eager = acting_pair(problem, obs)
    for _ in range(2):
        act(compiled), act(eager)
        torch.testing.assert_close(compiled.output, eager.output)
        if change == 'new buffer':
            model.input.register_buffer('extra', torch.ones(1))
        elif change == 'new storage':
            for p in model.parameters():
                p.data = p.data * 2
        else:
            model.input.mean = model.input.mean.double() + 1
    assert not compiled.compiled.failed


def test_compiled_acting_that_fails_halfway_continues_eagerly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = failing(3, monkeypatch)
    compiled, eager = acting_pair(Problem(Case('PPO')), torch.randn(N_STEP + 1, 6, 5))
    for _ in range(2):
        act(compiled), act(eager)
        torch.testing.assert_close(compiled.output, eager.output)
    assert len(calls) == 3  # acting does not call the program again after the failure
    said = 'acting could not be compiled and runs uncompiled from now on: MemoryError: out of memory'
    assert messages(caplog) == [said]


@needs_gpu
@pytest.mark.parametrize('pinned', [True, False], ids=['obs of the host', 'obs of the device'])
@torch.no_grad()
def test_captured_acting_equals_eager_acting_and_waits_for_nothing(
    pinned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    problem = Problem(Case('PPO', 'free std'))
    problem.model.cuda()
    obs = torch.randn(N_STEP + 1, 6, 5)
    obs = obs.pin_memory() if pinned else obs.cuda()
    compiled, eager = acting_pair(problem, obs)
    for i in range(3):
        with no_waiting() if i == 2 else nullcontext():  # the first two calls compile and capture
            compiled.begin()
            for t in range(N_STEP):
                compiled.step(t)
        act(eager)
        torch.testing.assert_close(compiled.output, eager.output, rtol=1e-4, atol=1e-5)
        torch.cuda.synchronize()
        obs.normal_()
    assert not messages(caplog)


@needs_gpu
@pytest.mark.parametrize('kind', ['PPO', 'AUX'])
def test_captured_updates_equal_eager_ones(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Learning rate and statistics change between passes; the first step warms up, the second is captured."""
    numbers = {'PPO': PolicyNumbers(entropy_weight=0.01), 'AUX': ValueNumbers(bc_weight=1.5)}[kind]
    problem = Problem(Case(kind, 'free std', input='normalised', numbers=numbers))
    problem.model.cuda()
    problem.columns = {name: x.cuda() for name, x in problem.columns.items()}
    problem.order = problem.order.cuda()
    graph, eager = Side(problem, GraphExecutor), Side(problem, Eager)
    for n in range(1, 4):
        for side in (graph, eager):
            side.optimizers[0].lr = 0.01 / n
            side.model.update_normalizer(problem.columns['obs'] * n)
        torch.testing.assert_close(graph.run(), eager.run(), rtol=1e-3, atol=1e-4)
    assert not messages(caplog)


@pytest.mark.long
def test_sequences_of_a_recurrent_model_are_the_eager_ones(graphs: list[torch.fx.GraphModule]) -> None:
    """Dict observations with a mask, burn-in, episodes that begin inside a sequence. For other cells: test_sequences."""
    space = Dict({'obs': Box(np.full(3, -1.0), np.ones(3)), 'action_mask': MultiBinary((2,))})
    cfg = resolve_policy(dict(type='ppo', model=dict(recurrent=dict(cell='lstm', hidden_size=8)))).model
    torch.manual_seed(0)
    model: Any = VAC(cfg, space, Discrete(2))
    n, length, burn_in = 8, 3, 1
    mask = torch.rand(n, length + burn_in, 2) < 0.7
    mask[..., 0] |= ~mask.any(-1)
    action = mask[:, burn_in:].long().argmax(-1)  # an action that the mask allows
    logit = torch.randn(n, length, 2).masked_fill(~mask[:, burn_in:], -torch.inf)
    columns = {
        'obs': {'obs': torch.randn(n, length + burn_in, 3), 'action_mask': mask},
        'is_first': torch.rand(n, length + burn_in) < 0.2,
        'is_burned': torch.arange(n) >= 4,
        'state': map_tensors(torch.randn_like, model.initial_state(n)),
        **{name: torch.randn(n, length) for name in ('value', 'adv', 'return_')},
        **{'logit': logit, 'action': action},
    }
    numbers = PolicyNumbers(forward=forward_sequences)
    found = []
    for make in (GraphExecutor, Eager):
        copied = copy.deepcopy(model)
        executor, optimizer = make(copied, copied.dist), FlatAdam(copied.named_parameters(), lr=3e-3)
        for _ in range(3):
            executor.run(ppo_step, [optimizer], StepPlan(columns, torch.arange(n)[None], 4, CPU), *numbers)
        found.append(optimizer.param)
    assert len(graphs) == 1 and not torch.equal(found[0], torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*found, **CLOSE)
