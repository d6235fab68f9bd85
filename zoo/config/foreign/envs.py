"""Env ids as other libraries write them -> `env.id`, `env.game` and `env.kwargs`."""

from __future__ import annotations

import re
from typing import Any

from zoo.config.foreign.conversion import Draft

_ATARI = re.compile(r'(?:ALE/)?(?P<game>[A-Za-z]+?)(?P<kind>NoFrameskip|Deterministic)?-(?:ram-)?v\d+$')
_GAMES = frozenset(
    'bigfish bossfight caveflyer chaser climber coinrun dodgeball fruitbot heist jumper leaper maze miner ninja plunder '
    'starpilot'.split()
)


def put_env(draft: Draft, name: str, old: str) -> None:
    """Sets env.id (of a game env.game too) from a gym id, an Atari id, or the name of a Procgen game.

    An id of a version that gymnasium no longer has becomes its newest version. Args: old: text about its origin.
    """
    procgen = re.match(r'(?:procgen[:-])?(?:procgen-)?([a-z]+)(?:-v0)?$', name)
    if procgen and procgen[1] in _GAMES:
        draft.put('env.id', 'procgen', old)
        draft.put('env.game', procgen[1], old)
        return
    atari = _ATARI.match(name)
    if atari and (atari['kind'] or name.startswith('ALE/')):
        draft.put('env.id', 'atari', old, 'with the usual wrappers, see the extra atari')
        draft.put('env.game', atari['game'], old)
        return
    now, note = _registered(name)
    draft.put('env.id', now, old, note)


def is_image_env(draft: Draft) -> bool:
    """Whether the env is of a family whose observations are images."""
    return draft.at('env.id') in ('atari', 'procgen')


def _registered(name: str) -> tuple[str, str]:
    """The id, or its newest registered version; and a note if it is another one, or unknown."""
    import gymnasium

    if name in gymnasium.registry or ':' in name:
        return name, ''
    base = re.sub(r'-v\d+$', '', name)
    found = [other for other in gymnasium.registry if re.fullmatch(rf'{re.escape(base)}-v\d+', other)]
    if not found:
        return name, 'gymnasium does not know it: import the package that registers it, zoo train --import'
    newest = max(found, key=lambda other: int(other.rsplit('-v', 1)[1]))
    return newest, f'the newest version; gymnasium has no {name}'


def put_frame_stack(draft: Draft, n: Any, old: str) -> None:
    """Sets how many frames an observation has."""
    if draft.at('env.id') == 'atari':
        draft.put('env.kwargs.frame_stack', n, old)
    elif n not in (None, 0, 1):
        draft.put('env.window', n, old, 'the first frame of an episode fills the window')
