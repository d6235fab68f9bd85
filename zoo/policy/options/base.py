"""Update options: objects that the config adds to an update, each in one file with its section, checks and state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from zoo.config.schedule import Rates
from zoo.core.data import Columns, Metrics, Obs, Rollout, State, Transition
from zoo.core.ranks import RunInfo
from zoo.core.spaces import Space
from zoo.rl_utils.distribution import ActionDist


class Estimated(NamedTuple):
    """Estimates that the samples of a rollout are made from, [T, B] each.

    reward: as advantages count it; output: of the critic, in its own unit; weight: of the rows; None: all 1.
    """

    reward: Tensor
    output: Tensor
    weight: Tensor | None


def kept_output(estimated: Estimated) -> dict[str, Tensor]:
    """The column 'value_output': what the critic put out, in its own unit, for losses that compare with it.

    A value clip limits how far gradient steps move the critic's output, so its centre is the output that was there before
    the first of them, also in later draws from a buffer. The column 'value' cannot give it back: it is in return units,
    and the statistics that lead back move with the samples' own returns before the first step. Without a baseline that
    column is 0.
    """
    return {'value_output': estimated.output}


class Owner(Protocol):
    """The policy as its options see it.

    samples: `zoo.policy.samples.Samples`; rates: see zoo.config.schedule; passes: `zoo.policy.passes.Passes`; optimizers: by
      name, there once the learn mode is; normalizers: modules with running statistics, by name, which go into checkpoints;
      has_state: the model has a recurrent state; learns, explores: it has the learn mode; that or the collect mode.
    """

    run: RunInfo
    obs_space: Space
    device: torch.device
    seed: int
    samples: Any
    rates: Rates
    passes: Any
    optimizers: dict[str, Any]
    options: tuple[UpdateOption, ...]
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
        """Logits of the policy as it is now, in the shape of the batch's."""


class UpdateOption:
    """Something that the config adds to an update. Every method here does nothing; a plain policy has no option.

    Write a subclass and register it with `@OPTION_REGISTRY.register(name)`: `policy.learn.options: [name]` adds it, and its
    class attribute `config`, a Section, declares its keys. It is constructed as `cls(section)`.
    Attributes: phase: whose batches `before_update` is given, where policy and value have draws of their own; names: of
      the metrics that it adds.
    """

    phase: ClassVar[Literal['policy', 'value', 'all']] = 'policy'
    names: tuple[str, ...] = ()
    components: Sequence[Any] = ()

    def problems(self, policy: Owner) -> Iterator[str]:
        """A sentence for each setting that it does not go with, '' for none; it names both, and the remedy."""
        yield from ()

    def attach(self, policy: Owner) -> None:
        """Called once, before the modes are built; it may replace slots of `policy.samples` and `policy.objective`."""

    def mechanics(self) -> Mapping[str, Any]:
        """Keywords of `FlatOptimizer.configure` for every optimiser."""
        return {}

    def attach_learn(self, policy: Owner) -> None:
        """Called once, when the learn mode is built: optimisers and passes are there."""

    def set_env_step(self, env_step: int) -> None:
        """Takes the values of its schedules."""

    def process_transition(self, transition: Transition) -> Transition:
        """What is remembered of a rollout, [T, B, ...]."""
        return transition

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> Mapping[str, Any]:
        """Columns [T, B, ...] that the samples have in addition."""
        return {}

    def advantage(self, columns: Mapping[str, Any]) -> Tensor:
        """The advantages, from columns that have 'adv' and what `add_columns` gave; after each estimate."""
        return columns['adv']

    def begin_update(self) -> None:
        """An update begins."""

    def before_update(self, batch: Columns) -> Columns:
        """The batch as the update reads it."""
        return batch

    def after_passes(self, batch: Columns, trained: Any) -> Metrics:
        """The passes on the policy are done: metrics. trained: `zoo.policy.passes.Trained`."""
        return {}

    def after_update(self, batch: Columns) -> Metrics:
        """All passes of the update are done: metrics."""
        return {}

    def policy_moved(self) -> None:
        """Something other than the passes of an update moved the policy: an auxiliary phase, or plasticity."""

    def model_replaced(self) -> None:
        """The model was given other parameters: what is kept as a copy of them begins anew from these."""

    def forget(self, envs: slice) -> None:
        """These envs begin new episodes."""

    def forget_all(self) -> None:
        """All envs were reset between two rollouts, and there may be another number of them."""

    def state_dict(self) -> dict[str, Any]:
        """Its entries of the policy's learn state, by a name of its own; empty: it keeps nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies a policy's learn state in, as far as it is its own; older states may lack it."""
