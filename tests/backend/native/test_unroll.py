"""Sequences through a layer of memory in C, in models that run eagerly: features, states and gradients of torch in float64."""

from __future__ import annotations

import copy
import gc
import re
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from zoo.backend.native.bindings import CellKind, Library, SequencesStruct
from zoo.backend.native.unroll import NativeUnroll, is_known
from zoo.config.section import validate
from zoo.model.config import RecurrentConfig
from zoo.model.recurrent import GRU, LSTM, Core, LSTMConfig, Resets, unrolled_by
from zoo.pipeline import serial_pipeline

N_IN = 5
CELLS = ('lstm', 'lstm with two biases', 'gru', 'mingru')


def core(name: str, n_layer: int = 1, size: int = 16) -> Core:
    torch.manual_seed(3)
    cell = name.split()[0]
    section: RecurrentConfig = RecurrentConfig(cell=cell, hidden_size=size, n_layer=n_layer)
    if 'two biases' in name:
        section = validate(
            LSTMConfig, {'cell': cell, 'hidden_size': size, 'n_layer': n_layer, 'n_bias': 2}, 'recurrent'
        )
    made = Core(N_IN, config=section)
    with torch.no_grad():
        for parameter in made.parameters():  # also those that begin at zero
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


class Problem:
    """Sequences, and weights of a sum over features and last states whose gradients are taken."""

    def __init__(self, made: Core, n_row: int, n: int, chance: float) -> None:
        torch.manual_seed(7)
        self.core = made
        self.x = torch.randn(n_row, n, N_IN)
        self.state = torch.randn(n, made.n_state)
        self.first = torch.rand(n_row, n) < chance
        self.of_features = torch.randn(n_row, n, made.n_feature)
        self.of_state = torch.randn(n, made.n_state)

    def loss(self, made: Core, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, after = made(x, state, self.first)
        return (features * self.of_features.to(x)).sum() + (after * self.of_state.to(x)).sum(), features, after

    def found(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Features, last states, and the gradients in inputs, first states and parameters."""
        made = copy.deepcopy(self.core).to(dtype)
        x, state = (each.to(dtype).requires_grad_() for each in (self.x, self.state))
        loss, features, after = self.loss(made, x, state)
        return [features, after, *torch.autograd.grad(loss, [x, state, *made.parameters()])]


def assert_close(found: list[Tensor], wanted: list[Tensor]) -> None:
    """Within rounding of float32: 2e-6 of the largest number, which is 17 units in its last place, over up to 37 steps."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= 2e-6 * other.abs().max()


@pytest.mark.parametrize('cell', CELLS)
@pytest.mark.parametrize(
    'n_row, n, chance, n_layer', [(16, 16, 0.1, 1), (1, 3, 0.5, 1), (37, 9, 0.3, 2), (6, 70, 0.0, 1)]
)
def test_features_states_and_gradients_are_those_of_torch_in_float64(
    leveled: Library, cell: str, n_row: int, n: int, chance: float, n_layer: int
) -> None:
    problem = Problem(core(cell, n_layer), n_row, n, chance)
    with unrolled_by(NativeUnroll(leveled)):
        found = problem.found()
        assert found[0].grad_fn is not None and '_Unrolled' in type(found[0].grad_fn).__name__
    assert_close(found, problem.found(torch.float64))


@pytest.mark.parametrize('cell', CELLS)
@pytest.mark.parametrize('n_block', [1, 2])
def test_a_gradient_of_gradients_is_that_of_torch(lib: Library, cell: str, n_block: int) -> None:
    """Also through a state that one block of rows gives to the next, which has the same weights."""
    problem = Problem(core(cell), 6, 4, 0.2)

    def slopes_of_norm(dtype: torch.dtype) -> list[Tensor]:
        made = copy.deepcopy(problem.core).to(dtype)
        state = first_state = problem.state.to(dtype, copy=True).requires_grad_()
        x = problem.x.to(dtype, copy=True).requires_grad_()
        loss = torch.zeros((), dtype=dtype)
        for rows, first in zip(x.chunk(n_block), problem.first.chunk(n_block), strict=True):
            features, state = Core.forward(made, rows, state, first)
            loss = loss + features.square().sum()
        wanted = [x, first_state, *made.parameters()]
        slopes = torch.autograd.grad(loss, wanted, create_graph=True)
        norm = sum((slope.square().sum() for slope in slopes), torch.zeros((), dtype=dtype))
        return [*slopes, *torch.autograd.grad(norm, wanted)]

    with unrolled_by(NativeUnroll(lib)):
        found = slopes_of_norm(torch.float32)
    assert_close(found, slopes_of_norm(torch.float64))


@pytest.mark.parametrize('cell', CELLS)
def test_going_back_twice_gives_the_same_bits(lib: Library, cell: str) -> None:
    problem = Problem(core(cell), 7, 4, 0.2)
    with unrolled_by(NativeUnroll(lib)):
        loss = problem.loss(problem.core, problem.x, problem.state)[0]
    weights = list(problem.core.parameters())
    first = torch.autograd.grad(loss, weights, retain_graph=True)
    for one, other in zip(first, torch.autograd.grad(loss, weights), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize('cell', CELLS)
@pytest.mark.parametrize('differentiable', [False, True])
def test_gradients_of_what_is_frozen_are_left_out_and_the_others_keep_their_places(
    lib: Library, cell: str, differentiable: bool
) -> None:
    problem = Problem(core(cell), 7, 4, 0.2)
    names = [name for name, _ in problem.core.named_parameters()]

    def slopes(frozen: str) -> list[Tensor]:
        made = copy.deepcopy(problem.core)
        weights = dict(made.named_parameters())
        weights.pop(frozen).requires_grad_(False)
        loss = problem.loss(made, problem.x, problem.state)[0]
        return list(torch.autograd.grad(loss, list(weights.values()), create_graph=differentiable))

    for frozen in names:
        with unrolled_by(NativeUnroll(lib)):
            found = slopes(frozen)
        assert_close(found, slopes(frozen))


@pytest.mark.parametrize('cell', CELLS)
def test_arrays_that_are_not_contiguous_and_lone_parts_of_the_result_have_the_gradients_of_torch(
    lib: Library, cell: str
) -> None:
    made = core(cell)
    x = torch.randn(4, 7, N_IN).transpose(0, 1)
    state = torch.randn(made.n_state, 1).t().expand(4, -1)
    first = (torch.rand(4, 7) < 0.2).t()

    def slopes(part: int) -> list[Tensor]:
        result = made(x, state, first)[part]
        # the gradient in the features is expanded, or none
        return list(torch.autograd.grad(result.sum(), list(made.parameters())))

    for part in (0, 1):
        with unrolled_by(NativeUnroll(lib)):
            found = slopes(part)
        assert_close(found, slopes(part))


def test_memory_of_sequences_is_free_once_their_result_is(lib: Library) -> None:
    problem = Problem(core('gru'), 7, 4, 0.2)
    gc.disable()
    try:
        with unrolled_by(NativeUnroll(lib)):
            features = problem.loss(problem.core, problem.x, problem.state)[1]
        held = weakref.ref(features.grad_fn.sequences)  # type: ignore[union-attr]
        assert held() is not None
        del features
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    'change', [lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_device('meta')]
)
def test_defaults_of_torch_that_an_env_changes_do_not_matter(lib: Library, change: Callable[[], None]) -> None:
    problem = Problem(core('lstm'), 7, 4, 0.2)
    wanted = problem.found()
    try:
        change()
        with unrolled_by(NativeUnroll(lib)):
            found = problem.found()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert_close(found, wanted)


def test_threads_may_share_it(lib: Library) -> None:
    problems = [Problem(core(cell, size=64), 30, 16, 0.2) for cell in CELLS]
    unroll = NativeUnroll(lib)
    wanted = [problem.found() for problem in problems]

    def found(problem: Problem) -> list[list[Tensor]]:
        with unrolled_by(unroll):
            return [problem.found() for _ in range(10)]

    with ThreadPoolExecutor(4) as pool:
        for several, one in zip(pool.map(found, problems), wanted, strict=True):
            for each in several:
                assert_close(each, one)


def own_step(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return state, state


def changed(how: str) -> GRU:
    cell = GRU(N_IN, 16)
    if how == 'own method':
        cell.step = own_step  # type: ignore[method-assign]
    elif how == 'hook':
        cell.register_forward_hook(lambda *_: None)
    elif how == 'one tensor twice':
        cell.bias_h = cell.bias
    elif how == 'no parameter':
        bias = cell.bias_h.detach()
        del cell.bias_h
        cell.register_buffer('bias_h', bias)
    elif how == 'not contiguous':
        cell.weight_h.data = cell.weight_h.data.t().contiguous().t()
    elif how == 'parametrized':
        torch.nn.utils.parametrizations.weight_norm(cell, 'weight_h')
    return cell


HOWS = ('own method', 'hook', 'one tensor twice', 'no parameter', 'not contiguous', 'parametrized')


@pytest.mark.parametrize('how', HOWS)
def test_a_cell_that_is_not_quite_that_of_zoo_is_left_to_torch(lib: Library, how: str) -> None:
    x, state, resets = torch.zeros(3, 2, N_IN), torch.zeros(2, 16), Resets(torch.zeros(3, 2, dtype=torch.bool))
    assert NativeUnroll(lib)(changed(''), x, state, resets) is not None
    assert NativeUnroll(lib)(changed(how), x, state, resets) is None


def test_what_c_does_not_have_is_left_to_the_cell(lib: Library) -> None:
    class Own(GRU):
        pass

    unroll = NativeUnroll(lib)
    x, state, resets = torch.zeros(3, 2, N_IN), torch.zeros(2, 16), Resets(torch.zeros(3, 2, dtype=torch.bool))
    assert unroll(GRU(N_IN, 16), x, state, resets) is not None
    assert unroll(Own(N_IN, 16), x, state, resets) is None
    assert unroll(GRU(N_IN, 20), x, torch.zeros(2, 20), resets) is None
    assert unroll(GRU(N_IN, 16).double(), x.double(), state.double(), resets) is None
    assert unroll(GRU(N_IN, 16), x, state.double(), resets) is None
    assert unroll(GRU(N_IN, 16), x[:, :0], state[:0], Resets(resets.first[:, :0])) is None
    assert unroll(GRU(N_IN, 16), x, state, Resets(resets.first.to(torch.uint8))) is None
    with torch.autocast('cpu', torch.bfloat16):
        assert unroll(GRU(N_IN, 16), x, state, resets) is None
    assert is_known(LSTM(N_IN, 32)) and not is_known(torch.nn.GRU(N_IN, 16))


@pytest.mark.long
@pytest.mark.filterwarnings('ignore:.torch.jit.script. is deprecated:DeprecationWarning')  # torch's own use of it
def test_transforms_of_functions_and_traced_programs_are_those_of_torch(lib: Library) -> None:
    problem = Problem(core('gru'), 5, 2, 0.0)

    def loss(x: Tensor) -> Tensor:
        return problem.loss(problem.core, x, problem.state)[0]

    wanted = torch.func.grad(loss)(problem.x), torch.func.jvp(loss, (problem.x,), (problem.x,))[1]
    with unrolled_by(NativeUnroll(lib)):
        assert torch.equal(torch.func.grad(loss)(problem.x), wanted[0])
        assert torch.equal(torch.func.jvp(loss, (problem.x,), (problem.x,))[1], wanted[1])
        exported = torch.export.export(problem.core, (problem.x, problem.state, problem.first), strict=True)
    assert torch.allclose(exported.module()(problem.x, problem.state, problem.first)[0], problem.found()[0], atol=1e-6)


def test_only_the_block_is_unrolled_in_c(lib: Library) -> None:
    problem = Problem(core('lstm'), 5, 2, 0.0)

    def kind() -> str:
        return type(problem.loss(problem.core, problem.x, problem.state)[1].grad_fn).__name__

    outside = kind()
    with pytest.raises(KeyError), unrolled_by(NativeUnroll(lib)):
        assert kind() != outside
        raise KeyError
    assert kind() == outside


def test_sequences_that_cannot_be_are_refused(lib: Library) -> None:
    struct = SequencesStruct(n_step=2, n_sequence=3)
    struct.cell.kind, struct.cell.n_hidden = CellKind.MINGRU, 24
    with pytest.raises(ValueError, match='cannot run this model'):
        lib.unroll(lib.workspace(), struct)
    struct.cell.n_hidden, struct.n_step = 16, 0
    with pytest.raises(ValueError, match='cannot run this model'):
        lib.unroll_back(struct, torch.zeros(0))


@pytest.mark.slow
@pytest.mark.usefixtures('native')
@pytest.mark.parametrize('cell', ['lstm', 'gru', 'mingru'])
@pytest.mark.parametrize('kind', ['ppo', 'ppg'])
def test_run_of_a_model_that_c_does_not_have_ends_with_the_parameters_of_eager(
    kind: str, cell: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    for executor in ('eager', 'auto'):
        learn: dict[str, Any] = {'executor': executor, 'batch_size': 32, 'learning_rate': 3e-4, 'sequence': {'len': 8}}
        if kind == 'ppg':
            learn |= {'aux_freq': 2, 'aux_train_epoch': 2, 'aux_batch_size': 32}
        recurrent = {'cell': cell, 'hidden_size': 16}
        config = {
            'seed': 5,
            'max_env_step': 192,
            'env': {'id': 'CartPole-v1', 'collector_env_num': 4, 'evaluator_env_num': 2, 'check': False},
            'policy': {
                'type': kind,
                'n_thread': 1,
                'device': 'cpu',
                'model': {'hidden_sizes': [8], 'activation': 'elu', 'recurrent': recurrent},
                'learn': learn,
                'collect': {'n_step': 16},
                'eval': {'eval_freq': 10**6},
            },
            'logger': {'console': 'off', 'tensorboard': False, 'root': str(tmp_path / executor)},
        }
        with caplog.at_level('INFO'):
            trained = serial_pipeline(config).policy
        if executor == 'eager':
            assert trained.executor_name == 'eager'
        else:
            assert re.fullmatch(r'eager with memory \w+', trained.executor_name)
        found.append(trained.model.state_dict())
    said = [record.getMessage() for record in caplog.records if 'run in PyTorch' in record.getMessage()]
    (line,) = said
    assert re.fullmatch(
        r'updates and acting run in PyTorch: .* not elu; its memory runs over sequences in C \(\w+\)', line
    )
    different = [key for key, x in found[0].items() if not torch.equal(found[1][key], x)]
    assert different, 'C rounds otherwise: these would be the bits of torch'
    for key, x in found[0].items():
        torch.testing.assert_close(found[1][key], x, rtol=0, atol=1e-5, msg=key)
