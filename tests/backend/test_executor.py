"""Every executor against the eager one in float64: steps, skipped steps, dropped terms, acting, and the fallback."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor

from tests.backend.problems import (
    CLIP,
    CPU,
    DISTS,
    HUBER,
    INPUTS,
    KL,
    NVEC,
    OWN_CRITIC,
    SPO,
    SURROGATES,
    UNCLIPPED,
    VALUE_CLIP,
    VALUE_LOSSES,
    VIEWS,
    Case,
    OwnAdam,
    Problem,
    Result,
    assert_equal_parameters,
    with_optimizers,
)
from tests.model.pictures import cnn, images, pixels
from tests.step_parts import PolicyNumbers, ValueNumbers
from zoo.backend.executor import Eager, ForwardActing, StepPlan, acting_by, forward_for_acting, minibatches
from zoo.backend.graph import GraphExecutor
from zoo.backend.native import NativeExecutor
from zoo.core.data import first_leaf, leaves, map_tensors
from zoo.core.errors import UserError
from zoo.model.images import has_bf16
from zoo.rl_utils.optimizer import FlatAdam

pytestmark = pytest.mark.usefixtures('native')
EXECUTORS: dict[str, Any] = {
    'eager': Eager,
    'native': NativeExecutor,
    'graph': GraphExecutor,  # runs its programs as traced; 'compiled' runs them through torch's inductor
    'compiled': GraphExecutor,
}
GRAPH = pytest.param('graph', marks=pytest.mark.slow)  # the first trace of a process loads a compiler: two seconds


@pytest.fixture(autouse=True)
def nothing_falls_back(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails if a warning was logged: steps that cannot be traced or compiled run eagerly after one."""
    executor = getattr(request.node, 'callspec', None) and request.node.callspec.params.get('executor')
    if executor == 'graph':
        request.getfixturevalue('graphs')
    yield
    if executor in ('graph', 'compiled'):
        assert not [each for each in caplog.get_records('call') if each.levelname == 'WARNING']


def assert_near(found: Tensor, want: Tensor, name: str, bound: float = 1e-5) -> None:
    """Compares the norm of the error with that of the wanted value; a wanted 0 allows a tenth of the bound."""
    error, size = (found.double() - want.double()).norm().item(), want.double().norm().item()
    assert error <= bound * (size + 0.1), f'{name}: {error} of {size}'


def assert_same_end(found: Result, want: Result) -> None:
    for name, p in want.parameters.items():
        assert_near(found.parameters[name], p, name)
    assert found.metrics.keys() == want.metrics.keys()
    for name, x in want.metrics.items():
        if name == 'clipfrac':  # a ratio may lie exactly at the bound
            assert ((found.metrics[name] - x).abs() > 1e-5).sum() <= 1
        else:
            assert_near(found.metrics[name], x, name, 1e-3)


# --- steps


@st.composite
def cases(draw: Any, kind: str, dist: str) -> Case:
    stage = draw(st.sampled_from([*INPUTS, *VIEWS]))
    archs = ('dual', 'detach', 'shared') if kind == 'AUX' else tuple(OWN_CRITIC)
    if stage in VIEWS:
        archs = ('dual',) if kind == 'AUX' else ('dual', 'separate')
    batch_size = draw(st.integers(4, 40))
    term_weights = draw(st.sampled_from([(), (), (0.0,), (0.1,), (0.7,)]))
    policy = PolicyNumbers(
        draw(st.sampled_from([0.05, 0.2, 0.5])),
        draw(st.sampled_from([0.0, 0.01])),
        draw(st.sampled_from([None, 1.5, 3.0])),
        draw(st.sampled_from([None, 0.5, 0.01])),
        draw(st.booleans()),
        draw(st.sampled_from([0.0, 0.5, 1.0])),
        draw(st.sampled_from(SURROGATES)),
        draw(st.sampled_from(VALUE_LOSSES)),
        (KL,) * len(term_weights),
        term_weights,
    )
    value = ValueNumbers(policy.clip_ratio, policy.grad_clip, policy.value_loss)
    aux = ValueNumbers(bc_weight=draw(st.sampled_from([0.0, 1.0, 2.5])), grad_clip=policy.grad_clip)
    return Case(
        kind,
        dist,
        draw(st.sampled_from(archs)),
        draw(st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)),
        draw(st.sampled_from(['tanh', 'relu'])),
        stage,
        dist in NVEC and draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([(-10.0, 2.0), (-0.55, -0.45)])),
        draw(st.integers(8, 5 * batch_size)),
        batch_size,
        draw(st.booleans()),
        kind in ('PPO', 'POLICY') and draw(st.booleans()),
        {'VALUE': value, 'AUX': aux}.get(kind, policy),
        draw(st.integers(0, 1000)),
    )


def sweep(n: int) -> Any:
    return settings(
        max_examples=n, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )


kinds = pytest.mark.parametrize('kind', ['PPO', 'POLICY', 'VALUE', 'AUX'])
dists = pytest.mark.parametrize('dist', DISTS)


@pytest.mark.slow
@kinds
@dists
@given(data=st.data())
@sweep(5)
def test_native_ends_where_eager_in_float64_does(kind: str, dist: str, data: Any) -> None:
    problem = Problem(data.draw(cases(kind, dist)), n_step=12)
    assert_same_end(problem.run(NativeExecutor), problem.run(Eager, torch.float64))


@pytest.mark.slow
def test_native_has_the_gradient_of_eager_with_every_component() -> None:
    """Takes one step, some rows without weight. The gradient is read from Adam's moments after the step."""
    for i, (surrogate, value_loss) in enumerate(itertools.product(SURROGATES, VALUE_LOSSES)):
        weights = (0.7,) * (i % 2)
        parts: Any = dict(surrogate=surrogate, value_loss=value_loss, terms=(KL,) * len(weights))
        numbers = PolicyNumbers(0.2, 0.01, 1.5 if i % 3 else None, term_weights=weights, **parts)
        case = Case('PPO', DISTS[(i + i // 4) % 4], weighted=True, batch_size=64, numbers=numbers, seed=i)
        problem = Problem(case, n_step=1)
        found, want = problem.run(NativeExecutor), problem.run(Eager, torch.float64)
        assert_near(found.optimizers[0].exp_avg, want.optimizers[0].exp_avg, f'{numbers}', 3e-5)
        for name, x in want.metrics.items():
            assert_near(found.metrics[name], x, f'{name} of {numbers}', 3e-5)


@pytest.mark.slow
def test_native_numbers_that_move_from_pass_to_pass_are_those_of_each_pass() -> None:
    """Such numbers come from schedules and adaptive penalties. For graphs see test_graph."""
    parts = SPO, VALUE_CLIP, (KL,)
    numbers = [
        PolicyNumbers(0.3 - 0.1 * i, 0.01 * i, 3.5 - i, 0.5 + i, False, 0.5 + i, *parts, (0.1 * (1 + i),))
        for i in range(3)
    ]
    problem = Problem(Case('PPO', weighted=True, numbers=numbers), n_step=8)
    want = problem.run(Eager, torch.float64)
    assert_same_end(problem.run(NativeExecutor), want)
    still = Problem(Case('PPO', weighted=True, numbers=[numbers[0]] * 3), n_step=8).run(Eager, torch.float64)
    for name in ('policy_head.weight', 'value_head.layer.weight'):  # the changes must matter for the result
        assert (still.parameters[name] - want.parameters[name]).norm() > 1e-3


OF_CHOICES = PolicyNumbers(0.2, 0.01, 3.0, 0.5, True, 0.5, CLIP, VALUE_CLIP, (KL,), (0.1,))
OF_REALS = PolicyNumbers(surrogate=UNCLIPPED, value_loss=HUBER, terms=(KL,), term_weights=(0.7,))


@pytest.mark.soak
@pytest.mark.parametrize(
    'case',
    [
        Case('PPO', 'several choices', masked=True, critic_rate=True, normalize_adv=True, numbers=OF_CHOICES),
        Case('PPO', 'free std', 'shared', (13, 7), 'relu', 'index', n_row=50, numbers=OF_REALS),
        Case(
            'AUX',
            'state-dependent std',
            'shared',
            input='normalised',
            weighted=True,
            numbers=ValueNumbers(bc_weight=0.0, grad_clip=0.5),
        ),
    ],
    ids=lambda case: f'{case.kind} {case.dist}',
)
@pytest.mark.parametrize('executor', ['compiled'])
def test_compiled_steps_end_where_eager_in_float64_does(case: Case, executor: str) -> None:
    problem = Problem(case, n_step=20)
    assert_same_end(problem.run(EXECUTORS[executor]), problem.run(Eager, torch.float64))


@pytest.mark.slow
@kinds
@dists
@given(data=st.data())
@sweep(4)
def test_native_skips_what_eager_skips_at_nan_and_infinity(kind: str, dist: str, data: Any) -> None:
    problem = Problem(data.draw(cases(kind, dist)), n_step=6)
    names = ('obs', 'action', 'logit', 'value', 'adv', 'return_')
    floats = [x for name in names for _, x in leaves(problem.columns[name]) if x.is_floating_point()]
    column = data.draw(st.sampled_from(floats))
    row, place = data.draw(st.integers(0, len(column) - 1)), data.draw(st.integers(0, 3))
    if 'weight' in problem.columns:  # numbers in a row without weight have to be finite, so give this row a weight
        problem.columns['weight'][row] = 1.4
    numbers = column.view(len(column), -1)
    numbers[row, place % numbers.shape[1]] = data.draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
    found, want = problem.run(NativeExecutor), problem.run(Eager)
    a, b = found.tensors(), want.tensors()
    for name in b.keys() - want.metrics.keys():
        if not name.startswith('grad '):  # the gradient of a skipped step is never used, so it is not compared
            assert torch.equal(a[name].isfinite(), b[name].isfinite()), name
            assert_near(a[name].where(b[name].isfinite(), 0.0), b[name].where(b[name].isfinite(), 0.0), name, 1e-3)
    assert all(torch.equal(a[name], x) for name, x in b.items() if name.startswith('step_count'))
    (norm,) = (x for name, x in want.metrics.items() if name.endswith('grad_norm'))
    for name, x in want.metrics.items():
        taken = norm.isfinite() & (norm < 1e30)  # a sum near the largest float32 may overflow in one order only
        assert torch.equal(found.metrics[name][taken].isfinite(), x[taken].isfinite()), name
        if name != 'clipfrac':
            taken &= x.isfinite()
            assert_near(found.metrics[name][taken], x[taken], name, 1e-3)


@pytest.mark.parametrize('executor', ['eager', 'native', GRAPH, pytest.param('compiled', marks=pytest.mark.soak)])
def test_step_that_is_not_finite_changes_nothing_and_its_norm_says_so(executor: str) -> None:
    """The second of four steps is not finite; the moments and the step count are those of the other three."""
    problem = Problem(Case('PPO', numbers=PolicyNumbers()), n_step=4)
    bad = problem.order[0, 16:32]
    problem.columns['adv'][bad[3]] = torch.nan
    found = problem.run(EXECUTORS[executor])
    assert found.metrics['grad_norm'].isfinite().tolist() == [True, False, True, True]
    (optimizer,) = found.optimizers
    assert optimizer.step_count == 3 and optimizer.count_skipped(10) == 1
    problem.order = torch.cat((problem.order[:, :16], problem.order[:, 32:]), 1)  # without that step
    want = problem.run(EXECUTORS[executor])
    for name, x in want.parameters.items():
        torch.testing.assert_close(found.parameters[name], x, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(optimizer.exp_avg, want.optimizers[0].exp_avg, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('executor', ['eager', 'native', GRAPH])
@pytest.mark.parametrize(('arch', 'value'), [('dual', torch.inf), ('shared', torch.nan)])
def test_in_the_auxiliary_phase_each_network_skips_for_itself(executor: str, arch: str, value: float) -> None:
    """The critic's gradient is not finite; if the critic has its own optimiser, the actor still moves."""
    problem = Problem(Case('AUX', arch=arch, numbers=ValueNumbers()), n_step=1)
    problem.model.value_head.layer.bias.data.fill_(value)
    found = problem.run(EXECUTORS[executor])
    assert [optimizer.step_count.item() for optimizer in found.optimizers] == ([4, 0] if arch == 'dual' else [0])
    assert [optimizer.count_skipped(99) for optimizer in found.optimizers] == ([0, 4] if arch == 'dual' else [4])
    assert not found.metrics['aux_grad_norm'].isfinite().any() and not found.optimizers[-1].grad.isfinite().all()
    assert not found.optimizers[-1].exp_avg.any()
    before, moves = dict(problem.model.named_parameters()), arch == 'dual'
    for name, p in found.parameters.items():
        is_still = torch.equal(p.nan_to_num(), before[name].nan_to_num())
        assert is_still == (not moves or name.split('.')[0] in OWN_CRITIC['dual']), name


@pytest.mark.parametrize('executor', ['eager', 'native', GRAPH])
@pytest.mark.parametrize(
    ('kind', 'numbers', 'metric'),
    [
        ('PPO', PolicyNumbers(value_weight=0.0), 'value_loss'),
        ('AUX', ValueNumbers(bc_weight=0.0), 'behavioral_cloning_loss'),
        ('POLICY', PolicyNumbers(surrogate=UNCLIPPED, terms=(KL,), term_weights=(0.0,)), 'penalty_kl'),
    ],
)
def test_factor_of_exactly_zero_drops_an_infinite_term(executor: str, kind: str, numbers: Any, metric: str) -> None:
    problem = Problem(Case(kind, 'free std', numbers=numbers), n_step=4)
    if metric == 'value_loss':
        problem.columns['return_'][:] = torch.inf
    else:
        problem.columns['logit'][:, 2] = 1e20  # a standard deviation, whose square is infinite in float32
        problem.columns['adv'] *= 1e-20  # the ratio is about 1e20
    found = problem.run(EXECUTORS[executor])
    norm = found.metrics['aux_grad_norm' if kind == 'AUX' else 'grad_norm']
    assert norm.isfinite().all() and found.optimizers[0].step_count == 4
    assert found.metrics[metric].isinf().all()


@pytest.mark.slow
def test_metrics_of_many_minibatches_at_once_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are equal bit for bit: each row of a block is summed in the same order as a single row."""
    for weighted, entropy_weight in ((False, 0.0), (True, 0.01)):
        numbers, found = PolicyNumbers(entropy_weight=entropy_weight, measure_kl=True), []
        problem = Problem(Case('PPO', n_row=96, batch_size=8, weighted=weighted, numbers=numbers), n_step=36)
        for kept in (8, 40, 1 << 14):  # minibatches: 1, 5 (the last have fewer), all
            monkeypatch.setattr('zoo.backend.executor.KEPT_ROWS', kept)
            found.append(problem.run(Eager).metrics)
        assert {'entropy', 'approx_kl', 'clipfrac', 'kl', 'ratio_max'} <= set(found[0])
        for other in found[1:]:
            assert set(other) == set(found[0])
            assert all(torch.equal(x, other[name]) and x.shape == (36,) for name, x in found[0].items())


# --- acting and values


@pytest.mark.parametrize(
    ('dist', 'stage', 'arch', 'n_group'),
    [
        ('categorical', 'vector', 'separate', 1),
        ('several choices', 'normalised', 'one trunk', 2),
        ('free std', 'index', 'separate', 2),
        ('state-dependent std', 'matrix', 'one trunk', 1),
        ('categorical masked', 'normalised matrix', 'one trunk', 1),
        ('several choices masked', 'bits', 'separate', 2),
        ('categorical masked', 'index', 'separate', 1),
        ('state-dependent std', 'normalised', 'separate', 2),
        ('free std', 'normalised matrix', 'one trunk', 1),
        ('several choices masked', 'vector', 'one trunk', 2),
        ('free std', 'bits', 'one trunk', 1),
        ('categorical', 'matrix', 'separate', 2),
        ('categorical masked', 'normalised entries', 'one trunk', 2),
        ('free std', 'entries', 'separate', 1),
        ('categorical masked', 'central critic', 'separate', 2),
        ('several choices', 'normalised central critic', 'separate', 1),
    ],
)
def test_native_acts_as_eager_does(dist: str, stage: str, arch: str, n_group: int) -> None:
    """Runs two rollouts of six envs and moves the model between them; several groups share one block."""
    dist, masked = dist.removesuffix(' masked'), dist.endswith('masked')
    problem = Problem(Case('PPO', dist, arch, input=stage, masked=masked, n_row=7 * 6, numbers=PolicyNumbers()))
    model, one_trunk = problem.model, arch == 'one trunk'
    obs = map_tensors(lambda x: x.unflatten(0, (7, 6)), problem.columns['obs'])
    blocks = [map_tensors(lambda x: x.chunk(n_group, 1)[i], obs) for i in range(n_group)]  # noqa: B023

    def draw(seed: int) -> Callable[[int], Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return lambda n_env: problem.dist.noise((6, n_env), generator, CPU)

    def eager(block: Any, noise: Callable[[int], Tensor]) -> ForwardActing:
        left: list[Tensor] = []

        def forward(x: Tensor, state: Any) -> dict[str, Any]:
            if not left:
                left.extend(noise(len(first_leaf(x))).unbind(0))
            output = forward_for_acting(model, x, one_trunk)
            return {'action': problem.dist.sample(output['logit'], left.pop(0)), **output}

        return ForwardActing(forward, block)

    executor = NativeExecutor(model, problem.dist)
    pairs: list[Any] = [(executor.start_acting(x, draw(i), one_trunk), eager(x, draw(i))) for i, x in enumerate(blocks)]
    for rollout in range(2):
        for native, _ in pairs:
            native.begin()
        for t in range(6):
            for native, by_hand in pairs:  # the groups alternate, as in the collector
                with torch.no_grad():
                    a, b = native.step(t), by_hand.step(t)
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # integer actions have to be equal
        for native, by_hand in pairs:
            assert native.output.keys() == by_hand.output.keys() and ('value' in native.output) == one_trunk
            torch.testing.assert_close(native.output, by_hand.output, rtol=1e-5, atol=1e-6)
            if masked:
                assert native.output['logit'].isneginf().any()
        if rollout == 0:
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(0.05)


def test_forward_sees_rows_as_they_lie_in_new_memory() -> None:
    """Float rows are copied to aligned memory: a product's bits depend on the address, and a runner's envs have another one."""
    obs = {'x': torch.rand(4, 6, 5)[:, 1:3], 'image': torch.ones(4, 6, 5, dtype=torch.uint8)[:, 1:3]}
    seen: list[dict[str, Tensor]] = []

    def forward(row: dict[str, Tensor], state: Any) -> dict[str, Any]:
        seen.append(row)
        return {'action': row['x'][:, 0]}

    acting = ForwardActing(forward, obs)
    for t in range(3):
        acting.step(t)
        assert torch.equal(seen[t]['x'], obs['x'][t]) and seen[t]['x'].data_ptr() % 64 == 0
        assert seen[t]['image'].data_ptr() == obs['image'][t].data_ptr()  # a network converts integers itself


@pytest.mark.skipif(not has_bf16('cpu', 'auto'), reason='bfloat16 is emulated')
def test_acting_of_an_image_network_follows_the_steps_of_an_optimizer() -> None:
    """A network in bfloat16 keeps converted weights within a rollout; those of the next one are of the updated weights."""
    network: Any = cnn(images(4, 40, 40), {'type': 'cnn', 'hidden_size': 8, 'precision': 'auto'})
    optimizer = FlatAdam(
        network.named_parameters(), lr=0.01
    )  # its steps change a buffer, of which the weights are views
    obs = pixels(3, 2, 4, 40, 40)
    acting = acting_by(lambda obs, state: {'action': network(obs)}, obs, None, network)
    seen = []
    for _ in range(2):
        acting.begin()
        with torch.no_grad():
            for t in range(2):
                assert torch.equal(acting.step(t), network(obs[t]))
        seen.append(acting.output['action'].clone())
        network(obs[2]).square().sum().backward()
        optimizer.step()
    assert not torch.equal(*seen)


def test_native_values_are_those_of_the_critic_also_where_parameters_were_moved_to_other_memory() -> None:
    archs = {**dict(zip(INPUTS, itertools.cycle(OWN_CRITIC), strict=False)), **dict.fromkeys(VIEWS, 'separate')}
    for stage, arch in archs.items():
        problem = Problem(Case('PPO', arch=arch, input=stage, masked=arch == 'dual'))
        executor, obs = NativeExecutor(problem.model, problem.dist), problem.columns['obs']
        for factor in (1, 2):
            for p in problem.model.parameters():
                p.data = p.data * factor
            found = executor.compute_critic(obs)
            torch.testing.assert_close(found, problem.model.compute_critic(obs), rtol=1e-5, atol=1e-6)
            assert not found.requires_grad
            assert executor.compute_critic(map_tensors(lambda x: x[:0], obs)).shape == (0,)  # no rows: as with eager


# --- minibatches

gathers = pytest.mark.parametrize('gather', [True, False])


@gathers
@pytest.mark.parametrize('n', [12, 10], ids=['even', 'a rest'])
def test_minibatches_hold_each_row_once_in_the_order_given_the_last_has_the_rest(n: int, gather: bool) -> None:
    order = torch.stack([torch.randperm(n, generator=torch.Generator().manual_seed(i)) for i in range(2)])
    found = list(minibatches(StepPlan({'row': torch.arange(n)}, order, 4, CPU, gather=gather)))
    assert [each['row'].tolist() for each in found] == [x.tolist() for o in order for x in o.split(4)]


@gathers
@pytest.mark.parametrize('weighted', [False, True])
def test_minibatches_normalise_advantages_over_the_valid_rows_of_each(weighted: bool, gather: bool) -> None:
    columns = Problem(Case('PPO', n_row=16, weighted=weighted)).columns
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0)).unsqueeze(0)
    raw, normal = (list(minibatches(StepPlan(columns, order, 8, CPU, flag, gather))) for flag in (False, True))
    assert len(raw) == len(normal) == 2
    for a, b in zip(raw, normal, strict=True):
        valid = a['weight'] > 0 if weighted else torch.ones(8, dtype=torch.bool)
        mean, std = a['adv'][valid].mean(), a['adv'][valid].std(correction=0)
        torch.testing.assert_close(b['adv'][valid], (a['adv'][valid] - mean) / std)
        assert torch.equal(a['obs'], b['obs']) and torch.equal(a['return_'], b['return_'])


@pytest.mark.parametrize(
    ('n', 'together'), [(48, 5), (40, 1)], ids=['aligned', 'a pass of 160 bytes, no multiple of 64']
)
def test_passes_gathered_together_or_one_by_one_are_the_same_to_the_bit(
    n: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = Problem(Case('PPO', n_row=n, weighted=True)).columns
    order = torch.stack([torch.randperm(n, generator=torch.Generator().manual_seed(i)) for i in range(5)])
    n_byte, found = sum(x.nbytes for _, x in leaves(columns)), []
    for n_pass in (0, 2, 100):  # as many passes fit into the limit
        monkeypatch.setattr('zoo.backend.executor.GATHERED_BYTES', n_pass * n_byte)
        found.append(list(minibatches(StepPlan(columns, order, 8, CPU, True))))
        assert len(found[-1]) == 5 * n // 8
        of_block = found[-1][0]['adv'].untyped_storage().nbytes() // 4  # rows of minibatches that share memory
        assert of_block == min(max(n_pass, 1), together) * n
    for single, *others in zip(*found, strict=True):
        for other in others:
            map_tensors(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), single, other)


def test_minibatches_of_sequences_normalise_over_all_their_rows_and_of_one_row_are_only_centred() -> None:
    columns = {'adv': torch.tensor([[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]])}
    (found,) = minibatches(StepPlan(columns, torch.tensor([[0, 1]]), 2, CPU, True, gather=False))
    # the numbers 1, 2, 3, 4 have mean 2.5 and deviation sqrt((2.25 + .25) / 2)
    torch.testing.assert_close(found['adv'], torch.tensor([[-1.5, -0.5], [0.5, 1.5]]) / 1.25**0.5)
    single = minibatches(StepPlan({'adv': torch.arange(6.0)}, torch.arange(6).unsqueeze(0), 1, CPU, True))
    assert [each['adv'].item() for each in single] == [0.0] * 6


def test_graph_calls_the_step_of_an_optimizer_of_a_users_own(graphs: list[Any]) -> None:
    problem = Problem(Case('PPO', numbers=PolicyNumbers(grad_clip=0.5)), n_step=4)
    with_optimizers(lambda named: [OwnAdam(named)])(problem)
    assert_equal_parameters(problem.run(GraphExecutor), problem.run(Eager))
    assert not graphs


def acting_with(**more: Any) -> ForwardActing:
    """Acting for 3 steps of 2 envs, whose outputs are action 0 and `more`."""

    def forward(obs: Tensor, state: Any) -> dict[str, Any]:
        return {'action': [0, 0], **{name: make(obs) for name, make in more.items()}}

    return ForwardActing(forward, torch.arange(8.0).reshape(4, 2, 1))


def test_outputs_of_acting_may_be_arrays_and_lists() -> None:
    acting = acting_with(square=lambda obs: obs.numpy() ** 2, flag=lambda obs: [True, False])
    for t in range(3):
        assert acting.step(t).tolist() == [0, 0]
    assert acting.output['square'][..., 0].tolist() == [[0.0, 1.0], [4.0, 9.0], [16.0, 25.0]]
    assert acting.output['flag'].dtype == torch.bool and acting.output['action'].dtype == torch.int64


@pytest.mark.parametrize('words', [['go', 'stay'], np.array(['go', 'stay']), [None, None], [[1.0], [1.0, 2.0]]])
def test_output_without_numbers_is_refused_by_its_name(words: Any) -> None:
    with pytest.raises(
        UserError, match=r"the policy's output 'note' is .* holds no numbers; give numbers, such as the index"
    ):
        acting_with(note=lambda obs: words).step(0)
