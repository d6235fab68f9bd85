"""The C structures and constants of zoo_native.h, as ctypes and enums."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum, IntFlag

ABI = 4
MAX_LAYER = 8


class Level(IntEnum):
    """Instruction set of the kernels: SSE2 or NEON, AVX2, AVX-512."""

    BASE = 0
    V3 = 1
    V4 = 2


class Input(IntEnum):
    """What an observation is: floats, floats to be normalised, an index that becomes one-hot, or bools."""

    FLOAT = 0
    NORMALIZED = 1
    INDEX = 2
    BOOL = 3


class Activation(IntEnum):
    """The function after each layer of a trunk."""

    TANH = 0
    RELU = 1


class Dist(IntEnum):
    """The action distribution."""

    CATEGORICAL = 0
    GAUSSIAN = 1


class Std(IntEnum):
    """Where a Gaussian's log standard deviation comes from."""

    NONE = 0
    FREE = 1
    LAYER = 2


class Kind(IntEnum):
    """The step that an epoch consists of."""

    PPO = 0
    POLICY = 1
    VALUE = 2
    AUX = 3


class Surrogate(IntEnum):
    """The gain of the policy; clip_low and clip_high are its bounds, the first also what SPO's pull is divided by."""

    CLIP = 0
    UNCLIPPED = 1
    SPO = 2


class ValueLoss(IntEnum):
    """The loss of the critic; all but the first have a range."""

    MSE = 0
    CLIPPED_VALUE = 1
    CLIPPED_ERROR = 2
    HUBER = 3


class Column(IntEnum):
    """Columns of an epoch's metrics; NaN where the step does not compute one."""

    POLICY_LOSS = 0
    VALUE_LOSS = 1
    ENTROPY = 2
    APPROX_KL = 3
    CLIPFRAC = 4
    KL = 5
    GRAD_NORM = 6
    GRAD_NORM_0 = 7
    GRAD_NORM_1 = 8
    AUXILIARY_LOSS = 9
    BEHAVIORAL_CLONING_LOSS = 10
    AUX_VALUE_LOSS = 11
    PENALTY_KL = 12
    RATIO_MAX = 13
    VALUE_CLIPFRAC = 14


class Output(IntFlag):
    """Outputs of a forward pass."""

    LOGIT = 1
    VALUE = 2
    AUX = 4


class LinearStruct(ctypes.Structure):
    """zoo_linear."""

    _fields_ = [
        ('n_in', c_int32),
        ('n_out', c_int32),
        ('weight', c_void_p),
        ('bias', c_void_p),
        ('weight_grad', c_void_p),
        ('bias_grad', c_void_p),
    ]


class TrunkStruct(ctypes.Structure):
    """zoo_trunk."""

    _fields_ = [('n_layer', c_int32), ('activation', c_int32), ('layer', LinearStruct * MAX_LAYER)]


class ModelStruct(ctypes.Structure):
    """zoo_model."""

    _fields_ = [
        ('input', c_int32),
        ('n_input', c_int32),
        ('shared', c_int32),
        ('stop_value_gradient', c_int32),
        ('distribution', c_int32),
        ('n_action', c_int32),
        ('std', c_int32),
        ('n_choice', c_int32),
        *((name, c_float) for name in ('obs_clip', 'log_std_min', 'log_std_max')),
        ('nvec', c_void_p),
        ('shift', c_void_p),
        ('scale', c_void_p),
        ('log_std', c_void_p),
        ('log_std_grad', c_void_p),
        ('actor', TrunkStruct),
        ('critic', TrunkStruct),
        ('policy_head', LinearStruct),
        ('std_head', LinearStruct),
        ('value_head', LinearStruct),
        ('aux_head', LinearStruct),
    ]


class StepStruct(ctypes.Structure):
    """zoo_step."""

    _fields_ = [
        *(
            (name, c_int32)
            for name in (
                'kind',
                'normalize_adv',
                'measure_kl',
                'surrogate',
                'value_loss',
                'has_dual_clip',
                'has_kl_penalty',
                'has_grad_clip',
            )
        ),
        *(
            (name, c_double)
            for name in (
                'clip_low',
                'clip_high',
                'value_range',
                'value_weight',
                'entropy_weight',
                'dual_clip',
                'kl_penalty',
                'bc_weight',
                'grad_clip',
            )
        ),
    ]


class BatchStruct(ctypes.Structure):
    """zoo_batch."""

    _fields_ = [
        ('n_row', c_int64),
        *((name, c_void_p) for name in ('obs', 'mask', 'action', 'logit', 'value', 'adv', 'return_', 'weight')),
    ]


class AdamStruct(ctypes.Structure):
    """zoo_adam."""

    _fields_ = [
        ('size', c_int64),
        *((name, c_void_p) for name in ('param', 'grad', 'exp_avg', 'exp_avg_sq', 'step_count')),
        *((name, c_double) for name in ('lr', 'beta1', 'beta2', 'eps')),
    ]


class RolloutStruct(ctypes.Structure):
    """zoo_rollout."""

    _fields_ = [
        ('n_row', c_int32),
        ('has_value', c_int32),
        *((name, c_void_p) for name in ('obs', 'mask', 'noise', 'action', 'logit', 'value')),
        *((f'{name}_stride', c_int64) for name in ('obs', 'mask', 'noise', 'action', 'logit', 'value')),
    ]


STRUCTS = (LinearStruct, TrunkStruct, ModelStruct, StepStruct, BatchStruct, AdamStruct, RolloutStruct)
"""In the order of zoo_sizes."""
