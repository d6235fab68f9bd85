"""Interfaces of a policy: the three modes that a learner, a collector and an evaluator get; what its update options see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from zoo.backend.executor import Acting
from zoo.core.data import Columns, Metrics, Obs, Rollout, Sample, State, StateRecorder, Transition
from zoo.core.ranks import RunInfo
from zoo.core.spaces import Space

if TYPE_CHECKING:
    from zoo.config.schedule import Rates
    from zoo.policy.config import ActorCriticPolicyConfig
    from zoo.policy.objective import Objective
    from zoo.policy.slots import Units
    from zoo.rl_utils.distribution import ActionDist
    from zoo.rl_utils.optimizer import FlatOptimizer


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
    recorder: StateRecorder | None = None  # keeps the recurrent states of rollouts; None: they are kept whole


class EvalMode(NamedTuple):
    """Functions of a policy for an evaluator."""

    forward: Callable[[Obs, State], dict[str, Any]]
    initial_state: Callable[[int], State] | None = None
    env_action: Callable[[Tensor], Tensor] | None = None  # as in `CollectMode`
    # like forward, with actions drawn from the policy; None: the policy cannot draw
    sample: Callable[[Obs, State, torch.Generator | None], dict[str, Any]] | None = None


Mode = Literal['learn', 'collect', 'eval']


MODES: tuple[Mode, ...] = ('learn', 'collect', 'eval')


class UpdateSamples(Protocol):
    """Protocol of the samples of a policy (`zoo.policy.samples.Samples`), as its options see them."""

    @property
    def units(self) -> Units:
        """Converts between outputs of the critic and returns."""

    @property
    def by_ratios(self) -> bool:
        """Whether the estimator weighs rows by log p_now - log p_behaviour."""

    def rows_once(self, batch: Columns) -> tuple[Columns, Tensor | None]:
        """Returns a batch as rows, and weights [N] with which statistics count every row once; None: all equal."""

    def estimate_again(self, batch: Columns, outputs: tuple[Tensor, Tensor], *log_ratio: Tensor) -> dict[str, Any]:
        """Returns a batch of a whole rollout with value, adv and return_ by other outputs of the critic, [T, B] each."""


class UpdatePasses(Protocol):
    """Protocol of the passes of a policy (`zoo.policy.passes.Passes`), as its options see them."""

    @property
    def train_iter(self) -> int:
        """Gradient steps so far."""


class Owner(Protocol):
    """Protocol of a policy as its options see it: they read its attributes, and set none.

    `samples` exist when the options have filled the slots of the update, `passes` and `optimizers` when the learn mode is built.
    """

    @property
    def cfg(self) -> ActorCriticPolicyConfig:
        """The resolved section `policy`."""

    @property
    def run(self) -> RunInfo:
        """Information about the run that the policy belongs to."""

    @property
    def seed(self) -> int:
        """The seed of the run."""

    @property
    def obs_space(self) -> Space:
        """Observations of one env."""

    @property
    def action_space(self) -> Space:
        """Actions of one env."""

    @property
    def device(self) -> torch.device:
        """Device of the model."""

    @property
    def model(self) -> nn.Module:
        """The network."""

    @property
    def dist(self) -> ActionDist:
        """The distribution of actions."""

    @property
    def objective(self) -> Objective:
        """The losses that the config names."""

    @property
    def rates(self) -> Rates:
        """Values of schedules by name; an option that has others returns them from `choose_rates`."""

    @property
    def samples(self) -> UpdateSamples:
        """Makes samples from rollouts."""

    @property
    def passes(self) -> UpdatePasses:
        """Takes the steps of updates."""

    @property
    def optimizers(self) -> Mapping[str, FlatOptimizer]:
        """The optimisers by name."""

    @property
    def normalizers(self) -> nn.ModuleDict:
        """Modules with running statistics, by the name under which checkpoints save them."""

    @property
    def has_state(self) -> bool:
        """Whether the model is recurrent."""

    @property
    def has_critic(self) -> bool:
        """Whether updates train a critic."""

    @property
    def learns(self) -> bool:
        """Whether the policy has the learn mode."""

    @property
    def explores(self) -> bool:
        """Whether the policy has the learn mode or the collect mode."""

    def compute_critic(self, obs: Obs, state: State = None) -> Tensor:
        """Outputs of the critic [N], without gradient."""

    def logit_of(self, batch: Columns) -> Tensor:
        """Logits of the current policy, in the shape of the batch's column 'logit'."""

    def policy_moved(self) -> None:
        """Tells all options that something other than the passes of an update changed the policy."""
