"""Env ids as other libraries write them -> `env.id`, `env.game` and `env.kwargs`."""

from __future__ import annotations

from typing import Any

import gymnasium

from zoo.env.ids import game_of, versions_of
from zoo.tools.importers.conversion import Draft

EXAMPLES = {'atari': 'Pong', 'procgen': 'coinrun'}
"""Family -> one of its games; a block of that name, as rl-zoo3 has it, holds for all of them."""


def put_env(draft: Draft, name: str, old: str) -> None:
    """Sets env.id (of a game env.game too) from a gym id, an Atari id, or the name of a Procgen game.

    An id of a version that gymnasium no longer has becomes its newest version. Args: old: text about its origin.
    """
    game = None if _is_own(name) else game_of(name)
    if name in EXAMPLES:
        draft.put(
            'env.id',
            name,
            old,
            f'it has many games: name one with env.game, e.g. zoo train .. env.game={EXAMPLES[name]}',
        )
    elif game is None:
        now, note = _registered(name)
        draft.put('env.id', now, old, note)
    elif game.is_ram:
        draft.refuse(f'{old}: {game.sentence()}')
    else:
        note = 'with the usual wrappers, see the extra atari' if game.family == 'atari' else ''
        draft.put('env.id', game.family, old, note)
        draft.put('env.game', game.name, old)


def is_image_env(draft: Draft) -> bool:
    """Whether the env is of a family whose observations are images."""
    return draft.at('env.id') in ('atari', 'procgen')


def _is_own(name: str) -> bool:
    """Whether the id is registered, and not by the package of the Atari games."""
    return name in gymnasium.registry and 'ale_py' not in str(gymnasium.registry[name].entry_point)


def _registered(name: str) -> tuple[str, str]:
    """The id, or its newest registered version; and a note if it is another one, or unknown."""
    found = [spec.id for spec in versions_of(name)]
    if name in found or ':' in name:
        return name, ''
    if not found:
        return name, 'gymnasium does not know it: import the package that registers it, zoo train --import'
    return found[-1], f'the newest version; gymnasium has no {name}'


def put_frame_stack(draft: Draft, n: Any, old: str) -> None:
    """Sets how many frames an observation has."""
    if draft.at('env.id') == 'atari':
        draft.put('env.kwargs.frame_stack', n, old)
    elif n not in (None, 0, 1):
        draft.put('env.window', n, old, 'the first frame of an episode fills the window')
