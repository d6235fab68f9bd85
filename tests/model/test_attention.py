"""Attention memory: sequences equal single steps, what is seen, formulas by hand, recorded states, its section of the config."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.policy_envs import make_policy
from zoo.config.section import ConfigError, plain, validate
from zoo.core.spaces import WINDOW_MASK, Box, Dict, Discrete, MultiBinary
from zoo.model import VACConfig
from zoo.model.attention import (
    AttentionConfig,
    GRUGate,
    RelativeAttention,
    TransformerXLConfig,
    WindowAttention,
    distance_sinusoids,
    in_places,
    rows_before,
)
from zoo.model.recurrent import Core, RecordedRows

N_IN, B = 5, 3


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def section(**fields: Any) -> TransformerXLConfig:
    return validate(TransformerXLConfig, {'hidden_size': 8, 'heads': 2, 'memory': 4, **fields})


def core(dtype: torch.dtype = torch.float64, **fields: Any) -> Core:
    """A core with weights that are not small."""
    made = Core(N_IN, config=section(**fields)).to(dtype)
    with torch.no_grad():
        for i, p in enumerate(made.parameters()):
            p.add_(0.3 * random(*p.shape, seed=i))
    return made


def warm(made: Core, n: int) -> Tensor:
    """The state of B envs after n steps, with gradient stopped."""
    state = made.initial_state(B)
    with torch.no_grad():
        for x in random(n, B, N_IN, seed=7).to(state.dtype):
            _, state = made(x, state)
    return state


def resets(n_row: int, *places: tuple[int, int]) -> Tensor:
    first = torch.zeros(n_row, B, dtype=torch.bool)
    for t, b in places:
        first[t, b] = True
    return first


def in_steps(made: Core, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """The reference: single steps in a loop -> features and the states after each row, [L, B, ...]."""
    features, states = [], []
    for row, begins in zip(x, first, strict=True):
        state = torch.where(begins.unsqueeze(-1), torch.zeros_like(state), state)
        feature, state = made(row, state)
        features.append(feature)
        states.append(state)
    return torch.stack(features), torch.stack(states)


# three envs: no reset; resets in a row and after others; one with row 0
ENDS = ((1, 1), (2, 1), (6, 1), (0, 2), (5, 2))


@pytest.mark.parametrize('gate', ['gru', 'none'])
@pytest.mark.parametrize(('memory', 'n_layer', 'n_warm'), [(4, 1, 0), (4, 2, 3), (3, 2, 9), (12, 2, 2)])
def test_sequence_with_ends_inside_is_as_many_single_steps(gate: str, memory: int, n_layer: int, n_warm: int) -> None:
    """In single precision to 1e-5, in double to 1e-12: sums in another order, and one query in place of all keys."""
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        made = core(dtype, gate=gate, memory=memory, n_layer=n_layer)
        x, state, first = random(8, B, N_IN).to(dtype), warm(made, n_warm), resets(8, *ENDS)
        want, states = in_steps(made, x, state, first)
        found, end = made(x, state, first)
        torch.testing.assert_close(found, want, rtol=0, atol=tolerance)
        torch.testing.assert_close(end, states[-1], rtol=0, atol=tolerance)


def test_gradients_of_a_sequence_are_those_of_single_steps() -> None:
    made, x, first = core(n_layer=2), random(8, B, N_IN), resets(8, *ENDS)
    found = []
    for run in (made, lambda *given: in_steps(made, *given)):
        inputs = [x.clone().requires_grad_(), *made.parameters()]
        feature, _ = run(inputs[0], warm(made, 3), first)
        loss = (feature * random(*feature.shape, seed=3)).sum()
        found.append(torch.autograd.grad(loss, inputs))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def test_nothing_before_a_reset_changes_a_bit_after_it() -> None:
    made, first = core(torch.float32, n_layer=2), resets(8, (3, 0))
    x, state = random(8, B, N_IN).float(), warm(made, 9)
    other, other_state = x.clone(), state.clone()
    other[:3] += 1.0
    for part in other_state.chunk(2, -1):
        part[:, :-1] *= -2.0  # the inputs; the last number is their count
    found, end = made(x, state, first)
    changed, changed_end = made(other, other_state, first)
    assert torch.equal(changed[3:, 0], found[3:, 0]) and torch.equal(changed_end[0], end[0])
    assert not torch.equal(changed[3:, 1], found[3:, 1])
    want, states = in_steps(made, x, state, first)
    changed, changed_states = in_steps(made, other, other_state, first)
    assert torch.equal(changed[3:, 0], want[3:, 0]) and torch.equal(changed_states[3:, 0], states[3:, 0])


@pytest.mark.parametrize(('n_layer', 'reach'), [(1, 4), (2, 8)])
def test_a_layer_sees_memory_steps_back_and_no_further(n_layer: int, reach: int) -> None:
    made, x, first = core(n_layer=n_layer), random(12, B, N_IN), resets(12)
    other = x.clone()
    other[0] += 1.0
    difference = (made(other, made.initial_state(B), first)[0] - made(x, made.initial_state(B), first)[0]).abs()
    assert (difference[: reach + 1].amax(-1) > 1e-9).all() and not difference[reach + 1 :].any()


def test_state_is_the_last_inputs_of_the_episode_and_their_number() -> None:
    made = core(hidden_size=N_IN, heads=1, memory=3)  # inputs of this width are remembered as they are
    x = random(5, B, N_IN)
    _, states = in_steps(made, x, made.initial_state(B), resets(5, (3, 1)))
    memory, count = states[..., :-1].unflatten(-1, (3, N_IN)), states[..., -1]
    assert count[:, 0].tolist() == [1, 2, 3, 3, 3] and count[:, 1].tolist() == [1, 2, 3, 1, 2]
    assert torch.equal(memory[4, 0], x[2:, 0])
    assert torch.equal(memory[4, 1], torch.stack((torch.zeros(N_IN).double(), x[3, 1], x[4, 1])))


def test_attention_is_its_formula() -> None:
    """Two heads of two numbers, two rows before the present one: the score of each key by a loop over heads and keys."""
    n, heads, memory = 4, 2, 2
    made = RelativeAttention(n, heads, memory).double()
    with torch.no_grad():
        made.content_bias.copy_(random(heads, 2, seed=1))
        made.position_bias.copy_(random(heads, 2, seed=2))
    context = random(1, memory + 1, n, seed=3)
    mixed = []
    for head in range(heads):
        rows = slice(2 * head, 2 * head + 2)
        q = made.query.weight[rows] @ context[0, -1]
        scores = []
        for place in range(memory + 1):
            distance = memory - place
            # n / 2 = 2 frequencies: 1 and 10000^(-2/4) = 1/100
            angles = torch.tensor([distance, distance / 100], dtype=torch.float64)
            r = made.position.weight[rows] @ torch.cat((angles.sin(), angles.cos()))
            k = made.key.weight[rows] @ context[0, place]
            scores.append(((q + made.content_bias[head]) @ k + (q + made.position_bias[head]) @ r) / math.sqrt(2))
        weights = torch.stack(scores).softmax(0)
        mixed.append(sum(w * (made.value.weight[rows] @ context[0, i]) for i, w in enumerate(weights)))
    want = made.out.weight @ torch.cat(mixed) + made.out.bias
    sees_all = torch.ones(1, memory + 1, dtype=torch.bool)
    # 1e-6: the sinusoids are in single precision
    torch.testing.assert_close(made.step(context, sees_all)[0], want, rtol=0, atol=1e-6)
    torch.testing.assert_close(made(context, sees_all.unsqueeze(1))[0, 0], want, rtol=0, atol=1e-6)


def test_sinusoids_begin_with_the_longest_distance() -> None:
    found = distance_sinusoids(1, 2)
    torch.testing.assert_close(found, torch.tensor([[math.sin(1), math.cos(1)], [0.0, 1.0]]))
    assert distance_sinusoids(4, 3).shape == (5, 3)


def test_scores_by_distance_are_moved_to_their_places() -> None:
    moved = in_places(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))  # distances 2, 1, 0; two rows, four places
    assert moved[0, :3].tolist() == [1, 2, 3] and moved[1, 1:].tolist() == [4, 5, 6]


def test_rows_before_count_from_the_start_of_the_episode() -> None:
    first = torch.tensor([[False, True], [False, False], [True, False]])
    assert rows_before(first, torch.tensor([5.0, 5.0])).tolist() == [[5, 0], [6, 1], [0, 2]]


def test_gate_of_a_new_network_passes_its_input() -> None:
    """Without weights z = sigmoid(-2) = .1192 and n = 0, so that (1 - .1192) * x remains."""
    gate, x = GRUGate(4), random(2, 4).float()
    with torch.no_grad():
        for name in ('weight_x', 'weight_y', 'weight_new'):
            getattr(gate, name).zero_()
    torch.testing.assert_close(gate(x, random(2, 4, seed=1).float()), 0.8808 * x, rtol=1e-4, atol=0)


@pytest.mark.parametrize(('memory', 'n_warm'), [(4, 0), (4, 9), (12, 2)])
def test_recorded_rows_give_the_states_bit_for_bit(memory: int, n_warm: int) -> None:
    made = core(torch.float32, memory=memory, n_layer=2)
    before, first = warm(made, n_warm), resets(8, *ENDS)
    before = torch.where(first[0].unsqueeze(-1), torch.zeros_like(before), before)  # as a collector gives it
    first[0] = False
    _, states = in_steps(made, random(8, B, N_IN).float(), before, first)
    rows = RecordedRows(before, made.record(states), first)
    assert rows.records.shape == (
        8,
        B,
        2 * 8,
    )  # of each row the inputs of two layers alone, of n_state = 2 * (M * 8 + 1)
    t, b = torch.arange(-1, 8).repeat_interleave(B), torch.arange(B).repeat(9)
    assert torch.equal(made.restore(rows, t, b), torch.cat((before.unsqueeze(0), states)).flatten(0, 1))


def test_bf16_is_the_same_to_its_precision_and_has_a_gradient() -> None:
    made = core(torch.float32, n_layer=2)
    x, first = random(8, B, N_IN).float(), resets(8, *ENDS)
    whole, _ = made(x, made.initial_state(B), first)
    with torch.autocast('cpu', torch.bfloat16):
        feature, state = made(x, made.initial_state(B), first)
        step, _ = made(x[0], made.initial_state(B))
    assert state.dtype == torch.float32
    # 8 bits: 2^-8 of numbers below 8, through two layers
    torch.testing.assert_close(feature.float(), whole, rtol=0, atol=0.2)
    torch.testing.assert_close(step.float(), whole[0], rtol=0, atol=0.2)
    feature.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in made.parameters())


def test_newest_place_of_a_window_attends_to_places_that_are_not_empty() -> None:
    """The same as the block over the places that are seen, by hand; the newest is seen even if it is all zeros."""
    made = WindowAttention(
        validate(AttentionConfig, {'hidden_size': 8, 'heads': 2}), Box(-ones(3, 2), ones(3, 2))
    ).double()
    x = random(2, 3, 2)
    x[0, 0] = 0.0
    x[1, 2] = 0.0
    found = made(x.flatten(1).unsqueeze(0))  # [1, 2, 6]: leading dimensions stay
    assert found.shape == (1, 2, 8) and made.n_feature == 8
    context = made.embed(x)
    is_seen = torch.tensor([[False, True, True], [True, True, True]])
    torch.testing.assert_close(found[0], made.block.step(context[:, -1], context, is_seen), rtol=0, atol=1e-12)
    x[0, 0] = 1e-30
    assert not torch.equal(made(x.flatten(1))[0], found[0, 0])


@pytest.mark.parametrize(
    ('space', 'fits'),
    [
        (Box(-ones(3, 2), ones(3, 2)), True),
        (Box(-ones(3), ones(3)), False),
        (Box(0 * ones(8, 8, 3), 255 * ones(8, 8, 3), 'uint8'), False),
        (Discrete(3), False),
    ],
)
def test_encoder_is_for_arrays_of_rows(space: Any, fits: bool) -> None:
    assert WindowAttention.fits(space) == fits


def test_policy_reads_its_window_by_attention() -> None:
    """Every place that holds an observation changes the logits."""
    model = dict(encoder=dict(type='attention', hidden_size=8, heads=2))
    space = Dict({'obs': Box(-ones(3, 2), ones(3, 2)), WINDOW_MASK: MultiBinary((3,))})
    policy = make_policy(space, Discrete(2), model=model)
    assert any(isinstance(part, WindowAttention) for part in policy.model.actor_encoder.modules())
    obs = {'obs': random(1, 3, 2).float(), WINDOW_MASK: torch.tensor([[False, True, True]])}
    obs['obs'][0, 0] = 0.0
    before = policy.model.compute_actor(obs)
    for place in (1, 2):
        other = obs['obs'].clone()
        other[0, place] += 0.5
        assert not torch.equal(policy.model.compute_actor({**obs, 'obs': other}), before)


def test_section_of_the_memory_is_that_of_its_cell() -> None:
    cfg = validate(VACConfig, {'recurrent': {'cell': 'trxl', 'memory': 9}}, 'policy.model')
    assert type(cfg.recurrent) is TransformerXLConfig
    assert plain(cfg)['recurrent'] == {
        'cell': 'trxl',
        'hidden_size': 64,
        'n_layer': 1,
        'critic': True,
        'heads': 4,
        'memory': 9,
        'gate': 'gru',
    }
    assert validate(VACConfig, plain(cfg)) == cfg
    assert 'memory' not in validate(VACConfig, {'recurrent': {}}).recurrent


@pytest.mark.parametrize(
    ('recurrent', 'words'),
    [
        (dict(cell='trxl', memory=0), ['policy.model.recurrent.memory is 0', '>= 1']),
        (dict(cell='trxl', gate='lstm'), ['policy.model.recurrent.gate', "'gru', 'none'"]),
        (dict(cell='trxl', head=2), ['unknown key policy.model.recurrent.head', 'policy.model.recurrent.heads']),
        (dict(cell='trxl', hidden_size=12, heads=8), ['heads is 8 but hidden_size is 12', 'e.g. heads 6']),
        (dict(cell='gru', memory=8), ['unknown key policy.model.recurrent.memory']),
        (dict(cell='trx'), ["policy.model.recurrent.cell: unknown cell 'trx'", "'trxl'"]),
        (dict(cell=3), ['policy.model.recurrent.cell is 3']),
        ('trxl', ['policy.model.recurrent', 'cell']),
    ],
)
def test_bad_section_of_a_memory_is_refused_in_a_sentence(recurrent: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(VACConfig, {'recurrent': recurrent}, 'policy.model')
    assert len(refused.value.problems) == 1 and all(word in str(refused.value) for word in words), str(refused.value)


@pytest.mark.long
def test_a_traced_program_resets_where_it_is_told_to_and_not_where_the_example_did() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    made, x = core(n_layer=2), random(6, B, N_IN)
    state, other = warm(made, 3), resets(6, (1, 1), (4, 2))
    program = make_fx(made, tracing_mode='fake', _allow_non_fake_inputs=True)(x, state, resets(6))
    for got, want in zip(program(x, state, other), made(x, state, other), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
