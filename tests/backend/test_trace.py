"""Compiled functions: the same results, other shapes, and what happens where something fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from zoo.backend import trace as compiler
from zoo.backend.trace import (
    MAX_GRAPHS,
    CompiledFunction,
    _turn_narrow_products,
    is_tracing,
    missing_compiler,
    named_tensors,
    replaced,
    trace,
)


def as_it_stands(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> torch.fx.GraphModule:
    return graph


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def area(width: Tensor, unused: Tensor, height: Tensor) -> list[Tensor]:
    return [width * height, (width * height).sum()]


def test_trace_drops_inputs_that_nothing_reads() -> None:
    graph, used = trace(area, [torch.ones(2), torch.ones(5), torch.ones(2)])
    assert used == [0, 2]
    each, total = graph(torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0]))
    assert each.tolist() == [10.0, 21.0] and total.item() == 31.0


def test_trace_of_a_function_that_draws_numbers_is_refused() -> None:
    with pytest.raises(RuntimeError, match='random numbers are drawn in it .aten.rand'):
        trace(lambda x: [x + torch.rand_like(x)], [torch.ones(2)])


def test_compiled_function_builds_one_graph_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[torch.Size] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> torch.fx.GraphModule:
        built.append(inputs[0].shape)
        return graph

    monkeypatch.setattr(compiler, 'inductor', backend)
    function = CompiledFunction(area, 'an area')
    for n in (2, 2, 3, 2):
        assert function(torch.full((n,), 2.0), torch.ones(1), torch.full((n,), 3.0))[1].item() == 6.0 * n
    assert built == [(2,), (3,)]


def test_compiled_function_builds_one_graph_for_each_layout_and_type_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> torch.fx.GraphModule:
        built.append((inputs[0].stride(), inputs[0].dtype))
        return graph

    monkeypatch.setattr(compiler, 'inductor', backend)
    function, other = CompiledFunction(area, 'an area'), torch.full((2, 2), 3.0)
    for x in (other, other.t().contiguous().t(), other.double(), other):
        assert function(x, torch.ones(1), other)[1].item() == 4 * 9.0
    assert built == [((2, 1), torch.float32), ((1, 2), torch.float32), ((2, 1), torch.float64)]


def test_compiled_function_builds_a_limited_number_of_graphs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built: list[Any] = []
    monkeypatch.setattr(compiler, 'inductor', lambda graph, inputs: built.append(graph) or graph)
    function = CompiledFunction(area, 'an area')
    for n in range(1, MAX_GRAPHS + 4):
        assert function(torch.full((n,), 2.0), torch.ones(1), torch.full((n,), 3.0))[1].item() == 6.0 * n
    assert len(built) == MAX_GRAPHS
    assert warnings_of(caplog) == [
        'an area could not be compiled and runs as it stands: RuntimeError: its inputs came in more than 8 forms'
    ]


def test_tracing_is_known_while_it_lasts_and_after_it_failed() -> None:
    seen: list[bool] = []

    def look(x: Tensor) -> list[Tensor]:
        seen.append(is_tracing())
        raise ArithmeticError('no such area')

    with pytest.raises(ArithmeticError, match='no such area'):
        trace(look, [torch.ones(2)])
    assert seen == [True] and not is_tracing()


@pytest.mark.parametrize('when', ['compiling', 'running'])
def test_compiled_function_that_fails_goes_on_as_it_stands_and_says_why_once(
    when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise OSError('no room for the object file\nand more')

    monkeypatch.setattr(compiler, 'inductor', broken if when == 'compiling' else lambda graph, inputs: broken)
    function = CompiledFunction(area, 'an area')
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert function(torch.tensor([2.0]), torch.ones(1), torch.tensor([3.0]))[1].item() == 6.0
    assert caplog.messages == [
        'an area could not be compiled and runs as it stands: OSError: no room for the object file'
    ]


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


@pytest.mark.parametrize('k, turned', [(1, True), (4, True), (64, False), (100, False)])
def test_products_with_few_columns_are_turned_around(k: int, turned: bool) -> None:
    """x^T y with 64 rows: computed as (y^T x)^T where y has fewer than 64 columns; the numbers are the same."""
    x, y = torch.randn(256, 64), torch.randn(256, k)
    graph, _ = trace(lambda x, y: [torch.mm(x.t(), y).view(-1)], [x, y])
    _turn_narrow_products(graph)
    (mm,) = graph.graph.find_nodes(op='call_function', target=torch.ops.aten.mm.default)
    assert mm.args[1] is list(graph.graph.find_nodes(op='placeholder'))[0 if turned else 1]  # x where it is y^T x
    torch.testing.assert_close(graph(x, y)[0], torch.mm(x.t(), y).view(-1))
