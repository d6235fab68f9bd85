"""Ids of envs as other libraries write them: the games of Atari and Procgen, and ids of versions that are no more."""

from __future__ import annotations

import re
from typing import NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec

PROCGEN_GAMES = (
    'bigfish',
    'bossfight',
    'caveflyer',
    'chaser',
    'climber',
    'coinrun',
    'dodgeball',
    'fruitbot',
    'heist',
    'jumper',
    'leaper',
    'maze',
    'miner',
    'ninja',
    'plunder',
    'starpilot',
)

ATARI_GAMES = frozenset(
    'Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk Bowling '
    'Boxing Breakout Carnival Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk ElevatorAction Enduro '
    'FishingDerby Freeway Frostbite Gopher Gravitar Hero IceHockey Jamesbond JourneyEscape Kangaroo Krull KungFuMaster '
    'MontezumaRevenge MsPacman NameThisGame Phoenix Pitfall Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank '
    'Seaquest Skiing Solaris SpaceInvaders StarGunner Tennis TimePilot Tutankham UpNDown Venture VideoPinball WizardOfWor '
    'YarsRevenge Zaxxon'.split()
)
"""Those with ids of their name alone, as 'Pong-v4'; any word is a game in 'ALE/Word-v5' and 'WordNoFrameskip-v4'."""

_ATARI = re.compile(r'(?:ale_py:)?(ALE/)?(\w+?)(-ram)?(NoFrameskip|Deterministic)?-v\d+')
_PROCGEN = re.compile(r'(?:procgen:)?procgen[-_:/]([a-z]+)(?:-v\d+)?')


class Game(NamedTuple):
    """A game of an env family: what env.id and env.game name it by.

    is_ram: the id's observations are the memory of the console (128 bytes), where the family's are images.
    """

    family: str
    name: str
    is_ram: bool = False

    def sentence(self) -> str:
        """What to write in place of the id."""
        if self.is_ram:
            return (
                f'its observations are the memory of the console, and those of env.id=atari are images; write '
                f"env.id='ale_py:ALE/{self.name}-v5' env.kwargs.obs_type=ram."
            )
        return f'here it is env.id={self.family} env.game={self.name}.'


def game_of(env_id: str) -> Game | None:
    """The game of Atari or Procgen that an id of gymnasium, ale-py, procgen or envpool means; None for other ids."""
    if found := _ATARI.fullmatch(env_id):
        is_marked = found[1] or found[3] or found[4]
        return Game('atari', found[2], bool(found[3])) if is_marked or found[2] in ATARI_GAMES else None
    if env_id in PROCGEN_GAMES:
        return Game('procgen', env_id)
    found = _PROCGEN.fullmatch(env_id)
    return Game('procgen', found[1]) if found else None


def game_named(word: str) -> Game | None:
    """The game of Atari or Procgen that a word names, in upper or lower case, as 'breakout' or 'ale/space_invaders'."""
    wanted = word.rpartition('/')[2].replace('_', '').replace('-', '').lower()
    for family, games in (('atari', ATARI_GAMES), ('procgen', PROCGEN_GAMES)):
        for name in games:
            if name.lower() == wanted:
                return Game(family, name)
    return None


def versions_of(env_id: str) -> list[EnvSpec]:
    """The registered envs of this name that gymnasium has, oldest version first; it keeps ids of some that it lost."""
    base = env_id.rpartition('-v')[0] or env_id
    same = [s for s in gymnasium.registry.values() if s.id.rpartition('-v')[0] == base and not _only_raises(s)]
    return sorted(same, key=lambda s: s.version or 0)


def _only_raises(spec: EnvSpec) -> bool:
    entry = spec.entry_point
    return (
        callable(entry) and entry.__module__ == 'gymnasium.envs' and getattr(entry, '__name__', '').startswith('_raise')
    )
