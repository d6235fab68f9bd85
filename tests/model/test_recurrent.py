"""Recurrent cells: sequences equal single steps, state resets, torch's cells as a reference, initial weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from zoo.config.section import validate
from zoo.core.errors import UserError
from zoo.core.registry import CELL_REGISTRY
from zoo.model import VACConfig
from zoo.model.config import RecurrentConfig
from zoo.model.recurrent import GRU, LSTM, MAX_LANES, PIECE, Core, Lanes, LSTMConfig, MemoryCell, MinGRU, Resets

cells = pytest.mark.parametrize('cell', ['lstm', 'gru', 'mingru'])
N_IN, N = 5, 4


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def core(cell: str, n_layer: int = 1, n_in: int = N_IN) -> Core:
    """A core with weights that are not small, in float64."""
    made = Core(n_in, cell, N, n_layer).double()
    with torch.no_grad():
        for i, p in enumerate(made.parameters()):
            p.copy_(0.5 * random(*p.shape, seed=i))
    return made


def in_steps(made: Core, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """The reference: single steps in a loop."""
    found = []
    for row, begins in zip(x, first, strict=True):
        state = torch.where(begins.unsqueeze(-1), made.initial_state(len(row)), state)
        feature, state = made(row, state)
        found.append(feature)
    return torch.stack(found), state


def resets(chance: float, n_row: int, n_column: int) -> Tensor:
    return torch.rand(n_row, n_column, generator=torch.Generator().manual_seed(1)) < chance


# ---- sequences


@cells
@pytest.mark.parametrize(
    ('n_layer', 'chance', 'n_row'),
    [(1, 1.0, 1), (2, 0.4, 2), (1, 0.0, PIECE), (2, 0.1, 2 * PIECE + 3), (1, 1.0, PIECE)],
)
def test_a_sequence_is_as_many_single_steps(cell: str, n_layer: int, chance: float, n_row: int) -> None:
    made, x, first = core(cell, n_layer), random(n_row, 3, N_IN), resets(chance, n_row, 3)
    state = random(3, made.n_state, seed=2)
    want, last = in_steps(made, x, state, first)
    found, end = made(x, state, first)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-10)
    torch.testing.assert_close(end, last, rtol=0, atol=1e-10)


@cells
@pytest.mark.parametrize(('n_layer', 'chance'), [(1, 0.0), (2, 0.1), (1, 0.4)])
def test_gradients_of_a_sequence_are_those_of_single_steps(cell: str, n_layer: int, chance: float) -> None:
    made, first = core(cell, n_layer), resets(chance, PIECE + 3, 3)
    x, state = random(PIECE + 3, 3, N_IN), random(3, made.n_state, seed=2)
    found = []
    for run in (made, lambda *given: in_steps(made, *given)):
        inputs = [x.clone().requires_grad_(), state.clone().requires_grad_(), *made.parameters()]
        feature, end = run(inputs[0], inputs[1], first)
        loss = (feature * random(*feature.shape, seed=3)).sum() + (end * random(*end.shape, seed=4)).sum()
        found.append(torch.autograd.grad(loss, inputs))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


@cells
def test_a_state_that_begins_again_knows_nothing_of_what_was_before_nor_of_other_sequences(cell: str) -> None:
    made, x, first = core(cell), random(6, 2, N_IN), torch.zeros(6, 2, dtype=torch.bool)
    first[3, 0] = True
    feature, end = made(x, random(2, made.n_state, seed=2), first)
    alone, last = made(x[3:, :1], made.initial_state(1), torch.zeros(3, 1, dtype=torch.bool))
    torch.testing.assert_close(feature[3:, :1], alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(end[:1], last, rtol=0, atol=1e-12)
    alone, _ = made(x[:, 1:], random(2, made.n_state, seed=2)[1:], first[:, 1:])
    torch.testing.assert_close(feature[:, 1:], alone, rtol=0, atol=1e-12)  # independent of the other sequences
    x[0] += 1
    changed, _ = made(x, random(2, made.n_state, seed=2), first)
    assert torch.equal(changed[3:, 0], feature[3:, 0]) and not torch.equal(changed[3:, 1], feature[3:, 1])


@pytest.mark.parametrize('dtype, tolerance', [(torch.float32, 2e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize('chance', [0.0, 0.1])
def test_lstm_in_lanes_is_the_loop(dtype, tolerance, chance, monkeypatch):
    # 2e-6: 40 steps in single precision, sums in a different order
    made, x, first = core('lstm').to(dtype), random(40, 6, N_IN).to(dtype), resets(chance, 40, 6)
    state = random(6, made.n_state, seed=2).to(dtype)
    assert Resets(first).lanes is not None
    lanes = made(x, state, first)
    monkeypatch.setattr('zoo.model.recurrent.MAX_LANES', 0)
    assert Resets(first).lanes is None
    torch.testing.assert_close(lanes, made(x, state, first), rtol=0, atol=tolerance)


def test_lanes_are_the_parts_of_sequences_between_resets():
    first = torch.zeros(4, 2, dtype=torch.bool)
    first[0, 1] = first[2, 0] = first[3, 0] = True
    lanes = Lanes(first)
    # two lanes begin at row 0, one at (2, 0), one at (3, 0); unused lanes fill up to 8
    assert lanes.column.tolist() == [0, 1, 0, 0, 0, 0, 0, 0] and lanes.keep.tolist() == [[True], [False]]
    shut = [[False] * 4, [False] * 4, [True, True, False, False], [True] * 3 + [False]]
    assert lanes.shut[:, :4, 0].T.tolist() == shut
    assert lanes.last.tolist() == [3, 1]
    assert (lanes.at.view(4, 2) - 8 * torch.arange(4).unsqueeze(1)).tolist() == [[0, 1], [0, 1], [2, 1], [3, 1]]


@pytest.mark.slow
@cells
def test_a_traced_program_resets_where_it_is_told_to_and_not_where_the_example_did(cell):
    from torch.fx.experimental.proxy_tensor import make_fx

    made, x, state = core(cell, n_layer=2), random(6, 3, N_IN), random(3, core(cell, 2).n_state, seed=2)
    example, other = torch.zeros(6, 3, dtype=torch.bool), resets(0.4, 6, 3)
    program = make_fx(made, tracing_mode='fake', _allow_non_fake_inputs=True)(x, state, example)
    for got, want in zip(program(x, state, other), made(x, state, other), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_many_resets_are_left_to_the_loop():
    first = torch.ones(PIECE, MAX_LANES + 1, dtype=torch.bool)
    assert Resets(first).lanes is None and Resets(~first).lanes is not None


# ---- torch's own cells


def test_lstm_is_that_of_torch():
    made, reference = core('lstm'), nn.LSTM(N_IN, N).double()
    cell, own = made.layers[0], dict(reference.named_parameters())
    with torch.no_grad():
        for p, q in zip(own.values(), (cell.weight_x, cell.weight_h, cell.bias, torch.zeros(4 * N)), strict=True):
            p.copy_(q)
    x, state = random(7, 3, N_IN), random(3, 2 * N, seed=2)
    want, (h, c) = reference(x, tuple(part.unsqueeze(0).contiguous() for part in state.chunk(2, -1)))
    for found, end in (made(x, state, torch.zeros(7, 3, dtype=torch.bool)), in_steps(made, x, state, resets(0, 7, 3))):
        torch.testing.assert_close(found, want, rtol=0, atol=1e-12)
        torch.testing.assert_close(end, torch.cat((h[0], c[0]), -1), rtol=0, atol=1e-12)


def test_lstm_with_two_biases_is_that_of_torch_however_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made, reference = Core(N_IN, config=LSTMConfig(hidden_size=N, n_bias=2)).double(), nn.LSTM(N_IN, N).double()
    own = dict(made.layers[0].named_parameters())
    with torch.no_grad():
        for there, here in zip(
            reference.parameters(), (own[name] for name in ('weight_x', 'weight_h', 'bias', 'bias_h')), strict=True
        ):
            here.copy_(there)
    x, state, first = random(7, 3, N_IN), random(3, 2 * N, seed=2), resets(0, 7, 3)
    want, _ = reference(x, tuple(part.unsqueeze(0).contiguous() for part in state.chunk(2, -1)))
    want.square().sum().backward()
    in_lanes = made(x, state, first)[0]
    monkeypatch.setattr('zoo.model.recurrent.MAX_LANES', 0)
    for found in (in_lanes, made(x, state, first)[0], in_steps(made, x, state, first)[0]):
        torch.testing.assert_close(found, want, rtol=0, atol=1e-12)
        made.zero_grad()
        found.square().sum().backward()
        torch.testing.assert_close(own['bias_h'].grad, reference.bias_hh_l0.grad, rtol=0, atol=1e-12)
        torch.testing.assert_close(own['bias'].grad, own['bias_h'].grad, rtol=0, atol=1e-12)


def test_gru_is_that_of_torch():
    made, reference = core('gru'), nn.GRU(N_IN, N).double()
    cell = made.layers[0]
    with torch.no_grad():
        for p, q in zip(reference.parameters(), (cell.weight_x, cell.weight_h, cell.bias, cell.bias_h), strict=True):
            p.copy_(q)
    x, state = random(7, 3, N_IN), random(3, N, seed=2)
    want, h = reference(x, state.unsqueeze(0))
    found, end = made(x, state, torch.zeros(7, 3, dtype=torch.bool))
    torch.testing.assert_close(found, want, rtol=0, atol=1e-12)
    torch.testing.assert_close(end, h[0], rtol=0, atol=1e-12)


def test_mingru_is_its_formula():
    made = core('mingru')
    cell = made.layers[0]
    x, h = random(2, N_IN), random(2, N, seed=2)
    z, new = (x @ cell.weight_x.T + cell.bias).chunk(2, -1)
    z = 1 / (1 + (-z).exp())
    torch.testing.assert_close(made(x, h)[1], (1 - z) * h + z * new, rtol=0, atol=1e-12)


# ---- states, sizes, initial weights


@cells
@pytest.mark.parametrize('n_layer', [1, 3])
def test_the_initial_state_is_zeros_of_each_layer_and_the_type_of_the_parameters(cell, n_layer):
    made = core(cell, n_layer)
    state = made.initial_state(7)
    assert state.shape == (7, n_layer * (2 if cell == 'lstm' else 1) * N) and state.dtype == torch.float64
    assert not state.any() and made(random(7, N_IN), state)[1].shape == state.shape


# 32 inputs, 64 units; lstm: 4 gates with inputs, state, bias; gru: 3 gates with two biases; mingru: 2 gates without state
SIZES = {'lstm': 4 * 64 * (32 + 64 + 1), 'gru': 3 * 64 * (32 + 64 + 2), 'mingru': 2 * 64 * (32 + 1)}


@cells
def test_parameters_are_those_of_the_gates_and_nothing_else_is_saved(cell: str) -> None:
    made = Core(32, cell, 64)
    assert sum(p.numel() for p in made.parameters()) == SIZES[cell]
    assert made.state_dict().keys() == dict(made.named_parameters()).keys()


@cells
def test_what_is_remembered_stays_for_a_while_at_the_start(cell):
    made = CELL_REGISTRY.get(cell)(N_IN, N)
    gate, sign = {LSTM: (slice(N, 2 * N), 1), GRU: (slice(N, 2 * N), 1), MinGRU: (slice(0, N), -1)}[type(made)]
    bias = made.bias.detach().clone()
    # lstm: 1 / (1 + e^-1) = .7311; the others: u / (u + 1) for u = 1, 11, 21, 31
    kept = [0.7311] * 4 if cell == 'lstm' else [1 / 2, 11 / 12, 21 / 22, 31 / 32]
    torch.testing.assert_close((sign * bias[gate]).sigmoid(), torch.tensor(kept), rtol=0, atol=1e-4)
    bias[gate] = 0.0
    assert not bias.any()
    for name, p in made.named_parameters():
        if name.startswith('weight'):
            values = torch.linalg.svdvals(p.detach())
            torch.testing.assert_close(values, torch.ones_like(values))


@pytest.mark.slow
@cells
def test_a_cue_is_remembered_for_ten_steps(cell: str) -> None:
    """Learnt from examples: the class shown in row 0 is asked for in row 11."""
    torch.manual_seed(0)
    made, head = Core(3, cell, 32), nn.Linear(32, 2)
    optimizer = torch.optim.Adam([*made.parameters(), *head.parameters()], lr=1e-2)
    first = torch.zeros(12, 32, dtype=torch.bool)
    for _ in range(60):
        cue, x = torch.randint(2, (32,)), torch.zeros(12, 32, 3)
        x[0, torch.arange(32), cue], x[-1, :, 2] = 1.0, 1.0
        logit = head(made(x, made.initial_state(32), first)[0][-1])
        optimizer.zero_grad()
        nn.functional.cross_entropy(logit, cue).backward()
        optimizer.step()
    assert (logit.argmax(-1) == cue).float().mean() > 0.95


@cells
@pytest.mark.parametrize('share', [0.1, 0.6])
def test_bf16_is_the_same_to_its_precision_and_has_a_gradient(cell, share):
    """Reference: float32. 0.6 resets are too many for lanes; layer 2 reads float32. bfloat16: 8 bits, 16 rows below 1."""
    made = Core(N_IN, cell, 8, 2)
    x, first = random(16, 6, N_IN).float(), resets(share, 16, 6)
    whole, _ = made(x, made.initial_state(6), first)
    with torch.autocast('cpu', torch.bfloat16):
        feature, state = made(x, made.initial_state(6), first)
        step, _ = made(x[0], made.initial_state(6))
    torch.testing.assert_close(feature.float(), whole, rtol=0, atol=0.05)
    torch.testing.assert_close(step.float(), whole[0], rtol=0, atol=0.05)
    feature.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in made.parameters())


# ---- a cell of one's own


class LeakyConfig(RecurrentConfig):
    """Section of the cell `Leaky`."""

    keep: float = 0.5


class Leaky(MemoryCell):
    """h' = keep * h + x; the state is h."""

    config = LeakyConfig

    def __init__(self, n_hidden: int, keep: float) -> None:
        super().__init__(n_hidden, n_hidden)
        self.keep = nn.Parameter(torch.tensor(keep))

    @classmethod
    def make(cls, n_in: int, cfg: LeakyConfig) -> Leaky:
        return cls(cfg.hidden_size, cfg.keep)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.keep * state + x
        return state, state


class Sectionless(nn.Module):
    """A cell that extends no class of zoo."""


@pytest.fixture
def registered() -> Iterator[None]:
    CELL_REGISTRY.register('leaky', module=Leaky)
    CELL_REGISTRY.register('sectionless', module=Sectionless)
    yield
    for name in ('leaky', 'sectionless'):
        del CELL_REGISTRY.entries[name], CELL_REGISTRY.places[name]


@pytest.mark.usefixtures('registered')
def test_registered_cell_has_its_section_and_needs_only_a_step() -> None:
    """With x = 1: h = 1, 1.25 and, after a reset, 1."""
    cfg = validate(VACConfig, {'recurrent': {'cell': 'leaky', 'hidden_size': 1, 'keep': 0.25}}, 'policy.model')
    made = Core(1, config=cfg.recurrent)
    first = torch.tensor([[False], [False], [True]])
    feature, state = made(torch.ones(3, 1, 1), made.initial_state(1), first)
    assert feature.flatten().tolist() == [1, 1.25, 1] and state.tolist() == [[1]]


@pytest.mark.usefixtures('registered')
def test_cell_without_a_section_is_refused_by_name() -> None:
    with pytest.raises(
        UserError, match=r"cell 'sectionless' of .* needs a class below RecurrentConfig; let the cell extend"
    ):
        validate(VACConfig, {'recurrent': {'cell': 'sectionless'}}, 'policy.model')
