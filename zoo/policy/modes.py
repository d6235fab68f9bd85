"""Interfaces of a policy: the three modes that a learner, a collector and an evaluator get; what its update options see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from zoo.backend.executor import Acting
from zoo.config.schedule import Rates
from zoo.core.data import Columns, Metrics, Obs, Rollout, Sample, State, Transition
from zoo.core.ranks import RunInfo
from zoo.core.spaces import Space
from zoo.rl_utils.distribution import ActionDist


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


class Owner(Protocol):
    """Protocol of a policy as its options see it.

    samples: `zoo.policy.samples.Samples`; rates: see zoo.config.schedule; passes: `zoo.policy.passes.Passes`; optimizers: by
      name, built with the learn mode; normalizers: modules with running statistics, by name, saved in checkpoints;
      has_state: the model is recurrent; learns: it has the learn mode; explores: it has the learn or the collect mode.
    """

    run: RunInfo
    obs_space: Space
    device: torch.device
    seed: int
    samples: Any
    rates: Rates
    passes: Any
    optimizers: dict[str, Any]
    options: tuple[Any, ...]
    dist: ActionDist
    has_state: bool
    has_critic: bool
    normalizers: nn.ModuleDict
    learns: bool
    explores: bool

    @property
    def cfg(self) -> Any:
        """The resolved section `policy`."""

    @property
    def objective(self) -> Any:
        """The losses, a `zoo.policy.options.loss.Objective`."""

    @property
    def model(self) -> Any:
        """The network."""

    def compute_critic(self, obs: Obs, state: State = None) -> Tensor:
        """Outputs of the critic [N], without gradient."""

    def logit_of(self, batch: Columns) -> Tensor:
        """Logits of the current policy, in the shape of the batch's column 'logit'."""
