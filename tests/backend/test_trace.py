"""Compiled functions: when they are compiled, what they return, and what happens if something fails."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.gpu import needs_gpu, no_waiting
from zoo.backend import trace as module
from zoo.backend.choose import missing_compiler
from zoo.backend.trace import (
    MAX_PROGRAMS,
    CapturedCall,
    CompiledFunction,
    compile_function,
    named_tensors,
    replaced,
    trace,
)
from zoo.rl_utils import kernels

FAILED = 'an area could not be compiled and runs uncompiled from now on: '


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of zoo; torch's compiler logs many of its own."""
    return [record.getMessage() for record in caplog.records if record.name.startswith('zoo')]


def area(width: Tensor, unused: Tensor, height: Tensor) -> list[Tensor]:
    return [width * height, (width * height).sum()]


def test_trace_of_a_function_that_draws_numbers_is_refused() -> None:
    with pytest.raises(RuntimeError, match='random numbers are drawn in it .aten.rand'):
        trace(lambda x: [x + torch.rand_like(x)], [torch.ones(2)], constants=True)


def test_kernels_are_disabled_while_tracing_and_enabled_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, 'MODE', 'interpret')
    seen: list[bool] = []

    def look(x: Tensor) -> list[Tensor]:
        seen.append(kernels.reach(x))
        raise ArithmeticError('no such area')

    with pytest.raises(ArithmeticError, match='no such area'):
        trace(look, [torch.ones(2)], constants=False)
    assert seen == [False] and kernels.reach(torch.ones(2))


def test_function_is_compiled_once_for_each_form_of_its_inputs(graphs: list[torch.fx.GraphModule]) -> None:
    function, other = compile_function(area, 'an area'), torch.full((2, 2), 3.0)
    for x in (other, other.t().contiguous().t(), other.double(), other[:1], other, other[:1]):
        y = other[: len(x)]
        assert function(x, torch.ones(1), y)[1].item() == x.numel() * 9.0
    first = [next(iter(graph.graph.nodes)).meta['val'] for graph in graphs]
    full = [((2, 2), (2, 1), torch.float32), ((2, 2), (1, 2), torch.float32), ((2, 2), (2, 1), torch.float64)]
    assert [(tuple(x.shape), x.stride(), x.dtype) for x in first] == [*full, ((1, 2), (2, 1), torch.float32)]


def test_function_is_compiled_once_for_each_static_value(graphs: list[torch.fx.GraphModule]) -> None:
    function, x = CompiledFunction(lambda factor, inputs: [inputs[0] * factor], 'a product'), torch.ones(1)
    found = [function([x], factor) for factor in (2, 3, 2, 3)]
    assert [y[0].item() for y in found if y is not None] == [2.0, 3.0, 2.0, 3.0] and len(graphs) == 2


def test_number_of_programs_is_limited(graphs: list[torch.fx.GraphModule], caplog: pytest.LogCaptureFixture) -> None:
    function = compile_function(area, 'an area')
    for n in range(1, MAX_PROGRAMS + 4):
        assert function(torch.full((n,), 2.0), torch.ones(1), torch.full((n,), 3.0))[1].item() == 6.0 * n
    assert len(graphs) == MAX_PROGRAMS
    assert warnings_of(caplog) == [FAILED + 'RuntimeError: it was called with more than 8 forms of inputs']


@pytest.mark.parametrize('when', ['compiling', 'running'])
def test_function_that_fails_runs_uncompiled_and_says_why_once(
    when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise OSError('no room for the object file\nand more')

    monkeypatch.setattr(module, 'inductor', broken if when == 'compiling' else lambda graph, inputs: broken)
    function = compile_function(area, 'an area')
    for _ in range(2):
        assert function(torch.tensor([2.0]), torch.ones(1), torch.tensor([3.0]))[1].item() == 6.0
    assert warnings_of(caplog) == [FAILED + 'OSError: no room for the object file']


def test_constants_are_read_only_where_they_are_allowed(graphs: list[torch.fx.GraphModule]) -> None:
    shift = torch.ones(2)
    for constants in (True, False):
        function = CompiledFunction(lambda _, inputs: [inputs[0] + shift], 'a sum', constants)
        outputs = function([torch.ones(2)])
        assert (outputs is not None) == constants == (not function.failed)
        assert outputs is None or outputs[0].tolist() == [2.0, 2.0]


def test_replaced_gives_a_module_with_two_names_its_own_tensors_back() -> None:
    model = torch.nn.Module()
    model.one = model.two = torch.nn.Linear(2, 1, bias=False)
    own = model.one.weight
    with replaced(model, {name: torch.full_like(x, 3.0) for name, x in named_tensors(model).items()}):
        assert model.one(torch.ones(1, 2)).item() == model.two(torch.ones(1, 2)).item() == 6.0
    assert model.one.weight is model.two.weight is own


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('CXX', 'no-such-compiler')
    assert "no C++ compiler 'no-such-compiler'" in missing_compiler(torch.device('cpu'))


@pytest.mark.long
@pytest.mark.skipif(bool(missing_compiler(torch.device('cpu'))), reason='there is no C++ compiler')
def test_real_compilation_changes_nothing_in_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.distributions.Distribution, '_validate_args', True)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    each, total = compile_function(area, 'an area')(torch.tensor([2.0, 3.0]), torch.ones(1), torch.tensor([5.0, 7.0]))
    assert each.tolist() == [10.0, 21.0] and total.item() == 31.0
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    assert torch.distributions.Distribution._validate_args is True
    assert not warnings_of(caplog)


# --- a captured call does the same as its function


def add_up(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Adds the second input to the first, in place; returns twice the second."""
    total, x = inputs
    total.add_(x)
    return [x * 2]


@needs_gpu
def test_captured_call_takes_every_step_once() -> None:
    total, call = torch.zeros(3, device='cuda'), CapturedCall(add_up, n_fixed=1)
    results = [call([total, torch.full((3,), float(k), device='cuda')])[0] for k in range(1, 6)]
    assert total.tolist() == [15.0] * 3  # 1 + 2 + 3 + 4 + 5: the captured call counts exactly once
    assert [x[0].item() for x in results] == [2.0, 4.0, 6.0, 8.0, 10.0]  # no result is overwritten by the next


@needs_gpu
def test_captured_call_follows_a_fixed_input_to_another_address() -> None:
    first, second, call = torch.zeros(1, device='cuda'), torch.zeros(1, device='cuda'), CapturedCall(add_up, n_fixed=1)
    one = torch.ones(1, device='cuda')
    for total, n in ((first, 3), (second, 2), (first, 1)):
        for _ in range(n):
            call([total, one])
    assert (first.item(), second.item()) == (4.0, 2.0)


@needs_gpu
def test_captured_call_waits_for_nothing() -> None:
    total, call, x = torch.zeros(3, device='cuda'), CapturedCall(add_up, n_fixed=1), torch.ones(3, device='cuda')
    for _ in range(2):
        call([total, x])
    with no_waiting():
        call([total, x])
    assert total.tolist() == [3.0] * 3
