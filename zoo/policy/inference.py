"""Inference: acting through whole episodes, values, distributions of actions, drawn actions, log-probabilities of given ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from zoo.core.action_map import first_row, forbids_all
from zoo.core.data import Obs, State, first_leaf, leaves, map_tensors
from zoo.core.errors import UserError, shown
from zoo.core.spaces import ACTION_MASK, Dict, Raw, Space, mask_space, n_lead, obs_to_tensor
from zoo.policy.config import PolicyConfig
from zoo.policy.modes import EvalMode
from zoo.policy.sequences import replace_rows
from zoo.rl_utils.distribution import ActionDist

logger = logging.getLogger(__name__)


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

    def _initial_state(self) -> Callable[[int], State] | None:
        """Makes the state of a number of envs at the start of episodes; None: the model has no memory."""

    def _judge(self, obs: Obs, with_value: bool) -> tuple[ActionDist, Tensor, Tensor | None]:
        """The distribution, its parameters, and values."""

    def _judge_in_state(self, obs: Obs, state: State) -> tuple[ActionDist, Tensor, Tensor | None, State]:
        """As `_judge` with values, in a state; returns the next one too."""


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
        if self._mode.initial_state is None:
            return None
        if self.state is None:
            return self._mode.initial_state(n_env)
        n = len(first_leaf(self.state))
        if n != n_env:
            raise UserError(f'act got {n_env} observations but the session is of {n} envs; call reset() before')
        if begins is None:
            return self.state
        return replace_rows(_read_begins(begins, n_env), self._mode.initial_state(n_env), self.state)


_MEMORY = 'but the model has a memory: give state=, which sample returned for the observations before, or begins=True'


def state_before(
    call: str, initial_state: Callable[[int], State] | None, n_env: int, state: State, begins: Raw
) -> State:
    """The state of the model before observations, for `Policy.sample` and the like; None for a model without a memory,
    and for one that gets neither state nor begins, which is warned of once.

    Args: call: the name of the method, for messages; initial_state: of the model, None without a memory; n_env:
      observations; state, begins: as given.
    Raises: UserError if the two do not fit the model or the observations.
    """
    if initial_state is None:
        if state is not None or begins is not None:
            raise UserError(f'{call} got state or begins but the model has no memory; leave them out')
        return None
    if state is None and begins is None:
        say_first_state(call)
        return None
    first = initial_state(n_env)
    if state is None:
        if not _read_begins(begins, n_env).all():
            raise UserError(f'{call} got no state for rows in which no episode begins, {_MEMORY}')
        return first
    _check_state(call, state, first)
    if begins is None:
        return state
    return replace_rows(_read_begins(begins, n_env), first, state)


@cache
def say_first_state(call: str) -> None:
    """Warns, once in a process, that a method of `Policy` takes the first state of an episode."""
    logger.warning('%s got no state, %s; it takes the state at the start of an episode', call, _MEMORY)


def _check_state(call: str, state: State, first: State) -> None:
    """Raises: UserError if a state has other entries or shapes than the model's first one."""
    shapes, wanted = ({name: list(getattr(x, 'shape', ())) for name, x in leaves(tree)} for tree in (state, first))
    if shapes != wanted:
        raise UserError(f'{call} got a state of shapes {shapes} but the model needs {wanted} for these observations')


def _read_begins(begins: Raw, n_env: int) -> Tensor:
    """`begins` as [B] bool. Raises: UserError if it is neither one bool nor one for each env."""
    given = np.asarray(_off_device(begins))
    if given.dtype != bool or given.shape not in ((), (n_env,)):
        raise UserError(f'begins is {begins!r} but must be one bool, or one for each of the {n_env} envs')
    return torch.as_tensor(given).expand(n_env)


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


class SampledWithState(NamedTuple):
    """Drawn actions of a model with a memory: as `Sampled`, and the state after the observations."""

    action: Tensor
    log_prob: Tensor
    value: Tensor | None
    state: State  # {name: [B, ...]}, also for a single observation


class Judged(NamedTuple):
    """A policy's evaluation of given actions, with gradient."""

    log_prob: Tensor  # [B]; 0-dim for a single observation
    entropy: Tensor  # [B], nats
    value: Tensor | None  # [B], in return units; None: the policy trains no critic


class JudgedWithState(NamedTuple):
    """A policy's evaluation of given actions in a state: as `Judged`, and the state after the observations, with gradient."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor | None
    state: State  # {name: [B, ...]}, also for a single observation


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


def judged(
    policy: InferencePolicy, obs: Raw, call: str, state: State, begins: Raw
) -> tuple[ActionDistribution, Tensor | None, State]:
    """A policy's distribution and values for raw observations, and the state after them, None without a memory.

    Args: call: the method of `Policy` that asks; 'distribution' needs no values; state, begins: see `Policy.value`.
    """
    batch, is_single = read_obs(policy, obs)
    before = state_before(call, policy._initial_state(), len(first_leaf(batch)), state, begins)
    after = None
    if before is None:
        dist, logit, value = policy._judge(batch, call != 'distribution')
    else:
        dist, logit, value, after = policy._judge_in_state(batch, before)
    if is_single and value is not None:
        value = value[0]
    return ActionDistribution(dist, logit, is_single), value, after
