"""Update options: objects that the config adds to an update, each in one file with its section, checks and state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from zoo.core.data import Columns, Metrics, Rollout, Transition
from zoo.policy.modes import Owner as Owner

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots


class Estimated(NamedTuple):
    """Inputs of the samples of a rollout, [T, B] each.

    reward: scaled, as advantages use it; output: of the critic, in its own unit; weight: of the rows, None: all 1.
    """

    reward: Tensor
    output: Tensor
    weight: Tensor | None


def has_own(option: UpdateOption, method: str) -> bool:
    """Whether an option defines a method of `UpdateOption` itself, so that calling it does something."""
    return getattr(type(option), method) is not getattr(UpdateOption, method) or method in vars(option)


class UpdateOption:
    """Base of update options, which a config adds to a plain policy. The methods of this class change nothing.

    To add one, write a subclass and register it with `@OPTION_REGISTRY.register(name)`. `policy.learn.options: [name]` then
    uses it; its class attribute `config`, a Section, declares its keys. It is constructed as `cls(section)`.
    Attributes: key: of the config that chooses it, for errors; phase: the part of the update whose batches `before_update`
      gets, if policy and value draw separately; names: names of the metrics that the option adds; components: what an executor must know of it (kind, name, options): C
      runs no step with one that it does not know.
    """

    key: ClassVar[str] = ''
    phase: ClassVar[Literal['policy', 'value', 'all']] = 'policy'
    names: tuple[str, ...] = ()
    components: Sequence[Any] = ()

    @property
    def title(self) -> str:
        """How errors name it: by its key, or its class."""
        return self.key or f'option {type(self).__name__}'

    def problems(self, policy: Owner) -> Iterator[str]:
        """Yields a sentence for each setting that conflicts with it, or ''; the sentence names both, and the remedy."""
        yield from ()

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        """Fills the slots of the policy's update that it chooses; called once, before the update and the modes are built."""

    def attach(self, policy: Owner) -> None:
        """Older form of `fill`, called after it for one more release: sets attributes of `policy.samples` and others."""

    def mechanics(self) -> Mapping[str, Any]:
        """Keywords of `FlatOptimizer.configure` for every optimiser."""
        return {}

    def attach_learn(self, policy: Owner) -> None:
        """Called once, when the learn mode is built; the update and the optimisers then exist."""

    def set_env_step(self, env_step: int) -> None:
        """Sets its schedules to their values at an env step."""

    def choose_rates(self) -> Mapping[str, float]:
        """Returns values of rates, by their keys in `policy.learn`, in place of those of their schedules.

        Called after `set_env_step`, and when an update begins, after `before_update`.
        """
        return {}

    def choose_weights(self) -> Mapping[str, float]:
        """Returns weights of penalties, by their names; called with `choose_rates`, and after `load_state_dict`."""
        return {}

    def process_transition(self, transition: Transition) -> Transition:
        """Returns the columns to store of a rollout, [T, B, ...]."""
        return transition

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> Mapping[str, Any]:
        """Returns columns [T, B, ...] to add to the samples."""
        return {}

    def advantage(self, columns: Mapping[str, Any]) -> Tensor:
        """Returns the advantages, from 'adv' and the columns of `add_columns`; called after each estimation."""
        return columns['adv']

    def rows_collected(self, rows: Columns, weight: Tensor | None) -> None:
        """Adds the rows [N] of a rollout to running statistics; called once for each, if the buffer gives draws of rollouts.

        Args: weight: [N], 0 for rows that do not count; None: all count.
        """

    def begin_update(self) -> None:
        """Called when an update begins."""

    def before_update(self, batch: Columns) -> Columns:
        """The batch as the update reads it."""
        return batch

    def after_passes(self, batch: Columns, trained: Any) -> Metrics:
        """Called after the passes on the policy; returns metrics. trained: `zoo.policy.passes.Trained`."""
        return {}

    def after_update(self, batch: Columns) -> Metrics:
        """Called after all passes of the update; returns metrics."""
        return {}

    def policy_moved(self) -> None:
        """Called when something other than the passes of an update changed the policy: an auxiliary phase, or plasticity."""

    def model_replaced(self) -> None:
        """Called when the model got other parameters: resets the copies of parameters that the option keeps to these."""

    def forget(self, envs: slice) -> None:
        """Called when these envs begin new episodes because the old ones were lost."""

    def forget_all(self) -> None:
        """Called when all envs were reset between two rollouts; their number may have changed."""

    def state_dict(self) -> dict[str, Any]:
        """Returns its entries of the policy's learn state, under a name of its own; {} if it keeps nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies its own entries of a policy's learn state in; older states may lack them."""
