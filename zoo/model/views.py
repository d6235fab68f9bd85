"""Views: the entries of an observation that the actor and the critic see, an action mask left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from zoo.config.messages import shown
from zoo.core.errors import UserError
from zoo.core.spaces import ACTION_MASK, Dict, Space, mask_space
from zoo.model.inputs import without_mask


class Views(NamedTuple):
    """What the networks see of an observation, an action mask left out.

    input: all that either of them sees; actor, critic: what each sees, the same object where it is the same.
    leaf: name of the one entry that is all they see, whose space `input` then is; None where they see the observation
      as it is, or a part of a Dict.
    acting: names of the entries that acting needs; None if it needs all.
    """

    input: Space
    actor: Space
    critic: Space
    leaf: str | None
    acting: tuple[str, ...] | None


def views_of(
    obs_space: Space, actor_obs: Sequence[str] | None, critic_obs: Sequence[str] | None, keep_dict: bool = False
) -> Views:
    """The views of observations, of which None means all entries.

    Args: keep_dict: one entry stays in a Dict.
    Raises: UserError if a name is no entry of the observations, or these are no Dict, or hold a mask alone.
    """
    given = {'actor_obs': actor_obs, 'critic_obs': critic_obs}
    if not isinstance(obs_space, Dict):
        for key, names in given.items():
            if names is not None:
                raise UserError(
                    f'policy.model.{key} is {shown(list(names))} but the observations are no Dict, so they have no entries '
                    f'to choose from; leave {key} out'
                )
        return Views(obs_space, obs_space, obs_space, None, None)
    known = without_mask(obs_space).spaces
    if not known:
        raise UserError(f'the observations hold nothing but {ACTION_MASK!r}; add an entry that a network can see')
    for key, names in given.items():
        if unknown := [name for name in names or () if name not in known]:
            raise UserError(
                f'policy.model.{key} names {", ".join(map(repr, unknown))} but the entries of the observations are '
                f'{", ".join(map(repr, known))}; use some of these'
            )
    actor, critic = (set(known if names is None else names) for names in given.values())
    acting = None if actor == set(known) else _acting_names(obs_space, actor)
    if actor == critic and len(actor) == 1 and not keep_dict:
        (leaf,) = actor
        if not isinstance(known[leaf], Dict):
            return Views(known[leaf], known[leaf], known[leaf], leaf, acting)
    view = _part(obs_space, actor)
    if actor == critic:
        return Views(view, view, view, None, acting)
    return Views(_part(obs_space, actor | critic), view, _part(obs_space, critic), None, acting)


def _part(space: Dict, names: set[str]) -> Dict:
    return Dict({name: each for name, each in space.spaces.items() if name in names}, space.is_tuple)


def _acting_names(space: Dict, actor: set[str]) -> tuple[str, ...]:
    needed = actor | ({ACTION_MASK} if mask_space(space) is not None else set())
    return tuple(name for name in space.spaces if name in needed)
