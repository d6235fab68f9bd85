"""What a policy says of observations: values, distributions of actions, drawn actions, log-probabilities of given ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from zoo.config.messages import shown
from zoo.core.errors import UserError
from zoo.policy.session import read_obs
from zoo.rl_utils.distribution import ActionDist

if TYPE_CHECKING:
    from zoo.policy.base import Policy


class Sampled(NamedTuple):
    """Actions that were drawn. `Policy.env_action` turns them into those that an env takes."""

    action: Tensor  # [B], [B, K] or [B, D], as the policy has it; of one observation without B
    log_prob: Tensor  # [B]
    value: Tensor | None  # [B], in return units; None: the policy trains no critic


class Judged(NamedTuple):
    """What a policy thinks of given actions; with gradient."""

    log_prob: Tensor  # [B]; of one observation 0-dim
    entropy: Tensor  # [B], nats
    value: Tensor | None  # [B], in return units; None: the policy trains no critic


class ActionDistribution:
    """The distribution of a policy's actions for one observation, or for each of a batch.

    Actions are those of the policy (see `Sampled`), before they are clipped or rescaled to the bounds of the env.
    Attributes: param: the distribution's parameters, [B, P], or [P] for one observation.
    """

    def __init__(self, dist: ActionDist, param: Tensor, is_single: bool) -> None:
        self._dist, self._rows, self._is_single = dist, param, is_single

    @property
    def name(self) -> str:
        """The registered name, such as 'categorical' or 'gaussian'."""
        return self._dist.name

    @property
    def param(self) -> Tensor:
        """The parameters in one row, such as the logits of a categorical one."""
        return self._out(self._rows)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Drawn actions. generator: None: torch's own."""
        noise = self._dist.noise((len(self._rows),), generator, self._rows.device)
        return self._out(self._dist.sample(self._rows, noise))

    def mode(self) -> Tensor:
        """The likeliest actions."""
        return self._out(self._dist.mode(self._rows))

    def log_prob(self, action: Any) -> Tensor:
        """Log-probability (or density) of the actions, [B]. Raises: UserError if they do not fit the observations."""
        return self._out(self._log_prob(self._actions(action)))

    def entropy(self) -> Tensor:
        """Entropy in nats, [B]."""
        return self._out(self._dist.entropy(self._rows))

    def kl(self, other: ActionDistribution) -> Tensor:
        """KL(this || other) in nats, [B]; other: of the same number of observations."""
        if other.name != self.name or other._rows.shape != self._rows.shape:
            raise UserError(
                f'kl got a {other.name} distribution with parameters {list(other._rows.shape)} but this one is '
                f'{self.name} with {list(self._rows.shape)}; give one of the same policy and number of observations'
            )
        return self._out(self._dist.kl(self._rows, other._rows))

    def _actions(self, action: Any) -> Tensor:
        dtype = torch.int64 if self._dist.is_index else torch.float32
        try:
            given = torch.as_tensor(action, device=self._rows.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f'action is {shown(action)} but must be an array or tensor of numbers') from error
        if self._dist.is_index and not torch.equal(given, given.to(dtype).to(given.dtype)):
            raise UserError(f'action is {shown(action)} but the policy chooses by index; give integers')
        rows = given.to(dtype).unsqueeze(0) if self._is_single else given.to(dtype)
        try:
            self._dist.check_action(rows, self._rows.shape[:-1])
        except ValueError as error:
            raise UserError(f'the actions do not fit the {len(self._rows)} observations: {error}') from error
        return rows

    def _log_prob(self, rows: Tensor) -> Tensor:
        """Raises: UserError for an index that the distribution does not have."""
        try:
            return self._dist.log_prob(self._rows, rows)
        except (ValueError, IndexError, RuntimeError) as error:
            raise UserError(f'the actions are none of the policy: {error}') from error

    def _out(self, rows: Tensor) -> Tensor:
        return rows[0] if self._is_single else rows


def distribution_of_obs(policy: Policy, obs: Any) -> ActionDistribution:
    """See `Policy.distribution`."""
    batch, is_single = read_obs(policy, obs)
    with torch.no_grad():
        dist, logit, _ = policy._judge(batch, with_value=False)
    return ActionDistribution(dist, logit, is_single)


def value_of_obs(policy: Policy, obs: Any) -> Tensor:
    """See `Policy.value`."""
    batch, is_single = read_obs(policy, obs)
    with torch.no_grad():
        _, _, value = policy._judge(batch, with_value=True)
    if value is None:
        raise UserError(
            f'policy {policy.cfg.type!r} trains no critic, so it knows no values; use a policy with a critic, such as ppo'
        )
    return value[0] if is_single else value


def sampled(policy: Policy, obs: Any, generator: torch.Generator | None) -> Sampled:
    """See `Policy.sample`."""
    batch, is_single = read_obs(policy, obs)
    with torch.no_grad():
        dist, logit, value = policy._judge(batch, with_value=True)
        action = dist.sample(logit, dist.noise((len(logit),), generator, logit.device))
        log_prob = dist.log_prob(logit, action)
    if not is_single:
        return Sampled(action, log_prob, value)
    return Sampled(action[0], log_prob[0], None if value is None else value[0])


def judged(policy: Policy, obs: Any, action: Any) -> Judged:
    """See `Policy.evaluate_actions`."""
    batch, is_single = read_obs(policy, obs)
    dist, logit, value = policy._judge(batch, with_value=True)
    found = ActionDistribution(dist, logit, is_single)
    return Judged(found.log_prob(action), found.entropy(), value[0] if is_single and value is not None else value)
