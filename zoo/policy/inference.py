"""Inference: acting through whole episodes, values, distributions of actions, drawn actions, log-probabilities of given ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from zoo.core.action_map import first_row, forbids_all
from zoo.core.data import Obs, State, first_leaf, map_tensors
from zoo.core.errors import UserError, shown
from zoo.core.spaces import ACTION_MASK, Dict, Raw, Space, mask_space, n_lead, obs_to_tensor
from zoo.policy.config import PolicyConfig
from zoo.policy.modes import EvalMode
from zoo.policy.sequences import replace_rows
from zoo.rl_utils.distribution import ActionDist


class InferencePolicy(Protocol):
    """Protocol of a policy as inference uses it: spaces and acting."""

    cfg: PolicyConfig
    obs_space: Space
    action_space: Space

    @property
    def eval_mode(self) -> EvalMode:
        """The functions for acting."""

    def env_action(self, action: Tensor) -> Any:
        """Converts actions for the env."""

    def _optional_obs(self) -> tuple[str, ...]:
        """Entries of a Dict observation that acting does not read."""


class Session:
    """Acting of a policy in one env, or a batch of envs, through whole episodes.

    A recurrent state is kept between calls; mark the start of an episode with `begins`, or call `reset`.
    """

    def __init__(self, policy: InferencePolicy) -> None:
        self._policy = policy
        self._mode = policy.eval_mode
        self.state: State = None

    def reset(self) -> None:
        """Starts new episodes in all envs; their number may change."""
        self.state = None

    def act(
        self, obs: Raw, begins: Raw = None, deterministic: bool = True, generator: torch.Generator | None = None
    ) -> Any:
        """Returns actions for the env, for one raw observation [*O], or a batch [B, *O] in the order of the last call.

        Args:
          begins: [B] bool, or one bool: an episode begins with this observation.
          deterministic: take the likeliest action; False: draw one from the policy, by `generator` (None: torch's own).
        Raises: UserError if obs is not in the observation space or has another number of envs than before, or if the
          policy cannot draw actions.
        """
        if not isinstance(deterministic, bool):
            raise UserError(f'deterministic is {shown(deterministic)} but must be true or false')
        batch, is_single = read_obs(self._policy, obs)
        if deterministic:
            forward = self._mode.forward
        else:
            forward = self._drawing(generator)
        output = forward(batch, self._before(len(first_leaf(batch)), begins))
        self.state = output.get('state')
        actions = self._policy.env_action(output['action'])
        if is_single:
            return first_row(actions)
        return actions

    def _drawing(self, generator: torch.Generator | None) -> Callable[[Obs, State], dict[str, Any]]:
        draw = self._mode.sample
        if draw is None:
            raise UserError(
                f'policy {self._policy.cfg.type!r} draws no actions outside of collecting; give it a method '
                '_forward_sample, or act with deterministic=True'
            )
        if generator is not None and not isinstance(generator, torch.Generator):
            raise UserError(
                f'generator is {shown(generator)} but must be a torch.Generator, e.g. of manual_seed, or None'
            )
        return lambda obs, state: draw(obs, state, generator)

    def _before(self, n_env: int, begins: Raw) -> State:
        if self.state is None or self._mode.initial_state is None:
            return None
        n = len(first_leaf(self.state))
        if n != n_env:
            raise UserError(f'act got {n_env} observations but the session is of {n} envs; call reset() before')
        if begins is None:
            return self.state
        given = np.asarray(begins)
        if given.dtype != bool or given.shape not in ((), (n_env,)):
            raise UserError(f'begins is {begins!r} but must be one bool, or one for each of the {n_env} envs')
        return replace_rows(torch.as_tensor(given).expand(n_env), self._mode.initial_state(n_env), self.state)


def read_obs(policy: InferencePolicy, obs: Raw) -> tuple[Obs, bool]:
    """Returns raw observations (arrays, tensors, nested dicts of them) as a batch [B, *O], and whether it was a single one.

    Raises: UserError if obs is not in the observation space, or if an action mask forbids every action.
    """
    space = policy.obs_space
    if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict) and not isinstance(space, Dict):
        raise UserError(
            'obs is a pair of an observation and a dict, as reset returns it; give the observation alone: obs[0]'
        )
    batch = obs_to_tensor(space, _off_device(obs), optional=policy._optional_obs())
    is_single = n_lead(space, batch) == 0
    if is_single:
        batch = map_tensors(lambda x: x.unsqueeze(0), batch)
    if mask_space(space) is not None and bool((none := forbids_all(policy.action_space, batch[ACTION_MASK])).any()):
        row = int(none.nonzero()[0])
        raise UserError(f'the action mask of observation {row} forbids every action; it must allow one or more')
    return batch, is_single


def _off_device(obs: Raw) -> Raw:
    """Converts tensors at any depth to arrays, since numpy reads no tensor that is on a GPU or requires a gradient."""
    if isinstance(obs, Mapping):
        return {name: _off_device(each) for name, each in obs.items()}
    if isinstance(obs, tuple):
        return tuple(map(_off_device, obs))
    if isinstance(obs, Tensor):
        return obs.detach().cpu().numpy()
    return obs


class Sampled(NamedTuple):
    """Drawn actions. `Policy.env_action` converts them for an env."""

    action: Tensor  # [B], [B, K] or [B, D], unconverted; without B for a single observation
    log_prob: Tensor  # [B]
    value: Tensor | None  # [B], in return units; None: the policy trains no critic


class Judged(NamedTuple):
    """A policy's evaluation of given actions, with gradient."""

    log_prob: Tensor  # [B]; 0-dim for a single observation
    entropy: Tensor  # [B], nats
    value: Tensor | None  # [B], in return units; None: the policy trains no critic


class ActionDistribution:
    """The distribution of a policy's actions for one observation, or for each of a batch.

    Actions are those of the policy (see `Sampled`), before they are clipped or rescaled to the bounds of the env.
    Attributes: param: the distribution's parameters, [B, P], or [P] for one observation.
    """

    def __init__(self, dist: ActionDist, param: Tensor, is_single: bool) -> None:
        self._dist = dist
        self._rows = param
        self._is_single = is_single

    @property
    def name(self) -> str:
        """The registered name, such as 'categorical' or 'gaussian'."""
        return self._dist.name

    @property
    def param(self) -> Tensor:
        """The parameters as one vector per observation, such as the logits of a categorical distribution."""
        return self._out(self._rows)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Drawn actions. generator: None: torch's own."""
        noise = self._dist.noise((len(self._rows),), generator, self._rows.device)
        return self._out(self._dist.sample(self._rows, noise))

    def mode(self) -> Tensor:
        """The likeliest actions."""
        return self._out(self._dist.mode(self._rows))

    def log_prob(self, action: Raw) -> Tensor:
        """Log-probability (or density) of the actions, [B]. Raises: UserError if they do not fit the observations."""
        rows = self._actions(action)
        try:
            return self._out(self._dist.log_prob(self._rows, rows))
        except (ValueError, IndexError, RuntimeError) as error:  # of an index that the distribution does not have
            raise UserError(f'the actions are none of the policy: {error}') from error

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

    def _actions(self, action: Raw) -> Tensor:
        if self._dist.is_index:
            dtype = torch.int64
        else:
            dtype = torch.float32
        try:
            given = torch.as_tensor(action, device=self._rows.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f'action is {shown(action)} but must be an array or tensor of numbers') from error
        if self._dist.is_index and not torch.equal(given, given.to(dtype).to(given.dtype)):
            raise UserError(f'action is {shown(action)} but the policy chooses by index; give integers')
        if self._is_single:
            rows = given.to(dtype).unsqueeze(0)
        else:
            rows = given.to(dtype)
        try:
            self._dist.check_action(rows, self._rows.shape[:-1])
        except ValueError as error:
            raise UserError(f'the actions do not fit the {len(self._rows)} observations: {error}') from error
        return rows

    def _out(self, rows: Tensor) -> Tensor:
        if self._is_single:
            return rows[0]
        return rows
