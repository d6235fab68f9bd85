"""The three modes of a policy, as given to a learner, a collector and an evaluator; and the device that a policy is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from zoo.backend.executor import Acting
from zoo.core.data import Metrics, Obs, Rollout, Sample, State, Transition


class LearnMode(NamedTuple):
    """What a learner is given."""

    forward: Callable[[Any], Metrics]  # a `Sample` [N], or {'policy': .., 'value': ..} of such
    learn_aux: Callable[[], Metrics]  # the auxiliary phase, if it is due; `forward` has done it
    monitor_vars: Callable[[], list[str]]
    set_env_step: Callable[[int], None]
    train_iter: Callable[[], int]
    get_batch_size: Callable[[], int | dict[str, int] | None]  # None: all samples at once
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[dict[str, Any]], None]
    has_aux: bool = False  # metrics of an auxiliary phase come besides those that monitor_vars names


class CollectMode(NamedTuple):
    """What a collector is given."""

    forward: Callable[[Obs, State], dict[str, Any]]
    start: Callable[..., Acting]  # (obs, first=0): see `Policy._start_acting`
    process_transition: Callable[[Obs, dict[str, Any], Any], Transition]  # once per rollout
    get_train_sample: Callable[[Rollout], Sample]
    reset: Callable[[], None]
    begin: Callable[..., None]  # (collect_iter, env_step=None), before each rollout: see `Policy._begin_rollout`
    forget: Callable[[slice], None]  # these envs, of all, begin new episodes; what was known of the old ones is dropped
    n_step: int
    env_action: Callable[[Tensor], Tensor] | None = None  # of an action, what the env is sent; None: the same


class EvalMode(NamedTuple):
    """What an evaluator is given."""

    forward: Callable[[Obs, State], dict[str, Any]]
    initial_state: Callable[[int], State] | None = None
    env_action: Callable[[Tensor], Tensor] | None = None  # as in `CollectMode`
    sample: Callable[[Obs, State, torch.Generator | None], dict[str, Any]] | None = None

    # like forward, with actions drawn from the policy; None: it draws none


Mode = Literal['learn', 'collect', 'eval']


MODES: tuple[Mode, ...] = ('learn', 'collect', 'eval')
