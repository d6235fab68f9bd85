"""Acting through whole episodes, as the env takes actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from zoo.config.messages import shown
from zoo.core.action_map import first_row, forbids_all
from zoo.core.data import Obs, State, first_leaf, map_tensors, replace_rows
from zoo.core.errors import UserError
from zoo.core.spaces import ACTION_MASK, Dict, mask_space, n_lead, obs_to_tensor

if TYPE_CHECKING:
    from zoo.policy.base import Policy


class Session:
    """Acting of a policy in one env, or a batch of envs, through whole episodes.

    A recurrent state is kept from call to call; say with `begins` where an episode begins, or call `reset`.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._mode = policy, policy.eval_mode
        self._state: State = None

    def reset(self) -> None:
        """All episodes begin anew, with any number of envs."""
        self._state = None

    def act(
        self, obs: Any, begins: Any = None, deterministic: bool = True, generator: torch.Generator | None = None
    ) -> Any:
        """Actions as the env takes them, for one raw observation [*O], or a batch [B, *O] in the order of the last call.

        Args:
          begins: [B] bool, or one bool: an episode begins with this observation.
          deterministic: the likeliest action; false: one drawn from the policy, by `generator` (None: torch's own).
        Raises: UserError if obs is not of the space of observations, or of another number of envs than before; or if
          the policy draws no actions.
        """
        if not isinstance(deterministic, bool):
            raise UserError(f'deterministic is {shown(deterministic)} but must be true or false')
        batch, is_single = read_obs(self._policy, obs)
        forward = self._mode.forward if deterministic else self._drawing(generator)
        output = forward(batch, self._before(len(first_leaf(batch)), begins))
        self._state = output.get('state')
        actions = self._policy.env_action(output['action'])
        return first_row(actions) if is_single else actions

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


def read_obs(policy: Policy, obs: Any) -> tuple[Obs, bool]:
    """Raw observations of an env (arrays, tensors, nested dicts of them) as a batch [B, *O], and whether it was one alone.

    Raises: UserError if obs is not of the space of observations, or if an action mask forbids every action.
    """
    space = policy.obs_space
    if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict) and not isinstance(space, Dict):
        raise UserError(
            'obs is a pair of an observation and a dict, as reset returns it; give the observation alone: obs[0]'
        )
    batch = obs_to_tensor(space, _off_device(obs), optional=policy._optional_obs())
    is_single = n_lead(space, batch) == 0
    batch = map_tensors(lambda x: x.unsqueeze(0), batch) if is_single else batch
    if mask_space(space) is not None and bool((none := forbids_all(policy.action_space, batch[ACTION_MASK])).any()):
        row = int(none.nonzero()[0])
        raise UserError(f'the action mask of observation {row} forbids every action; it must allow one or more')
    return batch, is_single


def _off_device(obs: Any) -> Any:
    """Tensors as arrays, at any depth; numpy reads none that is on a GPU or has a gradient."""
    if isinstance(obs, Mapping):
        return {name: _off_device(each) for name, each in obs.items()}
    if isinstance(obs, tuple):
        return tuple(map(_off_device, obs))
    return obs.detach().cpu().numpy() if isinstance(obs, Tensor) else obs
