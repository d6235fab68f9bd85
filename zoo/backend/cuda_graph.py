"""CUDA graphs: all kernels of a call are launched as one, and the host waits for nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class CapturedCall:
    """A function of CUDA tensors that reads no value on the host; its second call is captured, later ones replay it.

    The first call runs eagerly on a side stream, so that lazy kernel initialisation is done before the capture. Results
    are copies, which the next call leaves alone. Where a fixed input has moved, the function is captured again.
    Args: n_fixed: the first inputs, which stay at their addresses; the others are copied to where the graph reads them.
    Source: CUDA graphs as in docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
    """

    def __init__(self, run: Run, n_fixed: int) -> None:
        self._run, self._n_fixed = run, n_fixed
        self._stream: torch.cuda.Stream | None = None  # the first call makes it
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []  # where the graph reads
        self._outputs: Sequence[Tensor] = []

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        if self._stream is None:
            return self._warm_up(inputs)
        n, graph = self._n_fixed, self._graph
        if graph is None or any(a.data_ptr() != b.data_ptr() for a, b in zip(inputs[:n], self._inputs, strict=False)):
            graph = self._capture(inputs)
        for place, x in zip(self._inputs[n:], inputs[n:], strict=True):
            place.copy_(x, non_blocking=True)
        graph.replay()
        return [x.clone() for x in self._outputs]

    def _warm_up(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        device = inputs[0].device
        current, self._stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = list(self._run(inputs))
        current.wait_stream(self._stream)
        for x in outputs:
            x.record_stream(current)
        return outputs

    def _capture(self, inputs: Sequence[Tensor]) -> torch.cuda.CUDAGraph:
        """Records the kernels; none of them runs here, so nothing is written yet."""
        self._graph = None  # should this fail
        self._inputs = [*inputs[: self._n_fixed], *(x.clone() for x in inputs[self._n_fixed :])]
        graph = torch.cuda.CUDAGraph()
        # cuBLAS's workspace for this stream is allocated again in the graph's own pool, and lives as long as the graph
        torch._C._cuda_clearCublasWorkspaces()
        # device and stream are named: torch would capture on the default device, and keep the stream after a failure
        with (
            torch.cuda.device(inputs[0].device),
            torch.cuda.stream(torch.cuda.current_stream(inputs[0].device)),
            torch.cuda.graph(graph, stream=self._stream, capture_error_mode='thread_local'),
        ):
            self._outputs = self._run(self._inputs)
        self._graph = graph
        return graph
