"""An env family builds a whole vector env for a named game (Atari, Procgen, EnvPool, torch)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np

from zoo.config.section import Section, validate
from zoo.core.errors import did_you_mean, missing_extra
from zoo.env.config import EnvConfig
from zoo.env.errors import EnvError, MissingExtraError, Place, UnknownEnvError

if TYPE_CHECKING:
    from zoo.env.tensor.agent_simulator import AgentSimulator
    from zoo.env.tensor.program import TensorEnv

MAX_LISTED = 20  # games that an error names one by one


class EnvRequest(NamedTuple):
    """The request of a config to a family, without env.kwargs."""

    name: str  # of the envs in messages
    game: str  # '' if the family has no games
    n_env: int
    training: bool  # envs for training, not for evaluation
    max_episode_steps: int | None
    device: str = 'cpu'  # of tensor envs; ignored by others
    render: bool = False  # whether its render() has to return the picture of each env, [H, W, 3] of bytes
    seed: int = 0  # for a constructor that takes one; resets get seeds too
    first: int = 0  # index of the first env, if they are one of several groups


@dataclass(frozen=True)
class EnvFamily:
    """An entry of ENV_REGISTRY that makes vector envs or tensor envs."""

    make: Callable[..., gymnasium.vector.VectorEnv | TensorEnv]  # (EnvRequest, options), or (EnvRequest, **env.kwargs)
    games: Callable[[], Sequence[str]] | None = None  # known games; None if env.game is not used
    options: type[Section] | None = None  # the section that env.kwargs is read as
    one_seed: bool = False
    summary: str = ''  # a line for lists of envs
    make_agents: Callable[..., AgentSimulator | None] | None = None
    """(EnvRequest, **env.kwargs) -> envs of several agents, or None if the env has one; None: it has one."""

    def check_game(self, env_id: str, game: str | None) -> None:
        """Checks env.game. Raises: UnknownEnvError with the closest games if it is unknown; exceptions of `games`."""
        if self.games is None:
            return
        known = self.games()
        if game in known:
            return
        hint = did_you_mean(game or '', known, end=' ')
        listed = ', '.join(known)
        if len(known) > MAX_LISTED:
            listed = f'{", ".join(known[:3])} and {len(known) - 3} more'
        got = 'env.game is missing'
        if game is not None:
            got = f'unknown game {game!r}'
        raise UnknownEnvError(f'{got}: {hint}env {env_id!r} has {listed}; set env.game to one of them.')

    def read_options(self, kwargs: Mapping[str, Any]) -> Section | None:
        """env.kwargs as this family's section, None if it has none. Raises: ConfigError for every problem."""
        if self.options is None:
            return None
        return validate(self.options, kwargs, 'env.kwargs', [f'env.{key}' for key in EnvConfig.model_fields])


@dataclass(frozen=True)
class OwnVector(EnvFamily):
    """A family of one kind of env, made by a callable that takes num_envs; the env itself tells whether it takes one seed."""

    is_given: bool = False  # a vector env that exists already, with a fixed number of envs
    maker: Callable[..., Any] | None = None  # the callable, for errors about env.kwargs; None: `make` itself


def env_family(
    games: Sequence[str] | Callable[[], Sequence[str]] | None = None,
    options: type[Section] | None = None,
    one_seed: bool = False,
    summary: str = '',
) -> Callable[[Callable[..., gymnasium.vector.VectorEnv | TensorEnv]], EnvFamily]:
    """Decorator, below `@ENV_REGISTRY.register(name)`, for a function that makes a vector env, or a TensorEnv.

    The function takes an EnvRequest and its options, and is called once for each group of envs. Its vector env has its
    autoreset mode in its metadata. If it changes rewards or episode ends for training, it sets metadata[RAW] and puts
    those of the game into each step's info, as [B] arrays under RAW_REWARD and RAW_END.

    Args:
      games: the values of env.game, or a function that finds them; None if there are no games.
      options: the Section that env.kwargs is read as; None: the function takes env.kwargs as its keyword arguments.
      one_seed: its reset takes one int for all envs rather than a list of one for each.
      summary: a line about it for `zoo list envs`; '': the first line of the function's docstring.
    """

    def list_games() -> Sequence[str]:
        assert games is not None
        if callable(games):
            return games()
        return games

    def family_of(make: Callable[..., gymnasium.vector.VectorEnv | TensorEnv]) -> EnvFamily:
        first_line = (make.__doc__ or '').strip().partition('\n')[0]
        find_games = None
        if games is not None:
            find_games = list_games
        return EnvFamily(make, find_games, options, one_seed, summary or first_line)

    return family_of


def import_extra(module: str, extra: str, name: str) -> Any:
    """Imports a module of an optional dependency. Raises: MissingExtraError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise  # it exists, but a module that it imports does not
        raise MissingExtraError(missing_extra(f'env {name!r}', extra)) from error


_BOUNDS: dict[type, Callable[[Any], tuple[np.ndarray, np.ndarray]]] = {
    gymnasium.spaces.Discrete: lambda space: (np.array(int(space.start)), np.array(int(space.start + space.n - 1))),
    gymnasium.spaces.MultiDiscrete: lambda space: (space.start, space.start + space.nvec - 1),
    gymnasium.spaces.MultiBinary: lambda space: (np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)),
    gymnasium.spaces.Box: lambda space: (space.low, space.high),
}


class ActionCheck:
    """Refuses invalid actions, for simulators that would hang, end the process or accept them silently."""

    def __init__(self, name: str, space: gymnasium.Space, n_env: int) -> None:
        self._name = name
        self._shape = (n_env, *(space.shape or ()))
        self._low, self._high = next(bounds(space) for kind, bounds in _BOUNDS.items() if isinstance(space, kind))
        self._discrete = isinstance(space, gymnasium.spaces.Discrete)
        self._takes_float = self._low.dtype.kind == 'f'

    def __call__(self, actions: np.ndarray, step: int) -> None:
        """actions: [B, *A] integers or floats, as the space says. Raises: EnvError."""
        if self._takes_float:
            kinds = 'f'
            wanted = 'floats'
        else:
            kinds = 'biu'
            wanted = 'integers'
        if actions.shape != self._shape:
            raise EnvError(
                f'{Place(self._name, step).of(None)}: the actions have shape {actions.shape}, wanted {self._shape}; '
                'pass one action for each env.'
            )
        if actions.dtype.kind not in kinds:
            raise EnvError(
                f'{Place(self._name, step).of(None)}: the actions are of {actions.dtype}, wanted {wanted}; '
                "pass the policy's output unchanged."
            )
        outside = ~((self._low <= actions) & (actions <= self._high))  # true for nan too
        if np.count_nonzero(outside):
            index = int(np.flatnonzero(outside.reshape(len(actions), -1).any(axis=1))[0])
            if self._discrete:
                bounds = f'{self._low} to {self._high}'
            else:
                bounds = 'numbers inside its action_space'
            raise EnvError(
                f'{Place(self._name, step).of(index)}: the action is {actions[index]}, wanted {bounds}; '
                'look at the policy.'
            )
