"""The functions of the compiled library: one method each, which takes tensors. `library.load()` opens it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_int32, c_int64, c_uint32, c_void_p
from typing import Any

import torch
from torch import Tensor

from zoo.backend.native.arguments import (
    Model,
    Rollout,
    StepSpec,
    adam_struct,
    address,
    batch_struct,
    obs_address,
    step_struct,
)
from zoo.backend.native.structures import (
    AdamStruct,
    BatchStruct,
    Column,
    Level,
    ModelStruct,
    Output,
    RolloutStruct,
    StepStruct,
)

_ERRORS = {
    1: (MemoryError, 'the native executor got no memory'),
    2: (
        ValueError,
        'the native executor cannot run this model: a layer, width or column that the step needs is '
        'missing or does not fit',
    ),
    3: (IndexError, 'an index of a minibatch is outside the batch'),
    4: (ValueError, 'an action is outside its options'),
    5: (ValueError, 'an observation index is outside [0, n_input)'),
}


class Workspace:
    """Scratch memory, for one call at a time; acting needs one of its own."""

    def __init__(self, dll: ctypes.CDLL) -> None:
        self._free = dll.zoo_workspace_free
        self.handle = dll.zoo_workspace_new()
        if not self.handle:
            raise MemoryError(_ERRORS[1][1])

    def __del__(self) -> None:
        if getattr(self, 'handle', None):
            self._free(self.handle)
            self.handle = None


class Library:
    """The opened library. Calls release the GIL."""

    def __init__(self, dll: ctypes.CDLL) -> None:
        self.dll = dll
        _declare(dll)

    def level(self) -> Level:
        """The level in use."""
        return Level(self.dll.zoo_level())

    def set_level(self, level: Level | int) -> Level:
        """Uses a level, or the best one (-1), from now on; returns what is in use, which this CPU may limit."""
        return Level(self.dll.zoo_set_level(int(level)))

    def workspace(self) -> Workspace:
        """New scratch memory."""
        return Workspace(self.dll)

    def epoch(
        self,
        workspace: Workspace,
        model: Model,
        step: StepSpec,
        batch: Mapping[str, Tensor],
        optimizers: Sequence[Any],
        index: Tensor,
        batch_size: int,
        n_thread: int = 1,
    ) -> Tensor:
        """One step for each batch_size entries of index [n_minibatch * batch_size]; metrics [n_minibatch, Column] f64.

        Args:
          batch: [N] rows: obs and, by kind of step, action, logit [N, P], value, adv, return_; optional: weight, and
            mask [N, P] bool, which of the options are allowed.
          optimizers: one or two `FlatAdam`, or what has their param, grad, exp_avg, exp_avg_sq, step_count and rates.
        Raises: ValueError, IndexError if something does not fit; then nothing was changed.
        """
        if index.numel() % batch_size:
            raise ValueError(f'index has {index.numel()} entries, which batch_size {batch_size} does not divide')
        n_minibatch = index.numel() // batch_size
        metrics = torch.empty((n_minibatch, len(Column)), dtype=torch.float64)
        adams = (AdamStruct * len(optimizers))(*map(adam_struct, optimizers))
        _check(
            self.dll.zoo_epoch(
                workspace.handle,
                ctypes.byref(model.struct),
                ctypes.byref(step_struct(step)),
                ctypes.byref(batch_struct(model, step.kind, batch)),
                adams,
                len(adams),
                address('index', index, torch.int64, (index.numel(),)),
                n_minibatch,
                batch_size,
                metrics.data_ptr(),
                n_thread,
            )
        )
        return metrics

    def forward(
        self,
        workspace: Workspace,
        model: Model,
        obs: Tensor,
        output: Output,
        n_thread: int = 1,
        mask: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The wanted outputs of obs [N, ...]: 'logit' [N, P], 'value' [N], 'aux_value' [N].

        mask [N, P] bool: the logit is -inf where it is false.
        """
        n = obs.shape[0]
        shapes = {'logit': (n, model.n_logit), 'value': (n,), 'aux_value': (n,)}
        found = {
            name: torch.empty(shape) for (name, shape), bit in zip(shapes.items(), Output, strict=True) if bit & output
        }
        _check(
            self.dll.zoo_forward(
                workspace.handle,
                ctypes.byref(model.struct),
                n,
                obs_address(model, obs),
                None if mask is None else address('mask', mask, torch.bool, (n, model.n_action)),
                *(found[name].data_ptr() if name in found else None for name in shapes),
                n_thread,
            )
        )
        return found

    def act_begin(self, workspace: Workspace, rollout: Rollout) -> None:
        """Packs the weights as they are now; to be repeated when they have changed.

        The workspace then serves `act` alone. The caller keeps the rollout alive.
        """
        _check(
            self.dll.zoo_act_begin(workspace.handle, ctypes.byref(rollout.model.struct), ctypes.byref(rollout.struct))
        )

    def act(self, workspace: Workspace, t: int) -> None:
        """Acts on obs[t] of the rollout given to `act_begin`. t is not checked."""
        error = self.dll.zoo_act(workspace.handle, t)
        if error:
            _check(error)


def _declare(dll: ctypes.CDLL) -> None:
    signatures: dict[str, tuple[Any, list[Any]]] = {
        'zoo_abi': (c_int32, []),
        'zoo_source': (c_uint32, []),
        'zoo_sizes': (c_int32, [POINTER(c_int64)]),
        'zoo_level': (c_int32, []),
        'zoo_set_level': (c_int32, [c_int32]),
        'zoo_workspace_new': (c_void_p, []),
        'zoo_workspace_free': (None, [c_void_p]),
        'zoo_epoch': (
            c_int32,
            [
                c_void_p,
                POINTER(ModelStruct),
                POINTER(StepStruct),
                POINTER(BatchStruct),
                POINTER(AdamStruct),
                c_int32,
                c_void_p,
                c_int64,
                c_int64,
                c_void_p,
                c_int32,
            ],
        ),
        'zoo_forward': (c_int32, [c_void_p, POINTER(ModelStruct), c_int64, *[c_void_p] * 5, c_int32]),
        'zoo_act_begin': (c_int32, [c_void_p, POINTER(ModelStruct), POINTER(RolloutStruct)]),
        'zoo_act': (c_int32, [c_void_p, c_int64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(dll, name)
        function.restype, function.argtypes = result, arguments


def _check(error: int) -> None:
    if error:
        kind, message = _ERRORS[error]
        raise kind(message)
