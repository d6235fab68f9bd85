"""Self-play: a policy plays against itself, its past and fixed opponents; its rating (Elo) against all of them.

Nothing random is kept: the opponent of an episode is a function of the seed, the copy of the env, and the number of the episode
since the last reset of all envs; so a resumed run draws the same opponents each time. Sources: shares of the latest and of past
versions: OpenAI Five (arXiv:1912.06680); draws by the win rate: AlphaStar (Vinyals et al., 2019); ratings: Elo (1978).
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, FiniteFloat, model_validator
from torch import Tensor

from zoo.config.section import Section
from zoo.core.data import Obs, State
from zoo.core.seeding import stream
from zoo.policy.modes import EvalMode

MAIN = 'main'
"""The policy that plays against itself."""
RANDOM = 'random'
"""The policy that draws each allowed action with the same probability."""
AHEAD = 'one_move_ahead'
"""The player of tic-tac-toe and connect four that looks one move ahead, see zoo.agents.board_player."""
BUILT_IN = (RANDOM, AHEAD)
"""Policies that need no description; agents may be mapped to them without naming them in `policies`."""
N_GAME = 100  # games over which win rates are counted
MOST_SLOTS = 8
MOST_RATES = 8  # win rates in a line of the log
logger = logging.getLogger(__name__)


class SharesConfig(Section):
    """Section agents.self_play.opponents: weights, of which each kind of opponent has its share of the episodes."""

    latest: float = Field(0.8, ge=0, description='weight of episodes in which all seats are the policy itself')
    past: float = Field(0.2, ge=0, description='weight of episodes against a snapshot of the past')
    fixed: float = Field(0.0, ge=0, description='weight of episodes against an opponent of `fixed`')

    @model_validator(mode='after')
    def _has_an_opponent(self) -> SharesConfig:
        if not self.latest + self.past + self.fixed:
            raise ValueError(
                'all weights are 0, so that no episode has an opponent; give one of them a weight, e.g. latest: 1.'
            )
        return self


class SnapshotConfig(Section):
    """Section agents.self_play.snapshot: when a copy of the policy becomes one of its opponents."""

    every: int | None = Field(50_000, ge=1, description='env steps between snapshots; null: by the win rate alone')
    win_rate: float | None = Field(
        None,
        gt=0,
        le=1,
        description='also a snapshot when the policy has won this share of 100 games against the newest one; null: never',
    )


class EloConfig(Section):
    """Section agents.self_play.elo: Elo's rating system."""

    k: float = Field(32.0, gt=0, description='most points that one game moves a rating')
    start: float = Field(1000.0, description='rating at the beginning')


class SelfPlayConfig(Section):
    """Section agents.self_play: a policy plays against itself and its past."""

    opponents: SharesConfig = Field(SharesConfig(), description='which opponents episodes have')
    fixed: list[str] = Field(
        ['random'],
        description="opponents that never change: 'random', 'one_move_ahead' in tic-tac-toe and connect four, 'module:function' "
        'of (obs, mask), or a run folder; evaluations are against the first one',
    )
    snapshot: SnapshotConfig = Field(SnapshotConfig(), description='when a snapshot is taken')
    keep: int = Field(20, ge=2, description='snapshots that are kept; the oldest ones go, but the first one stays')
    slots: int = Field(4, ge=1, le=MOST_SLOTS, description='snapshots that act in one rollout, at most')
    sample: Literal['uniform', 'pfsp'] = Field(
        'uniform',
        description='which snapshot plays: each with the same probability, or by (1 - p)^2 of the win rate p against it',
    )
    elo: EloConfig = Field(EloConfig(), description='ratings')
    exploitability: bool = Field(
        False,
        description='log the exact loss of the newest snapshot against a best response, and of the average of all snapshots: in '
        'small games of OpenSpiel, such as Kuhn and Leduc poker',
    )

    @model_validator(mode='after')
    def _names_each_opponent_once(self) -> SelfPlayConfig:
        twice = [name for i, name in enumerate(self.fixed) if name in self.fixed[:i]]
        if twice:
            raise ValueError(f'fixed has {twice[0]!r} twice, but each opponent has one rating; name it once.')
        if self.opponents.fixed and not self.fixed:
            raise ValueError(
                f'opponents.fixed is {self.opponents.fixed:g} but fixed is empty; name an opponent there, or leave the weight out.'
            )
        return self


@dataclass
class Opponent:
    """An opponent with a rating. games: of the last ones, 1 for a win of the policy, .5 for a draw, 0; mode: how it acts."""

    name: str
    rating: float
    n_game: int = 0
    games: deque[float] = field(default_factory=lambda: deque(maxlen=N_GAME))
    mode: EvalMode | None = None

    @property
    def win_rate(self) -> float:
        """The policy's win rate against it, with one draw more than was played."""
        return (sum(self.games) + 0.5) / (len(self.games) + 1)


def expected_score(rating: float, other: float) -> float:
    """The share of points that Elo's formula expects of a player against another one."""
    return 1 / (1 + 10 ** ((other - rating) / 400))


def slot_name(i: int) -> str:
    """The policy of the layout that plays a snapshot."""
    return f'past_{i}'


def fixed_name(i: int) -> str:
    """The policy of the layout that is a fixed opponent."""
    return f'fixed_{i}'


class League:
    """The opponents of a policy that plays against itself.

    Args: agents: the seats of the game; seed: of the run; load: makes the eval mode of a snapshot, of its file and whether this
      process wrote that.
    Attributes: rating: of the policy; snapshots: by the env step when they were taken, the oldest first; folder: their files;
      exact: metrics of the snapshots that are computed exactly, in small games.
    """

    def __init__(
        self, cfg: SelfPlayConfig, agents: Sequence[str], seed: int, load: Callable[[Path, bool], EvalMode]
    ) -> None:
        self._cfg = cfg
        self._agents = list(agents)
        self._seed = seed
        self._load = load
        start = cfg.elo.start
        self.rating = start
        self.fixed = [Opponent(name, start) for name in cfg.fixed]
        self.snapshots: dict[int, Opponent] = {}
        self._slots: list[int | None] = [None] * cfg.slots  # the snapshot in each slot
        self._has_weighed = False  # whether slots were drawn by the weights of snapshots
        self._reset_step = 0
        self._drawn: tuple[tuple[int, int], str] | None = None  # the last episode, and its opponent
        self._kinds = self._bounds_of_kinds()  # of opponents, in this rollout
        self.folder: Path | None = None
        self.exact: dict[str, float] = {}

    @property
    def policies(self) -> dict[str, Any]:
        """The policies of the layout, as agents.policies has them; those of snapshots have the type 'past'."""
        policies: dict[str, Any] = {MAIN: {}}
        for i, name in enumerate(self._cfg.fixed):
            policies[fixed_name(i)] = _as_actor(name)
        for i in range(self._cfg.slots):
            policies[slot_name(i)] = {'type': 'past'}
        return policies

    def reset(self, env_step: int) -> None:
        """Called when all envs begin new episodes."""
        self._reset_step = env_step
        self._drawn = None

    def seat(self, copy: int) -> str:
        """The agent that the policy plays in a copy of the env, where it has an opponent."""
        return self._agents[copy % len(self._agents)]

    def policy_of(self, agent: str, episode: int, copy: int) -> str:
        """The policy of an agent in a training episode, as agents.mapping gives it."""
        if agent == self.seat(copy):
            return MAIN
        return self._opponent(episode, copy)

    def evaluation_policy_of(self, agent: str, episode: int, copy: int) -> str:
        """The policy of an agent in an evaluation: the opponent is the first fixed one, and each copy takes the seats in turn."""
        if agent == self.seat(copy + episode) or not self.fixed:
            return MAIN
        return fixed_name(0)

    def _opponent(self, episode: int, copy: int) -> str:
        """The policy of the other seats in an episode."""
        key = (episode, copy)
        if self._drawn is not None and self._drawn[0] == key:
            return self._drawn[1]
        name = MAIN
        if self._kinds[0] < 1.0:  # some episodes have another opponent
            rng = np.random.default_rng(stream(self._seed, 'league', self._reset_step, copy, episode))
            kind = bisect_right(self._kinds, rng.random())
            if kind == 1:
                filled = [i for i, snapshot in enumerate(self._slots) if snapshot is not None]
                name = slot_name(filled[bisect_right(_bounds(self._weights_of_slots()), rng.random())])
            elif kind == 2:
                name = fixed_name(int(rng.integers(len(self.fixed))))
        self._drawn = key, name
        return name

    def _bounds_of_kinds(self) -> list[float]:
        """The bounds of the latest, past and fixed opponents in [0, 1]."""
        shares = self._cfg.opponents
        has_snapshots = any(snapshot is not None for snapshot in self._slots)
        weights = np.array([shares.latest, shares.past * has_snapshots, shares.fixed * bool(self.fixed)])
        if not weights.sum():
            weights[0] = 1.0
        return _bounds(weights / weights.sum())

    def begin_rollout(self, env_step: int, in_use: Collection[str]) -> None:
        """Draws the snapshots that may play in the episodes that begin in this rollout.

        Args: in_use: policies that play in running episodes, whose opponents stay.
        """
        free = [i for i in range(len(self._slots)) if slot_name(i) not in in_use]
        playing = [snapshot for i, snapshot in enumerate(self._slots) if i not in free]
        others = [step for step in self.snapshots if step not in playing]
        rng = np.random.default_rng(stream(self._seed, 'league slots', env_step))
        drawn: list[int | None] = list(others)
        self._has_weighed = False
        if len(others) > len(free):  # not every snapshot can play
            self._has_weighed = self._cfg.sample == 'pfsp'
            if self._has_weighed:  # repeats are allowed, so that each draw has the probabilities
                steps = list(self.snapshots)
                drawn = rng.choice(steps, len(free), p=self._weights(steps)).tolist()
            else:
                drawn = rng.choice(others, len(free), replace=False).tolist()
        drawn += [None] * (len(free) - len(drawn))
        for i, step in zip(free, drawn, strict=True):
            self._slots[i] = step
        self._kinds = self._bounds_of_kinds()
        self._drawn = None

    def _weights_of_slots(self) -> np.ndarray:
        """The probability of each slot that has a snapshot."""
        steps = [step for step in self._slots if step is not None]
        weights = np.ones(len(steps))
        if not self._has_weighed:
            weights = self._weights(steps) / [
                steps.count(step) for step in steps
            ]  # of those in two slots each has half
        return weights / weights.sum()

    def _weights(self, steps: Sequence[int]) -> np.ndarray:
        """The probability of each snapshot."""
        weights = np.ones(len(steps))
        if self._cfg.sample == 'pfsp':
            weights = np.array([(1 - self.snapshots[step].win_rate) ** 2 + 1e-3 for step in steps])
        return weights / weights.sum()

    def slot_mode(self, i: int, initial_state: Callable[[int], State] | None = None) -> EvalMode:
        """The eval mode of a slot: that of its snapshot, which may change between rollouts.

        Args: initial_state: of the policy, whose snapshots have a recurrent state where it has one.
        """

        def now() -> EvalMode:
            step = self._slots[i]
            assert step is not None, 'it has no episodes'
            mode = self.snapshots[step].mode
            assert mode is not None, 'a snapshot is loaded when it is taken'
            return mode

        def forward(obs: Obs, state: State = None) -> dict[str, Any]:
            return now().forward(obs, state)

        def sample(obs: Obs, state: State, generator: Any) -> dict[str, Any]:
            draw = now().sample
            assert draw is not None, 'a policy that is trained draws its actions'
            return draw(obs, state, generator)

        def to_env(action: Tensor) -> Tensor:
            convert = now().env_action
            return action if convert is None else convert(action)

        return EvalMode(forward, initial_state, to_env, sample)

    def record(self, owners: Sequence[str], returns: np.ndarray) -> None:
        """Takes the result of an episode: the mean return of the policy's seats beside that of the others.

        Args: owners: the policy of each agent; returns: of each agent.
        """
        others = [i for i, name in enumerate(owners) if name != MAIN]
        if not others:
            return
        opponent = self._of_policy(owners[others[0]])
        if opponent is None:
            return
        seats = [i for i, name in enumerate(owners) if name == MAIN]
        difference = returns[seats].mean() - returns[others].mean()
        if np.isnan(difference):  # the env gave nan, which no rating may become
            return
        self.rate(opponent, float((np.sign(difference) + 1) / 2))

    def rate(self, opponent: Opponent, score: float) -> None:
        """Moves the ratings by the result of a game. Args: score: 1 for a win of the policy, .5 for a draw, 0."""
        points = self._cfg.elo.k * (score - expected_score(self.rating, opponent.rating))
        self.rating += points
        if opponent is not self.anchor:
            opponent.rating -= points
        opponent.n_game += 1
        opponent.games.append(score)

    @property
    def anchor(self) -> Opponent | None:
        """The opponent whose rating stays at the start, so that the scale does not drift."""
        if self.fixed and self._cfg.opponents.fixed:  # it plays in training
            return self.fixed[0]
        return next(iter(self.snapshots.values()), None)

    def _of_policy(self, name: str) -> Opponent | None:
        for i, opponent in enumerate(self.fixed):
            if name == fixed_name(i):
                return opponent
        step = self._slots[int(name.removeprefix('past_'))]
        return None if step is None else self.snapshots.get(step)

    def is_due(self, env_step: int) -> bool:
        """Whether a snapshot is to be taken now."""
        if not self.snapshots:
            return True
        last = max(self.snapshots)
        cfg = self._cfg.snapshot
        if env_step <= last:
            return False
        newest = self.snapshots[last]
        has_won = cfg.win_rate is not None and len(newest.games) == N_GAME
        if has_won and float(np.mean(newest.games)) >= cfg.win_rate:  # type: ignore[operator]
            return True
        return cfg.every is not None and env_step - last >= cfg.every

    def take(self, save: Callable[[Path], Any], env_step: int) -> None:
        """Takes a snapshot, and drops the oldest ones beyond `keep`, whose files stay: checkpoints may name them.

        Args: save: writes the policy to a path.
        """
        path = self.path(env_step)
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path)
        self.snapshots[env_step] = Opponent(str(env_step), self.rating, mode=self._load(path, True))
        _, *others = list(self.snapshots)
        idle = [step for step in others[:-1] if step not in self._slots]  # the others may play in running episodes
        for step in idle[: max(len(self.snapshots) - self._cfg.keep, 0)]:
            del self.snapshots[step]

    def path(self, env_step: int) -> Path:
        """The file of a snapshot."""
        assert self.folder is not None, 'the run has begun'
        return self.folder / f'{env_step}.safetensors'

    def metrics(self) -> dict[str, float]:
        """The rating, the number of snapshots, and win rates against fixed opponents and the newest snapshots."""
        metrics = {'league/elo': self.rating, 'league/snapshots': float(len(self.snapshots)), **self.exact}
        opponents = [*self.fixed, *list(self.snapshots.values())[-MOST_RATES:]]
        for i, opponent in enumerate(opponents[:MOST_RATES]):
            name = f'league/win_rate/{Path(opponent.name).name}'
            if name in metrics:  # two runs in folders of the same name
                name = f'{name}_{i}'
            if opponent.games:
                metrics[name] = float(np.mean(opponent.games))
        return metrics

    def table(self) -> str:
        """The ratings, the best first, one line each."""
        rows = [('main', self.rating, 0)] + [
            (x.name, x.rating, x.n_game) for x in (*self.fixed, *self.snapshots.values())
        ]
        rows.sort(key=lambda row: -row[1])
        return '\n'.join(f'{name:>12} {rating:8.0f} {n_game:8d} games' for name, rating, n_game in rows)

    def state_dict(self) -> dict[str, Any]:
        """Ratings and results, as text; the snapshots themselves are files."""

        def of(opponent: Opponent) -> list[Any]:
            return [opponent.name, opponent.rating, opponent.n_game, list(opponent.games)]

        state = {
            'rating': self.rating,
            'fixed': [of(x) for x in self.fixed],
            'snapshots': [of(x) for x in self.snapshots.values()],
        }
        return {'json': json.dumps(state)}

    def load_state_dict(self, state: Mapping[str, Any], folder: Path) -> None:
        """Restores ratings and results, and loads the snapshots in the folder.

        Raises: ValueError for a state that is none; CheckpointError if a snapshot cannot be read.
        """
        saved = SavedLeague.model_validate_json(state['json'])
        self.folder = folder
        self.rating = saved.rating
        before = {values[0]: _restored(values) for values in saved.fixed}
        self.fixed = [before.get(each.name, each) for each in self.fixed]
        self.snapshots = {}
        for values in saved.snapshots:
            snapshot = _restored(values)
            env_step = int(snapshot.name)
            if snapshot.name != str(env_step) or env_step < 0:  # it is the name of a file
                raise ValueError(f'a snapshot has the name {snapshot.name!r}, wanted the env step when it was taken')
            snapshot.mode = self._load(self.path(env_step), False)
            self.snapshots[env_step] = snapshot


SavedOpponent = tuple[str, FiniteFloat, Annotated[int, Field(ge=0)], list[Annotated[float, Field(ge=0, le=1)]]]


class SavedLeague(BaseModel):
    """The state of a league in a checkpoint. Opponents: name, rating, number of games, results of the last ones."""

    rating: FiniteFloat
    fixed: list[SavedOpponent]
    snapshots: list[SavedOpponent]


def _restored(values: SavedOpponent) -> Opponent:
    name, rating, n_game, games = values
    return Opponent(name, rating, n_game, deque(games, maxlen=N_GAME))


def _bounds(probabilities: np.ndarray) -> list[float]:
    """The bounds by which numpy's Generator.choice finds a draw of one number in [0, 1)."""
    bounds = probabilities.cumsum()
    bounds /= bounds[-1]
    return bounds.tolist()  # type: ignore[no-any-return]  # numpy's stubs say Any


def _as_actor(name: str) -> Any:
    """A fixed opponent as agents.policies has it."""
    if name in BUILT_IN:
        return name
    if ':' in name:
        return {'type': 'function', 'act': name}
    return {'type': 'saved', 'path': name}
