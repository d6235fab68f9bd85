"""Error messages for unknown env ids: ids in the form of other libraries, games, and packages that register ids."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec

from zoo.config.user_code import absolute_name
from zoo.core.errors import did_you_mean, missing_extra
from zoo.core.registry import ENV_REGISTRY

PACKAGES = {
    'MiniGrid-': 'minigrid',
    'BabyAI-': 'minigrid',
    'Fetch': 'gymnasium_robotics',
    'AdroitHand': 'gymnasium_robotics',
    'PointMaze': 'gymnasium_robotics',
    'AntMaze': 'gymnasium_robotics',
    'FrankaKitchen': 'gymnasium_robotics',
}
"""Prefix of the ids that a package registers when it is imported -> the package."""
PACKAGES_BY_WORD = {'Bullet': 'pybullet_envs_gymnasium', 'NoVel-v': 'rl_zoo3.import_envs'}
"""Text in the ids that a module registers when it is imported -> the module."""
PROCGEN_GAMES = tuple(
    'bigfish bossfight caveflyer chaser climber coinrun dodgeball fruitbot heist jumper leaper maze miner ninja plunder '
    'starpilot'.split()
)
ATARI_GAMES = frozenset(
    'Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk Bowling '
    'Boxing Breakout Carnival Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk ElevatorAction Enduro '
    'FishingDerby Freeway Frostbite Gopher Gravitar Hero IceHockey Jamesbond JourneyEscape Kangaroo Krull KungFuMaster '
    'MontezumaRevenge MsPacman NameThisGame Phoenix Pitfall Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank '
    'Seaquest Skiing Solaris SpaceInvaders StarGunner Tennis TimePilot Tutankham UpNDown Venture VideoPinball WizardOfWor '
    'YarsRevenge Zaxxon'.split()
)
"""Games with ids of name and version only, as 'Pong-v4'; in 'ALE/Word-v5' and 'WordNoFrameskip-v4' any word is a game."""
_ATARI = re.compile(r'(?:ale_py:)?(ALE/)?(\w+?)(-ram)?(NoFrameskip|Deterministic)?-v\d+')
_PROCGEN = re.compile(r'(?:procgen:)?procgen[-_:/]([a-z]+)(?:-v\d+)?')


def known_ids() -> list[str]:
    """Registered names, then the ids that gymnasium knows."""
    return [*ENV_REGISTRY.names(), *sorted(gymnasium.registry)]


def offered_ids() -> list[str]:
    """The known ids without those that gymnasium keeps only to raise an error."""
    return [env_id for env_id in known_ids() if env_id in ENV_REGISTRY or not _only_raises(gymnasium.registry[env_id])]


def unknown_env(env_id: str) -> str:
    """The error message for an id that is not registered."""
    hint = game_hint(env_id)
    if hint:
        return hint
    versions = [s.id for s in versions_of(env_id)]
    if versions:
        return (
            f'unknown env {env_id!r}: gymnasium {gymnasium.__version__} has {", ".join(versions)}; '
            f'use {versions[-1]!r}.'
        )
    if env_id.endswith('.py'):
        return _of_whole_file(env_id)
    hint = _of_envpool(env_id) or _of_package(env_id)
    if hint:
        return hint
    game = game_named(env_id)
    if game:
        return _in_family(env_id, game)
    hint = did_you_mean(env_id, (*ENV_REGISTRY.names(), *gymnasium.registry), 'no known id is close.')
    return (
        f"unknown env {env_id!r}: {hint} `zoo list envs` shows the known ones; write 'module:function' or "
        "'path/file.py:function' for your own, and 'package:id' for an id that a package registers with gymnasium when "
        'it is imported.'
    )


def _of_whole_file(env_id: str) -> str:
    """The message for a .py file given without the name of a function or class; the file is parsed, not run."""
    path = Path(absolute_name(f'{env_id}:_').removesuffix(':_'))
    try:
        tree = ast.parse(path.read_text(encoding='utf-8'))
    except (OSError, SyntaxError, ValueError):
        return f'env {env_id!r} is no file that can be read; name one, and what makes the env: path/file.py:function.'
    names = [x.name for x in tree.body if isinstance(x, ast.FunctionDef | ast.ClassDef) and not x.name.startswith('_')]
    do = ' or '.join(f'{env_id}:{name}' for name in names[:3]) or f'{env_id}:function'
    return f'env {env_id!r} is a file: name the function or class in it that makes the env, e.g. {do}.'


def game_hint(env_id: str) -> str | None:
    """The message for the usual id of an Atari or Procgen game, with the correct config; None for any other id."""
    game = game_of(env_id)
    if game is None:
        return None
    return _in_family(env_id, game)


def faster_family(env_id: str) -> str | None:
    """A sentence about the family that steps a game much faster than an id of ale-py; None for other ids."""
    game = game_of(env_id)
    if game is None or game.family != 'atari' or game.is_ram or 'ALE/' not in env_id:
        return None
    return (
        f'{env_id} gives raw pictures of 210 x 160 pixels, which take long to step and to learn from; env.id=atari '
        f'env.game={game.name} is the game with the usual preprocessing, many games at once'
    )


def _of_envpool(env_id: str) -> str | None:
    """The message for an id of envpool; None for others. Only ids with a version are tried: the import takes seconds."""
    if not re.fullmatch(r'[\w/]+-v\d+', env_id) or importlib.util.find_spec('envpool') is None:
        return None
    games = ENV_REGISTRY.get('envpool').games
    if games is not None and env_id in games():
        return _in_family(env_id, Game('envpool', env_id))
    return None


def _in_family(env_id: str, game: Game) -> str:
    package = 'envpool'
    if game.family == 'atari':
        package = 'ale_py'
    message = f'unknown env {env_id!r}: {game.sentence()}'
    if not game.is_ram:
        message += f' On the command line: zoo train --env {game.family} env.game={game.name}.'
    if importlib.util.find_spec(package) is None:
        env = f'env {game.family!r}'
        message += f' {missing_extra(env, game.family)}.'
    return message


def package_of(env_id: str) -> str | None:
    """The package, or module, that registers an id when it is imported, judged by the words in the id; None for other ids."""
    for start, package in PACKAGES.items():
        if env_id.startswith(start):
            return package
    for word, module in PACKAGES_BY_WORD.items():
        if word in env_id:
            return module
    return None


def installed_by(package: str) -> str:
    """The pip command that installs the package of a module."""
    return f'pip install {package.partition(".")[0].replace("_", "-")}'


def _of_package(env_id: str) -> str | None:
    package = package_of(env_id)
    if package is None:
        return None
    install = ''
    if importlib.util.find_spec(package.partition('.')[0]) is None:
        install = f'{installed_by(package)}, and '
    message = (
        f'unknown env {env_id!r}: package {package!r} registers such ids when it is imported; {install}write '
        f"env.id='{package}:{env_id}'."
    )
    if package == 'minigrid':
        message += f' With the extra envpool, write env.id=envpool env.game={env_id}.'
    return message


class Game(NamedTuple):
    """A game of an env family. family, name: the values of env.id and env.game for it.

    is_ram: the id's observations are the memory of the console (128 bytes); those of the family are images.
    """

    family: str
    name: str
    is_ram: bool = False

    def sentence(self) -> str:
        """The part of the message that tells the correct config."""
        if self.is_ram:
            return (
                f'its observations are the memory of the console, and those of env.id=atari are images; write '
                f"env.id='ale_py:ALE/{self.name}-v5' env.kwargs.obs_type=ram."
            )
        return f'here it is env.id={self.family} env.game={self.name}.'


def game_of(env_id: str) -> Game | None:
    """The game of Atari or Procgen that an id of gymnasium, ale-py, procgen or envpool means; None for other ids."""
    match = _ATARI.fullmatch(env_id)
    if match:
        namespace, name, ram, kind = match.groups()
        if namespace or ram or kind or name in ATARI_GAMES:
            return Game('atari', name, is_ram=ram is not None)
        return None
    if env_id in PROCGEN_GAMES:
        return Game('procgen', env_id)
    match = _PROCGEN.fullmatch(env_id)
    if match:
        return Game('procgen', match[1])
    return None


def game_named(word: str) -> Game | None:
    """The game of Atari or Procgen that a word names, in upper or lower case, as 'breakout' or 'ale/space_invaders'."""
    wanted = word.rpartition('/')[2].replace('_', '').replace('-', '').lower()
    for name in ATARI_GAMES:
        if name.lower() == wanted:
            return Game('atari', name)
    if wanted in PROCGEN_GAMES:
        return Game('procgen', wanted)
    return None


def versions_of(env_id: str) -> list[EnvSpec]:
    """The specs of all versions of an env, the oldest first, without ids that gymnasium keeps only to raise an error."""
    base = env_id.rpartition('-v')[0] or env_id
    same = [s for s in gymnasium.registry.values() if s.id.rpartition('-v')[0] == base and not _only_raises(s)]
    return sorted(same, key=lambda s: s.version or 0)


def _only_raises(spec: EnvSpec) -> bool:
    entry = spec.entry_point
    return (
        callable(entry) and entry.__module__ == 'gymnasium.envs' and getattr(entry, '__name__', '').startswith('_raise')
    )
