"""Greedy acting through whole episodes, as the env takes actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from zoo.core.action_map import first_row, forbids_all
from zoo.core.data import State, first_leaf, map_tensors, replace_rows
from zoo.core.errors import UserError
from zoo.core.spaces import ACTION_MASK, mask_space, n_lead, obs_to_tensor

if TYPE_CHECKING:
    from zoo.policy.base import Policy


class Session:
    """Greedy acting of a policy in one env, or a batch of envs, through whole episodes.

    A recurrent state is kept from call to call; say with `begins` where an episode begins, or call `reset`.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._mode = policy, policy.eval_mode
        self._state: State = None

    def reset(self) -> None:
        """All episodes begin anew, with any number of envs."""
        self._state = None

    def act(self, obs: Any, begins: Any = None) -> Any:
        """Actions as the env takes them, for one raw observation [*O], or a batch [B, *O] in the order of the last call.

        Args: begins: [B] bool, or one bool: an episode begins with this observation.
        Raises: UserError if obs is not of the space of observations, or of another number of envs than before.
        """
        policy, space = self._policy, self._policy.obs_space
        batch = obs_to_tensor(space, obs, optional=policy._optional_obs())
        is_single = n_lead(space, batch) == 0
        batch = map_tensors(lambda x: x.unsqueeze(0), batch) if is_single else batch
        if mask_space(space) is not None and bool((none := forbids_all(policy.action_space, batch[ACTION_MASK])).any()):
            row = int(none.nonzero()[0])
            raise UserError(f'the action mask of observation {row} forbids every action; it must allow one or more')
        output = self._mode.forward(batch, self._before(len(first_leaf(batch)), begins))
        self._state = output.get('state')
        action = output['action']
        actions = policy._action_map(action if self._mode.env_action is None else self._mode.env_action(action))
        return first_row(actions) if is_single else actions

    def _before(self, n_env: int, begins: Any) -> State:
        if self._state is None or self._mode.initial_state is None:
            return None
        if (n := len(first_leaf(self._state))) != n_env:
            raise UserError(f'act got {n_env} observations but the session is of {n} envs; call reset() before')
        if begins is None:
            return self._state
        given = np.asarray(begins)
        if given.dtype != bool or given.shape not in ((), (n_env,)):
            raise UserError(f'begins is {begins!r} but must be one bool, or one for each of the {n_env} envs')
        rows = torch.as_tensor(given).expand(n_env)
        return replace_rows(rows, self._mode.initial_state(n_env), self._state)
