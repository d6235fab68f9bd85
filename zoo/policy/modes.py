"""The three modes of a policy: the functions that a learner, a collector and an evaluator get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from zoo.backend.executor import Acting
from zoo.core.data import Metrics, Obs, Rollout, Sample, State, Transition


class LearnMode(NamedTuple):
    """Functions of a policy for a learner."""

    forward: Callable[[Any], Metrics]  # a `Sample` [N], or {'policy': .., 'value': ..} of such
    learn_aux: Callable[[], Metrics]  # runs the auxiliary phase if it is due; `forward` does this too
    monitor_vars: Callable[[], list[str]]
    set_env_step: Callable[[int], None]
    train_iter: Callable[[], int]
    get_batch_size: Callable[[], int | dict[str, int] | None]  # None: all samples at once
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[dict[str, Any]], None]
    has_aux: bool = False  # an auxiliary phase gives further metrics, which monitor_vars does not name


class CollectMode(NamedTuple):
    """Functions of a policy for a collector."""

    forward: Callable[[Obs, State], dict[str, Any]]
    start: Callable[..., Acting]  # (obs, first=0): see `Policy._start_acting`
    process_transition: Callable[[Obs, dict[str, Any], Any], Transition]  # once per rollout
    get_train_sample: Callable[[Rollout], Sample]
    reset: Callable[[], None]
    begin: Callable[..., None]  # (collect_iter, env_step=None), before each rollout: see `Policy._begin_rollout`
    forget: Callable[[slice], None]  # drops the state of old episodes of these envs, which begin new ones
    n_step: int
    env_action: Callable[[Tensor], Tensor] | None = None  # converts actions for the env; None: not needed


class EvalMode(NamedTuple):
    """Functions of a policy for an evaluator."""

    forward: Callable[[Obs, State], dict[str, Any]]
    initial_state: Callable[[int], State] | None = None
    env_action: Callable[[Tensor], Tensor] | None = None  # as in `CollectMode`
    # like forward, with actions drawn from the policy; None: the policy cannot draw
    sample: Callable[[Obs, State, torch.Generator | None], dict[str, Any]] | None = None


Mode = Literal['learn', 'collect', 'eval']


MODES: tuple[Mode, ...] = ('learn', 'collect', 'eval')
