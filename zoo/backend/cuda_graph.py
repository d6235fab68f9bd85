"""CUDA graphs: all kernels of a call are launched as one, and the host waits for nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Run = Callable[[list[Tensor]], Sequence[Tensor]]


class CapturedCall:
    """A function of CUDA tensors that looks at no value of theirs; its second call is captured, then replayed.

    The first call runs as it stands, on a stream beside: whatever a kernel prepares when it first runs is there then.
    Results are copies, so the next call leaves them alone. Where a fixed input moves, it is captured anew.
    Args: moving: which inputs lie elsewhere at each call, in one form; they are copied to where the graph reads them.
    Source: CUDA graphs as in docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
    """

    def __init__(self, run: Run, moving: Sequence[int]) -> None:
        self._run, self._moving = run, list(moving)
        self._stream: torch.cuda.Stream | None = None  # the first call makes it
        self._graph: torch.cuda.CUDAGraph | None = None
        self._places: list[Tensor] = []
        self._addresses: list[int] = []
        self._outputs: Sequence[Tensor] = []

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        if self._stream is None:
            return self._warm_up(inputs)
        if self._graph is None or self._fixed_addresses(inputs) != self._addresses:
            self._capture(inputs)
        assert self._graph is not None
        for i in self._moving:
            self._places[i].copy_(inputs[i], non_blocking=True)
        self._graph.replay()
        return [x.clone() for x in self._outputs]

    def _warm_up(self, inputs: list[Tensor]) -> list[Tensor]:
        device = inputs[0].device
        current, self._stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = list(self._run(inputs))
        current.wait_stream(self._stream)
        for x in outputs:
            x.record_stream(current)
        return outputs

    def _capture(self, inputs: list[Tensor]) -> None:
        """Notes the kernels down; none of them runs here, so nothing is written yet."""
        self._graph = None  # should this fail
        self._places = [x.clone() if i in self._moving else x for i, x in enumerate(inputs)]
        self._addresses = self._fixed_addresses(inputs)
        graph = torch.cuda.CUDAGraph()
        # cuBLAS's memory for this stream is made anew in the graph's own pool, and lasts as long as the graph
        torch._C._cuda_clearCublasWorkspaces()
        # both by name: left alone, torch would capture on the default device, and the stream would stay if it failed
        with (
            torch.cuda.device(inputs[0].device),
            torch.cuda.stream(torch.cuda.current_stream(inputs[0].device)),
            torch.cuda.graph(graph, stream=self._stream, capture_error_mode='thread_local'),
        ):
            self._outputs = self._run(self._places)
        self._graph = graph

    def _fixed_addresses(self, inputs: list[Tensor]) -> list[int]:
        return [x.data_ptr() for i, x in enumerate(inputs) if i not in self._moving]
